//! The searchable texts of an entry, from its line or from the decoded entry.
//!
//! Decoding a line costs more than all other work on it, so the index is built from lines. Both ways visit equal texts.

use std::{borrow::Cow, fmt};

use memchr::memchr;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use crate::{
    Entry, EntryKind,
    query::text::{parse_escaped_arguments, visit_texts},
};

/// The kinds of entries in the order of their codes in the index. The code of other kinds is the length of the list.
const KINDS: [EntryKind; 7] = [
    EntryKind::Message,
    EntryKind::ToolResult,
    EntryKind::ToolCall,
    EntryKind::Event,
    EntryKind::Anchor,
    EntryKind::Error,
    EntryKind::System,
];
/// The code of a line that is not an entry.
pub(super) const NO_ENTRY: u8 = u8::MAX;
/// Maximum distance of a colon after the name of a speaker from the start of a message.
const MAX_SPEAKER_BYTES: usize = 40;
/// The end of the context of a message, which names the sender. The date and [`DATE_END`] follow.
const CONTEXT_END: &str = "\n---Date: ";
const DATE_END: &str = "---\n";

/// The kind and date of an entry as the index stores them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EntryHead {
    /// The code of the kind, or [`NO_ENTRY`].
    pub(super) kind: u8,
    /// Seconds since the Unix epoch, or 0 if unknown.
    pub(super) seconds: u32,
}

