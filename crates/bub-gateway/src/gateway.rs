//! The gateway: accepts messages, runs the channels, and stops without losing accepted messages.

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

/// How long a message waits for a free place in the queue before it is rejected.
const QUEUE_WAIT_TIMEOUT: Duration = Duration::from_secs(5);
/// When a sender may retry a message that was rejected for lack of capacity.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Number of `,quit` commands that a session accepts beyond its limit, because they free capacity.
const QUIT_CAPACITY: usize = 16;
/// Maximum number of recovered messages whose session is resolved concurrently.
const RESOLVE_CONCURRENCY: usize = 16;

/// A gateway that is ready to run.
pub struct Gateway {
    inner: Arc<GatewayInner>,
    recovered: JournalRecovery,
}

/// Handle to a gateway, valid while it runs and afterwards.
#[derive(Clone)]
pub struct GatewayHandle(Arc<GatewayInner>);

impl GatewayHandle {
    /// Cancels the running turns of a session. Queued messages run next.
    pub fn cancel(&self, session_id: &SessionId) {
        self.0.lanes.cancel(session_id);
    }

    /// Drops the last queued message of a session.
    pub fn withdraw(&self, session_id: &SessionId) {
        self.0.lanes.withdraw(session_id);
    }

    /// Returns the number of unfinished messages. The next gateway processes them.
    pub fn unfinished(&self) -> usize {
        self.0.journal.live().inbounds().count()
    }

    /// Returns the channels that are not running, with the reason.
    pub fn not_running(&self) -> Vec<(String, String)> {
        let reason = |(name, entry): (&String, &ActiveChannel)| {
            let state = lock(&entry.state);
            let reason = || {
                state
                    .last_error
                    .clone()
                    .unwrap_or_else(|| "still starting".to_owned())
            };
            (state.phase != ChannelPhase::Running).then(|| (name.clone(), reason()))
        };
        self.0.channels.iter().filter_map(reason).collect()
    }

    /// Returns whether every message is finished and every reply is delivered.
    pub fn is_settled(&self) -> bool {
        let live = self.0.journal.live();
        live.inbounds().next().is_none() && live.outgoing().next().is_none()
    }
}

impl std::fmt::Debug for GatewayHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("GatewayHandle")
    }
}

/// State shared by all parts of a gateway.
pub(crate) struct GatewayInner {
    pub(crate) framework: Framework,
    pub(crate) options: GatewayOptions,
    pub(crate) journal: Journal,
    pub(crate) lanes: Lanes,
    pub(crate) outbox: Outbox,
    pub(crate) channels: HashMap<String, ActiveChannel>,
    room: Arc<Semaphore>,
    /// Permits for running turns.
    pub(crate) turns: Arc<Semaphore>,
    /// Notified when there may be no lane left, or no reply that is being sent.
    pub(crate) idle: Notify,
    /// Whether messages are accepted. False until recovered messages are in their lanes.
    is_open: AtomicBool,
    /// Cancelled when the gateway accepts no new messages.
    pub(crate) drain: CancellationToken,
    /// Cancelled when messages that are still being accepted are rejected. Their senders can send them again.
    refuse: CancellationToken,
    /// Cancelled when everything must stop at once.
    pub(crate) halt: CancellationToken,
    /// Cancelled when channels must stop. A channel can cancel it to stop the gateway.
    pub(crate) stop: CancellationToken,
}

/// A channel that the gateway runs.
pub(crate) struct ActiveChannel {
    pub(crate) channel: Arc<dyn Channel>,
    pub(crate) state: Mutex<ChannelState>,
}

