//! What an earlier attempt at the same message left on the tape.

use bub_tape::{Entry, EntryId, EntryKind, EntryRange, MOVED_KEY, REPLACES_KEY, now_iso};
use futures_util::StreamExt as _;
use serde_json::{Value, json};

use super::{INBOUND_ID_KEY, TurnTape, lock, tape_error};
use crate::{
    error::{Error, ErrorKind, Result},
    framework::Framework,
    ids::{MessageId, SessionId, TurnId},
    steering::SteeredMessage,
};

/// The key in the `meta` of a message that steered the turn of another message.
const STEERED_KEY: &str = "steered";

/// The status of a command that failed.
pub(super) const ERROR_STATUS: &str = "error";

/// The status of a command that was cancelled, because bub stopped or its sender cancelled it.
pub(super) const CANCELLED_STATUS: &str = "cancelled";

/// Attempts at a message whose turns ended with the death of the process.
const MAX_CRASH_ATTEMPTS: u32 = 3;

/// Where a turn resumes that the death of its process interrupted.
#[derive(Debug)]
pub enum ResumePoint {
    /// The answer is complete; only its delivery is missing.
    Answered(String),
    /// The model was called, and the turn is not complete.
    AfterSteps {
        /// The number of model calls so far.
        steps: u64,
        /// Answers that were given before further messages steered the turn, and were not delivered.
        text: String,
    },
    /// The process died in too many attempts.
    AttemptsExhausted,
    /// A command that had begun and is not run again, with the output to send instead.
    Command(Result<String>),
}

impl TurnTape {
    /// A message that steers this turn, marked so that a later attempt finds it.
    pub fn steered_message(&self, message: &SteeredMessage) -> Entry {
        let entry = self
            .user_message(&message.prompt)
            .with_meta(STEERED_KEY, true);
        match &message.message_id {
            Some(id) => entry.with_meta(INBOUND_ID_KEY, id.as_str()),
            None => entry,
        }
    }

    /// Finds the prompt of an earlier attempt and how far its turn got. Reads back from the end of the tape, and only
    /// after a crash.
    pub(super) async fn find_resume_point(
        &mut self,
        framework: &Framework,
        session_id: &SessionId,
    ) -> Result<()> {
        let Some(attempt) = self.attempt.clone().filter(|attempt| attempt.number > 1) else {
            return Ok(());
        };
        let mut found = None;
        let (mut since, mut steered) = (Vec::new(), Vec::new());
        let mut newest = self
            .tape()
            .store()
            .read(self.tape().name(), EntryRange::ALL.newest_first());
        while let Some(entry) = newest.next().await.transpose().map_err(tape_error)? {
            match &found {
                None if inbound_id(&entry) == Some(attempt.message_id.as_str()) => {
                    found = Some(entry);
                }
                None => since.push(entry),
                // Messages that were queued for the turn are recorded before its prompt.
                Some(prompt) if run_id(&entry).is_none() || run_id(&entry) == run_id(prompt) => {
                    steered.extend(inbound_id(&entry).map(MessageId::from));
                }
                Some(_) => break,
            }
        }
        drop(newest);
        // The process died before the prompt was recorded.
        let Some(prompt) = found else { return Ok(()) };
        if prompt.kind == EntryKind::Event {
            return self.resume_command(&prompt).await;
        }
        if prompt.meta.contains_key(STEERED_KEY) {
            // It was part of a turn that ended and was answered; only the end of this message is not journaled.
            self.append(vec![self.redelivery_event("heard by an earlier turn")])
                .await?;
            lock(&self.progress).prompt_id = Some(prompt.id);
            self.resume_point = Some(ResumePoint::Answered(String::new()));
            return Ok(());
        }
        since.reverse();
        // Turns that overlap share the inbox, so entries of any turn count.
        steered.extend(since.iter().filter_map(inbound_id).map(MessageId::from));
        framework.discard_steered(session_id, &steered).await?;
        if let Some(run_id) = run_id(&prompt) {
            self.run_id = TurnId::from(run_id);
        }
        {
            let mut progress = lock(&self.progress);
            progress.prompt_id = Some(prompt.id);
            progress.was_replaced = prompt.meta.contains_key(REPLACES_KEY);
        }
        let (own, others): (Vec<Entry>, Vec<Entry>) = since
            .into_iter()
            .partition(|entry| run_id(entry) == run_id(&prompt));
        let (resume_point, outcome) = match answer(&own) {
            Some(text) => (ResumePoint::Answered(text), "answered"),
            None if attempt.number > MAX_CRASH_ATTEMPTS => (
                ResumePoint::AttemptsExhausted,
                "dropped: it ended the process too often",
            ),
            None => {
                let (steps, text) = (steps(&own), previous_answer(&own));
                (ResumePoint::AfterSteps { steps, text }, "resumed")
            }
        };
        let mut batch = vec![self.redelivery_event(outcome)];
        // Another turn ran in the meantime: the model must answer this message, not the last one of the conversation.
        let is_moved = matches!(resume_point, ResumePoint::AfterSteps { .. })
            && others.iter().any(is_in_conversation);
        if is_moved {
            batch.push(moved(&prompt));
        }
        let last = self.append(batch).await?;
        if is_moved {
            lock(&self.progress).prompt_id = Some(last);
        }
        self.resume_point = Some(resume_point);
        Ok(())
    }

