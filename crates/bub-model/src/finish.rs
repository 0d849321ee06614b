//! The reason why a model stopped.

use std::fmt;

/// The reason why an answer ended. Only `Stop` and `ToolCalls` mean that it is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FinishReason {
    /// The model completed its answer.
    Stop,
    /// The model requests tool calls.
    ToolCalls,
    /// The answer was truncated at the token limit.
    Length,
    /// A filter of the provider removed or stopped the answer.
    ContentFilter,
    /// The model declined to answer.
    Refusal,
    /// Any other reason, as the provider names it.
    Other(String),
}

impl FinishReason {
    /// Returns whether the answer is complete.
    pub fn is_complete(&self) -> bool {
        matches!(self, Self::Stop | Self::ToolCalls)
    }

    /// Returns whether the provider or the model stopped the answer because of its content or for an unknown reason. Do
    /// not act on such an answer.
    pub fn is_stopped(&self) -> bool {
        !self.is_complete() && *self != Self::Length
    }

    /// Returns the stable name used on tapes and in logs.
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
