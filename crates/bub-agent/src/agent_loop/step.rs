//! One step: one model call and the tools it asks for.

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

/// Between what one step says and the next.
const STEP_SEPARATOR: &str = "\n\n";

/// A step that failed.
pub(super) struct StepError {
    pub(super) error: Error,
    /// The conversation is too long for the model.
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

/// What a model call is made of.
struct PreparedCall {
    request: LlmRequest,
    seen: Vec<EntryId>,
    /// Its size in tokens, before calibration.
    estimate: u64,
}

impl AgentLoop {
    /// Makes one model call and runs the tools it asks for.
    pub(super) async fn step(
        &self,
        prompt: &Prompt,
        memory: &mut LoopState,
    ) -> Result<StepOutcome, StepError> {
        let system = self.system_prompt(prompt)?;
        let asked = self.request(&system, memory).await?;
        let gate = self
            .turn
            .framework()
            .hooks()
            .before_llm_call(asked.request, &self.turn)
            .await;
        self.turn.tape().append_hook_notes(&gate.notes);
        let mut chat = self.turn.tape().chat_step();
        (chat.system, chat.view) = (Some(system), asked.seen);
        chat.model = Some(gate.request.model.clone());
        if let Some(text) = gate.finish {
            self.emit_text(&text, memory).await;
            return self.end(chat, text).await;
        }
        self.agent
            .check_cap(&self.models_for(&gate.request)?)
            .await?;
        let started = Instant::now();
        let answered = self.ask_model(&gate.request, memory).await;
        let mut result = LlmResult {
            run_id: self.turn.id().clone(),
            duration: started.elapsed(),
            ..LlmResult::default()
        };
        let (answer, model) = match answered {
            Ok(answered) => answered,
            Err(failure) => {
                result.error = Some(failure.error.clone());
                self.after_call(&gate.request, &result).await;
                return Err(failure);
            }
        };
        result.text = Some(answer.text.clone()).filter(|text| !text.is_empty());
        result.tool_calls.clone_from(&answer.tool_calls);
        result.usage = answer.usage.as_ref().map(bub_model::Usage::to_json);
        chat.usage.clone_from(&result.usage);
        chat.model = model.map(|model| model.to_string()).or(chat.model);
        if self.agent.cap().is_set() {
            // What a provider does not count is estimated: it is never free.
            let estimated = || json!({"prompt_tokens": asked.estimate, "completion_tokens": answer.text.len() / 3});
            let usage = result.usage.clone().unwrap_or_else(estimated);
            self.agent
                .cap()
                .add(chat.model.as_deref().unwrap_or_default(), &usage)
                .await;
        }
        if let Some(usage) = &answer.usage {
            self.agent
                .calibration()
                .update(&gate.request.model, asked.estimate, usage.prompt);
        }
        self.after_call(&gate.request, &result).await;
        if let Some(usage) = result.usage {
            self.events.send(StreamEvent::Usage(usage)).await;
        }
        if let Some(error) = incomplete(&answer) {
            self.events.send(StreamEvent::Error(error)).await;
        }
        if answer.tool_calls.is_empty() {
            return self.end(chat, answer.text).await;
        }
        Ok(self.use_tools(chat, answer, prompt, memory).await?)
    }

