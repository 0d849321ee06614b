//! Builds the slots of a handoff from the tape, without a model call.

use bub_kernel::{Result, tape_error};
use bub_tape::{
    AnchorQuery, Entry, EntryId, EntryKind, EntryRange, HandoffSlots, Tape, message_text,
};
use serde_json::Value;

use super::{calls::text_at, step::is_handoff_notice};
use crate::{conversation::split_context, truncate};

const MAX_TEXT_CHARS: usize = 800;
const MAX_LINE_CHARS: usize = 160;

/// The entries that a handoff sums up: the last anchor, the entries it carries, and the entries after it.
pub(crate) struct PhaseEntries {
    carried: Vec<Entry>,
    /// The last anchor, if the tape has one, and the entries after it.
    entries: Vec<Entry>,
}

impl PhaseEntries {
    /// Reads the entries since the last anchor.
    pub(crate) async fn read(tape: &Tape) -> Result<Self> {
        let marks = tape.anchor_marks(AnchorQuery::Latest(1)).await;
        let range = match marks.map_err(tape_error)?.pop() {
            Some(mark) => EntryRange::starting_at(mark.position),
            None => EntryRange::ALL,
        };
        let entries = tape.entries(range).await.map_err(tape_error)?;
        let ids = anchor_state(&entries).and_then(|state| state.get("carry")?.as_array());
        let ids = ids.into_iter().flatten().filter_map(Value::as_i64);
        let ids: Vec<EntryId> = ids.map(EntryId::new).collect();
        let carried = tape.store().fetch(tape.name(), &ids).await;
        Ok(Self {
            carried: carried.map_err(tape_error)?,
            entries,
        })
    }

    /// Returns the messages, tool calls and tool results that a view of these entries shows, from `first` on.
    pub(crate) fn shown_from(&self, first: EntryId) -> impl DoubleEndedIterator<Item = &Entry> {
        let all = self.carried.iter().chain(&self.entries);
        all.filter(move |entry| {
            let is_shown = matches!(
                entry.kind,
                EntryKind::Message | EntryKind::ToolCall | EntryKind::ToolResult
            );
            is_shown && entry.is_in_context() && entry.id >= first
        })
    }

    /// Returns the latest message of the user.
    pub(crate) fn instruction(&self) -> Option<&Entry> {
        self.shown_from(EntryId::default())
            .rfind(|entry| is_instruction(entry))
    }

    /// Returns whether there is something to sum up.
    pub(crate) fn has_content(&self) -> bool {
        self.earlier_slots().is_some() || self.instruction().is_some()
    }

    /// Fills the slots from the tape. Continues those of the last anchor.
    pub(super) fn digest(&self) -> HandoffSlots {
        let mut slots = self.earlier_slots().unwrap_or_else(|| {
            let mut slots = HandoffSlots::default();
            slots.source.first = self
                .entries
                .first()
                .map(|entry| entry.id)
                .unwrap_or_default();
            slots
        });
        slots.source.last = self
            .entries
            .last()
            .map(|entry| entry.id)
            .unwrap_or_default();
        if let Some(entry) = self.instruction() {
            slots.source.instruction = Some(entry.id);
            slots.latest_instruction = entry_text(entry).unwrap_or_default();
        }
        if slots.goal.is_empty() {
            // Handoffs of earlier versions have the goal in a digest.
            let digest = anchor_state(&self.entries).and_then(|state| state.get("digest"));
            let earlier = digest.and_then(|digest| digest.get("goal")?.as_str());
            let first = || {
                self.shown_from(EntryId::default())
                    .find(|entry| is_instruction(entry))
            };
            let goal = earlier.map(str::to_owned).or_else(|| entry_text(first()?));
            slots.goal = one_line(&goal.unwrap_or_default(), MAX_TEXT_CHARS);
        }
        slots.done.extend(self.entries.iter().flat_map(work_lines));
        slots.in_progress = self.open_call_lines();
        let answer = self.entries.iter().rev().find_map(model_text);
        let answer = answer.map(|text| one_line(&text, MAX_TEXT_CHARS));
        slots.next = answer.into_iter().collect();
        for path in self
            .entries
            .iter()
            .flat_map(tool_calls)
            .filter_map(path_argument)
        {
            slots.files.retain(|file| *file != path);
            slots.files.push(path);
        }
        slots
    }

