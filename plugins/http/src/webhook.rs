//! The webhook channel. Clients post messages over HTTP and get replies in the response, as a stream, or at a callback
//! URL.
//!
//! * `options`: the settings and the fixed limits.
//! * `messages`: the routes of the channel. `response` describes an exchange.
//! * `request`: parses and checks what a client posts.
//! * `exchange`: matches messages with their replies. `events` streams a reply.
//! * `callback`: posts replies to callback URLs, but not into private networks.

mod callback;
mod events;
mod exchange;
mod messages;
mod options;
mod request;
mod response;

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use bub::kernel::{
    Channel, Error, ErrorKind, FrameworkRef, HttpRoute, MessageHandler, Outbound, Result,
    SenderAccess, StreamEvent, Turn, async_trait,
};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

pub use self::options::WebhookOptions;
#[doc(hidden)]
pub use self::request::parse_body;
use self::{
    callback::Callbacks,
    exchange::{ExchangeReply, ExchangeStore},
    messages::MessageApi,
};
use crate::{HttpPlugin, route_table::RouteTable, server::HttpServer};
use bub::gateway::fields::{CLAIM_ROUTE, REPLY_ROUTE_FIELD};

/// The name of the channel.
pub const CHANNEL_NAME: &str = "webhook";
/// How often old exchanges are removed, even if no request arrives.
const SWEEP_INTERVAL: Duration = Duration::from_mins(1);

/// The webhook channel. Its listener also serves the routes of other plugins.
pub struct WebhookChannel {
    options: Arc<WebhookOptions>,
    handler: MessageHandler,
    exchanges: Arc<ExchangeStore>,
    callbacks: Callbacks,
    server: Mutex<Option<HttpServer>>,
    framework: FrameworkRef,
}

impl WebhookChannel {
    /// Creates a channel that passes accepted messages to `handler`.
    pub fn new(options: WebhookOptions, handler: MessageHandler) -> Self {
        Self {
            exchanges: Arc::new(ExchangeStore::new(&options)),
            callbacks: Callbacks::new(&options),
            options: Arc::new(options),
            handler,
            server: Mutex::default(),
            framework: FrameworkRef::default(),
        }
    }

    /// Sets the framework whose plugins provide further routes.
    #[must_use]
    pub fn with_framework(mut self, framework: FrameworkRef) -> Self {
        self.framework = framework;
        self
    }

    /// Returns the address that the channel listens on, while it runs.
    pub fn address(&self) -> Option<SocketAddr> {
        self.lock_server().as_ref().map(|server| server.address)
    }

    fn lock_server(&self) -> MutexGuard<'_, Option<HttpServer>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the routes of all other plugins, with the names of the plugins.
    fn plugin_routes(&self) -> Result<Vec<(Arc<str>, HttpRoute)>> {
        let framework = self.framework.get();
        let routes = framework.map(|framework| framework.routes(&self.handler));
        Ok(routes.transpose()?.unwrap_or_default())
    }

    /// Returns the routes of the channel and of all plugins.
    fn route_table(&self) -> Result<RouteTable> {
        let routes = self.plugin_routes()?;
        let token = self.options.token.as_ref();
        if token.is_none() && routes.is_empty() {
            return Err(Error::config("no webhook token: set `webhook.token`"));
        }
        let api = MessageApi {
            options: Arc::clone(&self.options),
            handler: Arc::clone(&self.handler),
            exchanges: Arc::clone(&self.exchanges),
            waiting: Arc::new(Semaphore::new(self.options.waiting)),
        };
        let own = Arc::new(api).routes();
        let own = own.map(|route| (Arc::from(HttpPlugin::NAME), route));
        RouteTable::new(&self.options, token, own.into_iter().chain(routes))
    }

    async fn start_server(&self, stop: CancellationToken) -> Result<()> {
        let routes = self.route_table()?;
        let server = HttpServer::start(&self.options, routes, stop.clone()).await?;
        let (address, role) = (server.address, self.options.role.name());
        tracing::info!(%address, %role, "webhook.listening");
        tokio::spawn(sweep_exchanges(Arc::downgrade(&self.exchanges), stop));
        *self.lock_server() = Some(server);
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

/// Removes old exchanges at intervals until the channel stops.
async fn sweep_exchanges(exchanges: Weak<ExchangeStore>, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(SWEEP_INTERVAL) => {}
        }
        let Some(exchanges) = exchanges.upgrade() else {
            return;
        };
        exchanges.evict_expired();
    }
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
        let server = self.lock_server().take();
        if let Some(server) = server {
            server.stop().await;
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

    fn sender_access(&self, _sender_id: &str, _chat_id: Option<&str>) -> Option<SenderAccess> {
        Some(SenderAccess::Granted(self.options.role))
    }

    fn access_summary(&self) -> Option<String> {
        let address = self.address().map_or_else(
            || self.options.listen.clone(),
            |address| address.to_string(),
        );
        Some(match self.options.token {
            Some(_) => format!(
                "clients with the token of http://{address}/v1/messages have role {}",
                self.options.role.name()
            ),
            None => format!(
                "http://{address} serves public routes of plugins; set `webhook.token` to accept messages"
            ),
        })
    }

    fn validate_settings(&self) -> Result<()> {
        if self.is_enabled() {
            self.route_table()?;
        }
        Ok(())
    }

    /// The listener runs for clients with the token, and for the routes of plugins.
    fn is_enabled(&self) -> bool {
        let has_routes = || {
            self.plugin_routes()
                .map_or(true, |routes| !routes.is_empty())
        };
        self.options.token.is_some() || has_routes()
    }
}
