//! Events of a running model call.

use std::time::Duration;

use serde_json::Value;

use crate::{FinishReason, ModelError, Usage};

/// An event of a model call. The stream of a successful call ends with [`ModelEvent::Finish`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ModelEvent {
    /// A piece of the answer's text; never empty.
    Text(String),
    /// A piece of the model's reasoning; never empty.
    Reasoning(String),
    /// A part of a tool call.
    ToolCall(ToolCallDelta),
    /// The answer starts again, because the server repeated it or the call is retried. Discard all events received
    /// before.
    Restart,
    /// The call failed and is retried, after a delay or with another model. This event is not part of the answer and
    /// only informs observers.
    Retry(Retry),
    /// Token counts. If the event occurs more than once, the last one counts.
    Usage(Usage),
    /// Data that the provider expects back in the next call, such as encrypted reasoning.
    ProviderState(Value),
    /// The end of the answer; always the last event.
    Finish(FinishReason),
}

/// A retry of a failed call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Retry {
    /// Number of the next attempt; 1 for the first attempt with another model.
    pub attempt: u32,
    /// Delay before the next attempt.
    pub delay: Duration,
    /// The error of the previous attempt, with the name of its model.
    pub error: Box<ModelError>,
}

/// The part of a tool call that arrived in one event. Deltas with equal `index` belong to one call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolCallDelta {
    /// Position of the call in the answer, from 0 without gaps.
    pub index: usize,
    /// The id of the call, if this delta contains it.
    pub id: Option<String>,
    /// The tool's name or the next part of the name, if this delta contains any.
    pub name: Option<String>,
    /// The next part of the JSON text of the arguments; may be empty.
    pub arguments: String,
}
