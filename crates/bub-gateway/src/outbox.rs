//! Delivers replies in order per chat, with retries. Chats do not wait for each other.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bub_kernel::{
    Channel, DeliveryAttempt, Error, ErrorKind, MessageId, Outbound, ReplyId, ReplyOrigin, Result,
};
use futures_util::FutureExt as _;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::broadcast;
use tracing::{Instrument as _, Span, error_span, field};

use crate::{
    gateway::GatewayInner,
    journal::{JournalRecord, ReplyRecord, now_ms, random_u16},
    reply_scope::{EXPENDABLE_FIELD, REPLY_ROUTE_FIELD},
};

/// Maximum age of an undelivered reply in milliseconds. Older replies are marked as failed.
const MAX_REPLY_AGE_MS: u64 = 24 * 60 * 60 * 1000;
/// Maximum number of delivery attempts. After that, the reply is marked as failed.
const MAX_DELIVERY_ATTEMPTS: u32 = 200;
/// Maximum number of retry triggers that are queued for a waiting delivery.
const TRIGGER_CAPACITY: usize = 64;
/// Timeout for one delivery attempt.
const SEND_TIMEOUT: Duration = Duration::from_mins(2);
/// Delay before the second attempt. It doubles with each attempt.
const INITIAL_BACKOFF: Duration = Duration::from_secs(1);
/// Maximum delay between attempts, unless the platform asks for more.
const MAX_BACKOFF: Duration = Duration::from_mins(10);

/// Key of a queue of replies: the channel, the chat, and the reply route, if any. If a client fetches the reply, the
/// third element is the id of the reply. Replies with different keys do not wait for each other.
type OutboxKey = (String, String, Option<String>);

/// Requests an immediate delivery attempt for a reply, or for all replies of a channel.
#[derive(Clone, Debug)]
enum RetryTrigger {
    Reply(ReplyId),
    Channel(String),
}

/// Queued replies by chat.
#[derive(Debug)]
pub(crate) struct Outbox {
    chats: Mutex<HashMap<OutboxKey, VecDeque<OutboxItem>>>,
    /// Number of chats with a reply that is being sent. Chats that wait for the next delivery attempt are not counted.
    busy: AtomicUsize,
    triggers: broadcast::Sender<RetryTrigger>,
    /// Queued replies whose text the channel has already shown while the answer was streamed.
    shown: Mutex<HashSet<ReplyId>>,
}

/// A queued reply.
#[derive(Debug, Clone)]
pub(crate) struct OutboxItem {
    pub(crate) reply: Arc<ReplyRecord>,
    /// Message for the channel. Its media can be fetched only if this process created the reply.
    pub(crate) outbound: Outbound,
    pub(crate) attempt: u32,
}

impl OutboxItem {
    /// Creates an item for a reply from the journal.
    pub(crate) fn from_record(reply: Arc<ReplyRecord>, attempt: u32) -> Self {
        let mut outbound = Outbound::new(reply.to_envelope());
        if reply.by_tool {
            outbound.origin = ReplyOrigin::Tool;
        }
        Self {
            reply,
            outbound,
            attempt,
        }
    }
}

