//! The gateway: channels in, turns, replies out, with nothing lost in between.
//!
//! * [`Ticket`], [`ReplyTo`]: slots by which a channel learns what became of its messages.
//! * [`webhook`]: the channel that any program can use.

mod ticket;
pub mod webhook;

pub use ticket::{Outcome, ReplyTo, Ticket};
