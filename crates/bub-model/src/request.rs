//! What a step asks of a model, in the one shape that tape, hooks and wire formats share.

use std::sync::Arc;

use serde_json::{Map, Value};

/// One call of one model.
///
/// Messages and tools are chat-completions JSON and shared, because several candidates may be tried
/// with the same ones. A message may carry `provider_state` (see [`Completion`](crate::Completion)):
/// the wire format it came from replays it, every other one drops it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChatRequest {
    /// The model's identifier without the provider's name.
    pub model: String,
    /// The conversation so far, system messages included.
    pub messages: Arc<Vec<Value>>,
    /// Function tools; none at all when empty.
    pub tools: Arc<Vec<Value>>,
    /// Upper bound of the answer in tokens.
    pub max_tokens: Option<u64>,
    /// `none`, `minimal`, `low`, `medium`, `high`, `xhigh`, `max` or `auto`; unset sends nothing.
    pub reasoning_effort: Option<String>,
    /// Whether the answer is to arrive in pieces.
    pub stream: bool,
    /// `completion_args` of the settings: added to the body, beaten by everything else.
    pub extra: Map<String, Value>,
}
