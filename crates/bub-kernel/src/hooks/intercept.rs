//! The hooks before and after model and tool calls, and their failure rules.
//!
//! | Hook | If it fails, times out or returns an invalid value |
//! |---|---|
//! | `before_tool_call` | The call is denied, unless the implementation is observe-only. |
//! | `before_llm_call`, `after_llm_call`, `after_tool_call` | The failure is logged and ignored. |
//!
//! The failures of an observe-only implementation are logged and ignored. Each decision is returned as a
//! [`HookDecision`], so that the caller can record it on the tape.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    HookPoint, HookSet, Implementation, args,
    point::{AfterLlmCall, AfterToolCall, BeforeLlmCall, BeforeToolCall},
};
use crate::{
    error::Error,
    llm::{LlmDecision, LlmRequest, LlmResult},
    stream::ModelStream,
    tool::{ToolCall, ToolDecision, ToolOutcome},
    turn::Turn,
};

/// The error of a hook result with the wrong type. Only external plugins can cause it.
#[derive(Clone, Debug, thiserror::Error)]
#[error("invalid hook result: expected {expected}, got {got}")]
pub struct InvalidReturn {
    /// A description of the returned value.
    pub got: String,
    /// A description of the expected value.
    pub expected: &'static str,
}

/// The record of a decision or change by one implementation.
#[derive(Clone, Debug, PartialEq)]
pub struct HookDecision {
    /// The name of the hook.
    pub hook: &'static str,
    /// The name of the plugin.
    pub plugin: Arc<str>,
    /// What the implementation did: `rewrote`, `finished`, `answered`, `replaced`, `denied` or `failed`.
    pub action: &'static str,
    /// The reason or the error, if any.
    pub detail: Option<String>,
}

impl HookDecision {
    /// Returns the decision as the data of a tape event.
    pub fn to_value(&self) -> Value {
        json!({"hook": self.hook, "plugin": &*self.plugin, "action": self.action, "detail": self.detail})
    }
}

/// The outcome of the `before_llm_call` chain.
#[derive(Debug)]
pub struct BeforeLlmOutcome {
    /// The request to send, as the hooks changed it.
    pub request: LlmRequest,
    /// The text that ends the turn, if a hook returned one.
    pub finish: Option<String>,
    /// The answer of a hook in place of the model's.
    pub answer: Option<ModelStream>,
    /// The decisions of the hooks, in the order in which they ran.
    pub notes: Vec<HookDecision>,
}

/// The outcome of the `before_tool_call` chain.
#[derive(Debug)]
pub struct BeforeToolOutcome {
    /// The call to make, with the arguments that the hooks changed.
    pub call: ToolCall,
    /// [`ToolDecision::Proceed`], or the result or denial that replaces the call.
    pub decision: ToolDecision,
    /// The decisions of the hooks, in the order in which they ran.
    pub notes: Vec<HookDecision>,
}

impl HookSet {
    /// Runs the `before_llm_call` chain.
    pub async fn before_llm_call(&self, mut request: LlmRequest, turn: &Turn) -> BeforeLlmOutcome {
        let (mut finish, mut answer, mut notes) = (None, None, Vec::new());
        for implementation in BeforeLlmCall::implementations(self).iter().rev() {
            let args = args::BeforeLlmCall::new(&request, turn.state(), turn);
            match implementation.call(self, args).await {
                Ok(None) => {}
                Ok(Some(LlmDecision::Proceed(changed))) => {
                    notes.push(implementation.decision("rewrote", None));
                    request = changed;
                }
                Ok(Some(LlmDecision::Finish(text))) => {
                    notes.push(implementation.decision("finished", None));
                    finish = Some(text);
                    break;
                }
                Ok(Some(LlmDecision::Answer(stream))) => {
                    notes.push(implementation.decision("answered", None));
                    answer = Some(stream);
                    break;
                }
                Err(error) => notes.push(implementation.failed_decision(&error)),
            }
        }
        BeforeLlmOutcome {
            request,
            finish,
            answer,
            notes,
        }
    }

