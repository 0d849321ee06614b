//! Resuming a turn that an earlier process left unfinished.

use bub_tape::{
    Entry, EntryId, EntryKind, EntryRange, MOVED_KEY, REPLACES_KEY, TOOL_DONE_EVENT, now_iso,
};
use futures_util::StreamExt as _;
use serde_json::{Value, json};

use super::{INBOUND_ID_KEY, TurnTape, tape_error};
use crate::{
    error::{Error, ErrorKind, Result},
    ids::{MessageId, TurnId},
    steering::SteeredMessage,
};

/// Key in the `meta` of an entry. It marks a message that steered the turn of another message.
pub(super) const STEERED_KEY: &str = "steered";

/// The status of a failed comma command.
pub(super) const ERROR_STATUS: &str = "error";

/// The status of a comma command that was cancelled by its sender, or because bub stopped.
pub(super) const CANCELLED_STATUS: &str = "cancelled";

/// Maximum number of attempts to process a message, if the process dies in each of them.
const MAX_CRASH_ATTEMPTS: u32 = 3;

/// The point at which an interrupted turn resumes.
#[derive(Debug)]
pub enum ResumePoint {
    /// The answer is complete. Only its delivery is missing.
    Answered(String),
    /// The prompt is recorded, but the turn is not complete.
    AfterSteps {
        /// The number of steps so far that requested tool calls.
        steps: u64,
        /// The answer from before the last steering message. It is not delivered yet. Empty if the model had not
        /// answered before that message.
        text: String,
        /// Whether the conversation ends with a tool call or its result. If so, the hook `continue_prompt` is asked for
        /// the prompt of the next step.
        needs_prompt: bool,
    },
    /// The process died in too many attempts at this message.
    AttemptsExhausted,
    /// The message is a command that was started before and is not run again. Holds the output to send instead.
    Command(Result<String>),
}

impl TurnTape {
    /// Returns the entry of a message that steers this turn. The message id in its `meta` lets a later attempt find the
    /// entry.
    pub fn steering_entry(&self, message: &SteeredMessage) -> Entry {
        let entry = self.user_message_entry(&message.prompt);
        let entry = entry.with_meta(STEERED_KEY, true);
        match &message.message_id {
            Some(id) => entry.with_meta(INBOUND_ID_KEY, id.as_str()),
            None => entry,
        }
    }

