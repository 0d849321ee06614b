//! Removes secrets from text.
//!
//! Logs, errors and streams pass through a [`Redactor`]. It masks every secret that settings have
//! read, also in encoded form (URL-encoded, base64, hexadecimal, escaped). It also masks unknown
//! texts that have the format of a common token. The time is linear in the length of the text.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::sync::Arc;

use parking_lot::RwLock;

use serde_json::Value;

use crate::secret::{MASK, Secret};

mod automaton;
mod encodings;
mod scanner;
mod stream;
mod token_patterns;
mod writer;

use automaton::Automaton;
use scanner::Scanner;
pub use stream::StreamRedactor;
pub use writer::RedactingWriter;

/// Minimum length of a registered secret. Masking a short text such as `12345` everywhere would
/// make the output useless.
const MIN_SECRET_BYTES: usize = 6;

/// Maximum length of a secret; of longer values only the start is masked.
///
/// No API key is that long, but a variable that only looks like a secret may be. An automaton needs
/// much more memory than its secrets.
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
    /// All secrets, in all their encoded forms.
    patterns: BTreeSet<Vec<u8>>,
    /// Automaton for all patterns. It is `None` until the first use and after each registration, so
    /// that it costs nothing if nothing is logged.
    automaton: Option<Arc<Automaton>>,
}

impl Redactor {
    /// Creates a redactor without registered secrets. It masks only texts that have the format of a
    /// token.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a secret. Values of fewer than six bytes and values of one repeated character are
    /// ignored: they protect nothing, and masking them would make the output useless.
    pub fn register(&self, secret: &Secret) {
        self.register_text(secret.expose());
    }

    pub(crate) fn register_text(&self, text: &str) {
        if !is_secret(text) {
            return;
        }
        let text = text
            .get(..text.floor_char_boundary(MAX_SECRET_BYTES))
            .unwrap_or(text);
        let mut state = self.state.write();
        for form in encodings::encoded_forms(text) {
            if state.patterns.insert(form) {
                state.automaton = None;
            }
        }
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
        let scanner = self.scan(text.as_bytes());
        if scanner.spans.is_empty() {
            return Cow::Borrowed(text);
        }
        let mut redacted = String::with_capacity(text.len());
        let mut start = 0;
        for span in &scanner.spans {
            redacted.push_str(text.get(start..span.start).unwrap_or_default());
            redacted.push_str(MASK);
            start = span.end;
        }
        redacted.push_str(text.get(start..).unwrap_or_default());
        Cow::Owned(redacted)
    }

    /// Returns a redactor for one text that arrives in pieces, such as the answer of a model.
    pub fn stream(&self) -> StreamRedactor {
        StreamRedactor::new(self.clone())
    }

    /// Returns whether bytes contain a secret, such as the content of a file to send.
    pub fn has_secret(&self, bytes: &[u8]) -> bool {
        !self.scan(bytes).spans.is_empty()
    }

    fn scan(&self, bytes: &[u8]) -> Scanner {
        let mut scanner = Scanner::default();
        scanner.read(&self.automaton(), bytes);
        scanner.add_tokens_at_end();
        scanner
    }

    /// Returns a writer that redacts its output, for logs.
    ///
    /// A log subscriber takes `move || redactor.writer(std::io::stderr())` to create its writers.
    pub fn writer<W: io::Write>(&self, inner: W) -> RedactingWriter<W> {
        RedactingWriter::new(self.stream(), inner)
    }

    fn automaton(&self) -> Arc<Automaton> {
        let built = self.state.read().automaton.clone();
        built.unwrap_or_else(|| {
            let mut state = self.state.write();
            let RedactorState {
                patterns,
                automaton,
            } = &mut *state;
            automaton
                .get_or_insert_with(|| Arc::new(Automaton::new(patterns)))
                .clone()
        })
    }
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redactor").finish_non_exhaustive()
    }
}

/// Returns whether a value can be a secret: it has at least six bytes, and not only one character
/// that repeats.
fn is_secret(text: &str) -> bool {
    let text = text.trim();
    text.len() >= MIN_SECRET_BYTES && text.chars().any(|c| !text.starts_with(c))
}

#[cfg(test)]
mod tests;
