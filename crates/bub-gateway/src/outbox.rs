//! Delivering replies: in order for each chat, as often as it takes, without one chat waiting for another.

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

/// A reply that could not be delivered for so long is left to a person, in milliseconds.
const MAX_REPLY_AGE_MS: u64 = 24 * 60 * 60 * 1000;
/// The same after so many attempts.
const MAX_DELIVERY_ATTEMPTS: u32 = 200;
/// So many wishes may wait to be heard.
const TRIGGER_CAPACITY: usize = 64;
/// An attempt takes no longer.
const SEND_TIMEOUT: Duration = Duration::from_mins(2);
const INITIAL_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_mins(10);

/// The channel, the chat, and the address of a reply that has one of its own: who waits for an answer does not wait for
/// somebody else's callback.
type OutboxKey = (String, String, Option<String>);

/// What is to be tried now.
#[derive(Clone, Debug)]
enum RetryTrigger {
    Reply(ReplyId),
    Channel(String),
}

/// The replies on their way, by chat.
#[derive(Debug)]
pub(crate) struct Outbox {
    chats: Mutex<HashMap<OutboxKey, VecDeque<OutboxItem>>>,
    /// How many chats have something to send just now, and do not merely wait for another attempt.
    busy: AtomicUsize,
    triggers: broadcast::Sender<RetryTrigger>,
}

/// A reply on its way.
#[derive(Debug, Clone)]
pub(crate) struct OutboxItem {
    pub(crate) reply: Arc<ReplyRecord>,
    /// What the channel gets: with media that can be fetched, if the reply is of this process.
    pub(crate) outbound: Outbound,
    pub(crate) attempt: u32,
}

impl OutboxItem {
    /// A reply of the journal, after so many attempts.
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

    /// Notes that one chat less has something to send just now.
    fn rest(&self, inner: &GatewayInner) {
        if self.busy.fetch_sub(1, Ordering::SeqCst) == 1 {
            inner.idle.notify_waiters();
        }
    }

    /// Has a reply delivered after those of its chat that wait already.
    pub(crate) fn send(inner: &Arc<GatewayInner>, item: OutboxItem) {
        let own = item.reply.is_claimed.then_some(item.reply.id.as_str());
        let address = own.or_else(|| item.outbound.str_field(REPLY_ROUTE_FIELD));
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

    /// Tries a reply again that waits or was given up.
    pub(crate) async fn retry(inner: &Arc<GatewayInner>, id: &ReplyId) -> Result<()> {
        let found = inner.journal.live().reply(id).cloned();
        let found = found.ok_or_else(|| unknown_reply(id))?;
        inner
            .journal
            .commit(JournalRecord::Retry { id: id.clone() })
            .await?;
        if found.is_stuck {
            Self::send(inner, OutboxItem::stored(found.reply, 0));
        } else {
            inner.outbox.trigger(RetryTrigger::Reply(id.clone()));
        }
        Ok(())
    }

    /// A channel can send: what waits for that is tried now.
    pub(crate) fn channel_started(&self, name: &str) {
        self.trigger(RetryTrigger::Channel(name.to_owned()));
    }

    fn trigger(&self, retry_trigger: RetryTrigger) {
        // Nobody may be waiting.
        let _ = self.triggers.send(retry_trigger);
    }

    /// Somebody comes for the replies to a message: how many of them waited for that.
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

    /// Forgets what nobody came for while its key was known.
    pub(crate) fn drop_expired_unclaimed(inner: &GatewayInner) {
        let old: Vec<_> = inner
            .journal
            .live()
            .outgoing()
            .filter(|outgoing| {
                outgoing.is_stuck && outgoing.reply.is_claimed && is_old(&outgoing.reply)
            })
            .map(|outgoing| outgoing.reply.id.clone())
            .collect();
        for id in old {
            tracing::warn!(reply_id = %id, "outbox.unclaimed_expired");
            inner.journal.post(JournalRecord::Forgotten { id });
        }
    }

    /// Forgets a reply.
    pub(crate) async fn drop_reply(inner: &GatewayInner, id: &ReplyId) -> Result<()> {
        if inner.journal.live().reply(id).is_none() {
            return Err(unknown_reply(id));
        }
        inner
            .journal
            .commit(JournalRecord::Forgotten { id: id.clone() })
            .await?;
        inner.outbox.trigger(RetryTrigger::Reply(id.clone()));
        Ok(())
    }
}

pub(crate) fn unknown_reply(id: &str) -> Error {
    Error::not_found(format!(
        "there is no undelivered reply `{id}`; `bub outbox list` shows them"
    ))
}

async fn deliver_all(inner: Arc<GatewayInner>, chat: OutboxKey) {
    while let Some(item) = next(&inner, &chat) {
        tokio::select! {
            biased;
            // It is in the journal.
            () = inner.halt.cancelled() => return,
            () = deliver_one(&inner, item) => {}
        }
    }
    inner.outbox.rest(&inner);
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
        // A person may have dropped it meanwhile.
        if inner.journal.live().reply(&id).is_none() {
            return;
        }
        // Before the attempt: whoever wants it tried again meanwhile is heard.
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
            // No attempt: it is sent as soon as there is one.
            None => Err(temporary(format!(
                "the channel {} does not run",
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
        // However old it is, it is tried: the computer may have been switched off for a weekend.
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
        inner.outbox.rest(inner);
        tokio::select! {
            () = tokio::time::sleep(backoff(item.attempt, &error)) => {}
            () = wait_for_trigger(triggers, &item.reply) => {}
        }
        inner.outbox.busy.fetch_add(1, Ordering::SeqCst);
    }
}

/// Fires when somebody wants this reply tried, or dropped.
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
    let sending = AssertUnwindSafe(async { channel.send(outbound).await }).catch_unwind();
    match tokio::time::timeout(SEND_TIMEOUT, sending).await {
        Ok(Ok(sent)) => sent,
        Ok(Err(_)) => Err(temporary("the channel panicked".to_owned())),
        Err(_) => Err(temporary(format!(
            "it took longer than {} s",
            SEND_TIMEOUT.as_secs()
        ))),
    }
}

/// Whether another attempt would end the same way.
pub fn is_permanent(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::InvalidInput | ErrorKind::NotFound | ErrorKind::Config | ErrorKind::Unclaimed
    )
}

fn temporary(reason: String) -> Error {
    Error::new(ErrorKind::Temporary, reason)
}

/// Longer every time, a little different for everybody, and never shorter than the platform asks for.
fn backoff(attempt: u32, error: &Error) -> Duration {
    let grown = INITIAL_BACKOFF
        .saturating_mul(1 << attempt.saturating_sub(1).min(16))
        .min(MAX_BACKOFF);
    let jitter = grown.mul_f64(f64::from(random()) / f64::from(u16::MAX) / 4.0);
    error.retry_after().unwrap_or_default().max(grown) + jitter
}
