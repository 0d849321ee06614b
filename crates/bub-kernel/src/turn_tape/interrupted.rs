//! Turns whose process died, for example by `kill -9`.
//!
//! The next turn of the session completes the record of such a turn. Each tool call then has a result, and each step a
//! status, so that other readers of the tape see a valid conversation.

use std::collections::{HashMap, HashSet};

use bub_tape::{
    Entry, EntryKind, EntryRange, INTERRUPTED_RESULT, PROVENANCE_KEY, SESSION_START,
    TOOL_DONE_EVENT, Tape,
};
use futures_util::StreamExt as _;
use serde_json::{Value, json};

use super::{
    INBOUND_ID_KEY, TurnTape,
    draft::FoundDraft,
    resume::STEERED_KEY,
    steps::{APPROVAL_REQUEST_EVENT, NOT_RUN_KEY, NOT_RUN_RESULT},
    tape_error,
};
use crate::{error::Result, framework::Framework, ids::SessionId, provenance::Provenance};

/// Maximum number of entries that are read to find an interrupted turn. A turn that is longer is completed, but its
/// prompt is not found.
const MAX_ENTRIES: usize = 2000;

/// The error of a step that was interrupted.
const INTERRUPTED_ERROR: &str = "interrupted: the process ended in this step";

/// The note after the part of an answer that was received before the process died.
const PARTIAL_ANSWER_NOTE: &str = "[interrupted: the answer ends here because bub was stopped]";

/// The last turn of a session, if its process died before the turn was complete.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct InterruptedTurn {
    /// The text of the prompt. Empty if the prompt was not found.
    pub prompt: String,
    /// The part of the answer that was received in the interrupted model call.
    pub partial_answer: String,
    /// The names of the tools that may have been running.
    pub open_tools: Vec<String>,
    /// The names of the tools whose calls waited for an approval. They were not run.
    pub waiting_tools: Vec<String>,
    run_id: String,
    /// The id of the journaled message of the turn.
    inbound_id: Option<String>,
    /// The provenance of the entries of the turn. The missing entries have the same.
    provenance: Provenance,
    /// The step that has no status.
    open_step: Option<u64>,
    /// The calls that have no results: id, and the result if it is known.
    open_calls: Vec<(String, Option<Value>)>,
}

impl Framework {
    /// Returns the last turn of a session if its process died before the turn was complete. Returns `None` if the
    /// session has a running turn, or no stored tape.
    pub async fn interrupted_turn(
        &self,
        session_id: &SessionId,
    ) -> Result<Option<InterruptedTurn>> {
        if session_id.is_temporary() {
            return Ok(None);
        }
        let Some(tape) = self.session_tape(session_id)? else {
            return Ok(None);
        };
        let holder = tape.store().lease_holder(tape.name()).await;
        if holder.map_err(tape_error)?.is_some() {
            return Ok(None);
        }
        find_interrupted_turn(&tape).await
    }
}

impl TurnTape {
    /// Completes the record of the last turn of the session if its process died. Call this with the lease.
    pub(super) async fn recover_interrupted_turn(&self) -> Result<()> {
        let Some(turn) = find_interrupted_turn(self.tape()).await? else {
            return self.discard_stale_draft().await;
        };
        let is_resumed = self.attempt.as_ref().is_some_and(|attempt| {
            attempt.number > 1 && turn.inbound_id.as_deref() == Some(attempt.message_id.as_str())
        });
        let batch = turn.missing_entries(is_resumed);
        if !batch.is_empty() {
            let run_id = &turn.run_id;
            tracing::info!(run_id, "turn.interrupted");
            self.append(batch).await?;
        }
        self.discard_stale_draft().await
    }

    async fn discard_stale_draft(&self) -> Result<()> {
        let tape = self.tape();
        let discarded = tape.store().discard_draft(tape.name()).await;
        discarded.map_err(tape_error)
    }
}