/// State of a channel.
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
    /// The start failed. The channel restarts after a delay.
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
    /// Opens the journal and selects the channels of the plugins by name. Does not start them.
    ///
    /// # Errors
    ///
    /// Fails if a name is unknown, if no channel is enabled, or if the journal cannot be opened.
    pub fn open(framework: &Framework, options: GatewayOptions, names: &[String]) -> Result<Self> {
        let gateway_ref = Arc::new(OnceLock::<Weak<GatewayInner>>::new());
        let all = framework.channels(&handler(Arc::clone(&gateway_ref)))?;
        selection::check_names(names, &all)?;
        let chosen = selection::select_channels(names, &all);
        if chosen.is_empty() {
            let known: Vec<_> = all.iter().map(|channel| channel.name()).collect();
            let known = if known.is_empty() {
                "a channel".to_owned()
            } else {
                known.join(" or ")
            };
            return Err(Error::unknown(format!(
                "no channel is enabled; configure {known}, or set `enabled_channels`"
            )));
        }
        Self::build(framework, options, chosen, &gateway_ref)
    }

    /// Opens the journal for the channels of an embedding program, without the channels of plugins. `make` gets the
    /// handler that accepts the channels' messages.
    pub fn with_channels(
        framework: &Framework,
        options: GatewayOptions,
        make: impl FnOnce(&MessageHandler) -> Vec<Arc<dyn Channel>>,
    ) -> Result<Self> {
        let gateway_ref = Arc::new(OnceLock::<Weak<GatewayInner>>::new());
        let channels = make(&handler(Arc::clone(&gateway_ref)));
        Self::build(framework, options, channels, &gateway_ref)
    }

    fn build(
        framework: &Framework,
        options: GatewayOptions,
        channels: Vec<Arc<dyn Channel>>,
        gateway_ref: &OnceLock<Weak<GatewayInner>>,
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
        // This is the only place that sets it.
        let _ = gateway_ref.set(Arc::downgrade(&inner));
        Ok(Self { inner, recovered })
    }

    /// Returns what was recovered from the journal.
    pub fn recovered(&self) -> JournalRecovery {
        self.recovered
    }

    /// Returns the names of the selected channels, sorted.
    pub fn channels(&self) -> Vec<String> {
        let mut names: Vec<_> = self.inner.channels.keys().cloned().collect();
        names.sort_unstable();
        names
    }

    /// Checks the settings of the selected channels.
    pub fn validate(&self) -> Result<()> {
        for name in self.channels() {
            if let Some(entry) = self.inner.channels.get(&name) {
                entry.channel.validate()?;
            }
        }
        Ok(())
    }

    /// Returns who has access to each selected channel, as pairs of name and summary.
    pub fn access_summaries(&self) -> Vec<(String, String)> {
        let named = |name: String| {
            Some((
                name.clone(),
                self.inner.channels.get(&name)?.channel.access_summary()?,
            ))
        };
        self.channels().into_iter().filter_map(named).collect()
    }

    /// Returns a handle that works while the gateway runs and afterwards.
    pub fn handle(&self) -> GatewayHandle {
        GatewayHandle(Arc::clone(&self.inner))
    }

    /// Runs until `stop` is cancelled or a channel stops the gateway. Then finishes running turns within
    /// [`GatewayOptions::drain`]. Calls `ready` once messages are accepted.
    ///
    /// The framework's running scope must be open.
    pub async fn run(self, stop: CancellationToken, ready: impl FnOnce()) -> Result<()> {
        let inner = &self.inner;
        inner
            .framework
            .bind_router(Some(Arc::new(Router(Arc::downgrade(inner)))));
        // Recovered messages go first, so this is done before new ones are accepted.
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

/// Returns the handler for channels, which are created before the gateway.
fn handler(gateway_ref: Arc<OnceLock<Weak<GatewayInner>>>) -> MessageHandler {
    Arc::new(move |inbound| {
        let inner = gateway_ref.get().and_then(Weak::upgrade);
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

    /// Returns the channel that handles messages of channels that the gateway does not run.
    pub(crate) fn catch_all(&self) -> Option<&str> {
        let name = self.options.catch_all.as_deref()?;
        self.channels.contains_key(name).then_some(name)
    }

    /// Returns a channel if it is running.
    pub(crate) fn running_channel(&self, name: &str) -> Option<Arc<dyn Channel>> {
        let entry = self.channels.get(name)?;
        (lock(&entry.state).phase == ChannelPhase::Running).then(|| Arc::clone(&entry.channel))
    }

    pub(crate) fn note_error(&self, channel: &str, error: &str) {
        if let Some(entry) = self.channels.get(channel) {
            lock(&entry.state).last_error = Some(error.to_owned());
        }
    }

    /// Replaces secrets in a text.
    pub(crate) fn redact(&self, text: &str) -> String {
        let redactor = self.framework.settings().redactor();
        redactor.redact(text).into_owned()
    }

    /// Accepts a message. Returns when the message is in the journal, or the error if it was rejected.
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
            return Err(Error::invalid_input(format!("unknown channel `{name}`")));
        };
        if let Some((id, answer)) = control::parse_approval(&inbound.message) {
            return control::answer_approval(self, &inbound, &id, answer).await;
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
        let (slot, permit) = self
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
        enqueue(arrival, id, inbound, (slot, permit));
        Ok(())
    }

    /// Rejects a message whose session cannot be resolved. Records the failure and notifies the sender.
    async fn reject(self: &Arc<Self>, mut inbound: Inbound, error: Error) -> Error {
        // If the journal cannot be written, a notice cannot be sent either.
        if let Err(refusal) = self.journal.append(JournalRecord::Mark).await {
            return refusal;
        }
        let id = self.journal.next_message_id();
        let scope = ReplyScope::new(self, id, &inbound.message).without_claim();
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
            // The first message may not be written yet, and writing it may fail.
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

    /// Reserves capacity for a message. Fails if a limit is reached. A `,quit` ignores the total limit, because it
    /// frees capacity.
    async fn reserve_capacity(
        self: &Arc<Self>,
        channel: &str,
        session_id: &SessionId,
        is_quit: bool,
    ) -> Result<(QueueSlot, Option<OwnedSemaphorePermit>)> {
        let most = self.options.session_queue;
        let extra = if is_quit { QUIT_CAPACITY } else { 0 };
        let Some(slot) = Lanes::reserve(self, session_id, most.saturating_add(extra)) else {
            let full = capacity_error(format!(
                "this session already has {most} queued messages; try again later"
            ));
            return Err(full.with_kind(ErrorKind::SessionFull));
        };
        if is_quit {
            return Ok((slot, None));
        }
        let undelivered = self.journal.live().undelivered(channel);
        if undelivered >= self.options.queue {
            return Err(capacity_error(format!(
                "the channel has {undelivered} undelivered replies; run `bub outbox list`"
            )));
        }
        match tokio::time::timeout(QUEUE_WAIT_TIMEOUT, Arc::clone(&self.room).acquire_owned()).await
        {
            Ok(Ok(permit)) => Ok((slot, Some(permit))),
            _ => Err(capacity_error(
                "too many messages are queued; try again later",
            )),
        }
    }

    /// Puts recovered messages into their lanes and recovered replies into the outbox.
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
                // The channel does not run, so the answer could not be delivered.
                *kept.entry(name).or_default() += 1;
                continue;
            };
            channel.restore(&mut inbound);
            let mut item = QueuedMessage::new(accepted.id.clone(), inbound);
            (item.attempt, item.is_recovered) = (message.attempt, true);
            // The message was accepted, so it is queued even without a permit.
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
        // Messages that were merged into one turn are merged again.
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
        // Messages that steered a turn go with it again: only the turn knows whether it has read them.
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

    /// Resolves the session of a recovered message again if no turn has started for it, because its chat may have
    /// switched to another session. If that fails, the message keeps its session.
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
            // Subscribe before the check, so that a notification in between is not lost.
            let mut notified = std::pin::pin!(self.idle.notified());
            notified.as_mut().enable();
            if is_idle(self) {
                return;
            }
            notified.await;
        }
    }
}

/// Passes an accepted message to its lane.
fn enqueue(
    arrival: Arrival,
    id: MessageId,
    inbound: Inbound,
    (slot, permit): (QueueSlot, Option<OwnedSemaphorePermit>),
) {
    let session_id = inbound.session_id().cloned().unwrap_or_default();
    let item = QueuedMessage {
        permit,
        slot: Some(slot),
        ..QueuedMessage::new(id, inbound)
    };
    arrival.push(&session_id, item);
}
