//! The Telegram channel: a bot that answers every message once, and nobody it should not.
//!
//! * [`TelegramPlugin`]: the plugin that provides the channel and its tools.
//! * [`html`]: Markdown as messages that the platform accepts.
//! * [`inbound`]: what arrives, as the model reads it.
//! * [`settings`]: the settings; `options`: how they and fixed limits run the bot.
//! * `client`: the Bot API; `limiter`: its limits.
//! * `poll`: updates come in, one after the other; `intake`: what becomes of each; `access`: who may talk.
//! * `outbound`: replies go out; `progress`: how far each has come; `preview`: an answer that grows; `typing`.
//! * `tools`: what the model can do beside answering. `media`: the files that come with a message.
//! * `route`: where a message belongs.

mod access;
mod client;
mod delivery_log;
pub mod html;
pub mod inbound;
mod media;
mod options;
mod outbound;
mod plugin;
mod poll;
mod preview;
mod rate_limit;
mod route;
pub mod settings;
mod tools;
mod typing;
mod updates;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, atomic::AtomicBool},
    time::Duration,
};

use bub::kernel::{
    BoxFuture, CancellationToken, Channel, Error, Inbound, Lifespan, MessageHandler, Outbound,
    Result, StreamEvent, Turn,
};
use serde_json::{Value, json};
use tokio::{sync::Semaphore, task::JoinHandle};

use self::{
    access::AccessControl, client::BotApiClient, delivery_log::DeliveryLog, inbound::BotIdentity,
    outbound::SentMessageWaiters, preview::Previews, rate_limit::Limiter, route::Route,
    typing::Typing,
};
pub use self::{options::TelegramOptions, plugin::TelegramPlugin};

/// The name of the channel.
pub const CHANNEL_NAME: &str = "telegram";
/// How long the poll has to end when the channel stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// So many words of the channel's own may be on their way; strangers get no more.
const MAX_PENDING_NOTICES: usize = 64;

/// The channel.
pub struct TelegramChannel {
    bot: Arc<Bot>,
    handler: MessageHandler,
    running: Mutex<Option<JoinHandle<()>>>,
}

/// The bot itself: what its channel and its tools share.
pub struct Bot {
    options: TelegramOptions,
    client: BotApiClient,
    limiter: Limiter,
    progress: DeliveryLog,
    access_control: AccessControl,
    typing: Typing,
    previews: Previews,
    notes: SentMessageWaiters,
    /// Room for words of the channel's own.
    notices: Arc<Semaphore>,
    /// Groups that have another id now.
    moved: Mutex<HashMap<i64, i64>>,
    /// Who the bot is, once the platform has said so.
    me: OnceLock<BotIdentity>,
    has_dropped: AtomicBool,
    /// Why no updates come.
    trouble: Mutex<Option<String>>,
}

impl Bot {
    /// A bot that has done nothing yet.
    pub fn new(options: TelegramOptions) -> Self {
        Self {
            client: BotApiClient::new(&options),
            limiter: Limiter::new(&options),
            progress: DeliveryLog::new(&options.home),
            access_control: AccessControl::new(&options),
            typing: Typing::default(),
            previews: Previews::default(),
            notes: SentMessageWaiters::default(),
            notices: Arc::new(Semaphore::new(MAX_PENDING_NOTICES)),
            moved: Mutex::default(),
            me: OnceLock::new(),
            has_dropped: AtomicBool::new(false),
            trouble: Mutex::default(),
            options,
        }
    }

    /// Whether the channel can be used.
    pub(crate) fn is_enabled(&self) -> bool {
        self.options.token.is_some()
    }

    /// Whether the bot types in any chat.
    pub fn is_typing(&self) -> bool {
        self.typing.is_on()
    }

    /// Notes that a group has another id.
    fn record_migration(&self, from: i64, to: i64) {
        tracing::info!(from, to, "telegram.group_moved");
        lock(&self.moved).insert(from, to);
    }

