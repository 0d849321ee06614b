//! Why a model stopped.

use std::fmt;

/// The reason a completion ended. Only `Stop` and `ToolCalls` mean that it is whole.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FinishReason {
    /// The model had said everything.
    Stop,
    /// The model wants tools to be run.
    ToolCalls,
    /// The token limit cut the answer off.
    Length,
    /// A filter of the provider removed or stopped the answer.
    ContentFilter,
    /// The model declined.
    Refusal,
    /// Anything else, in the provider's own word.
    Other(String),
}

impl FinishReason {
    /// Whether the answer may be taken as complete.
    pub fn is_complete(&self) -> bool {
        matches!(self, Self::Stop | Self::ToolCalls)
    }

    /// Whether the provider or the model broke the answer off for what it says: nothing in it may be acted on.
    pub fn is_stopped(&self) -> bool {
        !self.is_complete() && *self != Self::Length
    }

    /// The stable name used on the tape and in logs.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Stop => "stop",
            Self::ToolCalls => "tool_calls",
            Self::Length => "length",
            Self::ContentFilter => "content_filter",
            Self::Refusal => "refusal",
            Self::Other(word) => word,
        }
    }
}

impl fmt::Display for FinishReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
