//! Accepts messages: writes them to the journal, resolves their session, and puts them into a lane.
//!
//! A message is in the journal before any hook runs, so that it survives a crash in `resolve_session`. If it is rejected
//! afterwards, the journal forgets it and its idempotency key, so that the sender can send it again.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bub_kernel::{
    Error, ErrorKind, Inbound, InboundReceipt, MessageId, MessageOutcome, Result, SessionId,
};
use tokio::sync::OwnedSemaphorePermit;
use tracing::Instrument as _;

use crate::{
    control,
    gateway::GatewayInner,
    journal::{AcceptedMessage, JournalRecord, StoredSender, lock, now, raw},
    lane::{self, Lanes, QueueSlot, QueuedMessage, turn::TURN_FAILED_TEXT},
    outbox::Outbox,
    reply_scope::ReplyScope,
    router,
};

/// How long a message waits for a free place in the queue before it is rejected.
const QUEUE_WAIT_TIMEOUT: Duration = Duration::from_secs(5);
/// When a sender may retry a message that was rejected for lack of capacity.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Number of `,quit` commands that a session accepts beyond its limit, because they free capacity.
const QUIT_CAPACITY: usize = 16;

/// Returns the error for a message that the gateway cannot accept now. The sender may retry it.
pub(crate) fn capacity_error(reason: impl Into<String>) -> Error {
    Error::new(ErrorKind::Temporary, reason).with_retry_after(RETRY_DELAY)
}

impl GatewayInner {
    /// Accepts a message. Returns when the message is in its lane, or the error if it was rejected.
    ///
    /// The work continues if the returned future is dropped, because a message in the journal must reach its lane.
    pub(crate) async fn accept(self: Arc<Self>, inbound: Inbound) -> Result<()> {
        if self.drain.is_cancelled() {
            return Err(capacity_error("the gateway is stopping"));
        }
        if !self.is_open.load(Ordering::Acquire) {
            return Err(capacity_error("the gateway is not running"));
        }
        let accepting = async move { self.accept_message(inbound).await };
        let accepted = tokio::spawn(accepting.in_current_span()).await;
        accepted.unwrap_or_else(|error| {
            Err(Error::unknown(format!(
                "cannot accept the message: {error}"
            )))
        })
    }

    async fn accept_message(self: &Arc<Self>, inbound: Inbound) -> Result<()> {
        let name = inbound.message.channel().unwrap_or_default().into_owned();
        let entry = self.channels.get(&name);
        let Some(entry) = entry.or_else(|| self.channels.get(self.catch_all()?)) else {
            tracing::warn!(channel = %name, "gateway.unknown_channel");
            return Err(Error::invalid_input(format!("unknown channel `{name}`")));
        };
        if let Some((id, answer)) = control::parse_approval(&inbound.message) {
            return control::answer_approval(self, &inbound, &id, answer).await;
        }
        let id = self.journal.next_message_id();
        let arrival = Lanes::announce(self, &id, lane::chat_key(&inbound.message));
        let permit = self.reserve_capacity(&name, inbound.is_quit()).await?;
        let receipt = inbound.receipt.clone();
        if !self.journal_message(&name, &id, &inbound).await? {
            return Ok(());
        }
        let (inbound, slot) = match self.resolve(&name, &id, inbound).await {
            Ok(resolved) => resolved,
            Err(error) => {
                self.journal.post(JournalRecord::Dropped {
                    ids: vec![id],
                    reason: self.redact(error.message()),
                    is_rejected: true,
                });
                return Err(error);
            }
        };
        if let Some(receipt) = receipt {
            receipt.accept(&id, false);
        }
        lock(&entry.state).accepted += 1;
        let session_id = inbound.session_id().cloned().unwrap_or_default();
        let item = QueuedMessage {
            permit,
            slot: Some(slot),
            ..QueuedMessage::new(id, inbound)
        };
        arrival.push(&session_id, item);
        Ok(())
    }

    /// Writes a message to the journal. Returns `false` if a message with the same idempotency key was accepted before.
    async fn journal_message(
        self: &Arc<Self>,
        channel: &str,
        id: &MessageId,
        inbound: &Inbound,
    ) -> Result<bool> {
        let receipt = inbound.receipt.as_ref();
        let key = receipt.and_then(|receipt| receipt.key());
        let key = key.map(|key| format!("{channel}:{key}"));
        if let Some(key) = &key
            && let Some(owner) = self.reserve_key(key, id).await?
        {
            if let Some(receipt) = receipt {
                self.answer_duplicate(receipt, &owner).await?;
            }
            return Ok(false);
        }
        // The session is not resolved yet. A turn in another session records it in the journal.
        let session = inbound.session_id().cloned();
        let session = session.unwrap_or_else(|| SessionId::from(inbound.message.chat_session()));
        let accepted = AcceptedMessage {
            id: id.clone(),
            at: now(),
            session,
            key: key.clone(),
            sender: inbound
                .known_sender()
                .map(|sender| StoredSender::new(sender)),
            message: raw(&inbound.message)?,
        };
        if let Err(error) = self.journal.append(JournalRecord::Accepted(accepted)).await {
            if let Some(key) = key {
                self.journal.live().release(&key, id);
            }
            self.note_error(channel, error.message());
            return Err(error);
        }
        Ok(true)
    }