    /// Finds out who the bot is, and that updates come to whoever asks.
    async fn identify(&self) -> Result<()> {
        let me = self.client.call("getMe", &json!({})).await?;
        let username = me
            .get("username")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        let id = me.get("id").and_then(Value::as_i64);
        let id = id.ok_or_else(|| Error::unknown("Telegram does not say who the bot is"))?;
        let _ = self.me.set(BotIdentity {
            id,
            username: username.clone(),
        });
        // What piled up is dropped at the start of the program only, not whenever the network comes back.
        let is_dropped = self.options.drop_pending
            && !self.has_dropped.load(std::sync::atomic::Ordering::Relaxed);
        self.client
            .call(
                "deleteWebhook",
                &json!({"drop_pending_updates": is_dropped}),
            )
            .await?;
        self.has_dropped
            .store(true, std::sync::atomic::Ordering::Relaxed);
        let (bot, access) = (format_args!("@{username}"), self.access_control.describe());
        tracing::info!(%bot, %access, "telegram.start");
        Ok(())
    }
}

impl std::fmt::Debug for Bot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Bot")
    }
}

impl TelegramChannel {
    /// A channel that hands what it accepts to `handler`.
    pub fn new(bot: Arc<Bot>, handler: MessageHandler) -> Self {
        Self {
            bot,
            handler,
            running: Mutex::default(),
        }
    }
}

impl Channel for TelegramChannel {
    fn name(&self) -> &'static str {
        CHANNEL_NAME
    }

    fn start(&self, stop: CancellationToken) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            if self.bot.options.token.is_none() {
                return Err(Error::config("the bot needs a token: set `telegram.token`"));
            }
            self.bot.identify().await?;
            let task = tokio::spawn(poll::run(
                Arc::clone(&self.bot),
                Arc::clone(&self.handler),
                stop,
            ));
            if let Some(before) = lock(&self.running).replace(task) {
                before.abort();
            }
            Ok(())
        })
    }

    fn stop(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let running = lock(&self.running).take();
            if let Some(mut task) = running
                && tokio::time::timeout(STOP_TIMEOUT, &mut task).await.is_err()
            {
                task.abort();
            }
            Ok(())
        })
    }

    fn send<'a>(&'a self, reply: &'a Outbound) -> BoxFuture<'a, Result<()>> {
        Box::pin(outbound::deliver(&self.bot, reply))
    }

    fn on_event<'a>(&'a self, event: &'a StreamEvent, turn: &'a Turn) -> BoxFuture<'a, Result<()>> {
        if let StreamEvent::Text(delta) = event {
            preview::append_delta(&self.bot, delta, turn);
        }
        Box::pin(std::future::ready(Ok(())))
    }

    fn restore(&self, inbound: &mut Inbound) {
        media::restore(&self.bot, &mut inbound.message);
        if let Ok(route) = Route::from_message(&inbound.message) {
            let typing = typing::TypingScope::new(&self.bot, route.place);
            inbound.lifespan = Some(Arc::new(Lifespan::new(typing)));
        }
    }

    fn check(&self) -> BoxFuture<'_, Result<Option<String>>> {
        Box::pin(async move {
            let me = self.bot.client.call("getMe", &json!({})).await?;
            Ok(me
                .get("username")
                .and_then(Value::as_str)
                .map(|username| format!("@{username}")))
        })
    }

    fn receive_error(&self) -> Option<String> {
        lock(&self.bot.trouble).clone()
    }

    fn needs_debounce(&self) -> bool {
        true
    }

    fn enabled(&self) -> bool {
        self.bot.is_enabled()
    }

    fn validate(&self) -> Result<()> {
        self.bot.options.check()
    }

    fn access_summary(&self) -> Option<String> {
        Some(self.bot.access_control.describe())
    }
}

/// Locks a mutex even if a thread panicked while holding it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
