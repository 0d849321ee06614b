//! The output of a command: bounded, decoded as it arrives, and read by character offset.

use std::fmt::Write;

use tokio::sync::mpsc::Sender;

/// Maximum size of `head`, the beginning of the output that is kept, and of `tail`, the end that is kept.
const MAX_KEPT_BYTES: usize = 512 * 1024;
/// How many bytes `tail` may exceed `MAX_KEPT_BYTES` before it is trimmed. The margin avoids a copy for every block.
const TRIM_MARGIN_BYTES: usize = 64 * 1024;

/// The output of a command. Keeps the beginning and the end; the middle of a long output is omitted.
#[derive(Debug, Default)]
pub(super) struct OutputBuffer {
    head: CountedText,
    tail: CountedText,
    /// The size of the omitted text between `head` and `tail`.
    omitted_bytes: usize,
    omitted_chars: usize,
    /// The first bytes of a character that has not arrived completely.
    incomplete: Vec<u8>,
    /// Receives the text of `head` as it arrives.
    live: Option<Sender<String>>,
}

#[derive(Debug, Default)]
struct CountedText {
    text: String,
    chars: usize,
}

impl OutputBuffer {
    /// Creates an empty buffer. It sends the beginning of the output, up to `MAX_KEPT_BYTES`, to `live` as it arrives.
    pub(super) fn with_live_output(live: Option<Sender<String>>) -> Self {
        Self {
            live,
            ..Self::default()
        }
    }

    /// Adds a block from the pipe. The block may end within a character.
    pub(super) fn push(&mut self, block: &[u8]) {
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
    pub(super) fn finish(&mut self) {
        if !std::mem::take(&mut self.incomplete).is_empty() {
            self.append_text("\u{FFFD}");
        }
        self.trim_tail();
        self.head.text.shrink_to_fit();
        self.tail.text.shrink_to_fit();
    }

    /// Returns the number of characters of the output, including omitted ones.
    pub(super) fn char_count(&self) -> usize {
        self.head.chars + self.omitted_chars + self.tail.chars
    }

    /// Returns the complete output. A note replaces omitted text.
    pub(super) fn full_text(&self) -> String {
        self.slice(0, self.char_count())
    }

    /// Returns the characters from `start` up to, but not including, `end`.
    pub(super) fn slice(&self, start: usize, end: usize) -> String {
        let mut slice = self.head.slice(start, end).to_owned();
        let gap_end = self.head.chars + self.omitted_chars;
        if self.omitted_chars > 0 && start < gap_end && end > self.head.chars {
            let _ = write!(slice, "\n… {} bytes omitted …\n", self.omitted_bytes);
        }
        let (start, end) = (start.saturating_sub(gap_end), end.saturating_sub(gap_end));
        slice.push_str(self.tail.slice(start, end));
        slice
    }

    /// Appends text to the head until it is full, then to the tail.
    fn append_text(&mut self, text: &str) {
        // Once the tail has text, the head gets no more, even if it is not full.
        let available = if self.tail.chars == 0 {
            MAX_KEPT_BYTES.saturating_sub(self.head.text.len())
        } else {
            0
        };
        let (first, rest) = text.split_at(text.floor_char_boundary(available));
        self.head.push(first);
        if let Some(live) = self.live.take_if(|_| !first.is_empty())
            && live.try_send(first.to_owned()).is_ok()
        {
            // If sending fails, the receiver is closed or too slow. It gets the rest with the result of the command.
            self.live = Some(live);
        }
        self.tail.push(rest);
        if self.tail.text.len() > MAX_KEPT_BYTES + TRIM_MARGIN_BYTES {
            self.trim_tail();
        }
    }

    fn trim_tail(&mut self) {
        let text = &mut self.tail.text;
        let excess = text.ceil_char_boundary(text.len().saturating_sub(MAX_KEPT_BYTES));
        let chars = text.drain(..excess).as_str().chars().count();
        self.tail.chars -= chars;
        self.omitted_bytes += excess;
        self.omitted_chars += chars;
    }
}

impl CountedText {
    fn push(&mut self, text: &str) {
        self.text.push_str(text);
        self.chars += text.chars().count();
    }

    fn slice(&self, start: usize, end: usize) -> &str {
        let (start, end) = (self.byte_index(start), self.byte_index(end));
        self.text.get(start..end).unwrap_or_default()
    }

    /// Returns the byte offset of the character with index `char`.
    fn byte_index(&self, char: usize) -> usize {
        let mut indices = self.text.char_indices().map(|(byte, _)| byte);
        let index = (char < self.chars).then(|| indices.nth(char)).flatten();
        index.unwrap_or(self.text.len())
    }
}
