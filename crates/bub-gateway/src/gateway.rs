//! The gateway: accepts messages, runs the channels, and stops without losing accepted messages.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bub_kernel::{
    CancellationToken, Channel, Error, Framework, MessageHandler, Result, Service, SessionId,
};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};

use crate::{
    accept,
    journal::{Journal, JournalRecovery},
    lane::Lanes,
    options::{GatewayOptions, JournalKind},
    outbox::Outbox,
    router::Router,
    selection, status,
    supervision::{self, ActiveService, RunPhase, RunState},
};

/// A gateway that is ready to run.
pub struct Gateway {
    inner: Arc<GatewayInner>,
    recovered: JournalRecovery,
}

/// Handle to a gateway, valid while it runs and afterwards.
#[derive(Clone)]
pub struct GatewayHandle(Arc<GatewayInner>);

impl GatewayHandle {
    /// Cancels all running turns of a session. Its queued messages then run.
    ///
    /// A session normally runs one turn at a time. Several run only if admission decided
    /// [`AdmissionDecision::Process`](bub_kernel::AdmissionDecision::Process) for a message while a turn was running.
    pub fn cancel_turns(&self, session_id: &SessionId) {
        self.0.lanes.cancel_turns(session_id);
    }

    /// Drops the last queued message of a session.
    pub fn withdraw_last(&self, session_id: &SessionId) {
        self.0.lanes.withdraw_last(session_id);
    }

    /// Returns the number of unfinished messages. When the gateway stops, a journal on disk keeps them for the next
    /// start.
    pub fn unfinished_count(&self) -> usize {
        self.0.journal.lock_state().unfinished_messages().count()
    }

    /// Returns the number of replies that are queued for delivery.
    pub fn queued_reply_count(&self) -> usize {
        let state = self.0.journal.lock_state();
        let replies = state.undelivered_replies();
        replies.filter(|undelivered| !undelivered.is_stuck).count()
    }

    /// Returns the name of each channel that is not running, with its last error or `still starting`.
    pub fn stopped_channels(&self) -> Vec<(String, String)> {
        let reason = |(name, entry): (&String, &ActiveChannel)| {
            let state = entry.state.lock();
            let reason = state.last_error.as_deref().unwrap_or("still starting");
            (state.phase != RunPhase::Running).then(|| (name.clone(), reason.to_owned()))
        };
        self.0.channels.iter().filter_map(reason).collect()
    }

    /// Returns the replies that a channel failed to send, each as its channel, its text and the last error. The gateway
    /// may still retry them.
    pub fn failed_replies(&self) -> Vec<(String, String, String)> {
        let state = self.0.journal.lock_state();
        let failed = state.undelivered_replies().filter_map(|undelivered| {
            let (reply, error) = (&undelivered.reply, undelivered.error.clone()?);
            let text = reply.to_envelope().content().into_owned();
            Some((reply.channel.clone(), text, error))
        });
        failed.collect()
    }

    /// Returns whether every message is finished and every reply is delivered.
    pub fn is_settled(&self) -> bool {
        let live = self.0.journal.lock_state();
        live.unfinished_messages().next().is_none() && live.undelivered_replies().next().is_none()
    }
}

impl std::fmt::Debug for GatewayHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("GatewayHandle")
    }
}

/// Data shared by all tasks of a gateway.
pub(crate) struct GatewayInner {
    pub(crate) framework: Framework,
    pub(crate) options: GatewayOptions,
    pub(crate) journal: Journal,
    pub(crate) lanes: Lanes,
    pub(crate) outbox: Outbox,
    pub(crate) channels: BTreeMap<String, ActiveChannel>,
    pub(crate) services: BTreeMap<String, ActiveService>,
    /// Permits for unfinished messages.
    pub(crate) room: Arc<Semaphore>,
    /// Permits for running turns.
    pub(crate) turns: Arc<Semaphore>,
    /// Notified when a lane ends, when the outbox is no longer busy, and when a message is accepted or rejected.
    pub(crate) idle: Notify,
    /// Whether messages are accepted. False until recovered messages are in their lanes.
    pub(crate) is_open: AtomicBool,
    /// Cancelled when the gateway accepts no new messages.
    pub(crate) drain: CancellationToken,
    /// Cancelled to reject the messages that are still being accepted. Their senders can send them again.
    pub(crate) refuse: CancellationToken,
    /// Cancelled when lanes and deliveries must stop at once.
    pub(crate) halt: CancellationToken,
    /// Cancelled when channels must stop. A channel can cancel it to stop the gateway.
    pub(crate) stop: CancellationToken,
}

