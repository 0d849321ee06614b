//! Outbound messages.

use std::ops::Deref;

use crate::{
    envelope::Envelope,
    ids::{MessageId, ReplyId},
};

/// A rendered message, with data about its delivery.
#[derive(Clone, Debug, Default)]
pub struct Outbound {
    /// The message.
    pub message: Envelope,
    /// The origin of the reply.
    pub origin: ReplyOrigin,
    /// The delivery attempt. The gateway sets it. `None` if the reply is not in the journal.
    pub attempt: Option<DeliveryAttempt>,
}

/// The origin of a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplyOrigin {
    /// The stages of a turn, or the runtime.
    #[default]
    Turn,
    /// The runtime, about a failure that is also returned as the result of the turn.
    Notice,
    /// A tool call. The plain reply of the turn is then not sent to the same chat.
    Tool,
}

/// One attempt to deliver a journaled reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryAttempt {
    /// The id of the reply. Receivers can use it to detect repeated deliveries.
    pub reply_id: ReplyId,
    /// The message that the reply answers. `None` if it was sent outside of a turn.
    pub message_id: Option<MessageId>,
    /// The attempt number, starting at 1.
    pub number: u32,
}

impl Outbound {
    /// Creates a reply from the stages of a turn.
    pub fn new(message: impl Into<Envelope>) -> Self {
        Self {
            message: message.into(),
            ..Self::default()
        }
    }

    /// Creates a reply that a tool call sends.
    pub fn from_tool(message: impl Into<Envelope>) -> Self {
        Self {
            message: message.into(),
            origin: ReplyOrigin::Tool,
            attempt: None,
        }
    }

    /// Returns the message that the reply answers, if the reply is in the journal and belongs to a turn.
    pub fn message_id(&self) -> Option<&MessageId> {
        self.attempt.as_ref()?.message_id.as_ref()
    }
}

impl From<Envelope> for Outbound {
    fn from(message: Envelope) -> Self {
        Self::new(message)
    }
}

impl Deref for Outbound {
    type Target = Envelope;

    fn deref(&self) -> &Envelope {
        &self.message
    }
}
