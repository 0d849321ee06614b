//! The types of the hooks around a model call, and the models that users can choose from.

use std::{sync::Arc, time::Duration};

use serde_json::Value;

use crate::{error::Error, ids::TurnId, stream::ModelStream};

/// A model call that is about to be made.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct LlmRequest {
    /// The run that the call belongs to.
    pub run_id: TurnId,
    /// The model, as `provider:model`.
    pub model: String,
    /// The messages in the chat-completions format. Shared, because they are large and hooks rarely change them.
    pub messages: Arc<Vec<Value>>,
    /// The tools that the model can call.
    pub tool_names: Vec<String>,
    /// Maximum number of tokens in the answer.
    pub max_tokens: Option<u64>,
}

impl LlmRequest {
    /// Creates a request without tools and without a maximum number of tokens.
    pub fn new(run_id: TurnId, model: impl Into<String>, messages: Vec<Value>) -> Self {
        Self {
            run_id,
            model: model.into(),
            messages: Arc::new(messages),
            tool_names: Vec::new(),
            max_tokens: None,
        }
    }
}

/// The result of a model call.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct LlmResult {
    /// The run that the call belongs to.
    pub run_id: TurnId,
    /// The text of the answer, if any.
    pub text: Option<String>,
    /// The tool calls that the model requested, in the chat-completions format.
    pub tool_calls: Vec<Value>,
    /// The token usage, as the provider reported it.
    pub usage: Option<Value>,
    /// The error, if the call failed.
    pub error: Option<Error>,
    /// The duration of the call.
    pub duration: Duration,
}

/// The decision of `before_llm_call`.
#[derive(Debug)]
#[non_exhaustive]
pub enum LlmDecision {
    /// Make the call with this request.
    Proceed(LlmRequest),
    /// Skip the call and use this text as the answer. The turn ends with it.
    Finish(String),
    /// Skip the call and use this stream as the answer of the model: text, reasoning, tool calls and usage. The agent
    /// runs the tool calls. An `Err` item fails the call. An event of the kind `provider_state` has the data that the
    /// provider expects back. Only linked-in plugins can return a stream.
    Answer(ModelStream),
}

/// A model that users can choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelOption {
    /// The model, as `provider:model`.
    pub id: String,
    /// A display name.
    pub label: Option<String>,
}

/// The models that a plugin provides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelOptions {
    /// The available models.
    pub choices: Vec<ModelOption>,
    /// The current model, if the plugin knows it.
    pub current: Option<String>,
}
