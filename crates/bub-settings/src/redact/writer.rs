//! Redacts output before it is written.

use std::io::{self, Write};

use super::StreamRedactor;

/// A writer that redacts its input, created by [`Redactor::writer`](super::Redactor::writer).
///
/// Text that may be the beginning of a secret is written when more text decides, or when the writer
/// is dropped. `flush` does not write it, because the rest of a secret may follow.
pub struct RedactingWriter<W: Write> {
    stream: StreamRedactor,
    inner: W,
}

impl<W: Write> RedactingWriter<W> {
    pub(super) fn new(stream: StreamRedactor, inner: W) -> Self {
        Self { stream, inner }
    }
}

impl<W: Write> Write for RedactingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.inner.write_all(&self.stream.push(bytes))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<W: Write> Drop for RedactingWriter<W> {
    fn drop(&mut self) {
        // Ignore errors: `drop` cannot report them.
        let _ = self.inner.write_all(&self.stream.flush());
        let _ = self.inner.flush();
    }
}
