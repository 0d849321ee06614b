//! A line on standard error that says how far long work has come.

use std::{
    io::{IsTerminal, Write},
    time::{Duration, Instant},
};

/// More often than this nobody can read it.
const REDRAW_INTERVAL: Duration = Duration::from_millis(100);

/// A counter that is shown on a terminal only, and gone when the work is done.
#[derive(Debug)]
pub(super) struct ProgressLine {
    what: &'static str,
    total: usize,
    done: usize,
    /// Until when the line stays as it is.
    next: Instant,
    shown: bool,
    wanted: bool,
}

impl ProgressLine {
    /// For work that may be long from its first piece on.
    pub(super) fn new(what: &'static str, total: usize) -> Self {
        let wanted = std::io::stderr().is_terminal();
        Self {
            what,
            total,
            done: 0,
            next: Instant::now(),
            shown: false,
            wanted,
        }
    }

    /// For work that is mostly over at once, and then needs no line.
    pub(super) fn patient(what: &'static str, total: usize) -> Self {
        Self {
            next: Instant::now() + REDRAW_INTERVAL,
            ..Self::new(what, total)
        }
    }

    /// Says that the next piece of work begins.
    pub(super) fn next(&mut self, name: &str) {
        self.done += 1;
        if self.wanted && Instant::now() >= self.next {
            (self.next, self.shown) = (Instant::now() + REDRAW_INTERVAL, true);
            let line = format!(
                "{} {} of {}: {}",
                self.what,
                self.done,
                self.total,
                super::text::cut(name, 40)
            );
            let mut stderr = std::io::stderr();
            let _ = write!(stderr, "\r\x1b[K{line}").and_then(|()| stderr.flush());
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if self.shown {
            let mut stderr = std::io::stderr();
            let _ = write!(stderr, "\r\x1b[K").and_then(|()| stderr.flush());
        }
    }
}
