//! Starts, restarts and stops channels independently of each other.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use bub_kernel::{ChannelRole, Error, Result};
use futures_util::FutureExt as _;
use tokio::{sync::oneshot, task::JoinSet};

use crate::gateway::{ChannelPhase, GatewayInner};

/// Delay before the first restart of a channel. It doubles with each failure.
const INITIAL_BACKOFF: Duration = Duration::from_secs(1);
/// Maximum delay before a restart.
const MAX_BACKOFF: Duration = Duration::from_mins(1);
/// How long a channel may take to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Starts every channel in its own task. Returns when each channel has started or failed once, or after
/// [`INITIAL_BACKOFF`].
pub(crate) async fn start_channels(inner: &Arc<GatewayInner>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let mut first_attempts = Vec::new();
    for name in inner.channels.keys().cloned() {
        let (attempted, first_attempt) = oneshot::channel();
        first_attempts.push(first_attempt);
        tasks.spawn(start_with_retries(Arc::clone(inner), name, attempted));
    }
    let first_attempts = futures_util::future::join_all(first_attempts);
    let _ = tokio::time::timeout(INITIAL_BACKOFF, first_attempts).await;
    tasks
}

async fn start_with_retries(
    inner: Arc<GatewayInner>,
    name: String,
    attempted: oneshot::Sender<()>,
) {
    let mut attempted = Some(attempted);
    let Some(entry) = inner.channels.get(&name) else {
        return;
    };
    let mut pause = INITIAL_BACKOFF;
    loop {
        let starting = catch_channel_panic(entry.channel.start(inner.stop.clone()));
        let Err(error) = starting.await else { break };
        let text = inner.redact(error.message());
        let delay = pause.max(error.retry_after().unwrap_or_default());
        let delay_ms = delay.as_millis();
        tracing::error!(channel = %name, delay_ms, error = %text, "channel.start_failed");
        {
            let mut state = entry.state.lock();
            (state.phase, state.last_error) = (ChannelPhase::Failed, Some(text));
        }
        drop(attempted.take());
        let _ = tokio::time::timeout(STOP_TIMEOUT, catch_channel_panic(entry.channel.stop())).await;
        tokio::time::sleep(delay).await;
        pause = (pause * 2).min(MAX_BACKOFF);
        entry.state.lock().phase = ChannelPhase::Starting;
    }
    entry.state.lock().phase = ChannelPhase::Running;
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
        let stopped = catch_channel_panic(entry.channel.stop());
        let stopped = tokio::time::timeout(STOP_TIMEOUT, stopped).await;
        let stopped = stopped.unwrap_or_else(|_| Err(Error::unknown("timed out")));
        if let Err(error) = stopped {
            let error = inner.redact(error.message());
            tracing::error!(channel = %name, %error, "channel.stop_failed");
        }
        entry.state.lock().phase = ChannelPhase::Stopped;
    });
    futures_util::future::join_all(stopping).await;
}

async fn catch_channel_panic(work: impl Future<Output = Result<()>>) -> Result<()> {
    AssertUnwindSafe(work)
        .catch_unwind()
        .await
        .unwrap_or_else(|_| {
            Err(Error::unknown(
                "channel panicked: this is a bug in the channel; see the log for the panic",
            ))
        })
}
