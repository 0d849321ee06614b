//! The gateway itself: accepts messages, runs the channels, and stops without losing anything.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, OnceLock, Weak},
    time::Duration,
};

use bub_kernel::{
    CancellationToken, Channel, Envelope, Error, ErrorKind, Framework, MessageHandler, Result,
};
use bub_settings::Settings;
use tokio::sync::Semaphore;

use crate::{
    control,
    current::Current,
    enable,
    journal::{Accepted, Journal, Record, Recovered, StoredSender, lock, now, raw},
    lane::{self, Item, Lanes, turn::FAILED},
    manager,
    options::Options,
    outbox::{Outbox, Parcel},
    router::{self, Router},
    status,
    ticket::{Outcome, Ticket},
};

/// So long a message waits for room.
const ROOM_LIMIT: Duration = Duration::from_secs(5);
/// The detail of the error that only one session has no room.
pub const SESSION_FULL: &str = "session_full";
/// The detail of an error whether the person was told of it.
pub const TOLD: &str = "told";
/// How soon to try again what was refused for want of room.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// A gateway, ready to run.
pub struct Gateway {
    core: Arc<Core>,
    recovered: Recovered,
}

/// A hand on a gateway.
#[derive(Clone)]
pub struct Remote(Arc<Core>);

impl Remote {
    /// Cancels what runs in a session; what waits there comes next.
    pub fn cancel(&self, session: &str) {
        self.0.lanes.cancel(session);
    }

    /// Drops the last of what waits in a session and has not begun, for that reason.
    pub fn withdraw(&self, session: &str, reason: &str) {
        self.0.lanes.withdraw(session, reason);
    }

    /// How many messages are not settled: the next gateway picks them up.
    pub fn unfinished(&self) -> usize {
        self.0.journal.live().inbounds().count()
    }

    /// The channels that do not run, each with the reason.
    pub fn not_running(&self) -> Vec<(String, String)> {
        let reason = |(name, entry): (&String, &Entry)| {
            let state = lock(&entry.state);
            let reason = || {
                state
                    .last_error
                    .clone()
                    .unwrap_or_else(|| "it is still starting".to_owned())
            };
            (state.phase != Phase::Running).then(|| (name.clone(), reason()))
        };
        self.0.channels.iter().filter_map(reason).collect()
    }

    /// Whether every message is settled and every reply delivered.
    pub fn is_settled(&self) -> bool {
        let live = self.0.journal.live();
        live.inbounds().next().is_none() && live.outgoing().next().is_none()
    }
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Remote")
    }
}

/// What all parts of a gateway share.
pub(crate) struct Core {
    pub(crate) framework: Framework,
    pub(crate) options: Options,
    pub(crate) journal: Journal,
    pub(crate) lanes: Lanes,
    pub(crate) outbox: Outbox,
    pub(crate) channels: HashMap<String, Entry>,
    room: Arc<Semaphore>,
    /// Room for running turns.
    pub(crate) turns: Arc<Semaphore>,
    /// Nothing new is accepted.
    pub(crate) drain: CancellationToken,
    /// Everything stops now.
    pub(crate) halt: CancellationToken,
    /// What channels see; any of them may end the gateway by it.
    pub(crate) stop: CancellationToken,
}

/// A channel that was chosen to run.
pub(crate) struct Entry {
    pub(crate) channel: Arc<dyn Channel>,
    pub(crate) state: Mutex<ChannelState>,
}

/// How a channel is.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChannelState {
    pub(crate) phase: Phase,
    pub(crate) last_error: Option<String>,
    pub(crate) accepted: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    #[default]
    Starting,
    Running,
    /// It is started again after a pause.
    Failed,
    Stopped,
}

impl Phase {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Failed => "failed, is started again",
            Self::Stopped => "stopped",
        }
    }
}

