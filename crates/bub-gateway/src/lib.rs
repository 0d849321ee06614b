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
//! * [`fields`]: names of message fields and error details that channels and the gateway agree on.
//! * [`GatewayHooks`]: the plugin by which the gateway follows a turn.
//! * [`pairing`]: who was let in by `bub pair`.

mod control;
mod current;
mod enable;
mod gateway;
mod hooks;
mod journal;
mod lane;
mod manager;
mod options;
mod outbox;
pub mod pairing;
mod router;
pub mod spoken;
pub mod status;
mod ticket;

pub use current::current_route;
pub use enable::{check_names, choose};
pub use gateway::{Gateway, Remote};
pub use hooks::GatewayHooks;
pub use journal::Recovered;
#[doc(hidden)]
pub use journal::relive;
pub use options::{House, NoHouse, Options, directory};
pub use outbox::is_final;
pub use ticket::{Outcome, ReplyTo, Ticket};

/// Names of message fields and error details that channels and the gateway agree on.
pub mod fields {
    pub use crate::{
        current::{APPROVAL, CLAIM, DECIDED, ROUTE},
        gateway::{SESSION_FULL, TOLD},
        outbox::UNCLAIMED,
    };
}
