//! A whole answer, and how it grows out of events.

use serde_json::{Value, json};

use crate::error::ModelError;
use crate::{FinishReason, ModelEvent, ToolCallDelta, Usage};

/// The whole answer of a model.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Completion {
    /// The answer's text, also when it accompanies tool calls; a refusal's text too.
    pub text: String,
    /// What the model thought aloud.
    pub reasoning: String,
    /// Tool calls in chat-completions shape, in the order in which the model made them.
    pub tool_calls: Vec<Value>,
    /// Calls that must not be run: what arrived is not a whole call, or the provider stopped the answer.
    pub broken_calls: Vec<InvalidToolCall>,
    /// Token counts, when the provider told them.
    pub usage: Option<Usage>,
    /// Why the model stopped.
    pub finish: FinishReason,
    /// What the provider wants back: put it into the assistant message as `provider_state`, unless
    /// the next call goes to another model.
    pub provider_state: Option<Value>,
}

impl Completion {
    /// The call at this position of `tool_calls`, if it must not be run.
    pub fn broken(&self, index: usize) -> Option<&InvalidToolCall> {
        self.broken_calls.iter().find(|call| call.index == index)
    }

    /// The answer as the assistant message of the next call.
    pub fn to_message(&self) -> Value {
        let mut message = json!({"role": "assistant", "content": self.text});
        let Some(fields) = message.as_object_mut() else {
            return message;
        };
        if !self.tool_calls.is_empty() {
            fields.insert("tool_calls".into(), Value::Array(self.tool_calls.clone()));
        }
        if let Some(state) = &self.provider_state {
            fields.insert("provider_state".into(), state.clone());
        }
        message
    }
}

/// A tool call that arrived damaged. The model gets `reason` as the call's error result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidToolCall {
    /// Position in `tool_calls`.
    pub index: usize,
    /// What is wrong, in words the model can act on.
    pub reason: String,
}

/// Builds a [`Completion`] from events.
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
    /// An accumulator that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes one event in.
    pub fn push(&mut self, event: ModelEvent) {
        match event {
            ModelEvent::Text(text) => append(&mut self.text, text),
            ModelEvent::Reasoning(text) => append(&mut self.reasoning, text),
            ModelEvent::ToolCall(delta) => self.push_call(delta),
            ModelEvent::Restart => *self = Self::default(),
            ModelEvent::Retry(_) => {}
            ModelEvent::Usage(usage) => self.usage = Some(usage),
            ModelEvent::ProviderState(state) => self.provider_state = Some(state),
            ModelEvent::Finish(reason) => self.finish = Some(reason),
        }
    }

    /// The text so far, for what is worth keeping of an interrupted answer.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether anything arrived that a user may have seen or a tool may act on.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty() && self.reasoning.is_empty() && self.calls.is_empty()
    }

    /// The whole answer; an error when its end never came.
    pub fn finish(self) -> Result<Completion, ModelError> {
        let Some(finish) = self.finish else {
            return Err(ModelError::truncated(
                "the answer ended without a finish reason",
            ));
        };
        let mut broken_calls = Vec::new();
        let mut tool_calls = Vec::with_capacity(self.calls.len());
        for (index, call) in self.calls.into_iter().enumerate() {
            if let Some(reason) = call.damage(&finish) {
                broken_calls.push(InvalidToolCall { index, reason });
            }
            tool_calls.push(call.into_json(index));
        }
        let finish = match finish {
            FinishReason::Stop if !tool_calls.is_empty() => FinishReason::ToolCalls,
            FinishReason::ToolCalls if tool_calls.is_empty() => FinishReason::Stop,
            other => other,
        };
        let Self {
            text,
            reasoning,
            usage,
            provider_state,
            ..
        } = self;
        Ok(Completion {
            text,
            reasoning,
            tool_calls,
            broken_calls,
            usage,
            finish,
            provider_state,
        })
    }

    fn push_call(&mut self, delta: ToolCallDelta) {
        if delta.index >= self.calls.len() {
            // Decoders count without gaps; an event made by somebody else gets no more than one slot.
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
            append(&mut call.name, name);
        }
        append(&mut call.arguments, delta.arguments);
    }
}

impl PartialToolCall {
    /// Why this call must not be run, if so.
    fn damage(&self, finish: &FinishReason) -> Option<String> {
        if finish.is_stopped() {
            return Some(format!(
                "the provider stopped the answer ({finish}); the call was not made"
            ));
        }
        let cut = *finish == FinishReason::Length;
        if self.name.is_empty() {
            return Some("the tool call has no name".into());
        }
        if self.has_no_arguments() {
            return cut
                .then(|| "the token limit cut the tool call off before its arguments".into());
        }
        match serde_json::from_str::<Value>(&self.arguments) {
            Ok(Value::Object(_)) => None,
            Ok(_) => Some("the arguments of the tool call are not a JSON object".into()),
            Err(_) if cut => Some("the token limit cut the arguments of the tool call off".into()),
            Err(error) => Some(format!(
                "the arguments of the tool call are not valid JSON: {error}"
            )),
        }
    }

    /// A tool without parameters is called with nothing, or with `null`.
    fn has_no_arguments(&self) -> bool {
        matches!(self.arguments.trim(), "" | "null")
    }

    fn into_json(self, index: usize) -> Value {
        let empty = self.has_no_arguments();
        let id = if self.id.is_empty() {
            format!("call_{index}")
        } else {
            self.id
        };
        let arguments = if empty {
            "{}".to_owned()
        } else {
            self.arguments
        };
        json!({
            "id": id,
            "type": "function",
            "function": {"name": self.name, "arguments": arguments},
        })
    }
}

/// Appends without copying when there was nothing before: most whole answers arrive in one piece.
fn append(to: &mut String, more: String) {
    if to.is_empty() {
        *to = more;
    } else {
        to.push_str(&more);
    }
}
