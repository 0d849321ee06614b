//! Asks users to approve tool calls. The kernel's `Approvals` holds the pending requests.

use std::time::Duration;

use bub_kernel::{
    ApprovalAnswer, ApprovalRequest, CancellationToken, Error, ErrorKind, Result, ToolContext,
    ToolSpec, Turn, UntrustedSource,
    hooks::{args, point},
};
use bub_settings::{SettingSource, Settings};
use bub_tape::Entry;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::{
    PolicyAction, PolicyDecision, PolicyRule, default_decision, denied_error,
    remembered::exact_rule,
};
use crate::{agent::Agent, sandbox::is_at_terminal, tools::find_tool};

/// The outcome of an approval request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum ApprovalOutcome {
    /// A user approved the call.
    Approved,
    /// A user denied the call.
    Denied,
    /// No user answered in time.
    Expired,
    /// No user could be asked.
    Failed,
}

impl ApprovalOutcome {
    /// Returns the name of the outcome, as recorded on the tape.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// The result of an approval request. It is valid only for the tool call in the request.
#[derive(Debug)]
pub struct Approval {
    /// Whether the call was approved, or why not.
    pub decision: ApprovalOutcome,
    /// The user who answered, as `channel:id`, or `plugin` if a hook answered. `None` without an answer.
    pub by: Option<String>,
    /// The reason why the call is not approved.
    pub reason: Option<String>,
    /// How long the request was pending.
    pub elapsed: Duration,
    /// The answer, if there is one.
    pub answer: Option<ApprovalAnswer>,
    /// The rule that the answer `always` adds.
    pub(crate) rule: Option<Map<String, Value>>,
    /// Why the call needs approval.
    cause: String,
    tool: String,
    arguments: Map<String, Value>,
}

impl Approval {
    /// Returns the data of the tape event `approval`.
    pub fn event_data(&self, call_id: &str) -> Value {
        let elapsed = u64::try_from(self.elapsed.as_millis()).unwrap_or(u64::MAX);
        let mut data = json!({
            "tool": self.tool, "call_id": call_id, "decision": self.decision.name(), "by": self.by,
            "elapsed_ms": elapsed,
        });
        let scope = match self.answer {
            Some(ApprovalAnswer::ApprovedForSession) => "session",
            Some(ApprovalAnswer::ApprovedAlways) => "always",
            _ => return data,
        };
        if let Some(data) = data.as_object_mut() {
            data.insert("scope".to_owned(), scope.into());
        }
        data
    }

    /// Checks that the approval covers this tool call. Consumes the approval, so that it covers only one call. Fails if
    /// the call was not approved, or if the approval is for another call.
    pub fn consume(self, tool: &str, arguments: &Map<String, Value>) -> Result<()> {
        let (reason, needed) = (self.reason.as_deref(), &self.cause);
        let cause = match self.decision {
            ApprovalOutcome::Approved if self.tool == tool && self.arguments == *arguments => {
                return Ok(());
            }
            ApprovalOutcome::Approved => {
                "the approval is for another call; request a new one".to_owned()
            }
            ApprovalOutcome::Expired => {
                let seconds = self.elapsed.as_secs();
                format!("not approved within {seconds} s ({needed})")
            }
            ApprovalOutcome::Denied => {
                let reason = reason.map(|reason| format!(": {reason}"));
                let reason = reason.unwrap_or_default();
                let message = format!("Tool '{tool}' denied by the user{reason}");
                return Err(Error::new(ErrorKind::Tool, message));
            }
            ApprovalOutcome::Failed => {
                let reason = reason.unwrap_or("no reason given");
                format!("cannot ask for approval ({needed}): {reason}")
            }
        };
        Err(denied_error(tool, &cause))
    }
}

/// The call to approve and the options of the request.
#[derive(Debug)]
pub struct ApprovalParams<'a> {
    /// The tool.
    pub tool: &'a ToolSpec,
    /// The arguments that the tool will receive.
    pub arguments: &'a Map<String, Value>,
    /// The decision that requires the approval.
    pub policy_decision: &'a PolicyDecision,
    /// How long to wait for an answer.
    pub timeout: Duration,
    /// The settings, whose redactor finds secrets in the call.
    pub settings: &'a Settings,
}