impl Gateway {
    /// Opens the journal and chooses the channels. Nothing runs yet.
    pub fn open(framework: &Framework, options: Options, names: &[String]) -> Result<Self> {
        let place = Arc::new(OnceLock::<Weak<Core>>::new());
        let all = framework.channels(&handler(Arc::clone(&place)))?;
        enable::check_names(names, &all)?;
        let chosen = enable::choose(names, &all);
        if chosen.is_empty() {
            let known: Vec<_> = all.iter().map(|channel| channel.name()).collect();
            let known = if known.is_empty() {
                "none".to_owned()
            } else {
                known.join(", ")
            };
            return Err(Error::unknown(format!(
                "no channel is enabled (there are: {known}); configure one and see `enabled_channels`"
            )));
        }
        let (journal, recovered) = Journal::open(
            Arc::clone(&options.fs),
            &options.directory,
            options.durability,
        )?;
        let entry = |channel: Arc<dyn Channel>| {
            (
                channel.name().to_owned(),
                Entry {
                    channel,
                    state: Mutex::default(),
                },
            )
        };
        let core = Arc::new(Core {
            framework: framework.clone(),
            journal,
            lanes: Lanes::default(),
            outbox: Outbox::default(),
            channels: chosen.into_iter().map(entry).collect(),
            room: Arc::new(Semaphore::new(options.queue.min(Semaphore::MAX_PERMITS))),
            turns: Arc::new(Semaphore::new(options.turns.min(Semaphore::MAX_PERMITS))),
            options,
            drain: CancellationToken::new(),
            halt: CancellationToken::new(),
            stop: CancellationToken::new(),
        });
        // Set exactly once, right here.
        let _ = place.set(Arc::downgrade(&core));
        Ok(Self { core, recovered })
    }

    /// What the journal held.
    pub fn recovered(&self) -> Recovered {
        self.recovered
    }

    /// The names of the channels that run.
    pub fn channels(&self) -> Vec<String> {
        let mut names: Vec<_> = self.core.channels.keys().cloned().collect();
        names.sort_unstable();
        names
    }

    /// Checks the settings of the channels that run, in their order.
    pub fn validate(&self) -> Result<()> {
        for name in self.channels() {
            if let Some(entry) = self.core.channels.get(&name) {
                entry.channel.validate()?;
            }
        }
        Ok(())
    }

    /// Whom the channels that run let in, each with its name.
    pub fn audiences(&self) -> Vec<(String, String)> {
        let named = |name: String| {
            Some((
                name.clone(),
                self.core.channels.get(&name)?.channel.audience()?,
            ))
        };
        self.channels().into_iter().filter_map(named).collect()
    }

    /// A hand on it while it runs, and after.
    pub fn remote(&self) -> Remote {
        Remote(Arc::clone(&self.core))
    }

    /// Runs until `stop` fires or a channel ends it, then finishes what runs, within the limit. `ready` is called once
    /// messages are taken.
    ///
    /// The framework's running scope must be open.
    pub async fn run(self, stop: CancellationToken, ready: impl FnOnce()) -> Result<()> {
        let core = &self.core;
        core.framework
            .bind_router(Some(Arc::new(Router(Arc::downgrade(core)))));
        // Before anything new comes in: what is older goes first.
        core.recover();
        let listening = status::listen(core)?;
        let channels = manager::start(core).await;
        ready();
        tokio::select! {
            () = stop.cancelled() => {}
            () = core.stop.cancelled() => {}
        }
        core.drain.cancel();
        let _ = tokio::time::timeout(core.options.drain, core.drained()).await;
        manager::stop(core, channels).await;
        core.framework.bind_router(None);
        core.halt.cancel();
        let _ = tokio::time::timeout(Duration::from_secs(3), core.lanes_gone()).await;
        core.journal.close().await;
        drop(listening);
        Ok(())
    }
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gateway")
            .field("channels", &self.channels())
            .finish_non_exhaustive()
    }
}

/// The handler that channels are made with, before the gateway exists.
fn handler(place: Arc<OnceLock<Weak<Core>>>) -> MessageHandler {
    Arc::new(move |message| {
        let core = place.get().and_then(Weak::upgrade);
        Box::pin(async move {
            match core {
                Some(core) => core.accept(message).await,
                None => Err(busy("the gateway is not running")),
            }
        })
    })
}

fn busy(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Temporary, why).with_retry_after(TRY_AGAIN)
}

impl Core {
    pub(crate) fn channel(&self, name: &str) -> Option<Arc<dyn Channel>> {
        self.channels
            .get(name)
            .map(|entry| Arc::clone(&entry.channel))
    }

