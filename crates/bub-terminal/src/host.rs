//! The interface that a chat needs from the program that runs it.

use bub_kernel::{Error, async_trait};

/// The program that runs a chat. It accepts the lines that the user submits, and cancels turns.
#[async_trait]
pub trait ChatHost: Send + Sync + 'static {
    /// Submits `text` as the line with the number `line`. The event
    /// [`ChatEvent::LineAccepted`](crate::ChatEvent::LineAccepted) reports that the line is on disk. The event
    /// [`ChatEvent::LineSettled`](crate::ChatEvent::LineSettled) reports the outcome, also if the line is not accepted.
    async fn submit_line(&self, line: u64, text: String);

    /// Reads the image in the clipboard. A line that contains its [marker](crate::editor::image_marker) has it attached.
    /// The event [`ChatEvent::ImageRejected`](crate::ChatEvent::ImageRejected) reports a failure.
    async fn read_clipboard_image(&self, number: u64);

    /// Cancels the running turn.
    async fn cancel_turn(&self);

    /// Withdraws the line that was queued last. Its outcome is
    /// [`LineOutcome::Withdrawn`](crate::LineOutcome::Withdrawn).
    fn withdraw_line(&self);

    /// Records that a line was not sent, for the exit code of a chat through a pipe.
    fn report_failure(&self, error: Error);

    /// Cancels the line that is being submitted, the running turn and all queued lines.
    async fn cancel_all(&self);
}
