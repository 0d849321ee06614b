//! Asks users to approve tool calls. The kernel's `Approvals` holds the pending requests.

use std::{fmt::Write, time::Duration};

use bub_kernel::{
    ApprovalAnswer, ApprovalRequest, CancellationToken, Error, ErrorKind, Result, ToolSpec, Turn,
    hooks::{args, point},
};
use bub_settings::Redactor;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::{PolicyDecision, denied_error};

/// The outcome of an approval request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Returns the name on the tape.
    pub fn name(self) -> &'static str {
        match self {
            Self::Approved => "approved",
            Self::Denied => "denied",
            Self::Expired => "expired",
            Self::Failed => "failed",
        }
    }
}

/// The answer to an approval request. It is valid only for the tool call in the request.
#[derive(Debug)]
pub struct Approval {
    /// The outcome.
    pub decision: ApprovalOutcome,
    /// The user who answered, as `channel:id`, or `plugin` if a hook answered. `None` without an answer.
    pub by: Option<String>,
    /// The reason why the call is not approved.
    pub reason: Option<String>,
    /// The time from the request to the answer.
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

    /// Checks that the approval covers this call, and uses it up. Fails if the call was not approved, or if the approval
    /// is for another call.
    pub fn consume(self, tool: &str, arguments: &Map<String, Value>) -> Result<()> {
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
            ApprovalOutcome::Denied => self
                .reason
                .unwrap_or_else(|| "the user denied the call".to_owned()),
            ApprovalOutcome::Failed => {
                format!(
                    "cannot ask for approval: {}",
                    self.reason.as_deref().unwrap_or("no reason given")
                )
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
            // The error of the call contains the message, too.
            tracing::error!(target: "bub::turn", error = error.message(), "approval.failed");
            (
                ApprovalOutcome::Failed,
                None,
                Some(error.message().to_owned()),
            )
        }
    };
    let (tool, arguments) = (params.tool.name.clone(), params.arguments.clone());
    Ok(Approval {
        decision,
        by,
        reason,
        elapsed: started.elapsed(),
        tool,
        arguments,
    })
}

fn build_request(params: &ApprovalParams<'_>, turn: &Turn) -> Result<ApprovalRequest> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|error| {
        Error::unknown(format!(
            "cannot create an approval request: the system provides no random numbers: {error}"
        ))
    })?;
    let id = random.iter().fold(String::new(), |mut id, byte| {
        let _ = write!(id, "{byte:02x}");
        id
    });
    let arguments = params.arguments.iter();
    let arguments = arguments
        .map(|(name, value)| (name.clone(), redact_value(params.redactor, value)))
        .collect();
    let policy_decision = params.policy_decision;
    Ok(ApprovalRequest {
        id,
        tool: params.tool.name.clone(),
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

/// Returns the value with secrets redacted in all its texts.
fn redact_value(redactor: &Redactor, value: &Value) -> Value {
    match value {
        Value::String(text) => Value::String(redactor.redact(text).into_owned()),
        Value::Array(items) => items
            .iter()
            .map(|item| redact_value(redactor, item))
            .collect(),
        Value::Object(map) => {
            let clean = map
                .iter()
                .map(|(name, value)| (name.clone(), redact_value(redactor, value)));
            Value::Object(clean.collect())
        }
        other => other.clone(),
    }
}
