//! One step: one model call and the tool calls it requests.

use std::{pin::Pin, sync::Arc, time::Instant};

use bub_kernel::{
    Error, ErrorKind, LlmRequest, LlmResult, ModelStream, PreviewedRequest, Prompt, Result,
    StreamEvent,
};
use bub_model::{
    Accumulator, CallOptions, ChatRequest, Completion, FinishReason, ModelError, ModelErrorKind,
    ModelEvent, ModelEventStream, ModelId, RecoveryAction, ToolCallDelta, Usage,
};
use bub_tape::{EntryId, StepRecord, View};
use futures_util::{Stream, StreamExt as _, stream};
use serde_json::{Value, json};

use super::{
    AgentLoop, LoopState, RequestSize, StepOutcome,
    budget::{self, ContextBudget, HandoffBudget},
    calls::{NAME_PATH, text_at},
};
use crate::settings::AgentSettings;
use crate::skills::{LoadedSkills, allowed_skills};
use crate::tool_set::{OfferedTools, ToolSet};

/// The text between the answers of two steps.
const STEP_SEPARATOR: &str = "\n\n";

/// The error of a failed step.
pub(super) enum StepError {
    /// The context is too long for the model.
    Overflow(Error),
    /// The step failed for another reason.
    Failed(Error),
}

impl From<Error> for StepError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<ModelError> for StepError {
    fn from(error: ModelError) -> Self {
        match error.action {
            RecoveryAction::ShrinkContext => Self::Overflow(model_error(&error)),
            _ => Self::Failed(model_error(&error)),
        }
    }
}

/// A model call that is ready for the hook `before_llm_call`.
struct PreparedCall {
    request: LlmRequest,
    /// The view, without its messages: they are in the request.
    view: View,
    /// The estimated tokens of the request, without the correction factor of the model.
    estimate: u64,
}

impl AgentLoop {
    /// Makes one model call and runs the tool calls it requests.
    pub(super) async fn run_step(
        &self,
        prompt: &Prompt,
        loop_state: &mut LoopState,
    ) -> Result<StepOutcome, StepError> {
        if self.tools.deferred_tools().next().is_some() {
            let loaded = &self.tape().summary().await?.loaded_tools;
            loop_state.offered = self.tools.offer(loaded);
        }
        let built = self.build_system_prompt(prompt, &loop_state.prompt_text)?;
        let redactor = self.agent.settings.redactor();
        let system = loop_state.system.update(built, redactor);
        let prepared = self.prepare_call(system.text(), loop_state).await?;
        let (hooks, turn) = (self.hooks(), &self.turn);
        let gate = hooks.before_llm_call(prepared.request, turn).await;
        self.tape().append_hook_decisions(&gate.notes);
        if let Some(preview) = &self.turn.inbound().preview {
            let previewed =
                self.preview(&gate.request, &loop_state.offered, prepared.view.entries)?;
            preview.set(previewed);
            return Ok(StepOutcome::Done);
        }
        let mut chat = self.tape().new_step_record();
        chat.model = Some(gate.request.model.clone());
        if let Some(text) = gate.finish {
            chat.system = Some(system.text().to_owned());
            self.send_delta(&text, true, loop_state).await;
            return self.end_with_answer(chat, text).await;
        }
        let models = self.models_for_request(&gate.request)?;
        self.agent.check_daily_limit(&models).await?;
        // `loop.start` names the model of the run.
        let model = Some(&gate.request.model).filter(|model| **model != self.model_name());
        let model = model.map(String::as_str);
        self.tape()
            .begin_call(model, &prepared.view, &system)
            .await?;
        let started = Instant::now();
        let outcome = self
            .call_model(&gate.request, gate.answer, loop_state)
            .await;
        let mut result = LlmResult::default();
        result.run_id.clone_from(self.turn.id());
        result.duration = started.elapsed();
        let (answer, model) = match outcome {
            Ok(answer) => answer,
            Err(failure) => {
                let (StepError::Overflow(error) | StepError::Failed(error)) = &failure;
                result.error = Some(error.clone());
                self.run_after_call_hooks(&gate.request, &result).await;
                return Err(failure);
            }
        };
        result.text = Some(answer.text.clone()).filter(|text| !text.is_empty());
        result.tool_calls.clone_from(&answer.tool_calls);
        result.usage = answer.usage.as_ref().map(bub_model::Usage::to_json);
        chat.usage.clone_from(&result.usage);
        chat.model = model.map(|model| model.to_string()).or(chat.model);
        if self.agent.daily_limit.is_set() {
            // Usage that the provider does not report is estimated, so that it counts towards the limit.
            let estimated = || json!({"prompt_tokens": prepared.estimate, "completion_tokens": answer.text.len() / 3});
            let usage = result.usage.clone().unwrap_or_else(estimated);
            let model = chat.model.as_deref().unwrap_or_default();
            self.agent.daily_limit.record_call(model, &usage).await;
        }
        if let Some(usage) = &answer.usage {
            let (model, calibration) = (&gate.request.model, &self.agent.calibration);
            calibration.record_usage(model, prepared.estimate, usage.prompt);
        }
        self.run_after_call_hooks(&gate.request, &result).await;
        if let Some(mut usage) = result.usage {
            if let Some(usage) = usage.as_object_mut() {
                let seconds = result.duration.as_secs_f64();
                usage.insert("elapsed_seconds".to_owned(), seconds.into());
            }
            self.events.send(StreamEvent::Usage(usage)).await;
        }
        if let Some(error) = incomplete_error(&answer) {
            self.events.send(StreamEvent::Error(error)).await;
        }
        if answer.tool_calls.is_empty() {
            return self.end_with_answer(chat, answer.text).await;
        }
        let outcome = self.run_tool_calls(chat, answer, prompt, loop_state);
        Ok(outcome.await?)
    }

