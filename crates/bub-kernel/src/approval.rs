//! Asking a person whether a tool call may be made.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::sender::Sender;

/// A tool call that waits for somebody's word.
#[derive(Clone, Debug, PartialEq)]
pub struct ApprovalRequest {
    /// Names the request: random, and answered at most once.
    pub id: String,
    /// The tool.
    pub tool: String,
    /// The arguments the tool would get, without secrets.
    pub arguments: Map<String, Value>,
    /// Whose message led to the call.
    pub sender: Sender,
    /// The session of the turn.
    pub session_id: String,
    /// How long an answer is waited for; after that it counts as a no.
    pub expires: Duration,
    /// Why somebody is asked.
    pub reason: String,
}

/// What was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApprovalAnswer {
    /// The call may be made, once.
    Approved,
    /// It may not, perhaps for a reason.
    Denied(Option<String>),
}
