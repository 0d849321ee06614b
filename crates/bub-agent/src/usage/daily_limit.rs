//! The limits of tokens and cost: per day, shared by all processes that use the same home, and per process.
//!
//! The tapes are authoritative, but reading all of them before each call would be slow. So a ledger of the day,
//! `usage/<day>.jsonl`, has one line per call. bub rebuilds the ledger from the tapes if the file is missing. Each
//! check reads only the lines that were added since the last check. Without a limit, bub writes no ledger.

use std::{
    collections::HashSet,
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    pin::pin,
};

use bub_kernel::{Error, ErrorKind, Result, tape_error};
use bub_model::{Catalog, ModelId};
use bub_settings::Settings;
use bub_tape::{EntryRange, TapeListFilter, TapeStore};
use futures_util::TryStreamExt as _;
use jiff::{Timestamp, ToSpan as _, Zoned};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::{TokenCounts, UsageRow, read_model_calls};
use crate::settings::UsageSettings;

/// The configured limits and the usage of the current day.
pub struct DailyLimit {
    tokens: Option<u64>,
    cost: Option<f64>,
    /// Maximum cost of the calls of this process.
    process_cost: Option<f64>,
    directory: PathBuf,
    today: Mutex<DailyUsage>,
    /// The calls of this process, if their cost is limited.
    process_calls: Mutex<Vec<(String, TokenCounts)>>,
}

/// The usage of a day: the sum of the ledger lines that were read so far.
#[derive(Default)]
struct DailyUsage {
    day: String,
    /// The byte offset up to which the ledger was read.
    offset: u64,
    usage: UsageRow,
    /// Calls that could not be written to the ledger. They count only in this process.
    unwritten: Vec<(String, TokenCounts)>,
}

impl DailyLimit {
    /// Reads the limits from the settings.
    pub fn new(settings: &Settings) -> Self {
        Self {
            tokens: settings.get(UsageSettings::DAILY_TOKENS),
            cost: settings.get(UsageSettings::DAILY_COST),
            process_cost: settings.get(UsageSettings::PROCESS_COST),
            directory: settings.home().join("usage"),
            today: Mutex::default(),
            process_calls: Mutex::default(),
        }
    }

    /// Returns whether a limit is configured.
    pub(crate) fn is_set(&self) -> bool {
        self.has_daily_limit() || self.process_cost.is_some()
    }

    fn has_daily_limit(&self) -> bool {
        self.tokens.is_some() || self.cost.is_some()
    }

