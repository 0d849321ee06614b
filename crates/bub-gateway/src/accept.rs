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
    journal::{AcceptedMessage, JournalRecord, encode_envelope, now_ms},
    lane::{self, Arrival, Lanes, QueueSlot, QueuedMessage, turn::TURN_FAILED_TEXT},
    outbox::Outbox,
    reply_scope::ReplyScope,
    router,
};

/// How long a message waits for capacity before it is rejected.
const QUEUE_WAIT_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay after which a sender may retry a message that was rejected for lack of capacity.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Number of `,quit` commands that a session accepts beyond its limit, because they free capacity.
const QUIT_CAPACITY: usize = 16;

/// Returns the error for a message that the gateway cannot accept now. The sender may retry it.
pub(crate) fn capacity_error(reason: impl Into<String>) -> Error {
    Error::new(ErrorKind::Temporary, reason).with_retry_after(RETRY_DELAY)
}

impl GatewayInner {
    /// Accepts a message and returns once the message is in its lane. Fails if the gateway rejects the message.
    ///
    /// The work continues if the returned future is dropped, because a message in the journal must reach its lane.
    pub(crate) async fn accept_message(self: Arc<Self>, inbound: Inbound) -> Result<()> {
        if self.drain.is_cancelled() {
            return Err(capacity_error(
                "message rejected: bub is stopping; send it again later",
            ));
        }
        if !self.is_open.load(Ordering::Acquire) {
            return Err(capacity_error(
                "message rejected: the gateway is not running; send it again later",
            ));
        }
        let accepting = async move { self.accept_in_task(inbound).await };
        let accepted = tokio::spawn(accepting.in_current_span()).await;
        accepted.unwrap_or_else(|_| {
            Err(Error::unknown(
                "cannot accept the message: internal error (panic); see the log for the panic",
            ))
        })
    }

    async fn accept_in_task(self: &Arc<Self>, inbound: Inbound) -> Result<()> {
        let name = inbound.message.channel().unwrap_or_default().into_owned();
        let entry = self.channels.get(&name);
        let Some(entry) = entry.or_else(|| self.channels.get(self.catch_all_channel()?)) else {
            tracing::warn!(channel = %name, "gateway.unknown_channel");
            return Err(Error::invalid_input(format!(
                "unknown channel `{name}`: the gateway does not run it; add it to `enabled_channels` and restart the gateway"
            )));
        };
        if let Some((id, answer)) = control::parse_approval(&inbound.message) {
            return control::answer_approval(self, &inbound, &id, answer).await;
        }
        if let Some(answer) = &inbound.answer {
            return control::deliver_answer(self, &inbound, answer).await;
        }
        let id = self.journal.next_message_id();
        let arrival = Lanes::announce_message(self, &id, lane::chat_key(&inbound.message));
        let permit = self.reserve_capacity(&name, inbound.is_quit()).await?;
        let receipt = inbound.receipt.clone();
        if !self.journal_message(&name, &id, &inbound).await? {
            return Ok(());
        }
        let (inbound, slot) = match self.resolve_queue_slot(&name, &arrival, inbound).await {
            Ok(resolved) => resolved,
            Err(error) => {
                let dropped = JournalRecord::Dropped {
                    ids: vec![id],
                    reason: self.redact(error.message()),
                    is_rejected: true,
                };
                // Wait for the write, because the sender may send the message again as soon as it gets the error. If
                // the record cannot be written, the next start processes the message.
                let _ = self.journal.append(dropped).await;
                return Err(error);
            }
        };
        if let Some(receipt) = receipt {
            receipt.accept(&id, false);
        }
        entry.accepted.fetch_add(1, Ordering::Relaxed);
        let session_id = inbound.session_id().cloned().unwrap_or_default();
        let item = QueuedMessage {
            permit,
            slot: Some(slot),
            ..QueuedMessage::new(id, inbound)
        };
        arrival.push_to_lane(&session_id, item);
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
        let key = receipt.and_then(|receipt| receipt.idempotency_key());
        let key = key.map(|key| format!("{channel}:{key}"));
        if let Some(key) = &key
            && let Some(owner) = self.reserve_key(key, id).await?
        {
            if let Some(receipt) = receipt {
                self.answer_duplicate(receipt, &owner).await?;
            }
            return Ok(false);
        }
        // The session is not resolved yet. If the turn runs in another session, the record `Started` names that
        // session.
        let session = inbound.session_id().cloned();
        let session = session.unwrap_or_else(|| SessionId::from(inbound.message.chat_session_id()));
        let accepted = AcceptedMessage {
            id: id.clone(),
            at: now_ms(),
            session,
            key: key.clone(),
            sender: inbound
                .authenticated_sender()
                .map(|sender| (**sender).clone()),
            untrusted: inbound.untrusted.clone(),
            message: encode_envelope(&inbound.message)?,
        };
        if let Err(error) = self.journal.append(JournalRecord::Accepted(accepted)).await {
            if let Some(key) = key {
                self.journal.lock_state().release_key(&key, id);
            }
            self.set_channel_error(channel, error.message());
            return Err(error);
        }
        Ok(true)
    }

