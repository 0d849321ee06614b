//! Searches the texts of an entry.

use serde_json::Value;

use super::fold::fold_text;
use crate::{Entry, json};

/// A case-folded text to search for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoldedNeedle(String);

impl FoldedNeedle {
    pub(crate) fn new(text: &str) -> Self {
        Self(fold_text(text))
    }

    /// Returns the folded text.
    pub(crate) fn folded(&self) -> &str {
        &self.0
    }

    /// Returns whether the needle occurs in a text.
    pub(crate) fn is_in(&self, text: &str) -> bool {
        memchr::memmem::find(fold_text(text).as_bytes(), self.0.as_bytes()).is_some()
    }

    /// Returns whether the needle could be part of a date. Legacy lines have a Unix timestamp instead of a date, so
    /// such a needle cannot be searched for in raw lines.
    pub(crate) fn is_datelike(&self) -> bool {
        self.0
            .chars()
            .all(|character| matches!(character, '0'..='9' | '-' | ':' | '.' | '+' | 't' | 'z'))
    }

    /// Returns whether the needle occurs in the entry: in its kind, its date, or a key or text of its payload or meta.
    pub(crate) fn is_in_entry(&self, entry: &Entry) -> bool {
        let mut visit = |_: Option<&str>, text: &str| self.is_in(text);
        self.is_in(entry.kind.as_str())
            || self.is_in(&entry.date)
            || [&entry.payload, &entry.meta].into_iter().any(|map| {
                map.iter().any(|(key, value)| {
                    self.is_in(key) || visit_texts(Some(key), value, true, &mut visit)
                })
            })
    }
}

/// Calls `visit` with each text in a value and its key, until `visit` returns `true`. With `keys`, also visits the
/// keys.
///
/// Integers count as texts. The `arguments` of a tool call are JSON text; the texts in it are visited too, so that
/// quotes and newlines can be found unescaped.
pub(crate) fn visit_texts(
    key: Option<&str>,
    value: &Value,
    keys: bool,
    visit: &mut dyn FnMut(Option<&str>, &str) -> bool,
) -> bool {
    match value {
        Value::String(text) => {
            visit(key, text)
                || parse_escaped_arguments(key, text)
                    .is_some_and(|inner| visit_texts(None, &inner, keys, visit))
        }
        Value::Number(number) if !number.is_f64() => visit(key, &number.to_string()),
        Value::Array(items) => items.iter().any(|item| visit_texts(key, item, keys, visit)),
        Value::Object(map) => map.iter().any(|(key, item)| {
            keys && visit(None, key) || visit_texts(Some(key), item, keys, visit)
        }),
        Value::Number(_) | Value::Bool(_) | Value::Null => false,
    }
}

/// Parses the arguments of a tool call, which are JSON text. Returns `None` for texts without escapes.
pub(crate) fn parse_escaped_arguments(key: Option<&str>, text: &str) -> Option<Value> {
    let has_escapes = key == Some("arguments") && text.starts_with('{') && text.contains('\\');
    has_escapes.then(|| json::parse_json_lossy(text)).flatten()
}
