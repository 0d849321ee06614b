//! Asking users about tool calls; the registry of pending requests is the kernel's `Approvals`.

use std::{fmt::Write, time::Duration};

use bub_kernel::{
    ApprovalAnswer, ApprovalRequest, CancellationToken, Error, ErrorKind, Result, ToolSpec, Turn,
    hooks::{args, point},
};
use bub_settings::Redactor;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::{PolicyDecision, denied};

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApprovalOutcome {
    /// Somebody said yes.
    Approved,
    /// Somebody said no.
    Denied,
    /// Nobody said anything in time.
    Expired,
    /// Nobody could be asked.
    Failed,
}

impl ApprovalOutcome {
    /// The name on the tape.
    pub fn name(self) -> &'static str {
        match self {
            Self::Approved => "approved",
            Self::Denied => "denied",
            Self::Expired => "expired",
            Self::Failed => "failed",
        }
    }
}

/// What came of asking; good for one call, the one that was asked about.
#[derive(Debug)]
pub struct Approval {
    /// How it ended.
    pub decision: ApprovalOutcome,
    /// Who answered, as `channel:id`; `plugin` when a hook did, nobody when there was no answer.
    pub by: Option<String>,
    /// Why not.
    pub reason: Option<String>,
    /// How long it took.
    pub elapsed: Duration,
    tool: String,
    arguments: Map<String, Value>,
}

impl Approval {
    /// The data of the event `approval` on the tape.
    pub fn event(&self, call_id: &str) -> Value {
        let elapsed = u64::try_from(self.elapsed.as_millis()).unwrap_or(u64::MAX);
        json!({
            "tool": self.tool, "call_id": call_id, "decision": self.decision.name(), "by": self.by,
            "elapsed_ms": elapsed,
        })
    }

    /// Uses the approval up for a call. An error when it was not given, or was given for another call.
    pub fn consume(self, tool: &str, arguments: &Map<String, Value>) -> Result<()> {
        let cause = match self.decision {
            ApprovalOutcome::Approved if self.tool == tool && self.arguments == *arguments => {
                return Ok(());
            }
            ApprovalOutcome::Approved => "the approval was given for another call".to_owned(),
            ApprovalOutcome::Expired => {
                format!("nobody approved it within {} s", self.elapsed.as_secs())
            }
            ApprovalOutcome::Denied => self
                .reason
                .unwrap_or_else(|| "the person who was asked said no".to_owned()),
            ApprovalOutcome::Failed => {
                format!(
                    "nobody could be asked: {}",
                    self.reason.as_deref().unwrap_or("no reason given")
                )
            }
        };
        Err(denied(tool, &cause))
    }
}

/// What is asked about, and how.
#[derive(Debug)]
pub struct ApprovalParams<'a> {
    /// The tool.
    pub tool: &'a ToolSpec,
    /// The arguments it is going to get.
    pub arguments: &'a Map<String, Value>,
    /// The verdict that says to ask.
    pub policy_decision: &'a PolicyDecision,
    /// How long to wait.
    pub timeout: Duration,
    /// What must not be shown.
    pub redactor: &'a Redactor,
}

/// Puts a call to those who may approve it, and waits. Fails only if the turn is cancelled.
pub async fn ask(
    turn: &Turn,
    question: ApprovalParams<'_>,
    cancel: &CancellationToken,
) -> Result<Approval> {
    let started = Instant::now();
    let request = request(&question, turn)?;
    let framework = turn.framework();
    let pending = framework
        .approvals()
        .open(&request, started + request.expires);
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
            Some("nothing here asks people".to_owned()),
        ),
        Some(Err(error)) => {
            // The failure of the call says it, too.
            tracing::error!(target: "bub::turn", error = error.message(), "approval.failed");
            (
                ApprovalOutcome::Failed,
                None,
                Some(error.message().to_owned()),
            )
        }
    };
    let (tool, arguments) = (question.tool.name.clone(), question.arguments.clone());
    Ok(Approval {
        decision,
        by,
        reason,
        elapsed: started.elapsed(),
        tool,
        arguments,
    })
}

fn request(question: &ApprovalParams<'_>, turn: &Turn) -> Result<ApprovalRequest> {
    let mut random = [0; 8];
    getrandom::fill(&mut random)
        .map_err(|error| Error::unknown(format!("no random numbers: {error}")))?;
    let id = random.iter().fold(String::new(), |mut id, byte| {
        let _ = write!(id, "{byte:02x}");
        id
    });
    let arguments = question.arguments.iter();
    let arguments = arguments
        .map(|(name, value)| (name.clone(), redacted(question.redactor, value)))
        .collect();
    let policy_decision = question.policy_decision;
    Ok(ApprovalRequest {
        id,
        tool: question.tool.name.clone(),
        arguments,
        sender: turn.sender().clone(),
        session_id: turn.session_id().clone(),
        expires: question.timeout,
        reason: policy_decision
            .reason
            .clone()
            .unwrap_or_else(|| policy_decision.rule.clone()),
    })
}

fn redacted(redactor: &Redactor, value: &Value) -> Value {
    match value {
        Value::String(text) => Value::String(redactor.redact(text).into_owned()),
        Value::Array(items) => items.iter().map(|item| redacted(redactor, item)).collect(),
        Value::Object(map) => {
            let clean = map
                .iter()
                .map(|(name, value)| (name.clone(), redacted(redactor, value)));
            Value::Object(clean.collect())
        }
        other => other.clone(),
    }
}
