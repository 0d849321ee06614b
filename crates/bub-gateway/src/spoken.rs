//! No plain reply on top of what the model sent by a tool.
//!
//! A tool `<channel>.send` puts [`ByTool`] on its message and gives it to the router, as any reply: it is written down
//! first, tried again, and not doubled after a crash. When a message reached its chat in another way, by a script of
//! the channel's skill for example, [`note`] says so. Either way the plain reply of that turn is then not sent to the
//! chat that the message came from; after [`ByTool`] also when the turn is cut off and goes on in the next process.
//! Errors, questions for approval and the output of commands are sent all the same.
//!
//! ```no_run
//! # async fn tool(context: bub_kernel::ToolContext) -> bub_kernel::Result<()> {
//! use std::sync::Arc;
//! use bub_gateway::spoken::ByTool;
//! use bub_kernel::{ChannelMessage, Envelope, FrameworkRef};
//!
//! let router = context.state.slot::<FrameworkRef>().and_then(|framework| framework.get()?.router());
//! let mut message: Envelope = ChannelMessage::new("lab:1", "lab", "hello").chat_id("1").into();
//! message.put_slot(Arc::new(ByTool));
//! if let Some(router) = router {
//!     router.dispatch(&message).await?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A channel that has no plain replies at all (`reply: tool`) hands its messages in with the `output_channel` `"null"`,
//! which no channel is called.

use bub_kernel::Envelope;

use crate::current::Current;

/// The slot on a message that a tool sends.
#[derive(Clone, Copy, Debug)]
pub struct ByTool;

/// Notes that the turn of the calling task said something in a chat without the router.
pub fn note(channel: &str, chat_id: &str) {
    if let Some(turn) = Current::get() {
        turn.note_spoken(channel, chat_id);
    }
}

/// Notes that what a tool of the turn of the calling task gave to the router will not reach its chat: it does not count
/// as an answer. To be called once, by the tool.
pub fn note_refused(channel: &str, chat_id: &str) {
    if let Some(turn) = Current::get() {
        turn.note_unspoken(channel, chat_id);
    }
}

/// Whether the turn of the calling task said something in its own chat: a channel that shows an answer while it grows
/// has nothing to show then.
pub fn is_noted() -> bool {
    Current::get().is_some_and(|turn| turn.has_spoken())
}

/// Whether this is a plain reply to the chat of a turn that has spoken there.
pub(crate) fn is_too_much(turn: &Current, channel: &str, message: &Envelope) -> bool {
    turn.is_rendered()
        && turn.has_spoken()
        && message.kind() == "normal"
        && turn.is_own_chat(channel, &message.chat_id().unwrap_or("default".into()))
}
