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

use crate::{
    gateway::Core,
    journal::{Record, Reply, lock, now, random},
    reply_scope::ROUTE,
};

/// A reply that could not be delivered for so long is left to a person, in milliseconds.
const MOST_AGE: u64 = 24 * 60 * 60 * 1000;
/// The same after so many attempts.
const MOST_ATTEMPTS: u32 = 200;
/// So many wishes may wait to be heard.
const WISHES: usize = 64;
/// An attempt takes no longer.
const SEND_LIMIT: Duration = Duration::from_mins(2);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(10);

/// The channel, the chat, and the address of a reply that has one of its own: who waits for an answer does not wait for
/// somebody else's callback.
type Chat = (String, String, Option<String>);

/// What is to be tried now.
#[derive(Clone, Debug)]
enum Wish {
    Reply(ReplyId),
    Channel(String),
}

/// The replies on their way, by chat.
#[derive(Debug)]
pub(crate) struct Outbox {
    chats: Mutex<HashMap<Chat, VecDeque<Parcel>>>,
    /// How many chats have something to send just now, and do not merely wait for another attempt.
    busy: AtomicUsize,
    wishes: broadcast::Sender<Wish>,
}

/// A reply on its way.
#[derive(Debug, Clone)]
pub(crate) struct Parcel {
    pub(crate) reply: Arc<Reply>,
    /// What the channel gets: with media that can be fetched, if the reply is of this process.
    pub(crate) outbound: Outbound,
    pub(crate) attempt: u32,
}

impl Parcel {
    /// A reply of the journal, after so many attempts.
    pub(crate) fn stored(reply: Arc<Reply>, attempt: u32) -> Self {
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
            wishes: broadcast::Sender::new(WISHES),
        }
    }
}

impl Outbox {
    pub(crate) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::SeqCst) > 0
    }

    /// Notes that one chat less has something to send just now.
    fn rest(&self, core: &Core) {
        if self.busy.fetch_sub(1, Ordering::SeqCst) == 1 {
            core.idle.notify_waiters();
        }
    }

    /// Has a reply delivered after those of its chat that wait already.
    pub(crate) fn send(core: &Arc<Core>, parcel: Parcel) {
        let own = parcel.reply.is_claimed.then_some(parcel.reply.id.as_str());
        let address = own.or_else(|| parcel.outbound.str_field(ROUTE));
        let address = address.map(str::to_owned);
        let chat = (
            parcel.reply.channel.clone(),
            parcel.reply.chat.clone(),
            address,
        );
        let mut chats = lock(&core.outbox.chats);
        if let Some(waiting) = chats.get_mut(&chat) {
            waiting.push_back(parcel);
            return;
        }
        chats.insert(chat.clone(), VecDeque::from([parcel]));
        drop(chats);
        core.outbox.busy.fetch_add(1, Ordering::SeqCst);
        tokio::spawn(deliver_all(Arc::clone(core), chat));
    }

    /// Tries a reply again that waits or was given up.
    pub(crate) async fn retry(core: &Arc<Core>, id: &ReplyId) -> Result<()> {
        let found = core.journal.live().reply(id).cloned();
        let found = found.ok_or_else(|| unknown_reply(id))?;
        core.journal
            .commit(Record::Retry { id: id.clone() })
            .await?;
        if found.is_stuck {
            Self::send(core, Parcel::stored(found.reply, 0));
        } else {
            core.outbox.wish(Wish::Reply(id.clone()));
        }
        Ok(())
    }

    /// A channel can send: what waits for that is tried now.
    pub(crate) fn channel_runs(&self, name: &str) {
        self.wish(Wish::Channel(name.to_owned()));
    }

    fn wish(&self, wish: Wish) {
        // Nobody may be waiting.
        let _ = self.wishes.send(wish);
    }

    /// Somebody comes for the replies to a message: how many of them waited for that.
    pub(crate) async fn claim(core: &Arc<Core>, inbound: &MessageId) -> Result<usize> {
        let waiting: Vec<_> = core
            .journal
            .live()
            .outgoing()
            .filter(|outgoing| outgoing.is_stuck && outgoing.reply.is_claimed)
            .filter(|outgoing| outgoing.reply.inbound.as_ref() == Some(inbound))
            .map(|outgoing| outgoing.reply.id.clone())
            .collect();
        for id in &waiting {
            Self::retry(core, id).await?;
        }
        Ok(waiting.len())
    }

    /// Forgets what nobody came for while its key was known.
    pub(crate) fn forget_unclaimed(core: &Core) {
        let old: Vec<_> = core
            .journal
            .live()
            .outgoing()
            .filter(|outgoing| {
                outgoing.is_stuck && outgoing.reply.is_claimed && is_old(&outgoing.reply)
            })
            .map(|outgoing| outgoing.reply.id.clone())
            .collect();
        for id in old {
            tracing::warn!("outbox.never_claimed reply={id}: nobody came for it in a day");
            core.journal.post(Record::Forgotten { id });
        }
    }

    /// Forgets a reply.
    pub(crate) async fn forget(core: &Core, id: &ReplyId) -> Result<()> {
        if core.journal.live().reply(id).is_none() {
            return Err(unknown_reply(id));
        }
        core.journal
            .commit(Record::Forgotten { id: id.clone() })
            .await?;
        core.outbox.wish(Wish::Reply(id.clone()));
        Ok(())
    }
}

