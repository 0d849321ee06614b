//! One step: one model call and the tool calls it requests.

use std::{path::PathBuf, sync::Arc, time::Instant};

use bub_kernel::{Error, ErrorKind, LlmRequest, LlmResult, Prompt, Result, StreamEvent};
use bub_model::{
    Accumulator, CallOptions, ChatRequest, Completion, FinishReason, ModelError, ModelEvent,
    ModelEventStream, ModelId, RecoveryAction,
};
use bub_tape::{EntryId, StepRecord};
use futures_util::StreamExt as _;
use serde_json::{Value, json};

use super::{
    AgentLoop, LoopState, StepOutcome,
    budget::{self, ContextBudget},
};
use crate::settings::{COMPLETION_ARGS, MAX_TOKENS};
use crate::skills::LoadedSkills;

/// The text between the answers of two steps.
const STEP_SEPARATOR: &str = "\n\n";

/// The error of a failed step.
pub(super) struct StepError {
    pub(super) error: Error,
    /// Whether the context is too long for the model.
    pub(super) is_overflow: bool,
}

impl From<Error> for StepError {
    fn from(error: Error) -> Self {
        Self {
            error,
            is_overflow: false,
        }
    }
}

impl From<ModelError> for StepError {
    fn from(error: ModelError) -> Self {
        Self {
            is_overflow: error.action == RecoveryAction::ShrinkContext,
            error: model_error(&error),
        }
    }
}

/// A model call that is ready for the hook `before_llm_call`.
struct PreparedCall {
    request: LlmRequest,
    /// The entries that the view shows.
    entries: Vec<EntryId>,
    /// The estimated tokens before calibration.
    estimate: u64,
}

impl AgentLoop {
    /// Makes one model call and runs the tool calls it requests.
    pub(super) async fn run_step(
        &self,
        prompt: &Prompt,
        loop_state: &mut LoopState,
    ) -> Result<StepOutcome, StepError> {
        let system = self.build_system_prompt(prompt)?;
        let prepared = self.prepare_call(&system, loop_state).await?;
        let gate = self
            .turn
            .framework()
            .hooks()
            .before_llm_call(prepared.request, &self.turn)
            .await;
        self.turn.tape().append_hook_decisions(&gate.notes);
        let mut chat = self.turn.tape().new_step_record();
        (chat.system, chat.view) = (Some(system), prepared.entries);
        chat.model = Some(gate.request.model.clone());
        if let Some(text) = gate.finish {
            self.emit_hook_text(&text, loop_state).await;
            return self.end_with_answer(chat, text).await;
        }
        self.agent
            .check_daily_limit(&self.models_for_request(&gate.request)?)
            .await?;
        let started = Instant::now();
        let outcome = self.call_model(&gate.request, loop_state).await;
        let mut result = LlmResult {
            run_id: self.turn.id().clone(),
            duration: started.elapsed(),
            ..LlmResult::default()
        };
        let (answer, model) = match outcome {
            Ok(answer) => answer,
            Err(failure) => {
                result.error = Some(failure.error.clone());
                self.run_after_call_hooks(&gate.request, &result).await;
                return Err(failure);
            }
        };
        result.text = Some(answer.text.clone()).filter(|text| !text.is_empty());
        result.tool_calls.clone_from(&answer.tool_calls);
        result.usage = answer.usage.as_ref().map(bub_model::Usage::to_json);
        chat.usage.clone_from(&result.usage);
        chat.model = model.map(|model| model.to_string()).or(chat.model);
        if self.agent.daily_limit().is_set() {
            // Usage that the provider does not report is estimated, so that it counts towards the limit.
            let estimated = || json!({"prompt_tokens": prepared.estimate, "completion_tokens": answer.text.len() / 3});
            let usage = result.usage.clone().unwrap_or_else(estimated);
            self.agent
                .daily_limit()
                .record_call(chat.model.as_deref().unwrap_or_default(), &usage)
                .await;
        }
        if let Some(usage) = &answer.usage {
            self.agent.calibration().record_usage(
                &gate.request.model,
                prepared.estimate,
                usage.prompt,
            );
        }
        self.run_after_call_hooks(&gate.request, &result).await;
        if let Some(usage) = result.usage {
            self.events.send(StreamEvent::Usage(usage)).await;
        }
        if let Some(error) = incomplete_error(&answer) {
            self.events.send(StreamEvent::Error(error)).await;
        }
        if answer.tool_calls.is_empty() {
            return self.end_with_answer(chat, answer.text).await;
        }
        Ok(self
            .run_tool_calls(chat, answer, prompt, loop_state)
            .await?)
    }

