//! The webhook channel. Clients post messages over HTTP and get replies in the response, as a stream, or at a callback
//! URL.
//!
//! * `options`: the settings and the fixed limits.
//! * `server`: connections, their limits, and routing. `response` builds the responses.
//! * `request`: parses and checks what a client posts.
//! * `exchange`: matches messages with their replies. `events` streams a reply.
//! * `callback`: posts replies to callback URLs, but not into private networks.

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
    Channel, Error, ErrorKind, MessageHandler, Outbound, Result, StreamEvent, Turn, async_trait,
};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;

pub use self::options::WebhookOptions;
#[doc(hidden)]
pub use self::request::parse_body;
use self::{
    callback::Callbacks,
    exchange::{ExchangeReply, ExchangeStore},
    server::Server,
};
use bub::gateway::fields::{CLAIM_ROUTE, REPLY_ROUTE_FIELD};

/// The name of the channel.
pub const CHANNEL_NAME: &str = "webhook";
/// How long connections may take to end when the channel stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// The webhook channel.
pub struct WebhookChannel {
    options: Arc<WebhookOptions>,
    handler: MessageHandler,
    exchanges: Arc<ExchangeStore>,
    callbacks: Callbacks,
    running: Mutex<Option<ServerHandle>>,
}

/// The running server. It ends when the channel stops.
struct ServerHandle {
    address: SocketAddr,
    /// Cancelled when requests must stop waiting for replies.
    stop_waiting: CancellationToken,
    task: JoinHandle<()>,
}

impl WebhookChannel {
    /// Creates a channel that passes accepted messages to `handler`.
    pub fn new(options: WebhookOptions, handler: MessageHandler) -> Self {
        Self {
            exchanges: Arc::new(ExchangeStore::new(&options)),
            callbacks: Callbacks::new(&options),
            options: Arc::new(options),
            handler,
            running: Mutex::default(),
        }
    }

    /// Returns the address that the channel listens on, while it runs.
    pub fn address(&self) -> Option<SocketAddr> {
        self.running
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_ref()
            .map(|running| running.address)
    }

    async fn start_server(&self, stop: CancellationToken) -> Result<()> {
        let token = self.options.token.clone();
        let token = token.ok_or_else(|| Error::config("no webhook token: set `webhook.token`"))?;
        let listener = bind_listener(&self.options.listen).await?;
        let address = listener.local_addr()?;
        let stop_waiting = CancellationToken::new();
        let server = Server::new(
            Arc::clone(&self.options),
            &token,
            Arc::clone(&self.handler),
            Arc::clone(&self.exchanges),
            stop_waiting.clone(),
        )?;
        let task = tokio::spawn(server.run(listener, stop));
        let role = self.options.role.name();
        tracing::info!(%address, %role, "webhook.listening");
        let running = ServerHandle {
            address,
            stop_waiting,
            task,
        };
        let previous = self
            .running
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .replace(running);
        if let Some(previous) = previous {
            previous.task.abort();
        }
        Ok(())
    }

    async fn deliver_reply(&self, outbound: &Outbound) -> Result<()> {
        let reply = ExchangeReply::new(outbound);
        let message_id = outbound.message_id();
        let exchange = message_id.map(|id| self.exchanges.get_or_create(id));
        if let Some(exchange) = &exchange {
            self.exchanges.add_reply(exchange, &reply);
        }
        let route = outbound.str_field(REPLY_ROUTE_FIELD).map(str::to_owned);
        if let (Some(CLAIM_ROUTE), Some(exchange)) = (route.as_deref(), &exchange) {
            if exchange.wait_until_claimed(&reply).await {
                return Ok(());
            }
            let text = "reply not claimed yet; a request with the same idempotency key receives it";
            return Err(Error::new(ErrorKind::Unclaimed, text));
        }
        if let Some(url) = route.or_else(|| {
            exchange
                .as_ref()
                .and_then(|exchange| exchange.callback_url())
        }) {
            return self.callbacks.post_reply(&url, message_id, &reply).await;
        }
        let exchange = exchange.ok_or_else(|| {
            Error::not_found(
                "cannot deliver the message through the webhook: it is not a reply and has no `callback_url`",
            )
        })?;
        // A reply counts as delivered when all waiting requests have received it.
        exchange.wait_until_received().await;
        Ok(())
    }
}

async fn bind_listener(listen: &str) -> Result<TcpListener> {
    TcpListener::bind(listen).await.map_err(|error| {
        let port = listen.rsplit(':').next().unwrap_or(listen);
        match error.kind() {
            std::io::ErrorKind::AddrInUse => Error::new(
                ErrorKind::Temporary,
                format!("cannot listen on `{listen}`: another program uses port {port}; stop it, or set `webhook.listen` to another port"),
            ),
            _ => Error::config(format!("cannot listen on `{listen}`: {error}; set `webhook.listen` to an address such as 127.0.0.1:8787")),
        }
    })
}

#[async_trait]
impl Channel for WebhookChannel {
    fn name(&self) -> &'static str {
        CHANNEL_NAME
    }

    async fn start(&self, stop: CancellationToken) -> Result<()> {
        self.start_server(stop).await
    }

    async fn stop(&self) -> Result<()> {
        let running = self
            .running
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(mut running) = running else {
            return Ok(());
        };
        running.stop_waiting.cancel();
        if tokio::time::timeout(STOP_TIMEOUT, &mut running.task)
            .await
            .is_err()
        {
            running.task.abort();
        }
        Ok(())
    }

    async fn send(&self, reply: &Outbound) -> Result<()> {
        self.deliver_reply(reply).await
    }

    async fn on_event(&self, event: &StreamEvent, turn: &Turn) -> Result<()> {
        if let StreamEvent::Text(delta) = event
            && let Some(exchange) = self.exchanges.find_by_turn(turn)
        {
            exchange.send_delta(delta);
        }
        Ok(())
    }

    fn access_summary(&self) -> Option<String> {
        let address = self.address().map_or_else(
            || self.options.listen.clone(),
            |address| address.to_string(),
        );
        Some(format!(
            "clients with the token of http://{address}/v1/messages have role {}",
            self.options.role.name()
        ))
    }

    fn is_enabled(&self) -> bool {
        self.options.token.is_some()
    }
}
