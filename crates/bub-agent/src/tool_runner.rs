//! Runs one tool call, for the model or for a comma command.
//!
//! ```text
//! before_tool_call → normalize arguments → policy (and approval) → tool → after_tool_call → redact, spill
//! ```

mod command;

use std::{
    borrow::Cow,
    sync::Arc,
    time::{Duration, Instant},
};

use bub_kernel::{
    ApprovalAnswer, ChannelMessage, Error, ErrorKind, Outbound, ReplyOrigin, Result, Tool,
    ToolCall, ToolContext, ToolDecision, ToolOutcome, Turn, run_tool,
};
use serde_json::{Map, Value};
use tracing::Instrument as _;

pub(crate) use self::command::{LIVE_OUTPUT_CAPACITY, run_command, stream_command};
use crate::{
    agent::Agent,
    policy::{self, ApprovalParams, PolicyAction},
    spill,
};

/// The target of log events that contain text of users and models. These events are logged only if the user enables
/// them.
const CONTENTS_LOG_TARGET: &str = "bub::contents";
/// Maximum length of an argument in a log event.
const MAX_LOGGED_CHARS: usize = 100;

/// Runs the tool calls of an agent loop, or the tool call of a comma command.
pub(crate) struct ToolRunner<'a> {
    pub(crate) agent: &'a Agent,
    /// The context that every tool gets.
    pub(crate) context: ToolContext,
}

/// What a tool call names.
pub(crate) enum CallTarget<'a> {
    Tool(&'a Arc<dyn Tool>),
    /// No tool that the model may call.
    Unknown {
        name: &'a str,
        /// What the model sees, unless a hook answers the call.
        guidance: String,
    },
}

impl<'a> CallTarget<'a> {
    /// Creates the target of a call. The error is guidance for the model.
    pub(crate) fn new(name: &'a str, found: Result<&'a Arc<dyn Tool>, String>) -> Self {
        match found {
            Ok(tool) => Self::Tool(tool),
            Err(guidance) => Self::Unknown { name, guidance },
        }
    }

    fn name(&self) -> &str {
        match self {
            Self::Tool(tool) => &tool.spec().name,
            Self::Unknown { name, .. } => name,
        }
    }

    /// Returns the text of a result, if the tool has its own.
    fn render(&self, result: &Value) -> Option<String> {
        match self {
            Self::Tool(tool) => tool.render(result),
            Self::Unknown { .. } => None,
        }
    }
}

