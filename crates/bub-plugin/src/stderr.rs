//! What a plugin writes to its standard error goes to our log, with its name, and not without end.

use std::{
    io::{BufRead, BufReader, PipeReader, Read},
    time::{Duration, Instant},
};

use bub_kernel::Result;
use bub_settings::Redactor;

/// A longer line is logged in pieces.
const MAX_LINE_BYTES: u64 = 4 * 1024;
/// So many lines a second are logged; the others are counted.
const MAX_LINES_PER_SECOND: u32 = 200;
/// So many lines a minute are logged that are no messages.
const MAX_INVALID_LINES_PER_MINUTE: u32 = 3;

/// Starts logging.
pub(crate) fn log(plugin: &str, errors: PipeReader, redactor: Redactor) -> Result<()> {
    let name = plugin.to_owned();
    std::thread::Builder::new()
        .name("plugin-log".to_owned())
        .spawn(move || copy(&name, errors, &redactor))?;
    Ok(())
}

/// Lets through so many lines in a while, and counts the others.
#[derive(Debug)]
pub(crate) struct LogRateLimiter {
    what: &'static str,
    span: Duration,
    most: u32,
    since: Instant,
    lines: u32,
}

impl LogRateLimiter {
    /// For what a plugin means to say.
    pub(crate) fn of_lines() -> Self {
        Self::new(
            "plugin.stderr",
            Duration::from_secs(1),
            MAX_LINES_PER_SECOND,
        )
    }

    /// For what means nothing.
    pub(crate) fn of_garbage() -> Self {
        Self::new(
            "plugin.invalid_line",
            Duration::from_mins(1),
            MAX_INVALID_LINES_PER_MINUTE,
        )
    }

    fn new(what: &'static str, span: Duration, most: u32) -> Self {
        Self {
            what,
            span,
            most,
            since: Instant::now(),
            lines: 0,
        }
    }

    /// Whether one more line may be logged.
    pub(crate) fn allow(&mut self, plugin: &str) -> bool {
        if self.since.elapsed() > self.span {
            self.log_suppressed(plugin);
            *self = Self::new(self.what, self.span, self.most);
        }
        self.lines = self.lines.saturating_add(1);
        self.lines <= self.most
    }

    fn log_suppressed(&self, plugin: &str) {
        if let Some(skipped @ 1..) = self.lines.checked_sub(self.most) {
            let event = self.what;
            tracing::warn!(plugin, event, lines = skipped, "plugin.log_suppressed");
        }
    }
}

fn copy(plugin: &str, errors: PipeReader, redactor: &Redactor) {
    let mut reader = BufReader::new(errors);
    let mut line = Vec::new();
    let mut meter = LogRateLimiter::of_lines();
    loop {
        line.clear();
        match reader
            .by_ref()
            .take(MAX_LINE_BYTES)
            .read_until(b'\n', &mut line)
        {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        if meter.allow(plugin) {
            let text = String::from_utf8_lossy(&line);
            let line = redactor.redact(text.trim_end());
            tracing::info!(plugin, %line, "plugin.stderr");
        }
    }
    meter.log_suppressed(plugin);
}
