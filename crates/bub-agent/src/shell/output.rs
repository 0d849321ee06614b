//! What a command printed: bounded, decoded as it arrives, read by character offsets.

use std::fmt::Write;

use tokio::sync::mpsc::Sender;

/// So much of the beginning is kept, and as much of the end.
const MAX_KEPT_BYTES: usize = 512 * 1024;
/// The end is cut only every so often, so that an endless command costs no copy for each block.
const TRIM_MARGIN_BYTES: usize = 64 * 1024;

/// The beginning and the end of a text that may be endless.
#[derive(Debug, Default)]
pub(super) struct OutputBuffer {
    head: CountedText,
    tail: CountedText,
    left_out: OmittedSize,
    /// The first bytes of a character whose rest has not arrived.
    incomplete: Vec<u8>,
    /// Who is told of the beginning as it comes.
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
    /// Nothing yet; what is kept of the beginning is told as it comes.
    pub(super) fn with_live_output(live: Option<Sender<String>>) -> Self {
        Self {
            live,
            ..Self::default()
        }
    }

    /// Adds a block as it came from the pipe; it may end within a character.
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
                Ok(text) => return self.add(text),
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    self.add(str::from_utf8(valid).unwrap_or_default());
                    let Some(length) = error.error_len() else {
                        after.clone_into(&mut self.incomplete);
                        return;
                    };
                    self.add("\u{FFFD}");
                    rest = after.get(length..).unwrap_or_default();
                }
            }
        }
    }

    /// Nothing more will come.
    pub(super) fn finish(&mut self) {
        if !std::mem::take(&mut self.incomplete).is_empty() {
            self.add("\u{FFFD}");
        }
        self.cut_tail();
        self.head.text.shrink_to_fit();
        self.tail.text.shrink_to_fit();
    }

    /// How many characters there were, those left out included.
    pub(super) fn chars(&self) -> usize {
        self.head.chars + self.left_out.chars + self.tail.chars
    }

    /// All of it; a note stands where something was left out.
    pub(super) fn all(&self) -> String {
        self.slice(0, self.chars())
    }

    /// The characters from `start` to before `end`.
    pub(super) fn slice(&self, start: usize, end: usize) -> String {
        let mut slice = self.head.slice(start, end).to_owned();
        let gap_end = self.head.chars + self.left_out.chars;
        if self.left_out.chars > 0 && start < gap_end && end > self.head.chars {
            let _ = write!(slice, "\n… {} bytes left out …\n", self.left_out.bytes);
        }
        slice.push_str(
            self.tail
                .slice(start.saturating_sub(gap_end), end.saturating_sub(gap_end)),
        );
        slice
    }

    fn add(&mut self, text: &str) {
        // Once something is in the tail, the head is closed, full or not.
        let room = if self.tail.chars == 0 {
            MAX_KEPT_BYTES.saturating_sub(self.head.text.len())
        } else {
            0
        };
        let (first, rest) = text.split_at(text.floor_char_boundary(room));
        self.head.push(first);
        if let Some(live) = self.live.take_if(|_| !first.is_empty())
            && live.try_send(first.to_owned()).is_ok()
        {
            // A reader that is gone or too slow gets the rest with the result of the command.
            self.live = Some(live);
        }
        self.tail.push(rest);
        if self.tail.text.len() > MAX_KEPT_BYTES + TRIM_MARGIN_BYTES {
            self.cut_tail();
        }
    }

    fn cut_tail(&mut self) {
        let excess = self
            .tail
            .text
            .ceil_char_boundary(self.tail.text.len().saturating_sub(MAX_KEPT_BYTES));
        let cut = self.tail.text.drain(..excess);
        let chars = cut.as_str().chars().count();
        drop(cut);
        self.tail.chars -= chars;
        self.left_out.bytes += excess;
        self.left_out.chars += chars;
    }
}

impl CountedText {
    fn push(&mut self, text: &str) {
        self.text.push_str(text);
        self.chars += text.chars().count();
    }

    fn slice(&self, start: usize, end: usize) -> &str {
        let (start, end) = (self.byte(start), self.byte(end));
        self.text.get(start..end).unwrap_or_default()
    }

    fn byte(&self, char: usize) -> usize {
        if char >= self.chars {
            return self.text.len();
        }
        self.text
            .char_indices()
            .nth(char)
            .map_or(self.text.len(), |(byte, _)| byte)
    }
}