/// A channel that the gateway runs.
pub(crate) struct ActiveChannel {
    pub(crate) channel: Arc<dyn Channel>,
    pub(crate) state: Mutex<RunState>,
    /// The number of messages that the gateway accepted from the channel.
    pub(crate) accepted: AtomicU64,
}

impl Gateway {
    /// Opens the journal, and selects the channels of the plugins by name and all their services. Does not start them.
    ///
    /// # Errors
    ///
    /// Fails if no channel is enabled and no plugin has a service, or if the journal cannot be
    /// opened.
    pub fn open(framework: &Framework, options: GatewayOptions, names: &[String]) -> Result<Self> {
        let gateway_ref = Arc::new(OnceLock::<Weak<GatewayInner>>::new());
        let all = framework.channels(&message_handler(Arc::clone(&gateway_ref)))?;
        let selected = selection::select_channels(names, &all);
        if let Err(error) = selection::check_channel_names(names, &all) {
            if selected.is_empty() {
                return Err(error);
            }
            // The plugin of the channel may not be installed. The other channels run, as in the Python version.
            tracing::warn!(%error, "gateway.channel_unknown");
        }
        let services = framework.background_services()?;
        if selected.is_empty() && services.is_empty() {
            let names: Vec<_> = all.iter().map(|channel| channel.name()).collect();
            let names = if names.is_empty() {
                "a channel".to_owned()
            } else {
                names.join(" or ")
            };
            return Err(Error::unknown(format!(
                "no channel is enabled; configure {names}, or set `enabled_channels`"
            )));
        }
        Self::from_parts(framework, options, selected, services, &gateway_ref)
    }

    /// Opens the journal for the channels of an embedding program, without the channels and services of plugins. `make`
    /// creates the channels. Its argument is the handler to which the channels pass their messages.
    pub fn with_channels(
        framework: &Framework,
        options: GatewayOptions,
        make: impl FnOnce(&MessageHandler) -> Vec<Arc<dyn Channel>>,
    ) -> Result<Self> {
        let gateway_ref = Arc::new(OnceLock::<Weak<GatewayInner>>::new());
        let channels = make(&message_handler(Arc::clone(&gateway_ref)));
        Self::from_parts(framework, options, channels, Vec::new(), &gateway_ref)
    }