pub(crate) fn unknown_reply(id: &str) -> Error {
    Error::not_found(format!(
        "there is no undelivered reply `{id}`; `bub outbox list` shows them"
    ))
}

async fn deliver_all(core: Arc<Core>, chat: Chat) {
    while let Some(parcel) = next(&core, &chat) {
        tokio::select! {
            biased;
            // It is in the journal.
            () = core.halt.cancelled() => return,
            () = deliver(&core, parcel) => {}
        }
    }
    core.outbox.rest(&core);
}

fn next(core: &Core, chat: &Chat) -> Option<Parcel> {
    let mut chats = lock(&core.outbox.chats);
    let parcel = chats.get_mut(chat)?.pop_front();
    if parcel.is_none() {
        chats.remove(chat);
    }
    parcel
}

async fn deliver(core: &Core, mut parcel: Parcel) {
    let id = parcel.reply.id.clone();
    loop {
        // A person may have dropped it meanwhile.
        if core.journal.live().reply(&id).is_none() {
            return;
        }
        // Before the attempt: whoever wants it tried again meanwhile is heard.
        let wishes = core.outbox.wishes.subscribe();
        let channel = core.running_channel(&parcel.reply.channel);
        let outcome = match &channel {
            Some(channel) => {
                parcel.attempt += 1;
                parcel.outbound.attempt = Some(DeliveryAttempt {
                    reply_id: id.clone(),
                    message_id: parcel.reply.inbound.clone(),
                    number: parcel.attempt,
                });
                attempt(&**channel, &parcel.outbound).await
            }
            // No attempt: it is sent as soon as there is one.
            None => Err(temporary(format!(
                "the channel {} does not run",
                parcel.reply.channel
            ))),
        };
        let Err(error) = outcome else {
            core.journal.post(Record::Delivered { id });
            return;
        };
        let text = core.redact(error.message());
        let is_unclaimed = error.kind() == ErrorKind::Unclaimed;
        if channel.is_some() && !is_unclaimed {
            tracing::warn!(
                "outbox.attempt_failed reply={id} channel={} error={text}",
                parcel.reply.channel
            );
            core.note_error(&parcel.reply.channel, &text);
        }
        core.journal.post(Record::Attempt {
            id: id.clone(),
            attempt: parcel.attempt,
            error: text.clone(),
        });
        // However old it is, it is tried: the computer may have been switched off for a weekend.
        let is_too_old = channel.is_some() && is_old(&parcel.reply);
        if is_final(&error) || is_too_old || parcel.attempt >= MOST_ATTEMPTS {
            if !is_unclaimed {
                tracing::error!("outbox.undeliverable reply={id}; see `bub outbox list`");
            }
            core.journal.post(Record::Undeliverable { id, error: text });
            if is_unclaimed {
                Outbox::forget_unclaimed(core);
            }
            return;
        }
        core.outbox.rest(core);
        tokio::select! {
            () = tokio::time::sleep(pause(parcel.attempt, &error)) => {}
            () = wished(wishes, &parcel.reply) => {}
        }
        core.outbox.busy.fetch_add(1, Ordering::SeqCst);
    }
}

/// Fires when somebody wants this reply tried, or dropped.
async fn wished(mut wishes: broadcast::Receiver<Wish>, reply: &Reply) {
    loop {
        match wishes.recv().await {
            Ok(Wish::Reply(id)) if id != reply.id => {}
            Ok(Wish::Channel(name)) if name != reply.channel => {}
            Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => return,
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }
}

fn is_old(reply: &Reply) -> bool {
    now().saturating_sub(reply.at) > MOST_AGE
}

async fn attempt(channel: &dyn Channel, outbound: &Outbound) -> Result<()> {
    let sending = AssertUnwindSafe(async { channel.send(outbound).await }).catch_unwind();
    match tokio::time::timeout(SEND_LIMIT, sending).await {
        Ok(Ok(sent)) => sent,
        Ok(Err(_)) => Err(temporary("the channel panicked".to_owned())),
        Err(_) => Err(temporary(format!(
            "it took longer than {} s",
            SEND_LIMIT.as_secs()
        ))),
    }
}

/// Whether another attempt would end the same way.
pub fn is_final(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::InvalidInput | ErrorKind::NotFound | ErrorKind::Config | ErrorKind::Unclaimed
    )
}

fn temporary(why: String) -> Error {
    Error::new(ErrorKind::Temporary, why)
}

/// Longer every time, a little different for everybody, and never shorter than the platform asks for.
fn pause(attempt: u32, error: &Error) -> Duration {
    let grown = FIRST_PAUSE
        .saturating_mul(1 << attempt.saturating_sub(1).min(16))
        .min(LONGEST_PAUSE);
    let jitter = grown.mul_f64(f64::from(random()) / f64::from(u16::MAX) / 4.0);
    error.retry_after().unwrap_or_default().max(grown) + jitter
}
