//! Incremental decoder for server-sent events.
//!
//! The decoder follows the HTML standard and accepts what model servers send: all three line endings (CR, LF and CRLF),
//! comments, a byte order mark, several `data` lines, and a last event without a blank line. It passes on bytes
//! and does not decode UTF-8, because replacing invalid bytes would silently alter the arguments of tool calls. The
//! consumer validates the bytes.

use memchr::{memchr, memchr2};

/// A server-sent event. `data` is never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SseEvent<'a> {
    /// The `event` field; empty if the event has none.
    pub event: &'a [u8],
    /// The `data` lines, joined with newlines.
    pub data: &'a [u8],
}

/// Error of decoding a stream of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SseError {
    /// An event or a line is longer than the limit.
    #[error(
        "answer too large: an event of the stream exceeds {limit} bytes; ask for a shorter answer"
    )]
    TooLong {
        /// The limit in bytes.
        limit: usize,
    },
}

/// Default limit of the size of an event: 16 MiB, enough for audio or an image in a single event.
pub const MAX_EVENT_BYTES: usize = 16 * 1024 * 1024;

/// Incremental decoder for server-sent events. It buffers at most one event.
#[derive(Clone, Debug)]
pub struct SseDecoder {
    /// Beginning of an incomplete line.
    partial: Vec<u8>,
    event: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    /// Whether the last byte was a CR, so that a following LF belongs to the same line ending.
    after_cr: bool,
    is_first_line: bool,
    limit: usize,
}

impl Default for SseDecoder {
    fn default() -> Self {
        Self::with_limit(MAX_EVENT_BYTES)
    }
}

impl SseDecoder {
    /// Creates a decoder with the default limit.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a decoder that rejects events of more than `limit` bytes.
    pub fn with_limit(limit: usize) -> Self {
        Self {
            partial: Vec::new(),
            event: Vec::new(),
            data: Vec::new(),
            has_data: false,
            after_cr: false,
            is_first_line: true,
            limit,
        }
    }

    /// Decodes a chunk and passes every complete event to `sink`.
    ///
    /// # Errors
    ///
    /// Stops at the first error of the stream or of the sink. Do not use the decoder after an error.
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
                self.check_limit(self.partial.len() + chunk.len())?;
                self.partial.extend_from_slice(chunk);
                return Ok(());
            };
            chunk = rest;
            self.after_cr = end == b'\r';
            if self.partial.is_empty() {
                self.process_line(head, &mut sink)?;
            } else {
                self.check_limit(self.partial.len() + head.len())?;
                let mut line = std::mem::take(&mut self.partial);
                line.extend_from_slice(head);
                self.process_line(&line, &mut sink)?;
                line.clear();
                self.partial = line;
            }
        }
        Ok(())
    }

    /// Ends the stream. Passes a last event without a blank line to `sink`.
    pub fn finish<E: From<SseError>>(
        &mut self,
        mut sink: impl FnMut(SseEvent<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let line = std::mem::take(&mut self.partial);
        if !line.is_empty() {
            self.process_line(&line, &mut sink)?;
        }
        self.dispatch_event(&mut sink)
    }

    fn process_line<E: From<SseError>>(
        &mut self,
        mut line: &[u8],
        sink: &mut impl FnMut(SseEvent<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        if std::mem::take(&mut self.is_first_line) {
            line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        }
        if line.is_empty() {
            return self.dispatch_event(sink);
        }
        let (field, value) = match memchr(b':', line).and_then(|at| line.split_at_checked(at)) {
            Some((field, value)) => (field, value.get(1..).unwrap_or_default()),
            None => (line, &[][..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"data" => self.push_data(value)?,
            b"event" => {
                self.check_limit(value.len())?;
                self.event.clear();
                self.event.extend_from_slice(value);
            }
            // A comment line has an empty field name. `id` and `retry` are for reconnecting, which no model server
            // supports. The standard says to ignore other fields.
            _ => {}
        }
        Ok(())
    }

    fn push_data(&mut self, value: &[u8]) -> Result<(), SseError> {
        self.check_limit(self.data.len() + value.len())?;
        if self.has_data {
            self.data.push(b'\n');
        }
        self.has_data = true;
        self.data.extend_from_slice(value);
        Ok(())
    }

    fn dispatch_event<E>(
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
        // Free the memory of a very large event now, and not at the end of the stream.
        self.data.shrink_to(RETAINED_CAPACITY);
        self.partial.shrink_to(RETAINED_CAPACITY);
        result
    }

    fn check_limit(&self, length: usize) -> Result<(), SseError> {
        if length > self.limit {
            Err(SseError::TooLong { limit: self.limit })
        } else {
            Ok(())
        }
    }
}

/// Maximum buffer capacity in bytes that is kept between events.
const RETAINED_CAPACITY: usize = 64 * 1024;

fn split_line(chunk: &[u8]) -> Option<(&[u8], u8, &[u8])> {
    let (head, tail) = chunk.split_at_checked(memchr2(b'\n', b'\r', chunk)?)?;
    let (end, rest) = tail.split_first()?;
    Some((head, *end, rest))
}

#[cfg(test)]
mod tests;
