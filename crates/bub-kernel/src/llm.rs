//! What the hooks around a model call see, and the models on offer.

use std::{sync::Arc, time::Duration};

use serde_json::Value;

use crate::{error::Error, ids::TurnId};

/// A model call that is about to be made.
#[derive(Clone, Debug)]
pub struct LlmRequest {
    /// The run it belongs to.
    pub run_id: TurnId,
    /// The model, as `provider:model`.
    pub model: String,
    /// The messages in the chat-completions shape. Shared, because a history is big and seldom changed.
    pub messages: Arc<Vec<Value>>,
    /// The tools the model may ask for.
    pub tool_names: Vec<String>,
    /// The limit of the answer.
    pub max_tokens: Option<u64>,
}

/// What a model call came to.
#[derive(Clone, Debug, Default)]
pub struct LlmResult {
    /// The run it belongs to.
    pub run_id: TurnId,
    /// The answer, when there was text.
    pub text: Option<String>,
    /// The tools the model asked for.
    pub tool_calls: Vec<Value>,
    /// Tokens used, as reported.
    pub usage: Option<Value>,
    /// Why it failed.
    pub error: Option<Error>,
    /// How long it took.
    pub duration: Duration,
}

/// What `before_llm_call` decides.
#[derive(Clone, Debug)]
pub enum LlmDecision {
    /// Make this call instead.
    Proceed(LlmRequest),
    /// Make no call: this is the answer.
    Finish(String),
}

/// A model on offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelOption {
    /// The model, as `provider:model`.
    pub id: String,
    /// A name for people.
    pub label: Option<String>,
}

/// The models one plugin offers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelOptions {
    /// Which to choose from.
    pub choices: Vec<ModelOption>,
    /// Which one is in use, when the plugin knows.
    pub current: Option<String>,
}
