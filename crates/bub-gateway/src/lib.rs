//! The gateway: runs channels and services, processes their messages in turns, and delivers replies. Accepted messages are not lost.
//!
//! ```text
//! channel → accept → journal → lane (debounce, admission) → turn → journal → outbox → channel
//! ```
//!
//! * [`Gateway`]: opens the journal, runs channels and lanes, and drains them when it stops.
//! * [`GatewayOptions`], [`JournalKind`]: limits, timeouts, and where the journal is stored.
//! * [`settings`]: the settings of the gateway.
//! * [`status`]: the local socket for `bub status` and `bub outbox`.
//! * [`fields`]: message fields that channels and the gateway share.
//! * [`pairing`]: users that were granted access with `bub pair`.

mod accept;
mod control;
mod fingerprint;
mod gateway;
mod journal;
mod lane;
mod options;
mod outbox;
pub mod pairing;
mod recover;
mod reply_scope;
mod router;
mod selection;
pub mod settings;
pub mod status;
mod supervision;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;

pub use gateway::{Gateway, GatewayHandle};
pub use journal::JournalRecovery;
#[doc(hidden)]
pub use journal::replay_for_fuzzing;
pub use options::{GatewayOptions, JournalKind, gateway_directory, journal_durability};
pub use outbox::is_permanent_error;
pub use selection::{check_channel_names, select_channels};

/// Names of message fields that channels and the gateway share.
pub mod fields {
    pub use crate::reply_scope::{
        APPROVAL_CHOICES_FIELD, APPROVAL_DECIDED_FIELD, APPROVAL_ID_FIELD, CLAIM_ROUTE,
        REPLY_ROUTE_FIELD,
    };
}