    fn earlier_slots(&self) -> Option<HandoffSlots> {
        HandoffSlots::from_state(anchor_state(&self.entries)?)
    }

    /// Returns one line per tool call of the last response, or no lines if the calls have results.
    fn open_call_lines(&self) -> Vec<String> {
        let is_call_or_result =
            |entry: &&Entry| matches!(entry.kind, EntryKind::ToolCall | EntryKind::ToolResult);
        let last = self.entries.iter().rev().find(is_call_or_result);
        let call = last.filter(|entry| entry.kind == EntryKind::ToolCall);
        call.into_iter().flat_map(work_lines).collect()
    }
}

/// Returns whether an entry is a message of the user.
pub(super) fn is_instruction(entry: &Entry) -> bool {
    has_role(entry, "user") && !is_notice(entry)
}

/// Returns whether an entry is a notice of bub about the context window.
pub(super) fn is_notice(entry: &Entry) -> bool {
    let is_notice = || entry_text(entry).is_some_and(|text| is_handoff_notice(&text));
    has_role(entry, "user") && is_notice()
}

/// Returns the state of the anchor that `entries` start with.
fn anchor_state(entries: &[Entry]) -> Option<&Value> {
    let anchor = entries.first();
    let anchor = anchor.filter(|entry| entry.kind == EntryKind::Anchor);
    anchor?.payload.get("state")
}

/// Returns what the model did in an entry: one line per tool call, or the first line of an answer. Each line starts
/// with the id of the entry.
fn work_lines(entry: &Entry) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    if entry.kind == EntryKind::ToolCall {
        lines.extend(tool_calls(entry).iter().map(|call| {
            let name = text_at(call, "/function/name");
            format!("{name} {}", text_at(call, "/function/arguments"))
        }));
    } else if let Some(text) = model_text(entry) {
        let first = text.trim().lines().next();
        lines.extend(first.map(str::to_owned));
    }
    let id = entry.id;
    let lines = lines
        .iter()
        .map(|line| format!("#{id} {}", one_line(line, MAX_LINE_CHARS)));
    lines.collect()
}

/// Returns the argument `path` of a tool call.
fn path_argument(call: &Value) -> Option<String> {
    let arguments = text_at(call, "/function/arguments");
    let arguments: Value = serde_json::from_str(arguments).ok()?;
    let path = arguments.get("path")?.as_str()?;
    Some(one_line(path, MAX_LINE_CHARS))
}

/// Returns the tool calls of an entry.
pub(super) fn tool_calls(entry: &Entry) -> &[Value] {
    let calls = entry.payload.get("calls").and_then(Value::as_array);
    calls.map(Vec::as_slice).unwrap_or_default()
}

fn model_text(entry: &Entry) -> Option<String> {
    let is_from_model = entry.kind == EntryKind::ToolCall || has_role(entry, "assistant");
    entry_text(entry).filter(|text| is_from_model && !text.trim().is_empty())
}

fn has_role(entry: &Entry, role: &str) -> bool {
    entry.kind == EntryKind::Message
        && entry.payload.get("role").and_then(Value::as_str) == Some(role)
}

/// Returns the text of a message, without the line before a user's message that says where it comes from.
fn entry_text(entry: &Entry) -> Option<String> {
    match entry.payload.get("content")? {
        Value::String(text) => {
            let message = message_text(&entry.payload);
            Some(message.map_or(text.as_str(), |(_, body)| body).to_owned())
        }
        Value::Array(parts) => {
            let texts = parts.iter().filter_map(|part| part.get("text")?.as_str());
            let text = texts.collect::<Vec<_>>().join("\n");
            let is_user = has_role(entry, "user");
            Some(if is_user {
                split_context(&text).1.to_owned()
            } else {
                text
            })
        }
        _ => None,
    }
}

/// Returns a text in one line, with at most `max_chars` characters.
pub(super) fn one_line(text: &str, max_chars: usize) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    truncate(&words.join(" "), max_chars)
}