    /// Resumes a command: `last` is the event of its start or its end.
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
                "`,{raw}` had begun when bub stopped and may have taken effect; it was not run again. Type it again if \
                 that is wanted."
            );
            let data = json!({
                "raw": raw, "name": text("name"), "status": "interrupted", "output": output, "date": now_iso(),
            });
            let end = self.with_command_id(Entry::event("command", Some(data)));
            self.append(vec![
                self.redelivery_event("interrupted: not run again"),
                end,
            ])
            .await?;
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
        self.with_run_id(Entry::event("turn.redelivered", Some(data)).outside_context())
    }
}

/// Whether the model sees an entry as part of the conversation.
fn is_in_conversation(entry: &Entry) -> bool {
    let is_shown = matches!(
        entry.kind,
        EntryKind::Message | EntryKind::ToolCall | EntryKind::ToolResult
    );
    is_shown && entry.in_context()
}

/// The same message at the end of the conversation. Views show it only there.
fn moved(message: &Entry) -> Entry {
    let mut moved = message.clone();
    moved.id = EntryId::default();
    moved.meta.shift_remove(REPLACES_KEY);
    moved.with_meta(MOVED_KEY, message.id.get())
}

fn inbound_id(entry: &Entry) -> Option<&str> {
    entry.meta.get(INBOUND_ID_KEY)?.as_str()
}

fn run_id(entry: &Entry) -> Option<&str> {
    entry.meta.get("run_id")?.as_str()
}

/// The entries of a turn up to the last thing that somebody said to it, and those since.
fn split_at_last_steering(entries: &[Entry]) -> (&[Entry], &[Entry]) {
    let heard = entries
        .iter()
        .rposition(|entry| inbound_id(entry).is_some());
    entries.split_at(heard.map_or(0, |at| at + 1))
}

/// What the turn said, if it came to its end.
fn answer(entries: &[Entry]) -> Option<String> {
    let (_, last) = split_at_last_steering(entries);
    (last.iter().any(is_end) || is_truncated(last)).then(|| assistant_text(entries))
}

/// What the turn had answered when somebody said more.
fn previous_answer(entries: &[Entry]) -> String {
    let (before, _) = split_at_last_steering(entries);
    let end = before.iter().rposition(is_end).map_or(0, |at| at + 1);
    assistant_text(before.split_at(end).0)
}

/// The model has nothing more to ask.
fn is_end(entry: &Entry) -> bool {
    entry.name() == Some("loop.step")
        && entry
            .data()
            .and_then(|data| data.get("status"))
            .and_then(Value::as_str)
            == Some("ok")
}

fn assistant_text(entries: &[Entry]) -> String {
    let said = entries.iter().filter_map(|entry| match entry.kind {
        EntryKind::ToolCall => entry.payload.get("content").and_then(Value::as_str),
        EntryKind::Message
            if entry.payload.get("role").and_then(Value::as_str) == Some("assistant") =>
        {
            entry.payload.get("content").and_then(Value::as_str)
        }
        _ => None,
    });
    said.collect::<Vec<_>>().join("\n\n")
}

/// After a loss of power the answer may be there without the entries behind it, among them that it was the last step.
fn is_truncated(entries: &[Entry]) -> bool {
    let last = entries.iter().rev().find(|entry| {
        matches!(
            entry.kind,
            EntryKind::Message | EntryKind::ToolCall | EntryKind::ToolResult
        ) || entry.name() == Some("loop.step")
    });
    last.is_some_and(|entry| entry.payload.get("role").and_then(Value::as_str) == Some("assistant"))
}

fn steps(entries: &[Entry]) -> u64 {
    entries
        .iter()
        .filter(|entry| entry.kind == EntryKind::ToolCall)
        .count() as u64
}
