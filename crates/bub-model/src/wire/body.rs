//! The JSON body of a request, assembled from borrowed values.
//!
//! A conversation may contain megabytes of images, so it is serialized without copying.

use std::borrow::Cow;

use bytes::Bytes;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use crate::{ChatRequest, Quirks};

/// The fields of a body, in order. Setting a field again replaces its value.
pub(super) struct RequestBody<'a>(Vec<(&'a str, Field<'a>)>);

/// The value of a field.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Field<'a> {
    /// A value created for this request.
    Owned(Value),
    /// A value borrowed from the request or the quirks.
    Borrowed(&'a Value),
    /// A list that borrows its items, except those that were rewritten.
    List(Vec<Cow<'a, Value>>),
}

impl<'a> RequestBody<'a> {
    /// Creates a body from these fields, in increasing priority: `quirks.default_body`, `request.extra` (the setting
    /// `completion_args`) and `quirks.extra_body`.
    pub(super) fn new(request: &'a ChatRequest, quirks: &'a Quirks) -> Self {
        let mut body = Self(Vec::new());
        body.set_fields(&quirks.default_body);
        for (key, value) in &request.extra {
            match (quirks.default_body.get(key), value) {
                (Some(Value::Object(default)), Value::Object(extra)) => {
                    let mut merged = default.clone();
                    merged.extend(extra.clone());
                    body.set(key, Value::Object(merged));
                }
                _ => body.set_field(key, Field::Borrowed(value)),
            }
        }
        body.set_fields(&quirks.extra_body);
        body
    }

    /// Sets a field of the body.
    pub(super) fn set(&mut self, name: &'a str, field: impl Into<Field<'a>>) {
        self.set_field(name, field.into());
    }

    /// Removes a field and returns its value, for example to send the value under another name.
    pub(super) fn remove(&mut self, name: &str) -> Option<Value> {
        let index = self.0.iter().position(|(key, _)| *key == name)?;
        match self.0.remove(index).1 {
            Field::Owned(value) => Some(value),
            Field::Borrowed(value) => Some(value.clone()),
            Field::List(items) => Some(items.into_iter().map(Cow::into_owned).collect()),
        }
        .filter(|value| !value.is_null())
    }

    /// Sets `key` inside the object in the field `name` and preserves the other keys of the object.
    pub(super) fn set_nested(&mut self, name: &'a str, key: &str, value: Value) {
        let mut object = match self.remove(name) {
            Some(Value::Object(object)) => object,
            _ => Map::new(),
        };
        object.insert(key.to_owned(), value);
        self.set(name, Value::Object(object));
    }

    /// Returns the JSON text, without the fields that the server rejects.
    pub(super) fn into_bytes(mut self, quirks: &Quirks) -> Bytes {
        self.0
            .retain(|(key, _)| !quirks.refused_fields.iter().any(|refused| refused == key));
        // Serialization cannot fail: keys are strings and numbers are finite.
        serde_json::to_vec(&self)
            .map(Bytes::from)
            .unwrap_or_default()
    }

    fn set_fields(&mut self, fields: &'a Map<String, Value>) {
        for (key, value) in fields {
            self.set_field(key, Field::Borrowed(value));
        }
    }

    fn set_field(&mut self, name: &'a str, field: Field<'a>) {
        match self.0.iter_mut().find(|(key, _)| *key == name) {
            Some((_, existing)) => *existing = field,
            None => self.0.push((name, field)),
        }
    }
}

impl<T: Into<Value>> From<T> for Field<'_> {
    fn from(value: T) -> Self {
        Self::Owned(value.into())
    }
}

impl<'a> Field<'a> {
    /// Creates a list of unchanged items.
    pub(super) fn list(items: &'a [Value]) -> Self {
        Self::List(items.iter().map(Cow::Borrowed).collect())
    }
}

impl Serialize for RequestBody<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, field)| (key, field)))
    }
}