    /// Finds the prompt and the progress of an earlier attempt. Does nothing in the first attempt. Otherwise, reads the
    /// tape from its end.
    pub(super) async fn find_resume_point(&mut self) -> Result<()> {
        let Some(attempt) = self.attempt.clone().filter(|attempt| attempt.number > 1) else {
            return Ok(());
        };
        let mut prompt = None;
        let (mut later, mut steered) = (Vec::new(), Vec::new());
        let (store, name) = (self.tape().store(), self.tape().name());
        let mut newest = store.read(name, EntryRange::ALL.newest_first());
        while let Some(entry) = newest.next().await.transpose().map_err(tape_error)? {
            match &prompt {
                None if inbound_id(&entry) == Some(attempt.message_id.as_str()) => {
                    prompt = Some(entry);
                }
                None => later.push(entry),
                // Messages that were queued for the turn are recorded before its prompt.
                Some(prompt) if run_id(&entry).is_none() || run_id(&entry) == run_id(prompt) => {
                    steered.extend(inbound_id(&entry).map(MessageId::from));
                }
                Some(_) => break,
            }
        }
        drop(newest);
        // The process died before the prompt was recorded.
        let Some(prompt) = prompt else { return Ok(()) };
        if prompt.kind == EntryKind::Event {
            return self.resume_command(&prompt).await;
        }
        if prompt.meta.contains_key(STEERED_KEY) {
            // The message steered another turn, which answered it. The journal does not show yet that the message is
            // finished.
            let event = self.redelivery_event("answered by an earlier turn");
            self.append(vec![event]).await?;
            self.progress.lock().prompt_id = Some(prompt.id);
            self.resume_point = Some(ResumePoint::Answered(String::new()));
            return Ok(());
        }
        later.reverse();
        // Other turns also take messages from the steering inbox, so check the entries of all turns.
        steered.extend(later.iter().filter_map(inbound_id).map(MessageId::from));
        self.framework
            .discard_steered(&self.session_id, &steered)
            .await?;
        if let Some(run_id) = run_id(&prompt) {
            self.run_id = TurnId::from(run_id);
        }
        {
            let mut progress = self.progress.lock();
            progress.prompt_id = Some(prompt.id);
            progress.is_prompt_replaced = prompt.meta.contains_key(REPLACES_KEY);
        }
        let (own_entries, other_entries): (Vec<Entry>, Vec<Entry>) = later
            .into_iter()
            .partition(|entry| run_id(entry) == run_id(&prompt));
        let (resume_point, outcome) = match find_complete_answer(&own_entries) {
            Some(text) => (ResumePoint::Answered(text), "answered"),
            None if attempt.number > MAX_CRASH_ATTEMPTS => (
                ResumePoint::AttemptsExhausted,
                "dropped: the process died too often",
            ),
            None => {
                let resume_point = ResumePoint::AfterSteps {
                    steps: count_steps(&own_entries),
                    text: previous_answer(&own_entries),
                    needs_prompt: ends_with_tools(&own_entries),
                };
                (resume_point, "resumed")
            }
        };
        let mut batch = vec![self.redelivery_event(outcome)];
        // If another turn ran in the meantime, move the entries of this turn to the end, so that the model continues
        // this turn.
        let is_moved = matches!(resume_point, ResumePoint::AfterSteps { .. })
            && other_entries.iter().any(is_in_conversation);
        if is_moved {
            batch.push(move_to_end(&prompt));
            batch.extend(entries_in_view(&own_entries).map(move_to_end));
        }
        let appended = self.append_batch(batch).await?;
        if is_moved {
            self.progress.lock().prompt_id = appended.get(1).copied();
        }
        self.resume_point = Some(resume_point);
        Ok(())
    }

    /// Sets the resume point of a comma command. `last` is the latest event of the command: its start or its end.
    async fn resume_command(&mut self, last: &Entry) -> Result<()> {
        let text = |name: &str| {
            let text = last.data().and_then(|data| data.get(name)?.as_str());
            text.unwrap_or_default()
        };
        let is_complete = last.name() == Some("command") && text("status") != CANCELLED_STATUS;
        let outcome = if is_complete {
            self.append(vec![self.redelivery_event("answered")]).await?;
            let output = text("output").to_owned();
            if text("status") == ERROR_STATUS {
                Err(Error::new(ErrorKind::Tool, output))
            } else {
                Ok(output)
            }
        } else {
            let raw = text("raw");
            let output = format!(
                "`,{raw}` was running when bub stopped and may have taken effect; it was not run again. To run it again, \
                 send it again."
            );
            let mut batch = vec![self.redelivery_event("interrupted: not run again")];
            // A cancelled command already has an end event.
            if last.name() != Some("command") {
                let data = json!({
                    "raw": raw, "name": text("name"), "status": "interrupted", "output": output, "date": now_iso(),
                });
                batch.push(self.with_command_id(Entry::event("command", Some(data))));
            }
            self.append(batch).await?;
            Ok(output)
        };
        self.resume_point = Some(ResumePoint::Command(outcome));
        Ok(())
    }

    fn redelivery_event(&self, outcome: &str) -> Entry {
        let attempt = self.attempt.as_ref();
        let id = attempt.map(|attempt| &attempt.message_id);
        let number = attempt.map(|attempt| attempt.number);
        let data = json!({"inbound_id": id, "attempt": number, "outcome": outcome});
        self.with_run_id(Entry::event("turn.redelivered", Some(data)).exclude_from_context())
    }
}

/// Returns whether the entry changes the conversation that the model sees: a message, tool call, tool result or anchor
/// that views include.
fn is_in_conversation(entry: &Entry) -> bool {
    let is_conversation = matches!(
        entry.kind,
        EntryKind::Anchor | EntryKind::Message | EntryKind::ToolCall | EntryKind::ToolResult
    );
    is_conversation && entry.is_in_context()
}

