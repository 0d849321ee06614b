//! A line on standard error that says how far long work has come.

use std::{
    io::{IsTerminal, Write},
    time::{Duration, Instant},
};

/// More often than this nobody can read it.
const PAUSE: Duration = Duration::from_millis(100);

/// A counter that is shown on a terminal only, and gone when the work is done.
#[derive(Debug)]
pub(super) struct Progress {
    what: &'static str,
    total: usize,
    done: usize,
    shown: Option<Instant>,
    wanted: bool,
}

impl Progress {
    pub(super) fn new(what: &'static str, total: usize) -> Self {
        // Work that is over at once needs no line.
        let wanted = std::io::stderr().is_terminal();
        Self { what, total, done: 0, shown: None, wanted }
    }

    /// Says that the next piece of work begins.
    pub(super) fn next(&mut self, name: &str) {
        self.done += 1;
        let recently = self.shown.is_some_and(|shown| shown.elapsed() < PAUSE);
        if self.wanted && !recently {
            self.shown = Some(Instant::now());
            let line =
                format!("{} {} of {}: {}", self.what, self.done, self.total, super::text::cut(name, 40));
            let mut stderr = std::io::stderr();
            let _ = write!(stderr, "\r\x1b[K{line}").and_then(|()| stderr.flush());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown.is_some() {
            let mut stderr = std::io::stderr();
            let _ = write!(stderr, "\r\x1b[K").and_then(|()| stderr.flush());
        }
    }
}
