//! Shows the progress of a long operation on stderr.

use std::{
    io::IsTerminal as _,
    time::{Duration, Instant},
};

use bub::prompt::print_stderr;

use super::text::sanitize_and_truncate;

/// Minimum time between two updates, so that the line stays readable.
const REDRAW_INTERVAL: Duration = Duration::from_millis(100);

/// A progress counter. It appears only on a terminal and disappears on drop.
#[derive(Debug)]
pub(super) struct ProgressLine {
    label: &'static str,
    total: usize,
    done: usize,
    /// Earliest time of the next update.
    next_redraw: Instant,
    is_shown: bool,
    is_terminal: bool,
}

impl ProgressLine {
    /// Creates a line that appears with the first item.
    pub(super) fn new(label: &'static str, total: usize) -> Self {
        Self {
            label,
            total,
            done: 0,
            next_redraw: Instant::now(),
            is_shown: false,
            is_terminal: std::io::stderr().is_terminal(),
        }
    }

    /// Creates a line that appears only if the work takes longer than [`REDRAW_INTERVAL`].
    pub(super) fn delayed(label: &'static str, total: usize) -> Self {
        Self {
            next_redraw: Instant::now() + REDRAW_INTERVAL,
            ..Self::new(label, total)
        }
    }

    /// Advances to the next item.
    pub(super) fn advance(&mut self, name: &str) {
        self.done += 1;
        if self.is_terminal && Instant::now() >= self.next_redraw {
            (self.next_redraw, self.is_shown) = (Instant::now() + REDRAW_INTERVAL, true);
            let name = sanitize_and_truncate(name, 40);
            let Self {
                label, done, total, ..
            } = self;
            print_stderr(&format!("\r\x1b[K{label} {done} of {total}: {name}"));
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if self.is_shown {
            print_stderr("\r\x1b[K");
        }
    }
}
