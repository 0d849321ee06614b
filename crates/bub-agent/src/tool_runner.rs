//! One tool call, from the decision to what is shown of its result.
//!
//! ```text
//! before_tool_call → the arguments as the tool reads them → policy (asking, where it says so) → the tool → after_tool_call → spill
//! ```
//!
//! Calls of the model and commands of people go the same way.

mod command;

use std::{borrow::Cow, sync::Arc, time::Instant};

use bub_kernel::{
    CancellationToken, ErrorKind, Result, StepRequests, Tool, ToolCall, ToolCaller, ToolContext,
    ToolDecision, ToolOutcome, ToolSpec, Turn, run_tool,
};
use bub_tape::Entry;
use serde_json::{Map, Value};
use tokio::sync::mpsc;
use tracing::Instrument as _;

pub(crate) use self::command::{run_command, stream_command};
use crate::{
    agent::Agent,
    agent_loop::AgentLoop,
    policy::{self, ApprovalParams, PolicyAction},
    spill,
};

/// The target of log lines with what people and models say: a program shows them only when asked to.
const CONTENTS_LOG_TARGET: &str = "bub::contents";
/// The longest value in a log line.
const MAX_LOGGED_CHARS: usize = 100;

/// Runs tool calls of one run of the agent.
pub(crate) struct ToolRunner<'a> {
    pub(crate) agent: &'a Agent,
    pub(crate) turn: &'a Turn,
    pub(crate) cancel: &'a CancellationToken,
    pub(crate) caller: ToolCaller,
    /// What tools ask of the loop; `None` for a command.
    pub(crate) requests: Option<&'a Arc<StepRequests>>,
    /// Receives output while a tool runs.
    pub(crate) live_output: Option<mpsc::Sender<String>>,
}

impl<'a> ToolRunner<'a> {
    pub(crate) fn new(run: &'a AgentLoop) -> Self {
        Self {
            agent: &run.agent,
            turn: &run.turn,
            cancel: &run.cancel,
            caller: ToolCaller::Model,
            requests: Some(&run.requests),
            live_output: None,
        }
    }

    /// Makes the call for a model: whatever happens is something it can read.
    pub(crate) async fn run_for_model(
        &self,
        tool: &Arc<dyn Tool>,
        arguments: Map<String, Value>,
        call_id: &str,
    ) -> Value {
        let name = tool.spec().name.as_str();
        let span = tracing::error_span!("tool_call", tool = name, call_id);
        let showing = async {
            match self.call_tool(tool, arguments, Some(call_id)).await {
                Ok(value) => self.spill_result(name, value).await,
                Err(error) => {
                    let mut shown = error.to_value();
                    self.turn.tape().redact(&mut shown);
                    if let Some(message) = shown.get_mut("message") {
                        *message = self.spill_result(name, message.take()).await;
                    }
                    shown
                }
            }
        };
        showing.instrument(span).await
    }

    /// Makes the call for a user's command.
    pub(crate) async fn run(
        &self,
        tool: &Arc<dyn Tool>,
        arguments: Map<String, Value>,
        call_id: Option<&str>,
    ) -> Result<Value> {
        let span = tracing::error_span!("tool_call", tool = tool.spec().name.as_str(), call_id);
        self.call_tool(tool, arguments, call_id)
            .instrument(span)
            .await
    }

    async fn call_tool(
        &self,
        tool: &Arc<dyn Tool>,
        arguments: Map<String, Value>,
        call_id: Option<&str>,
    ) -> Result<Value> {
        let name = tool.spec().name.clone();
        let started = Instant::now();
        let call = ToolCall {
            run_id: self.turn.id().clone(),
            tool: name.clone(),
            arguments,
        };
        let gate = self
            .turn
            .framework()
            .hooks()
            .before_tool_call(call, self.turn)
            .await;
        self.turn.tape().append_hook_notes(&gate.notes);
        let mut call = gate.call;
        tracing::info!(%name, "tool.call.start");
        let arguments = LoggedArguments(&call.arguments);
        tracing::info!(target: CONTENTS_LOG_TARGET, %name, %arguments, "tool.call.arguments");
        let result = match gate.decision {
            ToolDecision::Deny(reason) => Err(ToolDecision::denial(&name, reason.as_deref())),
            ToolDecision::Replace(value) => Ok(value),
            // What is decided about is what the tool is going to read, however it was spelled.
            ToolDecision::Proceed(_) => match tool.normalize(call.arguments.clone()) {
                Ok(arguments) => {
                    call.arguments = arguments;
                    self.call(tool, &call, call_id).await
                }
                Err(error) => Err(error),
            },
        };
        let outcome = ToolOutcome {
            result,
            duration: started.elapsed(),
        };
        let (outcome, notes) = self
            .turn
            .framework()
            .hooks()
            .after_tool_call(&call, outcome, self.turn)
            .await;
        self.turn.tape().append_hook_notes(&notes);
        let milliseconds = outcome.duration.as_millis();
        let elapsed_time = format_args!("{milliseconds}ms");
        match &outcome.result {
            Ok(_) => tracing::info!(%name, %elapsed_time, "tool.call.success"),
            Err(error) => {
                let kind = error.kind().name();
                tracing::info!(%name, %elapsed_time, error = %kind, "tool.call.error");
                tracing::info!(target: CONTENTS_LOG_TARGET, %name, %error, "tool.call.failure");
            }
        }
        outcome.result
    }

