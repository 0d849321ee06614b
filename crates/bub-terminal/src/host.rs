//! The interface that a chat needs from the program that runs it.

use bub_kernel::BoxFuture;

/// The program that runs a chat: accepts its lines and controls its turns.
pub trait ChatHost: Send + Sync + 'static {
    /// Submits a line. [`ChatEvent::LineAccepted`](crate::ChatEvent::LineAccepted) reports that the line is on disk.
    /// [`ChatEvent::LineSettled`](crate::ChatEvent::LineSettled) reports the outcome, also if the line is not accepted.
    fn submit(&self, line: u64, text: String) -> BoxFuture<'_, ()>;

    /// Cancels the running turn.
    fn cancel(&self) -> BoxFuture<'_, ()>;

    /// Withdraws the last queued line. Its outcome is [`LineOutcome::Withdrawn`](crate::LineOutcome::Withdrawn).
    fn withdraw(&self);

    /// Cancels the line that is being submitted, the running turn and all queued lines.
    fn quit(&self) -> BoxFuture<'_, ()>;
}
