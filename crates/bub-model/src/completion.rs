//! Complete answers, and their assembly from events.

use serde_json::{Value, json};

use crate::error::{ModelError, Result};
use crate::{FinishReason, ModelEvent, ToolCallDelta, Usage};

/// The complete answer of a model.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Completion {
    /// Text of the answer, including text beside tool calls and the text of a refusal.
    pub text: String,
    /// Reasoning of the model.
    pub reasoning: String,
    /// Tool calls in the chat-completions format, in the order in which the model sent them.
    pub tool_calls: Vec<Value>,
    /// Tool calls that must not run: they are incomplete or malformed, or the provider stopped the answer.
    pub invalid_calls: Vec<InvalidToolCall>,
    /// Token counts, if the provider reported them.
    pub usage: Option<Usage>,
    /// Why the model stopped.
    pub finish: FinishReason,
    /// Data that the provider expects back with the next call, such as encrypted reasoning. Add it to the assistant
    /// message as `provider_state`, unless the next call uses another model.
    pub provider_state: Option<Value>,
}

impl Completion {
    /// Returns the reason why the call at this position of `tool_calls` must not run, if there is one.
    pub fn invalid_call(&self, index: usize) -> Option<&InvalidToolCall> {
        self.invalid_calls.iter().find(|call| call.index == index)
    }
}

/// A tool call that must not run. The model receives `reason` as the error result of the call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidToolCall {
    /// Position in `tool_calls`.
    pub index: usize,
    /// Description of the problem for the model.
    pub reason: String,
}

/// Builds a [`Completion`] from events.
///
/// ```
/// use bub_model::{Accumulator, FinishReason, ModelEvent};
///
/// let mut answer = Accumulator::new();
/// answer.push(ModelEvent::Text("Hello, ".to_owned()));
/// answer.push(ModelEvent::Text("world".to_owned()));
/// answer.push(ModelEvent::Finish(FinishReason::Stop));
/// assert_eq!(answer.finish()?.text, "Hello, world");
/// # Ok::<(), bub_model::ModelError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Accumulator {
    text: String,
    reasoning: String,
    calls: Vec<PartialToolCall>,
    usage: Option<Usage>,
    provider_state: Option<Value>,
    finish: Option<FinishReason>,
}

#[derive(Clone, Debug, Default)]
struct PartialToolCall {
    id: String,
    name: String,
    arguments: String,
}

impl Accumulator {
    /// Creates an empty accumulator.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an event to the answer.
    pub fn push(&mut self, event: ModelEvent) {
        match event {
            ModelEvent::Text(text) => append_text(&mut self.text, text),
            ModelEvent::Reasoning(text) => append_text(&mut self.reasoning, text),
            ModelEvent::ToolCall(delta) => self.push_call_delta(delta),
            ModelEvent::Restart => *self = Self::default(),
            ModelEvent::Retry(_) => {}
            ModelEvent::Usage(usage) => self.usage = Some(usage),
            ModelEvent::ProviderState(state) => self.provider_state = Some(state),
            ModelEvent::Finish(reason) => self.finish = Some(reason),
        }
    }

    /// Returns the text received so far, for example to keep the text of an interrupted answer.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns whether no text, reasoning or tool call has been received.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty() && self.reasoning.is_empty() && self.calls.is_empty()
    }

    /// Returns the complete answer.
    ///
    /// # Errors
    ///
    /// Fails if no [`ModelEvent::Finish`] was received.
    pub fn finish(self) -> Result<Completion> {
        let incomplete = "incomplete answer: it ended without a finish reason";
        let finish = self
            .finish
            .ok_or_else(|| ModelError::truncated(incomplete))?;
        let mut invalid_calls = Vec::new();
        let mut tool_calls = Vec::with_capacity(self.calls.len());
        for (index, call) in self.calls.into_iter().enumerate() {
            if let Some(reason) = call.invalid_reason(&finish) {
                invalid_calls.push(InvalidToolCall { index, reason });
            }
            tool_calls.push(call.into_json(index));
        }
        let finish = match finish {
            FinishReason::Stop if !tool_calls.is_empty() => FinishReason::ToolCalls,
            FinishReason::ToolCalls if tool_calls.is_empty() => FinishReason::Stop,
            other => other,
        };
        Ok(Completion {
            text: self.text,
            reasoning: self.reasoning,
            tool_calls,
            invalid_calls,
            usage: self.usage,
            finish,
            provider_state: self.provider_state,
        })
    }

    fn push_call_delta(&mut self, delta: ToolCallDelta) {
        if delta.index >= self.calls.len() {
            // Decoders number calls without gaps. If an event from elsewhere has a larger index, only one call is
            // added.
            self.calls.push(PartialToolCall::default());
        }
        let index = delta.index.min(self.calls.len().saturating_sub(1));
        let Some(call) = self.calls.get_mut(index) else {
            return;
        };
        if let Some(id) = delta.id.filter(|id| !id.is_empty()) {
            call.id = id;
        }
        if let Some(name) = delta.name.filter(|name| *name != call.name) {
            append_text(&mut call.name, name);
        }
        append_text(&mut call.arguments, delta.arguments);
    }
}

impl PartialToolCall {
    /// Returns the reason why this call must not run, if there is one.
    fn invalid_reason(&self, finish: &FinishReason) -> Option<String> {
        if finish.is_stopped() {
            return Some(format!(
                "the provider stopped the answer ({finish}); the call did not run"
            ));
        }
        let is_truncated = *finish == FinishReason::Length;
        if self.name.is_empty() {
            return Some("the tool call has no name; send the name of a tool".into());
        }
        if self.has_no_arguments() {
            return is_truncated
                .then(|| "the token limit truncated the tool call before its arguments; send a shorter answer".into());
        }
        match serde_json::from_str::<Value>(&self.arguments) {
            Ok(Value::Object(_)) => None,
            Ok(_) => {
                Some("the arguments of the tool call are not a JSON object; send an object".into())
            }
            Err(_) if is_truncated => Some(
                "the token limit truncated the arguments of the tool call; send shorter arguments"
                    .into(),
            ),
            Err(error) => Some(format!(
                "the arguments of the tool call are not valid JSON: {error}; send a JSON object"
            )),
        }
    }

    /// Returns whether the call has no arguments. Models then send an empty text or `null`.
    fn has_no_arguments(&self) -> bool {
        matches!(self.arguments.trim(), "" | "null")
    }

    fn into_json(mut self, index: usize) -> Value {
        if self.id.is_empty() {
            self.id = format!("call_{index}");
        }
        if self.has_no_arguments() {
            "{}".clone_into(&mut self.arguments);
        }
        json!({
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        })
    }
}

/// Appends text without copying if `to` is empty, because an answer that is not streamed arrives as one text.
fn append_text(to: &mut String, more: String) {
    if to.is_empty() {
        *to = more;
    } else {
        to.push_str(&more);
    }
}
