//! Routes replies: writes them to the journal and passes them to the outbox.

use std::sync::{Arc, Weak};

use bub_kernel::{
    Channel, ChannelRouter, Envelope, Error, MessageId, MessageKind, ModelStream, Outbound,
    ReplyId, ReplyOrigin, Result, SessionId, Stage, Turn, async_trait,
};

use crate::{
    fingerprint::Fingerprint,
    gateway::GatewayInner,
    journal::{JournalRecord, ReplyRecord, encode_envelope, now_ms},
    outbox::{Outbox, OutboxItem},
    reply_scope::{APPROVAL_ID_FIELD, CLAIM_ROUTE, REPLY_ROUTE_FIELD, ReplyScope},
};

/// The [`ChannelRouter`] of a gateway. Its reference is weak, so that it does not keep the gateway alive.
pub(crate) struct Router(pub(crate) Weak<GatewayInner>);

#[async_trait]
impl ChannelRouter for Router {
    fn channel(&self, name: &str) -> Option<Arc<dyn Channel>> {
        self.0.upgrade()?.channel(name)
    }

    async fn dispatch(&self, reply: Outbound) -> Result<bool> {
        match self.0.upgrade() {
            Some(inner) => dispatch_reply(&inner, reply, ReplyContext::default()).await,
            None => Ok(false),
        }
    }

    fn wrap_stream(&self, turn: &Turn, stream: ModelStream) -> ModelStream {
        let channel = self.0.upgrade().and_then(|inner| {
            let name = turn.message().output_channel().unwrap_or_default();
            let has_output = turn.message().has_output();
            let catch_all = || inner.catch_all_channel().filter(|_| has_output);
            inner.channel(&name).or_else(|| inner.channel(catch_all()?))
        });
        match channel {
            Some(channel) => channel.stream_events(turn.clone(), stream),
            None => stream,
        }
    }

    async fn quit_session(&self, session_id: &SessionId, except: Option<&MessageId>) -> Result<()> {
        if let Some(inner) = self.0.upgrade() {
            inner.lanes.quit_session(session_id, except.cloned()).await;
        }
        Ok(())
    }
}

/// The message and the turn that a reply belongs to.
#[derive(Clone, Copy, Default)]
pub(crate) struct ReplyContext<'a> {
    /// Scope of the message that the reply answers.
    pub(crate) scope: Option<&'a ReplyScope>,
    /// Turn that sent the reply.
    pub(crate) turn: Option<&'a Turn>,
    /// Whether the reply finishes the message.
    pub(crate) is_last: bool,
}

/// Journals a reply and queues it for delivery. Returns `false` if no channel can deliver it.
pub(crate) async fn dispatch_reply(
    inner: &Arc<GatewayInner>,
    reply: Outbound,
    context: ReplyContext<'_>,
) -> Result<bool> {
    let (scope, turn) = (context.scope, context.turn);
    let (mut message, origin) = (reply.message, reply.origin);
    let requested = message.output_channel().unwrap_or_default().into_owned();
    let channel = if inner.channel(&requested).is_some() {
        requested.clone()
    } else {
        // If the gateway does not run the requested channel, the catch-all channel shows the replies of the turn, but
        // not the replies that tools send.
        let is_plain = scope.is_some() && origin == ReplyOrigin::Turn && message.has_output();
        match inner.catch_all_channel().filter(|_| is_plain) {
            Some(name) => name.to_owned(),
            None => return Ok(false),
        }
    };
    // Do not send an empty reply.
    if message.content().trim().is_empty() && message.media().is_empty() {
        return Ok(true);
    }
    let chat = message.chat_id().unwrap_or("default".into()).into_owned();
    let is_redundant = |turn: &Turn| {
        turn.stage() >= Stage::Render
            && turn.was_sent_by_tool()
            && turn.is_own_chat(&requested, &chat)
            && origin == ReplyOrigin::Turn
            && message.kind() == MessageKind::Normal
    };
    if turn.is_some_and(is_redundant) {
        return Ok(true);
    }
    let by_tool = origin == ReplyOrigin::Tool
        && turn.is_some_and(|turn| turn.mark_sent_by_tool(&requested, &chat));
    let is_error = message.kind() == MessageKind::Error;
    if let Some(scope) = scope.filter(|scope| scope.take_earlier_reply(&channel, &message)) {
        scope.set_failure_reported(is_error);
        return Ok(true);
    }
    let fingerprint = Fingerprint::new(&channel, &message);
    if message.session_id().is_none() {
        message.set("session_id", format!("{channel}:default"));
    }
    if message.chat_id().is_none() {
        message.set("chat_id", chat.as_str());
    }
    if let Some(scope) = scope {
        scope.copy_route_to(&requested, &mut message);
    }
    let reply = ReplyRecord {
        id: inner.journal.next_reply_id(),
        at: now_ms(),
        inbound: scope.map(|scope| scope.message_id.clone()),
        chat,
        channel,
        print: fingerprint.hash,
        print_version: fingerprint.version,
        by_tool,
        is_claimed: message.str_field(REPLY_ROUTE_FIELD) == Some(CLAIM_ROUTE),
        is_last: context.is_last,
        message: encode_envelope(&message)?,
    };
    let is_shown = origin == ReplyOrigin::Turn
        && message.kind() == MessageKind::Normal
        && turn.is_some_and(|turn| has_shown(inner, turn, &message));
    if is_shown {
        inner.outbox.mark_shown(&reply.id);
    }
    let approval_id = message.str_field(APPROVAL_ID_FIELD).map(str::to_owned);
    let (reply_id, channel_name) = (reply.id.clone(), reply.channel.clone());
    let mut outbound = Outbound::new(message);
    outbound.origin = origin;
    let item = OutboxItem {
        reply: Arc::new(reply.clone()),
        outbound,
        attempt: 0,
    };
    // Count the reply first: it is sent even if the turn is cancelled while the reply is written to the journal.
    if let Some(scope) = scope {
        scope.count_reply(&requested);
    }
    let sent = journal_and_send(Arc::clone(inner), reply, item).await;
    if let Some(scope) = scope {
        match sent {
            Ok(()) => scope.set_failure_reported(is_error),
            Err(_) => scope.uncount_reply(&requested),
        }
    }
    if let Some(id) = approval_id.filter(|_| sent.is_ok()) {
        let inner = Arc::clone(inner);
        tokio::spawn(end_approval(inner, channel_name, id, reply_id));
    }
    sent.map(|()| true)
}

