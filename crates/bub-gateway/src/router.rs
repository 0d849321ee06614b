//! What leaves a turn goes into the journal, and from there to the channel.

use std::sync::{Arc, Weak};

use bub_kernel::{BoxFuture, Channel, ChannelRouter, Envelope, LastWord, Result};

use crate::{
    current::{CLAIM, Current, ROUTE, fingerprint},
    gateway::Core,
    journal::{Record, Reply, now, raw},
    outbox::{Outbox, Parcel},
    spoken::{self, ByTool},
};

/// The router of a gateway. It does not keep the gateway alive.
pub(crate) struct Router(pub(crate) Weak<Core>);

impl ChannelRouter for Router {
    fn channel(&self, name: &str) -> Option<Arc<dyn Channel>> {
        self.0.upgrade()?.channel(name)
    }

    fn dispatch<'a>(&'a self, message: &'a Envelope) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move {
            match self.0.upgrade() {
                Some(core) => dispatch(&core, message, Current::get()).await,
                None => Ok(false),
            }
        })
    }

    fn quit<'a>(&'a self, session_id: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            if let Some(core) = self.0.upgrade() {
                core.quit(
                    session_id,
                    Current::get().map(|turn| turn.inbound_id.clone()),
                )
                .await;
            }
            Ok(())
        })
    }
}

/// Writes a reply down and has it delivered; `false` when there is no such channel.
pub(crate) async fn dispatch(
    core: &Arc<Core>,
    message: &Envelope,
    turn: Option<Arc<Current>>,
) -> Result<bool> {
    let Some(name) = message.output_channel().map(std::borrow::Cow::into_owned) else {
        return Ok(false);
    };
    if core.channel(&name).is_none() {
        return Ok(false);
    }
    // Nothing to say is nothing to send.
    if message.content().trim().is_empty() && message.media().is_empty() {
        return Ok(true);
    }
    if turn
        .as_ref()
        .is_some_and(|turn| spoken::is_too_much(turn, &name, message))
    {
        return Ok(true);
    }
    let print = fingerprint(&name, message);
    let chat = message.chat_id().unwrap_or("default".into()).into_owned();
    let by_tool = message.slot::<ByTool>().is_some()
        && turn
            .as_ref()
            .is_some_and(|turn| turn.note_spoken(&name, &chat));
    let is_error = message.kind() == "error";
    if let Some(turn) = turn.as_ref().filter(|turn| turn.was_said(print)) {
        turn.note_excused(is_error);
        return Ok(true);
    }
    let mut message = message.clone();
    if message.session_id().is_none() {
        message.set("session_id", format!("{name}:default"));
    }
    if message.chat_id().is_none() {
        message.set("chat_id", chat.as_str());
    }
    if let Some(turn) = &turn {
        turn.mark(&name, &mut message);
    }
    let reply = Reply {
        id: core.journal.next_id(),
        at: now(),
        inbound: turn.as_ref().map(|turn| turn.inbound_id.clone()),
        chat,
        channel: name,
        print,
        by_tool,
        is_claimed: message.str_field(ROUTE) == Some(CLAIM),
        is_last: message.slot::<LastWord>().is_some(),
        message: raw(&message)?,
    };
    let parcel = Parcel {
        reply: Arc::new(reply.clone()),
        message: Some(message),
        attempt: 0,
    };
    core.journal.commit(Record::Reply(reply)).await?;
    if let Some(turn) = turn {
        turn.note_excused(is_error);
        turn.count_reply(&parcel.reply.channel);
    }
    Outbox::send(core, parcel);
    Ok(true)
}

/// Sees to it that whoever wrote a message hears of its failure, when those whose work that is failed as well.
/// `false` when they will not hear of it.
pub(crate) async fn excuse(
    core: &Arc<Core>,
    session: &str,
    turn: &Arc<Current>,
    text: &str,
) -> bool {
    if turn.is_excused() {
        return true;
    }
    let told = dispatch(core, &turn.excuse(session, text), Some(Arc::clone(turn))).await;
    if !matches!(told, Ok(true)) {
        tracing::error!(
            "gateway.failure_not_told session={session} id={}",
            turn.inbound_id
        );
    }
    matches!(told, Ok(true))
}
