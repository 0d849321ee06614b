//! Token counts of a model call.

use serde_json::{Value, json};

use crate::wire::as_count;

/// Token counts of a model call. The fields have the same meaning for every provider.
///
/// `prompt` counts all input, cached or not. `completion` counts all output, reasoning included.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Usage {
    /// All input tokens.
    pub prompt: u64,
    /// All output tokens.
    pub completion: u64,
    /// Sum of input and output tokens, as reported by the provider; computed if it reports none.
    pub total: u64,
    /// Input tokens read from the provider's cache.
    pub cached: Option<u64>,
    /// Input tokens written to the provider's cache.
    pub cache_write: Option<u64>,
    /// Output tokens spent on reasoning.
    pub reasoning: Option<u64>,
    /// The provider's usage object, unchanged.
    pub raw: Value,
}

impl Usage {
    /// Returns the counts in the chat-completions format, as the tape's `run` event stores them.
    pub fn to_json(&self) -> Value {
        let has_cache = self.cached.is_some() || self.cache_write.is_some();
        let prompt_details = has_cache.then(|| {
            object([
                ("cached_tokens", Some(self.cached.unwrap_or(0).into())),
                ("cache_write_tokens", self.cache_write.map(Value::from)),
            ])
        });
        let reasoning = self.reasoning;
        let completion_details = reasoning.map(|tokens| json!({"reasoning_tokens": tokens}));
        object([
            ("prompt_tokens", Some(self.prompt.into())),
            ("completion_tokens", Some(self.completion.into())),
            ("total_tokens", Some(self.total.into())),
            ("prompt_tokens_details", prompt_details),
            ("completion_tokens_details", completion_details),
        ])
    }
}

/// Creates a JSON object from the fields that have a value.
pub(crate) fn object<const N: usize>(fields: [(&str, Option<Value>); N]) -> Value {
    let present = fields
        .into_iter()
        .filter_map(|(key, value)| Some((key.to_owned(), value?)));
    present.collect()
}

/// Where a wire format has the token counts: JSON pointers into its usage object.
pub(crate) struct UsagePointers {
    /// Counts whose sum is the number of prompt tokens.
    pub(crate) prompt: &'static [&'static str],
    /// Counts whose sum is the number of completion tokens.
    pub(crate) completion: &'static [&'static str],
    /// The names that servers use for the other counts. The first one that exists is used.
    pub(crate) total: &'static [&'static str],
    pub(crate) cached: &'static [&'static str],
    pub(crate) cache_write: &'static [&'static str],
    pub(crate) reasoning: &'static [&'static str],
}

impl UsagePointers {
    pub(crate) fn parse(&self, raw: Value) -> Usage {
        let count = |pointer: &&str| raw.pointer(pointer).and_then(as_count);
        let sum = |pointers: &[&str]| pointers.iter().filter_map(count).sum::<u64>();
        let first = |pointers: &[&str]| pointers.iter().find_map(count);
        let (prompt, completion) = (sum(self.prompt), sum(self.completion));
        Usage {
            prompt,
            completion,
            total: first(self.total).unwrap_or(prompt + completion),
            cached: first(self.cached),
            cache_write: first(self.cache_write),
            reasoning: first(self.reasoning),
            raw,
        }
    }
}
