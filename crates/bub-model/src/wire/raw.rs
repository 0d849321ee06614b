//! Lazily parsed JSON objects.
//!
//! Streams have many small frames, and only a few of their fields matter. A [`RawObject`] keeps the text of each field
//! and parses a field only on access. A field of an unexpected type counts as missing, because compatible servers
//! deviate from the format in many ways.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::stream::unexpected_response_error;
use crate::ModelError;
use crate::sse::SseEvent;

/// The unparsed fields of a JSON object. If a key is repeated, the last value counts.
#[derive(Clone, Debug, Default)]
pub(super) struct RawObject<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> RawObject<'a> {
    /// Parses the payload of a frame.
    pub(super) fn from_event(event: &SseEvent<'a>) -> Result<Self, ModelError> {
        let text = std::str::from_utf8(event.data)
            .map_err(|_| unexpected_response_error("an event of the stream is not valid UTF-8"))?;
        Self::parse(text)
    }

    /// Parses a JSON text that must be an object.
    pub(super) fn parse(text: &'a str) -> Result<Self, ModelError> {
        // Gateways wrap an error, and sometimes an answer, in a list with one item.
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
    let items: Vec<MaybeObject<'_>> = serde_json::from_str(raw).unwrap_or_default();
    items.into_iter().filter_map(|item| item.0).collect()
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

/// An item of a list; `None` if it is not an object.
struct MaybeObject<'a>(Option<RawObject<'a>>);

impl<'de> Deserialize<'de> for MaybeObject<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ItemVisitor)
    }
}

struct ItemVisitor;

impl<'de> Visitor<'de> for ItemVisitor {
    type Value = MaybeObject<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        ObjectVisitor
            .visit_map(map)
            .map(|object| MaybeObject(Some(object)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(MaybeObject(None))
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(MaybeObject(None))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(MaybeObject(None))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(MaybeObject(None))
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(MaybeObject(None))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(MaybeObject(None))
    }

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(MaybeObject(None))
    }
}

/// A key, borrowed if possible. Deserializing a `Cow` directly always copies.
struct RawKey<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for RawKey<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeyVisitor;
        impl<'de> Visitor<'de> for KeyVisitor {
            type Value = RawKey<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }

            fn visit_borrowed_str<E>(self, key: &'de str) -> Result<Self::Value, E> {
                Ok(RawKey(Cow::Borrowed(key)))
            }

            fn visit_str<E>(self, key: &str) -> Result<Self::Value, E> {
                Ok(RawKey(Cow::Owned(key.to_owned())))
            }
        }
        deserializer.deserialize_str(KeyVisitor)
    }
}
