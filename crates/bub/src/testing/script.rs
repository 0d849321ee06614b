//! A model that answers from a script and keeps the requests.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bub_agent::ModelOverride;
use bub_kernel::{Error, Result};
use bub_model::{ChatRequest, FinishReason, ModelEvent, ToolCallDelta};
use serde_json::Value;

/// One scripted answer.
pub(super) enum Answer {
    Text(String),
    Call(String, Value),
}

/// A request that the model received.
#[derive(Clone, Debug)]
pub struct ModelRequest {
    /// The messages, in the chat-completions format. The first one is the system prompt.
    pub messages: Vec<Value>,
    /// The names of the tools that the model can call, with underscores instead of dots.
    pub tools: Vec<String>,
}

impl ModelRequest {
    /// Returns the system prompt.
    pub fn system_prompt(&self) -> &str {
        self.text_of_message(0)
    }

    /// Returns the text of the last message.
    pub fn last_message(&self) -> &str {
        self.text_of_message(self.messages.len().saturating_sub(1))
    }

    fn text_of_message(&self, index: usize) -> &str {
        let message = self.messages.get(index);
        let content = message.and_then(|message| message.get("content"));
        content.and_then(Value::as_str).unwrap_or_default()
    }

    fn from_chat_request(request: &ChatRequest) -> Self {
        let name = |tool: &Value| Some(tool.pointer("/function/name")?.as_str()?.to_owned());
        Self {
            messages: request.messages.to_vec(),
            tools: request.tools.iter().filter_map(name).collect(),
        }
    }
}

/// One answer of the model, or a list of answers: `"hi"`, or `["first", "second"]`.
pub trait ModelAnswers {
    /// Returns the answers in order.
    fn into_answers(self) -> Vec<String>;
}

impl ModelAnswers for &str {
    fn into_answers(self) -> Vec<String> {
        vec![self.to_owned()]
    }
}

impl ModelAnswers for String {
    fn into_answers(self) -> Vec<String> {
        vec![self]
    }
}

impl<T: Into<String>, const N: usize> ModelAnswers for [T; N] {
    fn into_answers(self) -> Vec<String> {
        self.into_iter().map(Into::into).collect()
    }
}

impl<T: Into<String>> ModelAnswers for Vec<T> {
    fn into_answers(self) -> Vec<String> {
        self.into_iter().map(Into::into).collect()
    }
}

/// The answers that are left, and the requests of the current turn.
#[derive(Default)]
pub(super) struct ModelScript(Mutex<ScriptState>);

#[derive(Default)]
struct ScriptState {
    answers: VecDeque<Answer>,
    requests: Vec<ModelRequest>,
    unanswered: usize,
    /// A scripted call of a tool that the model does not have.
    unknown_tool: Option<String>,
}

impl ModelScript {
    /// Replaces the script before a turn.
    pub(super) fn start(&self, answers: Vec<Answer>) {
        *self.lock() = ScriptState {
            answers: answers.into(),
            ..ScriptState::default()
        };
    }

    /// Returns the requests of the turn, or an error if the script did not fit.
    pub(super) fn finish(&self) -> Result<Vec<ModelRequest>> {
        let state = std::mem::take(&mut *self.lock());
        if let Some(tool) = state.unknown_tool {
            return Err(Error::invalid_input(format!(
                "the script calls the tool `{tool}`, which the model call does not offer; add its plugin, or \
                 call `tool.describe` with {{\"names\": [\"{tool}\"]}} first if the tool is deferred"
            )));
        }
        let (calls, left) = (state.requests.len(), state.answers.len());
        if state.unanswered > 0 || left > 0 {
            let scripted = calls - state.unanswered + left;
            return Err(Error::invalid_input(format!(
                "the script has {scripted} answers, but the turn made {calls} model calls; \
                 add or remove `model_says` and `model_calls`"
            )));
        }
        Ok(state.requests)
    }

    /// Returns the function that answers model calls from the script.
    pub(super) fn model_override(self: &Arc<Self>) -> Arc<ModelOverride> {
        let script = Arc::clone(self);
        let answer = move |_: &_, request: &ChatRequest| script.answer(request);
        Arc::new(ModelOverride(Box::new(answer)))
    }

    fn answer(&self, request: &ChatRequest) -> Vec<ModelEvent> {
        let mut state = self.lock();
        state
            .requests
            .push(ModelRequest::from_chat_request(request));
        let call_count = state.requests.len();
        match state.answers.pop_front() {
            Some(Answer::Text(text)) => {
                vec![
                    ModelEvent::Text(text),
                    ModelEvent::Finish(FinishReason::Stop),
                ]
            }
            Some(Answer::Call(tool, arguments)) => {
                let name = tool.replace('.', "_");
                let request = state.requests.last();
                if request.is_none_or(|request| !request.tools.contains(&name)) {
                    state.unknown_tool = Some(tool);
                }
                let call = ToolCallDelta {
                    index: 0,
                    id: Some(format!("call_{call_count}")),
                    name: Some(name),
                    arguments: arguments.to_string(),
                };
                vec![
                    ModelEvent::ToolCall(call),
                    ModelEvent::Finish(FinishReason::ToolCalls),
                ]
            }
            None => {
                state.unanswered += 1;
                vec![
                    ModelEvent::Text("(the script has no answer)".to_owned()),
                    ModelEvent::Finish(FinishReason::Stop),
                ]
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, ScriptState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