    /// Ends the last step of a turn: records the answer and sends the final event.
    async fn end_with_answer(
        &self,
        mut chat: StepRecord,
        text: String,
    ) -> Result<StepOutcome, StepError> {
        chat.text = Some(text.clone());
        let last = self.tape().end_step("ok", None).into_iter().collect();
        self.tape().record_step(chat, last).await?;
        self.send_final(text).await;
        Ok(StepOutcome::Done)
    }

    /// Builds the request for the model. If the request does not fit the context window, hands off first.
    async fn prepare_call(&self, system: &str, loop_state: &mut LoopState) -> Result<PreparedCall> {
        let model = self.models.first();
        let window = model.and_then(|model| self.agent.context_window(model));
        let model = model.map(ToString::to_string).unwrap_or_default();
        let answer = self.agent.settings.get(AgentSettings::MAX_TOKENS);
        let mut tokens_before = None;
        loop {
            let max_carried = window.map(max_carried_bytes);
            let mut view = self.tape().build_view(&model, max_carried).await?;
            let mut messages = Vec::with_capacity(view.messages.len() + 2);
            messages.push(json!({"role": "system", "content": system}));
            messages.extend(view.messages.drain(..).map(Value::Object));
            let system = budget::estimate_tokens(messages.first());
            let estimate = budget::estimate_tokens(&messages) + loop_state.offered.tokens;
            let correct = |tokens| self.agent.calibration.correct_estimate(&model, tokens);
            let tokens = correct(estimate);
            let size = RequestSize {
                tokens,
                fixed: correct(system + loop_state.offered.tokens),
            };
            loop_state.size = size;
            if let Some(window) = window {
                // Do not repeat a handoff that did not shrink the request.
                loop_state.cannot_shrink |=
                    tokens_before.is_some_and(|before| tokens * 10 > before * 9);
                match budget::check_budget(tokens, window, answer) {
                    ContextBudget::Exceeded if !loop_state.cannot_shrink => {
                        self.hand_off_for_budget(size, window).await?;
                        loop_state.was_asked_to_hand_off = false;
                        tokens_before = Some(tokens);
                        continue;
                    }
                    // A handoff helps only if it makes the view smaller.
                    ContextBudget::Tight(percent)
                        if !loop_state.was_asked_to_hand_off
                            && tokens - size.fixed
                                > HandoffBudget::new(window, size.fixed, answer).limit =>
                    {
                        loop_state.was_asked_to_hand_off = true;
                        let notice = Prompt::Text(handoff_notice(percent));
                        let entry = self.tape().user_message_entry(&notice);
                        self.tape().append(vec![entry]).await?;
                        messages.push(json!({"role": "user", "content": notice}));
                    }
                    ContextBudget::Tight(_) | ContextBudget::Exceeded | ContextBudget::Fits => {}
                }
            }
            let mut request = LlmRequest::new(self.turn.id().clone(), model, messages);
            request.tool_names.clone_from(&loop_state.offered.names);
            request.max_tokens = Some(answer);
            return Ok(PreparedCall {
                request,
                view,
                estimate,
            });
        }
    }