/// Returns whether the conversation of a turn ends with a tool call or its result.
fn ends_with_tools(entries: &[Entry]) -> bool {
    let last = entries.iter().rev().find(|entry| is_in_conversation(entry));
    last.is_some_and(|entry| matches!(entry.kind, EntryKind::ToolCall | EntryKind::ToolResult))
}

/// Selects the entries that the next view of a turn needs: its conversation after the last anchor, with the events of
/// finished tool calls.
fn entries_in_view(entries: &[Entry]) -> impl Iterator<Item = &Entry> {
    let anchor = entries
        .iter()
        .rposition(|entry| entry.kind == EntryKind::Anchor);
    let after_anchor = entries.iter().skip(anchor.map_or(0, |index| index + 1));
    after_anchor.filter(|entry| is_in_conversation(entry) || entry.name() == Some(TOOL_DONE_EVENT))
}

/// Returns a copy of an entry, to append to the tape. Views show only the copy, so the entry moves to the end of the
/// conversation.
fn move_to_end(entry: &Entry) -> Entry {
    let mut moved = entry.clone();
    moved.id = EntryId::default();
    moved.meta.shift_remove(REPLACES_KEY);
    moved.with_meta(MOVED_KEY, entry.id.get())
}

fn inbound_id(entry: &Entry) -> Option<&str> {
    entry.meta.get(INBOUND_ID_KEY)?.as_str()
}

fn run_id(entry: &Entry) -> Option<&str> {
    entry.meta.get("run_id")?.as_str()
}

/// Splits the entries of a turn after the last message that steered it.
fn split_at_last_steering(entries: &[Entry]) -> (&[Entry], &[Entry]) {
    let last = entries
        .iter()
        .rposition(|entry| inbound_id(entry).is_some());
    entries.split_at(last.map_or(0, |index| index + 1))
}

/// Returns the answer of the turn, if it is complete.
fn find_complete_answer(entries: &[Entry]) -> Option<String> {
    let (_, last) = split_at_last_steering(entries);
    (last.iter().any(is_turn_end) || has_final_answer(last)).then(|| assistant_text(entries))
}

/// Returns the text that the turn had answered before its last steering message.
fn previous_answer(entries: &[Entry]) -> String {
    let (before, _) = split_at_last_steering(entries);
    let end = before.iter().rposition(is_turn_end);
    let end = end.map_or(0, |index| index + 1);
    assistant_text(before.split_at(end).0)
}

/// Returns whether the entry ends the last step of a turn.
fn is_turn_end(entry: &Entry) -> bool {
    let status = entry.data().and_then(|data| data.get("status"));
    entry.name() == Some("loop.step") && status.and_then(Value::as_str) == Some("ok")
}

fn assistant_text(entries: &[Entry]) -> String {
    let texts = entries.iter().filter_map(|entry| match entry.kind {
        EntryKind::ToolCall => payload_text(entry, "content"),
        EntryKind::Message if is_assistant(entry) => payload_text(entry, "content"),
        _ => None,
    });
    texts.collect::<Vec<_>>().join("\n\n")
}

/// Returns whether the record ends with an answer. After power loss, the entries that follow the answer may be missing,
/// including the end of the last step.
fn has_final_answer(entries: &[Entry]) -> bool {
    let last = entries.iter().rev().find(|entry| {
        matches!(
            entry.kind,
            EntryKind::Message | EntryKind::ToolCall | EntryKind::ToolResult
        ) || entry.name() == Some("loop.step")
    });
    last.is_some_and(is_assistant)
}

fn payload_text<'a>(entry: &'a Entry, key: &str) -> Option<&'a str> {
    entry.payload.get(key)?.as_str()
}

fn is_assistant(entry: &Entry) -> bool {
    payload_text(entry, "role") == Some("assistant")
}

fn count_steps(entries: &[Entry]) -> u64 {
    let is_call = |entry: &&Entry| entry.kind == EntryKind::ToolCall;
    entries.iter().filter(is_call).count() as u64
}
