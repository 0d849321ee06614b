//! Delivers replies in order per chat, with retries. Chats do not wait for each other.

use std::{
    collections::{HashMap, VecDeque},
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bub_kernel::{
    Channel, DeliveryAttempt, Error, ErrorKind, MessageId, Outbound, ReplyId, ReplyOrigin, Result,
};
use futures_util::FutureExt as _;
use tokio::sync::broadcast;
use tracing::{Instrument as _, Span, error_span, field};

use crate::{
    gateway::GatewayInner,
    journal::{JournalRecord, ReplyRecord, lock, now, random},
    reply_scope::REPLY_ROUTE_FIELD,
};

/// Maximum age of an undelivered reply in milliseconds. Older replies are marked as failed.
const MAX_REPLY_AGE_MS: u64 = 24 * 60 * 60 * 1000;
/// Maximum number of delivery attempts. After that, the reply is marked as failed.
const MAX_DELIVERY_ATTEMPTS: u32 = 200;
/// Capacity of the channel for retry triggers.
const TRIGGER_CAPACITY: usize = 64;
/// Timeout for one delivery attempt.
const SEND_TIMEOUT: Duration = Duration::from_mins(2);
/// Delay before the second attempt. It doubles with each attempt.
const INITIAL_BACKOFF: Duration = Duration::from_secs(1);
/// Maximum delay between attempts, unless the platform asks for more.
const MAX_BACKOFF: Duration = Duration::from_mins(10);

/// Queue of a reply: the channel, the chat, and the reply route or claimed id, if any. Replies with different routes do
/// not wait for each other.
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
    /// Number of chats that are sending, not counting those that wait for the next attempt.
    busy: AtomicUsize,
    triggers: broadcast::Sender<RetryTrigger>,
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
    pub(crate) fn stored(reply: Arc<ReplyRecord>, attempt: u32) -> Self {
        let outbound = Outbound {
            message: reply.envelope(),
            origin: if reply.by_tool {
                ReplyOrigin::Tool
            } else {
                ReplyOrigin::Turn
            },
            attempt: None,
        };
        Self {
            reply,
            outbound,
            attempt,
        }
    }
}

impl Default for Outbox {
    fn default() -> Self {
        Self {
            chats: Mutex::default(),
            busy: AtomicUsize::default(),
            triggers: broadcast::Sender::new(TRIGGER_CAPACITY),
        }
    }
}

impl Outbox {
    pub(crate) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::SeqCst) > 0
    }

    /// Decrements the number of busy chats.
    fn set_idle(&self, inner: &GatewayInner) {
        if self.busy.fetch_sub(1, Ordering::SeqCst) == 1 {
            inner.idle.notify_waiters();
        }
    }

    /// Queues a reply behind the other replies of its chat.
    pub(crate) fn send(inner: &Arc<GatewayInner>, item: OutboxItem) {
        let claimed_id = item.reply.is_claimed.then_some(item.reply.id.as_str());
        let address = claimed_id.or_else(|| item.outbound.str_field(REPLY_ROUTE_FIELD));
        let address = address.map(str::to_owned);
        let chat = (item.reply.channel.clone(), item.reply.chat.clone(), address);
        let mut chats = lock(&inner.outbox.chats);
        if let Some(waiting) = chats.get_mut(&chat) {
            waiting.push_back(item);
            return;
        }
        chats.insert(chat.clone(), VecDeque::from([item]));
        drop(chats);
        inner.outbox.busy.fetch_add(1, Ordering::SeqCst);
        tokio::spawn(deliver_all(Arc::clone(inner), chat));
    }

    /// Retries a queued or failed reply at once.
    pub(crate) async fn retry(inner: &Arc<GatewayInner>, id: &ReplyId) -> Result<()> {
        let undelivered = inner.journal.live().reply(id).cloned();
        let undelivered = undelivered.ok_or_else(|| unknown_reply_error(id))?;
        inner
            .journal
            .commit(JournalRecord::Retry { id: id.clone() })
            .await?;
        if undelivered.is_stuck {
            Self::send(inner, OutboxItem::stored(undelivered.reply, 0));
        } else {
            inner.outbox.trigger(RetryTrigger::Reply(id.clone()));
        }
        Ok(())
    }

    /// Retries all queued replies of a channel that has started.
    pub(crate) fn channel_started(&self, name: &str) {
        self.trigger(RetryTrigger::Channel(name.to_owned()));
    }

    fn trigger(&self, retry_trigger: RetryTrigger) {
        // An error means that no delivery is waiting.
        let _ = self.triggers.send(retry_trigger);
    }

    /// Releases unclaimed replies to a message and returns how many there were.
    pub(crate) async fn claim(inner: &Arc<GatewayInner>, inbound: &MessageId) -> Result<usize> {
        let waiting: Vec<_> = inner
            .journal
            .live()
            .outgoing()
            .filter(|outgoing| outgoing.is_stuck && outgoing.reply.is_claimed)
            .filter(|outgoing| outgoing.reply.inbound.as_ref() == Some(inbound))
            .map(|outgoing| outgoing.reply.id.clone())
            .collect();
        for id in &waiting {
            Self::retry(inner, id).await?;
        }
        Ok(waiting.len())
    }

    /// Drops unclaimed replies whose idempotency key has expired.
    pub(crate) fn drop_expired_unclaimed(inner: &GatewayInner) {
        let expired: Vec<_> = inner
            .journal
            .live()
            .outgoing()
            .filter(|outgoing| {
                outgoing.is_stuck && outgoing.reply.is_claimed && is_old(&outgoing.reply)
            })
            .map(|outgoing| outgoing.reply.id.clone())
            .collect();
        for id in expired {
            tracing::warn!(reply_id = %id, "outbox.unclaimed_expired");
            inner.journal.post(JournalRecord::Forgotten { id });
        }
    }

    /// Drops a reply.
    pub(crate) async fn drop_reply(inner: &GatewayInner, id: &ReplyId) -> Result<()> {
        if inner.journal.live().reply(id).is_none() {
            return Err(unknown_reply_error(id));
        }
        inner
            .journal
            .commit(JournalRecord::Forgotten { id: id.clone() })
            .await?;
        inner.outbox.trigger(RetryTrigger::Reply(id.clone()));
        Ok(())
    }
}