    /// Asks the policy about the arguments as they are now, and then calls the tool.
    async fn call(
        &self,
        tool: &Arc<dyn Tool>,
        call: &ToolCall,
        call_id: Option<&str>,
    ) -> Result<Value> {
        self.check_policy(tool.spec(), &call.arguments, call_id)
            .await?;
        let context = ToolContext {
            turn: self.turn.clone(),
            cancel: self.cancel.clone(),
            caller: self.caller,
            step_requests: self.requests.cloned(),
            live_output: self.live_output.clone(),
        };
        run_tool(&**tool, call.arguments.clone(), context)
            .await
            .map_err(|error| match error.kind() {
                // The turn goes on: it is the tool that failed.
                ErrorKind::Unknown => error.with_kind(ErrorKind::Tool),
                _ => error,
            })
    }

    /// Asks the policy, and a person when that says so; an error says why the call may not be made.
    async fn check_policy(
        &self,
        tool: &ToolSpec,
        arguments: &Map<String, Value>,
        call_id: Option<&str>,
    ) -> Result<()> {
        let policy = self.agent.policy();
        let policy_decision = policy.decide(self.turn.sender(), tool, arguments);
        match policy_decision.action {
            PolicyAction::Allow => Ok(()),
            PolicyAction::Deny => Err(policy_decision.denial(&tool.name)),
            PolicyAction::Ask => {
                let question = ApprovalParams {
                    tool,
                    arguments,
                    policy_decision: &policy_decision,
                    timeout: policy.approval_timeout(),
                    redactor: self.agent.settings().redactor(),
                };
                let approval = policy::ask(self.turn, question, self.cancel).await?;
                let event = Entry::event(
                    "approval",
                    Some(approval.event(call_id.unwrap_or_default())),
                );
                self.turn
                    .tape()
                    .append(vec![self.turn.tape().with_run_id(event.outside_context())])
                    .await?;
                approval.consume(&tool.name, arguments)
            }
        }
    }

    /// The result as it is shown: without secrets, and of a size that fits.
    async fn spill_result(&self, tool: &str, mut value: Value) -> Value {
        let settings = self.agent.settings();
        // Before it becomes JSON, in which a quote would no longer look like that of a secret.
        self.turn.tape().redact(&mut value);
        let text = match value {
            Value::String(text) => text,
            other => {
                let text = other.to_string();
                match (
                    settings.redactor().redact(&text),
                    spill::fits(settings, &text),
                ) {
                    (Cow::Borrowed(_), true) => return other,
                    // In a name, or as a number, after which it may be no JSON any more.
                    (Cow::Owned(clean), true) => {
                        return serde_json::from_str(&clean).unwrap_or_else(|_| clean.into());
                    }
                    (clean, false) => clean.into_owned(),
                }
            }
        };
        spill::spill(self.turn.tape(), settings, tool, text)
            .await
            .into()
    }
}

/// Arguments in a log line: `{ name=value, … }`.
struct LoggedArguments<'a>(&'a Map<String, Value>);

impl std::fmt::Display for LoggedArguments<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("{ ")?;
        for (index, (name, value)) in self.0.iter().enumerate() {
            let text = value.to_string();
            let short: String = text.chars().take(MAX_LOGGED_CHARS).collect();
            write!(f, "{}{name}={short}", if index > 0 { ", " } else { "" })?;
        }
        f.write_str(" }")
    }
}
