//! The state of an anchor that hands off: the slots and the entries that stay, within a budget of tokens.

use std::collections::BTreeSet;

use bub_tape::{Entry, EntryId, EntryKind, HandoffSlots};
use serde_json::{Map, Value, json};

use super::{
    budget::{HandoffBudget, estimate_tokens, prefix_within, text_tokens},
    digest::{PhaseEntries, is_instruction, is_notice, one_line},
};
use crate::truncate;

/// Maximum number of items in a list of slots.
const MAX_ITEMS: usize = 32;
const MAX_ITEM_CHARS: usize = 400;
const MAX_GOAL_CHARS: usize = 800;
/// Maximum characters of text that the model wrote outside of slots.
const MAX_SUMMARY_CHARS: usize = 12_800;
/// Maximum characters of an instruction in the slots if its entry stays in the view.
const MAX_CARRIED_INSTRUCTION_CHARS: usize = 800;
/// Estimated tokens of the opening message of a view without its slots, and of what separates them.
const OPENING_TOKENS: u64 = 80;
/// Estimated tokens of the note in an instruction that is too long.
const NOTE_TOKENS: u64 = 32;
/// Estimated tokens that a tool result needs in addition to its entry.
const TOKENS_PER_RESULT: u64 = 32;

/// What a handoff is built from.
pub(crate) struct HandoffParts<'a> {
    pub(crate) phase: &'a PhaseEntries,
    /// Entries that stay in the view if the budget allows it, oldest first. Empty between turns.
    pub(crate) candidates: Vec<&'a Entry>,
    /// What the model wrote, or an empty text.
    pub(crate) written: &'a str,
    /// The todo list of the session.
    pub(crate) todo: &'a [String],
    /// The estimated tokens that the view may have after the handoff.
    pub(crate) budget: HandoffBudget,
}

impl HandoffParts<'_> {
    /// Builds the state. The latest instruction gets its tokens first, then the slots, then the other candidates,
    /// newest first.
    pub(crate) fn into_state(self) -> Map<String, Value> {
        let mut slots = self.phase.digest();
        let (model_slots, mut summary) = HandoffSlots::parse(self.written);
        slots.merge(model_slots);
        let HandoffBudget {
            limit,
            target,
            reserve,
        } = self.budget;
        let instruction = slots.source.instruction;
        let latest = self
            .candidates
            .iter()
            .rfind(|entry| Some(entry.id) == instruction);
        let room = limit.saturating_sub(OPENING_TOKENS);
        let mut carry = BTreeSet::new();
        let used = match latest.map(|entry| entry_tokens(entry)) {
            Some(tokens) if tokens <= room => {
                let text = truncate(&slots.latest_instruction, MAX_CARRIED_INSTRUCTION_CHARS);
                slots.latest_instruction = text;
                carry.extend(instruction);
                tokens
            }
            _ => {
                let text = excerpt(&slots.latest_instruction, room, instruction);
                slots.latest_instruction = text;
                text_tokens(&slots.latest_instruction)
            }
        };
        let used = used + OPENING_TOKENS;
        let left = target.saturating_sub(used);
        let mut left = left.max(reserve.min(limit.saturating_sub(used)));
        let spare = limit.saturating_sub(used + left);
        let todo = self.fitting_todo(left / 4);
        left = left.saturating_sub(estimate_tokens(&todo));
        // The prompt of the turn, then messages that steered the turn. Each leaves half of the tokens for the rest.
        let mut earlier = self.candidates.iter().filter(|entry| is_instruction(entry));
        for entry in earlier.next().into_iter().chain(earlier.rev()) {
            let tokens = entry_tokens(entry);
            if tokens <= left / 2 && carry.insert(entry.id) {
                left -= tokens;
            }
        }
        let mut rest = self.candidates;
        // The notices of bub among the user's messages are outdated.
        rest.retain(|entry| !carry.contains(&entry.id) && !is_notice(entry));
        let max_slots = if rest.is_empty() { left } else { left / 2 };
        // The model has not seen the latest results yet, so they may use more tokens than the rest.
        let latest = latest_response(&rest);
        let tokens: u64 = latest.iter().map(|entry| entry_tokens(entry)).sum();
        if tokens > left - max_slots + spare {
            slots.in_progress.extend(
                latest
                    .iter()
                    .filter_map(|entry| long_result(entry, left / 8)),
            );
        }
        shrink(&mut slots, &mut summary, max_slots);
        left = left.saturating_sub(slots_tokens(&slots, &summary));
        carry.extend(newest_entries(&rest, left, left + spare));
        let mut state = match serde_json::to_value(&slots) {
            Ok(Value::Object(state)) => state,
            _ => Map::new(),
        };
        if !summary.is_empty() {
            state.insert("summary".to_owned(), summary.into());
        }
        if !todo.is_empty() {
            state.insert("todo".to_owned(), todo.into());
        }
        state.insert("carry".to_owned(), json!(carry));
        state
    }

    fn fitting_todo(&self, max_tokens: u64) -> Vec<Value> {
        let mut todo: Vec<Value> = self.todo.iter().map(|item| item.as_str().into()).collect();
        while estimate_tokens(&todo) > max_tokens && todo.pop().is_some() {}
        todo
    }
}

