//! Token counts of the Messages format.

use serde_json::{Map, Value};

use crate::Usage;
use crate::wire::raw::as_count;

/// Merges newer counts into earlier ones. The server sends counts at the start, and corrected, possibly incomplete counts
/// at the end.
pub(super) fn merge_usage(into: &mut Map<String, Value>, newer: Value) {
    if let Value::Object(newer) = newer {
        into.extend(newer.into_iter().filter(|(_, value)| !value.is_null()));
    }
}

/// Converts the counts of the Messages format, in which the input count excludes cached tokens.
pub(super) fn parse_usage(raw: Map<String, Value>) -> Option<Usage> {
    if raw.is_empty() {
        return None;
    }
    let count = |key: &str| raw.get(key).and_then(as_count);
    let (cached, cache_write) = (
        count("cache_read_input_tokens"),
        count("cache_creation_input_tokens"),
    );
    let prompt =
        count("input_tokens").unwrap_or(0) + cached.unwrap_or(0) + cache_write.unwrap_or(0);
    let completion = count("output_tokens").unwrap_or(0);
    let reasoning = raw
        .get("output_tokens_details")
        .and_then(|details| as_count(details.get("thinking_tokens")?));
    Some(Usage {
        prompt,
        completion,
        total: prompt + completion,
        cached,
        cache_write,
        reasoning,
        raw: Value::Object(raw),
    })
}
