//! The line that shows that a turn is running.

use std::time::Duration;

/// Time between two frames of the spinner.
pub(crate) const SPINNER_INTERVAL: Duration = Duration::from_millis(120);

const FRAMES: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];

/// Returns the spinner, what the turn is doing, since when, and a hint.
pub(crate) fn activity_text(activity: &str, elapsed: Duration, hint: &str) -> String {
    let frame = elapsed.as_millis() / SPINNER_INTERVAL.as_millis();
    let frame = usize::try_from(frame).unwrap_or(0) % FRAMES.len();
    let spinner = FRAMES.get(frame).unwrap_or(&"*");
    format!("{spinner} {activity} {} s ({hint})", elapsed.as_secs())
}
