//! The chained hooks around model and tool calls, and what happens when one of them fails.
//!
//! | hook | it fails, hangs or returns something odd |
//! |---|---|
//! | `before_tool_call` | the call is denied, unless the hook is observe-only |
//! | `before_llm_call`, `after_llm_call`, `after_tool_call` | logged and skipped |
//!
//! Whatever a hook decided comes back as a [`HookDecision`], so that the caller can put it on the tape.

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

/// What a hook returned could not be read as its result; only plugins of other processes can do that.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the hook returned {got}, expected {expected}")]
pub struct InvalidReturn {
    /// What came.
    pub got: String,
    /// What should have come.
    pub expected: &'static str,
}

/// What one hook decided or changed.
#[derive(Clone, Debug, PartialEq)]
pub struct HookDecision {
    /// The hook.
    pub hook: &'static str,
    /// The plugin.
    pub plugin: Arc<str>,
    /// `rewrote`, `finished`, `replaced`, `denied` or `failed`.
    pub action: &'static str,
    /// The reason or the error, where there is one.
    pub detail: Option<String>,
}

impl HookDecision {
    /// The note as data for a tape event.
    pub fn to_value(&self) -> Value {
        json!({"hook": self.hook, "plugin": &*self.plugin, "action": self.action, "detail": self.detail})
    }
}

/// What the `before_llm_call` chain came to.
#[derive(Debug)]
pub struct BeforeLlmOutcome {
    /// The request as it is to be sent.
    pub request: LlmRequest,
    /// The answer, when a hook gave it in place of the model.
    pub finish: Option<String>,
    /// What hooks changed.
    pub notes: Vec<HookDecision>,
}

/// What the `before_tool_call` chain came to.
#[derive(Debug)]
pub struct BeforeToolOutcome {
    /// The call as it is to be made.
    pub call: ToolCall,
    /// [`ToolDecision::Proceed`], or what to answer in place of the call.
    pub decision: ToolDecision,
    /// What hooks changed.
    pub notes: Vec<HookDecision>,
}

impl HookSet {
    /// Runs the `before_llm_call` chain.
    pub async fn before_llm_call(&self, request: LlmRequest, turn: &Turn) -> BeforeLlmOutcome {
        let mut gate = BeforeLlmOutcome {
            request,
            finish: None,
            notes: Vec::new(),
        };
        for found in BeforeLlmCall::implementations(self).iter().rev() {
            let args = args::BeforeLlmCall {
                request: &gate.request,
                state: turn.state(),
                turn,
            };
            match found.call(self, args).await {
                Ok(None) => {}
                Ok(Some(LlmDecision::Proceed(request))) => {
                    gate.notes.push(record_decision(found, "rewrote", None));
                    gate.request = request;
                }
                Ok(Some(LlmDecision::Finish(text))) => {
                    gate.notes.push(record_decision(found, "finished", None));
                    gate.finish = Some(text);
                    return gate;
                }
                Err(error) => gate.notes.push(isolate(found, &error)),
            }
        }
        gate
    }

    /// Runs every `after_llm_call`; returns what failed.
    pub async fn after_llm_call(
        &self,
        request: &LlmRequest,
        result: &LlmResult,
        turn: &Turn,
    ) -> Vec<HookDecision> {
        let mut notes = Vec::new();
        for found in AfterLlmCall::implementations(self).iter().rev() {
            let args = args::AfterLlmCall {
                request,
                result,
                state: turn.state(),
                turn,
            };
            if let Err(error) = found.call(self, args).await {
                notes.push(isolate(found, &error));
            }
        }
        notes
    }

    /// Runs the `before_tool_call` chain. A hook that fails denies the call.
    pub async fn before_tool_call(&self, call: ToolCall, turn: &Turn) -> BeforeToolOutcome {
        let mut gate = BeforeToolOutcome {
            call,
            decision: ToolDecision::Proceed(None),
            notes: Vec::new(),
        };
        for found in BeforeToolCall::implementations(self).iter().rev() {
            let args = args::BeforeToolCall {
                call: &gate.call,
                state: turn.state(),
                turn,
            };
            let decision = match found.call(self, args).await {
                Ok(decision) => decision,
                Err(error) => {
                    gate.notes.push(isolate(found, &error));
                    if found.observe_only() {
                        continue;
                    }
                    let reason = format!(
                        "`{}` could not decide about this call: {error}",
                        found.plugin()
                    );
                    Some(ToolDecision::Deny(Some(reason)))
                }
            };
            match decision {
                None | Some(ToolDecision::Proceed(None)) => {}
                Some(ToolDecision::Proceed(Some(arguments))) => {
                    gate.notes.push(record_decision(found, "rewrote", None));
                    gate.call.arguments = arguments;
                }
                Some(last) => {
                    gate.notes.push(last_word(found, &last));
                    gate.decision = last;
                    return gate;
                }
            }
        }
        gate
    }

    /// Runs the `after_tool_call` chain: each sees the result as the one before it left it. The
    /// result of a failed call cannot be replaced.
    pub async fn after_tool_call(
        &self,
        call: &ToolCall,
        mut outcome: ToolOutcome,
        turn: &Turn,
    ) -> (ToolOutcome, Vec<HookDecision>) {
        let mut notes = Vec::new();
        for found in AfterToolCall::implementations(self).iter().rev() {
            let args = args::AfterToolCall {
                call,
                result: &outcome,
                state: turn.state(),
                turn,
            };
            match found.call(self, args).await {
                Ok(Some(value)) if outcome.result.is_ok() => {
                    notes.push(record_decision(found, "rewrote", None));
                    outcome.result = Ok(value);
                }
                Ok(_) => {}
                Err(error) => notes.push(isolate(found, &error)),
            }
        }
        (outcome, notes)
    }
}

fn last_word(found: &Implementation<BeforeToolCall>, decision: &ToolDecision) -> HookDecision {
    match decision {
        ToolDecision::Deny(reason) => record_decision(found, "denied", reason.clone()),
        ToolDecision::Proceed(_) | ToolDecision::Replace(_) => {
            record_decision(found, "replaced", None)
        }
    }
}

fn record_decision<P: HookPoint>(
    found: &Implementation<P>,
    action: &'static str,
    detail: Option<String>,
) -> HookDecision {
    HookDecision {
        hook: P::SPEC.name,
        plugin: found.plugin(),
        action,
        detail,
    }
}

fn isolate<P: HookPoint>(found: &Implementation<P>, error: &Error) -> HookDecision {
    let (hook, plugin) = (P::SPEC.name, found.plugin());
    if let Some(InvalidReturn { got, expected }) = error.downcast_ref() {
        tracing::warn!(%hook, adapter = %plugin, %got, %expected, "hook.agent_hook_bad_return");
    } else {
        tracing::warn!(%hook, adapter = %plugin, %error, "hook.agent_hook_failed");
    }
    record_decision(found, "failed", Some(error.to_string()))
}
