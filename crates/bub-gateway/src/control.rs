//! Messages that do not start a turn: answers to approval requests, and messages whose answer the channel has.

use std::sync::Arc;

use bub_kernel::{
    ApprovalAnswer, ChannelMessage, Envelope, Inbound, MessageKind, MessageOutcome, Outbound,
    Result, command_line, command_prefix,
};

use crate::{
    gateway::GatewayInner,
    reply_scope::{APPROVAL_DECIDED_FIELD, EXPENDABLE_FIELD, ReplyScope},
    router::{self, ReplyContext},
};

/// Parses `,approve ID [session|always]` or `,deny ID [REASON]`. The id is empty if it is missing, or if an approval has
/// another word after it.
pub(crate) fn parse_approval(message: &Envelope) -> Option<(String, ApprovalAnswer)> {
    let content = message.content();
    let mut words = command_line(&content)?.splitn(3, char::is_whitespace);
    let verb = words.next()?;
    let id = words.next().unwrap_or_default().to_owned();
    let reason = words
        .next()
        .map(|reason| reason.trim().to_owned())
        .filter(|reason| !reason.is_empty());
    match verb {
        "approve" => Some(match reason.as_deref() {
            None | Some("once") => (id, ApprovalAnswer::Approved),
            Some("session") => (id, ApprovalAnswer::ApprovedForSession),
            Some("always") => (id, ApprovalAnswer::ApprovedAlways),
            Some(_) => (String::new(), ApprovalAnswer::Approved),
        }),
        "deny" => Some((id, ApprovalAnswer::Denied(reason))),
        _ => None,
    }
}

/// Passes the user's `,approve` or `,deny` to the pending approval request and replies with the result.
pub(crate) async fn answer_approval(
    inner: &Arc<GatewayInner>,
    inbound: &Inbound,
    id: &str,
    answer: ApprovalAnswer,
) -> Result<()> {
    let is_approval = answer.is_approval();
    let done = match &answer {
        ApprovalAnswer::Approved => "Approved.",
        ApprovalAnswer::ApprovedForSession => "Approved for this session.",
        ApprovalAnswer::ApprovedAlways => "Approved for always.",
        _ => "Denied.",
    };
    let (text, is_decided) = if id.is_empty() {
        let usage = if is_approval {
            "approve ID [session|always]"
        } else {
            "deny ID [REASON]"
        };
        (
            format!(
                "Specify the request: `{}{usage}`, with the id from the question.",
                command_prefix()
            ),
            false,
        )
    } else {
        let approvals = inner.framework.approvals();
        match approvals.submit_answer(id, &inbound.sender(), answer) {
            Ok(()) => (done.to_owned(), true),
            Err(error) => (error.message().to_owned(), false),
        }
    };
    let reply = reply_to(&inbound.message, text).kind(MessageKind::Command);
    let reply = Envelope::from(reply).with(APPROVAL_DECIDED_FIELD, is_decided);
    send_reply(inner, inbound, reply).await
}

/// Delivers the answer that the channel has set on a message. The sender may be a stranger, so an answer that the
/// platform rejects does not stay in the outbox.
pub(crate) async fn deliver_answer(
    inner: &Arc<GatewayInner>,
    inbound: &Inbound,
    answer: &str,
) -> Result<()> {
    let reply = Envelope::from(reply_to(&inbound.message, answer)).with(EXPENDABLE_FIELD, true);
    send_reply(inner, inbound, reply).await
}

fn reply_to(message: &Envelope, text: impl Into<String>) -> ChannelMessage {
    let channel = message.channel().unwrap_or_default();
    let session = message
        .session_id()
        .map_or_else(|| message.chat_session_id(), std::borrow::Cow::into_owned);
    let reply = ChannelMessage::new(session, channel, text);
    match message.chat_id() {
        Some(chat_id) => reply.chat_id(chat_id),
        None => reply,
    }
}

/// Journals the reply to a message and settles the message.
async fn send_reply(inner: &Arc<GatewayInner>, inbound: &Inbound, reply: Envelope) -> Result<()> {
    let message = &inbound.message;
    let scope = ReplyScope::new(inner, inner.journal.next_message_id(), message);
    if let Some(receipt) = &inbound.receipt {
        receipt.accept(&scope.message_id, false);
    }
    let context = ReplyContext {
        scope: Some(&scope),
        ..ReplyContext::default()
    };
    router::dispatch_reply(inner, Outbound::new(reply), context).await?;
    if let Some(receipt) = &inbound.receipt {
        receipt.settle(MessageOutcome::Done {
            replies: scope.reply_count(),
            report: None,
        });
    }
    Ok(())
}