impl InterruptedTurn {
    /// Returns the entries that complete the record of the turn. If the turn `is_resumed`, the model answers again, so
    /// the partial answer is only kept in the event of its step.
    fn missing_entries(&self, is_resumed: bool) -> Vec<Entry> {
        let mut batch = Vec::new();
        if !self.open_calls.is_empty() {
            let results = self.open_calls.iter();
            let results = results.map(|(_, result)| {
                let result = result.clone();
                result.unwrap_or_else(|| INTERRUPTED_RESULT.into())
            });
            let ids: Vec<_> = self.open_calls.iter().map(|(id, _)| id.as_str()).collect();
            batch.push(Entry::tool_result(results.collect()).with_meta("call_ids", ids));
        }
        let partial = self.partial_answer.trim();
        if !partial.is_empty() && !is_resumed {
            let text = format!("{partial}\n\n{PARTIAL_ANSWER_NOTE}");
            batch.push(Entry::message("assistant", text));
        }
        if let Some(step) = self.open_step {
            let mut data = json!({"step": step, "status": "error", "error": INTERRUPTED_ERROR});
            if let Some(data) = data.as_object_mut() {
                let text = Some(partial).filter(|text| !text.is_empty() && is_resumed);
                data.extend(text.map(|text| ("text".to_owned(), text.into())));
            }
            batch.push(Entry::event("loop.step", Some(data)));
        }
        let run_id = self.run_id.as_str();
        let of_turn = |entry: Entry| {
            let entry = entry.with_meta("run_id", run_id);
            match serde_json::to_value(&self.provenance) {
                Ok(value) if self.provenance != Provenance::default() => {
                    entry.with_meta(PROVENANCE_KEY, value)
                }
                _ => entry,
            }
        };
        batch.into_iter().map(of_turn).collect()
    }
}

/// Reads a tape from its end, and returns its last turn if that is not complete. Reads only the last entry of most
/// tapes.
async fn find_interrupted_turn(tape: &Tape) -> Result<Option<InterruptedTurn>> {
    let mut newest = tape
        .store()
        .read(tape.name(), EntryRange::ALL.newest_first())
        .take(MAX_ENTRIES);
    let mut tail = TapeTail::default();
    while let Some(entry) = newest.next().await.transpose().map_err(tape_error)? {
        match tail.add_entry(&entry) {
            TailState::Incomplete => {}
            TailState::TurnFound => break,
            TailState::Complete => return Ok(None),
        }
    }
    drop(newest);
    let Some(mut turn) = tail.turn.filter(|turn| !turn.run_id.is_empty()) else {
        return Ok(None);
    };
    turn.provenance = tail.provenance;
    turn.add_draft(tape).await?;
    Ok(Some(turn))
}

/// The end of a tape, read from its last entry.
#[derive(Default)]
struct TapeTail {
    turn: Option<InterruptedTurn>,
    provenance: Provenance,
    /// Whether the start of the open step is still to be found.
    is_step_open: bool,
    /// Whether the tape ends with a failed turn. The turn before it may be interrupted: the Python version does not
    /// complete it, and fails if the provider rejects calls without results.
    is_after_failure: bool,
    /// The results of tool calls that were recorded one by one, and of those that had not started.
    finished_calls: HashMap<String, Value>,
    /// The calls that a user was asked about and that have an answer.
    answered_calls: HashSet<String>,
}

/// What the end of a tape shows so far.
enum TailState {
    /// Earlier entries are needed.
    Incomplete,
    /// The last turn is interrupted, and its prompt was found.
    TurnFound,
    /// The last turn is complete.
    Complete,
}

