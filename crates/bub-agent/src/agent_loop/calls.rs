//! Runs the tool calls of one model response.

use std::{pin::pin, sync::Arc, time::Instant};

use bub_kernel::{
    BoxFuture, Error, ErrorKind, Prompt, Result, StreamEvent, ToolContext,
    hooks::{HookPoint as _, point::AfterToolCall},
};
use bub_model::Completion;
use bub_tape::{Entry, StepRecord, tool_done_event};
use futures_util::{StreamExt as _, stream};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use super::{AgentLoop, LoopState, StepOutcome, repeat_guard::RepeatAction};
use crate::{
    tool_runner::{CallTarget, LIVE_OUTPUT_CAPACITY, ToolRunner},
    tool_set::OfferedTools,
};

/// Maximum number of concurrent tool calls. Calls run concurrently only if all calls of a response are read-only.
const MAX_PARALLEL_CALLS: usize = 8;
/// Key in the state that is `false` if the model may repeat a tool call without limit.
const REPEAT_GUARD_KEY: &str = "_runtime_repeat_guard";
/// Maximum size of one event with output of a running call.
const MAX_OUTPUT_EVENT_BYTES: usize = 8 * 1024;
/// The path of the tool's name in a tool call.
pub(super) const NAME_PATH: &str = "/function/name";

impl AgentLoop {
    /// Records the tool calls of a response, runs them, and queues their results for the next write to the tape.
    pub(super) async fn run_tool_calls(
        &self,
        mut chat: StepRecord,
        answer: Completion,
        prompt: &Prompt,
        loop_state: &mut LoopState,
    ) -> Result<StepOutcome> {
        // A replay repeats the calls of its tape. Their results have the notes of the guard already.
        let is_guarded = self.turn.state().get(REPEAT_GUARD_KEY) != Some(Value::Bool(false));
        let action = if is_guarded {
            loop_state.repeat_guard.check_calls(&answer.tool_calls)
        } else {
            RepeatAction::Proceed
        };
        chat.text = Some(answer.text.clone());
        chat.tool_calls.clone_from(&answer.tool_calls);
        chat.provider_state.clone_from(&answer.provider_state);
        // Record the calls before they run, so that after a crash it is known which calls may have run.
        self.tape().record_step(chat, Vec::new()).await?;
        let ids = answer.tool_calls.iter().map(|call| text_at(call, "/id"));
        let ids = ids.map(str::to_owned).collect();
        let are_concurrent = self.are_read_only(&answer, &loop_state.offered);
        self.tape().begin_calls(ids, are_concurrent);
        let event = StreamEvent::ToolCall(answer.tool_calls.clone());
        self.events.send(event).await;
        let is_refused = matches!(action, RepeatAction::Refuse(_));
        let offered = Arc::clone(&loop_state.offered);
        let is_skipped = |call: &Value| {
            is_refused || self.tools.find(text_at(call, NAME_PATH), &offered).is_err()
        };
        let calls = answer.tool_calls.iter().enumerate();
        let skipped = calls.filter(|(_, call)| is_skipped(call));
        let skipped: Vec<usize> = skipped.map(|(index, _)| index).collect();
        let results = match action {
            RepeatAction::Proceed => self.run_calls(&answer, &offered).await?,
            RepeatAction::Refuse(cause) => {
                vec![(Value::String(cause), 0); answer.tool_calls.len()]
            }
            RepeatAction::EndTurn => {
                let text = "the turn was ended: the model kept repeating the same tool call with the same result; rephrase the request";
                return Err(Error::new(ErrorKind::Provider, text));
            }
        };
        let (mut results, elapsed): (Vec<Value>, Vec<u64>) = results.into_iter().unzip();
        let repeat_guard = &mut loop_state.repeat_guard;
        if is_guarded
            && let Some(note) = repeat_guard.record_results(&answer.tool_calls, &results)
            && let Some(Value::String(last)) = results.last_mut()
        {
            last.push_str(&note);
        }
        let ids = answer.tool_calls.iter().map(|call| call.get("id").cloned());
        let ids: Value = ids.map(Option::unwrap_or_default).collect();
        let entry = Entry::tool_result(results.clone()).with_meta("call_ids", ids);
        self.tape().end_calls();
        self.tape().append_later(self.tape().with_run_id(entry));
        if self
            .apply_step_requests(prompt, loop_state.size.fixed)
            .await?
        {
            loop_state.was_asked_to_hand_off = false;
        }
        if let Some(end) = self.tape().end_step("continue", None) {
            self.tape().append_later(end);
        }
        let final_data = json!({
            "ok": true, "tool_calls": answer.tool_calls, "tool_results": results, "elapsed_ms": elapsed,
            "not_made": skipped,
        });
        Ok(StepOutcome::Continue(vec![
            StreamEvent::ToolResult(results),
            StreamEvent::Final(final_data),
        ]))
    }

