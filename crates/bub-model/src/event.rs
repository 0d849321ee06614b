//! What comes out of a running model call.

use serde_json::Value;

use crate::{FinishReason, Usage};

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
    /// Token counts. When it comes more than once, the last one counts.
    Usage(Usage),
    /// What the provider wants back with this answer on the next call.
    ProviderState(Value),
    /// The end. Nothing follows.
    Finish(FinishReason),
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
