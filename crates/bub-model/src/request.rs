//! The request of a model call, in the form that tapes, hooks and wire formats share.

use std::sync::Arc;

use serde_json::{Map, Value};

/// The request of a model call.
///
/// Messages and tools are chat-completions JSON. They are shared because several models may be tried with them. A
/// message may carry `provider_state` (see [`Completion`](crate::Completion)). The wire format that produced it sends
/// it back; other wire formats drop it.
///
/// ```
/// use std::sync::Arc;
///
/// use bub_model::ChatRequest;
/// use serde_json::json;
///
/// let request = ChatRequest {
///     messages: Arc::new(vec![json!({"role": "user", "content": "hello"})]),
///     max_tokens: Some(1024),
///     stream: true,
///     ..ChatRequest::default()
/// };
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChatRequest {
    /// The model's identifier without the provider's name.
    pub model: String,
    /// The conversation, system messages included.
    pub messages: Arc<Vec<Value>>,
    /// Tools that the model can call. If empty, no tools are sent.
    pub tools: Arc<Vec<Value>>,
    /// Maximum length of the answer in tokens.
    pub max_tokens: Option<u64>,
    /// Reasoning effort: `none`, `minimal`, `low`, `medium`, `high`, `xhigh`, `max` or `auto`. If unset, nothing is
    /// sent.
    pub reasoning_effort: Option<String>,
    /// Whether to stream the answer.
    pub stream: bool,
    /// Fields added to the request body, from the setting `completion_args`. All other fields of this struct override
    /// them.
    pub extra: Map<String, Value>,
}
