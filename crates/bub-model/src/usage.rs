//! Token counts of a model call.

use serde_json::{Value, json};

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
    /// Reads the counts of a `run` event. Missing counts are 0.
    pub fn from_json(usage: Value) -> Self {
        let count = |path: &str| usage.pointer(path).and_then(Value::as_u64);
        let (prompt, completion) = (count("/prompt_tokens"), count("/completion_tokens"));
        let (prompt, completion) = (prompt.unwrap_or(0), completion.unwrap_or(0));
        Self {
            prompt,
            completion,
            total: count("/total_tokens").unwrap_or(prompt + completion),
            cached: count("/prompt_tokens_details/cached_tokens"),
            cache_write: count("/prompt_tokens_details/cache_write_tokens"),
            reasoning: count("/completion_tokens_details/reasoning_tokens"),
            raw: usage,
        }
    }

    /// Returns the counts in the chat-completions format, as the tape's `run` event stores them.
    pub fn to_json(&self) -> Value {
        let has_cache = self.cached.is_some() || self.cache_write.is_some();
        let prompt_details = has_cache.then(|| {
            object([
                ("cached_tokens", Some(self.cached.unwrap_or(0).into())),
                ("cache_write_tokens", self.cache_write.map(Value::from)),
            ])
        });
        // No reasoning is the same as no details. Many servers report 0 with each answer.
        let reasoning = self.reasoning.filter(|tokens| *tokens > 0);
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
