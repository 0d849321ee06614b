//! Encodes and decodes entries as lines of JSON. The bytes equal those that the Python version writes.

use std::io;

use serde::Serialize;
use serde_json::{Map, Value, ser::Formatter};

use crate::{Entry, EntryId, EntryKind, json, time};

/// The keys of a line, in the order of the Python version.
const KEYS: [&str; 5] = ["id", "kind", "payload", "meta", "date"];

/// Returns the line of an entry, including its newline.
pub fn encode(entry: &Entry) -> String {
    let body = encode_body(entry);
    let mut line = Vec::with_capacity(body.len() + 16);
    push_line(&mut line, entry.id, &body);
    String::from_utf8_lossy(&line).into_owned()
}

/// Returns the line of an entry without the id at its start. A store encodes the rest of the line before it takes the
/// tape's lock, and knows the id only under the lock.
pub(crate) fn encode_body(entry: &Entry) -> Vec<u8> {
    let mut body = Vec::with_capacity(384);
    let out = &mut body;
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
    body
}

/// Appends a complete line to `out`: the id, then the body from [`encode_body`].
pub(crate) fn push_line(out: &mut Vec<u8>, id: EntryId, body: &[u8]) {
    out.extend_from_slice(b"{\"id\": ");
    write_value(out, &id);
    out.extend_from_slice(body);
}

/// Parses one line, with or without its newline.
///
/// Returns `None` if the line is not an entry: if it is blank, not JSON or not UTF-8, or if it lacks an integer `id`,
/// a string `kind` or an object `payload`.
pub fn decode(line: &[u8]) -> Option<Entry> {
    // An editor may have written a byte order mark before the first line.
    let text = std::str::from_utf8(line)
        .ok()?
        .trim_start_matches('\u{feff}')
        .trim();
    if text.is_empty() {
        return None;
    }
    let value = serde_json::from_str(text)
        .ok()
        .or_else(|| json::parse_json_lenient(text))?;
    match value {
        Value::Object(map) => entry_from_object(map),
        _ => None,
    }
}

fn entry_from_object(mut map: Map<String, Value>) -> Option<Entry> {
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
        _ => time::format_unix(map.get("timestamp").and_then(Value::as_f64).unwrap_or(0.0)),
    };
    // Most lines have only known keys and do not need `retain`, which keeps unknown keys in order.
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

/// Serializes a value in the JSON style of the Python version: separators `", "` and `": "`, non-ASCII unescaped.
///
/// ```
/// let value = serde_json::json!({"a": [1, 2], "b": "ü"});
/// assert_eq!(bub_tape::codec::to_python_json(&value), r#"{"a": [1, 2], "b": "ü"}"#);
/// ```
pub fn to_python_json<T: Serialize + ?Sized>(value: &T) -> String {
    let mut out = Vec::new();
    write_value(&mut out, value);
    String::from_utf8_lossy(&out).into_owned()
}

fn write_value<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    let before = out.len();
    let mut serializer = serde_json::Serializer::with_formatter(&mut *out, PythonFormatter);
    // Writing JSON values to memory cannot fail. If another `Serialize` type returns an error, write `null`.
    if value.serialize(&mut serializer).is_err() {
        out.truncate(before);
        out.extend_from_slice(b"null");
    }
}

/// Writes the separators of Python's `json.dumps`.
struct PythonFormatter;

impl Formatter for PythonFormatter {
    fn begin_array_value<W: io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}
