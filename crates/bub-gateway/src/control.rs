//! Messages that do not start a turn: answers to approval requests.

use std::sync::Arc;

use bub_kernel::{
    ApprovalAnswer, ChannelMessage, Envelope, Inbound, MessageKind, MessageOutcome, Outbound,
    Result,
};

use crate::{
    gateway::GatewayInner,
    reply_scope::{APPROVAL_DECIDED_FIELD, ReplyScope},
    router::{self, ReplyContext},
};

/// Parses `,approve ID [session|always]` or `,deny ID [REASON]`. The id is empty if it is missing, or if an approval has
/// another word after it.
pub(crate) fn parse_approval(message: &Envelope) -> Option<(String, ApprovalAnswer)> {
    let content = message.content();
    let mut words = content.trim().splitn(3, char::is_whitespace);
    let verb = words.next()?;
    let id = words.next().unwrap_or_default().to_owned();
    let reason = words
        .next()
        .map(|reason| reason.trim().to_owned())
        .filter(|reason| !reason.is_empty());
    match verb {
        ",approve" => Some(match reason.as_deref() {
            None | Some("once") => (id, ApprovalAnswer::Approved),
            Some("session") => (id, ApprovalAnswer::ApprovedForSession),
            Some("always") => (id, ApprovalAnswer::ApprovedAlways),
            Some(_) => (String::new(), ApprovalAnswer::Approved),
        }),
        ",deny" => Some((id, ApprovalAnswer::Denied(reason))),
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
            format!("Specify the request: `,{usage}`, with the id from the question."),
            false,
        )
    } else {
        let approvals = inner.framework.approvals();
        match approvals.submit_answer(id, &inbound.sender(), answer) {
            Ok(()) => (done.to_owned(), true),
            Err(error) => (error.message().to_owned(), false),
        }
    };
    let message = &inbound.message;
    let channel = message.channel().unwrap_or_default();
    let session = message
        .session_id()
        .map_or_else(|| message.chat_session_id(), std::borrow::Cow::into_owned);
    let mut reply = ChannelMessage::new(session, channel, text).kind(MessageKind::Command);
    if let Some(chat_id) = message.chat_id() {
        reply = reply.chat_id(chat_id);
    }
    let scope = ReplyScope::new(inner, inner.journal.next_message_id(), message);
    if let Some(receipt) = &inbound.receipt {
        receipt.accept(&scope.message_id, false);
    }
    let reply = Outbound::new(Envelope::from(reply).with(APPROVAL_DECIDED_FIELD, is_decided));
    let context = ReplyContext {
        scope: Some(&scope),
        ..ReplyContext::default()
    };
    router::dispatch_reply(inner, reply, context).await?;
    if let Some(receipt) = &inbound.receipt {
        receipt.settle(MessageOutcome::Done {
            replies: scope.reply_count(),
            report: None,
        });
    }
    Ok(())
}
