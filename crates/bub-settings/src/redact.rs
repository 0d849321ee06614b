//! Removes secrets from text.
//!
//! Logs and errors pass through a [`Redactor`]. It masks every secret that settings have read, also
//! in encoded form (URL-encoded, base64, hexadecimal, escaped). It also masks unknown texts that
//! have the format of a common token.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::RwLock;

use serde_json::Value;

use crate::secret::{MASK, Secret};

mod encodings;
mod matcher;
mod token_patterns;
mod writer;

use matcher::Matcher;
pub use writer::RedactingWriter;

/// Minimum length of a registered secret. Masking a short text such as `12345` everywhere would
/// make the output useless.
const MIN_SECRET_BYTES: usize = 6;

/// Maximum length of a secret; of longer values only the start is masked.
///
/// No API key is that long, but a variable that only looks like a secret may be. A matcher needs
/// about twenty times the memory of its secrets.
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
    /// Fragments of encoded secrets, which may occur on separate lines.
    fragments: BTreeSet<Vec<u8>>,
    /// Matcher for all patterns and fragments. It is `None` until the first use and after each
    /// registration, so that it costs nothing if nothing is logged.
    matcher: Option<Arc<Matcher>>,
}

impl Redactor {
    /// Creates a redactor without registered secrets. It masks only texts that have the format of a
    /// token.
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
        let mut state = self.state.write();
        for form in encodings::encoded_forms(text) {
            if form.len() >= MIN_SECRET_BYTES && state.patterns.insert(form) {
                state.matcher = None;
            }
        }
        state.fragments.extend(encodings::form_fragments(text));
    }

    /// Replaces all secrets in the texts of a JSON value. Keys and numbers stay.
    pub fn redact_value(&self, value: &mut Value) {
        match value {
            Value::String(text) => {
                if let Cow::Owned(redacted) = self.redact(text) {
                    *text = redacted;
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.redact_value(item)),
            Value::Object(map) => map.values_mut().for_each(|item| self.redact_value(item)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// Returns the text without secrets; borrowed if it contains none.
    pub fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let spans = self.current_matcher().find_secrets(text.as_bytes());
        if spans.is_empty() {
            return Cow::Borrowed(text);
        }
        let clean = String::from_utf8(mask_spans(text.as_bytes(), &spans));
        // A span that ends inside a character masks the whole text.
        Cow::Owned(clean.unwrap_or_else(|_| MASK.to_owned()))
    }

    /// Returns a writer that redacts its output, for logs.
    ///
    /// A log subscriber takes `move || redactor.writer(std::io::stderr())` to create its writers.
    pub fn writer<W: io::Write>(&self, inner: W) -> RedactingWriter<W> {
        RedactingWriter::new(self.clone(), inner)
    }

    fn current_matcher(&self) -> Arc<Matcher> {
        let built = self.state.read().matcher.clone();
        built.unwrap_or_else(|| {
            let mut state = self.state.write();
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

/// Returns `bytes` with each span replaced by the mask.
fn mask_spans(bytes: &[u8], spans: &[Range<usize>]) -> Vec<u8> {
    let mut masked = Vec::with_capacity(bytes.len());
    let mut from = 0;
    for span in spans {
        masked.extend_from_slice(bytes.get(from..span.start).unwrap_or_default());
        masked.extend_from_slice(MASK.as_bytes());
        from = span.end;
    }
    masked.extend_from_slice(bytes.get(from..).unwrap_or_default());
    masked
}

#[cfg(test)]
mod tests;
