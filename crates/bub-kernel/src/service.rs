//! Background services of plugins, which the gateway runs.

use tokio_util::sync::CancellationToken;

use crate::{async_trait, channel::MessageHandler, error::Result, framework::Framework};

/// Background work that the gateway runs from its start to its stop, such as a scheduler or an exporter.
///
/// ```
/// use bub_kernel::{Result, Service, ServiceContext, async_trait};
///
/// struct Heartbeat;
///
/// #[async_trait]
/// impl Service for Heartbeat {
///     fn name(&self) -> &str {
///         "heartbeat"
///     }
///
///     async fn run(&self, context: ServiceContext) -> Result<()> {
///         // Wait for `context.stop` beside the work of the service.
///         context.stop.cancelled().await;
///         Ok(())
///     }
/// }
/// ```
#[async_trait]
pub trait Service: Send + Sync + 'static {
    /// Returns the name, which `bub status` shows.
    fn name(&self) -> &str;

    /// Runs the service until `context.stop` is cancelled.
    ///
    /// After an error or a panic, the gateway runs the service again, with a delay that doubles each time up to a
    /// minute. If the service returns `Ok`, it has finished and does not run again. When the gateway stops, it cancels
    /// `context.stop`. A service that is still running when the time for running turns has passed is aborted.
    async fn run(&self, context: ServiceContext) -> Result<()>;
}

/// What a service gets from the gateway.
#[derive(Clone)]
#[non_exhaustive]
pub struct ServiceContext {
    /// Cancelled when the gateway stops.
    pub stop: CancellationToken,
    /// Accepts messages. The message must name a channel that the gateway runs; the replies go to its chat.
    pub message_handler: MessageHandler,
    /// The framework, with the settings.
    pub framework: Framework,
}

impl ServiceContext {
    /// Creates a context. Called by the gateway, and by tests of services.
    pub fn new(
        stop: CancellationToken,
        message_handler: MessageHandler,
        framework: Framework,
    ) -> Self {
        Self {
            stop,
            message_handler,
            framework,
        }
    }
}
