//! The model call that writes the slots of a handoff.

use std::{sync::Arc, time::Duration};

use bub_kernel::{
    CancellationToken, Error, ErrorKind, LlmRequest, LlmResult, Result, StreamEvent, Turn,
};
use bub_model::{Accumulator, CallOptions, ChatRequest, ModelId, Usage};
use bub_tape::{ChatMessage, Entry};
use futures_util::StreamExt as _;
use serde_json::{Value, json};

use super::{
    budget::{prefix_within, text_tokens},
    calls::text_at,
};
use crate::{agent::Agent, settings::AgentSettings};

/// The system prompt of the model call that writes the slots of a handoff.
pub const HANDOFF_PROMPT: &str = "\
You get a conversation of an agent with its user. The agent continues it, but sees only your notes and not what came \
before. Write these lines and lists, in the language of the conversation, with the English headings as they are:
Goal: what the user wants to achieve
Decisions: what was decided or agreed, with the reason
Done: what is finished, with results
In progress: what was begun
Next: the next steps
Open questions: what is not answered yet
Write one short item per line. Keep names, paths, numbers and values exactly. Write only what the conversation says, \
and skip a heading without items. Do not continue the conversation.";

/// The event that records the model call.
pub const HANDOFF_EVENT: &str = "handoff.run";
/// Windows below this number of tokens have no room for the model call.
const MIN_WINDOW: u64 = 1_000;
/// Estimated tokens of the request without the conversation.
const REQUEST_TOKENS: u64 = 300;
const SUMMARY_TIMEOUT: Duration = Duration::from_mins(3);

/// The model call that writes the slots of a handoff.
pub(crate) struct HandoffCall<'a> {
    pub(crate) turn: &'a Turn,
    /// The model, followed by its fallbacks.
    pub(crate) models: &'a [ModelId],
    /// The messages of the view before the handoff.
    pub(crate) messages: &'a [ChatMessage],
    /// The context window of the model in tokens.
    pub(crate) window: u64,
    pub(crate) cancel: &'a CancellationToken,
}

impl Agent {
    /// Lets the model sum up a conversation. Queues an event with its answer or error for the next write to the tape.
    pub(crate) async fn write_handoff(&self, call: HandoffCall<'_>) -> Result<String> {
        let (turn, model) = (call.turn, call.models.first());
        // A preview shows the next request, and makes none.
        let can_call = call.window >= MIN_WINDOW && turn.inbound().preview.is_none();
        let Some(model) = model.filter(|_| can_call) else {
            return Err(Error::invalid_input("no model can write the summary"));
        };
        let answer_tokens = self.settings.get(AgentSettings::MAX_TOKENS);
        let answer_tokens = answer_tokens.min(call.window / 4);
        // Half of the window, because the estimate may be wrong, and an overflow would lose the summary.
        let room = (call.window / 2).min(call.window - answer_tokens - REQUEST_TOKENS);
        let room = self.calibration.to_estimate(&model.to_string(), room);
        let messages = vec![
            json!({"role": "system", "content": HANDOFF_PROMPT}),
            json!({"role": "user", "content": transcript(call.messages, room)}),
        ];
        let mut request = LlmRequest::new(turn.id().clone(), model.to_string(), messages);
        request.max_tokens = Some(answer_tokens);
        let hooks = turn.framework().hooks();
        let gate = hooks.before_llm_call(request, turn).await;
        turn.tape().append_hook_decisions(&gate.notes);
        let llm_request = gate.request;
        let models = if llm_request.model == model.to_string() {
            call.models.to_vec()
        } else {
            vec![self.resolve_model(&llm_request.model)?]
        };
        let request = ChatRequest {
            messages: Arc::clone(&llm_request.messages),
            max_tokens: llm_request.max_tokens,
            stream: true,
            extra: self.settings.get(AgentSettings::COMPLETION_ARGS),
            ..ChatRequest::default()
        };
        let (is_finished, hook_answer) = (gate.finish.is_some(), gate.answer);
        let answer = async {
            if is_finished {
                return Err(Error::new(
                    ErrorKind::Provider,
                    "a hook ended the model call",
                ));
            }
            if let Some(mut events) = hook_answer {
                let mut text = String::new();
                while let Some(event) = events.next().await.transpose()? {
                    if let StreamEvent::Text(delta) = event {
                        text.push_str(&delta);
                    }
                }
                return Ok((text, None));
            }
            self.check_daily_limit(&models).await?;
            let options = CallOptions {
                cancel: call.cancel.clone(),
                timeout: Some(SUMMARY_TIMEOUT),
                ..CallOptions::from_settings(&self.settings)
            };
            let mut events = self.start_model_call(models, request, options)?;
            let mut accumulator = Accumulator::new();
            while let Some(event) = events.next().await {
                accumulator.push(event?);
            }
            let answer = accumulator.finish()?;
            Ok((answer.text, answer.usage))
        };
        let answer = answer.await;
        let mut result = LlmResult::default();
        result.run_id.clone_from(turn.id());
        match &answer {
            Ok((text, usage)) => {
                result.text = Some(text.clone());
                result.usage = usage.as_ref().map(Usage::to_json);
            }
            Err(error) => result.error = Some(error.clone()),
        }
        if let Some(usage) = &result.usage {
            let model = &llm_request.model;
            self.daily_limit.record_call(model, usage).await;
        }
        let data = json!({
            "model": llm_request.model,
            "text": result.text,
            "usage": result.usage,
            "error": result.error.as_ref().map(Error::message),
        });
        let event = Entry::event(HANDOFF_EVENT, Some(data)).exclude_from_context();
        turn.tape().append_later(turn.tape().with_run_id(event));
        let notes = hooks.after_llm_call(&llm_request, &result, turn).await;
        turn.tape().append_hook_decisions(&notes);
        Ok(answer?.0)
    }
}

/// Returns a conversation as text: an earlier handoff, and the newest messages that fit. Long messages are truncated.
fn transcript(messages: &[ChatMessage], max_tokens: u64) -> String {
    let is_opening = |message: &&ChatMessage| content(message).starts_with("<handoff");
    let opening = messages.first().filter(is_opening);
    let opening =
        opening.map(|message| prefix_within(&content(message), max_tokens / 3).to_owned());
    let mut left = max_tokens.saturating_sub(opening.as_deref().map_or(0, text_tokens));
    let mut lines = Vec::new();
    for message in messages.iter().skip(usize::from(opening.is_some())).rev() {
        let role = message
            .get("role")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let calls = message.get("tool_calls").and_then(Value::as_array);
        let calls = calls.into_iter().flatten().map(|call| {
            let arguments = text_at(call, "/function/arguments");
            format!(" [calls {} {arguments}]", text_at(call, "/function/name"))
        });
        let text = format!("{role}: {}{}", content(message), calls.collect::<String>());
        let start = prefix_within(&text, max_tokens / 8);
        let Some(rest) = left.checked_sub(text_tokens(start) + 1) else {
            break;
        };
        left = rest;
        lines.push(start.to_owned());
    }
    lines.extend(opening);
    lines.reverse();
    lines.join("\n\n")
}

/// Returns the text of a message.
fn content(message: &ChatMessage) -> String {
    match message.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let texts = parts.iter().filter_map(|part| part.get("text")?.as_str());
            texts.collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}
