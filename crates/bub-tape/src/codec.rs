//! One entry, one line of JSON, byte for byte as the original writes it.

use std::io;

use serde::Serialize;
use serde_json::{Map, Value, ser::Formatter};

use crate::{Entry, EntryId, EntryKind, json, time};

/// The keys of a line, in the order the original writes them.
const KEYS: [&str; 5] = ["id", "kind", "payload", "meta", "date"];

/// The line of an entry, with its newline.
pub fn encode(entry: &Entry) -> String {
    let mut body = Vec::with_capacity(384);
    encode_body(&mut body, entry);
    let mut line = Vec::with_capacity(body.len() + 16);
    push_id(&mut line, entry.id, &body);
    String::from_utf8_lossy(&line).into_owned()
}

/// Everything of the line but the id, so that it can be prepared before the id is known.
pub(crate) fn encode_body(out: &mut Vec<u8>, entry: &Entry) {
    out.extend_from_slice(b", \"kind\": ");
    write_value(out, entry.kind.as_str());
    out.extend_from_slice(b", \"payload\": ");
    write_value(out, &entry.payload);
    out.extend_from_slice(b", \"meta\": ");
    write_value(out, &entry.meta);
    out.extend_from_slice(b", \"date\": ");
    write_value(out, &entry.date);
    for (key, value) in entry
        .extra
        .iter()
        .filter(|(key, _)| !KEYS.contains(&key.as_str()))
    {
        out.extend_from_slice(b", ");
        write_value(out, key);
        out.extend_from_slice(b": ");
        write_value(out, value);
    }
    out.extend_from_slice(b"}\n");
}

/// Puts the id before a prepared body.
pub(crate) fn push_id(out: &mut Vec<u8>, id: EntryId, body: &[u8]) {
    out.extend_from_slice(b"{\"id\": ");
    write_value(out, &id);
    out.extend_from_slice(body);
}

/// Reads one line, with or without its newline. `None` for what is no entry: blank, not JSON, not UTF-8,
/// without an integer id, a text kind and an object payload.
pub fn decode(line: &[u8]) -> Option<Entry> {
    // An editor may have put a byte order mark before the first line.
    let text = std::str::from_utf8(line)
        .ok()?
        .trim_start_matches('\u{feff}')
        .trim();
    if text.is_empty() {
        return None;
    }
    let value = serde_json::from_str(text)
        .ok()
        .or_else(|| json::parse_lenient(text))?;
    match value {
        Value::Object(map) => from_object(map),
        _ => None,
    }
}

fn from_object(mut map: Map<String, Value>) -> Option<Entry> {
    let id = EntryId::new(map.get("id")?.as_i64()?);
    let kind = EntryKind::from(map.get("kind")?.as_str()?);
    let Some(Value::Object(payload)) = map.get_mut("payload").map(Value::take) else {
        return None;
    };
    let meta = match map.get_mut("meta").map(Value::take) {
        Some(Value::Object(meta)) => meta,
        _ => Map::new(),
    };
    let date = match map.get_mut("date").map(Value::take) {
        Some(Value::String(date)) => date,
        _ => time::from_unix(map.get("timestamp").and_then(Value::as_f64).unwrap_or(0.0)),
    };
    // Known lines have nothing else; `retain` on the rest keeps the order of what is unknown.
    if map.len() <= KEYS.len() && map.keys().all(|key| KEYS.contains(&key.as_str())) {
        map = Map::new();
    } else {
        map.retain(|key, _| !KEYS.contains(&key.as_str()));
    }
    Some(Entry {
        id,
        kind,
        payload,
        meta,
        date,
        extra: map,
    })
}

/// Text in the original's JSON style (`", "` and `": "`, non-ASCII as is).
pub fn to_python_json<T: Serialize + ?Sized>(value: &T) -> String {
    let mut out = Vec::new();
    write_value(&mut out, value);
    String::from_utf8_lossy(&out).into_owned()
}

fn write_value<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    let before = out.len();
    let mut serializer = serde_json::Serializer::with_formatter(&mut *out, PythonFormatter);
    // Writing JSON values to memory cannot fail; a foreign `Serialize` that refuses becomes `null`.
    if value.serialize(&mut serializer).is_err() {
        out.truncate(before);
        out.extend_from_slice(b"null");
    }
}

/// The separators of Python's `json.dumps`.
struct PythonFormatter;

impl Formatter for PythonFormatter {
    fn begin_array_value<W: io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if first {
            Ok(())
        } else {
            writer.write_all(b", ")
        }
    }

    fn begin_object_key<W: io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if first {
            Ok(())
        } else {
            writer.write_all(b", ")
        }
    }

    fn begin_object_value<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}