    /// Runs the calls in order, or concurrently if all of them are read-only. Returns the result of each call and its
    /// duration in milliseconds.
    async fn run_calls(
        &self,
        answer: &Completion,
        offered: &OfferedTools,
    ) -> Result<Vec<(Value, u64)>> {
        let are_read_only = self.are_read_only(answer, offered);
        // The stream carries one event at a time. A hook that can change the output must see it before users do.
        let shows_output = AfterToolCall::implementations(self.hooks()).is_empty()
            && (!are_read_only || answer.tool_calls.len() == 1);
        let running: Vec<BoxFuture<'_, Result<(Value, u64)>>> = answer
            .tool_calls
            .iter()
            .enumerate()
            .map(|(index, call)| {
                let running = self.run_call(answer, (index, call), offered, shows_output);
                Box::pin(running) as _
            })
            .collect();
        let results: Vec<Result<_>> = stream::iter(running)
            .buffered(if are_read_only { MAX_PARALLEL_CALLS } else { 1 })
            .collect()
            .await;
        results.into_iter().collect()
    }

    /// Returns whether all calls of a response are read-only, so that they run concurrently.
    fn are_read_only(&self, answer: &Completion, offered: &OfferedTools) -> bool {
        answer.tool_calls.iter().all(|call| {
            let tool = self.tools.find(text_at(call, NAME_PATH), offered);
            tool.is_ok_and(|tool| tool.spec().read_only)
        })
    }

    /// Runs one call. Returns its result or error as a value, and its duration in milliseconds without waiting for
    /// approvals. If the response has several calls, also records the result on the tape. With `shows_output`, sends the
    /// output of the call while it runs.
    async fn run_call(
        &self,
        answer: &Completion,
        (index, call): (usize, &Value),
        offered: &OfferedTools,
        shows_output: bool,
    ) -> Result<(Value, u64)> {
        if self.requests.has_reset() {
            // An earlier call requested a reset of the tape, which would remove the record of this call.
            return Ok(("[not run: the tape is being reset]".into(), 0));
        }
        let started = Instant::now();
        let call_id = text_at(call, "/id");
        let (live_output, printed) = mpsc::channel(LIVE_OUTPUT_CAPACITY);
        let context = ToolContext {
            cancel: self.cancel.clone(),
            call_id: Some(call_id.into()),
            live_output: shows_output.then_some(live_output),
            step_requests: Some(Arc::clone(&self.requests)),
            ..ToolContext::new(self.turn.clone())
        };
        let runner = ToolRunner {
            agent: &self.agent,
            context,
        };
        let name = text_at(call, NAME_PATH);
        let target = CallTarget::new(name, self.tools.find(name, offered));
        let result = match parse_arguments(answer, index, call) {
            Ok(arguments) => {
                let running = runner.run_for_model(&target, arguments);
                self.send_output((index, call_id), printed, running).await
            }
            Err(reason) => match target {
                CallTarget::Tool(_) => Error::invalid_input(reason).to_value(),
                CallTarget::Unknown { guidance, .. } => guidance.into(),
            },
        };
        let elapsed = started.elapsed().saturating_sub(runner.approval_wait());
        let elapsed = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        self.tape().set_call_result(index, &result);
        if answer.tool_calls.len() > 1 {
            let done = tool_done_event(call_id, result.clone());
            let done = self.tape().with_run_id(done);
            self.tape().append(vec![done]).await?;
        }
        Ok((result, elapsed))
    }

    /// Waits for a call, and meanwhile sends what it prints. If the reader is slower than the call, only the end of the
    /// output is sent.
    async fn send_output(
        &self,
        (index, call_id): (usize, &str),
        mut printed: mpsc::Receiver<String>,
        running: impl Future<Output = Value>,
    ) -> Value {
        let mut redactor = self.agent.settings.redactor().stream();
        let mut running = pin!(running);
        loop {
            tokio::select! {
                biased;
                result = &mut running => return result,
                Some(chunk) = printed.recv() => {
                    let mut text = redactor.push_str(&chunk);
                    while let Ok(chunk) = printed.try_recv() {
                        text.push_str(&redactor.push_str(&chunk));
                    }
                    let start = text.len().saturating_sub(MAX_OUTPUT_EVENT_BYTES);
                    let text = text.split_off(text.ceil_char_boundary(start));
                    if !text.is_empty() {
                        self.tape().add_output(Some(call_id), &text);
                        self.events.send(StreamEvent::ToolOutput { index, text }).await;
                    }
                }
            }
        }
    }
}

/// Returns the text at a path in a tool call, such as `/function/name`, or an empty text.
pub(super) fn text_at<'a>(call: &'a Value, path: &str) -> &'a str {
    call.pointer(path)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// Returns the arguments of a tool call. The error tells the model why they are invalid.
fn parse_arguments(
    answer: &Completion,
    index: usize,
    call: &Value,
) -> Result<Map<String, Value>, String> {
    const ADVICE: &str = "call it again with one JSON object as its arguments";
    match answer.invalid_call(index) {
        Some(broken) if answer.finish.is_stopped() => Err(broken.reason.clone()),
        Some(broken) => Err(format!("{}; {ADVICE}", broken.reason)),
        None => serde_json::from_str(text_at(call, "/function/arguments"))
            .map_err(|error| format!("invalid arguments: {error}; {ADVICE}")),
    }
}
