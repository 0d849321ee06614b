//! Redacts a text that arrives in pieces.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use super::Redactor;
use super::automaton::Automaton;
use super::scanner::Scanner;
use crate::secret::MASK;

/// Maximum number of bytes held back. It is larger than every encoded form of a secret. Only a
/// text that is masked anyway, such as a very long token, reaches it.
const MAX_HELD_BYTES: usize = 128 * 1024;

/// Redacts a text that arrives in pieces, created by [`Redactor::stream`].
///
/// The result does not depend on how the text is split. A piece that may be the beginning of a
/// secret is held back until more text or [`StreamRedactor::flush`] decides.
///
/// ```
/// use bub_settings::{Redactor, Secret};
///
/// let redactor = Redactor::new();
/// redactor.register(&Secret::from("swordfish"));
/// let mut stream = redactor.stream();
/// assert_eq!(stream.push_str("the sword"), "the ");
/// assert_eq!(stream.push_str("fish is "), "*** is ");
/// assert_eq!(stream.push_str("a sword"), "a ");
/// assert_eq!(stream.flush_str(), "sword");
/// assert_eq!(stream.push_str("fish"), "");
/// assert_eq!(stream.flush_str(), "***");
/// ```
pub struct StreamRedactor {
    redactor: Redactor,
    automaton: Arc<Automaton>,
    scanner: Scanner,
    /// The end of the text that is not returned yet.
    held: VecDeque<u8>,
    /// Whether the last byte before `held` was masked.
    is_masked: bool,
}

impl StreamRedactor {
    pub(super) fn new(redactor: Redactor) -> Self {
        Self {
            automaton: redactor.automaton(),
            redactor,
            scanner: Scanner::default(),
            held: VecDeque::new(),
            is_masked: false,
        }
    }

    /// Adds a piece of the text. Returns the text that is ready, with secrets masked.
    pub fn push(&mut self, piece: &[u8]) -> Vec<u8> {
        let automaton = self.redactor.automaton();
        if !Arc::ptr_eq(&automaton, &self.automaton) {
            self.scanner.replace_automaton(&automaton, self.held.iter());
            self.automaton = automaton;
        }
        self.held.extend(piece);
        self.scanner.read(&self.automaton, piece);
        if self.held.len() > MAX_HELD_BYTES {
            return self.flush();
        }
        self.take_until(self.scanner.safe_cut(&self.automaton))
    }

    /// Returns the text that is held back, with secrets masked.
    ///
    /// If more text follows and completes a secret whose beginning was returned here, the rest of
    /// the secret is masked.
    pub fn flush(&mut self) -> Vec<u8> {
        self.scanner.add_tokens_at_end();
        self.take_until(self.scanner.position)
    }

    /// Adds a piece of a text, as [`StreamRedactor::push`].
    pub fn push_str(&mut self, piece: &str) -> String {
        into_text(self.push(piece.as_bytes()))
    }

    /// Returns the text that is held back, as [`StreamRedactor::flush`].
    pub fn flush_str(&mut self) -> String {
        into_text(self.flush())
    }

    /// Returns the held text before `cut`. No span contains `cut`.
    fn take_until(&mut self, cut: usize) -> Vec<u8> {
        let mut start = self.scanner.position - self.held.len();
        let mut ready = Vec::with_capacity(cut.saturating_sub(start));
        while let Some(span) = self.scanner.spans.pop_front_if(|span| span.end <= cut) {
            ready.extend(self.held.drain(..span.start.saturating_sub(start)));
            // A secret whose beginning is masked already needs no further mask.
            if span.start >= start || !self.is_masked {
                ready.extend(MASK.bytes());
            }
            self.held.drain(..span.end - span.start.max(start));
            self.is_masked = true;
            start = span.end;
        }
        if start < cut {
            ready.extend(self.held.drain(..cut - start));
            self.is_masked = false;
        }
        ready
    }
}

impl fmt::Debug for StreamRedactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Omit the held text, which may be a part of a secret.
        f.debug_struct("StreamRedactor").finish_non_exhaustive()
    }
}

/// Converts redacted text. It is valid UTF-8 if the text was: secrets start and end between
/// characters.
fn into_text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}
