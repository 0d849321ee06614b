//! The gateway: channels in, turns, replies out, with nothing lost in between.
//!
//! ```text
//! channel → accept → journal → lane (debounce, admission) → turn → journal → outbox → channel
//! ```
//!
//! * [`Gateway`]: opens the journal, runs channels and lanes, drains.
//! * [`Options`], [`House`]: how it is run, and what the program above does for it.
//! * [`spoken`]: no plain reply on top of what a tool of the channel sent.
//! * [`Ticket`], [`ReplyTo`]: slots by which a channel learns what became of its messages.
//! * [`status`]: the local socket.
//! * [`Channels`]: the plugin that provides the channels below.
//! * [`webhook`]: the channel that any program can use.
//! * [`telegram`]: a bot; [`pairing`]: who was let in by `bub pair`.

mod control;
mod current;
mod enable;
mod gateway;
mod journal;
mod lane;
mod manager;
mod options;
mod outbox;
pub mod pairing;
mod plugin;
mod router;
pub mod spoken;
pub mod status;
pub mod telegram;
mod ticket;
pub mod webhook;

pub use enable::{check_names, choose};
pub use gateway::{Gateway, Remote};
pub use journal::Recovered;
#[doc(hidden)]
pub use journal::relive;
pub use options::{House, NoHouse, Options, directory};
pub use plugin::{Channels, NAMES, check_settings};
pub use ticket::{Outcome, ReplyTo, Ticket};
