//! Recording the steps of an agent loop.

use std::time::{Duration, Instant};

use bub_tape::{Entry, INTERRUPTED_RESULT, SystemPrompt, SystemPromptRecord, View};
use serde_json::{Map, Value, json};

use super::{TurnTape, draft::DraftProgress};
use crate::error::{Error, Result};

/// The result of a tool call that did not start before the turn ended.
pub(super) const NOT_RUN_RESULT: &str = "[not run]";

/// The event before a question about a tool call. After a crash, it shows which calls had not started.
pub(super) const APPROVAL_REQUEST_EVENT: &str = "approval.request";
/// The key of the ids of these calls in the event.
pub(super) const NOT_RUN_KEY: &str = "not_run";

/// Maximum bytes of the output of an interrupted call that are recorded.
const MAX_PRINTED_BYTES: usize = 16 * 1024;

/// A step that has not ended.
#[derive(Debug)]
pub(super) struct OpenStep {
    pub(super) number: u64,
    prompt: Option<String>,
    started: Instant,
    /// Whether the start event of the step is on the tape or will be written with the next batch.
    has_start_event: bool,
    /// The text that the model has produced in this step so far.
    pub(super) text: String,
    pub(super) draft: DraftProgress,
}

/// The tool calls of a step, until their results are recorded.
#[derive(Debug)]
pub(super) struct OpenCalls {
    ids: Vec<String>,
    /// Whether the calls run at the same time. If not, each call starts when the one before it has ended.
    is_concurrent: bool,
    states: Vec<CallState>,
    /// How long each call waited for approvals.
    approval_waits: Vec<Duration>,
}

/// The end of the text that a call or a command has printed.
#[derive(Clone, Debug, Default)]
pub(super) struct PrintedOutput(String);

impl PrintedOutput {
    fn push(&mut self, text: &str) {
        self.0.push_str(text);
        let start = self.0.len().saturating_sub(MAX_PRINTED_BYTES);
        self.0.drain(..self.0.ceil_char_boundary(start));
    }

    /// Returns the text with the printed output, if there is any.
    pub(super) fn append_to(&self, text: &str) -> String {
        match self.0.trim_end() {
            "" => text.to_owned(),
            printed => format!("{text}\noutput until then:\n{printed}"),
        }
    }
}

/// The progress of a tool call.
#[derive(Clone, Debug)]
enum CallState {
    Waiting,
    /// The call runs and has printed this text.
    Running(PrintedOutput),
    Done(Value),
}

/// How far a tool call is in a turn that is interrupted.
#[derive(Clone, Debug, PartialEq)]
pub enum CallProgress {
    /// The call has not started.
    NotRun,
    /// The call was running, so its outcome is unknown.
    Interrupted,
    /// The call has ended with this result.
    Done(Value),
}

impl OpenCalls {
    /// Returns one entry with the results of all calls. A call that has not finished gets a fixed text as its result.
    fn into_result_entry(self) -> Entry {
        let results = self.states.into_iter().map(|state| match state {
            CallState::Waiting => NOT_RUN_RESULT.into(),
            CallState::Running(output) => output.append_to(INTERRUPTED_RESULT).into(),
            CallState::Done(result) => result,
        });
        Entry::tool_result(results.collect()).with_meta("call_ids", self.ids)
    }
}

impl TurnTape {
    /// Starts a step. `prompt` is the new prompt of the step, if it has one. Its start event is recorded with
    /// [`TurnTape::begin_call`], or at the latest with the end of the step.
    pub fn begin_step(&self, number: u64, prompt: Option<&str>) {
        self.progress.lock().step = Some(OpenStep {
            number,
            prompt: prompt.map(str::to_owned),
            started: Instant::now(),
            has_start_event: false,
            text: String::new(),
            draft: DraftProgress::default(),
        });
    }

    /// Records that the model call of the step begins: the start event of the step with the view, and the system prompt
    /// if it is new. `model` is the model, if it is not the one in `loop.start`. Call this before the request is sent,
    /// so that after a crash the tape shows what the model was asked.
    pub async fn begin_call(
        &self,
        model: Option<&str>,
        view: &View,
        system: &SystemPrompt,
    ) -> Result<()> {
        let system = SystemPromptRecord::new(system, &*self.summary().await?);
        let model = model.map(|model| ("model".to_owned(), model.into()));
        let mut data = Map::from_iter(model);
        data.insert("view".to_owned(), json!(view.ranges));
        data.extend(
            system
                .hash
                .map(|hash| ("system_sha256".to_owned(), hash.into())),
        );
        self.add_start_event(data);
        let batch = system.entry.map(|entry| self.with_run_id(entry));
        self.append(batch.into_iter().collect()).await?;
        Ok(())
    }

    /// Adds the start event of the step to the next batch, unless it is recorded already.
    fn add_start_event(&self, further: Map<String, Value>) {
        let mut progress = self.progress.lock();
        let Some(step) = progress.step.as_mut().filter(|step| !step.has_start_event) else {
            return;
        };
        step.has_start_event = true;
        let mut data = json!({"step": step.number, "prompt": step.prompt});
        if let Some(data) = data.as_object_mut() {
            data.extend(further);
        }
        let event = self.with_run_id(Entry::event("loop.step.start", Some(data)));
        progress.pending.push(event);
    }

    /// Sets the ids of the step's tool calls, and whether they run at the same time. The calls are on the tape, but their
    /// results are not.
    pub fn begin_calls(&self, ids: Vec<String>, is_concurrent: bool) {
        self.progress.lock().calls = Some(OpenCalls {
            states: vec![CallState::Waiting; ids.len()],
            approval_waits: vec![Duration::ZERO; ids.len()],
            ids,
            is_concurrent,
        });
    }

