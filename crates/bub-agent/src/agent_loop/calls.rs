//! Runs the tool calls of one model response.

use std::time::Instant;

use bub_kernel::{BoxFuture, Error, ErrorKind, Prompt, Result, StreamEvent};
use bub_model::Completion;
use bub_tape::{Entry, StepRecord, tool_done_event};
use futures_util::{StreamExt as _, stream};
use serde_json::{Map, Value, json};

use super::{AgentLoop, LoopState, StepOutcome, repeat_guard::RepeatAction};
use crate::{tool_runner::ToolRunner, tool_set::ToolLookup};

/// Maximum number of concurrent tool calls. Calls run concurrently only if all calls of a response are read-only.
const MAX_PARALLEL_CALLS: usize = 8;

/// A tool call that the model requested.
struct RequestedCall<'a> {
    id: &'a str,
    name: &'a str,
    /// The arguments, or the reason why they are invalid.
    arguments: Result<Map<String, Value>, String>,
}

impl AgentLoop {
    /// Records the tool calls of a response, runs them, and queues their results for the next write to the tape.
    pub(super) async fn run_tool_calls(
        &self,
        mut chat: StepRecord,
        answer: Completion,
        prompt: &Prompt,
        loop_state: &mut LoopState,
    ) -> Result<StepOutcome> {
        let action = loop_state.repeat_guard.check_calls(&answer.tool_calls);
        chat.text = Some(answer.text.clone());
        chat.tool_calls.clone_from(&answer.tool_calls);
        chat.provider_state.clone_from(&answer.provider_state);
        // Record the calls before they run, so that after a crash it is known which calls may have run.
        self.turn.tape().record_step(chat, Vec::new()).await?;
        self.turn.tape().begin_calls(
            answer
                .tool_calls
                .iter()
                .map(|call| text_at(call, "/id").to_owned())
                .collect(),
        );
        self.events
            .send(StreamEvent::ToolCall(answer.tool_calls.clone()))
            .await;
        let is_unknown = |call: &Value| !self.has_tool(text_at(call, "/function/name"));
        let mut skipped: Vec<usize> = matching_indexes(&answer.tool_calls, is_unknown);
        let (mut results, elapsed): (Vec<Value>, Vec<u64>) = match action {
            RepeatAction::Proceed => self.run_calls(&answer).await?.into_iter().unzip(),
            RepeatAction::Refuse(cause) => {
                skipped = matching_indexes(&answer.tool_calls, |_| true);
                vec![(Value::String(cause), 0); answer.tool_calls.len()]
                    .into_iter()
                    .unzip()
            }
            RepeatAction::EndTurn => {
                let text = "the turn was ended: the model kept repeating the same tool call with the same result; rephrase the request";
                return Err(Error::new(ErrorKind::Provider, text));
            }
        };
        if let Some(note) = loop_state
            .repeat_guard
            .record_results(&answer.tool_calls, &results)
            && let Some(Value::String(last)) = results.last_mut()
        {
            last.push_str(&note);
        }
        let ids: Value = answer
            .tool_calls
            .iter()
            .map(|call| call.get("id").cloned().unwrap_or_default())
            .collect();
        let entry = Entry::tool_result(results.clone()).with_meta("call_ids", ids);
        self.turn.tape().end_calls();
        self.turn
            .tape()
            .append_later(self.turn.tape().with_run_id(entry));
        if self.apply_step_requests(prompt).await? {
            loop_state.was_asked_to_hand_off = false;
        }
        if let Some(end) = self.turn.tape().end_step("continue", None) {
            self.turn.tape().append_later(end);
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

    fn has_tool(&self, name: &str) -> bool {
        matches!(self.tools.find(name), ToolLookup::Tool(_))
    }

    /// Runs the calls in order, or concurrently if all of them are read-only. Returns results and elapsed milliseconds.
    async fn run_calls(&self, answer: &Completion) -> Result<Vec<(Value, u64)>> {
        let calls: Vec<RequestedCall<'_>> = answer
            .tool_calls
            .iter()
            .enumerate()
            .map(|(index, call)| parse_call(call, index, answer))
            .collect();
        let are_read_only = calls.iter().all(|call| self.tools.is_read_only(call.name));
        let is_one_of_several = calls.len() > 1;
        let running: Vec<BoxFuture<'_, Result<(Value, u64)>>> = calls
            .iter()
            .enumerate()
            .map(|(index, call)| {
                Box::pin(async move {
                    let started = Instant::now();
                    let result = self.run_call(index, call, is_one_of_several).await?;
                    Ok((
                        result,
                        u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
                    ))
                }) as _
            })
            .collect();
        let results: Vec<Result<_>> = stream::iter(running)
            .buffered(if are_read_only { MAX_PARALLEL_CALLS } else { 1 })
            .collect()
            .await;
        results.into_iter().collect()
    }

    /// Runs one call and returns its result or error as a value. If the response has several calls, also records the
    /// result on the tape.
    async fn run_call(
        &self,
        index: usize,
        call: &RequestedCall<'_>,
        is_one_of_several: bool,
    ) -> Result<Value> {
        if self.requests.has_reset() {
            // The reset would remove the record of the call.
            return Ok("[not run: the tape is being reset]".into());
        }
        self.turn.tape().set_call_state(index, None);
        let runner = ToolRunner::new(self);
        let result = match (self.tools.find(call.name), &call.arguments) {
            (ToolLookup::Tool(tool), Ok(arguments)) => {
                runner.run_for_model(tool, arguments.clone(), call.id).await
            }
            (ToolLookup::Tool(_), Err(reason)) => {
                Error::new(ErrorKind::InvalidInput, reason.as_str()).to_value()
            }
            (ToolLookup::Unknown(guidance), _) => guidance.into(),
        };
        self.turn.tape().set_call_state(index, Some(&result));
        if is_one_of_several {
            self.turn
                .tape()
                .append(vec![
                    self.turn
                        .tape()
                        .with_run_id(tool_done_event(call.id, result.clone())),
                ])
                .await?;
        }
        Ok(result)
    }
}

/// Returns the indexes of the calls for which `matches` is true.
fn matching_indexes(calls: &[Value], matches: impl Fn(&Value) -> bool) -> Vec<usize> {
    calls
        .iter()
        .enumerate()
        .filter(|(_, call)| matches(call))
        .map(|(index, _)| index)
        .collect()
}

fn text_at<'a>(call: &'a Value, path: &str) -> &'a str {
    call.pointer(path)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn parse_call<'a>(call: &'a Value, index: usize, answer: &Completion) -> RequestedCall<'a> {
    let text = |path: &str| text_at(call, path);
    let raw = text("/function/arguments");
    let arguments = match answer.invalid_call(index) {
        Some(broken) if answer.finish.is_stopped() => Err(broken.reason.clone()),
        Some(broken) => Err(format!(
            "{}; call it again with one JSON object as its arguments",
            broken.reason
        )),
        None => serde_json::from_str(raw).map_err(|error| {
            format!(
                "invalid arguments: {error}; call it again with one JSON object as its arguments"
            )
        }),
    };
    RequestedCall {
        id: text("/id"),
        name: text("/function/name"),
        arguments,
    }
}
