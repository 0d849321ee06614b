//! Token counts of the Messages format.

use serde_json::{Map, Value};

use crate::Usage;
use crate::wire::raw::as_count;

/// Counts come at the start and again, corrected and not always complete, at the end.
pub(super) fn merge(into: &mut Map<String, Value>, newer: Value) {
    if let Value::Object(newer) = newer {
        into.extend(newer.into_iter().filter(|(_, value)| !value.is_null()));
    }
}

/// The counts in the common meaning: the input counts here leave out what the cache served.
pub(super) fn read(raw: Map<String, Value>) -> Option<Usage> {
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
