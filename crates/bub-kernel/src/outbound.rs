//! Replies on their way to a channel.

use std::ops::Deref;

use crate::{
    envelope::Envelope,
    ids::{MessageId, ReplyId},
};

/// A rendered message, with what its channel needs to know about the delivery.
#[derive(Clone, Debug, Default)]
pub struct Outbound {
    /// The message.
    pub message: Envelope,
    /// What sent it.
    pub origin: ReplyOrigin,
    /// The delivery attempt. The gateway sets it; `None` if the reply is not journaled.
    pub attempt: Option<DeliveryAttempt>,
}

/// What sent a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplyOrigin {
    /// The stages of a turn, or the runtime.
    #[default]
    Turn,
    /// The runtime, about a failure that whoever started the turn also gets as its result.
    Notice,
    /// A tool call. After one of these, the plain reply of the turn is not sent to the same chat.
    Tool,
}

/// One attempt to deliver a journaled reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryAttempt {
    /// The reply. A receiver can use it to detect repeated deliveries.
    pub reply_id: ReplyId,
    /// The message it answers; `None` if it was sent outside of a turn.
    pub message_id: Option<MessageId>,
    /// Counted from 1.
    pub number: u32,
}

impl Outbound {
    /// A reply that the stages of a turn sent.
    pub fn new(message: impl Into<Envelope>) -> Self {
        Self {
            message: message.into(),
            ..Self::default()
        }
    }

    /// A reply that a tool sent.
    pub fn from_tool(message: impl Into<Envelope>) -> Self {
        Self {
            message: message.into(),
            origin: ReplyOrigin::Tool,
            attempt: None,
        }
    }

    /// The message it answers, if the gateway journaled it in a turn.
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
