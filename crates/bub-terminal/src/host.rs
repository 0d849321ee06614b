//! The interface that a chat needs from the program that runs it.

use bub_kernel::BoxFuture;

/// The program that runs a chat: accepts its lines and controls its turns.
pub trait ChatHost: Send + Sync + 'static {
    /// Submits a line. [`ChatEvent::LineAccepted`](crate::ChatEvent::LineAccepted) reports that the line is on disk.
    /// [`ChatEvent::LineSettled`](crate::ChatEvent::LineSettled) reports the outcome, also if the line is not accepted.
    fn submit_line(&self, line: u64, text: String) -> BoxFuture<'_, ()>;

    /// Cancels the running turn.
    fn cancel_turn(&self) -> BoxFuture<'_, ()>;

    /// Withdraws the last queued line. Its outcome is [`LineOutcome::Withdrawn`](crate::LineOutcome::Withdrawn).
    fn withdraw_line(&self);

    /// Cancels the line that is being submitted, the running turn and all queued lines.
    fn cancel_all(&self) -> BoxFuture<'_, ()>;
}
