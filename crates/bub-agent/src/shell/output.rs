//! The output of a command: bounded, decoded as it arrives, and read by character offset.

use std::fmt::Write;

use tokio::sync::mpsc::Sender;

/// Maximum number of bytes kept from the beginning of the output, and from its end.
const MAX_KEPT_BYTES: usize = 512 * 1024;
/// How far the kept end may exceed its limit before it is trimmed. The margin avoids a copy for every block.
const TRIM_MARGIN_BYTES: usize = 64 * 1024;

/// The output of a command. Keeps the beginning and the end; the middle of a long output is omitted.
#[derive(Debug, Default)]
pub(super) struct OutputBuffer {
    head: CountedText,
    tail: CountedText,
    /// The size of the text between head and tail.
    omitted: OmittedSize,
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

#[derive(Clone, Copy, Debug, Default)]
struct OmittedSize {
    bytes: usize,
    chars: usize,
}

impl OutputBuffer {
    /// Creates an empty buffer that sends the kept beginning to `live` as it arrives.
    pub(super) fn with_live_output(live: Option<Sender<String>>) -> Self {
        Self {
            live,
            ..Self::default()
        }
    }

    /// Adds a block from the pipe. It may end within a character.
    pub(super) fn push(&mut self, block: &[u8]) {
        let joined;
        let mut rest = if self.incomplete.is_empty() {
            block
        } else {
            joined = [&std::mem::take(&mut self.incomplete), block].concat();
            &joined
        };
        loop {
            match std::str::from_utf8(rest) {
                Ok(text) => return self.append_text(text),
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    self.append_text(str::from_utf8(valid).unwrap_or_default());
                    let Some(length) = error.error_len() else {
                        after.clone_into(&mut self.incomplete);
                        return;
                    };
                    self.append_text("\u{FFFD}");
                    rest = after.get(length..).unwrap_or_default();
                }
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
        self.head.chars + self.omitted.chars + self.tail.chars
    }

    /// Returns the complete output. A note replaces omitted text.
    pub(super) fn full_text(&self) -> String {
        self.slice(0, self.char_count())
    }

    /// Returns the characters from `start` up to, but not including, `end`.
    pub(super) fn slice(&self, start: usize, end: usize) -> String {
        let mut slice = self.head.slice(start, end).to_owned();
        let gap_end = self.head.chars + self.omitted.chars;
        if self.omitted.chars > 0 && start < gap_end && end > self.head.chars {
            let _ = write!(slice, "\n… {} bytes omitted …\n", self.omitted.bytes);
        }
        slice.push_str(
            self.tail
                .slice(start.saturating_sub(gap_end), end.saturating_sub(gap_end)),
        );
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
            // A receiver that is closed or too slow gets the rest with the result of the command.
            self.live = Some(live);
        }
        self.tail.push(rest);
        if self.tail.text.len() > MAX_KEPT_BYTES + TRIM_MARGIN_BYTES {
            self.trim_tail();
        }
    }

    fn trim_tail(&mut self) {
        let excess = self
            .tail
            .text
            .ceil_char_boundary(self.tail.text.len().saturating_sub(MAX_KEPT_BYTES));
        let removed = self.tail.text.drain(..excess);
        let chars = removed.as_str().chars().count();
        drop(removed);
        self.tail.chars -= chars;
        self.omitted.bytes += excess;
        self.omitted.chars += chars;
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
        if char >= self.chars {
            return self.text.len();
        }
        self.text
            .char_indices()
            .nth(char)
            .map_or(self.text.len(), |(byte, _)| byte)
    }
}
