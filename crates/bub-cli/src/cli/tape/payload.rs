//! Formats the content of entries as readable text.

use bub_tape::{Entry, EntryKind, codec};
use serde_json::Value;

use super::text::sanitize_line;

/// Returns the kind of an entry and its label, in one line.
pub(super) fn entry_title(entry: &Entry) -> String {
    sanitize_line(&format!("{} {}", entry.kind, entry_label(entry)))
}

/// Returns the label that is shown beside the kind of an entry: a role, a name, or an error kind. For other kinds it is
/// empty.
pub(super) fn entry_label(entry: &Entry) -> &str {
    let key = match &entry.kind {
        EntryKind::Message => "role",
        EntryKind::Anchor | EntryKind::Event => "name",
        EntryKind::Error => "kind",
        EntryKind::System | EntryKind::ToolCall | EntryKind::ToolResult | EntryKind::Other(_) => {
            return "";
        }
    };
    let label = entry.payload.get(key).and_then(Value::as_str);
    label.unwrap_or_default()
}

/// Returns the content of an entry without a final newline. It is empty if the entry has only a label.
pub(super) fn entry_text(entry: &Entry) -> String {
    let field = |key: &str, format: fn(&Value) -> String| {
        let value = entry.payload.get(key);
        value.map(format).unwrap_or_default()
    };
    let list = |key: &str, format| format_list(entry.payload.get(key), format);
    match &entry.kind {
        EntryKind::Message => join_lines([
            field("content", format_content),
            format_list(entry.meta.get("media"), format_media_item),
            list("tool_calls", format_tool_call),
        ]),
        EntryKind::System => field("content", format_content),
        EntryKind::Anchor => field("state", format_value),
        EntryKind::Event => field("data", format_value),
        EntryKind::ToolCall => join_lines([
            field("content", format_content),
            list("calls", format_tool_call),
        ]),
        EntryKind::ToolResult => list("results", format_content),
        EntryKind::Error => join_lines([
            field("message", format_content),
            field("details", format_value),
        ]),
        EntryKind::Other(_) => codec::to_python_json(&entry.payload),
    }
}

fn format_list(items: Option<&Value>, format: fn(&Value) -> String) -> String {
    let items = items.and_then(Value::as_array);
    join_lines(items.into_iter().flatten().map(format))
}

/// Formats the content of an entry: text without trailing whitespace, a list with one item per line, other values as
/// JSON.
fn format_content(value: &Value) -> String {
    match value {
        Value::String(text) => text.trim_end().to_owned(),
        Value::Array(parts) => join_lines(parts.iter().map(format_part)),
        other => format_value(other),
    }
}

fn format_part(value: &Value) -> String {
    match text_field(value, "text").or(value.as_str()) {
        Some(text) => text.trim_end().to_owned(),
        // Older versions stored media inline; show only the type instead of the bytes.
        None => format!("[{}]", text_field(value, "type").unwrap_or("part")),
    }
}

fn format_media_item(item: &Value) -> String {
    let text = |key: &str| text_field(item, key).unwrap_or("?");
    format!("[{} {}]", text("type"), text("blob"))
}

fn text_field<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str)
}

fn format_tool_call(call: &Value) -> String {
    let function = call.get("function").unwrap_or(call);
    let name = text_field(function, "name").unwrap_or("?");
    let arguments = match function.get("arguments") {
        Some(Value::String(text)) => text.clone(),
        Some(value) => format_value(value),
        None => String::new(),
    };
    format!("{name} {arguments}").trim_end().to_owned()
}

/// Formats a JSON value. `null` and `{}` become an empty string.
fn format_value(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Object(map) if map.is_empty() => String::new(),
        Value::String(text) => text.clone(),
        other => codec::to_python_json(other),
    }
}

fn join_lines(parts: impl IntoIterator<Item = String>) -> String {
    let parts = parts.into_iter().filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("\n")
}
