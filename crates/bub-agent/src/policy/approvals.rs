//! Asks users to approve tool calls. The kernel's `Approvals` holds the pending requests.

use std::time::Duration;

use bub_kernel::{
    ApprovalAnswer, ApprovalRequest, CancellationToken, Error, ErrorKind, Result, Turn,
    hooks::{args, point},
};
use bub_settings::Redactor;
use bub_tape::Entry;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::{PolicyDecision, denied_error};

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
    tool: String,
    arguments: Map<String, Value>,
}

impl Approval {
    /// Returns the data of the tape event `approval`.
    pub fn event_data(&self, call_id: &str) -> Value {
        let elapsed = u64::try_from(self.elapsed.as_millis()).unwrap_or(u64::MAX);
        json!({
            "tool": self.tool, "call_id": call_id, "decision": self.decision.name(), "by": self.by,
            "elapsed_ms": elapsed,
        })
    }

    /// Checks that the approval covers this tool call. Consumes the approval, so that it covers only one call. Fails if
    /// the call was not approved, or if the approval is for another call.
    pub fn consume(self, tool: &str, arguments: &Map<String, Value>) -> Result<()> {
        let reason = self.reason.as_deref();
        let cause = match self.decision {
            ApprovalOutcome::Approved if self.tool == tool && self.arguments == *arguments => {
                return Ok(());
            }
            ApprovalOutcome::Approved => {
                "the approval is for another call; request a new one".to_owned()
            }
            ApprovalOutcome::Expired => {
                format!("not approved within {} s", self.elapsed.as_secs())
            }
            ApprovalOutcome::Denied => reason.unwrap_or("the user denied the call").to_owned(),
            ApprovalOutcome::Failed => {
                let reason = reason.unwrap_or("no reason given");
                format!("cannot ask for approval: {reason}")
            }
        };
        Err(denied_error(tool, &cause))
    }
}

/// The call to approve and the options of the request.
#[derive(Debug)]
pub struct ApprovalParams<'a> {
    /// The name of the tool.
    pub tool: &'a str,
    /// The arguments that the tool will receive.
    pub arguments: &'a Map<String, Value>,
    /// The decision that requires the approval.
    pub policy_decision: &'a PolicyDecision,
    /// How long to wait for an answer.
    pub timeout: Duration,
    /// Redacts secrets in the request.
    pub redactor: &'a Redactor,
}

/// Asks users to approve a call and waits for the answer. Fails if the turn is cancelled, or if the system provides no
/// random numbers for the request id.
pub async fn request_approval(
    turn: &Turn,
    params: ApprovalParams<'_>,
    cancel: &CancellationToken,
) -> Result<Approval> {
    let started = Instant::now();
    let request = build_request(&params, turn)?;
    let framework = turn.framework();
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
    let by = pending.answered_by();
    let by = by.map_or_else(|| "plugin".to_owned(), |user| user.to_string());
    let (decision, by, reason) = match answer {
        None => (ApprovalOutcome::Expired, None, None),
        Some(Ok(Some(ApprovalAnswer::Approved))) => (ApprovalOutcome::Approved, Some(by), None),
        Some(Ok(Some(ApprovalAnswer::Denied(reason)))) => {
            (ApprovalOutcome::Denied, Some(by), reason)
        }
        Some(Ok(None)) => (
            ApprovalOutcome::Failed,
            None,
            Some("neither the channel nor a plugin can ask a user; use `bub chat`, or change `policy.rules`".to_owned()),
        ),
        Some(Err(error)) => {
            // The tool call fails with this message, too.
            tracing::error!(target: "bub::turn", error = error.message(), "approval.failed");
            let reason = Some(error.message().to_owned());
            (ApprovalOutcome::Failed, None, reason)
        }
    };
    Ok(Approval {
        decision,
        by,
        reason,
        elapsed: started.elapsed(),
        tool: params.tool.to_owned(),
        arguments: params.arguments.clone(),
    })
}

/// Asks users to approve a call, and records the result on the tape.
pub(crate) async fn request_recorded_approval(
    turn: &Turn,
    params: ApprovalParams<'_>,
    cancel: &CancellationToken,
    call_id: Option<&str>,
) -> Result<Approval> {
    let approval = request_approval(turn, params, cancel).await?;
    let data = approval.event_data(call_id.unwrap_or_default());
    let event = Entry::event("approval", Some(data)).exclude_from_context();
    let tape = turn.tape();
    tape.append(vec![tape.with_run_id(event)]).await?;
    Ok(approval)
}

fn build_request(params: &ApprovalParams<'_>, turn: &Turn) -> Result<ApprovalRequest> {
    let random = getrandom::u64().map_err(|error| {
        Error::unknown(format!(
            "cannot create an approval request: the system provides no random numbers: {error}"
        ))
    })?;
    let mut arguments = params.arguments.clone();
    for value in arguments.values_mut() {
        params.redactor.redact_value(value);
    }
    let policy_decision = params.policy_decision;
    Ok(ApprovalRequest {
        id: format!("{random:016x}"),
        tool: params.tool.to_owned(),
        arguments,
        sender: turn.sender().clone(),
        session_id: turn.session_id().clone(),
        expires: params.timeout,
        reason: policy_decision
            .reason
            .clone()
            .unwrap_or_else(|| policy_decision.rule.clone()),
    })
}
