//! A message on its way into a turn.

use std::{fmt, sync::Arc};

use tokio_util::sync::CancellationToken;

use crate::{
    BoxFuture,
    channel_message::ChannelMessage,
    envelope::Envelope,
    error::{Error, Result},
    ids::{MessageId, SessionId},
    lifespan::Lifespan,
    outbound::Outbound,
    receipt::InboundReceipt,
    sender::{Role, Sender},
    turn::Turn,
};

/// A message that a channel received, with everything the runtime knows about it.
///
/// A plain [`Envelope`] becomes an `Inbound` from a guest:
///
/// ```
/// use bub_kernel::{Envelope, Inbound, Role};
///
/// let inbound = Inbound::from(Envelope::text("hello"));
/// assert_eq!(inbound.sender().role, Role::Guest);
/// ```
#[derive(Clone, Default)]
pub struct Inbound {
    /// The message.
    pub message: Envelope,
    /// Cancels the turn until the model stage ends. An answer that is complete by then is saved and delivered.
    pub cancel: CancellationToken,
    /// Whether channels see the output while the model produces it.
    pub stream_output: bool,
    /// The journaled message and attempt that this is; `None` if no journal holds the message.
    pub attempt: Option<InboundAttempt>,
    /// Receives the replies of the turn; without one they go to the framework's router.
    pub reply_target: Option<Arc<dyn ReplyTarget>>,
    /// A resource that is open while the message is processed.
    pub lifespan: Option<Arc<Lifespan>>,
    /// Tells the channel what happens to the message.
    pub receipt: Option<Arc<InboundReceipt>>,
    sender: Option<Arc<Sender>>,
    session_id: Option<SessionId>,
}

/// One attempt to process a journaled message.
///
/// If the process dies in a turn, the message is processed again. It is not recorded again: the turn resumes from its
/// tape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboundAttempt {
    /// The message.
    pub message_id: MessageId,
    /// Counted from 1.
    pub number: u32,
    /// Whether the message survives the death of the process. If not, the turn records it on its tape before any
    /// hook runs.
    pub is_durable: bool,
}

/// Receives the replies of one turn.
pub trait ReplyTarget: fmt::Debug + Send + Sync + 'static {
    /// Accepts a reply for delivery; `false` if no channel takes it.
    fn deliver<'a>(&'a self, turn: &'a Turn, reply: Outbound) -> BoxFuture<'a, Result<bool>>;

    /// Whether a tool sent a message to the chat of the turn in an earlier attempt.
    fn was_sent_by_tool(&self) -> bool {
        false
    }
}

impl Inbound {
    /// A message without a known sender.
    pub fn new(message: impl Into<Envelope>) -> Self {
        Self {
            message: message.into(),
            ..Self::default()
        }
    }

    /// Sets the sender. Only the code that accepts a message may vouch for its sender.
    #[must_use]
    pub fn with_sender(mut self, sender: impl Into<Arc<Sender>>) -> Self {
        self.sender = Some(sender.into());
        self
    }

    /// Sets the token that cancels the turn.
    #[must_use]
    pub fn with_cancel(mut self, cancel: CancellationToken) -> Self {
        self.cancel = cancel;
        self
    }

    /// Lets channels see the output while the model produces it.
    #[must_use]
    pub fn streaming(mut self) -> Self {
        self.stream_output = true;
        self
    }

    /// Attaches a resource that is open while the message is processed.
    #[must_use]
    pub fn with_lifespan(mut self, lifespan: Lifespan) -> Self {
        self.lifespan = Some(Arc::new(lifespan));
        self
    }

    /// Attaches a receipt.
    #[must_use]
    pub fn with_receipt(mut self, receipt: Arc<InboundReceipt>) -> Self {
        self.receipt = Some(receipt);
        self
    }

    /// The sender; a guest if nobody vouched for one.
    pub fn sender(&self) -> Arc<Sender> {
        self.sender
            .clone()
            .unwrap_or_else(|| Arc::new(Sender::guest(&self.message)))
    }

    /// The sender that the accepting channel vouched for.
    pub fn known_sender(&self) -> Option<&Arc<Sender>> {
        self.sender.as_ref()
    }

    /// The session, once it is resolved.
    pub fn session_id(&self) -> Option<&SessionId> {
        self.session_id.as_ref()
    }

    /// The journaled message that this is.
    pub fn message_id(&self) -> Option<&MessageId> {
        self.attempt.as_ref().map(|attempt| &attempt.message_id)
    }

    /// Fixes the session and writes it to the envelope. The hook `resolve_session` is not asked again.
    pub fn set_session_id(&mut self, session_id: SessionId) {
        self.message.set("session_id", session_id.as_str());
        self.session_id = Some(session_id);
    }

    /// Whether the sender asks to stop everything in the session.
    pub fn is_quit(&self) -> bool {
        self.message.content().trim() == ",quit" && self.sender().role > Role::Guest
    }

    /// Merges messages that arrived together. The last one is the template; content is joined by newlines and media
    /// are collected from all. The result has the least privileged sender.
    pub fn merge(batch: Vec<Self>) -> Result<Self> {
        let least = batch
            .iter()
            .rev()
            .map(Self::sender)
            .min_by_key(|sender| sender.role);
        let envelopes = batch
            .iter()
            .map(|inbound| inbound.message.clone())
            .collect();
        let mut merged = batch
            .into_iter()
            .next_back()
            .ok_or_else(|| Error::invalid_input("cannot merge an empty batch"))?;
        merged.message = Envelope::merge_batch(envelopes)?;
        if let Some(least) = least.filter(|least| least.role < merged.sender().role) {
            merged.sender = Some(least);
        }
        Ok(merged)
    }
}

impl From<Envelope> for Inbound {
    fn from(message: Envelope) -> Self {
        Self::new(message)
    }
}

impl From<ChannelMessage> for Inbound {
    fn from(message: ChannelMessage) -> Self {
        Self::new(message)
    }
}

impl fmt::Debug for Inbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbound")
            .field("message", &self.message)
            .field("attempt", &self.attempt)
            .field("session_id", &self.session_id)
            .finish_non_exhaustive()
    }
}
