//! What a chat needs from the program around it.

use bub_kernel::BoxFuture;

/// The program around a chat.
pub trait ChatHost: Send + Sync + 'static {
    /// Submits a line. [`ChatEvent::Taken`](crate::ChatEvent::Taken) reports that the line is on disk, and
    /// [`ChatEvent::Settled`](crate::ChatEvent::Settled) the outcome, also if the line is not accepted.
    fn submit(&self, line: u64, text: String) -> BoxFuture<'_, ()>;

    /// Cancels the turn that runs.
    fn cancel(&self) -> BoxFuture<'_, ()>;

    /// Withdraws the last queued line: it is settled as [`LineOutcome::Withdrawn`](crate::LineOutcome::Withdrawn).
    fn withdraw(&self);

    /// Cancels the line that is being submitted, the running turn and all queued lines.
    fn quit(&self) -> BoxFuture<'_, ()>;
}
