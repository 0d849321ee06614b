//! The gateway itself: accepts messages, runs the channels, and stops without losing anything.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, OnceLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bub_kernel::{
    BoxFuture, CancellationToken, Channel, Error, ErrorKind, Framework, Inbound, InboundReceipt,
    MessageHandler, MessageId, MessageOutcome, Result, SessionId,
};
use futures_util::{StreamExt as _, stream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::{
    channel_manager, control,
    journal::{
        AcceptedMessage, Journal, JournalRecord, JournalRecovery, StoredSender, lock, now, raw,
    },
    lane::{self, Arrival, Lanes, QueueSlot, QueuedMessage, turn::TURN_FAILED_TEXT},
    options::{GatewayOptions, JournalKind},
    outbox::{Outbox, OutboxItem},
    reply_scope::ReplyScope,
    router::{self, Router},
    selection, status,
};

/// So long a message waits for room.
const QUEUE_WAIT_TIMEOUT: Duration = Duration::from_secs(5);
/// How soon to try again what was refused for want of room.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// How many `,quit` beyond the limit of a session may wait: they make room.
const QUIT_CAPACITY: usize = 16;
/// How many recovered messages are resolved at a time.
const RESOLVE_CONCURRENCY: usize = 16;

/// A gateway, ready to run.
pub struct Gateway {
    inner: Arc<GatewayInner>,
    recovered: JournalRecovery,
}

/// A hand on a gateway.
#[derive(Clone)]
pub struct GatewayHandle(Arc<GatewayInner>);

impl GatewayHandle {
    /// Cancels what runs in a session; what waits there comes next.
    pub fn cancel(&self, session_id: &SessionId) {
        self.0.lanes.cancel(session_id);
    }

    /// Drops the last message that is queued in a session.
    pub fn withdraw(&self, session_id: &SessionId) {
        self.0.lanes.withdraw(session_id);
    }

    /// How many messages are not settled: the next gateway picks them up.
    pub fn unfinished(&self) -> usize {
        self.0.journal.live().inbounds().count()
    }

    /// The channels that do not run, each with the reason.
    pub fn not_running(&self) -> Vec<(String, String)> {
        let reason = |(name, entry): (&String, &ActiveChannel)| {
            let state = lock(&entry.state);
            let reason = || {
                state
                    .last_error
                    .clone()
                    .unwrap_or_else(|| "it is still starting".to_owned())
            };
            (state.phase != ChannelPhase::Running).then(|| (name.clone(), reason()))
        };
        self.0.channels.iter().filter_map(reason).collect()
    }

    /// Whether every message is settled and every reply delivered.
    pub fn is_settled(&self) -> bool {
        let live = self.0.journal.live();
        live.inbounds().next().is_none() && live.outgoing().next().is_none()
    }
}

impl std::fmt::Debug for GatewayHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Remote")
    }
}

/// What all parts of a gateway share.
pub(crate) struct GatewayInner {
    pub(crate) framework: Framework,
    pub(crate) options: GatewayOptions,
    pub(crate) journal: Journal,
    pub(crate) lanes: Lanes,
    pub(crate) outbox: Outbox,
    pub(crate) channels: HashMap<String, ActiveChannel>,
    room: Arc<Semaphore>,
    /// Room for running turns.
    pub(crate) turns: Arc<Semaphore>,
    /// Notified when there may be no lane left, or no reply on its way.
    pub(crate) idle: Notify,
    /// Whether messages are accepted: not before what the journal held is in its lanes.
    is_open: AtomicBool,
    /// Nothing new is accepted.
    pub(crate) drain: CancellationToken,
    /// Messages that are still being accepted are refused: their senders can send them again.
    refuse: CancellationToken,
    /// Everything stops now.
    pub(crate) halt: CancellationToken,
    /// What channels see; any of them may end the gateway by it.
    pub(crate) stop: CancellationToken,
}

/// A channel that was chosen to run.
pub(crate) struct ActiveChannel {
    pub(crate) channel: Arc<dyn Channel>,
    pub(crate) state: Mutex<ChannelState>,
}