pub(crate) fn unknown_reply_error(id: &str) -> Error {
    Error::not_found(format!(
        "unknown reply `{id}`; run `bub outbox list` to see undelivered replies"
    ))
}

async fn deliver_all(inner: Arc<GatewayInner>, chat: OutboxKey) {
    while let Some(item) = next(&inner, &chat) {
        tokio::select! {
            biased;
            // The journal keeps the reply for the next start.
            () = inner.halt.cancelled() => return,
            () = deliver_one(&inner, item) => {}
        }
    }
    inner.outbox.set_idle(&inner);
}

fn next(inner: &GatewayInner, chat: &OutboxKey) -> Option<OutboxItem> {
    let mut chats = lock(&inner.outbox.chats);
    let item = chats.get_mut(chat)?.pop_front();
    if item.is_none() {
        chats.remove(chat);
    }
    item
}

async fn deliver_one(inner: &GatewayInner, item: OutboxItem) {
    let span = error_span!(
        "delivery",
        reply_id = %item.reply.id,
        channel = %item.reply.channel,
        attempt = field::Empty,
    );
    deliver(inner, item, &span).instrument(span.clone()).await;
}

async fn deliver(inner: &GatewayInner, mut item: OutboxItem, span: &Span) {
    let id = item.reply.id.clone();
    loop {
        // A user may have dropped the reply.
        if inner.journal.live().reply(&id).is_none() {
            return;
        }
        // Subscribe before the attempt, so that a trigger during the attempt is not lost.
        let triggers = inner.outbox.triggers.subscribe();
        let channel = inner.running_channel(&item.reply.channel);
        let outcome = match &channel {
            Some(channel) => {
                item.attempt += 1;
                span.record("attempt", item.attempt);
                item.outbound.attempt = Some(DeliveryAttempt {
                    reply_id: id.clone(),
                    message_id: item.reply.inbound.clone(),
                    number: item.attempt,
                });
                attempt(&**channel, &item.outbound).await
            }
            // Not an attempt: the reply is sent when the channel has started.
            None => Err(temporary_error(format!(
                "channel {} is not running",
                item.reply.channel
            ))),
        };
        let Err(error) = outcome else {
            inner.journal.post(JournalRecord::Delivered { id });
            return;
        };
        let text = inner.redact(error.message());
        let is_unclaimed = error.kind() == ErrorKind::Unclaimed;
        if channel.is_some() && !is_unclaimed {
            tracing::warn!(error = %text, "outbox.attempt_failed");
            inner.note_error(&item.reply.channel, &text);
        }
        inner.journal.post(JournalRecord::Attempt {
            id: id.clone(),
            attempt: item.attempt,
            error: text.clone(),
        });
        // Try an old reply at least once: the machine may have been off for a weekend.
        let is_too_old = channel.is_some() && is_old(&item.reply);
        if is_permanent(&error) || is_too_old || item.attempt >= MAX_DELIVERY_ATTEMPTS {
            if !is_unclaimed {
                tracing::error!(hint = "run `bub outbox list`", "outbox.undeliverable");
            }
            inner
                .journal
                .post(JournalRecord::Undeliverable { id, error: text });
            if is_unclaimed {
                Outbox::drop_expired_unclaimed(inner);
            }
            return;
        }
        inner.outbox.set_idle(inner);
        tokio::select! {
            () = tokio::time::sleep(backoff(item.attempt, &error)) => {}
            () = wait_for_trigger(triggers, &item.reply) => {}
        }
        inner.outbox.busy.fetch_add(1, Ordering::SeqCst);
    }
}

/// Waits until a trigger concerns this reply.
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

fn is_old(reply: &ReplyRecord) -> bool {
    now().saturating_sub(reply.at) > MAX_REPLY_AGE_MS
}

async fn attempt(channel: &dyn Channel, outbound: &Outbound) -> Result<()> {
    let send = AssertUnwindSafe(async { channel.send(outbound).await }).catch_unwind();
    match tokio::time::timeout(SEND_TIMEOUT, send).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(_)) => Err(temporary_error("the channel panicked".to_owned())),
        Err(_) => Err(temporary_error(format!(
            "the channel did not send the reply within {} s",
            SEND_TIMEOUT.as_secs()
        ))),
    }
}

/// Returns whether a delivery error is permanent, so that retries are pointless.
pub fn is_permanent(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::InvalidInput | ErrorKind::NotFound | ErrorKind::Config | ErrorKind::Unclaimed
    )
}

fn temporary_error(reason: String) -> Error {
    Error::new(ErrorKind::Temporary, reason)
}

/// Returns the delay before the next attempt: exponential, with jitter, and at least as long as the platform asks for.
fn backoff(attempt: u32, error: &Error) -> Duration {
    let backoff = INITIAL_BACKOFF
        .saturating_mul(1 << attempt.saturating_sub(1).min(16))
        .min(MAX_BACKOFF);
    let jitter = backoff.mul_f64(f64::from(random()) / f64::from(u16::MAX) / 4.0);
    error.retry_after().unwrap_or_default().max(backoff) + jitter
}
