//! What a plugin writes to its standard error goes to our log, with its name, and not without end.

use std::{
    io::{BufRead, BufReader, PipeReader, Read},
    time::{Duration, Instant},
};

use bub_kernel::Result;
use bub_settings::Redactor;

/// A longer line is logged in pieces.
const MOST_LINE: u64 = 4 * 1024;
/// So many lines a second are logged; the others are counted.
const MOST_LINES: u32 = 200;

/// Starts logging.
pub(crate) fn log(plugin: &str, errors: PipeReader, redactor: Redactor) -> Result<()> {
    let name = plugin.to_owned();
    std::thread::Builder::new()
        .name("plugin-log".to_owned())
        .spawn(move || copy(&name, errors, &redactor))?;
    Ok(())
}

/// Lets through so many lines a second, and counts the others.
#[derive(Debug)]
pub(crate) struct Meter {
    since: Instant,
    lines: u32,
}

impl Meter {
    pub(crate) fn new() -> Self {
        Self { since: Instant::now(), lines: 0 }
    }

    /// Whether one more line may be logged.
    pub(crate) fn lets_through(&mut self, plugin: &str) -> bool {
        if self.since.elapsed() > Duration::from_secs(1) {
            self.tell_skipped(plugin);
            *self = Self::new();
        }
        self.lines = self.lines.saturating_add(1);
        self.lines <= MOST_LINES
    }

    fn tell_skipped(&self, plugin: &str) {
        if let Some(skipped @ 1..) = self.lines.checked_sub(MOST_LINES) {
            tracing::warn!("plugin.stderr plugin={plugin} {skipped} more lines in a second were left out");
        }
    }
}

fn copy(plugin: &str, errors: PipeReader, redactor: &Redactor) {
    let mut reader = BufReader::new(errors);
    let mut line = Vec::new();
    let mut meter = Meter::new();
    loop {
        line.clear();
        match reader.by_ref().take(MOST_LINE).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        if meter.lets_through(plugin) {
            let text = String::from_utf8_lossy(&line);
            tracing::info!("plugin.stderr plugin={plugin} {}", redactor.redact(text.trim_end()));
        }
    }
    meter.tell_skipped(plugin);
}
