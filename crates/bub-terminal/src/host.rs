//! What a chat needs from the program around it.

use bub_kernel::{BoxFuture, Result};

/// The program around a chat.
pub trait Host: Send + Sync + 'static {
    /// Accepts a line. Once it returns, the line will be answered, whatever happens to the process; the outcome is
    /// reported as [`Happening::Settled`](crate::Happening::Settled).
    fn submit(&self, line: u64, text: String) -> BoxFuture<'_, Result<()>>;

    /// Cancels the turn that runs.
    fn cancel(&self) -> BoxFuture<'_, ()>;

    /// Takes back the last line that waits: it is settled as [`WITHDRAWN`](crate::channel::WITHDRAWN).
    fn withdraw(&self);

    /// Ends what runs and waits.
    fn quit(&self) -> BoxFuture<'_, ()>;
}