impl ToolRunner<'_> {
    fn turn(&self) -> &Turn {
        &self.context.turn
    }

    /// Runs a tool call of the model. Errors become values that the model can read.
    pub(crate) async fn run_for_model(
        &self,
        target: &CallTarget<'_>,
        arguments: Map<String, Value>,
    ) -> Value {
        let name = target.name();
        let call_id = self.context.call_id.as_deref();
        let span = tracing::error_span!("tool_call", tool = name, call_id);
        let call = async {
            match self.run_with_hooks(target, arguments).await {
                Ok(value) => {
                    // Redact before rendering, which may escape quotes in a secret.
                    let value = self.redact(value);
                    let text = target.render(&value).map(Value::String);
                    self.redact_and_spill(name, text.unwrap_or(value)).await
                }
                Err(error) => {
                    let mut failure = self.redact(error.to_value());
                    if let Some(message) = failure.get_mut("message") {
                        *message = self.redact_and_spill(name, message.take()).await;
                    }
                    // The details of an error, such as the output of code, can be large, too.
                    self.redact_and_spill(name, failure).await
                }
            }
        };
        call.instrument(span).await
    }

    /// Runs a tool call of code that the model runs. The result is data, without secrets.
    pub(crate) async fn run_for_code(
        &self,
        tool: &Arc<dyn Tool>,
        arguments: Map<String, Value>,
    ) -> Result<Value> {
        let span = tracing::error_span!("tool_call", tool = tool.spec().name.as_str());
        let target = CallTarget::Tool(tool);
        let call = self.run_with_hooks(&target, arguments);
        Ok(self.redact(call.instrument(span).await?))
    }

    /// Runs a tool call of a comma command.
    pub(crate) async fn run_for_user(
        &self,
        tool: &Arc<dyn Tool>,
        arguments: Map<String, Value>,
    ) -> Result<Value> {
        let span = tracing::error_span!("tool_call", tool = tool.spec().name.as_str());
        let target = CallTarget::Tool(tool);
        let call = self.run_with_hooks(&target, arguments);
        let value = call.instrument(span).await?;
        Ok(tool.render(&value).map_or(value, Value::String))
    }

    /// Runs a call between the hooks `before_tool_call` and `after_tool_call`.
    async fn run_with_hooks(
        &self,
        target: &CallTarget<'_>,
        arguments: Map<String, Value>,
    ) -> Result<Value> {
        let name = target.name().to_owned();
        let (started, waited_before) = (Instant::now(), self.approval_wait());
        let arguments = match target {
            CallTarget::Tool(tool) => tool.spec().resolve_aliases(arguments),
            CallTarget::Unknown { .. } => arguments,
        };
        let call = ToolCall {
            run_id: self.turn().id().clone(),
            tool: name.clone(),
            arguments,
            code_mode: self.context.code_mode,
        };
        let hooks = self.turn().framework().hooks();
        let gate = hooks.before_tool_call(call, self.turn()).await;
        self.turn().tape().append_hook_decisions(&gate.notes);
        let mut call = gate.call;
        tracing::info!(%name, "tool.call.start");
        let arguments = LoggedArguments(&call.arguments);
        tracing::info!(target: CONTENTS_LOG_TARGET, %name, %arguments, "tool.call.arguments");
        let result = match gate.decision {
            ToolDecision::Deny(reason) => Err(ToolDecision::denial_error(&name, reason.as_deref())),
            ToolDecision::Replace(value) => Ok(value),
            ToolDecision::Proceed(_) => match target {
                CallTarget::Unknown { guidance, .. } => Ok(guidance.as_str().into()),
                // The policy must see the arguments as the tool reads them, not as they were written.
                CallTarget::Tool(tool) => match tool.normalize_arguments(call.arguments.clone()) {
                    Ok(arguments) => {
                        call.arguments = arguments;
                        self.run_with_policy(tool, &call).await
                    }
                    Err(error) => Err(error),
                },
            },
            _ => Err(ToolDecision::denial_error(&name, None)),
        };
        let outcome = ToolOutcome {
            result,
            duration: started
                .elapsed()
                .saturating_sub(self.approval_wait().saturating_sub(waited_before)),
        };
        let (outcome, notes) = hooks.after_tool_call(&call, outcome, self.turn()).await;
        self.turn().tape().append_hook_decisions(&notes);
        let elapsed_time = format_args!("{}ms", outcome.duration.as_millis());
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

    /// Checks the policy for the normalized arguments, then runs the tool.
    async fn run_with_policy(&self, tool: &Arc<dyn Tool>, call: &ToolCall) -> Result<Value> {
        let spec = tool.spec();
        self.check_policy(&**tool, &call.arguments).await?;
        if let Some(call_id) = &self.context.call_id {
            self.turn().tape().set_call_running(call_id, true);
        }
        let result = run_tool(&**tool, call.arguments.clone(), self.context.clone()).await;
        if spec.name == "tape.reset" {
            // What was approved for the session ends with it.
            self.agent.policy.forget_session(self.turn());
        }
        result.map_err(|error| match error.kind() {
            // Only the tool failed; the turn continues.
            ErrorKind::Unknown => error.with_kind(ErrorKind::Tool),
            _ => error,
        })
    }

    /// Evaluates the policy, and asks a user if the policy requires approval. The error says why the call is denied.
    async fn check_policy(&self, tool: &dyn Tool, arguments: &Map<String, Value>) -> Result<()> {
        let (callable, tool) = (tool, tool.spec());
        let policy = &self.agent.policy;
        let (turn, files) = (self.turn(), &self.agent.files);
        let policy_decision = policy.evaluate_in_turn(files, &self.context, tool, arguments);
        match policy_decision.action {
            PolicyAction::Allow => Ok(()),
            PolicyAction::Deny => Err(policy_decision.denial_error(&tool.name)),
            PolicyAction::Ask
                if !policy_decision.accepts_content
                    && policy.is_remembered(turn, &tool.name, arguments) =>
            {
                Ok(())
            }
            PolicyAction::Ask => {
                callable.check_arguments(arguments)?;
                let params = ApprovalParams {
                    tool,
                    arguments,
                    policy_decision: &policy_decision,
                    timeout: policy.approval_timeout(),
                    settings: &self.agent.settings,
                };
                let approval = policy::request_recorded_approval(&self.context, params).await?;
                let (answer, rule) = (approval.answer.clone(), approval.rule.clone());
                approval.consume(&tool.name, arguments)?;
                match (answer, rule) {
                    _ if policy_decision.accepts_content => turn.accept_provenance(),
                    (Some(ApprovalAnswer::ApprovedForSession), _) => {
                        policy.remember(turn, &tool.name, arguments);
                    }
                    (Some(ApprovalAnswer::ApprovedAlways), Some(rule)) => {
                        // The call is approved, even if the rule cannot be written.
                        if let Err(error) = policy.add_rule(&self.agent.settings, rule) {
                            self.report_missing_rule(&error).await?;
                        }
                    }
                    _ => {}
                }
                Ok(())
            }
        }
    }

    /// Tells the user that the answer `always` was only valid for this call.
    async fn report_missing_rule(&self, error: &Error) -> Result<()> {
        tracing::info!(%error, "approval.rule_not_added");
        let turn = self.turn();
        let sender = turn.sender();
        let text = format!("allowed once; the rule could not be added: {error}");
        let message = ChannelMessage::new(turn.session_id(), &sender.channel, text);
        let mut notice = Outbound::new(message.chat_id(&sender.chat_id));
        notice.origin = ReplyOrigin::Notice;
        turn.deliver(notice).await.map(drop)
    }

    /// Returns how long the model's tool call has waited for approvals. 0 if a user made the call.
    pub(crate) fn approval_wait(&self) -> Duration {
        let call_id = self.context.call_id.as_deref();
        let wait = call_id.map(|call_id| self.turn().tape().approval_wait(call_id));
        wait.unwrap_or_default()
    }

    fn redact(&self, mut value: Value) -> Value {
        self.turn().tape().redact(&mut value);
        value
    }

    /// Returns the result for the model: redacted, and spilled if it is too large.
    async fn redact_and_spill(&self, tool: &str, value: Value) -> Value {
        let settings = &self.agent.settings;
        // Redact before serializing: JSON escapes quotes, so a secret with a quote would not be recognized.
        let text = match self.redact(value) {
            Value::String(text) => text,
            other => {
                let text = other.to_string();
                let clean = settings.redactor().redact(&text);
                match (clean, spill::fits_threshold(settings, &text)) {
                    (Cow::Borrowed(_), true) => return other,
                    // The secret was in a key or a number. The redacted text may not be valid JSON.
                    (Cow::Owned(clean), true) => {
                        return serde_json::from_str(&clean).unwrap_or_else(|_| clean.into());
                    }
                    (clean, false) => clean.into_owned(),
                }
            }
        };
        let text = spill::spill(self.turn().tape(), settings, tool, text).await;
        text.into()
    }
}

/// Arguments in a log event: `{ name=value, … }`.
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
