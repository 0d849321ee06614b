//! What an earlier delivery of the same message left on the tape.

use bub_kernel::{Error, ErrorKind, Framework, Result};
use bub_tape::{Entry, Kind, REPLACES, Span, now_iso};
use futures_util::StreamExt as _;
use serde_json::{Value, json};

use super::{INBOUND_ID, TurnTape, lock, tape_error};
use crate::steering::{self, Steered};

/// In the `meta` of a message that was said to the turn of another.
const STEERED: &str = "steered";

/// So often a message may take the process down with it.
const MOST_ATTEMPTS: u32 = 3;

/// Where a turn goes on that was interrupted by the end of its process.
#[derive(Debug)]
pub(crate) enum Resumed {
    /// Everything was said: only the delivery is missing.
    Answered(String),
    AfterSteps {
        /// The model had been asked this often.
        steps: u64,
        /// The answers that it had given, before somebody said more: nobody has got them.
        said: String,
    },
    /// It has gone wrong too often.
    GivenUp,
    /// A command that had begun, and is not run again: what is said instead.
    Command(Result<String>),
}

impl TurnTape {
    /// What was said to this turn, which another delivery of the same message looks for.
    pub(crate) fn steered_message(&self, said: &Steered) -> Entry {
        let entry = self.user_message(&said.prompt).with_meta(STEERED, true);
        match &said.inbound_id {
            Some(id) => entry.with_meta(INBOUND_ID, id.as_str()),
            None => entry,
        }
    }

    /// Finds the question of an earlier delivery, and how far its turn got. The search goes back from the end of the
    /// tape, and only after a crash.
    pub(super) async fn look_back(
        &mut self,
        framework: &Framework,
        session_id: &str,
    ) -> Result<()> {
        let Some(delivery) = self
            .delivery
            .clone()
            .filter(|delivery| delivery.attempt > 1)
        else {
            return Ok(());
        };
        let mut found = None;
        let (mut since, mut heard) = (Vec::new(), Vec::new());
        let mut newest = self
            .tape
            .store()
            .read(self.tape.name(), Span::ALL.newest_first());
        while let Some(entry) = newest.next().await.transpose().map_err(tape_error)? {
            match &found {
                None if inbound_id(&entry) == Some(delivery.inbound_id.as_str()) => {
                    found = Some(entry);
                }
                None => since.push(entry),
                // What waited for the turn stands before its question.
                Some(question)
                    if run_id(&entry).is_none() || run_id(&entry) == run_id(question) =>
                {
                    heard.extend(inbound_id(&entry).map(str::to_owned));
                }
                Some(_) => break,
            }
        }
        drop(newest);
        // It died before the question was recorded: this turn is the first.
        let Some(question) = found else { return Ok(()) };
        if question.kind == Kind::Event {
            return self.look_at_command(&question).await;
        }
        if question.meta.contains_key(STEERED) {
            // It was part of a turn that is over, whose end its person knows: only that is not written down.
            self.append(vec![self.redelivered("heard by an earlier turn")])
                .await?;
            lock(&self.progress).asked = Some(question.id);
            self.resumed = Some(Resumed::Answered(String::new()));
            return Ok(());
        }
        since.reverse();
        // In any turn: where turns overlap, they share the inbox.
        heard.extend(since.iter().filter_map(inbound_id).map(str::to_owned));
        steering::drop_heard(framework, session_id, &heard).await?;
        if let Some(run_id) = run_id(&question) {
            run_id.clone_into(&mut self.run_id);
        }
        lock(&self.progress).asked = Some(question.id);
        lock(&self.progress).was_replaced = question.meta.contains_key(REPLACES);
        let own: Vec<Entry> = since
            .into_iter()
            .filter(|entry| run_id(entry) == run_id(&question))
            .collect();
        let (resumed, outcome) = match answer(&own) {
            Some(text) => (Resumed::Answered(text), "answered"),
            None if delivery.attempt > MOST_ATTEMPTS => {
                (Resumed::GivenUp, "dropped: it ended the process too often")
            }
            None => {
                let said = answered_before(&own);
                (
                    Resumed::AfterSteps {
                        steps: steps(&own),
                        said,
                    },
                    "resumed",
                )
            }
        };
        self.append(vec![self.redelivered(outcome)]).await?;
        self.resumed = Some(resumed);
        Ok(())
    }

    /// The message is a command: `last` says that it began, or how it ended.
    async fn look_at_command(&mut self, last: &Entry) -> Result<()> {
        let text = |name: &str| {
            last.data()
                .and_then(|data| data.get(name)?.as_str())
                .unwrap_or_default()
        };
        let said = if last.name() == Some("command") {
            self.append(vec![self.redelivered("answered")]).await?;
            let output = text("output").to_owned();
            if text("status") == "error" {
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
            let end = self.of_delivery(Entry::event("command", Some(data)));
            self.append(vec![self.redelivered("interrupted: not run again"), end])
                .await?;
            Ok(output)
        };
        self.resumed = Some(Resumed::Command(said));
        Ok(())
    }

    fn redelivered(&self, outcome: &str) -> Entry {
        let delivery = self.delivery.as_ref();
        let (id, attempt) = delivery
            .map(|delivery| (&delivery.inbound_id, delivery.attempt))
            .unzip();
        let data = json!({"inbound_id": id, "attempt": attempt, "outcome": outcome});
        self.owned(Entry::event("turn.redelivered", Some(data)).outside_context())
    }
}

fn inbound_id(entry: &Entry) -> Option<&str> {
    entry.meta.get(INBOUND_ID)?.as_str()
}

fn run_id(entry: &Entry) -> Option<&str> {
    entry.meta.get("run_id")?.as_str()
}

/// The entries of a turn up to the last thing that somebody said to it, and those since.
fn since_heard(entries: &[Entry]) -> (&[Entry], &[Entry]) {
    let heard = entries
        .iter()
        .rposition(|entry| inbound_id(entry).is_some());
    entries.split_at(heard.map_or(0, |at| at + 1))
}

/// What the turn said, if it came to its end.
fn answer(entries: &[Entry]) -> Option<String> {
    let (_, last) = since_heard(entries);
    (last.iter().any(is_end) || lacks_its_end(last)).then(|| said(entries))
}

/// What the turn had answered when somebody said more.
fn answered_before(entries: &[Entry]) -> String {
    let (before, _) = since_heard(entries);
    let end = before.iter().rposition(is_end).map_or(0, |at| at + 1);
    said(before.split_at(end).0)
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

fn said(entries: &[Entry]) -> String {
    let said = entries.iter().filter_map(|entry| match entry.kind {
        Kind::ToolCall => entry.payload.get("content").and_then(Value::as_str),
        Kind::Message if entry.payload.get("role").and_then(Value::as_str) == Some("assistant") => {
            entry.payload.get("content").and_then(Value::as_str)
        }
        _ => None,
    });
    said.collect::<Vec<_>>().join("\n\n")
}

/// After a loss of power the answer may be there without the entries behind it, among them that it was the last step.
fn lacks_its_end(entries: &[Entry]) -> bool {
    let last = entries.iter().rev().find(|entry| {
        matches!(
            entry.kind,
            Kind::Message | Kind::ToolCall | Kind::ToolResult
        ) || entry.name() == Some("loop.step")
    });
    last.is_some_and(|entry| entry.payload.get("role").and_then(Value::as_str) == Some("assistant"))
}

fn steps(entries: &[Entry]) -> u64 {
    entries
        .iter()
        .filter(|entry| entry.kind == Kind::ToolCall)
        .count() as u64
}
