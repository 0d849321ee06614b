//! Types of the hook `admit_message`, which decides how an inbound message is handled.

use strum::{EnumString, IntoStaticStr};

use crate::ids::SessionId;

/// A plugin's decision about an inbound message.
///
/// ```
/// use bub_kernel::{Admission, AdmissionDecision};
///
/// let admission = Admission::new(AdmissionDecision::Drop).with_reason("the chat is muted");
/// assert_eq!(admission.decision.name(), "drop");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// How the message is handled.
    pub decision: AdmissionDecision,
    /// The reason, for logs and receipts.
    pub reason: Option<String>,
}

impl Admission {
    /// Creates a decision without a reason.
    pub fn new(decision: AdmissionDecision) -> Self {
        Self {
            decision,
            reason: None,
        }
    }

    /// Sets the reason.
    #[must_use]
    pub fn with_reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }
}

/// How an inbound message is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumString, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum AdmissionDecision {
    /// Start a turn for the message now.
    Process,
    /// Drop the message without a turn and record the reason.
    Drop,
    /// Start a turn for the message after the running turn ends.
    FollowUp,
    /// Add the message to the running turn.
    Steer,
}

impl AdmissionDecision {
    /// Returns the name of the decision, such as `follow_up`.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Returns the decision with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        name.parse().ok()
    }
}

/// The running turns and queued messages of a session when a message for it arrives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TurnSnapshot {
    /// The session.
    pub session_id: SessionId,
    /// Whether a turn is running.
    pub is_running: bool,
    /// Number of running turns.
    pub running_count: usize,
    /// Number of messages that are queued for their own turn.
    pub pending_count: usize,
    /// Number of messages that are queued to steer the running turn.
    pub steering_count: usize,
}