/// Asks users to approve a call and waits for the answer. Fails if the turn is cancelled, or if the system provides no
/// random numbers for the request id.
pub async fn request_approval(
    turn: &Turn,
    params: ApprovalParams<'_>,
    cancel: &CancellationToken,
) -> Result<Approval> {
    let started = Instant::now();
    let framework = turn.framework();
    let rule = remember_rule(&params, turn);
    let decision = params.policy_decision;
    let cause = decision.reason.as_ref().unwrap_or(&decision.rule);
    let outcome = |decision, answer: Option<ApprovalAnswer>, by, reason| Approval {
        decision,
        by,
        reason,
        elapsed: started.elapsed(),
        answer,
        rule: rule.clone(),
        cause: cause.clone(),
        tool: params.tool.name.clone(),
        arguments: params.arguments.clone(),
    };
    let failed = |reason: String| outcome(ApprovalOutcome::Failed, None, None, Some(reason));
    let request = build_request(&params, turn, rule.as_ref(), cause)?;
    if !is_at_terminal(turn.sender()) && is_masked(&request, &params) {
        let text = "the call contains a secret, which must not be shown in a chat; approve it at the terminal with `bub chat`";
        return Ok(failed(text.to_owned()));
    }
    let pending = framework
        .approvals()
        .register(&request, started + request.expires);
    let args = args::RequestApproval {
        request: &request,
        state: turn.state(),
        turn,
    };
    let answer = tokio::select! {
        biased;
        () = cancel.cancelled() => return Err(Error::new(ErrorKind::Cancelled, "the turn was cancelled")),
        () = tokio::time::sleep(request.expires) => None,
        answer = framework.hooks().call_first::<point::RequestApproval>(args) => Some(answer),
    };
    let answered_by = pending.answered_by();
    let is_by_plugin = answered_by.is_none();
    let by = answered_by.map_or_else(|| "plugin".to_owned(), |user| user.to_string());
    Ok(match answer {
        None => outcome(ApprovalOutcome::Expired, None, None, None),
        Some(Ok(Some(ApprovalAnswer::Denied(reason)))) => {
            let answer = ApprovalAnswer::Denied(reason.clone());
            outcome(ApprovalOutcome::Denied, Some(answer), Some(by), reason)
        }
        // A plugin saw the call without its secrets.
        Some(Ok(Some(_))) if is_by_plugin && request.terms.secret_arguments.is_some() => {
            failed("the call contains a secret, so only the user at the terminal may approve it".to_owned())
        }
        Some(Ok(Some(answer))) => {
            outcome(ApprovalOutcome::Approved, Some(answer), Some(by), None)
        }
        Some(Ok(None)) => failed(
            "neither the channel nor a plugin can ask a user; use `bub chat`, or change `policy.rules`".to_owned(),
        ),
        Some(Err(error)) => {
            // The tool call fails with this message, too.
            tracing::error!(target: "bub::turn", error = error.message(), "approval.failed");
            failed(error.message().to_owned())
        }
    })
}

/// Returns the rule for the answer `always`, if a rule asks about the call and the call has no secrets.
fn remember_rule(params: &ApprovalParams<'_>, turn: &Turn) -> Option<Map<String, Value>> {
    if params.policy_decision.origin == SettingSource::Default {
        return None;
    }
    let rule = exact_rule(params.settings, turn, params.tool, params.arguments)?;
    let mut redacted = Value::Object(rule.clone());
    params.settings.redactor().redact_value(&mut redacted);
    (redacted.as_object() == Some(&rule)).then_some(rule)
}