/// How a channel is.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChannelState {
    pub(crate) phase: ChannelPhase,
    pub(crate) last_error: Option<String>,
    pub(crate) accepted: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ChannelPhase {
    #[default]
    Starting,
    Running,
    /// It is started again after a pause.
    Failed,
    Stopped,
}

impl ChannelPhase {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Failed => "restarting",
            Self::Stopped => "stopped",
        }
    }
}

impl Gateway {
    /// Opens the journal, asks the plugins for channels, and chooses those with these names. Nothing runs yet.
    pub fn open(framework: &Framework, options: GatewayOptions, names: &[String]) -> Result<Self> {
        let place = Arc::new(OnceLock::<Weak<GatewayInner>>::new());
        let all = framework.channels(&handler(Arc::clone(&place)))?;
        selection::check_names(names, &all)?;
        let chosen = selection::select_channels(names, &all);
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
        Self::build(framework, options, chosen, &place)
    }

    /// Opens the journal for the channels of an embedding program. No plugin is asked for channels. `make` gets the
    /// handler that the channels hand their messages to.
    pub fn with_channels(
        framework: &Framework,
        options: GatewayOptions,
        make: impl FnOnce(&MessageHandler) -> Vec<Arc<dyn Channel>>,
    ) -> Result<Self> {
        let place = Arc::new(OnceLock::<Weak<GatewayInner>>::new());
        let channels = make(&handler(Arc::clone(&place)));
        Self::build(framework, options, channels, &place)
    }

    fn build(
        framework: &Framework,
        options: GatewayOptions,
        channels: Vec<Arc<dyn Channel>>,
        place: &OnceLock<Weak<GatewayInner>>,
    ) -> Result<Self> {
        let (journal, recovered) = match &options.journal {
            JournalKind::File {
                directory,
                durability,
                fs,
            } => Journal::open(Arc::clone(fs), directory, *durability)?,
            JournalKind::Memory => (Journal::in_memory(), JournalRecovery::default()),
        };
        let entry = |channel: Arc<dyn Channel>| {
            (
                channel.name().to_owned(),
                ActiveChannel {
                    channel,
                    state: Mutex::default(),
                },
            )
        };
        let inner = Arc::new(GatewayInner {
            framework: framework.clone(),
            journal,
            lanes: Lanes::default(),
            outbox: Outbox::default(),
            channels: channels.into_iter().map(entry).collect(),
            room: Arc::new(Semaphore::new(options.queue.min(Semaphore::MAX_PERMITS))),
            turns: Arc::new(Semaphore::new(options.turns.min(Semaphore::MAX_PERMITS))),
            options,
            idle: Notify::new(),
            is_open: AtomicBool::new(false),
            drain: CancellationToken::new(),
            refuse: CancellationToken::new(),
            halt: CancellationToken::new(),
            stop: CancellationToken::new(),
        });
        // Set exactly once, right here.
        let _ = place.set(Arc::downgrade(&inner));
        Ok(Self { inner, recovered })
    }

    /// What the journal held.
    pub fn recovered(&self) -> JournalRecovery {
        self.recovered
    }

    /// The names of the channels that run.
    pub fn channels(&self) -> Vec<String> {
        let mut names: Vec<_> = self.inner.channels.keys().cloned().collect();
        names.sort_unstable();
        names
    }

