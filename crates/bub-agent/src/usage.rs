//! Token usage and cost of model calls, read from the events `run` on the tapes.
//!
//! * [`TokenCounts`]: token counts of one or more calls, and their cost.
//! * [`usage_report`]: the usage on all tapes, by session, model or day.
//! * [`DailyLimit`]: the daily limits of tokens and cost.
//!
//! The limits are part of the agent and not a plugin, because a hook before a model call cannot fail the turn, and its
//! own failure lets the call through.

mod daily_limit;
mod report;

use std::{ops::AddAssign, ops::Range, sync::Arc};

use bub_model::Price;
use bub_tape::{Entry, EntryKind, EntryRange, LineFilter, TapeName, TapeStore};
use futures_util::{Stream, TryStreamExt as _};
use jiff::Timestamp;
use memchr::memmem;
use serde_json::Value;

use crate::HANDOFF_EVENT;

pub use self::daily_limit::DailyLimit;
pub use self::report::{GroupBy, UsageRow, usage_report};

/// The event that describes a session. In a fork, it follows the copied entries and names their session.
const SESSION_INFO_EVENT: &str = "session.info";
/// The field with the session that was forked.
const FORKED_FROM_FIELD: &str = "forked_from";

/// Token counts of one or more model calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenCounts {
    /// Input tokens, including cached ones.
    pub input: u64,
    /// Input tokens read from the provider's cache.
    pub cached: u64,
    /// Input tokens written to the provider's cache.
    pub cache_write: u64,
    /// Output tokens.
    pub output: u64,
}

impl TokenCounts {
    /// Reads the `usage` of a `run` event. Returns `None` if it has neither input tokens nor a total.
    pub fn from_usage(usage: &Value) -> Option<Self> {
        let number = |path: &str| usage.pointer(path).and_then(Value::as_u64);
        let output = number("/completion_tokens").unwrap_or(0);
        // Some providers report only the sum of input and output.
        let input = number("/prompt_tokens")
            .or_else(|| Some(number("/total_tokens")?.saturating_sub(output)))?;
        let cached = number("/prompt_tokens_details/cached_tokens")
            .unwrap_or(0)
            .min(input);
        let cache_write = number("/prompt_tokens_details/cache_write_tokens")
            .unwrap_or(0)
            .min(input - cached);
        Some(Self {
            input,
            cached,
            cache_write,
            output,
        })
    }

    /// Returns the sum of input and output tokens.
    pub fn total(&self) -> u64 {
        self.input.saturating_add(self.output)
    }

    /// Returns the cost in US dollars.
    #[expect(
        clippy::cast_precision_loss,
        reason = "token counts are far below 2^52"
    )]
    pub fn cost(&self, price: Price) -> f64 {
        let uncached = self.input - self.cached - self.cache_write;
        let parts = [
            (uncached, price.input),
            (self.cached, price.cached),
            (self.cache_write, price.cache_write),
            (self.output, price.output),
        ];
        let costs = parts.map(|(tokens, price)| tokens as f64 * price);
        costs.iter().sum::<f64>() / 1e6
    }
}

impl AddAssign for TokenCounts {
    fn add_assign(&mut self, other: Self) {
        self.input = self.input.saturating_add(other.input);
        self.cached = self.cached.saturating_add(other.cached);
        self.cache_write = self.cache_write.saturating_add(other.cache_write);
        self.output = self.output.saturating_add(other.output);
    }
}

/// The usage of one model call.
pub(crate) struct UsageRecord {
    at: Timestamp,
    run_id: Option<String>,
    /// The model as recorded on the tape.
    pub(crate) model: String,
    /// The token counts as recorded on the tape.
    usage: Value,
    pub(crate) tokens: TokenCounts,
}

impl UsageRecord {
    /// Reads the usage that an entry records, or returns `None` for other entries. The event `subagent.run` records a
    /// model call of a subagent on the tape of its parent, because the tape of the subagent is discarded, and
    /// `handoff.run` the call that writes a handoff.
    fn from_entry(entry: &Entry) -> Option<Self> {
        if entry.kind != EntryKind::Event
            || !matches!(entry.name()?, "run" | "subagent.run" | HANDOFF_EVENT)
        {
            return None;
        }
        let data = entry.data()?;
        let model = data.get("model").and_then(Value::as_str);
        let run_id = entry.meta.get("run_id").and_then(Value::as_str);
        Some(Self {
            at: entry.timestamp()?,
            run_id: run_id.map(str::to_owned),
            model: model.unwrap_or("unknown").to_owned(),
            tokens: TokenCounts::from_usage(data.get("usage")?)?,
            usage: data.get("usage")?.clone(),
        })
    }

    /// Returns what identifies the call. A fork of a session has copies of its calls.
    fn identity(&self) -> CallIdentity {
        let tokens = self.tokens.total();
        (self.at, self.run_id.clone(), self.model.clone(), tokens)
    }
}

/// What two records of one model call have in common.
type CallIdentity = (Timestamp, Option<String>, String, u64);

/// Returns the usage of the model calls on a tape, and how many of the first ones are copies because the session is a
/// fork of another one.
pub(crate) async fn read_calls_and_copies(
    store: &dyn TapeStore,
    tape: &TapeName,
) -> bub_tape::Result<(Vec<UsageRecord>, usize)> {
    let (mut calls, mut copied) = (Vec::new(), 0);
    let mut entries = store.read_filtered(tape, EntryRange::ALL, Arc::new(RunEventFilter));
    while let Some(entry) = entries.try_next().await? {
        let is_fork = || entry.data()?.get(FORKED_FROM_FIELD).map(drop);
        if entry.name() == Some(SESSION_INFO_EVENT) && is_fork().is_some() {
            copied = calls.len();
        }
        calls.extend(UsageRecord::from_entry(&entry));
    }
    Ok((calls, copied))
}

/// Streams the usage of the model calls on a tape.
pub(crate) fn read_model_calls<'a>(
    store: &'a dyn TapeStore,
    tape: &'a TapeName,
    span: EntryRange,
) -> impl Stream<Item = bub_tape::Result<UsageRecord>> + 'a {
    store
        .read_filtered(tape, span, Arc::new(RunEventFilter))
        .try_filter_map(|entry| std::future::ready(Ok(UsageRecord::from_entry(&entry))))
}

/// A filter for tape lines that may record a model call, or that the session is a fork.
#[derive(Debug)]
struct RunEventFilter;

impl LineFilter for RunEventFilter {
    fn filter(&self, lines: &[u8], keep: &mut Vec<Range<usize>>) {
        let contains = |line, text: &[u8]| memmem::find(line, text).is_some();
        let mut start = 0;
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            let end = start + line.len();
            let is_call = contains(line, b"\"usage\"") && contains(line, b"run\"");
            if is_call || contains(line, FORKED_FROM_FIELD.as_bytes()) {
                keep.push(start..end);
            }
            start = end;
        }
    }
}
