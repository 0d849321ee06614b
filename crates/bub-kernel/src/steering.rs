//! The contract of the inbox for messages that steer a running turn.

use std::{fmt, sync::Arc};

use crate::{BoxFuture, envelope::Envelope, error::Result};

/// Holds messages for a running turn until its next step takes them.
pub trait SteeringInbox: Send + Sync + 'static {
    /// Puts a message in; `false` when it is full.
    fn enqueue<'a>(&'a self, session_id: &'a str, message: Envelope)
    -> BoxFuture<'a, Result<bool>>;

    /// Takes all messages of a session, oldest first.
    fn drain<'a>(&'a self, session_id: &'a str) -> BoxFuture<'a, Result<Vec<Envelope>>>;

    /// How many wait.
    fn count(&self, session_id: &str) -> usize;
}

/// The state slot through which the stages of a turn find the inbox.
#[derive(Clone)]
pub struct SteeringHandle(pub Arc<dyn SteeringInbox>);

impl fmt::Debug for SteeringHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SteeringHandle")
    }
}