    /// Makes the model call, unless a hook answers it, and sends its events to the reader of the turn's stream. Returns
    /// the answer and the model that produced it.
    async fn call_model(
        &self,
        llm_request: &LlmRequest,
        answer: Option<ModelStream>,
        loop_state: &mut LoopState,
    ) -> Result<(Completion, Option<ModelId>), StepError> {
        let mut events = match answer {
            Some(answer) => AnswerEvents::Hook(Box::pin(model_events(answer))),
            None => AnswerEvents::Model(self.start_model_stream(llm_request, &loop_state.offered)?),
        };
        let mut accumulator = Accumulator::new();
        let mut is_first = true;
        loop {
            let event = tokio::select! {
                biased;
                () = self.tape().wait_for_draft() => {
                    self.tape().flush_draft().await;
                    continue;
                }
                event = events.next() => event,
            };
            let Some(event) = event? else {
                break;
            };
            match &event {
                ModelEvent::Text(delta) => {
                    let is_first = std::mem::take(&mut is_first);
                    self.send_delta(delta, is_first, loop_state).await;
                }
                ModelEvent::Reasoning(delta) => {
                    let event = StreamEvent::Reasoning(delta.clone());
                    self.events.send(event).await;
                }
                // Lets channels show that the call waits, for example because of a rate limit.
                ModelEvent::Retry(retry) => {
                    let data = json!({
                        "attempt": retry.attempt,
                        "wait_seconds": retry.delay.as_secs_f64(),
                        "reason": retry.error.to_string(),
                    });
                    self.events.send(StreamEvent::Retry(data)).await;
                }
                // The stream was interrupted before its tool calls were complete, and starts again.
                ModelEvent::Restart => {
                    is_first = true;
                    self.tape().discard_partial_text().await;
                }
                _ => {}
            }
            accumulator.push(event);
        }
        Ok((accumulator.finish()?, events.model()))
    }

    fn start_model_stream(
        &self,
        llm_request: &LlmRequest,
        offered: &OfferedTools,
    ) -> Result<ModelEventStream> {
        let models = self.models_for_request(llm_request)?;
        let request = self.chat_request(llm_request, offered);
        let options = CallOptions {
            cancel: self.cancel.clone(),
            ..CallOptions::from_settings(&self.agent.settings)
        };
        self.agent.start_model_call(models, request, options)
    }

    /// Builds the request of a model call. The client adds the model to it.
    fn chat_request(&self, llm_request: &LlmRequest, offered: &OfferedTools) -> ChatRequest {
        let effort = self.turn.state().get_str("reasoning_effort");
        ChatRequest {
            messages: Arc::clone(&llm_request.messages),
            tools: offered.definitions_for(&llm_request.tool_names),
            max_tokens: llm_request.max_tokens,
            reasoning_effort: effort.filter(|effort| !effort.is_empty()),
            stream: true,
            extra: self.agent.settings.get(AgentSettings::COMPLETION_ARGS),
            ..ChatRequest::default()
        }
    }

