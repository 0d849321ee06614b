//! Redacts log output before it is written.

use std::io::{self, Write};
use std::ops::Range;

use super::{Redactor, mask_spans};

/// Maximum length of a buffered line. Longer lines are written in chunks, so that memory stays
/// bounded.
const MAX_LINE_BYTES: usize = 64 * 1024;

/// Number of bytes at the end of an over-long line that stay buffered, so that no token is split.
const LOOKBEHIND_BYTES: usize = 512;

/// A writer that redacts its input, created by [`Redactor::writer`].
///
/// It writes complete lines, so a secret that arrives in several writes is found. Only very long
/// lines are written in chunks. An incomplete last line is written when the writer is dropped.
/// `flush` does not write it, because the rest of a secret may follow.
pub struct RedactingWriter<W: Write> {
    redactor: Redactor,
    inner: W,
    pending: Vec<u8>,
}

impl<W: Write> RedactingWriter<W> {
    pub(super) fn new(redactor: Redactor, inner: W) -> Self {
        Self {
            redactor,
            inner,
            pending: Vec::new(),
        }
    }

    fn write_complete_lines(&mut self) -> io::Result<()> {
        let line_end = memchr::memrchr(b'\n', &self.pending).map_or(0, |at| at + 1);
        let over_long = self.pending.len() - line_end > MAX_LINE_BYTES;
        if line_end == 0 && !over_long {
            return Ok(());
        }
        let matcher = self.redactor.current_matcher();
        let spans = matcher.find_secrets(&self.pending);
        let limit = if over_long {
            self.pending.len() - LOOKBEHIND_BYTES
        } else {
            line_end
        };
        let cut = match matcher.safe_cut(&self.pending, &spans, limit, !over_long) {
            // A match longer than the buffer is not a registered secret; write it masked.
            0 if over_long => self.pending.len(),
            cut => cut,
        };
        self.write_redacted(cut, &spans)
    }

    /// Writes the first `cut` pending bytes with secrets masked; `spans` are the positions of
    /// secrets in all pending bytes.
    fn write_redacted(&mut self, cut: usize, spans: &[Range<usize>]) -> io::Result<()> {
        let rest = self.pending.split_off(cut);
        let ready = std::mem::replace(&mut self.pending, rest);
        let before_cut = spans.partition_point(|span| span.end <= cut);
        match spans.get(..before_cut) {
            None | Some([]) => self.inner.write_all(&ready),
            Some(spans) => self.inner.write_all(&mask_spans(&ready, spans)),
        }
    }
}

impl<W: Write> Write for RedactingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.pending.extend_from_slice(bytes);
        self.write_complete_lines()?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<W: Write> Drop for RedactingWriter<W> {
    fn drop(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        // Ignore errors: `drop` cannot report them.
        let spans = self.redactor.current_matcher().find_secrets(&self.pending);
        let _ = self.write_redacted(self.pending.len(), &spans);
        let _ = self.inner.flush();
    }
}