impl TapeTail {
    /// Adds the entry before those that were added.
    fn add_entry(&mut self, entry: &Entry) -> TailState {
        let run_id = meta_text(entry, "run_id").unwrap_or_default();
        let new_turn = || InterruptedTurn {
            run_id: run_id.to_owned(),
            ..InterruptedTurn::default()
        };
        let is_first = self.turn.is_none();
        match &mut self.turn {
            // Events of the loop have no id.
            Some(turn) if turn.run_id.is_empty() => run_id.clone_into(&mut turn.run_id),
            Some(_) if run_id.is_empty() && is_loop_event(entry) => {}
            Some(turn) if turn.run_id != run_id => return TailState::Incomplete,
            _ => {}
        }
        if is_first && self.is_after_failure {
            match entry.kind {
                EntryKind::ToolCall => {}
                EntryKind::Event | EntryKind::System | EntryKind::Error => {
                    return TailState::Incomplete;
                }
                _ => return TailState::Complete,
            }
        }
        if let Some(value) = entry.meta.get(PROVENANCE_KEY) {
            self.provenance.merge(&Provenance::from_value(value));
        }
        let data = |key: &str| entry.data().and_then(|data| data.get(key));
        match (&entry.kind, entry.name()) {
            (EntryKind::Event, Some("loop.step.start")) => {
                let turn = self.turn.get_or_insert_with(new_turn);
                if is_first || std::mem::take(&mut self.is_step_open) {
                    turn.open_step = data("step").and_then(Value::as_u64);
                }
            }
            (EntryKind::Event, Some("loop.step")) if is_first => {
                match data("status").and_then(Value::as_str) {
                    Some("continue" | "auto_handoff") => self.turn = Some(new_turn()),
                    Some("error") => self.is_after_failure = true,
                    _ => return TailState::Complete,
                }
            }
            (EntryKind::Event, Some(TOOL_DONE_EVENT)) => {
                let call_id = data("call_id").and_then(Value::as_str).map(str::to_owned);
                let finished = call_id.zip(data("result").cloned());
                self.finished_calls.extend(finished);
            }
            (EntryKind::Event, Some("approval")) => {
                let call_id = data("call_id").and_then(Value::as_str).map(str::to_owned);
                self.answered_calls.extend(call_id);
            }
            // The process died while it waited for the answer.
            (EntryKind::Event, Some(APPROVAL_REQUEST_EVENT))
                if !data("call_id")
                    .and_then(Value::as_str)
                    .is_some_and(|id| self.answered_calls.contains(id)) =>
            {
                let not_run = data(NOT_RUN_KEY).and_then(Value::as_array);
                for call_id in not_run.into_iter().flatten().filter_map(Value::as_str) {
                    let result = self.finished_calls.entry(call_id.to_owned());
                    result.or_insert_with(|| NOT_RUN_RESULT.into());
                }
            }
            (EntryKind::ToolCall | EntryKind::ToolResult, _) if is_first => {
                self.is_step_open = true;
                let turn = self.turn.get_or_insert_with(new_turn);
                turn.add_open_calls(entry, &mut self.finished_calls);
            }
            (EntryKind::Message, _) if is_user_message(entry) => {
                let is_steered = entry.meta.contains_key(STEERED_KEY);
                // Nothing was done for the last message. A fork of a tape can end like this, too.
                if is_first && !is_steered {
                    return TailState::Complete;
                }
                let turn = self.turn.get_or_insert_with(new_turn);
                if !is_steered {
                    turn.prompt = message_text(entry);
                    turn.inbound_id = meta_text(entry, INBOUND_ID_KEY).map(str::to_owned);
                    return TailState::TurnFound;
                }
            }
            (EntryKind::Message | EntryKind::Error, _) if is_first => return TailState::Complete,
            (EntryKind::Anchor, Some(SESSION_START)) => return TailState::TurnFound,
            _ => {}
        }
        TailState::Incomplete
    }
}

/// Returns whether an entry is an event that the agent loop records for each run and step.
fn is_loop_event(entry: &Entry) -> bool {
    let is_loop = |name: &str| name.starts_with("loop.");
    entry.kind == EntryKind::Event && entry.name().is_some_and(is_loop)
}

impl InterruptedTurn {
    /// Adds the calls of the last response, if `entry` has calls. `finished_calls` are the results that were recorded
    /// one by one.
    fn add_open_calls(&mut self, entry: &Entry, finished_calls: &mut HashMap<String, Value>) {
        let calls = entry.payload.get("calls").and_then(Value::as_array);
        for call in calls.into_iter().flatten() {
            let id = call.get("id").and_then(Value::as_str).unwrap_or_default();
            let result = finished_calls.remove(id);
            let name = call.pointer("/function/name").and_then(Value::as_str);
            let tools = match &result {
                None => Some(&mut self.open_tools),
                Some(result) if result == NOT_RUN_RESULT => Some(&mut self.waiting_tools),
                Some(_) => None,
            };
            if let (Some(tools), Some(name)) = (tools, name) {
                tools.push(name.to_owned());
            }
            self.open_calls.push((id.to_owned(), result));
        }
    }

    /// Adds the draft of the interrupted model call, unless it is of another step.
    async fn add_draft(&mut self, tape: &Tape) -> Result<()> {
        let draft = tape.store().read_draft(tape.name()).await;
        let draft = draft.map_err(tape_error)?;
        let draft = draft.and_then(|draft| FoundDraft::parse(&draft));
        let is_of_step = |draft: &FoundDraft| {
            let is_step = self.open_step == Some(draft.step) && self.open_calls.is_empty();
            is_step && draft.run_id == self.run_id
        };
        let draft = draft.filter(is_of_step);
        self.partial_answer = draft.map(|draft| draft.text).unwrap_or_default();
        Ok(())
    }
}

fn is_user_message(entry: &Entry) -> bool {
    entry.payload.get("role").and_then(Value::as_str) == Some("user")
}

fn meta_text<'a>(entry: &'a Entry, key: &str) -> Option<&'a str> {
    entry.meta.get(key)?.as_str()
}

/// Returns the text of a message. A message with media has it in parts.
fn message_text(entry: &Entry) -> String {
    match entry.payload.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let texts = parts.iter().filter_map(|part| part.get("text")?.as_str());
            texts.collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}
