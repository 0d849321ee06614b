//! Events of a running model call.

use std::time::Duration;

use serde_json::Value;

use crate::{FinishReason, ModelError, Usage};

/// An event of a model call. A stream has any number of events and ends with [`ModelEvent::Finish`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ModelEvent {
    /// A piece of the answer's text; never empty.
    Text(String),
    /// A piece of the model's reasoning; never empty.
    Reasoning(String),
    /// A piece of a tool call.
    ToolCall(ToolCallDelta),
    /// The server restarted its answer. Discard everything received before.
    Restart,
    /// The call failed and is retried, after a delay or with another model. This event is not part of the answer and only
    /// informs observers.
    Retry(Retry),
    /// Token counts. If the event occurs more than once, the last one counts.
    Usage(Usage),
    /// State that the provider expects back with the answer on the next call.
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
    /// The error of the previous attempt, with its model.
    pub error: Box<ModelError>,
}

/// A piece of a tool call. Pieces with equal index belong to one call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolCallDelta {
    /// Position of the call in the answer, from 0 without gaps.
    pub index: usize,
    /// The id of the call, if this piece contains it.
    pub id: Option<String>,
    /// The tool's name, or the next piece of it, if this piece contains it.
    pub name: Option<String>,
    /// The next piece of the arguments' JSON text.
    pub arguments: String,
}
