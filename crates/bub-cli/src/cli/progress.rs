//! A progress bar for work that takes longer than a second. It appears on stderr, and only if that is a terminal that can
//! redraw a line.

use std::{fmt::Write as _, io::IsTerminal as _, sync::Arc, time::Duration};

use bub::prompt::print_stderr;
use bub_settings::Settings;
use bub_terminal::{split_at_width, tty};
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use super::{sanitize_line, terminal_mode::is_dumb};

/// Work that ends earlier shows no bar.
const BAR_DELAY: Duration = Duration::from_secs(1);
const REDRAW_INTERVAL: Duration = Duration::from_millis(100);
const BAR_COLUMNS: usize = 20;
const CLEAR_LINE: &str = "\r\x1b[K";

/// A progress bar. It disappears on drop.
pub(super) struct ProgressBar {
    state: Arc<Mutex<ProgressState>>,
    drawing: Option<JoinHandle<()>>,
}

struct ProgressState {
    label: &'static str,
    total: usize,
    /// Number of items that were started.
    started: usize,
    /// The item that was started last.
    item: String,
    is_shown: bool,
    is_finished: bool,
}

impl ProgressBar {
    /// Creates a bar for `total` items. Call it inside the runtime.
    pub(super) fn new(label: &'static str, total: usize, settings: &Settings) -> Self {
        let state = Arc::new(Mutex::new(ProgressState {
            label,
            total,
            started: 0,
            item: String::new(),
            is_shown: false,
            is_finished: false,
        }));
        let can_redraw = std::io::stderr().is_terminal() && !is_dumb(settings.environment());
        let drawing = can_redraw.then(|| {
            let state = Arc::clone(&state);
            tokio::spawn(async move {
                tokio::time::sleep(BAR_DELAY).await;
                loop {
                    state.lock().draw();
                    tokio::time::sleep(REDRAW_INTERVAL).await;
                }
            })
        });
        Self { state, drawing }
    }

    /// Starts the next item.
    pub(super) fn advance(&self, item: &str) {
        let mut state = self.state.lock();
        state.started += 1;
        if self.drawing.is_some() {
            item.clone_into(&mut state.item);
        }
    }

    /// Sets the number of items that are done.
    pub(super) fn set(&self, done: usize) {
        self.state.lock().started = done;
    }
}

impl ProgressState {
    fn draw(&mut self) {
        if self.is_finished {
            return;
        }
        self.is_shown = true;
        let line = self.line(tty::size().columns);
        print_stderr(&format!("{CLEAR_LINE}{line}"));
    }

    /// Returns the bar for a terminal of this width.
    fn line(&self, width: usize) -> String {
        let filled = (self.started * BAR_COLUMNS).checked_div(self.total);
        let filled = filled.unwrap_or(0).min(BAR_COLUMNS);
        let mut line = format!(
            "{} [{}{}] {} of {}",
            self.label,
            "#".repeat(filled),
            ".".repeat(BAR_COLUMNS - filled),
            self.started,
            self.total
        );
        if !self.item.is_empty() {
            let _ = write!(line, ": {}", sanitize_line(&self.item));
        }
        split_at_width(&line, width.saturating_sub(1)).0.to_owned()
    }
}

impl Drop for ProgressBar {
    fn drop(&mut self) {
        if let Some(drawing) = self.drawing.take() {
            drawing.abort();
            let mut state = self.state.lock();
            // The task may wait for the lock.
            state.is_finished = true;
            if state.is_shown {
                print_stderr(CLEAR_LINE);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_fits_into_the_terminal() {
        let state = ProgressState {
            label: "checking",
            total: 4,
            started: 1,
            item: "a\x1b[2J tape".to_owned(),
            is_shown: false,
            is_finished: false,
        };
        let line = "checking [#####...............] 1 of 4: a␛[2J tape";
        assert_eq!(state.line(200), line);
        assert_eq!(state.line(40), "checking [#####...............] 1 of 4:");
        let empty = ProgressState {
            total: 0,
            item: String::new(),
            ..state
        };
        assert_eq!(empty.line(80), "checking [....................] 1 of 0");
    }

    #[test]
    fn the_bar_shows_how_much_is_done() {
        let state = ProgressState {
            label: "indexing MB",
            total: 8,
            started: 0,
            item: String::new(),
            is_shown: false,
            is_finished: false,
        };
        let progress = ProgressBar {
            state: Arc::new(Mutex::new(state)),
            drawing: None,
        };
        progress.set(6);
        let line = progress.state.lock().line(80);
        assert_eq!(line, "indexing MB [###############.....] 6 of 8");
    }
}