    /// Resolves the session of a message and reserves a slot in the queue of that session.
    async fn resolve_queue_slot(
        self: &Arc<Self>,
        channel: &str,
        arrival: &Arrival,
        mut inbound: Inbound,
    ) -> Result<(Inbound, QueueSlot)> {
        let resolving = async {
            self.framework.resolve_session(&mut inbound).await?;
            if !inbound.is_quit() {
                // The messages of a chat are answered in the order of their arrival.
                arrival.wait_for_earlier().await;
            }
            Ok(())
        };
        let resolved = tokio::select! {
            biased;
            () = self.refuse.cancelled() => {
                tracing::warn!(%channel, "gateway.message_refused");
                return Err(capacity_error("message rejected: bub is stopping; send it again later"));
            }
            resolved = resolving => resolved,
        };
        if let Err(error) = resolved {
            return Err(self.reject_unresolved(arrival.id(), inbound, error).await);
        }
        let limit = self.options.session_queue;
        let extra = if inbound.is_quit() { QUIT_CAPACITY } else { 0 };
        let session_id = inbound.session_id().cloned().unwrap_or_default();
        let slot = Lanes::reserve_slot(self, &session_id, limit.saturating_add(extra));
        let slot = slot.ok_or_else(|| {
            capacity_error(format!(
                "session queue is full: {limit} messages are queued; try again later"
            ))
            .with_kind(ErrorKind::SessionFull)
        })?;
        Ok((inbound, slot))
    }

    /// Rejects a message whose session cannot be resolved. Records the failure and notifies the sender.
    async fn reject_unresolved(
        self: &Arc<Self>,
        id: &MessageId,
        mut inbound: Inbound,
        error: Error,
    ) -> Error {
        // If the journal cannot be written, a notice cannot be sent either.
        if let Err(journal_error) = self.journal.append(JournalRecord::Mark).await {
            return journal_error;
        }
        let scope = ReplyScope::new(self, id.clone(), &inbound.message).without_claim_route();
        let scope = Arc::new(scope);
        inbound.reply_target = Some(Arc::clone(&scope) as _);
        let turn = self.framework.reject_inbound(inbound, &error).await;
        if error.kind() == ErrorKind::Cancelled {
            // The sender cancelled the message, so it needs no notice.
            return error;
        }
        if router::report_failure(self, turn.session_id(), &scope, TURN_FAILED_TEXT).await {
            error.mark_reported()
        } else {
            error
        }
    }

    /// Reserves an idempotency key for a message. Returns the id of the message that already has the key, if any.
    async fn reserve_key(&self, key: &str, id: &MessageId) -> Result<Option<MessageId>> {
        loop {
            let owner = self.journal.lock_state().reserve_key(key, id, now_ms());
            let Some(owner) = owner else {
                return Ok(None);
            };
            // The message that has the key may still be rejected.
            self.wait_until(|inner| !inner.lanes.is_arriving(&owner))
                .await;
            self.journal.append(JournalRecord::Mark).await?;
            if self.journal.lock_state().key_owner(key) == Some(&owner) {
                return Ok(Some(owner));
            }
        }
    }

    /// Completes the receipt of a message whose idempotency key belongs to the earlier message `owner`. The receipt
    /// gets the id of the earlier message. If the earlier message is finished, the receipt is settled. Otherwise the
    /// gateway sends the replies again that no client has fetched.
    async fn answer_duplicate(
        self: &Arc<Self>,
        receipt: &InboundReceipt,
        owner: &MessageId,
    ) -> Result<()> {
        if self.journal.lock_state().is_finished(owner) {
            receipt.settle(MessageOutcome::Done {
                replies: 0,
                report: None,
            });
        } else {
            receipt.set_unclaimed_replies(Outbox::claim_replies(self, owner).await?);
        }
        receipt.accept(owner, true);
        Ok(())
    }

    /// Acquires the permit for an unfinished message. Fails if a limit of the gateway is reached. A `,quit` needs no
    /// permit, because it frees capacity.
    async fn reserve_capacity(
        self: &Arc<Self>,
        channel: &str,
        is_quit: bool,
    ) -> Result<Option<OwnedSemaphorePermit>> {
        if is_quit {
            return Ok(None);
        }
        let undelivered = self.journal.lock_state().undelivered_count(channel);
        if undelivered >= self.options.queue {
            return Err(capacity_error(format!(
                "message rejected: channel `{channel}` has {undelivered} undelivered replies; see `bub outbox list`, or raise `gateway.max_unfinished`"
            )));
        }
        let acquiring = Arc::clone(&self.room).acquire_owned();
        match tokio::time::timeout(QUEUE_WAIT_TIMEOUT, acquiring).await {
            Ok(Ok(permit)) => Ok(Some(permit)),
            _ => Err(capacity_error(
                "gateway queue is full: too many messages are unfinished; try again later, or raise `gateway.max_unfinished`",
            )),
        }
    }
}
