//! Messages that are no matter for a turn: a person's word about a tool call that waits for it.

use std::sync::Arc;

use bub_kernel::{ApprovalAnswer, ChannelMessage, Envelope, Result};

use crate::{
    current::{Current, DECIDED},
    gateway::Core,
    router,
    ticket::{Outcome, Ticket},
};

/// `,approve ID` or `,deny ID [REASON]`; without an id it is empty.
pub(crate) fn approval(message: &Envelope) -> Option<(String, ApprovalAnswer)> {
    let content = message.content();
    let mut words = content.trim().splitn(3, char::is_whitespace);
    let verb = words.next()?;
    let id = words.next().unwrap_or_default().to_owned();
    let rest = words
        .next()
        .map(|rest| rest.trim().to_owned())
        .filter(|rest| !rest.is_empty());
    match verb {
        ",approve" => Some((id, ApprovalAnswer::Approved)),
        ",deny" => Some((id, ApprovalAnswer::Denied(rest))),
        _ => None,
    }
}

/// Hands an answer to whoever asked, and says what came of it.
pub(crate) async fn answer(
    core: &Arc<Core>,
    message: &Envelope,
    id: &str,
    answer: ApprovalAnswer,
) -> Result<()> {
    let is_yes = answer == ApprovalAnswer::Approved;
    let (text, is_decided) = if id.is_empty() {
        let verb = if is_yes { "approve" } else { "deny" };
        (
            format!("Say which: `,{verb} ID`, with the id that stands in the question."),
            false,
        )
    } else {
        match core
            .options
            .house
            .answer_approval(id, &message.sender(), answer)
        {
            Ok(()) => (
                if is_yes { "Approved." } else { "Denied." }.to_owned(),
                true,
            ),
            Err(error) => (error.message().to_owned(), false),
        }
    };
    let channel = message.channel().unwrap_or_default();
    let session = message
        .session_id()
        .map_or_else(|| message.chat_session(), std::borrow::Cow::into_owned);
    let mut reply = ChannelMessage::new(session, channel, text).kind("command");
    if let Some(chat_id) = message.chat_id() {
        reply = reply.chat_id(chat_id);
    }
    let turn = Arc::new(Current::new(core.journal.next_id(), message, Vec::new()));
    let ticket = message.slot::<Ticket>();
    if let Some(ticket) = &ticket {
        ticket.accept(&turn.inbound_id, false);
    }
    let reply = Envelope::from(reply).with(DECIDED, is_decided);
    router::dispatch(core, &reply, Some(Arc::clone(&turn))).await?;
    if let Some(ticket) = ticket {
        ticket.settle(Outcome::Done {
            replies: turn.replies(),
        });
    }
    Ok(())
}
