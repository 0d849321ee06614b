//! Builds a digest of the entries since the last anchor, without a model call.

use bub_tape::{Entry, EntryId, EntryKind};
use serde_json::{Value, json};

/// Maximum number of tool calls and answers listed as done.
const MAX_DIGEST_ITEMS: usize = 20;
const MAX_DIGEST_FILES: usize = 50;
const MAX_INSTRUCTION_CHARS: usize = 4000;
const MAX_TEXT_CHARS: usize = 800;
const MAX_LINE_CHARS: usize = 160;

/// Builds the digest of `entries`, which start with the last anchor. `prompt` is the user message of the running turn.
/// The digest always has the same keys.
pub(super) fn build_digest(entries: &[Entry], prompt: Option<&Entry>) -> Value {
    let earlier = entries
        .first()
        .filter(|entry| entry.kind == EntryKind::Anchor);
    let earlier_goal =
        earlier.and_then(|anchor| anchor.payload.get("state")?.get("digest")?.get("goal"));
    let instruction = prompt.and_then(entry_text).unwrap_or_default();
    let first_user_text = || {
        entries
            .iter()
            .find(|entry| has_role(entry, "user"))
            .and_then(entry_text)
    };
    let goal = match earlier_goal {
        Some(goal) => goal.clone(),
        None => truncate(
            &first_user_text().unwrap_or_else(|| instruction.clone()),
            MAX_TEXT_CHARS,
        )
        .into(),
    };
    let answers: Vec<String> = entries.iter().filter_map(model_text).collect();
    let last_answer = answers.last().map(String::as_str).unwrap_or_default();
    json!({
        "goal": goal,
        "latest_instruction": truncate(&instruction, MAX_INSTRUCTION_CHARS),
        "done": completed_work(entries, &answers),
        "in_progress": open_call_lines(entries),
        "next": truncate(last_answer, MAX_TEXT_CHARS),
        "files": touched_files(entries),
        "source": [entries.first().map(|entry| entry.id), entries.last().map(|entry| entry.id)],
    })
}

/// Returns the ids of the turn's entries that a view can show after a new anchor. `prompt` is the id of the turn's
/// prompt.
pub(super) fn turn_entry_ids(entries: &[Entry], prompt: EntryId) -> Vec<EntryId> {
    let is_visible = |entry: &&Entry| {
        matches!(
            entry.kind,
            EntryKind::Message | EntryKind::ToolCall | EntryKind::ToolResult
        ) && entry.is_in_context()
    };
    let since = entries
        .iter()
        .filter(|entry| entry.id > prompt)
        .filter(is_visible)
        .map(|entry| entry.id);
    let carried = entries
        .first()
        .and_then(|anchor| anchor.payload.get("state")?.get("carry")?.as_array());
    let carried = carried
        .into_iter()
        .flatten()
        .filter_map(Value::as_i64)
        .map(EntryId::new);
    let mut ids: Vec<EntryId> = std::iter::once(prompt)
        .chain(carried.filter(|id| *id > prompt))
        .chain(since)
        .collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// Returns the latest tool calls and the first lines of the latest answers, one line each.
fn completed_work(entries: &[Entry], answers: &[String]) -> Vec<String> {
    let calls = entries
        .iter()
        .filter(|entry| entry.kind == EntryKind::ToolCall)
        .flat_map(format_calls);
    let lines = answers
        .iter()
        .filter_map(|text| text.lines().find(|line| !line.trim().is_empty()));
    let mut done: Vec<String> = calls
        .chain(lines.map(|line| truncate(line.trim(), MAX_LINE_CHARS)))
        .collect();
    done.drain(..done.len().saturating_sub(MAX_DIGEST_ITEMS));
    done
}

/// Returns the calls of the last response if they have no results yet.
fn open_call_lines(entries: &[Entry]) -> Vec<String> {
    let last = entries
        .iter()
        .rev()
        .find(|entry| matches!(entry.kind, EntryKind::ToolCall | EntryKind::ToolResult));
    last.filter(|entry| entry.kind == EntryKind::ToolCall)
        .map(format_calls)
        .unwrap_or_default()
}

/// Returns the values of the argument `path` of all tool calls, without duplicates.
fn touched_files(entries: &[Entry]) -> Vec<String> {
    let mut files: Vec<String> = Vec::new();
    for call in entries.iter().flat_map(tool_calls) {
        let arguments = call
            .pointer("/function/arguments")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let arguments: Value = serde_json::from_str(arguments).unwrap_or_default();
        if let Some(path) = arguments.get("path").and_then(Value::as_str)
            && !files.iter().any(|file| file == path)
        {
            files.push(truncate(path, MAX_LINE_CHARS));
        }
    }
    files.drain(..files.len().saturating_sub(MAX_DIGEST_FILES));
    files
}

fn tool_calls(entry: &Entry) -> &[Value] {
    entry
        .payload
        .get("calls")
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default()
}

/// Returns one line per tool call of an entry: name and arguments.
fn format_calls(entry: &Entry) -> Vec<String> {
    let line = |call: &Value| {
        let text = |path: &str| {
            call.pointer(path)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        truncate(
            &format!("{} {}", text("/function/name"), text("/function/arguments")),
            MAX_LINE_CHARS,
        )
    };
    tool_calls(entry).iter().map(line).collect()
}

fn model_text(entry: &Entry) -> Option<String> {
    let is_from_model = entry.kind == EntryKind::ToolCall || has_role(entry, "assistant");
    entry_text(entry).filter(|text| is_from_model && !text.trim().is_empty())
}

fn has_role(entry: &Entry, role: &str) -> bool {
    entry.kind == EntryKind::Message
        && entry.payload.get("role").and_then(Value::as_str) == Some(role)
}

fn entry_text(entry: &Entry) -> Option<String> {
    match entry.payload.get("content")? {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => {
            let texts: Vec<_> = parts
                .iter()
                .filter_map(|part| part.get("text")?.as_str())
                .collect();
            Some(texts.join("\n"))
        }
        _ => None,
    }
}

fn truncate(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}
