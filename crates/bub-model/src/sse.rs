//! Server-sent events out of byte chunks.
//!
//! Follows the HTML standard where model servers do, and is lenient where they are: any of the three
//! line endings, comments, a byte order mark, several `data` lines, a last event without its blank
//! line. Bytes stay bytes: a character may be cut by a chunk, and whether a payload is valid text is
//! the business of whoever parses it, so that damaged tool arguments are never silently patched.

use memchr::{memchr, memchr2};

/// One event. `data` is never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SseEvent<'a> {
    /// The `event` field; empty when there was none.
    pub event: &'a [u8],
    /// The `data` lines, joined by newlines.
    pub data: &'a [u8],
}

/// Why a stream of events cannot be read on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SseError {
    /// An event or a line longer than the limit.
    #[error("a single event of the stream exceeds {limit} bytes")]
    TooLong {
        /// The limit that was exceeded.
        limit: usize,
    },
}

/// The default limit of one event: above what audio or an image in one piece takes.
pub const MAX_EVENT_BYTES: usize = 16 * 1024 * 1024;

/// Incremental decoder. Memory is one event at most.
#[derive(Clone, Debug)]
pub struct SseDecoder {
    /// The beginning of a line whose end has not come yet.
    partial: Vec<u8>,
    event: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    /// The last byte was a CR: an LF that follows belongs to it.
    after_cr: bool,
    first_line: bool,
    limit: usize,
}

impl Default for SseDecoder {
    fn default() -> Self {
        Self::with_limit(MAX_EVENT_BYTES)
    }
}

impl SseDecoder {
    /// A decoder with the default limit.
    pub fn new() -> Self {
        Self::default()
    }

    /// A decoder that refuses events of more than `limit` bytes.
    pub fn with_limit(limit: usize) -> Self {
        Self {
            partial: Vec::new(),
            event: Vec::new(),
            data: Vec::new(),
            has_data: false,
            after_cr: false,
            first_line: true,
            limit,
        }
    }

    /// Takes a chunk in and hands every event that is now complete to `sink`.
    ///
    /// Stops at the first error, of the stream or of the sink; the decoder is of no use after it.
    pub fn push<E: From<SseError>>(
        &mut self,
        mut chunk: &[u8],
        mut sink: impl FnMut(SseEvent<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        while !chunk.is_empty() {
            if std::mem::take(&mut self.after_cr)
                && let Some(rest) = chunk.strip_prefix(b"\n")
            {
                chunk = rest;
                continue;
            }
            let Some((head, end, rest)) = split_line(chunk) else {
                self.check(self.partial.len() + chunk.len())?;
                self.partial.extend_from_slice(chunk);
                return Ok(());
            };
            chunk = rest;
            self.after_cr = end == b'\r';
            if self.partial.is_empty() {
                self.line(head, &mut sink)?;
            } else {
                self.check(self.partial.len() + head.len())?;
                let mut line = std::mem::take(&mut self.partial);
                line.extend_from_slice(head);
                self.line(&line, &mut sink)?;
                line.clear();
                self.partial = line;
            }
        }
        Ok(())
    }

    /// The stream has ended: hands on an event that only lacks its blank line.
    pub fn finish<E: From<SseError>>(
        &mut self,
        mut sink: impl FnMut(SseEvent<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let line = std::mem::take(&mut self.partial);
        if !line.is_empty() {
            self.line(&line, &mut sink)?;
        }
        self.dispatch(&mut sink)
    }

    fn line<E: From<SseError>>(
        &mut self,
        mut line: &[u8],
        sink: &mut impl FnMut(SseEvent<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        if std::mem::take(&mut self.first_line) {
            line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        }
        if line.is_empty() {
            return self.dispatch(sink);
        }
        let (field, value) = match memchr(b':', line).and_then(|at| line.split_at_checked(at)) {
            Some((field, value)) => (field, value.get(1..).unwrap_or_default()),
            None => (line, &[][..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"data" => self.data_line(value)?,
            b"event" => {
                self.check(value.len())?;
                self.event.clear();
                self.event.extend_from_slice(value);
            }
            // A comment has an empty name. `id` and `retry` are for reconnecting, which no model
            // server supports; anything else is to be ignored by the standard.
            _ => {}
        }
        Ok(())
    }

    fn data_line(&mut self, value: &[u8]) -> Result<(), SseError> {
        self.check(self.data.len() + value.len())?;
        if self.has_data {
            self.data.push(b'\n');
        }
        self.has_data = true;
        self.data.extend_from_slice(value);
        Ok(())
    }

    fn dispatch<E>(
        &mut self,
        sink: &mut impl FnMut(SseEvent<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.has_data = false;
        let result = if self.data.is_empty() {
            Ok(())
        } else {
            sink(SseEvent {
                event: &self.event,
                data: &self.data,
            })
        };
        self.data.clear();
        self.event.clear();
        // One huge event must not hold its memory for the rest of the stream.
        self.data.shrink_to(RETAINED_CAPACITY);
        self.partial.shrink_to(RETAINED_CAPACITY);
        result
    }

    fn check(&self, length: usize) -> Result<(), SseError> {
        if length > self.limit {
            Err(SseError::TooLong { limit: self.limit })
        } else {
            Ok(())
        }
    }
}

/// Capacity worth keeping between events.
const RETAINED_CAPACITY: usize = 64 * 1024;

fn split_line(chunk: &[u8]) -> Option<(&[u8], u8, &[u8])> {
    let (head, tail) = chunk.split_at_checked(memchr2(b'\n', b'\r', chunk)?)?;
    let (end, rest) = tail.split_first()?;
    Some((head, *end, rest))
}

#[cfg(test)]
mod tests;
