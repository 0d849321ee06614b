//! What a channel can know about a message beyond "accepted": who it is, and what became of it.

use std::sync::{
    OnceLock,
    atomic::{AtomicUsize, Ordering},
};

use tokio::sync::watch;

/// A slot that a channel may put on a message it hands in.
///
/// When the handler returns, [`Ticket::inbound_id`] names the message, and [`Ticket::settled`] tells later what became
/// of it.
#[derive(Debug)]
pub struct Ticket {
    key: Option<String>,
    accepted: OnceLock<Accepted>,
    outcome: watch::Sender<Option<Outcome>>,
    owed: AtomicUsize,
}

#[derive(Debug)]
struct Accepted {
    inbound_id: String,
    is_duplicate: bool,
}

/// What became of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its turn has ended; so many replies are in the outbox, and are sent one by one.
    Done {
        /// How many.
        replies: u32,
    },
    /// It became part of another message's turn, whose replies answer both.
    Joined {
        /// The other message.
        inbound_id: String,
    },
    /// It led to no turn.
    Dropped {
        /// Why.
        reason: String,
    },
}

impl Ticket {
    /// A ticket. Of several messages of a channel with the same key, within a day, only the first is taken.
    pub fn new(idempotency_key: Option<String>) -> Self {
        Self {
            key: idempotency_key,
            accepted: OnceLock::new(),
            outcome: watch::Sender::new(None),
            owed: AtomicUsize::new(0),
        }
    }

    /// The idempotency key.
    pub fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// The id of the message, once it is accepted. A duplicate has the id of the first.
    pub fn inbound_id(&self) -> Option<&str> {
        self.accepted
            .get()
            .map(|accepted| accepted.inbound_id.as_str())
    }

    /// Whether a message with the same key had been accepted before. Then this one leads to nothing, and its ticket
    /// is settled, with no replies, only when the first was answered and its replies delivered already.
    pub fn is_duplicate(&self) -> bool {
        self.accepted
            .get()
            .is_some_and(|accepted| accepted.is_duplicate)
    }

    /// How many replies to the first message waited to be claimed, and come now. For a duplicate.
    pub fn owed(&self) -> usize {
        self.owed.load(Ordering::Relaxed)
    }

    pub(crate) fn owe(&self, replies: usize) {
        self.owed.store(replies, Ordering::Relaxed);
    }

    /// Waits for the end. Never ends when the gateway stops before the message is settled.
    pub async fn settled(&self) -> Outcome {
        let mut outcome = self.outcome.subscribe();
        match outcome
            .wait_for(Option::is_some)
            .await
            .map(|settled| settled.clone())
        {
            Ok(Some(settled)) => settled,
            _ => std::future::pending().await,
        }
    }

    /// Names the message. For whoever runs channels.
    pub fn accept(&self, inbound_id: &str, is_duplicate: bool) {
        // The same ticket on two messages is the channel's mistake; the first counts.
        let _ = self.accepted.set(Accepted {
            inbound_id: inbound_id.to_owned(),
            is_duplicate,
        });
    }

    /// Tells what became of the message. For whoever runs channels.
    pub fn settle(&self, outcome: Outcome) {
        self.outcome.send_replace(Some(outcome));
    }
}

/// The slot on every message given to [`Channel::send`](bub_kernel::Channel::send) by the outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyTo {
    /// The message it answers; `None` when it was sent outside of a turn.
    pub inbound_id: Option<String>,
    /// Names the reply: the same for every attempt to deliver it, so that a receiver can tell a repetition.
    pub reply_id: String,
    /// Counted from 1.
    pub attempt: u32,
}