    /// Returns the request of a model call as the provider would get it.
    fn preview(
        &self,
        llm_request: &LlmRequest,
        offered: &OfferedTools,
        view: Vec<EntryId>,
    ) -> Result<PreviewedRequest> {
        let request = self.chat_request(llm_request, offered);
        let model = self.agent.resolve_model(&llm_request.model)?;
        let (path, body) = self.agent.encode_request(&model, &request)?;
        Ok(PreviewedRequest {
            model: llm_request.model.clone(),
            messages: request.messages,
            tools: request.tools,
            view,
            path,
            body,
        })
    }

    /// Returns the models to try for a request. A model that a hook selected has no fallbacks.
    fn models_for_request(&self, llm_request: &LlmRequest) -> Result<Vec<ModelId>> {
        match self.models.first() {
            Some(first) if first.to_string() == llm_request.model => Ok(self.models.clone()),
            _ => Ok(vec![self.agent.resolve_model(&llm_request.model)?]),
        }
    }

    /// Records and sends text of the answer. The first text of a step is separated from the text of earlier steps.
    async fn send_delta(&self, text: &str, is_first: bool, loop_state: &mut LoopState) {
        if is_first && loop_state.has_text {
            self.send_text(STEP_SEPARATOR).await;
        }
        loop_state.has_text = true;
        self.tape().record_delta(text);
        self.send_text(text).await;
    }

    /// Runs the hook `after_llm_call` and records the decisions of its implementations.
    async fn run_after_call_hooks(&self, request: &LlmRequest, result: &LlmResult) {
        let hooks = self.hooks();
        let notes = hooks.after_llm_call(request, result, &self.turn).await;
        self.tape().append_hook_decisions(&notes);
    }

    /// Builds the system prompt: the fragments of the plugins, code mode, the deferred tools, and the skills. Skills
    /// that `prompt_text` names stay loaded in all steps, and tools stay in the list when they are loaded, so that the
    /// prompt is the same in each step.
    fn build_system_prompt(&self, prompt: &Prompt, prompt_text: &str) -> Result<String> {
        let mut parts = vec![self.turn.framework().system_prompt(prompt, &self.turn)?];
        let workspace = crate::workspace(self.turn.state());
        if self.tools.is_code_mode() {
            let workspace = workspace.clone().unwrap_or_default();
            let (tools, session_id) = (&self.tools, self.turn.session_id());
            let block = self
                .agent
                .code_mode
                .prompt_block(tools, &workspace, session_id);
            parts.push(block.map_err(|error| {
                Error::unknown(format!("cannot write the stub of code mode: {error}"))
            })?);
        }
        parts.push(deferred_tools_block(&self.tools));
        let allowed = allowed_skills(self.turn.state());
        parts.push(self.agent.skills.prompt_block(
            workspace.as_deref(),
            prompt_text,
            allowed.as_deref(),
            &LoadedSkills::from_state(self.turn.state()),
        ));
        parts.retain(|part| !part.is_empty());
        Ok(parts.join("\n\n"))
    }
}

/// The events of a model call: those of the model, or those of a hook that answers in place of the model.
enum AnswerEvents {
    Model(ModelEventStream),
    Hook(Pin<Box<dyn Stream<Item = Result<ModelEvent>> + Send>>),
}

impl AnswerEvents {
    async fn next(&mut self) -> Result<Option<ModelEvent>, StepError> {
        match self {
            Self::Model(events) => Ok(events.next().await.transpose()?),
            Self::Hook(events) => Ok(events.next().await.transpose()?),
        }
    }

    /// Returns the model that answered. `None` if a hook did.
    fn model(&self) -> Option<ModelId> {
        match self {
            Self::Model(events) => events.model(),
            Self::Hook(_) => None,
        }
    }
}