    /// The last step: records what was said.
    async fn end(&self, mut chat: StepRecord, text: String) -> Result<StepOutcome, StepError> {
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

    /// What the model is to see, within its window.
    async fn request(&self, system: &str, memory: &mut LoopState) -> Result<PreparedCall> {
        let model = self
            .models
            .first()
            .map(ToString::to_string)
            .unwrap_or_default();
        let window = self
            .models
            .first()
            .and_then(|model| self.agent.window(model));
        let answer = self.agent.settings().get(&MAX_TOKENS);
        let mut before = None;
        loop {
            let view = self
                .turn
                .tape()
                .view(&model, window.map(carry_limit))
                .await?;
            let mut messages = Vec::with_capacity(view.messages.len() + 2);
            messages.push(json!({"role": "system", "content": system}));
            messages.extend(view.messages.into_iter().map(Value::Object));
            let estimate = budget::estimate(&messages) + self.tools.tokens();
            let tokens = self.agent.calibration().apply(&model, estimate);
            if let Some(window) = window {
                // A handoff that does not help is not repeated.
                memory.cannot_shrink |= before.is_some_and(|before| tokens * 10 > before * 9);
                match budget::check_budget(tokens, window, answer) {
                    ContextBudget::Exceeded if !memory.cannot_shrink => {
                        self.hand_off_budget(tokens, window).await?;
                        memory.was_asked_to_hand_off = false;
                        before = Some(tokens);
                        continue;
                    }
                    ContextBudget::Tight(percent) if !memory.was_asked_to_hand_off => {
                        memory.was_asked_to_hand_off = true;
                        let notice = Prompt::Text(handoff_notice(percent));
                        self.turn
                            .tape()
                            .append(vec![self.turn.tape().user_message(&notice)])
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
                seen: view.entries,
                estimate,
            });
        }
    }

    /// Makes the call, passing on what the model says while it says it.
    async fn ask_model(
        &self,
        asked: &LlmRequest,
        memory: &mut LoopState,
    ) -> Result<(Completion, Option<ModelId>), StepError> {
        let mut events = self.open(asked)?;
        let mut accumulator = Accumulator::new();
        let mut is_first = true;
        while let Some(event) = events.next().await {
            let event = event?;
            match &event {
                ModelEvent::Text(delta) => {
                    if std::mem::take(&mut is_first) && memory.has_spoken {
                        self.events
                            .send(StreamEvent::Text(STEP_SEPARATOR.to_owned()))
                            .await;
                    }
                    memory.has_spoken = true;
                    self.turn.tape().record_delta(delta);
                    self.events.send(StreamEvent::Text(delta.clone())).await;
                }
                ModelEvent::Reasoning(delta) => {
                    self.events
                        .send(StreamEvent::Reasoning(delta.clone()))
                        .await;
                }
                // For whoever watches: "waiting 8 s, rate limited".
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

    fn open(&self, asked: &LlmRequest) -> Result<ModelEventStream> {
        let settings = self.agent.settings();
        let models = self.models_for(asked)?;
        let request = ChatRequest {
            messages: Arc::clone(&asked.messages),
            tools: self.tools.definitions_of(&asked.tool_names),
            max_tokens: asked.max_tokens,
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
        self.agent.stream(models, request, options)
    }

    /// The models that a request may go to: another one, if a hook chose it, has no fallbacks.
    fn models_for(&self, asked: &LlmRequest) -> Result<Vec<ModelId>> {
        let unchanged = self
            .models
            .first()
            .is_some_and(|first| first.to_string() == asked.model);
        if unchanged {
            Ok(self.models.clone())
        } else {
            Ok(vec![self.agent.resolve(&asked.model)?])
        }
    }

    /// Says something that no model said.
    async fn emit_text(&self, text: &str, memory: &mut LoopState) {
        if memory.has_spoken {
            self.events
                .send(StreamEvent::Text(STEP_SEPARATOR.to_owned()))
                .await;
        }
        memory.has_spoken = true;
        self.turn.tape().record_delta(text);
        self.events.send(StreamEvent::Text(text.to_owned())).await;
    }

    async fn after_call(&self, request: &LlmRequest, result: &LlmResult) {
        let notes = self
            .turn
            .framework()
            .hooks()
            .after_llm_call(request, result, &self.turn)
            .await;
        self.turn.tape().append_hook_notes(&notes);
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

    fn system_prompt(&self, prompt: &Prompt) -> Result<String> {
        let mut parts = vec![self.turn.framework().system_prompt(prompt, &self.turn)?];
        parts.push(self.tools.block().to_owned());
        let workspace = self
            .turn
            .state()
            .get_str("_runtime_workspace")
            .map(PathBuf::from);
        let allowed = self.allowed_skills();
        parts.push(self.agent.skills().block(
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

/// Carried entries take at most 40 % of the window, at about three bytes for a token.
fn carry_limit(window: u64) -> usize {
    usize::try_from(window * 3 * 2 / 5).unwrap_or(usize::MAX)
}

fn handoff_notice(percent: u64) -> String {
    format!(
        "[context: {percent} % of your window is used. Before you go on, call tape_handoff with a summary of the goal, \
         the latest instruction, what is done, what is in progress, what comes next, and the files that matter: \
         everything before it will be out of your sight.]"
    )
}

/// An answer that ended before its time is never taken for a whole one.
fn incomplete(answer: &Completion) -> Option<Error> {
    let reason = match &answer.finish {
        FinishReason::Length => "it reached the limit of `max_tokens`".to_owned(),
        FinishReason::ContentFilter => "the provider's content filter stopped it".to_owned(),
        FinishReason::Refusal => "the model refused to go on".to_owned(),
        finish if finish.is_complete() => return None,
        finish => format!("the provider stopped it ({})", finish.as_str()),
    };
    Some(Error::new(
        ErrorKind::Provider,
        format!("the answer is not complete: {reason}"),
    ))
}

fn model_error(error: &ModelError) -> Error {
    let kind = match error.kind {
        bub_model::ModelErrorKind::Cancelled => ErrorKind::Cancelled,
        bub_model::ModelErrorKind::Setup => ErrorKind::Config,
        bub_model::ModelErrorKind::Transport | bub_model::ModelErrorKind::Timeout => {
            ErrorKind::Temporary
        }
        _ => ErrorKind::Provider,
    };
    let mut own = Error::new(kind, error.to_string());
    if let Some(delay) = error.retry_after {
        own = own.with_retry_after(delay);
    }
    own
}