impl Outbox {
    pub(crate) fn new() -> Self {
        Self {
            chats: Mutex::default(),
            busy: AtomicUsize::default(),
            triggers: broadcast::Sender::new(TRIGGER_CAPACITY),
            shown: Mutex::default(),
        }
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::SeqCst) > 0
    }

    /// Decrements the number of busy chats and notifies waiters if none is left.
    fn end_busy_chat(&self, inner: &GatewayInner) {
        if self.busy.fetch_sub(1, Ordering::SeqCst) == 1 {
            inner.idle.notify_waiters();
        }
    }

    /// Marks a reply whose text the channel has already shown while the answer was streamed. If the gateway stops
    /// before it sends the reply, the next start does not send it either.
    pub(crate) fn mark_shown(&self, id: &ReplyId) {
        self.shown.lock().insert(id.clone());
    }

    /// Records undelivered replies as delivered if the channel has shown them.
    pub(crate) fn settle_shown(inner: &GatewayInner) {
        for id in inner.outbox.shown.lock().drain() {
            inner.journal.append_later(JournalRecord::Delivered { id });
        }
    }

    /// Queues a reply behind the other replies of its chat.
    pub(crate) fn enqueue(inner: &Arc<GatewayInner>, item: OutboxItem) {
        let claimed_id = item.reply.is_claimed.then_some(item.reply.id.as_str());
        let address = claimed_id.or_else(|| item.outbound.str_field(REPLY_ROUTE_FIELD));
        let address = address.map(str::to_owned);
        let chat = (item.reply.channel.clone(), item.reply.chat.clone(), address);
        let mut chats = inner.outbox.chats.lock();
        if let Some(waiting) = chats.get_mut(&chat) {
            waiting.push_back(item);
            return;
        }
        chats.insert(chat.clone(), VecDeque::from([item]));
        drop(chats);
        inner.outbox.busy.fetch_add(1, Ordering::SeqCst);
        tokio::spawn(deliver_chat(Arc::clone(inner), chat));
    }

    /// Retries a queued or failed reply at once.
    pub(crate) async fn retry_reply(inner: &Arc<GatewayInner>, id: &ReplyId) -> Result<()> {
        let undelivered = inner.journal.lock_state().undelivered_reply(id).cloned();
        let undelivered = undelivered.ok_or_else(|| unknown_reply_error(id))?;
        let record = JournalRecord::Retry { id: id.clone() };
        inner.journal.append_with_retries(record).await?;
        if undelivered.is_stuck {
            Self::enqueue(inner, OutboxItem::from_record(undelivered.reply, 0));
        } else {
            inner.outbox.trigger_retry(RetryTrigger::Reply(id.clone()));
        }
        Ok(())
    }

    /// Retries all queued replies of a channel that has started.
    pub(crate) fn retry_channel(&self, name: &str) {
        self.trigger_retry(RetryTrigger::Channel(name.to_owned()));
    }

    fn trigger_retry(&self, retry_trigger: RetryTrigger) {
        // An error means that no delivery is waiting.
        let _ = self.triggers.send(retry_trigger);
    }

    /// Retries the delivery of a message's unclaimed replies. A reply is unclaimed if no client has fetched it yet.
    /// Returns the number of these replies.
    pub(crate) async fn claim_replies(
        inner: &Arc<GatewayInner>,
        inbound: &MessageId,
    ) -> Result<usize> {
        let waiting = unclaimed_replies(inner, |reply| reply.inbound.as_ref() == Some(inbound));
        for id in &waiting {
            Self::retry_reply(inner, id).await?;
        }
        Ok(waiting.len())
    }

    /// Drops expired replies that no client has fetched (unclaimed). No client can fetch them any more, because their
    /// idempotency key has expired as well.
    pub(crate) fn drop_expired_unclaimed(inner: &GatewayInner) {
        for id in unclaimed_replies(inner, is_expired) {
            tracing::warn!(reply_id = %id, "outbox.unclaimed_expired");
            inner.journal.append_later(JournalRecord::Forgotten { id });
        }
    }

    /// Drops a reply.
    pub(crate) async fn drop_reply(inner: &GatewayInner, id: &ReplyId) -> Result<()> {
        if inner.journal.lock_state().undelivered_reply(id).is_none() {
            return Err(unknown_reply_error(id));
        }
        let record = JournalRecord::Forgotten { id: id.clone() };
        inner.journal.append_with_retries(record).await?;
        inner.outbox.trigger_retry(RetryTrigger::Reply(id.clone()));
        Ok(())
    }
}

/// Returns the ids of the unclaimed replies that `is_selected` accepts.
fn unclaimed_replies(
    inner: &GatewayInner,
    is_selected: impl Fn(&ReplyRecord) -> bool,
) -> Vec<ReplyId> {
    let state = inner.journal.lock_state();
    let stuck = state
        .undelivered_replies()
        .filter(|undelivered| undelivered.is_stuck);
    let replies = stuck.map(|undelivered| &undelivered.reply);
    let unclaimed = replies.filter(|reply| reply.is_claimed && is_selected(reply));
    unclaimed.map(|reply| reply.id.clone()).collect()
}

pub(crate) fn unknown_reply_error(id: &str) -> Error {
    Error::not_found(format!(
        "unknown reply `{id}`; run `bub outbox list` to see undelivered replies"
    ))
}

async fn deliver_chat(inner: Arc<GatewayInner>, chat: OutboxKey) {
    while let Some(item) = next_item(&inner, &chat) {
        tokio::select! {
            biased;
            // The journal keeps the reply for the next start.
            () = inner.halt.cancelled() => return,
            () = deliver_in_span(&inner, item) => {}
        }
    }
    inner.outbox.end_busy_chat(&inner);
}

fn next_item(inner: &GatewayInner, chat: &OutboxKey) -> Option<OutboxItem> {
    let mut chats = inner.outbox.chats.lock();
    let item = chats.get_mut(chat)?.pop_front();
    if item.is_none() {
        chats.remove(chat);
    }
    item
}

async fn deliver_in_span(inner: &GatewayInner, item: OutboxItem) {
    let (id, channel) = (&item.reply.id, &item.reply.channel);
    let span = error_span!("delivery", reply_id = %id, %channel, attempt = field::Empty);
    let delivery = deliver_with_retries(inner, item, &span);
    delivery.instrument(span.clone()).await;
}

