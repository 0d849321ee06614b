//! The chained hooks around model and tool calls, and their failure rules.
//!
//! | Hook | If it fails, times out or returns an invalid value |
//! |---|---|
//! | `before_tool_call` | The call is denied, unless the implementation is observe-only. |
//! | `before_llm_call`, `after_llm_call`, `after_tool_call` | The failure is logged and ignored. |
//!
//! Each decision is returned as a [`HookDecision`], so that the caller can record it on the tape.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    HookPoint, HookSet, Implementation, args,
    point::{AfterLlmCall, AfterToolCall, BeforeLlmCall, BeforeToolCall},
};
use crate::{
    error::Error,
    llm::{LlmDecision, LlmRequest, LlmResult},
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
    /// The hook.
    pub hook: &'static str,
    /// The plugin.
    pub plugin: Arc<str>,
    /// `rewrote`, `finished`, `replaced`, `denied` or `failed`.
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
    /// The request to send.
    pub request: LlmRequest,
    /// The answer, if a hook answered in place of the model.
    pub finish: Option<String>,
    /// The decisions of the hooks, in the order in which they ran.
    pub notes: Vec<HookDecision>,
}

/// The outcome of the `before_tool_call` chain.
#[derive(Debug)]
pub struct BeforeToolOutcome {
    /// The call to make.
    pub call: ToolCall,
    /// [`ToolDecision::Proceed`], or the result or denial that replaces the call.
    pub decision: ToolDecision,
    /// The decisions of the hooks, in the order in which they ran.
    pub notes: Vec<HookDecision>,
}

impl HookSet {
    /// Runs the `before_llm_call` chain.
    pub async fn before_llm_call(&self, request: LlmRequest, turn: &Turn) -> BeforeLlmOutcome {
        let mut outcome = BeforeLlmOutcome {
            request,
            finish: None,
            notes: Vec::new(),
        };
        for implementation in BeforeLlmCall::implementations(self).iter().rev() {
            let args = args::BeforeLlmCall {
                request: &outcome.request,
                state: turn.state(),
                turn,
            };
            match implementation.call(self, args).await {
                Ok(None) => {}
                Ok(Some(LlmDecision::Proceed(request))) => {
                    outcome
                        .notes
                        .push(hook_decision(implementation, "rewrote", None));
                    outcome.request = request;
                }
                Ok(Some(LlmDecision::Finish(text))) => {
                    outcome
                        .notes
                        .push(hook_decision(implementation, "finished", None));
                    outcome.finish = Some(text);
                    return outcome;
                }
                Err(error) => outcome
                    .notes
                    .push(log_failed_decision(implementation, &error)),
            }
        }
        outcome
    }

    /// Runs all `after_llm_call` implementations and returns the failures.
    pub async fn after_llm_call(
        &self,
        request: &LlmRequest,
        result: &LlmResult,
        turn: &Turn,
    ) -> Vec<HookDecision> {
        let mut notes = Vec::new();
        for implementation in AfterLlmCall::implementations(self).iter().rev() {
            let args = args::AfterLlmCall {
                request,
                result,
                state: turn.state(),
                turn,
            };
            if let Err(error) = implementation.call(self, args).await {
                notes.push(log_failed_decision(implementation, &error));
            }
        }
        notes
    }

    /// Runs the `before_tool_call` chain. A failing implementation denies the call, unless it is observe-only.
    pub async fn before_tool_call(&self, call: ToolCall, turn: &Turn) -> BeforeToolOutcome {
        let mut outcome = BeforeToolOutcome {
            call,
            decision: ToolDecision::Proceed(None),
            notes: Vec::new(),
        };
        for implementation in BeforeToolCall::implementations(self).iter().rev() {
            let args = args::BeforeToolCall {
                call: &outcome.call,
                state: turn.state(),
                turn,
            };
            let decision = match implementation.call(self, args).await {
                Ok(decision) => decision,
                Err(error) => {
                    outcome
                        .notes
                        .push(log_failed_decision(implementation, &error));
                    if implementation.is_observe_only() {
                        continue;
                    }
                    let reason = format!(
                        "the `before_tool_call` hook of plugin `{}` failed: {error}",
                        implementation.plugin()
                    );
                    Some(ToolDecision::Deny(Some(reason)))
                }
            };
            match decision {
                None | Some(ToolDecision::Proceed(None)) => {}
                Some(ToolDecision::Proceed(Some(arguments))) => {
                    outcome
                        .notes
                        .push(hook_decision(implementation, "rewrote", None));
                    outcome.call.arguments = arguments;
                }
                Some(last) => {
                    outcome.notes.push(final_decision(implementation, &last));
                    outcome.decision = last;
                    return outcome;
                }
            }
        }
        outcome
    }

    /// Runs the `after_tool_call` chain. Each implementation sees the result that the previous one returned. The error
    /// of a failed call cannot be replaced.
    pub async fn after_tool_call(
        &self,
        call: &ToolCall,
        mut outcome: ToolOutcome,
        turn: &Turn,
    ) -> (ToolOutcome, Vec<HookDecision>) {
        let mut notes = Vec::new();
        for implementation in AfterToolCall::implementations(self).iter().rev() {
            let args = args::AfterToolCall {
                call,
                result: &outcome,
                state: turn.state(),
                turn,
            };
            match implementation.call(self, args).await {
                Ok(Some(value)) if outcome.result.is_ok() => {
                    notes.push(hook_decision(implementation, "rewrote", None));
                    outcome.result = Ok(value);
                }
                Ok(_) => {}
                Err(error) => notes.push(log_failed_decision(implementation, &error)),
            }
        }
        (outcome, notes)
    }
}

fn final_decision(
    implementation: &Implementation<BeforeToolCall>,
    decision: &ToolDecision,
) -> HookDecision {
    match decision {
        ToolDecision::Deny(reason) => hook_decision(implementation, "denied", reason.clone()),
        ToolDecision::Proceed(_) | ToolDecision::Replace(_) => {
            hook_decision(implementation, "replaced", None)
        }
    }
}

fn hook_decision<P: HookPoint>(
    implementation: &Implementation<P>,
    action: &'static str,
    detail: Option<String>,
) -> HookDecision {
    HookDecision {
        hook: P::SPEC.name,
        plugin: implementation.plugin(),
        action,
        detail,
    }
}

/// Logs the failure of an implementation and returns the decision `failed`.
fn log_failed_decision<P: HookPoint>(
    implementation: &Implementation<P>,
    error: &Error,
) -> HookDecision {
    let (hook, plugin) = (P::SPEC.name, implementation.plugin());
    if let Some(InvalidReturn { got, expected }) = error.downcast_ref() {
        tracing::warn!(%hook, adapter = %plugin, %got, %expected, "hook.agent_hook_bad_return");
    } else {
        tracing::warn!(%hook, adapter = %plugin, %error, "hook.agent_hook_failed");
    }
    hook_decision(implementation, "failed", Some(error.to_string()))
}