/// Waits until an approval request ends. Then its question is not sent any more, or the channel marks it as ended.
async fn end_approval(inner: Arc<GatewayInner>, channel: String, id: String, reply_id: ReplyId) {
    let answer = inner.framework.approvals().wait_until_ended(&id).await;
    // An error means that the question was delivered.
    let _ = Outbox::drop_reply(&inner, &reply_id).await;
    if let Some(channel) = inner.channel(&channel)
        && let Err(error) = channel.end_approval(&id, answer.as_ref()).await
    {
        tracing::warn!(%error, "gateway.approval_not_ended");
    }
}

/// Returns whether a reply contains exactly the answer of the turn, and the channel has already shown this answer while
/// it was streamed.
fn has_shown(inner: &GatewayInner, turn: &Turn, reply: &Envelope) -> bool {
    turn.is_answer_shown() && {
        let answer = inner.redact(&turn.report().output);
        reply.content().trim() == answer.trim() && reply.media().is_empty()
    }
}

/// Journals a reply and passes it to the outbox, even if the turn is cancelled in between. A journaled reply that is
/// not in the outbox would wait until the next start.
async fn journal_and_send(
    inner: Arc<GatewayInner>,
    reply: ReplyRecord,
    item: OutboxItem,
) -> Result<()> {
    let sending = tokio::spawn(async move {
        let record = JournalRecord::Reply(reply);
        inner.journal.append_with_retries(record).await?;
        Outbox::enqueue(&inner, item);
        Ok(())
    });
    let sent = sending.await;
    sent.unwrap_or_else(|_| {
        Err(Error::unknown(
            "cannot queue the reply: internal error (panic); see the log for the panic",
        ))
    })
}

/// Sends a failure notice to the sender of a message, unless a plugin has sent one. Returns `false` if no notice can
/// be sent.
pub(crate) async fn report_failure(
    inner: &Arc<GatewayInner>,
    session_id: &SessionId,
    scope: &ReplyScope,
    text: &str,
) -> bool {
    if scope.is_failure_reported() {
        return true;
    }
    let is_reported = send_final_reply(inner, scope, scope.failure_notice(session_id, text)).await;
    if !is_reported {
        let inbound_id = scope.message_id.as_str();
        tracing::error!(%session_id, inbound_id, "gateway.failure_not_reported");
    }
    is_reported
}

/// Sends the reply that finishes a message, without hooks. Returns `false` if the reply cannot be sent.
pub(crate) async fn send_final_reply(
    inner: &Arc<GatewayInner>,
    scope: &ReplyScope,
    reply: Outbound,
) -> bool {
    let context = ReplyContext {
        scope: Some(scope),
        turn: None,
        is_last: true,
    };
    matches!(dispatch_reply(inner, reply, context).await, Ok(true))
}
