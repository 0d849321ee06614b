//! What happens to a message that arrives: the contract of `admit_message`.

use crate::ids::SessionId;

/// What a plugin decides about an arriving message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// What to do with it.
    pub decision: AdmissionDecision,
    /// Why, for the record.
    pub reason: Option<String>,
}

impl Admission {
    /// A decision without a reason.
    pub fn new(decision: AdmissionDecision) -> Self {
        Self {
            decision,
            reason: None,
        }
    }

    /// The same with a reason.
    #[must_use]
    pub fn with_reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }
}

/// What to do with an arriving message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AdmissionDecision {
    /// A turn of its own, now.
    Process,
    /// No turn; the reason is recorded.
    Drop,
    /// A turn of its own, after the running one.
    FollowUp,
    /// Into the running turn.
    Steer,
}

impl AdmissionDecision {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Drop => "drop",
            Self::FollowUp => "follow_up",
            Self::Steer => "steer",
        }
    }

    /// The decision of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "process" => Some(Self::Process),
            "drop" => Some(Self::Drop),
            "follow_up" => Some(Self::FollowUp),
            "steer" => Some(Self::Steer),
            _ => None,
        }
    }
}

/// How busy a session is when a message for it arrives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TurnSnapshot {
    /// The session.
    pub session_id: SessionId,
    /// Whether a turn runs.
    pub is_running: bool,
    /// How many turns run.
    pub running_count: usize,
    /// How many messages wait for a turn of their own.
    pub pending_count: usize,
    /// How many messages wait to steer the running turn.
    pub steering_count: usize,
}
