//! Formats the content of entries as readable text.

use bub_tape::{Entry, EntryKind, codec};
use serde_json::{Map, Value};

/// Returns the label that is shown beside the kind of an entry: a role, a name, or an error kind. For other kinds it is
/// empty.
pub(super) fn entry_label(entry: &Entry) -> String {
    let text = |key: &str| {
        entry
            .payload
            .get(key)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    match &entry.kind {
        EntryKind::Message => text("role"),
        EntryKind::Anchor | EntryKind::Event => text("name"),
        EntryKind::Error => text("kind"),
        EntryKind::System | EntryKind::ToolCall | EntryKind::ToolResult | EntryKind::Other(_) => {
            String::new()
        }
    }
}

/// Returns the content of an entry without a final newline. It is empty if the entry has only a label.
pub(super) fn entry_text(entry: &Entry) -> String {
    let payload = &entry.payload;
    match &entry.kind {
        EntryKind::Message => format_message(payload, &entry.meta),
        EntryKind::System => payload
            .get("content")
            .map(format_content)
            .unwrap_or_default(),
        EntryKind::Anchor => payload.get("state").map(format_value).unwrap_or_default(),
        EntryKind::Event => payload.get("data").map(format_value).unwrap_or_default(),
        EntryKind::ToolCall => join_lines([
            payload
                .get("content")
                .map(format_content)
                .unwrap_or_default(),
            format_tool_calls(payload.get("calls")),
        ]),
        EntryKind::ToolResult => format_tool_results(payload.get("results")),
        EntryKind::Error => join_lines([
            payload
                .get("message")
                .map(format_content)
                .unwrap_or_default(),
            payload.get("details").map(format_value).unwrap_or_default(),
        ]),
        EntryKind::Other(_) => codec::to_python_json(payload),
    }
}

fn format_message(payload: &Map<String, Value>, meta: &Map<String, Value>) -> String {
    let text = payload
        .get("content")
        .map(format_content)
        .unwrap_or_default();
    let media: Vec<_> = meta
        .get("media")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .map(format_media_item)
        .collect();
    join_lines([
        text,
        media.join("\n"),
        format_tool_calls(payload.get("tool_calls")),
    ])
}

/// Formats message content: text unchanged, one part per line, other values as JSON.
fn format_content(value: &Value) -> String {
    match value {
        Value::String(text) => text.trim_end().to_owned(),
        Value::Array(parts) => join_lines(parts.iter().map(format_part)),
        other => format_value(other),
    }
}

fn format_part(value: &Value) -> String {
    match value.get("text").and_then(Value::as_str).or(value.as_str()) {
        Some(text) => text.trim_end().to_owned(),
        // Older versions stored media inline; show only the type instead of the bytes.
        None => format!(
            "[{}]",
            value.get("type").and_then(Value::as_str).unwrap_or("part")
        ),
    }
}

fn format_media_item(item: &Value) -> String {
    let text = |key: &str| item.get(key).and_then(Value::as_str).unwrap_or("?");
    format!("[{} {}]", text("type"), text("blob"))
}

fn format_tool_calls(calls: Option<&Value>) -> String {
    join_lines(
        calls
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .map(format_tool_call),
    )
}

fn format_tool_call(call: &Value) -> String {
    let function = call.get("function").unwrap_or(call);
    let name = function.get("name").and_then(Value::as_str).unwrap_or("?");
    let arguments = match function.get("arguments") {
        Some(Value::String(text)) => text.clone(),
        Some(value) => format_value(value),
        None => String::new(),
    };
    format!("{name} {arguments}").trim_end().to_owned()
}

fn format_tool_results(results: Option<&Value>) -> String {
    join_lines(
        results
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .map(format_content),
    )
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
    parts
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join("\n")
}
