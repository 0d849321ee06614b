//! Copies the stderr of a plugin to the log, with the name of the plugin and a rate limit.

use std::{
    collections::VecDeque,
    io::{BufRead, BufReader, PipeReader, Read},
    sync::Arc,
    time::{Duration, Instant},
};

use bub_kernel::Result;
use bub_settings::Redactor;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::peer::block_until;

/// Maximum length of a logged line in bytes. A longer line is logged in several parts.
const MAX_LINE_BYTES: u64 = 4 * 1024;
/// Maximum number of stderr lines logged per second. Further lines are only counted.
const MAX_LINES_PER_SECOND: u32 = 200;
/// Number of stderr lines that an error about the start of a plugin contains.
const MAX_LAST_LINES: usize = 4;
/// Maximum number of invalid protocol lines logged per minute.
const MAX_INVALID_LINES_PER_MINUTE: u32 = 3;

/// The last lines that a plugin wrote to stderr.
pub(crate) struct LastLines {
    lines: Arc<Mutex<VecDeque<String>>>,
    /// Closed when the plugin has closed its stderr.
    closed: oneshot::Receiver<()>,
}

impl LastLines {
    /// Adds the last lines to an error text. Waits until the plugin has closed its stderr, but not longer than
    /// `timeout`.
    pub(crate) fn append_to(self, text: &str, timeout: Duration) -> String {
        let _ = block_until(self.closed, Instant::now() + timeout);
        let lines = self.lines.lock();
        let lines: Vec<_> = lines.iter().map(|line| line.trim()).collect();
        match lines.join(" | ").as_str() {
            "" => text.to_owned(),
            lines => format!("{text}; last lines of its stderr: {lines}"),
        }
    }
}

/// Starts a thread that logs the lines that a plugin writes to stderr.
pub(crate) fn spawn_stderr_logger(
    plugin: &str,
    errors: PipeReader,
    redactor: Redactor,
) -> Result<LastLines> {
    let name = plugin.to_owned();
    let lines = Arc::<Mutex<VecDeque<String>>>::default();
    let (close_sender, closed) = oneshot::channel();
    let logged_lines = Arc::clone(&lines);
    let log = move || {
        log_lines(&name, errors, &redactor, &logged_lines);
        drop(close_sender);
    };
    std::thread::Builder::new()
        .name("plugin-log".to_owned())
        .spawn(log)?;
    Ok(LastLines { lines, closed })
}

/// Limits the log lines of a plugin per interval and counts the suppressed lines.
#[derive(Debug)]
pub(crate) struct LogRateLimiter {
    event: &'static str,
    interval: Duration,
    max_lines: u32,
    interval_start: Instant,
    lines: u32,
}

impl LogRateLimiter {
    /// Creates a limiter for the stderr lines and `log` notifications of a plugin.
    pub(crate) fn for_log_lines() -> Self {
        let interval = Duration::from_secs(1);
        Self::new("plugin.stderr", interval, MAX_LINES_PER_SECOND)
    }

    /// Creates a limiter for lines that are not valid protocol messages.
    pub(crate) fn for_invalid_lines() -> Self {
        let interval = Duration::from_mins(1);
        Self::new(
            "plugin.invalid_line",
            interval,
            MAX_INVALID_LINES_PER_MINUTE,
        )
    }

    fn new(event: &'static str, interval: Duration, max_lines: u32) -> Self {
        Self {
            event,
            interval,
            max_lines,
            interval_start: Instant::now(),
            lines: 0,
        }
    }

    /// Counts a line and returns whether it may be logged. Starts a new interval if the current one is over.
    pub(crate) fn allow_line(&mut self, plugin: &str) -> bool {
        if self.interval_start.elapsed() > self.interval {
            self.log_suppressed(plugin);
            *self = Self::new(self.event, self.interval, self.max_lines);
        }
        self.lines = self.lines.saturating_add(1);
        self.lines <= self.max_lines
    }

    fn log_suppressed(&self, plugin: &str) {
        if let Some(skipped @ 1..) = self.lines.checked_sub(self.max_lines) {
            let event = self.event;
            tracing::warn!(plugin, event, lines = skipped, "plugin.log_suppressed");
        }
    }
}

/// Logs the lines of a plugin's stderr until it is closed. Keeps the last ones in `last_lines`.
fn log_lines(
    plugin: &str,
    errors: PipeReader,
    redactor: &Redactor,
    last_lines: &Mutex<VecDeque<String>>,
) {
    let mut reader = BufReader::new(errors);
    let mut line = Vec::new();
    let mut limiter = LogRateLimiter::for_log_lines();
    let mut redactor = redactor.stream();
    loop {
        line.clear();
        let mut part = reader.by_ref().take(MAX_LINE_BYTES);
        let Ok(1..) = part.read_until(b'\n', &mut line) else {
            break;
        };
        let mut redacted = redactor.push(&line);
        // A part of a longer line may end within a secret.
        if line.ends_with(b"\n") || (line.len() as u64) < MAX_LINE_BYTES {
            redacted.extend(redactor.flush());
        }
        if limiter.allow_line(plugin) {
            let text = String::from_utf8_lossy(&redacted);
            let line = text.trim_end();
            tracing::info!(plugin, %line, "plugin.stderr");
            let mut last_lines = last_lines.lock();
            if last_lines.len() == MAX_LAST_LINES {
                last_lines.pop_front();
            }
            last_lines.push_back(line.to_owned());
        }
    }
    limiter.log_suppressed(plugin);
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    // A long line is logged in parts, and a part may end within a secret.
    #[test]
    fn a_secret_at_the_end_of_a_part_of_a_line_is_redacted() {
        let redactor = Redactor::new();
        redactor.register(&"swordfish".into());
        let (reader, mut writer) = std::io::pipe().unwrap();
        let padding = "x".repeat(4 * 1024 - 5);
        write!(writer, "{padding}swordfish\nthe sword\nand s").unwrap();
        drop(writer);
        let lines = Mutex::default();
        log_lines("lab", reader, &redactor, &lines);
        let lines = lines.into_inner();
        assert_eq!(lines, [padding.as_str(), "***", "the sword", "and s"]);
    }
}