    /// The channel, when it can send.
    pub(crate) fn running_channel(&self, name: &str) -> Option<Arc<dyn Channel>> {
        let entry = self.channels.get(name)?;
        (lock(&entry.state).phase == Phase::Running).then(|| Arc::clone(&entry.channel))
    }

    pub(crate) fn note_error(&self, channel: &str, error: &str) {
        if let Some(entry) = self.channels.get(channel) {
            lock(&entry.state).last_error = Some(error.to_owned());
        }
    }

    /// A text without secrets.
    pub(crate) fn redact(&self, text: &str) -> String {
        match self.framework.service::<Settings>() {
            Some(settings) => settings.redactor().redact(text).into_owned(),
            None => text.to_owned(),
        }
    }

    /// Takes a message: it returns when the message is in the journal, or was refused with the reason.
    async fn accept(self: &Arc<Self>, mut message: Envelope) -> Result<()> {
        if self.drain.is_cancelled() {
            return Err(busy("the gateway is stopping"));
        }
        let name = message.channel().unwrap_or_default().into_owned();
        let Some(entry) = self.channels.get(&name) else {
            tracing::warn!("gateway.unknown_channel channel={name}: its message is dropped");
            return Err(Error::invalid_input(format!(
                "there is no channel `{name}` here"
            )));
        };
        if let Some((id, answer)) = control::approval(&message) {
            return control::answer(self, &message, &id, answer).await;
        }
        let session = match self.framework.resolve_session(&message).await {
            Ok(session) => session,
            Err(error) => return Err(self.without_session(&message, error).await),
        };
        message.set("session_id", session.as_str());
        // There is always room for the word that makes some.
        let permit = if lane::is_quit(&message) {
            None
        } else {
            Some(self.room_for(&name, &session).await?)
        };
        let ticket = message.slot::<Ticket>();
        let id = self.journal.next_id();
        let key = ticket
            .as_ref()
            .and_then(|ticket| ticket.key())
            .map(|key| format!("{name}:{key}"));
        if let Some(key) = &key {
            while let Some(owner) = self.reserve(key, &id) {
                // The first may not be written yet, and may yet fail.
                self.journal.append(Record::Mark).await?;
                if self.journal.live().owner(key) == Some(&owner) {
                    if let Some(ticket) = ticket {
                        if self.journal.live().is_finished(&owner) {
                            ticket.settle(Outcome::Done { replies: 0 });
                        } else {
                            ticket.owe(Outbox::claim(self, &owner).await?);
                        }
                        ticket.accept(&owner, true);
                    }
                    return Ok(());
                }
            }
        }
        let accepted = Accepted {
            id: id.clone(),
            at: now(),
            session: session.clone(),
            key: key.clone(),
            sender: StoredSender::of(&message),
            message: raw(&message)?,
        };
        if let Err(error) = self.journal.append(Record::Accepted(accepted)).await {
            if let Some(key) = key {
                self.journal.live().release(&key, &id);
            }
            self.note_error(&name, error.message());
            return Err(error);
        }
        if let Some(ticket) = ticket {
            ticket.accept(&id, false);
        }
        lock(&entry.state).accepted += 1;
        let item = Item {
            permit,
            ..Item::new(id, message)
        };
        Lanes::push(self, &session, item);
        Ok(())
    }

    /// Tells whoever wrote a message that its session cannot be named.
    async fn without_session(self: &Arc<Self>, message: &Envelope, error: Error) -> Error {
        // Where nothing can be written nobody can be told, except that it is so.
        if let Err(refusal) = self.journal.append(Record::Mark).await {
            return refusal;
        }
        let turn =
            Arc::new(Current::new(self.journal.next_id(), message, Vec::new()).not_claimed());
        turn.run(
            self.framework
                .hooks()
                .notify_error("resolve_session", &error, Some(message)),
        )
        .await;
        let is_told = router::excuse(self, &message.chat_session(), &turn, FAILED).await;
        error.with_detail(TOLD, is_told)
    }

    fn reserve(&self, key: &str, id: &str) -> Option<String> {
        self.journal.live().reserve(key, id, now())
    }