    /// Ends the last step of a turn: records the answer and sends the final event.
    async fn end_with_answer(
        &self,
        mut chat: StepRecord,
        text: String,
    ) -> Result<StepOutcome, StepError> {
        chat.text = Some(text.clone());
        let last = self.turn.tape().end_step("ok", None);
        self.turn
            .tape()
            .record_step(chat, last.into_iter().collect())
            .await?;
        self.events
            .send(StreamEvent::Final(json!({"ok": true, "text": text})))
            .await;
        Ok(StepOutcome::Done)
    }

    /// Builds the request for the model. If the request does not fit the context window, hands off first.
    async fn prepare_call(&self, system: &str, loop_state: &mut LoopState) -> Result<PreparedCall> {
        let model = self
            .models
            .first()
            .map(ToString::to_string)
            .unwrap_or_default();
        let window = self
            .models
            .first()
            .and_then(|model| self.agent.context_window(model));
        let answer = self.agent.settings().get(&MAX_TOKENS);
        let mut tokens_before = None;
        loop {
            let view = self
                .turn
                .tape()
                .build_view(&model, window.map(max_carried_bytes))
                .await?;
            let mut messages = Vec::with_capacity(view.messages.len() + 2);
            messages.push(json!({"role": "system", "content": system}));
            messages.extend(view.messages.into_iter().map(Value::Object));
            let estimate = budget::estimate_tokens(&messages) + self.tools.definition_tokens();
            let tokens = self.agent.calibration().correct_estimate(&model, estimate);
            if let Some(window) = window {
                // Do not repeat a handoff that did not shrink the request.
                loop_state.cannot_shrink |=
                    tokens_before.is_some_and(|before| tokens * 10 > before * 9);
                match budget::check_budget(tokens, window, answer) {
                    ContextBudget::Exceeded if !loop_state.cannot_shrink => {
                        self.hand_off_for_budget(tokens, window).await?;
                        loop_state.was_asked_to_hand_off = false;
                        tokens_before = Some(tokens);
                        continue;
                    }
                    ContextBudget::Tight(percent) if !loop_state.was_asked_to_hand_off => {
                        loop_state.was_asked_to_hand_off = true;
                        let notice = Prompt::Text(handoff_notice(percent));
                        self.turn
                            .tape()
                            .append(vec![self.turn.tape().user_message_entry(&notice)])
                            .await?;
                        messages.push(json!({"role": "user", "content": notice}));
                    }
                    ContextBudget::Tight(_) | ContextBudget::Exceeded | ContextBudget::Fits => {}
                }
            }
            let request = LlmRequest {
                run_id: self.turn.id().clone(),
                model,
                messages: Arc::new(messages),
                tool_names: self.tools.model_names(),
                max_tokens: Some(answer),
            };
            return Ok(PreparedCall {
                request,
                entries: view.entries,
                estimate,
            });
        }
    }

    /// Makes the model call and streams its events.
    async fn call_model(
        &self,
        llm_request: &LlmRequest,
        loop_state: &mut LoopState,
    ) -> Result<(Completion, Option<ModelId>), StepError> {
        let mut events = self.start_model_stream(llm_request)?;
        let mut accumulator = Accumulator::new();
        let mut is_first = true;
        while let Some(event) = events.next().await {
            let event = event?;
            match &event {
                ModelEvent::Text(delta) => {
                    if std::mem::take(&mut is_first) && loop_state.has_text {
                        self.events
                            .send(StreamEvent::Text(STEP_SEPARATOR.to_owned()))
                            .await;
                    }
                    loop_state.has_text = true;
                    self.turn.tape().record_delta(delta);
                    self.events.send(StreamEvent::Text(delta.clone())).await;
                }
                ModelEvent::Reasoning(delta) => {
                    self.events
                        .send(StreamEvent::Reasoning(delta.clone()))
                        .await;
                }
                // Lets channels show that the call waits, for example because of a rate limit.
                ModelEvent::Retry(retry) => {
                    let data = json!({
                        "attempt": retry.attempt,
                        "wait_seconds": retry.delay.as_secs_f64(),
                        "reason": retry.error.to_string(),
                    });
                    self.events
                        .send(StreamEvent::Other {
                            kind: "retry".to_owned(),
                            data,
                        })
                        .await;
                }
                _ => {}
            }
            accumulator.push(event);
        }
        Ok((accumulator.finish()?, events.model()))
    }

    fn start_model_stream(&self, llm_request: &LlmRequest) -> Result<ModelEventStream> {
        let settings = self.agent.settings();
        let models = self.models_for_request(llm_request)?;
        let request = ChatRequest {
            messages: Arc::clone(&llm_request.messages),
            tools: self.tools.definitions_for(&llm_request.tool_names),
            max_tokens: llm_request.max_tokens,
            reasoning_effort: self
                .turn
                .state()
                .get_str("reasoning_effort")
                .filter(|effort| !effort.is_empty()),
            stream: true,
            extra: settings.get(&COMPLETION_ARGS),
            ..ChatRequest::default()
        };
        let options = CallOptions {
            cancel: self.cancel.clone(),
            ..CallOptions::from_settings(settings)
        };
        self.agent.start_model_call(models, request, options)
    }

