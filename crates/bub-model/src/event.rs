//! What comes out of a running model call.

use std::time::Duration;

use serde_json::Value;

use crate::{FinishReason, ModelError, Usage};

/// One thing a model did. A stream is any number of these, ended by [`ModelEvent::Finish`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ModelEvent {
    /// More text of the answer; never empty.
    Text(String),
    /// More of what the model thinks aloud; never empty.
    Reasoning(String),
    /// A piece of a tool call.
    ToolCall(ToolCallDelta),
    /// The server began its answer anew: whatever came before is void.
    Restart,
    /// The call failed and is made again, after a wait or with another model. Not part of the answer: it is for
    /// whoever watches.
    Retry(Retry),
    /// Token counts. When it comes more than once, the last one counts.
    Usage(Usage),
    /// What the provider wants back with this answer on the next call.
    ProviderState(Value),
    /// The end. Nothing follows.
    Finish(FinishReason),
}

/// A call that is made again.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Retry {
    /// The number of the try that follows; 1 when it is the first of another model.
    pub attempt: u32,
    /// How long it is waited for.
    pub wait: Duration,
    /// What the call before it failed with, and which model that was.
    pub error: Box<ModelError>,
}

/// A piece of a tool call. Pieces with the same index belong together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolCallDelta {
    /// Position of the call in the answer, counted from 0 without gaps.
    pub index: usize,
    /// The call's id, when this piece has it.
    pub id: Option<String>,
    /// The tool's name or more of it, when this piece has it.
    pub name: Option<String>,
    /// More of the JSON text of the arguments.
    pub arguments: String,
}
