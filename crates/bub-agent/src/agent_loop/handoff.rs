//! New anchors within a turn: because a tool asked, because the window fills, because the provider said so.

use bub_kernel::{Error, Prompt, Result, StepRequest, tape_error};
use bub_tape::{AnchorQuery, Entry, EntryId, EntryKind, EntryRange, handoff_entries};
use futures_util::StreamExt as _;
use serde_json::{Map, Value, json};

use super::{
    AgentLoop,
    digest::{digest, own_entries},
};

impl AgentLoop {
    /// The provider says that the conversation is too long: a new phase, once a turn.
    pub(super) async fn hand_off_overflow(&self, error: &Error) -> Result<()> {
        let state = json!({"reason": "context_length_exceeded", "error": error.message()});
        self.hand_off("auto_handoff/context_overflow", state)
            .await?;
        // The attempt counts as a step.
        if let Some(end) = self.turn.tape().end_step("auto_handoff", None) {
            self.turn.tape().append_later(end);
        }
        Ok(())
    }

    /// The window is nearly full, and the model did not hand off.
    pub(super) async fn hand_off_budget(&self, estimate: u64, window: u64) -> Result<()> {
        let state = json!({"reason": "context_budget", "tokens": estimate, "window": window});
        self.hand_off("auto_handoff/context_budget", state).await
    }

    /// Writes the anchor with a digest of the phase, and carries over what belongs to this turn.
    async fn hand_off(&self, name: &str, mut state: Value) -> Result<()> {
        let tape = self.turn.tape().tape();
        let mark = tape
            .marks(AnchorQuery::Latest(1))
            .await
            .map_err(tape_error)?
            .pop();
        let span = mark.map_or(EntryRange::ALL, |mark| EntryRange::from(mark.position));
        let entries = tape.entries(span).await.map_err(tape_error)?;
        let asked = match self.turn.tape().prompt_id() {
            Some(id) => tape
                .store()
                .fetch(tape.name(), &[id])
                .await
                .map_err(tape_error)?
                .pop(),
            None => None,
        };
        if let Some(state) = state.as_object_mut() {
            state.insert("digest".to_owned(), digest(&entries, asked.as_ref()));
            let carried = asked
                .map(|asked| own_entries(&entries, asked.id))
                .unwrap_or_default();
            state.insert("carry".to_owned(), json!(carried));
        }
        self.turn
            .tape()
            .append(handoff_entries(name, Some(state), self.meta()))
            .await?;
        Ok(())
    }

    /// Does what tools asked for during the step. What follows the results goes with the next batch.
    pub(super) async fn apply_requests(&self, prompt: &Prompt) -> Result<bool> {
        let requests = self.requests.take();
        let any = !requests.is_empty();
        for request in requests {
            match request {
                StepRequest::HandOff { name, summary } => {
                    let mut carry: Vec<EntryId> =
                        self.turn.tape().prompt_id().into_iter().collect();
                    // What came of the calls that it made beside the handoff is news to the model.
                    let response = self.last_response().await?;
                    if response.first().is_some_and(|calls| calls_in(calls) > 1) {
                        carry.extend(response.iter().map(|entry| entry.id));
                    }
                    let state = json!({"summary": summary, "carry": carry});
                    for entry in handoff_entries(&name, Some(state), self.meta()) {
                        self.turn.tape().append_later(entry);
                    }
                }
                StepRequest::Reset { archive } => self.reset_tape(archive, prompt).await?,
            }
        }
        Ok(any)
    }

    /// The calls of the last response, and their results.
    async fn last_response(&self) -> Result<Vec<Entry>> {
        self.turn.tape().append(Vec::new()).await?;
        let tape = self.turn.tape().tape();
        let mut found = Vec::new();
        let mut newest = tape
            .store()
            .read(tape.name(), EntryRange::ALL.newest_first());
        while let Some(entry) = newest.next().await.transpose().map_err(tape_error)? {
            let is_first = entry.kind == EntryKind::ToolCall;
            if is_first || entry.kind == EntryKind::ToolResult {
                found.push(entry);
            }
            if is_first {
                break;
            }
        }
        found.reverse();
        Ok(found)
    }

    /// Empties the tape. The first on the new one are the message that the turn answers, and the response that asked for
    /// this: a model that sees only the message asks for it again.
    async fn reset_tape(&self, archive: bool, prompt: &Prompt) -> Result<()> {
        let tape = self.turn.tape().tape();
        let asked = match self.turn.tape().prompt_id() {
            Some(id) => tape
                .store()
                .fetch(tape.name(), &[id])
                .await
                .map_err(tape_error)?
                .pop(),
            None => None,
        };
        let response = self.last_response().await?;
        tape.reset(archive).await.map_err(tape_error)?;
        self.turn.tape().invalidate_summary();
        let anew = |entry: Entry| Entry {
            id: EntryId::default(),
            ..entry
        };
        self.turn
            .tape()
            .rerecord_prompt(anew(
                asked.unwrap_or_else(|| self.turn.tape().user_message(prompt)),
            ))
            .await?;
        for entry in response {
            self.turn.tape().append_later(anew(entry));
        }
        Ok(())
    }

    fn meta(&self) -> Map<String, Value> {
        let mut meta = Map::new();
        meta.insert("run_id".to_owned(), self.turn.tape().run_id().into());
        meta
    }
}

fn calls_in(entry: &Entry) -> usize {
    entry
        .payload
        .get("calls")
        .and_then(Value::as_array)
        .map_or(0, Vec::len)
}
