//! The target for replies to one message. It knows which replies earlier attempts sent.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, AtomicU32, Ordering},
};

use bub_kernel::{
    BoxFuture, ChannelMessage, Envelope, MessageId, MessageKind, Outbound, ReplyTarget, Result,
    SessionId, Turn,
};
use parking_lot::Mutex;
use serde_json::Value;

use crate::{
    fingerprint::Fingerprint,
    gateway::GatewayInner,
    journal::UnfinishedMessage,
    router::{self, ReplyContext},
};

/// Message field that is copied to the replies, so that the channel knows their destination after a restart.
pub const REPLY_ROUTE_FIELD: &str = "reply_route";

/// Value of [`REPLY_ROUTE_FIELD`] for replies that the client fetches later with its idempotency key.
pub const CLAIM_ROUTE: &str = "claim";

/// Field of a message that asks a user for an approval. It contains the id of the approval request, for channels with
/// buttons.
pub const APPROVAL_ID_FIELD: &str = "approval_id";

/// Field of a message that asks a user for an approval. It lists the possible answers besides `,approve ID` and
/// `,deny ID`: `session` and `always`.
pub const APPROVAL_CHOICES_FIELD: &str = "approval_choices";

/// Field of the reply to `,approve` or `,deny`. It says whether the command decided the approval request.
pub const APPROVAL_DECIDED_FIELD: &str = "approval_decided";

/// Field of a reply that is dropped if the platform rejects it. Other rejected replies stay in the outbox.
pub(crate) const EXPENDABLE_FIELD: &str = "expendable";

/// Receives the replies of one message.
#[derive(Debug)]
pub(crate) struct ReplyScope {
    inner: Weak<GatewayInner>,
    pub(crate) message_id: MessageId,
    /// Channel that the replies of the turn go to, from the field `output_channel` of the message.
    channel: String,
    /// Channel of the message.
    origin: String,
    /// Chat of the message.
    chat: String,
    /// Reply route that the channel set on the message.
    route: Option<Value>,
    /// Replies of earlier attempts, which must not be sent again.
    earlier: Mutex<Vec<Fingerprint>>,
    /// Whether a tool sent a reply to the chat in an earlier attempt.
    was_sent_by_tool: bool,
    /// Whether an earlier attempt sent replies.
    pub(crate) has_earlier_replies: bool,
    /// Number of replies of this attempt through `channel`.
    replies: AtomicU32,
    is_failure_reported: AtomicBool,
}

impl ReplyScope {
    pub(crate) fn new(
        inner: &Arc<GatewayInner>,
        message_id: MessageId,
        message: &Envelope,
    ) -> Self {
        Self {
            inner: Arc::downgrade(inner),
            message_id,
            channel: message.output_channel().unwrap_or_default().into_owned(),
            origin: message.channel().unwrap_or_default().into_owned(),
            chat: message.chat_id().unwrap_or("default".into()).into_owned(),
            route: message.field(REPLY_ROUTE_FIELD).cloned(),
            earlier: Mutex::default(),
            was_sent_by_tool: false,
            has_earlier_replies: false,
            replies: AtomicU32::default(),
            is_failure_reported: AtomicBool::default(),
        }
    }

    /// Adds the fingerprints of the replies that earlier attempts sent.
    pub(crate) fn with_earlier_replies(self, earlier: &UnfinishedMessage) -> Self {
        Self {
            earlier: Mutex::new(earlier.fingerprints.clone()),
            was_sent_by_tool: earlier.has_spoken,
            has_earlier_replies: !earlier.fingerprints.is_empty(),
            ..self
        }
    }

    /// Removes the claim route, so that replies are delivered at once.
    pub(crate) fn without_claim_route(self) -> Self {
        let route = self.route.filter(|route| route != CLAIM_ROUTE);
        Self { route, ..self }
    }

    /// Removes the reply from the replies of earlier attempts. Returns whether an earlier attempt sent it.
    pub(crate) fn take_earlier_reply(&self, channel: &str, reply: &Envelope) -> bool {
        let mut earlier = self.earlier.lock();
        let position = earlier
            .iter()
            .position(|fingerprint| fingerprint.matches(channel, reply));
        position.map(|index| earlier.swap_remove(index)).is_some()
    }

    /// Copies the reply route to a reply that goes through the message's own channel.
    pub(crate) fn copy_route_to(&self, channel: &str, reply: &mut Envelope) {
        let needs_route = (channel == self.channel || channel == self.origin)
            && reply.field(REPLY_ROUTE_FIELD).is_none();
        if let (Some(route), true) = (&self.route, needs_route) {
            reply.set(REPLY_ROUTE_FIELD, route.clone());
        }
    }

    /// Creates the gateway's failure notice for the sender of the message.
    pub(crate) fn failure_notice(&self, session_id: &SessionId, text: &str) -> Outbound {
        let notice = ChannelMessage::new(session_id, &self.origin, text);
        Outbound::new(notice.chat_id(&self.chat).kind(MessageKind::Error))
    }

    /// Creates a reply with the answer to the message, for a turn whose hooks cannot render it.
    pub(crate) fn plain_reply(&self, session_id: &SessionId, answer: &str) -> Outbound {
        let reply = ChannelMessage::new(session_id, &self.channel, answer);
        Outbound::new(reply.chat_id(&self.chat))
    }

    pub(crate) fn set_failure_reported(&self, is_error: bool) {
        self.is_failure_reported
            .fetch_or(is_error, Ordering::Relaxed);
    }

    /// Returns whether the sender got a failure notice.
    pub(crate) fn is_failure_reported(&self) -> bool {
        self.is_failure_reported.load(Ordering::Relaxed)
    }

    /// Counts a reply if it goes through the output channel of the message. The outcome of the message does not count
    /// other replies.
    pub(crate) fn count_reply(&self, channel: &str) {
        if channel == self.channel {
            self.replies.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Reverts [`ReplyScope::count_reply`] for a reply that could not be journaled.
    pub(crate) fn uncount_reply(&self, channel: &str) {
        if channel == self.channel {
            self.replies.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn reply_count(&self) -> u32 {
        self.replies.load(Ordering::Relaxed)
    }
}

impl ReplyTarget for ReplyScope {
    fn deliver<'a>(&'a self, turn: &'a Turn, reply: Outbound) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move {
            let Some(inner) = self.inner.upgrade() else {
                return Ok(false);
            };
            // A failure notice finishes the message if the failure ended the turn.
            let is_last = reply.kind() == MessageKind::Error && turn.failure().is_some();
            let context = ReplyContext {
                scope: Some(self),
                turn: Some(turn),
                is_last,
            };
            router::dispatch_reply(&inner, reply, context).await
        })
    }

    fn was_sent_by_tool(&self) -> bool {
        self.was_sent_by_tool
    }
}
