//! Copies the stderr of a plugin to the log, with the name of the plugin and a rate limit.

use std::{
    io::{BufRead, BufReader, PipeReader, Read},
    time::{Duration, Instant},
};

use bub_kernel::Result;
use bub_settings::Redactor;

/// Maximum length of a logged line in bytes. A longer line is logged in several parts.
const MAX_LINE_BYTES: u64 = 4 * 1024;
/// Maximum number of stderr lines logged per second. Further lines are only counted.
const MAX_LINES_PER_SECOND: u32 = 200;
/// Maximum number of invalid protocol lines logged per minute.
const MAX_INVALID_LINES_PER_MINUTE: u32 = 3;

/// Starts a thread that logs the lines that a plugin writes to stderr.
pub(crate) fn spawn_stderr_logger(
    plugin: &str,
    errors: PipeReader,
    redactor: Redactor,
) -> Result<()> {
    let name = plugin.to_owned();
    std::thread::Builder::new()
        .name("plugin-log".to_owned())
        .spawn(move || log_lines(&name, errors, &redactor))?;
    Ok(())
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

/// Logs the lines of a plugin's stderr until it is closed.
fn log_lines(plugin: &str, errors: PipeReader, redactor: &Redactor) {
    let mut reader = BufReader::new(errors);
    let mut line = Vec::new();
    let mut limiter = LogRateLimiter::for_log_lines();
    loop {
        line.clear();
        let mut part = reader.by_ref().take(MAX_LINE_BYTES);
        let Ok(1..) = part.read_until(b'\n', &mut line) else {
            break;
        };
        if limiter.allow_line(plugin) {
            let text = String::from_utf8_lossy(&line);
            let line = redactor.redact(text.trim_end());
            tracing::info!(plugin, %line, "plugin.stderr");
        }
    }
    limiter.log_suppressed(plugin);
}
