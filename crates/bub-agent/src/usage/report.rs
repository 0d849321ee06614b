//! Sums up the usage of the model calls on all tapes.

use std::{
    collections::{BTreeMap, HashSet},
    ops::AddAssign,
};

use bub_kernel::{Error, Result, tape_error};
use bub_model::{Catalog, ModelId};
use bub_tape::{TapeListFilter, TapeName, TapeStore};
use jiff::{Timestamp, civil::DateTime, tz::TimeZone};

use super::{TokenCounts, UsageRecord, read_calls_and_copies};

/// How a usage report groups model calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::EnumString)]
#[strum(serialize_all = "lowercase")]
pub enum GroupBy {
    /// One row per session.
    Session,
    /// One row per model.
    Model,
    /// One row per day in the local time zone.
    Day,
}

/// One row of a usage report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UsageRow {
    /// The session, model or day that the row sums up.
    pub name: String,
    /// The number of model calls in the row.
    pub calls: u64,
    /// The sum of the tokens of all calls in the row.
    pub tokens: TokenCounts,
    /// The cost of the calls with a known price, in US dollars.
    pub cost: f64,
    /// The number of calls without a known price.
    pub unpriced: u64,
}

impl UsageRow {
    pub(crate) fn add_call(&mut self, model: &str, tokens: TokenCounts, catalog: &Catalog) {
        let model = model.parse::<ModelId>().ok();
        let price = model.and_then(|model| catalog.price(&model));
        self.calls += 1;
        self.tokens += tokens;
        self.cost += price.map_or(0.0, |price| tokens.cost(price));
        self.unpriced += u64::from(price.is_none());
    }
}

impl AddAssign<&Self> for UsageRow {
    fn add_assign(&mut self, other: &Self) {
        self.calls += other.calls;
        self.tokens += other.tokens;
        self.cost += other.cost;
        self.unpriced += other.unpriced;
    }
}

/// Sums up the usage on all tapes of a store since a date or a time, such as `2026-11-16`. Returns the rows sorted by name, their
/// sum, and the errors of tapes that cannot be read.
pub async fn usage_report(
    store: &dyn TapeStore,
    catalog: &Catalog,
    by: GroupBy,
    since: Option<&str>,
) -> Result<(Vec<UsageRow>, UsageRow, Vec<String>)> {
    let zone = TimeZone::system();
    let since = match since {
        Some(date) => start_timestamp(date, &zone)?,
        None => Timestamp::MIN,
    };
    let mut rows = BTreeMap::<_, UsageRow>::new();
    let (mut sum, mut unread) = (UsageRow::default(), Vec::new());
    let (mut counted, mut copies) = (HashSet::new(), Vec::new());
    let mut add_call = |call: UsageRecord, tape: &TapeName, session: &str| {
        if call.at < since || !counted.insert(call.identity()) {
            return;
        }
        // Sessions of different workspaces may have the same id, so the name of the tape is the key.
        let (key, name) = match by {
            GroupBy::Session => (tape.as_str().to_owned(), session.to_owned()),
            GroupBy::Model => (call.model.clone(), call.model.clone()),
            GroupBy::Day => {
                let day = call.at.to_zoned(zone.clone()).date().to_string();
                (day.clone(), day)
            }
        };
        let row = rows.entry((name.clone(), key)).or_default();
        row.name = name;
        for row in [row, &mut sum] {
            row.add_call(&call.model, call.tokens, catalog);
        }
    };
    let tapes = store.list(TapeListFilter::Sessions).await;
    for tape in tapes.map_err(tape_error)? {
        let read: bub_tape::Result<_> = async {
            let session = store.summary(&tape).await?.session;
            let session =
                session.map_or_else(|| tape.as_str().to_owned(), |session| session.session_id);
            let (calls, copy_count) = read_calls_and_copies(store, &tape).await?;
            Ok((session, calls, copy_count))
        }
        .await;
        match read {
            Ok((session, mut calls, copy_count)) => {
                for call in calls.split_off(copy_count) {
                    add_call(call, &tape, &session);
                }
                copies.push((tape, session, calls));
            }
            Err(error) => unread.push(error.to_string()),
        }
    }
    // Copies count for the session that made the calls. If its tape is gone, they count for a fork.
    for (tape, session, calls) in copies {
        for call in calls {
            add_call(call, &tape, &session);
        }
    }
    Ok((rows.into_values().collect(), sum, unread))
}

/// Returns when a day starts in a time zone, or the time that the text names.
fn start_timestamp(day: &str, zone: &TimeZone) -> Result<Timestamp> {
    if let Ok(time) = day.trim().parse() {
        return Ok(time);
    }
    let date_error = || {
        let expected = "expected YYYY-MM-DD, for example 2026-11-16";
        Error::invalid_input(format!("invalid date `{day}`: {expected}"))
    };
    let start: DateTime = day.trim().parse().map_err(|_| date_error())?;
    let start = start.to_zoned(zone.clone()).map_err(|_| date_error())?;
    Ok(start.timestamp())
}
