//! Finds registered secrets and tokens in one pass over a text that arrives in pieces.

use std::collections::VecDeque;
use std::ops::Range;

use super::automaton::{Automaton, AutomatonState};
use super::token_patterns::TokenScanner;

/// The state of a scan. Positions count from the beginning of the text.
#[derive(Default)]
pub(super) struct Scanner {
    state: AutomatonState,
    tokens: TokenScanner,
    /// Number of bytes read.
    pub(super) position: usize,
    /// Positions of secrets, in order and without overlaps.
    pub(super) spans: VecDeque<Range<usize>>,
}

impl Scanner {
    /// Reads the next bytes of the text.
    pub(super) fn read(&mut self, automaton: &Automaton, bytes: &[u8]) {
        for byte in bytes {
            self.tokens.read(*byte, self.position, &mut self.spans);
            self.position += 1;
            self.read_secret(automaton, *byte, self.position);
        }
    }

    fn read_secret(&mut self, automaton: &Automaton, byte: u8, end: usize) {
        self.state = automaton.step(self.state, byte);
        // The longest secret covers all others that end here.
        let match_bytes = automaton.match_bytes(self.state);
        let span = (match_bytes > 0).then(|| end - match_bytes..end);
        add_span(&mut self.spans, span);
    }

    /// Adds the tokens that end here if the text ends here. The scan can continue.
    pub(super) fn add_tokens_at_end(&mut self) {
        self.tokens.end(self.position, &mut self.spans);
    }

    /// Returns the last position at which the text can be cut without splitting a secret. This
    /// includes a secret of which only the beginning was read.
    pub(super) fn safe_cut(&self, automaton: &Automaton) -> usize {
        let secret = self.position - automaton.partial_bytes(self.state);
        let cut = secret.min(self.tokens.partial_start(self.position));
        let before = self.spans.partition_point(|span| span.start < cut);
        let span = before.checked_sub(1).and_then(|last| self.spans.get(last));
        span.filter(|span| span.end > cut)
            .map_or(cut, |span| span.start)
    }

    /// Continues with another automaton: reads `held`, the end of the text, again.
    pub(super) fn replace_automaton<'a>(
        &mut self,
        automaton: &Automaton,
        held: impl ExactSizeIterator<Item = &'a u8>,
    ) {
        let known = std::mem::take(&mut self.spans);
        let start = self.position - held.len();
        self.state = AutomatonState::default();
        for (offset, byte) in held.enumerate() {
            self.read_secret(automaton, *byte, start + offset + 1);
        }
        let mut all: Vec<_> = known.into_iter().chain(self.spans.drain(..)).collect();
        all.sort_unstable_by_key(|span| span.end);
        for span in all {
            add_span(&mut self.spans, Some(span));
        }
    }
}

/// Adds a span that ends after all others, if there is one. Joins spans that overlap, so that no
/// part of two overlapping secrets is shown.
pub(super) fn add_span(spans: &mut VecDeque<Range<usize>>, span: Option<Range<usize>>) {
    let Some(mut span) = span else { return };
    while let Some(last) = spans.pop_back_if(|last| last.end > span.start) {
        span.start = span.start.min(last.start);
    }
    spans.push_back(span);
}
