//! The gateway: channels in, turns, replies out, with nothing lost in between.
//!
//! ```text
//! channel → accept → journal → lane (debounce, admission) → turn → journal → outbox → channel
//! ```
//!
//! * [`Gateway`]: opens the journal, runs channels and lanes, drains.
//! * [`GatewayOptions`], [`JournalKind`]: how it is run, and where it keeps what is unfinished.
//! * [`settings`]: what the configuration says about it.
//! * [`status`]: the local socket.
//! * [`fields`]: names of message fields that channels and the gateway agree on.
//! * [`pairing`]: who was let in by `bub pair`.

mod channel_manager;
mod control;
mod fingerprint;
mod gateway;
mod journal;
mod lane;
mod options;
mod outbox;
pub mod pairing;
mod reply_scope;
mod router;
mod selection;
pub mod settings;
pub mod status;

pub use gateway::{Gateway, GatewayHandle};
pub use journal::JournalRecovery;
#[doc(hidden)]
pub use journal::replay_for_fuzzing;
pub use options::{GatewayOptions, JournalKind, directory, durability};
pub use outbox::is_permanent;
pub use selection::{check_names, select_channels};

/// Names of message fields that channels and the gateway agree on.
pub mod fields {
    pub use crate::reply_scope::{
        APPROVAL_DECIDED_FIELD, APPROVAL_ID_FIELD, CLAIM_ROUTE, REPLY_ROUTE_FIELD,
    };
}