/// A text of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryText<'a> {
    /// A text to search.
    Content(&'a str),
    /// A role or name, for `from:`.
    Author(&'a str),
    /// The text before a colon at the start of a message, which may be the name of the speaker.
    Speaker(&'a str),
}

/// Returns the code of a kind in the index.
pub(super) fn kind_code(kind: &EntryKind) -> u8 {
    let index = KINDS.iter().position(|known| known == kind);
    u8::try_from(index.unwrap_or(KINDS.len())).unwrap_or(NO_ENTRY - 1)
}

/// Calls `visit` with the texts of the entry on a line. May have called it before it returns `None`, which means that
/// the line must be decoded.
pub(super) fn visit_line(line: &[u8], visit: &mut dyn FnMut(EntryText<'_>)) -> Option<EntryHead> {
    let text = std::str::from_utf8(line).ok()?;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let head = LineVisitor(visit).deserialize(&mut deserializer).ok()?;
    deserializer.end().ok().and(head)
}

/// Calls `visit` with the texts of an entry.
pub(super) fn visit_entry(entry: &Entry, visit: &mut dyn FnMut(EntryText<'_>)) -> EntryHead {
    for (key, value) in &entry.payload {
        visit_texts(Some(key), value, false, &mut |key, text| {
            visit_text(key.unwrap_or_default(), text, visit);
            false
        });
    }
    EntryHead {
        kind: kind_code(&entry.kind),
        seconds: date_seconds(&entry.date),
    }
}

/// Visits one text of a payload. The context of a message names its authors, but is not part of the text.
fn visit_text(key: &str, text: &str, visit: &mut dyn FnMut(EntryText<'_>)) {
    let mut content = text;
    match key {
        "type" => return,
        "role" => return visit(EntryText::Author(text)),
        "name" => visit(EntryText::Author(text)),
        "content" | "text" => {
            let (fields, body) = split_context(text);
            visit_authors(fields, body, visit);
            content = body;
        }
        _ => {}
    }
    visit(EntryText::Content(content));
}

/// Splits a message after its context, such as `sender_id=ada|channel=$telegram`, and date. A message without a
/// context has an empty one.
fn split_context(text: &str) -> (&str, &str) {
    let name = text.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
    let name = name.into_iter().next().unwrap_or_default();
    let has_pair = !name.is_empty() && text.as_bytes().get(name.len()) == Some(&b'=');
    let dated = has_pair.then(|| text.split_once(CONTEXT_END)).flatten();
    dated
        .and_then(|(context, rest)| Some((context, rest.split_once(DATE_END)?.1)))
        .unwrap_or(("", text))
}

/// Visits the names of the sender in the context of a message, or the name before a colon at its start.
fn visit_authors(context: &str, text: &str, visit: &mut dyn FnMut(EntryText<'_>)) {
    let pairs = context.split('|').filter_map(|pair| pair.split_once('='));
    let is_sender = |key: &str| {
        ["sender", "user", "name", "from"]
            .iter()
            .any(|word| key.contains(word))
    };
    for (_, value) in pairs.filter(|(key, _)| is_sender(key)) {
        visit(EntryText::Author(value));
    }
    let start = text.as_bytes().get(..text.len().min(MAX_SPEAKER_BYTES));
    let colon = memchr(b':', start.unwrap_or_default());
    let name = colon
        .and_then(|colon| text.get(..colon))
        .unwrap_or_default();
    if !name.contains(['\n', '/', '{']) {
        visit(EntryText::Speaker(name));
    }
}

/// Returns seconds since the Unix epoch, or 0 if the date cannot be represented.
pub(super) fn date_seconds(date: &str) -> u32 {
    let seconds = parse_utc_seconds(date.as_bytes())
        .or_else(|| Some(crate::time::parse_date(date)?.as_second()));
    seconds
        .and_then(|seconds| u32::try_from(seconds).ok())
        .unwrap_or(0)
}

/// Parses a date in the format that bub writes, which is faster than the general parser.
fn parse_utc_seconds(date: &[u8]) -> Option<i64> {
    let rest = date.strip_suffix(b"+00:00")?;
    let number = |range: std::ops::Range<usize>| {
        rest.get(range)?.iter().try_fold(0_i64, |value, digit| {
            digit
                .is_ascii_digit()
                .then(|| value * 10 + i64::from(digit - b'0'))
        })
    };
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    if rest.get(10) != Some(&b'T') || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Days since the epoch in the Gregorian calendar, with years that start in March.
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let days =
        365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 719_469;
    Some(days * 86_400 + hour * 3_600 + minute * 60 + second)
}

/// Visits the payload of a line. The value is `None` if the line lacks a field.
struct LineVisitor<'a>(&'a mut dyn FnMut(EntryText<'_>));

impl<'de> DeserializeSeed<'de> for LineVisitor<'_> {
    type Value = Option<EntryHead>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for LineVisitor<'_> {
    type Value = Option<EntryHead>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an entry")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut id, mut kind, mut seconds, mut payloads) = (None, None, None, 0);
        while let Some(Text(key)) = map.next_key()? {
            match &*key {
                "id" => id = Some(map.next_value::<i64>()?),
                "kind" => {
                    let Text(name) = map.next_value()?;
                    kind = Some(kind_code(&EntryKind::from(&*name)));
                }
                "date" => seconds = Some(date_seconds(&map.next_value::<Text<'de>>()?.0)),
                "payload" => {
                    payloads += 1;
                    let (visit, key) = (&mut *self.0, "");
                    if !map.next_value_seed(PayloadVisitor { visit, key })? {
                        return Ok(None);
                    }
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(id
            .and(kind)
            .zip(seconds)
            .filter(|_| payloads == 1)
            .map(|(kind, seconds)| EntryHead { kind, seconds }))
    }
}

/// A text that is borrowed from the line if it contains no escapes.
struct Text<'de>(Cow<'de, str>);

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(TextVisitor)
    }
}

/// Visits the texts in a value, as [`visit_texts`] does. Its result is whether the value is an object.
struct PayloadVisitor<'a> {
    visit: &'a mut dyn FnMut(EntryText<'_>),
    /// The key of the value.
    key: &'a str,
}

impl<'de> DeserializeSeed<'de> for PayloadVisitor<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for PayloadVisitor<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_str<E>(self, text: &str) -> Result<bool, E> {
        visit_text(self.key, text, self.visit);
        if let Some(inner) = parse_escaped_arguments(Some(self.key), text) {
            visit_texts(None, &inner, false, &mut |key, text| {
                visit_text(key.unwrap_or_default(), text, self.visit);
                false
            });
        }
        Ok(false)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<bool, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<bool, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_f64<E>(self, _: f64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_bool<E>(self, _: bool) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_unit<E>(self) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<bool, A::Error> {
        let (visit, key) = (self.visit, self.key);
        while items
            .next_element_seed(PayloadVisitor {
                visit: &mut *visit,
                key,
            })?
            .is_some()
        {}
        Ok(false)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
        let visit = self.visit;
        while let Some(Text(key)) = map.next_key()? {
            map.next_value_seed(PayloadVisitor {
                visit: &mut *visit,
                key: &key,
            })?;
        }
        Ok(true)
    }
}
