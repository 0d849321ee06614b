//! Inbound messages.

use std::{borrow::Cow, collections::BTreeSet, fmt, sync::Arc};

use tokio_util::sync::CancellationToken;

use crate::{
    BoxFuture,
    channel_message::ChannelMessage,
    envelope::Envelope,
    error::Result,
    ids::{MessageId, SessionId},
    lifespan::Lifespan,
    outbound::Outbound,
    preview::RequestPreview,
    prompt::command_line,
    provenance::{Provenance, UntrustedSource},
    receipt::InboundReceipt,
    sender::{Role, Sender},
    turn::Turn,
};

/// A message that a channel received, with the data that the runtime attaches to it.
///
/// A plain [`Envelope`] becomes an `Inbound` from a guest:
///
/// ```
/// use bub_kernel::{Envelope, Inbound, Role};
///
/// let inbound = Inbound::from(Envelope::from_text("hello"));
/// assert_eq!(inbound.sender().role, Role::Guest);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Inbound {
    /// The message.
    pub message: Envelope,
    /// Cancels the turn in any stage. A `save_state` hook or a delivery then has one second to end.
    pub cancel: CancellationToken,
    /// Whether channels see the output while the model produces it.
    pub stream_output: bool,
    /// The journal id and attempt number of the message. `None` if the message is not in a journal.
    pub attempt: Option<InboundAttempt>,
    /// Receives the replies of the turn. Without it, replies go to the framework's router.
    pub reply_target: Option<Arc<dyn ReplyTarget>>,
    /// A resource that is open while the message is processed.
    pub lifespan: Option<Arc<Lifespan>>,
    /// Reports the message id and the outcome to the channel.
    pub receipt: Option<Arc<InboundReceipt>>,
    /// The sources of text in the message that the sender does not control.
    pub untrusted: BTreeSet<UntrustedSource>,
    /// The answer that the channel already has, such as a greeting. The gateway delivers it without a turn.
    pub answer: Option<String>,
    /// Receives the request to the model, which is then not sent; see
    /// [`Framework::preview_request`](crate::Framework::preview_request).
    pub preview: Option<RequestPreview>,
    sender: Option<Arc<Sender>>,
    session_id: Option<SessionId>,
}

/// One attempt to process a journaled message.
///
/// If the process dies during a turn, the message is processed again. The message is not recorded twice: the turn
/// resumes from its tape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboundAttempt {
    /// The id of the message.
    pub message_id: MessageId,
    /// The attempt number, starting at 1.
    pub number: u32,
    /// Whether the message survives the death of the process. If not, the turn records it on its tape after
    /// `resolve_session`, before any other hook runs.
    pub is_durable: bool,
}

/// The receiver of a turn's replies.
pub trait ReplyTarget: fmt::Debug + Send + Sync + 'static {
    /// Accepts a reply for delivery. Returns `false` if no channel accepts it.
    fn deliver<'a>(&'a self, turn: &'a Turn, reply: Outbound) -> BoxFuture<'a, Result<bool>>;

    /// Returns whether a tool sent a message to the chat of the turn in an earlier attempt. The default is `false`.
    fn was_sent_by_tool(&self) -> bool {
        false
    }
}

impl Inbound {
    /// Creates an inbound message without a known sender.
    pub fn new(message: impl Into<Envelope>) -> Self {
        Self {
            message: message.into(),
            ..Self::default()
        }
    }

    /// Sets the sender. Call this only from code that has authenticated the sender.
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

    /// Passes the output to channels while the model produces it.
    #[must_use]
    pub fn with_streaming(mut self) -> Self {
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

    /// Marks the message as containing text from a source that the sender does not control.
    #[must_use]
    pub fn with_untrusted(mut self, source: UntrustedSource) -> Self {
        self.untrusted.insert(source);
        self
    }

    /// Sets the answer. The gateway delivers it with retries, also after a restart, and runs no turn. If the platform
    /// rejects the answer, the gateway drops it.
    #[must_use]
    pub fn with_answer(mut self, answer: impl Into<String>) -> Self {
        self.answer = Some(answer.into());
        self
    }

    /// Returns whose text the message contains.
    pub fn provenance(&self) -> Provenance {
        Provenance::new(self.sender().role, self.untrusted.clone())
    }

    /// Returns the sender, or a guest if no sender was authenticated.
    pub fn sender(&self) -> Arc<Sender> {
        self.sender
            .clone()
            .unwrap_or_else(|| Arc::new(Sender::guest(&self.message)))
    }

    /// Returns the sender that the channel authenticated, if any.
    pub fn authenticated_sender(&self) -> Option<&Arc<Sender>> {
        self.sender.as_ref()
    }

    /// Returns the session, once it is resolved.
    pub fn session_id(&self) -> Option<&SessionId> {
        self.session_id.as_ref()
    }

    /// Returns the journal id of the message, if it has one.
    pub fn message_id(&self) -> Option<&MessageId> {
        self.attempt.as_ref().map(|attempt| &attempt.message_id)
    }

    /// Sets the session and writes it to the envelope. The hook `resolve_session` is not called for this message then.
    pub fn set_session_id(&mut self, session_id: SessionId) {
        self.message.set("session_id", session_id.as_str());
        self.session_id = Some(session_id);
    }

    /// Sets the session to the envelope's `session_id`, or else to `channel:chat_id`, unless it is set. Does not call the
    /// hook `resolve_session`.
    pub(crate) fn set_default_session(&mut self) {
        if self.session_id.is_none() {
            let session_id = self.message.session_id().filter(|id| !id.is_empty());
            let session_id =
                session_id.map_or_else(|| self.message.chat_session_id(), Cow::into_owned);
            self.set_session_id(session_id.into());
        }
    }

    /// Returns whether the message is a `,quit` from a sender who may stop the session. Guests may not.
    pub fn is_quit(&self) -> bool {
        command_line(&self.message.content()) == Some("quit") && self.sender().role > Role::Guest
    }

    /// Merges messages that arrived together. Contents are joined by newlines, and media are collected from all
    /// messages, and so are the sources of untrusted text. The sender is the one with the lowest role. Everything else
    /// comes from the last message.
    ///
    /// # Errors
    ///
    /// Fails if the batch is empty.
    pub fn merge_batch(mut batch: Vec<Self>) -> Result<Self> {
        let lowest = batch
            .iter()
            .rev()
            .map(Self::sender)
            .min_by_key(|sender| sender.role);
        let envelopes = batch.iter().map(|inbound| inbound.message.clone());
        let message = Envelope::merge_batch(envelopes.collect())?;
        let mut merged = batch.pop().unwrap_or_default();
        merged.message = message;
        let earlier = batch.into_iter().flat_map(|inbound| inbound.untrusted);
        merged.untrusted.extend(earlier);
        if let Some(lowest) = lowest.filter(|lowest| lowest.role < merged.sender().role) {
            merged.sender = Some(lowest);
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