    /// Fails if the calls of this process have reached their limit, or if their price is unknown.
    async fn check_process(&self, models: &[ModelId], catalog: &Catalog) -> Result<()> {
        let Some(limit) = self.process_cost else {
            return Ok(());
        };
        if let Some(model) = models.iter().find(|model| catalog.price(model).is_none()) {
            return Err(Error::config(format!(
                "cannot enforce `--max-price`: the price of {model} is unknown; set `providers.{}.prices`",
                model.provider()
            )));
        }
        let mut usage = UsageRow::default();
        for (model, counts) in self.process_calls.lock().await.iter() {
            usage.add_call(model, *counts, catalog);
        }
        let cost = usage.cost;
        if cost < limit {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Provider,
            format!(
                "price limit reached: ${cost:.4} of ${limit:.4} (`--max-price`); raise it and continue the session"
            ),
        ))
    }

    /// Fails if a limit does not allow calls to these models now. If a limit is reached, the error says when it resets.
    pub async fn check(
        &self,
        models: &[ModelId],
        catalog: &Catalog,
        store: Option<&dyn TapeStore>,
    ) -> Result<()> {
        self.check_process(models, catalog).await?;
        if !self.has_daily_limit() {
            return Ok(());
        }
        let unpriced = models.iter().find(|model| catalog.price(model).is_none());
        if let Some(model) = unpriced.filter(|_| self.cost.is_some() && self.tokens.is_none()) {
            return Err(Error::config(format!(
                "cannot enforce `usage.daily_cost`: the price of {model} is unknown; set `providers.{}.prices`, or \
                 also set `usage.daily_tokens` to limit its tokens",
                model.provider()
            )));
        }
        let now = Zoned::now();
        let mut today = self.today.lock().await;
        self.read_ledger(&mut today, &now, catalog, store).await?;
        let mut usage = today.usage.clone();
        for (model, counts) in &today.unwritten {
            usage.add_call(model, *counts, catalog);
        }
        let (tokens, cost) = (usage.tokens.total(), usage.cost);
        let spent = if let Some(limit) = self.tokens.filter(|limit| tokens >= *limit) {
            format!("{tokens} of {limit} tokens (`usage.daily_tokens`)")
        } else if let Some(limit) = self.cost.filter(|limit| cost >= *limit) {
            format!("${cost:.4} of ${limit:.4} (`usage.daily_cost`)")
        } else {
            return Ok(());
        };
        let reset = now.date().saturating_add(1.day());
        let zone = now.time_zone().iana_name();
        let zone = zone.map(|zone| format!(" {zone}")).unwrap_or_default();
        Err(Error::new(
            ErrorKind::Provider,
            format!(
                "daily limit reached: {spent}; it resets at {reset} 00:00{zone}; to continue now, raise the setting"
            ),
        ))
    }

    /// Adds a model call to the ledger.
    pub(crate) async fn record_call(&self, model: &str, usage: &Value) {
        let Some(tokens) = TokenCounts::from_usage(usage) else {
            return;
        };
        if self.process_cost.is_some() {
            let mut calls = self.process_calls.lock().await;
            calls.push((model.to_owned(), tokens));
        }
        if !self.has_daily_limit() {
            return;
        }
        let mut today = self.today.lock().await;
        let day = Zoned::now().date().to_string();
        if let Err(error) = append_line(&self.ledger_path(&day), &ledger_line(model, usage)) {
            let file = self.ledger_path(&day);
            tracing::error!(file = %file.display(), %error, "usage.write_failed");
            today.unwritten.push((model.to_owned(), tokens));
        }
    }

    fn ledger_path(&self, day: &str) -> PathBuf {
        self.directory.join(format!("{day}.jsonl"))
    }

    /// Reads the lines that were added to the ledger since the last read, by this or another process. Adds their usage
    /// to `today`. If the ledger is missing, creates it from the tapes first.
    async fn read_ledger(
        &self,
        today: &mut DailyUsage,
        now: &Zoned,
        catalog: &Catalog,
        store: Option<&dyn TapeStore>,
    ) -> Result<()> {
        let day = now.date().to_string();
        if today.day != day {
            *today = DailyUsage::default();
            today.day.clone_from(&day);
        }
        let path = self.ledger_path(&day);
        let read_error = |error: io::Error| ledger_error("read", &path, &error);
        let mut file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                (today.offset, today.usage) = (0, UsageRow::default());
                let start = now
                    .start_of_day()
                    .map_err(|error| read_error(io::Error::other(error)))?
                    .timestamp();
                rebuild_ledger(&path, start, store).await?;
                File::open(&path).map_err(read_error)?
            }
            opened => opened.map_err(read_error)?,
        };
        if file.metadata().map_err(read_error)?.len() < today.offset {
            // The file is shorter than before, so it was replaced.
            (today.offset, today.usage) = (0, UsageRow::default());
        }
        let mut text = Vec::new();
        file.seek(SeekFrom::Start(today.offset))
            .and_then(|_| file.read_to_end(&mut text))
            .map_err(read_error)?;
        // A line without a newline is still being written.
        let complete = memchr::memrchr(b'\n', &text).map_or(0, |end| end + 1);
        text.truncate(complete);
        for line in text.split(|byte| *byte == b'\n') {
            let call: Value = serde_json::from_slice(line).unwrap_or_default();
            if let Some(tokens) = call.get("usage").and_then(TokenCounts::from_usage) {
                let model = call.get("model").and_then(Value::as_str);
                let model = model.unwrap_or_default();
                today.usage.add_call(model, tokens, catalog);
            }
        }
        today.offset += u64::try_from(complete).unwrap_or_default();
        Ok(())
    }
}

/// Returns the ledger line of a call. It starts with a newline, because a crash may have left an incomplete line.
fn ledger_line(model: &str, usage: &Value) -> String {
    format!("\n{}\n", json!({"model": model, "usage": usage}))
}

/// Appends a line to an existing ledger.
fn append_line(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().append(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}

/// Creates the ledger of a day from the tapes. It reads only the entries of that day.
async fn rebuild_ledger(
    path: &Path,
    start: Timestamp,
    store: Option<&dyn TapeStore>,
) -> Result<()> {
    let (mut text, mut counted) = (String::from("\n"), HashSet::new());
    if let Some(store) = store {
        let tapes = store
            .list(TapeListFilter::SessionsSince(start.into()))
            .await;
        for tape in tapes.map_err(tape_error)? {
            let newest_first = EntryRange::ALL.newest_first();
            let mut calls = pin!(read_model_calls(store, &tape, newest_first));
            while let Some(call) = calls.try_next().await.map_err(tape_error)? {
                if call.at < start {
                    break;
                }
                if counted.insert(call.identity()) {
                    text.push_str(&ledger_line(&call.model, &call.usage));
                }
            }
        }
    }
    let write = || {
        let directory = path.parent().unwrap_or(path);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)?;
        // Readable only by its owner.
        let mut file = tempfile::NamedTempFile::new_in(directory)?;
        file.write_all(text.as_bytes())?;
        match file.persist_noclobber(path) {
            // Another process has created the ledger, and may have added calls since.
            Err(error) if error.error.kind() != io::ErrorKind::AlreadyExists => Err(error.error),
            _ => Ok(()),
        }
    };
    write().map_err(|error| ledger_error("write", path, &error))
}

fn ledger_error(action: &str, path: &Path, error: &io::Error) -> Error {
    let path = path.display();
    let text = format!(
        "cannot {action} the usage of the day in `{path}`: {error}; check its permissions and the disk space"
    );
    Error::new(ErrorKind::Temporary, text)
}
