//! Resuming a turn that an earlier process left unfinished.

use bub_tape::{
    Entry, EntryId, EntryKind, EntryRange, MOVED_KEY, REPLACES_KEY, TOOL_DONE_EVENT, now_iso,
};
use futures_util::StreamExt as _;
use serde_json::{Value, json};

use super::{INBOUND_ID_KEY, TurnTape, lock, tape_error};
use crate::{
    error::{Error, ErrorKind, Result},
    framework::Framework,
    ids::{MessageId, SessionId, TurnId},
    steering::SteeredMessage,
};

/// Key in the `meta` of a message that steered the turn of another message.
const STEERED_KEY: &str = "steered";

/// The status of a failed command.
pub(super) const ERROR_STATUS: &str = "error";

/// The status of a command that was cancelled by its sender, or because bub stopped.
pub(super) const CANCELLED_STATUS: &str = "cancelled";

/// Maximum number of attempts that may end with the death of the process.
const MAX_CRASH_ATTEMPTS: u32 = 3;

/// The point at which an interrupted turn resumes.
#[derive(Debug)]
pub enum ResumePoint {
    /// The answer is complete. Only its delivery is missing.
    Answered(String),
    /// The prompt is recorded, but the turn is not complete.
    AfterSteps {
        /// The number of model calls so far.
        steps: u64,
        /// The undelivered answer from before the last steering message, if any.
        text: String,
        /// Whether a tool call or its result is the last part of the conversation. A continue prompt must follow it.
        needs_prompt: bool,
    },
    /// The process died in too many attempts at this message.
    AttemptsExhausted,
    /// The message is a command that was started before and is not run again. Holds the output to send instead.
    Command(Result<String>),
}

impl TurnTape {
    /// Returns the entry of a message that steers this turn. Its ids let a later attempt find it.
    pub fn steering_entry(&self, message: &SteeredMessage) -> Entry {
        let entry = self
            .user_message_entry(&message.prompt)
            .with_meta(STEERED_KEY, true);
        match &message.message_id {
            Some(id) => entry.with_meta(INBOUND_ID_KEY, id.as_str()),
            None => entry,
        }
    }

    /// Finds the prompt and the progress of an earlier attempt. Reads the tape from its end, and only after a crash.
    pub(super) async fn find_resume_point(
        &mut self,
        framework: &Framework,
        session_id: &SessionId,
    ) -> Result<()> {
        let Some(attempt) = self.attempt.clone().filter(|attempt| attempt.number > 1) else {
            return Ok(());
        };
        let mut prompt = None;
        let (mut later, mut steered) = (Vec::new(), Vec::new());
        let mut newest = self
            .tape()
            .store()
            .read(self.tape().name(), EntryRange::ALL.newest_first());
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
            // The message was part of another turn, which was answered. Only its end is missing from the journal.
            let event = self.redelivery_event("answered by an earlier turn");
            self.append(vec![event]).await?;
            lock(&self.progress).prompt_id = Some(prompt.id);
            self.resume_point = Some(ResumePoint::Answered(String::new()));
            return Ok(());
        }
        later.reverse();
        // Overlapping turns share the steering inbox, so check the entries of all turns.
        steered.extend(later.iter().filter_map(inbound_id).map(MessageId::from));
        framework.discard_steered(session_id, &steered).await?;
        if let Some(run_id) = run_id(&prompt) {
            self.run_id = TurnId::from(run_id);
        }
        {
            let mut progress = lock(&self.progress);
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
                let (steps, text) = (count_steps(&own_entries), previous_answer(&own_entries));
                let needs_prompt = ends_with_tools(&own_entries);
                let resume_point = ResumePoint::AfterSteps {
                    steps,
                    text,
                    needs_prompt,
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
            lock(&self.progress).prompt_id = appended.get(1).copied();
        }
        self.resume_point = Some(resume_point);
        Ok(())
    }

    /// Resumes a command. `last` is its start or end event.
    async fn resume_command(&mut self, last: &Entry) -> Result<()> {
        let text = |name: &str| {
            last.data()
                .and_then(|data| data.get(name)?.as_str())
                .unwrap_or_default()
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
            // A cancelled command has an end already.
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
        let (id, number) = attempt
            .map(|attempt| (&attempt.message_id, attempt.number))
            .unzip();
        let data = json!({"inbound_id": id, "attempt": number, "outcome": outcome});
        self.with_run_id(Entry::event("turn.redelivered", Some(data)).exclude_from_context())
    }
}

/// Returns whether the entry changes the conversation that the model sees: a part of it, or an anchor that starts a new
/// one.
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

/// Returns the entries of a turn that its next view shows.
fn entries_in_view(entries: &[Entry]) -> impl Iterator<Item = &Entry> {
    let anchor = entries
        .iter()
        .rposition(|entry| entry.kind == EntryKind::Anchor);
    let after_anchor = entries.iter().skip(anchor.map_or(0, |index| index + 1));
    after_anchor.filter(|entry| is_in_conversation(entry) || entry.name() == Some(TOOL_DONE_EVENT))
}

/// Returns a copy of an entry that moves it to the end of the conversation. Views show only the copy.
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

/// Returns the answer of the turn from before the last steering message.
fn previous_answer(entries: &[Entry]) -> String {
    let (before, _) = split_at_last_steering(entries);
    let end = before.iter().rposition(is_turn_end);
    let end = end.map_or(0, |index| index + 1);
    assistant_text(before.split_at(end).0)
}

/// Returns whether the entry ends the last step of a turn.
fn is_turn_end(entry: &Entry) -> bool {
    entry.name() == Some("loop.step")
        && entry
            .data()
            .and_then(|data| data.get("status"))
            .and_then(Value::as_str)
            == Some("ok")
}

fn assistant_text(entries: &[Entry]) -> String {
    let texts = entries.iter().filter_map(|entry| match entry.kind {
        EntryKind::ToolCall => entry.payload.get("content").and_then(Value::as_str),
        EntryKind::Message
            if entry.payload.get("role").and_then(Value::as_str) == Some("assistant") =>
        {
            entry.payload.get("content").and_then(Value::as_str)
        }
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
    last.is_some_and(|entry| entry.payload.get("role").and_then(Value::as_str) == Some("assistant"))
}

fn count_steps(entries: &[Entry]) -> u64 {
    entries
        .iter()
        .filter(|entry| entry.kind == EntryKind::ToolCall)
        .count() as u64
}