/// Returns the estimated tokens of an entry in a view.
fn entry_tokens(entry: &Entry) -> u64 {
    let results = entry.payload.get("results").and_then(Value::as_array);
    let results = results.map_or(0, |results| results.len() as u64);
    let state = entry.meta.get("provider_state").cloned();
    let payload = Value::Object(entry.payload.clone());
    estimate_tokens([&payload]) + estimate_tokens(&state) + results * TOKENS_PER_RESULT
}

/// Returns the last tool calls and their results.
fn latest_response<'a>(entries: &'a [&'a Entry]) -> &'a [&'a Entry] {
    let is_call = |entry: &&Entry| entry.kind == EntryKind::ToolCall;
    let first = entries.iter().rposition(is_call);
    first
        .and_then(|first| entries.get(first..))
        .unwrap_or_default()
}

/// Returns the newest entries that fit. The latest response may use `max_latest` tokens. Does not start with a result
/// without its call.
fn newest_entries(entries: &[&Entry], max_tokens: u64, max_latest: u64) -> Vec<EntryId> {
    let latest = latest_response(entries).len();
    let (mut newest, mut used) = (Vec::new(), 0);
    for (number, entry) in entries.iter().rev().enumerate() {
        used += entry_tokens(entry);
        if used
            > if number < latest {
                max_latest
            } else {
                max_tokens
            }
        {
            break;
        }
        newest.push(entry);
    }
    while newest
        .pop_if(|entry| entry.kind == EntryKind::ToolResult)
        .is_some()
    {}
    newest.iter().map(|entry| entry.id).collect()
}

/// Returns the start of a tool result that is too long to stay in the view, or `None` for other entries.
fn long_result(entry: &Entry, max_tokens: u64) -> Option<String> {
    let results = entry.payload.get("results")?.as_array()?;
    let texts = results.iter().map(|result| match result {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    });
    let text = one_line(&texts.collect::<Vec<_>>().join(" "), MAX_ITEM_CHARS);
    let start = prefix_within(&text, max_tokens);
    Some(format!("#{} too long to show: {start}", entry.id))
}

/// Returns a text, or its beginning and end if it is longer than `max_tokens`.
fn excerpt(text: &str, max_tokens: u64, entry: Option<EntryId>) -> String {
    if text_tokens(text) <= max_tokens {
        return text.to_owned();
    }
    let half = max_tokens.saturating_sub(NOTE_TOKENS) / 2;
    let start = prefix_within(text, half);
    let reversed: String = text.chars().rev().collect();
    let end: String = prefix_within(&reversed, half).chars().rev().collect();
    let omitted = text.chars().count() - start.chars().count() - end.chars().count();
    let source = entry.map_or_else(String::new, |id| format!(" of entry {id}"));
    format!("{start}\n[… {omitted} characters{source} are not shown …]\n{end}")
}

fn slots_tokens(slots: &HandoffSlots, summary: &str) -> u64 {
    text_tokens(&slots.to_text(false)) + text_tokens(summary)
}

/// Shortens the goal and the lists until they fit, and the summary. Decisions are shortened last.
fn shrink(slots: &mut HandoffSlots, summary: &mut String, max_tokens: u64) {
    for divisor in [1, 2, 4, 8, 16, 32] {
        *summary = truncate(summary, MAX_SUMMARY_CHARS / divisor);
        slots.goal = truncate(&slots.goal, MAX_GOAL_CHARS / divisor);
        for index in 0..slots.lists_mut().len() {
            if divisor > 1 && slots_tokens(slots, summary) <= max_tokens {
                return;
            }
            if let Some(list) = slots.lists_mut().into_iter().nth(index) {
                list.drain(..list.len().saturating_sub(MAX_ITEMS / divisor));
                for item in list {
                    *item = one_line(item, MAX_ITEM_CHARS / divisor);
                }
            }
        }
    }
    if slots_tokens(slots, summary) > max_tokens {
        slots.goal.clear();
        summary.clear();
        slots.lists_mut().into_iter().for_each(Vec::clear);
    }
}
