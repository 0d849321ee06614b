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
    /// Sum of input and output as the provider reports it.
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
        let mut usage = json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.total,
        });
        if self.cached.is_some() || self.cache_write.is_some() {
            let mut details = json!({"cached_tokens": self.cached.unwrap_or(0)});
            if let (Some(written), Some(details)) = (self.cache_write, details.as_object_mut()) {
                details.insert("cache_write_tokens".into(), written.into());
            }
            insert_field(&mut usage, "prompt_tokens_details", details);
        }
        if let Some(reasoning) = self.reasoning {
            insert_field(
                &mut usage,
                "completion_tokens_details",
                json!({"reasoning_tokens": reasoning}),
            );
        }
        usage
    }
}

/// Inserts a field into a JSON object.
fn insert_field(object: &mut Value, key: &str, value: Value) {
    if let Some(object) = object.as_object_mut() {
        object.insert(key.to_owned(), value);
    }
}
