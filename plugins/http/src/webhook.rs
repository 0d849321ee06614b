//! The webhook channel: messages by HTTP, replies at once, as a stream, or to a callback URL.
//!
//! * `options`: what the settings say, and the limits.
//! * `server`: the socket, its limits, and what each path does; `answer` makes the answers.
//! * `submission`: what a client posts, checked.
//! * `exchange`: which message waits for which reply; `events` streams one.
//! * `callback`: replies that are posted elsewhere, but not into private networks.

mod callback;
mod events;
mod exchange;
mod options;
mod request;
mod response;
mod server;

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bub::kernel::{
    BoxFuture, Channel, Error, ErrorKind, MessageHandler, Outbound, Result, StreamEvent, Turn,
};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;

pub use self::options::WebhookOptions;
#[doc(hidden)]
pub use self::request::read_body;
use self::{
    callback::Callbacks,
    exchange::{ExchangeReply, ExchangeStore},
    server::Server,
};
use bub::gateway::fields::{CLAIM_ROUTE, REPLY_ROUTE_FIELD};

/// The name of the channel.
pub const CHANNEL_NAME: &str = "webhook";
/// How long connections have to end when the channel stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// The channel.
pub struct WebhookChannel {
    options: Arc<WebhookOptions>,
    handler: MessageHandler,
    exchanges: Arc<ExchangeStore>,
    callbacks: Callbacks,
    running: Mutex<Option<ServerHandle>>,
}

/// What has to end with the channel.
struct ServerHandle {
    address: SocketAddr,
    /// Fires when no request may wait any longer.
    hurry: CancellationToken,
    task: JoinHandle<()>,
}

impl WebhookChannel {
    /// A channel that hands what it accepts to `handler`.
    pub fn new(options: WebhookOptions, handler: MessageHandler) -> Self {
        Self {
            exchanges: Arc::new(ExchangeStore::new(&options)),
            callbacks: Callbacks::new(&options),
            options: Arc::new(options),
            handler,
            running: Mutex::default(),
        }
    }

    /// Where it listens, while it runs.
    pub fn address(&self) -> Option<SocketAddr> {
        self.running
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_ref()
            .map(|running| running.address)
    }

    async fn listen(&self, stop: CancellationToken) -> Result<()> {
        let token = self.options.token.clone();
        let token =
            token.ok_or_else(|| Error::config("the webhook needs a token: set `webhook.token`"))?;
        let listener = bind(&self.options.listen).await?;
        let address = listener.local_addr()?;
        let hurry = CancellationToken::new();
        let server = Server::new(
            Arc::clone(&self.options),
            &token,
            Arc::clone(&self.handler),
            Arc::clone(&self.exchanges),
            hurry.clone(),
        )?;
        let task = tokio::spawn(server.run(listener, stop));
        let role = self.options.role.name();
        tracing::info!(%address, %role, "webhook.listening");
        let running = ServerHandle {
            address,
            hurry,
            task,
        };
        let before = self
            .running
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .replace(running);
        if let Some(before) = before {
            before.task.abort();
        }
        Ok(())
    }

    async fn deliver(&self, outbound: &Outbound) -> Result<()> {
        let reply = ExchangeReply::new(outbound);
        let message_id = outbound.message_id();
        let exchange = message_id.map(|id| self.exchanges.open(id));
        if let Some(exchange) = &exchange {
            self.exchanges.add(exchange, &reply);
        }
        let own = outbound.str_field(REPLY_ROUTE_FIELD).map(str::to_owned);
        if let (Some(CLAIM_ROUTE), Some(exchange)) = (own.as_deref(), &exchange) {
            if exchange.wait_claimed(&reply).await {
                return Ok(());
            }
            let text = "nobody has come for it; a request with the same idempotency key gets it";
            return Err(Error::new(ErrorKind::Unclaimed, text));
        }
        if let Some(url) =
            own.or_else(|| exchange.as_ref().and_then(|exchange| exchange.callback()))
        {
            return self.callbacks.post(&url, message_id, &reply).await;
        }
        let exchange = exchange.ok_or_else(|| {
            Error::not_found(
                "a message that answers none and has no `callback_url` reaches nobody by webhook",
            )
        })?;
        // A reply counts as delivered when those who wait for it have it.
        exchange.wait_taken().await;
        Ok(())
    }
}

async fn bind(listen: &str) -> Result<TcpListener> {
    TcpListener::bind(listen).await.map_err(|error| {
        let port = listen.rsplit(':').next().unwrap_or(listen);
        match error.kind() {
            std::io::ErrorKind::AddrInUse => Error::new(
                ErrorKind::Temporary,
                format!("port {port} is in use by another program; end it, or set `webhook.listen` to another port than {listen}"),
            ),
            _ => Error::config(format!("cannot listen on `{listen}`: {error}; set `webhook.listen` to an address such as 127.0.0.1:8787")),
        }
    })
}

impl Channel for WebhookChannel {
    fn name(&self) -> &'static str {
        CHANNEL_NAME
    }

    fn start(&self, stop: CancellationToken) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.listen(stop))
    }

    fn stop(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let running = self
                .running
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            let Some(mut running) = running else {
                return Ok(());
            };
            running.hurry.cancel();
            if tokio::time::timeout(STOP_TIMEOUT, &mut running.task)
                .await
                .is_err()
            {
                running.task.abort();
            }
            Ok(())
        })
    }

    fn send<'a>(&'a self, reply: &'a Outbound) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.deliver(reply))
    }

    fn on_event<'a>(&'a self, event: &'a StreamEvent, turn: &'a Turn) -> BoxFuture<'a, Result<()>> {
        if let StreamEvent::Text(delta) = event
            && let Some(exchange) = self.exchanges.find_turn(turn)
        {
            exchange.send_delta(delta);
        }
        Box::pin(std::future::ready(Ok(())))
    }

    fn access_summary(&self) -> Option<String> {
        let address = self.address().map_or_else(
            || self.options.listen.clone(),
            |address| address.to_string(),
        );
        Some(format!(
            "whoever has the token of http://{address}/v1/messages is {}",
            self.options.role.name()
        ))
    }

    fn enabled(&self) -> bool {
        self.options.token.is_some()
    }
}
