//! Writes answers to stdout while they stream.

use std::io::{self, Write as _};

use bub_kernel::{Error, Result};
use bub_settings::{RedactingWriter, Redactor};

use crate::sanitize::Sanitizer;

/// Writes redacted answers to stdout. A closed pipe is not an error.
pub(crate) struct StdoutWriter {
    redactor: Redactor,
    out: Option<RedactingWriter<io::Stdout>>,
    /// Whitespace before the first word. It is dropped if no word follows.
    blank: String,
    /// `None` if answers are not sanitized.
    sanitizer: Option<Sanitizer>,
    is_open: bool,
}

impl StdoutWriter {
    /// Creates a writer. With `is_raw`, text is not sanitized.
    pub(crate) fn new(redactor: Redactor, is_raw: bool) -> Self {
        Self {
            redactor,
            out: None,
            blank: String::new(),
            sanitizer: (!is_raw).then(Sanitizer::default),
            is_open: false,
        }
    }

    /// Writes a part of an answer. Whitespace before the first word is held back until the word arrives.
    pub(crate) fn write_text(&mut self, text: &str) -> Result<()> {
        self.blank.push_str(text);
        if text.is_empty() || (self.out.is_none() && text.trim().is_empty()) {
            return Ok(());
        }
        self.is_open = !text.ends_with('\n');
        let mut text = std::mem::take(&mut self.blank);
        if let Some(sanitizer) = &mut self.sanitizer {
            text = sanitizer.sanitize(&text).into_owned();
        }
        let redactor = &self.redactor;
        let out = self
            .out
            .get_or_insert_with(|| redactor.writer(io::stdout()));
        ignore_broken_pipe(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
    }

    /// Ends the current line of output, if one is open, and flushes stdout.
    pub(crate) fn end_line(&mut self) -> Result<()> {
        self.blank.clear();
        let Some(mut out) = self.out.take() else {
            return Ok(());
        };
        if std::mem::take(&mut self.is_open) {
            ignore_broken_pipe(out.write_all(b"\n"))?;
        }
        drop(out);
        ignore_broken_pipe(io::stdout().flush())
    }
}

/// Treats a closed pipe as success.
pub(crate) fn ignore_broken_pipe(outcome: io::Result<()>) -> Result<()> {
    match outcome {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::unknown(format!("cannot write to stdout: {error}")))
        }
        _ => Ok(()),
    }
}