    /// Returns the models to try for a request. A model that a hook selected has no fallbacks.
    fn models_for_request(&self, llm_request: &LlmRequest) -> Result<Vec<ModelId>> {
        let is_unchanged = self
            .models
            .first()
            .is_some_and(|first| first.to_string() == llm_request.model);
        if is_unchanged {
            Ok(self.models.clone())
        } else {
            Ok(vec![self.agent.resolve_model(&llm_request.model)?])
        }
    }

    /// Sends the text that the hook `before_llm_call` returned as the answer. The model is not called.
    async fn emit_hook_text(&self, text: &str, loop_state: &mut LoopState) {
        if loop_state.has_text {
            self.events
                .send(StreamEvent::Text(STEP_SEPARATOR.to_owned()))
                .await;
        }
        loop_state.has_text = true;
        self.turn.tape().record_delta(text);
        self.events.send(StreamEvent::Text(text.to_owned())).await;
    }

    /// Runs the hook `after_llm_call` and records its notes.
    async fn run_after_call_hooks(&self, request: &LlmRequest, result: &LlmResult) {
        let notes = self
            .turn
            .framework()
            .hooks()
            .after_llm_call(request, result, &self.turn)
            .await;
        self.turn.tape().append_hook_decisions(&notes);
    }

    fn allowed_skills(&self) -> Option<Vec<String>> {
        let Value::Array(names) = self.turn.state().get("allowed_skills")? else {
            return None;
        };
        Some(
            names
                .iter()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect(),
        )
    }

    /// Builds the system prompt: the fragments of the plugins, the list of tools, and the list of skills.
    fn build_system_prompt(&self, prompt: &Prompt) -> Result<String> {
        let mut parts = vec![self.turn.framework().system_prompt(prompt, &self.turn)?];
        parts.push(self.tools.prompt_block().to_owned());
        let workspace = self
            .turn
            .state()
            .get_str("_runtime_workspace")
            .map(PathBuf::from);
        let allowed = self.allowed_skills();
        parts.push(self.agent.skills().prompt_block(
            workspace.as_deref(),
            &prompt.text(),
            allowed.as_deref(),
            &LoadedSkills::from_state(self.turn.state()),
        ));
        parts.retain(|part| !part.is_empty());
        Ok(self
            .agent
            .settings()
            .redactor()
            .redact(&parts.join("\n\n"))
            .into_owned())
    }
}

/// Returns the maximum size in bytes of the entries that a handoff carries over: 40 % of the window, at about three
/// bytes per token.
fn max_carried_bytes(window: u64) -> usize {
    usize::try_from(window * 3 * 2 / 5).unwrap_or(usize::MAX)
}

fn handoff_notice(percent: u64) -> String {
    format!(
        "[context: {percent} % of your context window is used. Before you continue, call tape_handoff with a summary of \
         the goal, the latest instruction, what is done, what is in progress, what comes next, and the relevant files. \
         After the call you cannot see anything before it.]"
    )
}

/// Returns an error if the answer is incomplete, so that channels do not show it as complete.
fn incomplete_error(answer: &Completion) -> Option<Error> {
    let reason = match &answer.finish {
        FinishReason::Length => "it reached the `max_tokens` limit; raise the setting".to_owned(),
        FinishReason::ContentFilter => {
            "the provider's content filter stopped it; rephrase the request".to_owned()
        }
        FinishReason::Refusal => {
            "the model refused to continue; rephrase the request or choose another model".to_owned()
        }
        finish if finish.is_complete() => return None,
        finish => format!(
            "the provider stopped it ({}); send the message again",
            finish.as_str()
        ),
    };
    Some(Error::new(
        ErrorKind::Provider,
        format!("the answer is incomplete: {reason}"),
    ))
}

/// Converts the error of a model call to the error of the turn.
fn model_error(error: &ModelError) -> Error {
    let kind = match error.kind {
        bub_model::ModelErrorKind::Cancelled => ErrorKind::Cancelled,
        bub_model::ModelErrorKind::Setup => ErrorKind::Config,
        bub_model::ModelErrorKind::Transport | bub_model::ModelErrorKind::Timeout => {
            ErrorKind::Temporary
        }
        _ => ErrorKind::Provider,
    };
    let mut turn_error = Error::new(kind, error.to_string());
    if let Some(delay) = error.retry_after {
        turn_error = turn_error.with_retry_after(delay);
    }
    turn_error
}