    fn from_parts(
        framework: &Framework,
        options: GatewayOptions,
        channels: Vec<Arc<dyn Channel>>,
        services: Vec<Arc<dyn Service>>,
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
            let (name, state) = (channel.name().to_owned(), Mutex::default());
            let accepted = AtomicU64::new(0);
            (
                name,
                ActiveChannel {
                    channel,
                    state,
                    accepted,
                },
            )
        };
        let service_entry = |service: Arc<dyn Service>| {
            let (name, state) = (service.name().to_owned(), Mutex::default());
            (name, ActiveService { service, state })
        };
        let inner = Arc::new(GatewayInner {
            framework: framework.clone(),
            journal,
            lanes: Lanes::default(),
            outbox: Outbox::new(),
            channels: channels.into_iter().map(entry).collect(),
            services: services.into_iter().map(service_entry).collect(),
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
        // Cannot fail: no other code sets the reference.
        let _ = gateway_ref.set(Arc::downgrade(&inner));
        Ok(Self { inner, recovered })
    }

    /// Returns the counts of messages and replies that were recovered from the journal.
    pub fn recovery(&self) -> JournalRecovery {
        self.recovered
    }

    /// Returns the names of the selected channels, sorted.
    pub fn channel_names(&self) -> Vec<String> {
        self.inner.channels.keys().cloned().collect()
    }

    /// Checks the settings of the selected channels.
    pub fn validate_settings(&self) -> Result<()> {
        let mut entries = self.inner.channels.values();
        entries.try_for_each(|entry| entry.channel.validate_settings())
    }

    /// Returns the name of each selected channel with a summary of who has access to it. Omits channels without a
    /// summary.
    pub fn access_summaries(&self) -> Vec<(String, String)> {
        let named = |(name, entry): (&String, &ActiveChannel)| {
            Some((name.clone(), entry.channel.access_summary()?))
        };
        self.inner.channels.iter().filter_map(named).collect()
    }

    /// Returns a handle that works while the gateway runs and afterwards.
    pub fn handle(&self) -> GatewayHandle {
        GatewayHandle(Arc::clone(&self.inner))
    }

    /// Calls `ready` when the gateway accepts messages. Runs until `stop` is cancelled or a channel stops the gateway.
    /// Then finishes running turns and services within [`GatewayOptions::drain`].
    ///
    /// The framework's [`RunningScope`](bub_kernel::RunningScope) must be open.
    pub async fn run(self, stop: CancellationToken, ready: impl FnOnce()) -> Result<()> {
        let inner = &self.inner;
        let router = Router(Arc::downgrade(inner));
        inner.framework.bind_router(Some(Arc::new(router)));
        // Put recovered messages into their lanes before new messages are accepted, because recovered messages run
        // first.
        inner.recover_unfinished().await;
        inner.is_open.store(true, Ordering::Release);
        let listening = status::open_socket(inner)?;
        let channels = supervision::start_channels(inner).await;
        let handler = message_handler(Arc::new(OnceLock::from(Arc::downgrade(inner))));
        let mut services = supervision::start_services(inner, &handler);
        ready();
        tokio::select! {
            () = stop.cancelled() => {}
            () = inner.stop.cancelled() => {}
        }
        inner.drain.cancel();
        let services_end = supervision::wait_for_services(&mut services);
        let drained = futures_util::future::join(inner.wait_until_drained(), services_end);
        let _ = tokio::time::timeout(inner.options.drain, drained).await;
        supervision::abort_services(inner, services);
        inner.refuse.cancel();
        supervision::stop_channels(inner, channels).await;
        inner.framework.bind_router(None);
        inner.halt.cancel();
        let lanes_end = inner.wait_until(|inner| inner.lanes.are_idle());
        let _ = tokio::time::timeout(Duration::from_secs(3), lanes_end).await;
        Outbox::settle_shown(inner);
        inner.journal.close().await;
        drop(listening);
        Ok(())
    }
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gateway")
            .field("channels", &self.channel_names())
            .finish_non_exhaustive()
    }
}

/// Returns the handler that passes messages of channels to the gateway. It also works for channels that are created
/// before the gateway.
fn message_handler(gateway_ref: Arc<OnceLock<Weak<GatewayInner>>>) -> MessageHandler {
    Arc::new(move |inbound| {
        let inner = gateway_ref.get().and_then(Weak::upgrade);
        Box::pin(async move {
            match inner {
                Some(inner) => inner.accept_message(inbound).await,
                None => Err(accept::capacity_error(
                    "message rejected: the gateway is not running; send it again later",
                )),
            }
        })
    })
}

impl GatewayInner {
    pub(crate) fn channel(&self, name: &str) -> Option<Arc<dyn Channel>> {
        self.channels
            .get(name)
            .map(|entry| Arc::clone(&entry.channel))
    }

    /// Returns the name of the catch-all channel, if the gateway runs it. It handles the messages of channels that the
    /// gateway does not run.
    pub(crate) fn catch_all_channel(&self) -> Option<&str> {
        let name = self.options.catch_all.as_deref()?;
        self.channels.contains_key(name).then_some(name)
    }

    /// Returns a channel if it is running.
    pub(crate) fn channel_if_running(&self, name: &str) -> Option<Arc<dyn Channel>> {
        let entry = self.channels.get(name)?;
        (entry.state.lock().phase == RunPhase::Running).then(|| Arc::clone(&entry.channel))
    }

    pub(crate) fn set_channel_error(&self, channel: &str, error: &str) {
        if let Some(entry) = self.channels.get(channel) {
            entry.state.lock().last_error = Some(error.to_owned());
        }
    }

    /// Replaces secrets in a text.
    pub(crate) fn redact(&self, text: &str) -> String {
        let redactor = self.framework.settings().redactor();
        redactor.redact(text).into_owned()
    }

    /// Waits until no message is being accepted, no lane has work, and no reply is being sent. Replies that wait for
    /// their next delivery attempt do not count.
    async fn wait_until_drained(&self) {
        self.wait_until(|inner| inner.lanes.are_idle() && !inner.outbox.is_busy())
            .await;
    }

    /// Waits until `is_idle` returns true. Calls it at the start and after each notification of [`GatewayInner::idle`].
    pub(crate) async fn wait_until(&self, is_idle: impl Fn(&Self) -> bool) {
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
