//! Receipts for accepted messages: the message id and, later, the outcome.

use std::{
    fmt,
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::sync::watch;

use crate::{error::Error, ids::MessageId, turn::TurnReport};

/// A receipt that a channel attaches to an [`Inbound`](crate::Inbound) to learn the outcome of the message.
///
/// When the message handler returns, [`InboundReceipt::message_id`] is set. [`InboundReceipt::outcome`] waits for the
/// end of the turn.
#[derive(Debug)]
pub struct InboundReceipt {
    key: Option<String>,
    /// The id of the message, and whether the message is a duplicate.
    accepted: OnceLock<(MessageId, bool)>,
    outcome: watch::Sender<Option<MessageOutcome>>,
    unclaimed_replies: AtomicUsize,
}

/// The outcome of an accepted message.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum MessageOutcome {
    /// The message was processed.
    Done {
        /// The number of replies to this message in the message's output channel. Replies that an earlier attempt sent
        /// are not counted.
        replies: u32,
        /// The result of the turn. `None` if the message started no turn in this process, such as a duplicate, or if
        /// the turn panicked.
        report: Option<TurnReport>,
    },
    /// The message became part of another message's turn, whose replies answer both.
    Joined {
        /// The id of the other message.
        message_id: MessageId,
    },
    /// The message was dropped without a reply.
    Dropped {
        /// The reason.
        reason: DropReason,
    },
    /// The turn failed, and no notice of the failure could be sent. The message stays in the journal.
    Unfinished {
        /// The failure.
        error: Error,
    },
}

/// Why a message was dropped without a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DropReason {
    /// The sender withdrew the message while it was queued.
    Withdrawn,
    /// The turn of the message was cancelled before it sent a reply.
    Cancelled,
    /// The session was stopped with `,quit`.
    SessionQuit,
    /// The message was sent to a group and does not address bub.
    NotAddressed,
    /// The hook `admit_message` dropped the message, with an optional reason.
    NotAdmitted(Option<String>),
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Withdrawn => "withdrawn",
            Self::Cancelled => "cancelled",
            Self::SessionQuit => "the session was quit",
            Self::NotAddressed => "the message does not address bub",
            Self::NotAdmitted(reason) => reason.as_deref().unwrap_or("not admitted"),
        })
    }
}

impl InboundReceipt {
    /// Creates a receipt. If a channel submits several messages with the same idempotency key within a day, only the
    /// first one is accepted.
    pub fn new(idempotency_key: Option<String>) -> Self {
        Self {
            key: idempotency_key,
            accepted: OnceLock::new(),
            outcome: watch::Sender::new(None),
            unclaimed_replies: AtomicUsize::new(0),
        }
    }

    /// Returns the idempotency key.
    pub fn idempotency_key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// Returns the id of the message, once it is accepted. A duplicate has the id of the first message with the same
    /// idempotency key.
    pub fn message_id(&self) -> Option<&MessageId> {
        self.accepted.get().map(|(message_id, _)| message_id)
    }

    /// Returns whether an earlier message with the same idempotency key was accepted. A duplicate starts no turn. Its
    /// outcome is set only if the earlier message was answered and all replies were delivered.
    pub fn is_duplicate(&self) -> bool {
        self.accepted
            .get()
            .is_some_and(|(_, is_duplicate)| *is_duplicate)
    }

    /// Returns the number of unclaimed replies: replies that no client has fetched yet. They answer the earlier message
    /// with the same idempotency key, and the gateway sends them again. 0 if this message is not a duplicate.
    pub fn unclaimed_replies(&self) -> usize {
        self.unclaimed_replies.load(Ordering::Relaxed)
    }

    /// Sets the number of [unclaimed replies](Self::unclaimed_replies). Called by code that accepts messages.
    pub fn set_unclaimed_replies(&self, replies: usize) {
        self.unclaimed_replies.store(replies, Ordering::Relaxed);
    }

    /// Waits for the outcome. Waits forever if the gateway stops before it sets the outcome.
    pub async fn outcome(&self) -> MessageOutcome {
        let mut outcome = self.outcome.subscribe();
        let settled = outcome.wait_for(Option::is_some).await;
        match settled.ok().and_then(|settled| settled.clone()) {
            Some(settled) => settled,
            None => std::future::pending().await,
        }
    }

    /// Sets the id of the message. Called by code that accepts messages; only the first call has an effect.
    pub fn accept(&self, message_id: &MessageId, is_duplicate: bool) {
        let _ = self.accepted.set((message_id.clone(), is_duplicate));
    }

    /// Sets the outcome. Called by code that accepts messages.
    pub fn settle(&self, outcome: MessageOutcome) {
        self.outcome.send_replace(Some(outcome));
    }
}