    /// Runs all `after_llm_call` implementations. Returns a decision with the action `failed` for each failure.
    pub async fn after_llm_call(
        &self,
        request: &LlmRequest,
        result: &LlmResult,
        turn: &Turn,
    ) -> Vec<HookDecision> {
        let mut notes = Vec::new();
        for implementation in AfterLlmCall::implementations(self).iter().rev() {
            let args = args::AfterLlmCall::new(request, result, turn.state(), turn);
            if let Err(error) = implementation.call(self, args).await {
                notes.push(implementation.failed_decision(&error));
            }
        }
        notes
    }

    /// Runs the `before_tool_call` chain. A failing implementation denies the call, unless it is
    /// [observe-only](Implementation::is_observe_only).
    pub async fn before_tool_call(&self, mut call: ToolCall, turn: &Turn) -> BeforeToolOutcome {
        let (mut last, mut notes) = (ToolDecision::Proceed(None), Vec::new());
        for implementation in BeforeToolCall::implementations(self).iter().rev() {
            let args = args::BeforeToolCall::new(&call, turn.state(), turn);
            let decision = match implementation.call(self, args).await {
                Ok(decision) => decision,
                Err(error) => {
                    notes.push(implementation.failed_decision(&error));
                    if implementation.is_observe_only() {
                        continue;
                    }
                    let plugin = implementation.plugin();
                    let reason =
                        format!("the `before_tool_call` hook of plugin `{plugin}` failed: {error}");
                    Some(ToolDecision::Deny(Some(reason)))
                }
            };
            match decision {
                None | Some(ToolDecision::Proceed(None)) => {}
                Some(ToolDecision::Proceed(Some(arguments))) => {
                    notes.push(implementation.decision("rewrote", None));
                    call.arguments = arguments;
                }
                Some(ToolDecision::Replace(result)) => {
                    notes.push(implementation.decision("replaced", None));
                    last = ToolDecision::Replace(result);
                    break;
                }
                Some(ToolDecision::Deny(reason)) => {
                    notes.push(implementation.decision("denied", reason.clone()));
                    last = ToolDecision::Deny(reason);
                    break;
                }
            }
        }
        BeforeToolOutcome {
            call,
            decision: last,
            notes,
        }
    }

    /// Runs the `after_tool_call` chain. Each implementation sees the result that the previous one returned. It may
    /// also replace the error of a failed call.
    pub async fn after_tool_call(
        &self,
        call: &ToolCall,
        mut outcome: ToolOutcome,
        turn: &Turn,
    ) -> (ToolOutcome, Vec<HookDecision>) {
        let mut notes = Vec::new();
        for implementation in AfterToolCall::implementations(self).iter().rev() {
            let args = args::AfterToolCall::new(call, &outcome, turn.state(), turn);
            match implementation.call(self, args).await {
                Ok(Some(value)) => {
                    notes.push(implementation.decision("rewrote", None));
                    outcome.result = Ok(value);
                }
                Ok(None) => {}
                Err(error) => notes.push(implementation.failed_decision(&error)),
            }
        }
        (outcome, notes)
    }
}

impl<P: HookPoint> Implementation<P> {
    fn decision(&self, action: &'static str, detail: Option<String>) -> HookDecision {
        HookDecision {
            hook: P::SPEC.name,
            plugin: self.plugin(),
            action,
            detail,
        }
    }

    /// Logs a failure of the implementation and returns the decision `failed`.
    fn failed_decision(&self, error: &Error) -> HookDecision {
        let (hook, adapter) = (P::SPEC.name, self.plugin());
        if let Some(InvalidReturn { got, expected }) = error.downcast_ref() {
            tracing::warn!(%hook, %adapter, %got, %expected, "hook.agent_hook_bad_return");
        } else {
            tracing::warn!(%hook, %adapter, %error, "hook.agent_hook_failed");
        }
        self.decision("failed", Some(error.to_string()))
    }
}
