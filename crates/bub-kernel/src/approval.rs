//! Approvals: users decide about single tool calls.
//!
//! A tool call that needs approval is put to the hook `request_approval` and, under its id, into the registry
//! [`Approvals`]. The answer is handed to [`Approvals::answer`] by whatever received it: a terminal, a chat, a button. An
//! answer counts once, for that call as it was shown, if it comes in time from the user and chat that the call is for.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde_json::{Map, Value};

use tokio::{sync::oneshot, time::Instant};

use crate::{
    error::{Error, Result},
    ids::SessionId,
    sender::{Role, Sender},
};

/// A tool call that waits for somebody's word.
#[derive(Clone, Debug, PartialEq)]
pub struct ApprovalRequest {
    /// Names the request: random, and answered at most once.
    pub id: String,
    /// The tool.
    pub tool: String,
    /// The arguments the tool would get, without secrets.
    pub arguments: Map<String, Value>,
    /// Whose message led to the call.
    pub sender: Sender,
    /// The session of the turn.
    pub session_id: SessionId,
    /// How long an answer is waited for; after that it counts as a no.
    pub expires: Duration,
    /// Why somebody is asked.
    pub reason: String,
}

/// What was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApprovalAnswer {
    /// The call may be made, once.
    Approved,
    /// It may not, perhaps for a reason.
    Denied(Option<String>),
}

/// The tool calls that wait for approval. A handle: clones are the same registry.
#[derive(Clone, Debug, Default)]
pub struct Approvals(Arc<Mutex<HashMap<String, PendingApproval>>>);

#[derive(Debug)]
struct PendingApproval {
    sender: Sender,
    deadline: Instant,
    to_hook: Option<oneshot::Sender<ApprovalAnswer>>,
    from_user: Option<oneshot::Receiver<ApprovalAnswer>>,
    answered_by: Option<Sender>,
}

impl Approvals {
    /// Accepts a user's answer. It is refused, with the reason, unless the request is pending and the answer comes from
    /// the chat that the call is for, by the same user or an owner.
    pub fn answer(&self, id: &str, by: &Sender, answer: ApprovalAnswer) -> Result<()> {
        let refused = |reason: &str| Err(Error::invalid_input(reason));
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
        // A user without an id cannot be recognized, and a guest's answer allows nothing.
        let is_asker = !by.id.is_empty() && by.id == asker.id && by.role > Role::Guest;
        if !is_asker && by.role != Role::Owner {
            return refused("only the person the request is for, or an owner, can answer it");
        }
        let Some(to_hook) = found.to_hook.take() else {
            return refused("there is no such request; it was answered or has expired");
        };
        found.answered_by = Some(by.clone());
        // The turn may have ended in the meantime; then there is nothing to decide.
        to_hook
            .send(answer)
            .or_else(|_| refused("the request is no longer waited for"))
    }

    /// Waits for a user's answer to a pending request.
    pub async fn wait(&self, id: &str) -> Option<ApprovalAnswer> {
        let answer = self.lock().get_mut(id)?.from_user.take()?;
        answer.await.ok()
    }

    /// Registers a request. It is pending until the guard is dropped.
    pub fn open(&self, request: &ApprovalRequest, deadline: Instant) -> PendingApprovalGuard {
        let (to_hook, from_user) = oneshot::channel();
        let pending = PendingApproval {
            sender: request.sender.clone(),
            deadline,
            to_hook: Some(to_hook),
            from_user: Some(from_user),
            answered_by: None,
        };
        self.lock().insert(request.id.clone(), pending);
        PendingApprovalGuard {
            approvals: self.clone(),
            id: request.id.clone(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, PendingApproval>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A pending request.
#[derive(Debug)]
pub struct PendingApprovalGuard {
    approvals: Approvals,
    id: String,
}

impl PendingApprovalGuard {
    /// The user who answered.
    pub fn answered_by(&self) -> Option<Sender> {
        self.approvals.lock().get(&self.id)?.answered_by.clone()
    }
}

impl Drop for PendingApprovalGuard {
    fn drop(&mut self) {
        self.approvals.lock().remove(&self.id);
    }
}