/// Asks users to approve a call, and records the result on the tape. The wait does not count as time of the call.
pub(crate) async fn request_recorded_approval(
    context: &ToolContext,
    params: ApprovalParams<'_>,
) -> Result<Approval> {
    let (turn, call_id) = (&context.turn, context.call_id.as_deref());
    let call_id = call_id.unwrap_or_default();
    let tape = turn.tape();
    tape.record_approval_request(&params.tool.name, call_id)
        .await?;
    let approval = request_approval(turn, params, &context.cancel).await?;
    let data = approval.event_data(call_id);
    let event = Entry::event("approval", Some(data)).exclude_from_context();
    tape.add_approval_wait(call_id, approval.elapsed);
    tape.append(vec![tape.with_run_id(event)]).await?;
    Ok(approval)
}

/// Returns whether redaction would hide a part of the question.
fn is_masked(request: &ApprovalRequest, params: &ApprovalParams<'_>) -> bool {
    let question = request.question_text();
    request.arguments != *params.arguments
        || params.settings.redactor().redact(&question) != question
}

/// Asks an owner whether a call may do what the sandbox does not allow, and records the result on the tape. `has_run`
/// says whether the call has already done a part of its work.
pub(crate) async fn ask_for_exception(
    agent: &Agent,
    context: &ToolContext,
    tool: &str,
    arguments: &Map<String, Value>,
    (question, has_run): (&str, bool),
) -> Result<Approval> {
    let tools = context.turn.framework().current_tools();
    let params = ApprovalParams {
        tool: find_tool(tool, &tools)?.spec(),
        arguments,
        policy_decision: &PolicyDecision::from_default(PolicyAction::Ask, question),
        timeout: agent.policy.approval_timeout(),
        settings: &agent.settings,
    };
    let call_id = context.call_id.as_deref().filter(|_| !context.code_mode);
    let waiting = call_id.filter(|_| !has_run);
    let set_running = |is_running| {
        if let Some(call_id) = waiting {
            context.turn.tape().set_call_running(call_id, is_running);
        }
    };
    set_running(false);
    let approval = request_recorded_approval(context, params).await;
    set_running(true);
    approval
}

fn build_request(
    params: &ApprovalParams<'_>,
    turn: &Turn,
    rule: Option<&Map<String, Value>>,
    cause: &str,
) -> Result<ApprovalRequest> {
    let random = getrandom::u64().map_err(|error| {
        Error::unknown(format!(
            "cannot create an approval request: the system provides no random numbers: {error}"
        ))
    })?;
    let mut arguments = params.arguments.clone();
    for value in arguments.values_mut() {
        params.settings.redactor().redact_value(value);
    }
    let policy_decision = params.policy_decision;
    let sender = turn.sender();
    let is_secret = arguments != *params.arguments;
    let default = default_decision(sender, params.tool, params.arguments);
    let is_possible_by_default = default.action != PolicyAction::Deny;
    // The sender of a webhook is a program, which cannot vouch for its content. The owner at the terminal can.
    let is_about_webhook = policy_decision.accepts_content
        && !is_at_terminal(sender)
        && turn.untrusted_sources().contains(&UntrustedSource::Webhook);
    let always_rule = rule.and_then(|rule| {
        let rule = PolicyRule::from_map(rule.clone(), 0, SettingSource::Default);
        rule.ok().map(|rule| rule.summary())
    });
    let reason = if policy_decision.accepts_content {
        format!("{cause}; yes allows such calls until the end of this turn")
    } else {
        cause.to_owned()
    };
    let mut request = ApprovalRequest::default();
    request.id = format!("{random:016x}");
    request.tool.clone_from(&params.tool.name);
    request.arguments = arguments;
    request.sender.clone_from(sender);
    request.session_id.clone_from(turn.session_id());
    request.expires = params.timeout;
    request.reason = reason;
    let terms = &mut request.terms;
    terms.secret_arguments =
        (is_secret && is_at_terminal(sender)).then(|| params.arguments.clone());
    terms.approvers.clone_from(&policy_decision.approvers);
    terms.can_asker_answer = is_possible_by_default && !is_about_webhook;
    terms.can_remember = policy_decision.origin != SettingSource::Default;
    terms.always_rule = always_rule;
    terms.content_cause = policy_decision.accepts_content.then(|| cause.to_owned());
    Ok(request)
}
