//! The one place where secrets are taken out of text.
//!
//! Logs and errors go through a [`Redactor`]. It knows every secret that settings have read, in
//! the spellings in which it may turn up (URL-encoded, base64, hexadecimal, escaped), and masks common token
//! formats even when nobody registered them.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};

use crate::secret::{MASK, Secret};

mod encodings;
mod matcher;
mod token_patterns;
mod writer;

use matcher::Matcher;
pub use writer::RedactingWriter;

/// Values shorter than this are not looked for: masking every `12345` helps nobody.
const MIN_SECRET_BYTES: usize = 6;

/// Of longer values only the beginning is looked for: no key is that long, but a wrong variable
/// may be, and a matcher costs some twenty times the size of its secrets.
const MAX_SECRET_BYTES: usize = 16 * 1024;

/// Replaces secrets in text by [`MASK`]. Clones share their secrets; use one per process.
///
/// ```
/// use bub_settings::{Redactor, Secret};
///
/// let redactor = Redactor::new();
/// redactor.register(&Secret::from("correct horse"));
/// assert_eq!(redactor.redact("GET /?q=correct%20horse"), "GET /?q=***");
/// ```
#[derive(Clone, Default)]
pub struct Redactor {
    state: Arc<RwLock<RedactorState>>,
}

#[derive(Default)]
struct RedactorState {
    patterns: BTreeSet<Vec<u8>>,
    /// Parts of long ones, which may stand on lines of their own.
    pieces: BTreeSet<Vec<u8>>,
    /// Built on first use and again after a registration: a start that logs nothing pays nothing.
    matcher: Option<Arc<Matcher>>,
}

impl Redactor {
    /// A redactor that knows no secrets yet, only the token formats.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a secret known. Values of fewer than six bytes are ignored.
    pub fn register(&self, secret: &Secret) {
        self.register_text(secret.expose());
    }

    pub(crate) fn register_text(&self, text: &str) {
        if text.trim().len() < MIN_SECRET_BYTES {
            return;
        }
        let text = text
            .get(..text.floor_char_boundary(MAX_SECRET_BYTES))
            .unwrap_or(text);
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        for form in encodings::forms(text) {
            if form.len() >= MIN_SECRET_BYTES && state.patterns.insert(form) {
                state.matcher = None;
            }
        }
        state.pieces.extend(encodings::pieces(text));
    }

    /// The text without secrets; borrowed when there are none in it.
    pub fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let spans = self.matcher().spans(text.as_bytes());
        if spans.is_empty() {
            return Cow::Borrowed(text);
        }
        let mut clean = String::with_capacity(text.len());
        let mut from = 0;
        for span in spans {
            clean.push_str(text.get(from..span.start).unwrap_or(MASK));
            clean.push_str(MASK);
            from = span.end;
        }
        clean.push_str(text.get(from..).unwrap_or(MASK));
        Cow::Owned(clean)
    }

    /// A writer that redacts what passes through, for log output.
    ///
    /// `move || redactor.writer(std::io::stderr())` is what a log subscriber takes as its maker of
    /// writers.
    pub fn writer<W: io::Write>(&self, inner: W) -> RedactingWriter<W> {
        RedactingWriter::new(self.clone(), inner)
    }

    fn matcher(&self) -> Arc<Matcher> {
        let known = self
            .state
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .matcher
            .clone();
        known.unwrap_or_else(|| {
            let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
            let RedactorState {
                patterns,
                pieces,
                matcher,
            } = &mut *state;
            matcher
                .get_or_insert_with(|| Arc::new(Matcher::new(patterns, pieces)))
                .clone()
        })
    }
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redactor").finish_non_exhaustive()
    }
}

/// Appends `bytes` to `out` with each span replaced by the mask.
fn mask_into(bytes: &[u8], spans: &[Range<usize>], out: &mut Vec<u8>) {
    let mut from = 0;
    for span in spans {
        out.extend_from_slice(bytes.get(from..span.start).unwrap_or_default());
        out.extend_from_slice(MASK.as_bytes());
        from = span.end;
    }
    out.extend_from_slice(bytes.get(from..).unwrap_or_default());
}

#[cfg(test)]
mod tests;
