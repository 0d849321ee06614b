//! A progress bar for tests and tasks that run longer than a second. It appears on stderr if that is a terminal.

use std::{
    io::{IsTerminal as _, Write as _},
    time::{Duration, Instant},
};

/// Work that ends earlier shows no bar.
const BAR_DELAY: Duration = Duration::from_secs(1);
const BAR_COLUMNS: u64 = 30;

/// A progress bar. It disappears on drop.
pub struct ProgressBar {
    label: &'static str,
    total: u64,
    started: Instant,
    is_terminal: bool,
    is_shown: bool,
}

impl ProgressBar {
    /// Creates a bar for work of `total` units.
    #[expect(clippy::disallowed_methods, reason = "tests have no settings")]
    pub fn new(label: &'static str, total: u64) -> Self {
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        Self {
            label,
            total,
            started: Instant::now(),
            is_terminal: std::io::stderr().is_terminal() && !is_dumb,
            is_shown: false,
        }
    }

    /// Draws the bar after `done` units.
    pub fn draw(&mut self, done: u64) {
        if self.is_terminal && self.started.elapsed() >= BAR_DELAY {
            self.is_shown = true;
            let line = self.line(done);
            // Ignore errors: a closed stderr is no reason to stop.
            let _ = write!(std::io::stderr(), "\r\x1b[K{line}");
        }
    }

    fn line(&self, done: u64) -> String {
        let filled = (done * BAR_COLUMNS).checked_div(self.total).unwrap_or(0);
        let filled = usize::try_from(filled.min(BAR_COLUMNS)).unwrap_or(0);
        let bar = format!("{:.<30}", "#".repeat(filled));
        format!("{} [{bar}] {done} of {}", self.label, self.total)
    }
}

impl Drop for ProgressBar {
    fn drop(&mut self) {
        if self.is_shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_fills_up_to_its_end() {
        let bar = ProgressBar::new("soak, seconds", 60);
        assert_eq!(
            bar.line(20),
            "soak, seconds [##########....................] 20 of 60"
        );
        assert!(bar.line(90).contains(&format!("[{}]", "#".repeat(30))));
        assert!(ProgressBar::new("none", 0).line(0).starts_with("none [..."));
    }
}
