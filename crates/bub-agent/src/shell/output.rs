//! The output of a command: bounded, decoded as it arrives, and read by character offset.

use std::fmt::Write;

use bub_settings::StreamRedactor;
use tokio::sync::mpsc::Sender;

/// Maximum size of `head`, the beginning of the output that is kept, and of `tail`, the end that is kept.
const MAX_KEPT_BYTES: usize = 512 * 1024;
/// How many bytes `tail` may exceed `MAX_KEPT_BYTES` before it is trimmed. The margin avoids a copy for every block.
const TRIM_MARGIN_BYTES: usize = 64 * 1024;

/// The output of a command, with secrets redacted as it arrives, so that no part of it can be read without. Keeps the
/// beginning and the end; the middle of a long output is omitted.
#[derive(Debug)]
pub(crate) struct OutputBuffer {
    redactor: StreamRedactor,
    head: String,
    tail: String,
    /// The size of the omitted text between `head` and `tail`.
    omitted_bytes: usize,
    omitted_chars: usize,
    /// The first bytes of a character that has not arrived completely.
    incomplete: Vec<u8>,
    /// Receives the text of `head` as it arrives.
    live: Option<Sender<String>>,
}

impl OutputBuffer {
    /// Creates an empty buffer. It sends the beginning of the output, up to `MAX_KEPT_BYTES`, to `live` as it arrives.
    pub(crate) fn new(redactor: StreamRedactor, live: Option<Sender<String>>) -> Self {
        Self {
            redactor,
            head: String::new(),
            tail: String::new(),
            omitted_bytes: 0,
            omitted_chars: 0,
            incomplete: Vec::new(),
            live,
        }
    }

    /// Adds a block from the pipe. The block may end within a character.
    pub(crate) fn push(&mut self, block: &[u8]) {
        let mut bytes = std::mem::take(&mut self.incomplete);
        bytes.extend_from_slice(block);
        let mut chunks = bytes.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            self.append_text(chunk.valid());
            let is_last = chunks.peek().is_none();
            // The end of a block may be the first part of a character.
            let is_incomplete =
                |bytes| str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none());
            if is_last && is_incomplete(chunk.invalid()) {
                chunk.invalid().clone_into(&mut self.incomplete);
            } else if !chunk.invalid().is_empty() {
                self.append_text("\u{FFFD}");
            }
        }
    }

    /// Ends the output: replaces an incomplete last character and frees unused memory.
    pub(crate) fn finish(&mut self) {
        if !std::mem::take(&mut self.incomplete).is_empty() {
            self.append_text("\u{FFFD}");
        }
        self.flush();
        self.trim_tail();
        self.head.shrink_to_fit();
        self.tail.shrink_to_fit();
    }

    /// Adds the text that is held back because it may be the beginning of a secret.
    pub(crate) fn flush(&mut self) {
        let text = self.redactor.flush_str();
        self.append_redacted(&text);
    }

    /// Returns the number of characters of the output, including omitted ones.
    pub(crate) fn char_count(&self) -> usize {
        self.head.chars().count() + self.omitted_chars + self.tail.chars().count()
    }

    /// Returns the complete output. A note replaces omitted text.
    pub(crate) fn full_text(&mut self) -> String {
        self.flush();
        self.slice(0, self.char_count())
    }

    /// Returns the characters from `start` up to, but not including, `end`.
    pub(crate) fn slice(&self, start: usize, end: usize) -> String {
        let mut slice = slice_chars(&self.head, start, end).to_owned();
        let gap_start = self.head.chars().count();
        let gap_end = gap_start + self.omitted_chars;
        if self.omitted_chars > 0 && start < gap_end && end > gap_start {
            let _ = write!(slice, "\n… {} bytes omitted …\n", self.omitted_bytes);
        }
        let (start, end) = (start.saturating_sub(gap_end), end.saturating_sub(gap_end));
        slice.push_str(slice_chars(&self.tail, start, end));
        slice
    }

    fn append_text(&mut self, text: &str) {
        let text = self.redactor.push_str(text);
        self.append_redacted(&text);
    }

    /// Appends text to the head until it is full, then to the tail.
    fn append_redacted(&mut self, text: &str) {
        // Once the tail has text, the head gets no more, even if it is not full.
        let available = if self.tail.is_empty() {
            MAX_KEPT_BYTES.saturating_sub(self.head.len())
        } else {
            0
        };
        let (first, rest) = text.split_at(text.floor_char_boundary(available));
        self.head.push_str(first);
        if let Some(live) = self.live.take_if(|_| !first.is_empty())
            && live.try_send(first.to_owned()).is_ok()
        {
            // If sending fails, the receiver is closed or too slow. It gets the rest with the result of the command.
            self.live = Some(live);
        }
        self.tail.push_str(rest);
        if self.tail.len() > MAX_KEPT_BYTES + TRIM_MARGIN_BYTES {
            self.trim_tail();
        }
    }

    fn trim_tail(&mut self) {
        let text = &mut self.tail;
        let excess = text.ceil_char_boundary(text.len().saturating_sub(MAX_KEPT_BYTES));
        self.omitted_chars += text.drain(..excess).as_str().chars().count();
        self.omitted_bytes += excess;
    }
}

/// Returns the characters from `start` up to, but not including, `end`.
fn slice_chars(text: &str, start: usize, end: usize) -> &str {
    let byte_index = |char| match text.char_indices().nth(char) {
        Some((byte, _)) => byte,
        None => text.len(),
    };
    text.get(byte_index(start)..byte_index(end))
        .unwrap_or_default()
}