    /// Checks the settings of the channels that run, in their order.
    pub fn validate(&self) -> Result<()> {
        for name in self.channels() {
            if let Some(entry) = self.inner.channels.get(&name) {
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
                self.inner.channels.get(&name)?.channel.access_summary()?,
            ))
        };
        self.channels().into_iter().filter_map(named).collect()
    }

    /// A hand on it while it runs, and after.
    pub fn remote(&self) -> GatewayHandle {
        GatewayHandle(Arc::clone(&self.inner))
    }

    /// Runs until `stop` fires or a channel ends it, then finishes what runs, within the limit. `ready` is called once
    /// messages are taken.
    ///
    /// The framework's running scope must be open.
    pub async fn run(self, stop: CancellationToken, ready: impl FnOnce()) -> Result<()> {
        let inner = &self.inner;
        inner
            .framework
            .bind_router(Some(Arc::new(Router(Arc::downgrade(inner)))));
        // Before anything new comes in: what is older goes first.
        inner.recover().await;
        inner.is_open.store(true, Ordering::Release);
        let listening = status::listen(inner)?;
        let channels = channel_manager::start(inner).await;
        ready();
        tokio::select! {
            () = stop.cancelled() => {}
            () = inner.stop.cancelled() => {}
        }
        inner.drain.cancel();
        let _ = tokio::time::timeout(inner.options.drain, inner.wait_drained()).await;
        inner.refuse.cancel();
        channel_manager::stop(inner, channels).await;
        inner.framework.bind_router(None);
        inner.halt.cancel();
        let _ = tokio::time::timeout(Duration::from_secs(3), inner.wait_for_lanes()).await;
        inner.journal.close().await;
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
fn handler(place: Arc<OnceLock<Weak<GatewayInner>>>) -> MessageHandler {
    Arc::new(move |inbound| {
        let inner = place.get().and_then(Weak::upgrade);
        Box::pin(async move {
            match inner {
                Some(inner) => inner.accept(inbound).await,
                None => Err(capacity_error("the gateway is not running")),
            }
        })
    })
}

fn capacity_error(reason: impl Into<String>) -> Error {
    Error::new(ErrorKind::Temporary, reason).with_retry_after(RETRY_DELAY)
}

impl GatewayInner {
    pub(crate) fn channel(&self, name: &str) -> Option<Arc<dyn Channel>> {
        self.channels
            .get(name)
            .map(|entry| Arc::clone(&entry.channel))
    }

    /// The channel that stands in for those that are not part of the gateway.
    pub(crate) fn catch_all(&self) -> Option<&str> {
        let name = self.options.catch_all.as_deref()?;
        self.channels.contains_key(name).then_some(name)
    }

    /// The channel, when it can send.
    pub(crate) fn running_channel(&self, name: &str) -> Option<Arc<dyn Channel>> {
        let entry = self.channels.get(name)?;
        (lock(&entry.state).phase == ChannelPhase::Running).then(|| Arc::clone(&entry.channel))
    }

    pub(crate) fn note_error(&self, channel: &str, error: &str) {
        if let Some(entry) = self.channels.get(channel) {
            lock(&entry.state).last_error = Some(error.to_owned());
        }
    }

    /// A text without secrets.
    pub(crate) fn redact(&self, text: &str) -> String {
        let redactor = self.framework.settings().redactor();
        redactor.redact(text).into_owned()
    }

    /// Takes a message: it returns when the message is in the journal, or was refused with the reason.
    async fn accept(self: &Arc<Self>, mut inbound: Inbound) -> Result<()> {
        if self.drain.is_cancelled() {
            return Err(capacity_error("the gateway is stopping"));
        }
        if !self.is_open.load(Ordering::Acquire) {
            return Err(capacity_error("the gateway is not running"));
        }
        let name = inbound.message.channel().unwrap_or_default().into_owned();
        let entry = self.channels.get(&name);
        let Some(entry) = entry.or_else(|| self.channels.get(self.catch_all()?)) else {
            tracing::warn!(channel = %name, "gateway.unknown_channel");
            return Err(Error::invalid_input(format!(
                "there is no channel `{name}` here"
            )));
        };
        if let Some((id, answer)) = control::approval(&inbound.message) {
            return control::answer(self, &inbound, &id, answer).await;
        }
        let arrival = Lanes::announce(self, lane::chat_key(&inbound.message));
        let resolved = tokio::select! {
            biased;
            () = self.refuse.cancelled() => {
                tracing::warn!(channel = %name, "gateway.message_refused");
                return Err(capacity_error("the gateway is stopping"));
            }
            resolved = self.framework.resolve_session(&mut inbound) => resolved,
        };
        if let Err(error) = resolved {
            return Err(self.reject(inbound, error).await);
        }
        let session_id = inbound.session_id().cloned().unwrap_or_default();
        let (seat, permit) = self
            .reserve_capacity(&name, &session_id, inbound.is_quit())
            .await?;
        let id = self.journal.next_message_id();
        let receipt = inbound.receipt.clone();
        let key = receipt.as_ref().and_then(|receipt| receipt.key());
        let key = key.map(|key| format!("{name}:{key}"));
        if let Some(key) = &key
            && let Some(owner) = self.reserve_key(key, &id).await?
        {
            if let Some(receipt) = receipt {
                self.answer_duplicate(&receipt, &owner).await?;
            }
            return Ok(());
        }
        let accepted = AcceptedMessage {
            id: id.clone(),
            at: now(),
            session: session_id,
            key: key.clone(),
            sender: inbound
                .known_sender()
                .map(|sender| StoredSender::new(sender)),
            message: raw(&inbound.message)?,
        };
        if let Err(error) = self.journal.append(JournalRecord::Accepted(accepted)).await {
            if let Some(key) = key {
                self.journal.live().release(&key, &id);
            }
            self.note_error(&name, error.message());
            return Err(error);
        }
        if let Some(receipt) = receipt {
            receipt.accept(&id, false);
        }
        lock(&entry.state).accepted += 1;
        enqueue(arrival, id, inbound, (seat, permit));
        Ok(())
    }

    /// Ends a message whose session cannot be resolved: it is recorded, and its sender told.
    async fn reject(self: &Arc<Self>, mut inbound: Inbound, error: Error) -> Error {
        // If nothing can be written, nobody can be told anything else.
        if let Err(refusal) = self.journal.append(JournalRecord::Mark).await {
            return refusal;
        }
        let id = self.journal.next_message_id();
        let scope = ReplyScope::new(self, id, &inbound.message).without_claim();
        let scope = Arc::new(scope);
        inbound.reply_target = Some(Arc::clone(&scope) as _);
        let turn = self.framework.reject_inbound(inbound, &error).await;
        if error.kind() == ErrorKind::Cancelled {
            // Whoever cancelled it knows.
            return error;
        }
        if router::report_failure(self, turn.session_id(), &scope, TURN_FAILED_TEXT).await {
            error.reported()
        } else {
            error
        }
    }

    /// Reserves an idempotency key for a message; the message that has it already.
    async fn reserve_key(&self, key: &str, id: &MessageId) -> Result<Option<MessageId>> {
        loop {
            let owner = self.journal.live().reserve(key, id, now());
            let Some(owner) = owner else {
                return Ok(None);
            };
            // The first may not be written yet, and may yet fail.
            self.journal.append(JournalRecord::Mark).await?;
            if self.journal.live().owner(key) == Some(&owner) {
                return Ok(Some(owner));
            }
        }
    }

    /// Names the first message with the same key on the receipt of another one.
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

    /// Room for a message, or the reason why there is none. There is always room for a `,quit`, which makes some.
    async fn reserve_capacity(
        self: &Arc<Self>,
        channel: &str,
        session_id: &SessionId,
        is_quit: bool,
    ) -> Result<(QueueSlot, Option<OwnedSemaphorePermit>)> {
        let most = self.options.session_queue;
        let extra = if is_quit { QUIT_CAPACITY } else { 0 };
        let Some(seat) = Lanes::reserve(self, session_id, most.saturating_add(extra)) else {
            let full = capacity_error(format!(
                "{most} messages of this session wait already; try again later"
            ));
            return Err(full.with_kind(ErrorKind::SessionFull));
        };
        if is_quit {
            return Ok((seat, None));
        }
        let undelivered = self.journal.live().undelivered(channel);
        if undelivered >= self.options.queue {
            return Err(capacity_error(format!(
                "{undelivered} replies cannot be delivered; see `bub outbox list`"
            )));
        }
        match tokio::time::timeout(QUEUE_WAIT_TIMEOUT, Arc::clone(&self.room).acquire_owned()).await
        {
            Ok(Ok(permit)) => Ok((seat, Some(permit))),
            _ => Err(capacity_error(
                "too many messages wait already; try again later",
            )),
        }
    }

    /// Puts what the journal holds where it was.
    async fn recover(self: &Arc<Self>) {
        Outbox::drop_expired_unclaimed(self);
        let (inbounds, outgoing) = {
            let live = self.journal.live();
            (
                live.inbounds().cloned().collect::<Vec<_>>(),
                live.outgoing().cloned().collect::<Vec<_>>(),
            )
        };
        let mut items: HashMap<MessageId, (SessionId, QueuedMessage)> = HashMap::new();
        let mut order = Vec::with_capacity(inbounds.len());
        let (mut groups, mut steered) = (Vec::new(), Vec::new());
        let mut kept: BTreeMap<String, usize> = BTreeMap::new();
        for message in inbounds {
            let accepted = &message.accepted;
            let mut inbound = accepted.inbound();
            let name = inbound.message.channel().unwrap_or_default().into_owned();
            let Some(channel) = self.channel(&name) else {
                // Nobody would hear the answer.
                *kept.entry(name).or_default() += 1;
                continue;
            };
            channel.restore(&mut inbound);
            let mut item = QueuedMessage::new(accepted.id.clone(), inbound);
            (item.attempt, item.is_recovered) = (message.attempt, true);
            // Without room it is taken all the same: it was accepted.
            item.permit = Arc::clone(&self.room).try_acquire_owned().ok();
            order.push(accepted.id.clone());
            if !message.with.is_empty() {
                groups.push((accepted.id.clone(), message.with.clone()));
            }
            steered.extend(message.into.map(|into| (accepted.id.clone(), into)));
            items.insert(accepted.id.clone(), (message.session.clone(), item));
        }
        for (channel, messages) in kept {
            let hint = "enable the channel to process these messages";
            tracing::warn!(%channel, messages, hint, "gateway.messages_kept");
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
        let mut resolving: Vec<BoxFuture<'_, (SessionId, QueuedMessage)>> =
            Vec::with_capacity(order.len());
        for (session_id, item) in order.iter().filter_map(|id| items.remove(id)) {
            resolving.push(Box::pin(self.resolve_again(session_id, item)));
        }
        let mut resolving = stream::iter(resolving).buffered(RESOLVE_CONCURRENCY);
        while let Some((session_id, item)) = resolving.next().await {
            Lanes::push(self, &session_id, item);
        }
        for outgoing in outgoing.into_iter().filter(|outgoing| !outgoing.is_stuck) {
            Outbox::send(self, OutboxItem::stored(outgoing.reply, outgoing.attempt));
        }
    }

    /// Names the session of a recovered message. Its chat may have switched since it was accepted, so one that never
    /// began is resolved again; without a result it stays where it was.
    async fn resolve_again(
        &self,
        accepted: SessionId,
        mut item: QueuedMessage,
    ) -> (SessionId, QueuedMessage) {
        if item.attempt > 0 {
            return (accepted, item);
        }
        if let Err(error) = self.framework.resolve_session(&mut item.inbound).await {
            tracing::warn!(session_id = %accepted, inbound_id = %item.id, %error, "gateway.resolve_failed");
        }
        let resolved = item.inbound.session_id().cloned();
        (resolved.unwrap_or(accepted), item)
    }

    /// Waits until no message is being accepted, no turn runs and no reply is being delivered.
    async fn wait_drained(&self) {
        self.idle_when(|inner| {
            !inner.lanes.has_arrivals() && inner.lanes.is_empty() && !inner.outbox.is_busy()
        })
        .await;
    }

    async fn wait_for_lanes(&self) {
        self.idle_when(|inner| inner.lanes.is_empty()).await;
    }

    async fn idle_when(&self, is_idle: impl Fn(&Self) -> bool) {
        loop {
            // Before the check: what happens in between is noticed.
            let mut notified = std::pin::pin!(self.idle.notified());
            notified.as_mut().enable();
            if is_idle(self) {
                return;
            }
            notified.await;
        }
    }
}

/// Hands an accepted message to its lane.
fn enqueue(
    arrival: Arrival,
    id: MessageId,
    inbound: Inbound,
    (seat, permit): (QueueSlot, Option<OwnedSemaphorePermit>),
) {
    let session_id = inbound.session_id().cloned().unwrap_or_default();
    let item = QueuedMessage {
        permit,
        seat: Some(seat),
        ..QueuedMessage::new(id, inbound)
    };
    arrival.push(&session_id, item);
}
