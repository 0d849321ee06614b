//! The gateway: channels in, turns, replies out, with nothing lost in between.
//!
//! ```text
//! channel → accept → journal → lane (debounce, admission) → turn → journal → outbox → channel
//! ```
//!
//! * [`Gateway`]: opens the journal, runs channels and lanes, drains.
//! * [`Options`], [`JournalKind`]: how it is run, and where it keeps what is unfinished.
//! * [`settings`]: what the configuration says about it.
//! * [`status`]: the local socket.
//! * [`fields`]: names of message fields that channels and the gateway agree on.
//! * [`pairing`]: who was let in by `bub pair`.

mod control;
mod enable;
mod fingerprint;
mod gateway;
mod journal;
mod lane;
mod manager;
mod options;
mod outbox;
pub mod pairing;
mod reply_scope;
mod router;
pub mod settings;
pub mod status;

pub use enable::{check_names, choose};
pub use gateway::{Gateway, Remote};
pub use journal::Recovered;
#[doc(hidden)]
pub use journal::relive;
pub use options::{JournalKind, Options, directory, durability};
pub use outbox::is_final;

/// Names of message fields that channels and the gateway agree on.
pub mod fields {
    pub use crate::reply_scope::{APPROVAL, CLAIM, DECIDED, ROUTE};
}