    /// Room for a message, or the reason why there is none.
    async fn room_for(
        &self,
        channel: &str,
        session: &str,
    ) -> Result<tokio::sync::OwnedSemaphorePermit> {
        if self.lanes.unfinished(session) >= self.options.session_queue {
            let most = self.options.session_queue;
            let full = busy(format!(
                "{most} messages of this session wait already; try again later"
            ));
            return Err(full.with_detail(SESSION_FULL, true));
        }
        let undelivered = self.journal.live().undelivered(channel);
        if undelivered >= self.options.queue {
            return Err(busy(format!(
                "{undelivered} replies cannot be delivered; see `bub outbox list`"
            )));
        }
        match tokio::time::timeout(ROOM_LIMIT, Arc::clone(&self.room).acquire_owned()).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(busy("too many messages wait already; try again later")),
        }
    }

    /// Ends what runs and waits in a session.
    pub(crate) async fn quit(&self, session: &str, except: Option<String>) {
        self.lanes.quit(session, except).await;
    }

    /// Puts what the journal holds where it was.
    fn recover(self: &Arc<Self>) {
        Outbox::forget_unclaimed(self);
        let (inbounds, outgoing) = {
            let live = self.journal.live();
            (
                live.inbounds().cloned().collect::<Vec<_>>(),
                live.outgoing().cloned().collect::<Vec<_>>(),
            )
        };
        let mut items: HashMap<String, (String, Item)> = HashMap::new();
        let mut order = Vec::with_capacity(inbounds.len());
        let (mut groups, mut steered) = (Vec::new(), Vec::new());
        let mut kept: BTreeMap<String, usize> = BTreeMap::new();
        for inbound in inbounds {
            let accepted = &inbound.accepted;
            let mut message = accepted.envelope();
            let name = message.channel().unwrap_or_default().into_owned();
            let Some(channel) = self.channel(&name) else {
                // Nobody would hear the answer.
                *kept.entry(name).or_default() += 1;
                continue;
            };
            channel.restore(&mut message);
            let mut item = Item::new(accepted.id.clone(), message);
            (item.attempt, item.is_recovered) = (inbound.attempt, true);
            // Without room it is taken all the same: it was accepted.
            item.permit = Arc::clone(&self.room).try_acquire_owned().ok();
            order.push(accepted.id.clone());
            if !inbound.with.is_empty() {
                groups.push((accepted.id.clone(), inbound.with.clone()));
            }
            steered.extend(inbound.into.map(|into| (accepted.id.clone(), into)));
            items.insert(accepted.id.clone(), (accepted.session.clone(), item));
        }
        for (channel, messages) in kept {
            tracing::warn!(
                "gateway.messages_kept channel={channel} messages={messages}: they are answered once it is enabled"
            );
        }
        // What was one turn is the same turn again.
        for (id, with) in groups {
            let Some((session, last)) = items.remove(&id) else {
                continue;
            };
            let attempt = last.attempt;
            let mut batch: Vec<_> = with
                .iter()
                .filter_map(|id| Some(items.remove(id)?.1))
                .collect();
            batch.push(last);
            if let Some(mut merged) = lane::merge(&mut batch) {
                merged.attempt = attempt;
                items.insert(id, (session, merged));
            }
        }
        // What was given to a turn goes with it again: only that knows whether it has heard it.
        for (id, into) in steered.into_iter().filter(|(id, into)| id != into) {
            if items.contains_key(&into)
                && let Some((_, item)) = items.remove(&id)
                && let Some((_, turn)) = items.get_mut(&into)
            {
                turn.steered.push(item);
            }
        }
        for id in order {
            if let Some((session, item)) = items.remove(&id) {
                Lanes::push(self, &session, item);
            }
        }
        for outgoing in outgoing.into_iter().filter(|outgoing| !outgoing.is_stuck) {
            let parcel = Parcel {
                reply: outgoing.reply,
                message: None,
                attempt: outgoing.attempt,
            };
            Outbox::send(self, parcel);
        }
    }

    /// Waits until nothing runs and nothing is on its way.
    async fn drained(&self) {
        while !self.lanes.is_empty() || self.outbox.is_busy() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn lanes_gone(&self) {
        while !self.lanes.is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