async fn deliver_with_retries(inner: &GatewayInner, mut item: OutboxItem, span: &Span) {
    let id = item.reply.id.clone();
    loop {
        // A user may have dropped the reply.
        if inner.journal.lock_state().undelivered_reply(&id).is_none() {
            return;
        }
        // Subscribe before the attempt, so that a trigger during the attempt is not lost.
        let triggers = inner.outbox.triggers.subscribe();
        let channel = inner.channel_if_running(&item.reply.channel);
        let outcome = match &channel {
            Some(channel) => {
                item.attempt += 1;
                span.record("attempt", item.attempt);
                item.outbound.attempt = Some(DeliveryAttempt {
                    reply_id: id.clone(),
                    message_id: item.reply.inbound.clone(),
                    number: item.attempt,
                });
                send_once(&**channel, &item.outbound).await
            }
            // This does not count as an attempt: the reply is sent when the channel has started.
            None => Err(temporary_error(format!(
                "channel `{}` is not running; see `bub status`",
                item.reply.channel
            ))),
        };
        let Err(error) = outcome else {
            inner.outbox.shown.lock().remove(&id);
            inner.journal.append_later(JournalRecord::Delivered { id });
            return;
        };
        let text = inner.redact(error.message());
        let is_unclaimed = error.kind() == ErrorKind::Unclaimed;
        if channel.is_some() && !is_unclaimed {
            tracing::warn!(error = %text, "outbox.attempt_failed");
            inner.set_channel_error(&item.reply.channel, &text);
        }
        inner.journal.append_later(JournalRecord::Attempt {
            id: id.clone(),
            attempt: item.attempt,
            error: text.clone(),
        });
        // Try an old reply at least once: the machine may have been off for a weekend.
        let is_too_old = channel.is_some() && is_expired(&item.reply);
        if is_permanent_error(&error) || is_too_old || item.attempt >= MAX_DELIVERY_ATTEMPTS {
            if !is_unclaimed {
                tracing::error!(hint = "run `bub outbox list`", "outbox.undeliverable");
            }
            let record = if item.outbound.field(EXPENDABLE_FIELD) == Some(&Value::Bool(true)) {
                JournalRecord::Forgotten { id }
            } else {
                JournalRecord::Undeliverable { id, error: text }
            };
            inner.journal.append_later(record);
            if is_unclaimed {
                Outbox::drop_expired_unclaimed(inner);
            }
            return;
        }
        inner.outbox.end_busy_chat(inner);
        tokio::select! {
            () = tokio::time::sleep(retry_delay(item.attempt, &error)) => {}
            () = wait_for_trigger(triggers, &item.reply) => {}
        }
        inner.outbox.busy.fetch_add(1, Ordering::SeqCst);
    }
}

/// Waits for a trigger that requests a retry of this reply.
async fn wait_for_trigger(mut triggers: broadcast::Receiver<RetryTrigger>, reply: &ReplyRecord) {
    loop {
        match triggers.recv().await {
            Ok(RetryTrigger::Reply(id)) if id != reply.id => {}
            Ok(RetryTrigger::Channel(name)) if name != reply.channel => {}
            Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => return,
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }
}

fn is_expired(reply: &ReplyRecord) -> bool {
    now_ms().saturating_sub(reply.at) > MAX_REPLY_AGE_MS
}

async fn send_once(channel: &dyn Channel, outbound: &Outbound) -> Result<()> {
    let send = AssertUnwindSafe(async { channel.send(outbound).await }).catch_unwind();
    match tokio::time::timeout(SEND_TIMEOUT, send).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(_)) => Err(temporary_error(
            "channel panicked while it sent the reply; see the log for the panic".to_owned(),
        )),
        Err(_) => Err(temporary_error(format!(
            "reply not sent within {} s: the channel timed out",
            SEND_TIMEOUT.as_secs()
        ))),
    }
}

/// Returns whether a delivery error is permanent, so that retries are pointless.
pub fn is_permanent_error(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::InvalidInput | ErrorKind::NotFound | ErrorKind::Config | ErrorKind::Unclaimed
    )
}

fn temporary_error(reason: String) -> Error {
    Error::new(ErrorKind::Temporary, reason)
}

/// Returns the delay before the next attempt: exponential, with jitter, and at least as long as the platform asks for.
/// A crate for retries would not fit: an attempt can also be triggered, and its number is in the journal.
fn retry_delay(attempt: u32, error: &Error) -> Duration {
    let backoff = INITIAL_BACKOFF
        .saturating_mul(1 << attempt.saturating_sub(1).min(16))
        .min(MAX_BACKOFF);
    let jitter = backoff.mul_f64(f64::from(random_u16()) / f64::from(u16::MAX) / 4.0);
    error.retry_after().unwrap_or_default().max(backoff) + jitter
}
