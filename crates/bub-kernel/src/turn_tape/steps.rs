//! The steps of an agent loop on the tape of its turn.

use std::time::Instant;

use bub_tape::{Entry, INTERRUPTED_RESULT, now_iso};
use serde_json::{Value, json};

use super::{TurnTape, lock};
use crate::error::Error;

/// The result of a call that was not made because the turn had ended.
const NOT_RUN_RESULT: &str = "[not run]";

/// A step that has begun.
#[derive(Debug)]
pub(super) struct OpenStep {
    number: u64,
    started: Instant,
    /// The text so far.
    text: String,
}

/// The tool calls of a response, until their results are recorded.
#[derive(Debug)]
pub(super) struct OpenCalls {
    ids: Vec<String>,
    states: Vec<CallState>,
}

/// How far a call has come.
#[derive(Clone, Debug)]
enum CallState {
    Waiting,
    Running,
    Done(Value),
}

impl OpenCalls {
    /// The results of calls that the end of the turn interrupted.
    fn close(self) -> Entry {
        let results = self.states.into_iter().map(|state| match state {
            CallState::Waiting => NOT_RUN_RESULT.into(),
            CallState::Running => INTERRUPTED_RESULT.into(),
            CallState::Done(result) => result,
        });
        Entry::tool_result(results.collect()).with_meta("call_ids", self.ids)
    }
}

impl TurnTape {
    /// Begins a step.
    pub fn begin_step(&self, number: u64, prompt: &str) {
        let mut progress = lock(&self.progress);
        progress.step = Some(OpenStep {
            number,
            started: Instant::now(),
            text: String::new(),
        });
        let data = json!({"step": number, "prompt": prompt});
        progress
            .pending
            .push(self.with_run_id(Entry::event("loop.step.start", Some(data))));
    }

    /// Adds text that the model produced in this step.
    pub fn record_delta(&self, delta: &str) {
        if let Some(step) = &mut lock(&self.progress).step {
            step.text.push_str(delta);
        }
    }

    /// Notes that the calls of a response are on the tape.
    pub fn begin_calls(&self, ids: Vec<String>) {
        let states = vec![CallState::Waiting; ids.len()];
        lock(&self.progress).calls = Some(OpenCalls { ids, states });
    }

    /// Notes that a call is running, or its result.
    pub fn set_call_state(&self, index: usize, result: Option<&Value>) {
        let mut progress = lock(&self.progress);
        let calls = progress.calls.as_mut();
        if let Some(state) = calls.and_then(|calls| calls.states.get_mut(index)) {
            *state = result.map_or(CallState::Running, |result| CallState::Done(result.clone()));
        }
    }

    /// Notes that the results of all calls are recorded.
    pub fn end_calls(&self) {
        lock(&self.progress).calls = None;
    }

    /// Records results for calls that were left open; `false` if there are none.
    pub fn close_calls(&self) -> bool {
        let calls = lock(&self.progress).calls.take();
        let any = calls.is_some();
        if let Some(calls) = calls {
            self.append_later(self.with_run_id(calls.close()));
        }
        any
    }

    /// The text of the current step so far.
    pub fn partial_text(&self) -> Option<String> {
        lock(&self.progress)
            .step
            .as_ref()
            .map(|step| step.text.clone())
    }

    /// Ends the step and returns its event, to be recorded with the rest of the step.
    pub fn end_step(&self, status: &str, error: Option<&Error>) -> Option<Entry> {
        let step = lock(&self.progress).step.take()?;
        let elapsed = u64::try_from(step.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let mut data = json!({"step": step.number, "elapsed_ms": elapsed, "status": status});
        if let (Some(error), Some(data)) = (error, data.as_object_mut()) {
            data.insert("error".to_owned(), error.message().into());
        }
        if let Some(data) = data.as_object_mut() {
            data.insert("date".to_owned(), now_iso().into());
        }
        Some(self.with_run_id(Entry::event("loop.step", Some(data))))
    }

    /// Notes that the model stage is recorded completely.
    pub fn complete(&self) {
        lock(&self.progress).is_complete = true;
    }

    /// Notes that the model stage is recorded completely, with the error that ended it.
    pub fn complete_with_error(&self) {
        let mut progress = lock(&self.progress);
        (progress.is_complete, progress.has_error) = (true, true);
    }
}