    /// Resolves the session of a message and reserves a slot in its queue.
    async fn resolve(
        self: &Arc<Self>,
        channel: &str,
        id: &MessageId,
        mut inbound: Inbound,
    ) -> Result<(Inbound, QueueSlot)> {
        let resolved = tokio::select! {
            biased;
            () = self.refuse.cancelled() => {
                tracing::warn!(%channel, "gateway.message_refused");
                return Err(capacity_error("the gateway is stopping"));
            }
            resolved = self.framework.resolve_session(&mut inbound) => resolved,
        };
        if let Err(error) = resolved {
            return Err(self.reject(id, inbound, error).await);
        }
        let limit = self.options.session_queue;
        let extra = if inbound.is_quit() { QUIT_CAPACITY } else { 0 };
        let session_id = inbound.session_id().cloned().unwrap_or_default();
        let slot = Lanes::reserve(self, &session_id, limit.saturating_add(extra));
        let slot = slot.ok_or_else(|| {
            capacity_error(format!(
                "this session already has {limit} queued messages; try again later"
            ))
            .with_kind(ErrorKind::SessionFull)
        })?;
        Ok((inbound, slot))
    }

    /// Rejects a message whose session cannot be resolved. Records the failure and notifies the sender.
    async fn reject(self: &Arc<Self>, id: &MessageId, mut inbound: Inbound, error: Error) -> Error {
        let scope = ReplyScope::new(self, id.clone(), &inbound.message).without_claim();
        let scope = Arc::new(scope);
        inbound.reply_target = Some(Arc::clone(&scope) as _);
        let turn = self.framework.reject_inbound(inbound, &error).await;
        if error.kind() == ErrorKind::Cancelled {
            // The sender cancelled the message, so it needs no notice.
            return error;
        }
        if router::report_failure(self, turn.session_id(), &scope, TURN_FAILED_TEXT).await {
            error.reported()
        } else {
            error
        }
    }

    /// Reserves an idempotency key for a message. Returns the message that already has it, if any.
    async fn reserve_key(&self, key: &str, id: &MessageId) -> Result<Option<MessageId>> {
        loop {
            let owner = self.journal.live().reserve(key, id, now());
            let Some(owner) = owner else {
                return Ok(None);
            };
            // The first message may still be rejected.
            self.idle_when(|inner| !inner.lanes.is_arriving(&owner))
                .await;
            self.journal.append(JournalRecord::Mark).await?;
            if self.journal.live().owner(key) == Some(&owner) {
                return Ok(Some(owner));
            }
        }
    }

    /// Puts the id of the first message with a key on the receipt of a duplicate.
    async fn answer_duplicate(
        self: &Arc<Self>,
        receipt: &InboundReceipt,
        owner: &MessageId,
    ) -> Result<()> {
        if self.journal.live().is_finished(owner) {
            receipt.settle(MessageOutcome::Done {
                replies: 0,
                report: None,
            });
        } else {
            receipt.set_unclaimed_replies(Outbox::claim(self, owner).await?);
        }
        receipt.accept(owner, true);
        Ok(())
    }

    /// Reserves a place for a message. Fails if a limit of the gateway is reached. A `,quit` needs no place, because it
    /// frees capacity.
    async fn reserve_capacity(
        self: &Arc<Self>,
        channel: &str,
        is_quit: bool,
    ) -> Result<Option<OwnedSemaphorePermit>> {
        if is_quit {
            return Ok(None);
        }
        let undelivered = self.journal.live().undelivered(channel);
        if undelivered >= self.options.queue {
            return Err(capacity_error(format!(
                "the channel has {undelivered} undelivered replies; run `bub outbox list`"
            )));
        }
        let acquiring = Arc::clone(&self.room).acquire_owned();
        match tokio::time::timeout(QUEUE_WAIT_TIMEOUT, acquiring).await {
            Ok(Ok(permit)) => Ok(Some(permit)),
            _ => Err(capacity_error(
                "too many messages are queued; try again later",
            )),
        }
    }
}