/// Converts the answer of a hook to the events of a model call.
fn model_events(answer: ModelStream) -> impl Stream<Item = Result<ModelEvent>> + Send {
    let events = answer.flat_map(|event| {
        let events = match event {
            Ok(StreamEvent::Text(text)) => vec![Ok(ModelEvent::Text(text))],
            Ok(StreamEvent::Reasoning(text)) => vec![Ok(ModelEvent::Reasoning(text))],
            Ok(StreamEvent::ToolCall(calls)) => {
                let deltas = calls.iter().enumerate().map(|(index, call)| ToolCallDelta {
                    index,
                    id: Some(text_at(call, "/id").to_owned()),
                    name: Some(text_at(call, NAME_PATH).to_owned()),
                    arguments: text_at(call, "/function/arguments").to_owned(),
                });
                deltas.map(ModelEvent::ToolCall).map(Ok).collect()
            }
            Ok(StreamEvent::Usage(usage)) => vec![Ok(ModelEvent::Usage(Usage::from_json(usage)))],
            Ok(StreamEvent::Other { kind, data }) if kind == "provider_state" => {
                vec![Ok(ModelEvent::ProviderState(data))]
            }
            Ok(_) => Vec::new(),
            Err(error) => vec![Err(error)],
        };
        stream::iter(events)
    });
    events.chain(stream::iter([Ok(ModelEvent::Finish(FinishReason::Stop))]))
}

/// Returns the block of the system prompt that names the deferred tools, or an empty text.
fn deferred_tools_block(tools: &ToolSet) -> String {
    let names = tools.deferred_tools().map(|tool| tool.spec().model_name());
    let lines: Vec<String> = names.map(|name| format!("- {name}")).collect();
    if lines.is_empty() {
        return String::new();
    }
    let lines = lines.join("\n");
    format!(
        "<deferred_tools>\nTo use one of these tools, load it first: call tool_describe with its name.\n{lines}\n</deferred_tools>"
    )
}

/// Returns the maximum size in bytes of the entries that stay in the view after a handoff. A handoff keeps fewer; the
/// limit is for anchors of plugins and of earlier versions.
fn max_carried_bytes(window: u64) -> usize {
    usize::try_from(window.saturating_mul(4)).unwrap_or(usize::MAX)
}

const NOTICE_PREFIX: &str = "[context: ";
const NOTICE_REQUEST: &str = "Before you continue, call tape_handoff with a summary";

fn handoff_notice(percent: u64) -> String {
    format!(
        "{NOTICE_PREFIX}{percent} % of your context window is used. {NOTICE_REQUEST}: lines `Goal:`, `Decisions:`, \
         `Done:`, `In progress:`, `Next:` and `Open questions:`. After the call you see the summary, the latest \
         message, and nothing else before it.]"
    )
}

/// Returns whether a message is a notice about the context window.
pub(super) fn is_handoff_notice(text: &str) -> bool {
    text.starts_with(NOTICE_PREFIX) && text.contains(NOTICE_REQUEST)
}

/// Returns an error if the answer is incomplete, so that channels do not show it as complete.
fn incomplete_error(answer: &Completion) -> Option<Error> {
    let reason = match &answer.finish {
        FinishReason::Length => "it reached the `max_tokens` limit; raise the setting",
        FinishReason::ContentFilter => {
            "the provider's content filter stopped it; rephrase the request"
        }
        FinishReason::Refusal => {
            "the model refused to continue; rephrase the request or choose another model"
        }
        finish if finish.is_complete() => return None,
        finish => {
            let name = finish.as_str();
            &format!("the provider stopped it ({name}); send the message again")
        }
    };
    let text = format!("the answer is incomplete: {reason}");
    Some(Error::new(ErrorKind::Provider, text))
}

/// Converts the error of a model call to the error of the turn.
fn model_error(error: &ModelError) -> Error {
    let kind = match error.kind {
        ModelErrorKind::Cancelled => ErrorKind::Cancelled,
        ModelErrorKind::Setup => ErrorKind::Config,
        ModelErrorKind::Transport | ModelErrorKind::Timeout => ErrorKind::Temporary,
        _ => ErrorKind::Provider,
    };
    let mut turn_error = Error::new(kind, error.to_string());
    if let Some(delay) = error.retry_after {
        turn_error = turn_error.with_retry_after(delay);
    }
    turn_error
}
