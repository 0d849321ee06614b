//! Outbound messages.

use std::ops::Deref;

use crate::{
    envelope::Envelope,
    ids::{MessageId, ReplyId},
};

/// An outbound message, with data about its delivery.
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
#[non_exhaustive]
pub enum ReplyOrigin {
    /// A stage of a turn. Also bub itself, unless the reply is a [`Self::Notice`].
    #[default]
    Turn,
    /// bub itself: a failure that the turn also returns as its error, or a note that is no part of the answer.
    Notice,
    /// A tool call. The answer of the turn is then not sent to the same chat.
    Tool,
}

/// One attempt to deliver a journaled reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryAttempt {
    /// The id of the reply. Receivers can use it to detect repeated deliveries.
    pub reply_id: ReplyId,
    /// The id of the message that the reply answers. `None` if the reply was sent outside of a turn.
    pub message_id: Option<MessageId>,
    /// The attempt number, starting at 1.
    pub number: u32,
}

impl Outbound {
    /// Creates a reply with the origin [`ReplyOrigin::Turn`].
    pub fn new(message: impl Into<Envelope>) -> Self {
        Self {
            message: message.into(),
            ..Self::default()
        }
    }

    /// Creates a reply that a tool call sends.
    pub fn from_tool(message: impl Into<Envelope>) -> Self {
        Self {
            origin: ReplyOrigin::Tool,
            ..Self::new(message)
        }
    }

    /// Returns the id of the message that the reply answers, if the reply is in the journal and belongs to a turn.
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
