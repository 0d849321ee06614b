//! Shows the progress of a long operation on stderr.

use std::{
    io::{IsTerminal, Write},
    time::{Duration, Instant},
};

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
        let is_terminal = std::io::stderr().is_terminal();
        Self {
            label,
            total,
            done: 0,
            next_redraw: Instant::now(),
            is_shown: false,
            is_terminal,
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
            let line = format!(
                "{} {} of {}: {}",
                self.label,
                self.done,
                self.total,
                super::text::sanitize_and_truncate(name, 40)
            );
            let mut stderr = std::io::stderr();
            let _ = write!(stderr, "\r\x1b[K{line}").and_then(|()| stderr.flush());
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if self.is_shown {
            let mut stderr = std::io::stderr();
            let _ = write!(stderr, "\r\x1b[K").and_then(|()| stderr.flush());
        }
    }
}
