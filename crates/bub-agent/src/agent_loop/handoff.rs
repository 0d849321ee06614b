//! Handoffs within a turn: requested by a tool, or automatic when the context window is full.

use bub_kernel::{Error, Prompt, Result, StepRequest, TurnTape, tape_error};
use bub_tape::{AnchorQuery, Entry, EntryId, EntryKind, EntryRange, handoff_entries};
use futures_util::TryStreamExt as _;
use serde_json::{Map, Value, json};

use super::{
    AgentLoop,
    digest::{build_digest, tool_calls, turn_entry_ids},
};

impl AgentLoop {
    /// Hands off after the provider reported that the context is too long. The loop calls this at most once per run.
    pub(super) async fn hand_off_after_overflow(&self, error: &Error) -> Result<()> {
        let state = json!({"reason": "context_length_exceeded", "error": error.message()});
        self.hand_off("auto_handoff/context_overflow", state)
            .await?;
        // The failed model call counts as a step.
        if let Some(end) = self.tape().end_step("auto_handoff", Some(error)) {
            self.tape().append_later(end);
        }
        Ok(())
    }

    /// Hands off because the context window is nearly full and the model did not hand off.
    pub(super) async fn hand_off_for_budget(&self, estimate: u64, window: u64) -> Result<()> {
        let state = json!({"reason": "context_budget", "tokens": estimate, "window": window});
        self.hand_off("auto_handoff/context_budget", state).await
    }

    /// Writes an anchor with a digest of the entries since the last anchor. The entries of this turn stay in the
    /// context.
    async fn hand_off(&self, name: &str, mut state: Value) -> Result<()> {
        let tape = self.tape().tape();
        let marks = tape.anchor_marks(AnchorQuery::Latest(1)).await;
        let span = match marks.map_err(tape_error)?.pop() {
            Some(mark) => EntryRange::starting_at(mark.position),
            None => EntryRange::ALL,
        };
        let entries = tape.entries(span).await.map_err(tape_error)?;
        let prompt = self.recorded_prompt().await?;
        if let Some(state) = state.as_object_mut() {
            state.insert("digest".to_owned(), build_digest(&entries, prompt.as_ref()));
            let carried = prompt
                .map(|prompt| turn_entry_ids(&entries, prompt.id))
                .unwrap_or_default();
            state.insert("carry".to_owned(), json!(carried));
        }
        add_todo(self.tape(), &mut state).await?;
        self.tape()
            .append(handoff_entries(name, Some(state), self.run_meta()))
            .await?;
        Ok(())
    }

    /// Returns the entry with the prompt of the turn, if it is on the tape.
    async fn recorded_prompt(&self) -> Result<Option<Entry>> {
        let Some(id) = self.tape().prompt_id() else {
            return Ok(None);
        };
        let tape = self.tape().tape();
        let fetched = tape.store().fetch(tape.name(), &[id]).await;
        Ok(fetched.map_err(tape_error)?.pop())
    }

    /// Applies the requests that tools made during the step: handoffs and resets of the tape. Returns whether a tool
    /// made a request. Queues the new entries for the next write to the tape.
    pub(super) async fn apply_step_requests(&self, prompt: &Prompt) -> Result<bool> {
        let requests = self.requests.take();
        let has_requests = !requests.is_empty();
        for request in requests {
            match request {
                StepRequest::HandOff { name, summary } => {
                    let mut carry: Vec<EntryId> = self.tape().prompt_id().into_iter().collect();
                    // The model has not seen the results of calls that it made together with the handoff.
                    let response = self.last_response_entries().await?;
                    if response
                        .first()
                        .is_some_and(|entry| tool_calls(entry).len() > 1)
                    {
                        carry.extend(response.iter().map(|entry| entry.id));
                    }
                    let mut state = json!({"summary": summary, "carry": carry});
                    add_todo(self.tape(), &mut state).await?;
                    for entry in handoff_entries(&name, Some(state), self.run_meta()) {
                        self.tape().append_later(entry);
                    }
                }
                StepRequest::Reset { archive } => self.reset_tape(archive, prompt).await?,
                _ => {}
            }
        }
        Ok(has_requests)
    }

    /// Writes all queued entries to the tape. Then returns the entry with the tool calls of the last response, followed
    /// by the entries with their results.
    async fn last_response_entries(&self) -> Result<Vec<Entry>> {
        self.tape().append(Vec::new()).await?;
        let is_call = |entry: &Entry| entry.kind == EntryKind::ToolCall;
        let mut response = entries_from(self.tape(), is_call).await?;
        response.retain(|entry| is_call(entry) || entry.kind == EntryKind::ToolResult);
        Ok(response)
    }

    /// Clears the tape. The new tape starts with the user message of the turn and the response that requested the
    /// reset. Without that response, the model would request the reset again.
    async fn reset_tape(&self, archive: bool, prompt: &Prompt) -> Result<()> {
        let tape = self.tape().tape();
        let recorded_prompt = self.recorded_prompt().await?;
        let response = self.last_response_entries().await?;
        tape.reset(archive).await.map_err(tape_error)?;
        self.tape().invalidate_summary();
        let without_id = |entry: Entry| Entry {
            id: EntryId::default(),
            ..entry
        };
        self.tape()
            .record_prompt_again(without_id(
                recorded_prompt.unwrap_or_else(|| self.tape().user_message_entry(prompt)),
            ))
            .await?;
        for entry in response {
            self.tape().append_later(without_id(entry));
        }
        Ok(())
    }

    fn run_meta(&self) -> Map<String, Value> {
        Map::from_iter([("run_id".to_owned(), self.tape().run_id().into())])
    }
}

/// Adds the todo list of the session to the state of an anchor, so that the model still sees it after the handoff.
pub(crate) async fn add_todo(tape: &TurnTape, state: &mut Value) -> Result<()> {
    let todo = &tape.summary().await?.todo;
    if let (Some(state), false) = (state.as_object_mut(), todo.is_empty()) {
        state.insert("todo".to_owned(), json!(todo));
    }
    Ok(())
}

/// Returns the newest entries of a tape in their order, starting with the last one for which `is_first` returns true.
/// Reads only these entries.
pub(crate) async fn entries_from(
    turn: &TurnTape,
    is_first: impl Fn(&Entry) -> bool,
) -> Result<Vec<Entry>> {
    let tape = turn.tape();
    let mut entries = Vec::new();
    let mut newest = tape
        .store()
        .read(tape.name(), EntryRange::ALL.newest_first());
    while let Some(entry) = newest.try_next().await.map_err(tape_error)? {
        let is_last_read = is_first(&entry);
        entries.push(entry);
        if is_last_read {
            break;
        }
    }
    entries.reverse();
    Ok(entries)
}
