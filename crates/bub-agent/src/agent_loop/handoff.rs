//! Handoffs within a turn: requested by a tool, or automatic when the context window is full.

use bub_kernel::{Error, ErrorKind, Prompt, Result, StepRequest, TurnTape, tape_error};
use bub_tape::{Entry, EntryId, EntryKind, EntryRange, handoff_entries};
use futures_util::TryStreamExt as _;
use serde_json::{Map, Value, json};

use super::{
    AgentLoop, RequestSize,
    budget::HandoffBudget,
    digest::{PhaseEntries, is_instruction, tool_calls},
    handoff_state::HandoffParts,
    handoff_summary::HandoffCall,
};
use crate::settings::AgentSettings;

/// The window that is assumed if it is not known, in tokens.
pub(crate) const UNKNOWN_WINDOW: u64 = 64 * 1024;
/// The smallest window that is assumed after an overflow if it is not known, in tokens.
const MIN_ASSUMED_WINDOW: u64 = 8 * 1024;

impl AgentLoop {
    /// Hands off after the provider reported that the context is too long. The loop calls this at most once per run.
    pub(super) async fn hand_off_after_overflow(
        &self,
        error: &Error,
        size: RequestSize,
    ) -> Result<()> {
        let state = json!({"reason": "context_length_exceeded", "error": error.message()});
        // The window is smaller than the request, whatever the catalog says. Few windows are smaller than the minimum.
        let window = self.window().min(size.tokens.max(MIN_ASSUMED_WINDOW));
        let name = "auto_handoff/context_overflow";
        self.hand_off(name, state, window, size.fixed).await?;
        // The failed model call counts as a step.
        if let Some(end) = self.tape().end_step("auto_handoff", Some(error)) {
            self.tape().append_later(end);
        }
        Ok(())
    }

    /// Hands off because the context window is nearly full and the model did not hand off.
    pub(super) async fn hand_off_for_budget(&self, size: RequestSize, window: u64) -> Result<()> {
        let state = json!({"reason": "context_budget", "tokens": size.tokens, "window": window});
        let name = "auto_handoff/context_budget";
        self.hand_off(name, state, window, size.fixed).await
    }

    /// Lets the model sum up the entries since the last anchor, and writes an anchor. If the model fails, bub sums them
    /// up. Entries of this turn stay in the context, as far as they fit.
    async fn hand_off(&self, name: &str, mut state: Value, window: u64, fixed: u64) -> Result<()> {
        let model = self.model_name();
        let view = self.tape().build_view(&model, None).await?;
        let call = HandoffCall {
            turn: &self.turn,
            models: &self.models,
            messages: &view.messages,
            window,
            cancel: &self.cancel,
        };
        let written = self.agent.write_handoff(call).await;
        let written = match written {
            Err(error) if error.kind() != ErrorKind::Cancelled => {
                tracing::warn!(%error, "handoff.summary_failed");
                String::new()
            }
            written => written?,
        };
        let phase = PhaseEntries::read(self.tape().tape()).await?;
        let prompt = self.tape().prompt_id();
        let candidates = prompt.map(|prompt| phase.shown_from(prompt).collect());
        let further = HandoffParts {
            phase: &phase,
            candidates: candidates.unwrap_or_default(),
            written: &written,
            todo: &self.tape().summary().await?.todo,
            budget: self.handoff_budget(window, fixed),
        };
        if let Some(state) = state.as_object_mut() {
            state.extend(further.into_state());
        }
        self.tape()
            .append(handoff_entries(name, Some(state), self.run_meta()))
            .await?;
        Ok(())
    }

    /// Returns the context window of the model in tokens.
    fn window(&self) -> u64 {
        let model = self.models.first();
        let window = model.and_then(|model| self.agent.context_window(model));
        window.unwrap_or(UNKNOWN_WINDOW)
    }

    /// Returns the estimated tokens that the view may have after a handoff.
    fn handoff_budget(&self, window: u64, fixed: u64) -> HandoffBudget {
        let answer = self.agent.settings.get(AgentSettings::MAX_TOKENS);
        let budget = HandoffBudget::new(window, fixed, answer);
        budget.to_estimates(&self.agent.calibration, &self.model_name())
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
    pub(super) async fn apply_step_requests(&self, prompt: &Prompt, fixed: u64) -> Result<bool> {
        let requests = self.requests.take();
        let has_requests = !requests.is_empty();
        for request in requests {
            match request {
                StepRequest::HandOff { name, summary } => {
                    let response = self.last_response_entries().await?;
                    // The model has not seen the results of calls that it made together with the handoff.
                    let is_alone = response
                        .first()
                        .is_some_and(|entry| tool_calls(entry).len() < 2);
                    let phase = PhaseEntries::read(self.tape().tape()).await?;
                    let prompt = self.tape().prompt_id();
                    let candidates = phase.shown_from(prompt.unwrap_or_default());
                    let candidates = candidates.filter(|entry| {
                        let is_response = || response.iter().any(|other| other.id == entry.id);
                        is_instruction(entry) || !is_alone && is_response()
                    });
                    let candidates = candidates.collect();
                    let state = HandoffParts {
                        phase: &phase,
                        candidates,
                        written: &summary,
                        todo: &self.tape().summary().await?.todo,
                        budget: self.handoff_budget(self.window(), fixed),
                    };
                    let state = Value::Object(state.into_state());
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
