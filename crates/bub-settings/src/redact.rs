//! Removes secrets from text.
//!
//! Logs and errors pass through a [`Redactor`]. It masks every secret that settings have read, also
//! in encoded form (URL-encoded, base64, hexadecimal, escaped), and common token formats that are
//! not registered.

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

/// Minimum length of a secret. Masking every `12345` would make the output useless.
const MIN_SECRET_BYTES: usize = 6;

/// Maximum length of a secret; of longer values only the start is masked.
///
/// No key is that long, but a wrong variable may be, and a matcher needs about twenty times the
/// size of its secrets.
const MAX_SECRET_BYTES: usize = 16 * 1024;

/// Replaces secrets in text by [`MASK`]. Clones share their secrets; use one redactor per process.
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
    /// Parts of long secrets that may occur on separate lines.
    fragments: BTreeSet<Vec<u8>>,
    /// Built on first use and rebuilt after a registration, so that it costs nothing if nothing is
    /// logged.
    matcher: Option<Arc<Matcher>>,
}

impl Redactor {
    /// Creates a redactor that masks token formats only.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a secret. Values of fewer than six bytes are ignored.
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
        for form in encodings::encoded_forms(text) {
            if form.len() >= MIN_SECRET_BYTES && state.patterns.insert(form) {
                state.matcher = None;
            }
        }
        state.fragments.extend(encodings::form_fragments(text));
    }

    /// Returns the text without secrets; borrowed if it contains none.
    pub fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let spans = self.current_matcher().find_secrets(text.as_bytes());
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

    /// Returns a writer that redacts its output, for logs.
    ///
    /// A log subscriber takes `move || redactor.writer(std::io::stderr())` to create its writers.
    pub fn writer<W: io::Write>(&self, inner: W) -> RedactingWriter<W> {
        RedactingWriter::new(self.clone(), inner)
    }

    fn current_matcher(&self) -> Arc<Matcher> {
        let built = self
            .state
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .matcher
            .clone();
        built.unwrap_or_else(|| {
            let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
            let RedactorState {
                patterns,
                fragments,
                matcher,
            } = &mut *state;
            matcher
                .get_or_insert_with(|| Arc::new(Matcher::new(patterns, fragments)))
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
