//! Whether a text occurs in an entry.

use serde_json::Value;

use super::fold::fold_text;
use crate::{Entry, json};

/// A text to look for, without its case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoldedNeedle(String);

impl FoldedNeedle {
    pub(crate) fn new(text: &str) -> Self {
        Self(fold_text(text))
    }

    /// The caseless form.
    pub(crate) fn folded(&self) -> &str {
        &self.0
    }

    /// Whether it occurs in a text.
    pub(crate) fn is_in(&self, text: &str) -> bool {
        memchr::memmem::find(fold_text(text).as_bytes(), self.0.as_bytes()).is_some()
    }

    /// Whether it could be part of a date. The date of an old line is not written in it, so such a text cannot be
    /// looked for in raw lines.
    pub(crate) fn is_datelike(&self) -> bool {
        self.0
            .chars()
            .all(|character| matches!(character, '0'..='9' | '-' | ':' | '.' | '+' | 't' | 'z'))
    }

    /// Whether it occurs anywhere in the entry: kind, date, and every key and text of payload and meta.
    pub(crate) fn is_in_entry(&self, entry: &Entry) -> bool {
        let mut visit = |_: Option<&str>, text: &str| self.is_in(text);
        self.is_in(entry.kind.as_str())
            || self.is_in(&entry.date)
            || [&entry.payload, &entry.meta].into_iter().any(|map| {
                map.iter().any(|(key, value)| {
                    self.is_in(key) || each_text(Some(key), value, true, &mut visit)
                })
            })
    }
}

/// Calls `visit` with every text of a value and the key it stands under, until it returns `true`. Whole numbers count as
/// texts, and so does what is inside the JSON text of a call's `arguments`: quotes and line ends are not escaped there for
/// who looks for them.
pub(crate) fn each_text(
    key: Option<&str>,
    value: &Value,
    keys: bool,
    visit: &mut dyn FnMut(Option<&str>, &str) -> bool,
) -> bool {
    match value {
        Value::String(text) => {
            visit(key, text)
                || arguments(key, text).is_some_and(|inner| each_text(None, &inner, keys, visit))
        }
        Value::Number(number) if !number.is_f64() => visit(key, &number.to_string()),
        Value::Array(items) => items.iter().any(|item| each_text(key, item, keys, visit)),
        Value::Object(map) => map
            .iter()
            .any(|(key, item)| keys && visit(None, key) || each_text(Some(key), item, keys, visit)),
        Value::Number(_) | Value::Bool(_) | Value::Null => false,
    }
}

fn arguments(key: Option<&str>, text: &str) -> Option<Value> {
    let looks_like_one = key == Some("arguments") && text.starts_with('{') && text.contains('\\');
    looks_like_one.then(|| json::parse_lossy(text)).flatten()
}
