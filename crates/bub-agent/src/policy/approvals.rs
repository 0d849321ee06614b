//! Calls that wait for a person's word.
//!
//! A call is put to the `request_approval` hooks and, under its id, into a registry. Whoever hears the person hands the
//! answer to [`Approvals::answer`], from wherever that is; the builtin hook waits for it. An answer counts once, for that
//! call as it was shown, when it comes in time, from the person and chat that the call is for. All else is a no.

use std::{
    collections::HashMap,
    fmt::Write,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bub_kernel::{
    ApprovalAnswer, ApprovalRequest, CancellationToken, Error, ErrorKind, Result, Role, Sender,
    State, ToolSpec,
    hooks::{HookSet, args, point},
};
use bub_settings::Redactor;
use serde_json::{Map, Value, json};
use tokio::{sync::oneshot, time::Instant};

use super::{Verdict, denied};

/// The requests that wait. A clone is the same registry.
#[derive(Clone, Debug, Default)]
pub struct Approvals(Arc<Mutex<HashMap<String, Pending>>>);

#[derive(Debug)]
struct Pending {
    sender: Sender,
    deadline: Instant,
    to_hook: Option<oneshot::Sender<ApprovalAnswer>>,
    from_person: Option<oneshot::Receiver<ApprovalAnswer>>,
    by: Option<Sender>,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Somebody said yes.
    Approved,
    /// Somebody said no.
    Denied,
    /// Nobody said anything in time.
    Expired,
    /// Nobody could be asked.
    Failed,
}

impl Decision {
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
    pub decision: Decision,
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
    pub fn spend(self, tool: &str, arguments: &Map<String, Value>) -> Result<()> {
        let why = match self.decision {
            Decision::Approved if self.tool == tool && self.arguments == *arguments => {
                return Ok(());
            }
            Decision::Approved => "the approval was given for another call".to_owned(),
            Decision::Expired => format!("nobody approved it within {} s", self.elapsed.as_secs()),
            Decision::Denied => self
                .reason
                .unwrap_or_else(|| "the person who was asked said no".to_owned()),
            Decision::Failed => {
                format!(
                    "nobody could be asked: {}",
                    self.reason.as_deref().unwrap_or("no reason given")
                )
            }
        };
        Err(denied(tool, &why))
    }
}

/// What is asked about, and how.
#[derive(Debug)]
pub struct Question<'a> {
    /// The tool.
    pub tool: &'a ToolSpec,
    /// The arguments it is going to get.
    pub arguments: &'a Map<String, Value>,
    /// The verdict that says to ask.
    pub verdict: &'a Verdict,
    /// How long to wait.
    pub timeout: Duration,
    /// What must not be shown.
    pub redactor: &'a Redactor,
}

impl Approvals {
    /// Puts a call to whoever may approve it, and waits. An error only when the turn is cancelled.
    pub async fn ask(
        &self,
        hooks: &HookSet,
        question: Question<'_>,
        state: &State,
        cancel: &CancellationToken,
    ) -> Result<Approval> {
        let started = Instant::now();
        let request = request(&question, state)?;
        let waiting = self.open(&request, started + request.expires);
        let args = args::RequestApproval {
            request: &request,
            state,
        };
        let answer = tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(Error::new(ErrorKind::Cancelled, "the turn was cancelled")),
            () = tokio::time::sleep(request.expires) => None,
            answer = hooks.call_first::<point::RequestApproval>(args) => Some(answer),
        };
        let by = waiting.answered_by();
        let by = by.map_or_else(|| "plugin".to_owned(), |person| person.to_string());
        let (decision, by, reason) = match answer {
            None => (Decision::Expired, None, None),
            Some(Ok(Some(ApprovalAnswer::Approved))) => (Decision::Approved, Some(by), None),
            Some(Ok(Some(ApprovalAnswer::Denied(reason)))) => (Decision::Denied, Some(by), reason),
            Some(Ok(None)) => (
                Decision::Failed,
                None,
                Some("nothing here asks people".to_owned()),
            ),
            Some(Err(error)) => {
                // The failure of the call says it, too.
                let why = error.message();
                tracing::error!(target: "bub::turn", "approval.failed tool={} error={why}", request.tool);
                (Decision::Failed, None, Some(error.message().to_owned()))
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

    /// Takes a person's answer. It is refused, with the reason, unless the request waits and the answer comes from the
    /// chat the call is for, by the same person or an owner.
    pub fn answer(&self, id: &str, by: &Sender, answer: ApprovalAnswer) -> Result<()> {
        let refused = |why: &str| Err(Error::invalid_input(why));
        let mut pending = self.lock();
        let Some(found) = pending
            .get_mut(id)
            .filter(|found| Instant::now() < found.deadline)
        else {
            return refused("there is no such request; it was answered or has expired");
        };
        let asker = &found.sender;
        if (&by.channel, &by.chat_id) != (&asker.channel, &asker.chat_id) {
            return refused("the request belongs to another chat");
        }
        // Who nobody vouches for cannot be recognised, and a guest's word allows nothing.
        let is_asker = !by.id.is_empty() && by.id == asker.id && by.role > Role::Guest;
        if !is_asker && by.role != Role::Owner {
            return refused("only the person the request is for, or an owner, can answer it");
        }
        let Some(to_hook) = found.to_hook.take() else {
            return refused("there is no such request; it was answered or has expired");
        };
        found.by = Some(by.clone());
        // Whoever waited may have gone; then there is nothing to decide any more.
        to_hook
            .send(answer)
            .or_else(|_| refused("the request is no longer waited for"))
    }

    /// Waits for a person's answer. What the builtin `request_approval` does.
    pub async fn wait(&self, id: &str) -> Option<ApprovalAnswer> {
        let answer = self.lock().get_mut(id)?.from_person.take()?;
        answer.await.ok()
    }

    fn open(&self, request: &ApprovalRequest, deadline: Instant) -> Waiting<'_> {
        let (to_hook, from_person) = oneshot::channel();
        let (to_hook, from_person) = (Some(to_hook), Some(from_person));
        let pending = Pending {
            sender: request.sender.clone(),
            deadline,
            to_hook,
            from_person,
            by: None,
        };
        self.lock().insert(request.id.clone(), pending);
        Waiting {
            approvals: self,
            id: request.id.clone(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Pending>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request in the registry, for as long as it is waited for.
struct Waiting<'a> {
    approvals: &'a Approvals,
    id: String,
}

impl Waiting<'_> {
    fn answered_by(&self) -> Option<Sender> {
        self.approvals.lock().get(&self.id)?.by.clone()
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.approvals.lock().remove(&self.id);
    }
}

fn request(question: &Question<'_>, state: &State) -> Result<ApprovalRequest> {
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
    let verdict = question.verdict;
    Ok(ApprovalRequest {
        id,
        tool: question.tool.name.clone(),
        arguments,
        sender: Sender::clone(&state.sender()),
        session_id: state.get_str("session_id").unwrap_or_default(),
        expires: question.timeout,
        reason: verdict
            .reason
            .clone()
            .unwrap_or_else(|| verdict.rule.clone()),
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
