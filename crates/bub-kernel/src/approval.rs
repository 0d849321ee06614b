//! Approvals: users decide about individual tool calls.
//!
//! A tool call that needs approval is passed to the hook `request_approval` and registered in [`Approvals`] under an
//! id. The component that receives the user's answer (a terminal, a chat, a button) passes it to
//! [`Approvals::submit_answer`]. An answer is valid once, for that call with the arguments that were shown. It must
//! arrive before the request expires, from the chat of the call, and from the call's user or an owner.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::{sync::oneshot, time::Instant};

use crate::{
    error::{Error, Result},
    ids::SessionId,
    sender::{Role, Sender},
};

/// A tool call that is waiting for a user's decision.
#[derive(Clone, Debug, PartialEq)]
pub struct ApprovalRequest {
    /// Random id of the request. A request is answered at most once.
    pub id: String,
    /// Name of the tool.
    pub tool: String,
    /// The arguments of the call, with secrets redacted.
    pub arguments: Map<String, Value>,
    /// The sender of the message that led to the call.
    pub sender: Sender,
    /// The session of the turn.
    pub session_id: SessionId,
    /// How long to wait for an answer. Without an answer, the call is denied.
    pub expires: Duration,
    /// Why the call needs approval.
    pub reason: String,
}

/// A user's answer to an approval request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApprovalAnswer {
    /// The call is allowed, once.
    Approved,
    /// The call is denied, optionally with a reason.
    Denied(Option<String>),
}

/// The pending approval requests. Cloning is cheap, and clones share one registry.
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
    /// Accepts the answer of the user `by` and passes it to the waiting tool call.
    ///
    /// # Errors
    ///
    /// Fails if the request is not pending or belongs to another chat. Also fails if `by` is neither the user of the
    /// call nor an owner.
    pub fn submit_answer(&self, id: &str, by: &Sender, answer: ApprovalAnswer) -> Result<()> {
        const NOT_FOUND: &str =
            "approval request not found: it was already answered or has expired";
        let invalid = |reason: &str| Err(Error::invalid_input(reason));
        let mut pending = self.0.lock();
        let request = pending.get_mut(id);
        let Some(request) = request.filter(|request| Instant::now() < request.deadline) else {
            return invalid(NOT_FOUND);
        };
        let asker = &request.sender;
        if (&by.channel, &by.chat_id) != (&asker.channel, &asker.chat_id) {
            return invalid("approval request belongs to another chat: answer it there");
        }
        // A sender without an id cannot be identified, and a guest cannot approve anything.
        let is_asker = !by.id.is_empty() && by.id == asker.id && by.role > Role::Guest;
        if !is_asker && by.role != Role::Owner {
            return invalid(
                "approval request is for another user: only that user or an owner can answer it",
            );
        }
        let Some(to_hook) = request.to_hook.take() else {
            return invalid(NOT_FOUND);
        };
        request.answered_by = Some(by.clone());
        // If the turn has ended in the meantime, the receiver is gone.
        to_hook
            .send(answer)
            .or_else(|_| invalid("approval request is no longer pending: its turn has ended"))
    }

    /// Waits for a user's answer to a pending request. Returns `None` if the request is unknown, is already being
    /// waited for, or ends without an answer.
    pub async fn wait_for_answer(&self, id: &str) -> Option<ApprovalAnswer> {
        let answer = self.0.lock().get_mut(id)?.from_user.take()?;
        answer.await.ok()
    }

    /// Registers a request. It stays pending until the guard is dropped.
    pub fn register(&self, request: &ApprovalRequest, deadline: Instant) -> PendingApprovalGuard {
        let (to_hook, from_user) = oneshot::channel();
        let pending = PendingApproval {
            sender: request.sender.clone(),
            deadline,
            to_hook: Some(to_hook),
            from_user: Some(from_user),
            answered_by: None,
        };
        self.0.lock().insert(request.id.clone(), pending);
        PendingApprovalGuard {
            approvals: self.clone(),
            id: request.id.clone(),
        }
    }
}

/// A guard that keeps an approval request pending. Dropping it removes the request.
#[derive(Debug)]
pub struct PendingApprovalGuard {
    approvals: Approvals,
    id: String,
}

impl PendingApprovalGuard {
    /// Returns the user who answered the request, if any.
    pub fn answered_by(&self) -> Option<Sender> {
        self.approvals.0.lock().get(&self.id)?.answered_by.clone()
    }
}

impl Drop for PendingApprovalGuard {
    fn drop(&mut self) {
        self.approvals.0.lock().remove(&self.id);
    }
}
