//! What each wire format calls the token counts and the reasons why an answer ended, from `formats.json`.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::Value;

use super::as_count;
use crate::{FinishReason, Usage};

static FORMATS: LazyLock<HashMap<String, FormatTable>> =
    LazyLock::new(|| serde_json::from_str(include_str!("formats.json")).unwrap_or_default());

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FormatTable {
    usage: UsagePointers,
    finish: FinishNames,
}

/// JSON pointers into the usage object.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct UsagePointers {
    /// Counts whose sum is the number of prompt tokens. It includes cached tokens.
    prompt: Vec<String>,
    /// Counts whose sum is the number of completion tokens.
    completion: Vec<String>,
    /// The names that servers use for the other counts. The first one that exists is used.
    total: Vec<String>,
    cached: Vec<String>,
    cache_write: Vec<String>,
    reasoning: Vec<String>,
}

/// The names of each reason. Case does not matter, because it differs between servers.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct FinishNames {
    stop: Vec<String>,
    tool_calls: Vec<String>,
    length: Vec<String>,
    content_filter: Vec<String>,
    refusal: Vec<String>,
}

/// Reads the usage object of a format.
pub(super) fn parse_usage(format: &str, raw: Value) -> Usage {
    let Some(FormatTable { usage, .. }) = FORMATS.get(format) else {
        return Usage::default();
    };
    let count = |pointer: &String| raw.pointer(pointer).and_then(as_count);
    let sum = |pointers: &[String]| pointers.iter().filter_map(count).sum::<u64>();
    let first = |pointers: &[String]| pointers.iter().find_map(count);
    let (prompt, completion) = (sum(&usage.prompt), sum(&usage.completion));
    Usage {
        prompt,
        completion,
        total: first(&usage.total).unwrap_or(prompt + completion),
        cached: first(&usage.cached),
        cache_write: first(&usage.cache_write),
        reasoning: first(&usage.reasoning),
        raw,
    }
}

/// Converts the reason that a format names.
pub(super) fn parse_finish_reason(format: &str, name: &str) -> FinishReason {
    let reasons = FORMATS.get(format).into_iter().flat_map(|table| {
        [
            (&table.finish.stop, FinishReason::Stop),
            (&table.finish.tool_calls, FinishReason::ToolCalls),
            (&table.finish.length, FinishReason::Length),
            (&table.finish.content_filter, FinishReason::ContentFilter),
            (&table.finish.refusal, FinishReason::Refusal),
        ]
    });
    let is_named = |names: &[String]| names.iter().any(|known| known.eq_ignore_ascii_case(name));
    let mut matching = reasons.filter(|(names, _)| is_named(names));
    matching.next().map_or_else(
        || FinishReason::Other(name.to_owned()),
        |(_, reason)| reason,
    )
}
