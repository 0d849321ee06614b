//! Builds a digest: a JSON summary of the entries since the last anchor, made without a model call.

use std::collections::BTreeSet;

use bub_tape::{Entry, EntryId, EntryKind};
use serde_json::{Value, json};

use super::calls::text_at;
use crate::truncate;

/// Maximum number of tool calls and answers in the list `done` of a digest.
const MAX_DIGEST_ITEMS: usize = 20;
const MAX_DIGEST_FILES: usize = 50;
const MAX_INSTRUCTION_CHARS: usize = 4000;
const MAX_TEXT_CHARS: usize = 800;
const MAX_LINE_CHARS: usize = 160;

/// Builds the digest of `entries`, which start with the last anchor. `prompt` is the user message of the running turn.
/// The digest always has the same keys.
pub(super) fn build_digest(entries: &[Entry], prompt: Option<&Entry>) -> Value {
    let earlier = entries.first();
    let earlier = earlier.filter(|entry| entry.kind == EntryKind::Anchor);
    let earlier_goal =
        earlier.and_then(|anchor| anchor.payload.get("state")?.get("digest")?.get("goal"));
    let instruction = prompt.and_then(entry_text).unwrap_or_default();
    let goal = earlier_goal.cloned().unwrap_or_else(|| {
        let first_message = entries.iter().find(|entry| has_role(entry, "user"));
        let goal = first_message.and_then(entry_text);
        truncate(goal.as_ref().unwrap_or(&instruction), MAX_TEXT_CHARS).into()
    });
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

/// Returns the ids of the entries that stay in the view after a handoff: the prompt of the turn, and the messages, tool
/// calls and tool results after it. `prompt` is the id of the prompt's entry.
pub(super) fn turn_entry_ids(entries: &[Entry], prompt: EntryId) -> Vec<EntryId> {
    let is_visible = |entry: &&Entry| {
        matches!(
            entry.kind,
            EntryKind::Message | EntryKind::ToolCall | EntryKind::ToolResult
        ) && entry.is_in_context()
    };
    let visible = entries.iter().filter(is_visible).map(|entry| entry.id);
    let anchor = entries.first();
    let carried = anchor.and_then(|anchor| anchor.payload.get("state")?.get("carry")?.as_array());
    let carried = carried.into_iter().flatten().filter_map(Value::as_i64);
    let later = carried.map(EntryId::new).chain(visible);
    let later = later.filter(|id| *id > prompt);
    let ids: BTreeSet<EntryId> = later.chain([prompt]).collect();
    ids.into_iter().collect()
}

/// Returns one line per tool call, then the first line of each answer. Keeps only the last `MAX_DIGEST_ITEMS` lines.
fn completed_work(entries: &[Entry], answers: &[String]) -> Vec<String> {
    let calls = entries
        .iter()
        .filter(|entry| entry.kind == EntryKind::ToolCall);
    let mut done: Vec<String> = calls.flat_map(format_calls).collect();
    let lines = answers.iter();
    let lines = lines.filter_map(|text| text.lines().map(str::trim).find(|line| !line.is_empty()));
    done.extend(lines.map(|line| truncate(line, MAX_LINE_CHARS)));
    done.drain(..done.len().saturating_sub(MAX_DIGEST_ITEMS));
    done
}

/// Returns one line per tool call of the last response, or no lines if the calls have results.
fn open_call_lines(entries: &[Entry]) -> Vec<String> {
    let is_call_or_result =
        |entry: &&Entry| matches!(entry.kind, EntryKind::ToolCall | EntryKind::ToolResult);
    match entries.iter().rev().find(is_call_or_result) {
        Some(entry) if entry.kind == EntryKind::ToolCall => format_calls(entry),
        _ => Vec::new(),
    }
}

/// Returns the values of the argument `path` of all tool calls, without duplicates.
fn touched_files(entries: &[Entry]) -> Vec<String> {
    let mut files: Vec<String> = Vec::new();
    for call in entries.iter().flat_map(tool_calls) {
        let arguments = text_at(call, "/function/arguments");
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

/// Returns the tool calls of an entry.
pub(super) fn tool_calls(entry: &Entry) -> &[Value] {
    let calls = entry.payload.get("calls").and_then(Value::as_array);
    calls.map(Vec::as_slice).unwrap_or_default()
}

/// Returns one line per tool call of an entry: name and arguments.
fn format_calls(entry: &Entry) -> Vec<String> {
    let line = |call: &Value| {
        let name = text_at(call, "/function/name");
        let line = format!("{name} {}", text_at(call, "/function/arguments"));
        truncate(&line, MAX_LINE_CHARS)
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
            let texts = parts.iter().filter_map(|part| part.get("text")?.as_str());
            Some(texts.collect::<Vec<_>>().join("\n"))
        }
        _ => None,
    }
}
