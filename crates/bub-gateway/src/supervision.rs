//! Starts, restarts and stops channels and background services independently of each other.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use bub_kernel::{ChannelRole, Error, MessageHandler, Result, Service, ServiceContext};
use futures_util::FutureExt as _;
use parking_lot::Mutex;
use tokio::{sync::oneshot, task::JoinSet, time::Instant};

use crate::gateway::GatewayInner;

/// Delay before the first restart. It doubles with each failure.
const INITIAL_BACKOFF: Duration = Duration::from_secs(1);
/// Maximum delay before a restart. After work has run for this long, the delay is [`INITIAL_BACKOFF`] again.
const MAX_BACKOFF: Duration = Duration::from_mins(1);
/// How long a channel may take to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Phase and last error of a channel or service.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunState {
    pub(crate) phase: RunPhase,
    pub(crate) last_error: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum RunPhase {
    #[default]
    Starting,
    Running,
    /// The work failed. It is restarted after a delay.
    #[strum(serialize = "restarting")]
    Failed,
    Stopped,
}

/// Starts every channel in its own task. Returns when each channel has started or failed once, or after
/// [`INITIAL_BACKOFF`].
pub(crate) async fn start_channels(inner: &Arc<GatewayInner>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let mut first_attempts = Vec::new();
    for name in inner.channels.keys().cloned() {
        let (attempted, first_attempt) = oneshot::channel();
        first_attempts.push(first_attempt);
        tasks.spawn(start_channel(Arc::clone(inner), name, attempted));
    }
    let first_attempts = futures_util::future::join_all(first_attempts);
    let _ = tokio::time::timeout(INITIAL_BACKOFF, first_attempts).await;
    tasks
}

async fn start_channel(inner: Arc<GatewayInner>, name: String, attempted: oneshot::Sender<()>) {
    let mut attempted = Some(attempted);
    let Some(entry) = inner.channels.get(&name) else {
        return;
    };
    let mut restarts = Restarts::new(&inner, &entry.state);
    loop {
        restarts.begin(RunPhase::Starting);
        let started = catch_panic(entry.channel.start(inner.stop.clone()));
        let Err(error) = started.await else { break };
        let (error, delay) = restarts.record_failure(&error);
        let delay_ms = delay.as_millis();
        tracing::error!(channel = %name, delay_ms, %error, "channel.start_failed");
        drop(attempted.take());
        let _ = tokio::time::timeout(STOP_TIMEOUT, catch_panic(entry.channel.stop())).await;
        tokio::time::sleep(delay).await;
    }
    entry.state.lock().phase = RunPhase::Running;
    drop(attempted);
    // The user of an interface, such as the terminal, sees that it is running, so log this only at the level debug.
    if entry.channel.role() == ChannelRole::Interface {
        tracing::debug!(channel = %name, "channel.running");
    } else {
        tracing::info!(channel = %name, "channel.running");
    }
    // Deliver replies that were queued for the channel.
    inner.outbox.retry_channel(&name);
}

/// Stops all channels. A channel that fails or hangs does not affect the others.
pub(crate) async fn stop_channels(inner: &GatewayInner, mut starting: JoinSet<()>) {
    inner.stop.cancel();
    starting.abort_all();
    let stopping = inner.channels.iter().map(|(name, entry)| async move {
        let stopped = catch_panic(entry.channel.stop());
        let stopped = tokio::time::timeout(STOP_TIMEOUT, stopped).await;
        let stopped = stopped.unwrap_or_else(|_| Err(Error::unknown("timed out")));
        if let Err(error) = stopped {
            let error = inner.redact(error.message());
            tracing::error!(channel = %name, %error, "channel.stop_failed");
        }
        entry.state.lock().phase = RunPhase::Stopped;
    });
    futures_util::future::join_all(stopping).await;
}

/// A service that the gateway runs.
pub(crate) struct ActiveService {
    pub(crate) service: Arc<dyn Service>,
    pub(crate) state: Mutex<RunState>,
}

/// Runs every service in its own task. The tasks end after [`GatewayInner::drain`] is cancelled.
pub(crate) fn start_services(
    inner: &Arc<GatewayInner>,
    message_handler: &MessageHandler,
) -> JoinSet<()> {
    let names = inner.services.keys().cloned();
    names
        .map(|name| {
            let context = ServiceContext::new(
                inner.drain.child_token(),
                Arc::clone(message_handler),
                inner.framework.clone(),
            );
            run_service(Arc::clone(inner), name, context)
        })
        .collect()
}

async fn run_service(inner: Arc<GatewayInner>, name: String, context: ServiceContext) {
    let Some(entry) = inner.services.get(&name) else {
        return;
    };
    let mut restarts = Restarts::new(&inner, &entry.state);
    loop {
        restarts.begin(RunPhase::Running);
        let Err(error) = catch_panic(entry.service.run(context.clone())).await else {
            break;
        };
        let (error, delay) = restarts.record_failure(&error);
        let delay_ms = delay.as_millis();
        tracing::error!(service = %name, delay_ms, %error, "service.failed");
        tokio::select! {
            () = inner.drain.cancelled() => break,
            () = tokio::time::sleep(delay) => {}
        }
    }
    entry.state.lock().phase = RunPhase::Stopped;
}

/// Waits until all services have ended.
pub(crate) async fn wait_for_services(services: &mut JoinSet<()>) {
    while services.join_next().await.is_some() {}
}

/// Reports the services that are still running. Their tasks are aborted when `services` is dropped.
pub(crate) fn abort_services(inner: &GatewayInner, services: JoinSet<()>) {
    for (name, entry) in &inner.services {
        let phase = std::mem::replace(&mut entry.state.lock().phase, RunPhase::Stopped);
        if phase != RunPhase::Stopped {
            tracing::error!(service = %name, "service.stop_timeout");
        }
    }
    drop(services);
}

/// The state of work that is restarted after a failure, and the delay before the next restart.
struct Restarts<'a> {
    inner: &'a GatewayInner,
    state: &'a Mutex<RunState>,
    began_at: Instant,
    next_delay: Duration,
}

impl<'a> Restarts<'a> {
    fn new(inner: &'a GatewayInner, state: &'a Mutex<RunState>) -> Self {
        Self {
            inner,
            state,
            began_at: Instant::now(),
            next_delay: INITIAL_BACKOFF,
        }
    }

    fn begin(&mut self, phase: RunPhase) {
        self.state.lock().phase = phase;
        self.began_at = Instant::now();
    }

    /// Records the failure. Returns its text without secrets, and the delay before the restart.
    fn record_failure(&mut self, error: &Error) -> (String, Duration) {
        let text = self.inner.redact(error.message());
        *self.state.lock() = RunState {
            phase: RunPhase::Failed,
            last_error: Some(text.clone()),
        };
        if self.began_at.elapsed() > MAX_BACKOFF {
            self.next_delay = INITIAL_BACKOFF;
        }
        let retry_after = error.retry_after().unwrap_or_default();
        let delay = self.next_delay.max(retry_after);
        self.next_delay = (self.next_delay * 2).min(MAX_BACKOFF);
        (text, delay)
    }
}

async fn catch_panic(work: impl Future<Output = Result<()>>) -> Result<()> {
    AssertUnwindSafe(work)
        .catch_unwind()
        .await
        .unwrap_or_else(|_| {
            Err(Error::unknown(
                "panicked: this is a bug in the plugin; see the log for the panic",
            ))
        })
}
