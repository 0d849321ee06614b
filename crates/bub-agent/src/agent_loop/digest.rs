//! What a phase came to, gathered from its entries without asking anybody.

use bub_tape::{Entry, EntryId, EntryKind};
use serde_json::{Value, json};

const MAX_DIGEST_ITEMS: usize = 20;
const MAX_DIGEST_FILES: usize = 50;
const INSTRUCTION_CHARS: usize = 4000;
const TEXT_CHARS: usize = 800;
const LINE_CHARS: usize = 160;

/// The digest of a phase, always with the same slots. `entries` begin with the anchor of the phase; `asked` is the
/// user's message of the running turn.
pub(super) fn digest(entries: &[Entry], asked: Option<&Entry>) -> Value {
    let earlier = entries
        .first()
        .filter(|entry| entry.kind == EntryKind::Anchor);
    let earlier_goal =
        earlier.and_then(|anchor| anchor.payload.get("state")?.get("digest")?.get("goal"));
    let instruction = asked.and_then(text_of).unwrap_or_default();
    let first_question = || {
        entries
            .iter()
            .find(|entry| is_from(entry, "user"))
            .and_then(text_of)
    };
    let goal = match earlier_goal {
        Some(goal) => goal.clone(),
        None => cut(
            &first_question().unwrap_or_else(|| instruction.clone()),
            TEXT_CHARS,
        )
        .into(),
    };
    let said: Vec<String> = entries.iter().filter_map(said_by_model).collect();
    let last_said = said.last().map(String::as_str).unwrap_or_default();
    json!({
        "goal": goal,
        "latest_instruction": cut(&instruction, INSTRUCTION_CHARS),
        "done": done(entries, &said),
        "in_progress": open_calls(entries),
        "next": cut(last_said, TEXT_CHARS),
        "files": files(entries),
        "source": [entries.first().map(|entry| entry.id), entries.last().map(|entry| entry.id)],
    })
}

/// The entries of a turn that a view can show again behind an anchor.
pub(super) fn own_entries(entries: &[Entry], asked: EntryId) -> Vec<EntryId> {
    let shown = |entry: &&Entry| {
        matches!(
            entry.kind,
            EntryKind::Message | EntryKind::ToolCall | EntryKind::ToolResult
        ) && entry.in_context()
    };
    let since = entries
        .iter()
        .filter(|entry| entry.id > asked)
        .filter(shown)
        .map(|entry| entry.id);
    let carried = entries
        .first()
        .and_then(|anchor| anchor.payload.get("state")?.get("carry")?.as_array());
    let carried = carried
        .into_iter()
        .flatten()
        .filter_map(Value::as_i64)
        .map(EntryId::new);
    let mut ids: Vec<EntryId> = std::iter::once(asked)
        .chain(carried.filter(|id| *id > asked))
        .chain(since)
        .collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

fn done(entries: &[Entry], said: &[String]) -> Vec<String> {
    let calls = entries
        .iter()
        .filter(|entry| entry.kind == EntryKind::ToolCall)
        .flat_map(call_lines);
    let lines = said
        .iter()
        .filter_map(|text| text.lines().find(|line| !line.trim().is_empty()));
    let mut done: Vec<String> = calls
        .chain(lines.map(|line| cut(line.trim(), LINE_CHARS)))
        .collect();
    done.drain(..done.len().saturating_sub(MAX_DIGEST_ITEMS));
    done
}

/// The calls of the last response, if nothing came of them yet.
fn open_calls(entries: &[Entry]) -> Vec<String> {
    let last = entries
        .iter()
        .rev()
        .find(|entry| matches!(entry.kind, EntryKind::ToolCall | EntryKind::ToolResult));
    last.filter(|entry| entry.kind == EntryKind::ToolCall)
        .map(call_lines)
        .unwrap_or_default()
}

fn files(entries: &[Entry]) -> Vec<String> {
    let mut files: Vec<String> = Vec::new();
    for call in entries.iter().flat_map(calls) {
        let arguments = call
            .pointer("/function/arguments")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let arguments: Value = serde_json::from_str(arguments).unwrap_or_default();
        if let Some(path) = arguments.get("path").and_then(Value::as_str)
            && !files.iter().any(|known| known == path)
        {
            files.push(cut(path, LINE_CHARS));
        }
    }
    files.drain(..files.len().saturating_sub(MAX_DIGEST_FILES));
    files
}

fn calls(entry: &Entry) -> &[Value] {
    entry
        .payload
        .get("calls")
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default()
}

fn call_lines(entry: &Entry) -> Vec<String> {
    let line = |call: &Value| {
        let text = |path: &str| {
            call.pointer(path)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        cut(
            &format!("{} {}", text("/function/name"), text("/function/arguments")),
            LINE_CHARS,
        )
    };
    calls(entry).iter().map(line).collect()
}

fn said_by_model(entry: &Entry) -> Option<String> {
    let is_said = entry.kind == EntryKind::ToolCall || is_from(entry, "assistant");
    text_of(entry).filter(|text| is_said && !text.trim().is_empty())
}

fn is_from(entry: &Entry, role: &str) -> bool {
    entry.kind == EntryKind::Message
        && entry.payload.get("role").and_then(Value::as_str) == Some(role)
}

fn text_of(entry: &Entry) -> Option<String> {
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

fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}
