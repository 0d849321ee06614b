//! A gateway in a task of the test, and a model that follows its prompt. The feature `testing` enables this module.
#![expect(
    clippy::unwrap_used,
    reason = "a test stops at the first surprise; test code for other crates"
)]

mod model;

use std::time::Duration;

use bub_kernel::{CancellationToken, Framework, Result, RunningScope};
use tokio::{sync::oneshot, task::JoinHandle};

pub use self::model::{FakeModel, written_message};
use crate::{Gateway, GatewayHandle, GatewayOptions, JournalKind, JournalRecovery};

/// Returns options with this journal, independent of settings.
pub fn options(journal: JournalKind) -> GatewayOptions {
    GatewayOptions {
        journal,
        catch_all: None,
        debounce: Duration::from_secs(1),
        max_wait: Duration::from_secs(10),
        active_window: Duration::from_mins(1),
        stream_output: false,
        drain: Duration::from_secs(30),
        session_queue: 100,
        queue: 10_000,
        turns: 1_000,
    }
}

/// A gateway that runs in a task, in the scope of its framework.
#[derive(Debug)]
pub struct RunningGateway {
    recovery: JournalRecovery,
    handle: GatewayHandle,
    stop: CancellationToken,
    task: JoinHandle<Result<()>>,
}

impl RunningGateway {
    /// Opens the scope of the framework and starts a gateway with the channels of these names; `all` selects all enabled
    /// channels. Returns when the gateway is ready.
    ///
    /// # Errors
    ///
    /// Fails if the scope or the gateway cannot be opened.
    pub async fn start(
        framework: &Framework,
        options: GatewayOptions,
        channels: &[&str],
    ) -> Result<Self> {
        let channels: Vec<String> = channels.iter().map(|&name| name.to_owned()).collect();
        let scope = framework.open_scope().await?;
        let gateway = Gateway::open(framework, options, &channels)?;
        Ok(Self::run(gateway, scope).await)
    }

    /// Starts a gateway in a scope. Returns when the gateway is ready.
    pub async fn run(gateway: Gateway, scope: RunningScope) -> Self {
        let (recovery, handle) = (gateway.recovery(), gateway.handle());
        let (stop, (ready, is_ready)) = (CancellationToken::new(), oneshot::channel());
        let until = stop.clone();
        let task = tokio::spawn(async move {
            let ended = gateway
                .run(until, || ready.send(()).unwrap_or_default())
                .await;
            ended.and(scope.close().await)
        });
        // The sender is dropped if the gateway fails; `stop` and `wait` return the error.
        let _ = is_ready.await;
        Self {
            recovery,
            handle,
            stop,
            task,
        }
    }

    /// Returns what the gateway found in its journal.
    pub fn recovery(&self) -> JournalRecovery {
        self.recovery
    }

    /// Returns a handle to the gateway.
    pub fn handle(&self) -> &GatewayHandle {
        &self.handle
    }

    /// Waits until the gateway has stopped without a request.
    ///
    /// # Errors
    ///
    /// Fails if the gateway or the close of the scope fails.
    pub async fn wait(self) -> Result<()> {
        self.task.await?
    }

    /// Stops the gateway and closes the scope.
    ///
    /// # Errors
    ///
    /// Fails if the gateway or the close of the scope fails.
    pub async fn stop(self) -> Result<()> {
        self.stop.cancel();
        self.wait().await
    }
}
