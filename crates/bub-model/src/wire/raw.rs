//! Lazily parsed JSON objects.
//!
//! Streams have many small frames (server-sent events), and only a few of their fields matter. A [`RawObject`] keeps
//! the text of each field and parses a field only on access. A field of an unexpected type counts as missing, because
//! compatible servers deviate from the format in many ways. Derived structs with a lenient wrapper around each field
//! would not be shorter: one accessor call here would be a field with attributes there.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::stream::unexpected_response_error;
use crate::Result;
use crate::sse::SseEvent;

/// The unparsed fields of a JSON object. If a key is repeated, the last value counts.
#[derive(Clone, Debug, Default)]
pub(super) struct RawObject<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> RawObject<'a> {
    /// Parses the data of a server-sent event, which must be a JSON object.
    pub(super) fn from_event(event: &SseEvent<'a>) -> Result<Self> {
        let text = std::str::from_utf8(event.data)
            .map_err(|_| unexpected_response_error("an event of the stream is not valid UTF-8"))?;
        Self::parse(text)
    }

    /// Parses a JSON text that must be an object.
    pub(super) fn parse(text: &'a str) -> Result<Self> {
        // Some proxies wrap an error, and sometimes an answer, in a list with one item.
        let mut items_of_list = parse_objects(text.trim_start());
        if items_of_list.len() == 1 {
            return Ok(items_of_list.remove(0));
        }
        serde_json::from_str(text).map_err(|error| {
            unexpected_response_error(&format!("it is not a JSON object ({error})"))
        })
    }

    /// Returns the JSON text of a field, unless it is missing or `null`.
    pub(super) fn raw(&self, key: &str) -> Option<&'a str> {
        let (_, value) = self.0.iter().rev().find(|(name, _)| name == key)?;
        Some(value.get()).filter(|text| *text != "null")
    }

    /// Returns the string in a field. The string may be empty.
    pub(super) fn str(&self, key: &str) -> Option<Cow<'a, str>> {
        parse_str(self.raw(key)?)
    }

    /// Returns the string in a field, unless it is empty.
    pub(super) fn text(&self, key: &str) -> Option<Cow<'a, str>> {
        self.str(key).filter(|text| !text.is_empty())
    }

    /// Returns the non-negative integer in a field.
    pub(super) fn u64(&self, key: &str) -> Option<u64> {
        let raw = self.raw(key)?;
        raw.parse()
            .ok()
            .or_else(|| as_count(&serde_json::from_str(raw).ok()?))
    }

    /// Returns the object in a field.
    pub(super) fn object(&self, key: &str) -> Option<RawObject<'a>> {
        serde_json::from_str(self.raw(key).filter(|raw| raw.starts_with('{'))?).ok()
    }

    /// Returns the objects of the array in a field. Skips other items.
    pub(super) fn objects(&self, key: &str) -> Vec<RawObject<'a>> {
        self.raw(key).map(parse_objects).unwrap_or_default()
    }

    /// Returns the parsed value of a field of any type.
    pub(super) fn value(&self, key: &str) -> Option<Value> {
        serde_json::from_str(self.raw(key)?).ok()
    }

    /// Parses all fields and returns the object.
    pub(super) fn to_value(&self) -> Value {
        let field = |(key, value): &(Cow<'_, str>, &RawValue)| {
            Some((
                key.clone().into_owned(),
                serde_json::from_str(value.get()).ok()?,
            ))
        };
        Value::Object(self.0.iter().filter_map(field).collect())
    }
}

/// Returns the objects in the JSON text of an array. Skips other items.
pub(super) fn parse_objects(raw: &str) -> Vec<RawObject<'_>> {
    if !raw.starts_with('[') {
        return Vec::new();
    }
    serde_json::from_str(raw).unwrap_or_else(|_| {
        // Some items are not objects. Such lists are rare, so they are parsed again.
        let items: Vec<&RawValue> = serde_json::from_str(raw).unwrap_or_default();
        let objects = items.iter().map(|item| serde_json::from_str(item.get()));
        objects.filter_map(Result::ok).collect()
    })
}

/// Parses a JSON string. Borrows the text if it contains no escapes.
pub(super) fn parse_str(raw: &str) -> Option<Cow<'_, str>> {
    let inner = raw.strip_prefix('"')?.strip_suffix('"')?;
    if memchr::memchr(b'\\', inner.as_bytes()).is_none() {
        return Some(Cow::Borrowed(inner));
    }
    serde_json::from_str(raw).ok().map(Cow::Owned)
}

/// Converts a number to a count. Accepts floats, because some servers send them.
pub(super) fn as_count(value: &Value) -> Option<u64> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked to be a small count"
    )]
    let to_integer = |float: f64| (0.0..1e15).contains(&float).then_some(float as u64);
    value
        .as_u64()
        .or_else(|| value.as_f64().and_then(to_integer))
}

impl<'de> Deserialize<'de> for RawObject<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor)
    }
}

struct ObjectVisitor;

impl<'de> Visitor<'de> for ObjectVisitor {
    type Value = RawObject<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = Vec::with_capacity(FIELD_CAPACITY);
        while let Some(RawKey(key)) = map.next_key()? {
            fields.push((key, map.next_value()?));
        }
        Ok(RawObject(fields))
    }
}

/// Initial capacity of the list of fields. Most frames have fewer fields.
const FIELD_CAPACITY: usize = 12;

/// A key, borrowed if possible. Deserializing a `Cow` directly always copies.
#[derive(Deserialize)]
struct RawKey<'a>(#[serde(borrow)] Cow<'a, str>);