    /// Sets whether a tool call runs, so that it may have taken effect if the turn ends now. A call that waits for an
    /// approval does not run yet.
    pub fn set_call_running(&self, call_id: &str, is_running: bool) {
        self.with_open_call(call_id, |calls, index| {
            if let Some(state) = calls.states.get_mut(index) {
                *state = if is_running {
                    CallState::Running(PrintedOutput::default())
                } else {
                    CallState::Waiting
                };
            }
        });
    }

    /// Records that a user is asked about a tool call, and which calls of the step have not started. After a crash, these
    /// calls are known not to have run.
    pub async fn record_approval_request(&self, tool: &str, call_id: &str) -> Result<()> {
        let not_run = self.with_open_call(call_id, |calls, index| {
            let states = calls.ids.iter().zip(&calls.states).enumerate();
            let waiting = states.filter(|(position, (_, state))| {
                let is_known = *position == index || !calls.is_concurrent;
                is_known && matches!(state, CallState::Waiting)
            });
            waiting.map(|(_, (id, _))| id.clone()).collect::<Vec<_>>()
        });
        let data =
            json!({"tool": tool, "call_id": call_id, NOT_RUN_KEY: not_run.unwrap_or_default()});
        let event = Entry::event(APPROVAL_REQUEST_EVENT, Some(data)).exclude_from_context();
        self.append(vec![self.with_run_id(event)]).await?;
        Ok(())
    }

    /// Adds text that a tool call has printed, or the comma command of the turn if `call_id` is `None`. If the turn is
    /// interrupted, the end of the text is recorded with the result. The caller redacts it.
    pub fn add_output(&self, call_id: Option<&str>, text: &str) {
        let Some(call_id) = call_id else {
            return self.progress.lock().command_output.push(text);
        };
        self.with_open_call(call_id, |calls, index| {
            if let Some(CallState::Running(output)) = calls.states.get_mut(index) {
                output.push(text);
            }
        });
    }

    /// Sets the result of a tool call. `index` is its position in the list of [`TurnTape::begin_calls`].
    pub fn set_call_result(&self, index: usize, result: &Value) {
        let mut progress = self.progress.lock();
        let calls = progress.calls.as_mut();
        if let Some(state) = calls.and_then(|calls| calls.states.get_mut(index)) {
            *state = CallState::Done(result.clone());
        }
    }

    /// Adds to the time that a tool call waited for approvals.
    pub fn add_approval_wait(&self, call_id: &str, wait: Duration) {
        self.with_open_call(call_id, |calls, index| {
            if let Some(sum) = calls.approval_waits.get_mut(index) {
                *sum += wait;
            }
        });
    }

    /// Returns how long a tool call has waited for approvals.
    pub fn approval_wait(&self, call_id: &str) -> Duration {
        let wait = self.with_open_call(call_id, |calls, index| {
            calls.approval_waits.get(index).copied()
        });
        wait.flatten().unwrap_or_default()
    }

    fn with_open_call<T>(
        &self,
        call_id: &str,
        change: impl FnOnce(&mut OpenCalls, usize) -> T,
    ) -> Option<T> {
        let mut progress = self.progress.lock();
        let calls = progress.calls.as_mut()?;
        let index = calls.ids.iter().position(|id| id == call_id)?;
        Some(change(calls, index))
    }

    /// Returns how far the tool calls of the step are, as [`TurnTape::interrupt_calls`] would record it. Empty if all
    /// results are recorded.
    pub fn call_progress(&self) -> Vec<CallProgress> {
        let progress = self.progress.lock();
        let states = progress.calls.iter().flat_map(|calls| &calls.states);
        let states = states.map(|state| match state {
            CallState::Waiting => CallProgress::NotRun,
            CallState::Running(_) => CallProgress::Interrupted,
            CallState::Done(result) => CallProgress::Done(result.clone()),
        });
        states.collect()
    }

    /// Marks the results of the step's tool calls as recorded.
    pub fn end_calls(&self) {
        self.progress.lock().calls = None;
    }

    /// If the step has tool calls without recorded results, adds their result entry to the next batch. Returns whether
    /// it had such calls.
    pub fn interrupt_calls(&self) -> bool {
        let Some(calls) = self.progress.lock().calls.take() else {
            return false;
        };
        self.append_later(self.with_run_id(calls.into_result_entry()));
        true
    }

    /// Returns the text of the current step so far, or `None` outside of a step.
    pub fn partial_text(&self) -> Option<String> {
        let progress = self.progress.lock();
        progress.step.as_ref().map(|step| step.text.clone())
    }

    /// Ends the step and returns its end event, which the caller records with the rest of the step.
    pub fn end_step(&self, status: &str, error: Option<&Error>) -> Option<Entry> {
        self.add_start_event(Map::new());
        let step = self.progress.lock().step.take()?;
        let elapsed = u64::try_from(step.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let mut data = json!({"step": step.number, "elapsed_ms": elapsed, "status": status});
        if let Some(data) = data.as_object_mut() {
            let error = error.map(|error| ("error".to_owned(), error.message().into()));
            data.extend(error);
        }
        Some(self.with_run_id(Entry::event("loop.step", Some(data))))
    }

    /// Records that no model is configured: the output of the model stage is recorded as an event, not as an answer.
    pub(crate) fn mark_no_model(&self) {
        self.progress.lock().has_no_model = true;
    }

    /// Marks the model stage as completely recorded.
    pub fn mark_complete(&self) {
        self.progress.lock().is_complete = true;
    }

    /// Marks the model stage as completely recorded, including the error that ended it.
    pub fn mark_complete_with_error(&self) {
        let mut progress = self.progress.lock();
        (progress.is_complete, progress.has_error) = (true, true);
    }
}
