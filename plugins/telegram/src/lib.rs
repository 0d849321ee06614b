//! The Telegram channel connects bub to a Telegram bot. Only users with access can use it.
//!
//! * [`TelegramPlugin`]: the plugin that provides the channel and its tools.
//! * [`html`]: converts Markdown to messages that the platform accepts.
//! * [`inbound`]: converts messages of the Bot API to the content that the model reads.
//! * [`settings`]: the settings; `options`: their values and fixed limits.
//! * `client`: the HTTP client of the Bot API; `rate_limit`: the platform's rate limits.
//! * `poll`: receives updates; `updates`: handles each update; `access`: decides who has access.
//! * `outbound`: sends replies; `delivery_log`: records the delivered parts of each reply.
//! * `preview`: shows a growing answer; `typing`: shows the typing indicator.
//! * `tools`: the tools for the model; `media`: files attached to messages.
//! * `route`: the chat and topic of a message, and the message that a reply answers.

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
    CancellationToken, Channel, Error, Inbound, Lifespan, MessageHandler, Outbound, Result, Role,
    StreamEvent, Turn, async_trait,
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
/// How long stopping the channel waits for the poll to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// Maximum number of notices that wait to be sent. A notice is a message that no turn produced, such as `Access denied.`
/// Further notices are dropped, so that strangers cannot fill memory.
const MAX_PENDING_NOTICES: usize = 64;

/// The Telegram channel.
pub struct TelegramChannel {
    bot: Arc<Bot>,
    handler: MessageHandler,
    running: Mutex<Option<JoinHandle<()>>>,
}

/// The bot: the client of the Bot API, and the data that the channel and the tools share.
pub struct Bot {
    options: TelegramOptions,
    client: BotApiClient,
    limiter: Limiter,
    delivery_log: DeliveryLog,
    access_control: AccessControl,
    typing: Typing,
    previews: Previews,
    sent_waiters: SentMessageWaiters,
    /// Permits for pending notices, at most [`MAX_PENDING_NOTICES`].
    notices: Arc<Semaphore>,
    /// New ids of groups that were upgraded, by old id.
    migrated_chats: Mutex<HashMap<i64, i64>>,
    /// The account of the bot, set when the channel starts.
    identity: OnceLock<BotIdentity>,
    /// Whether the channel has started before. Only the first start drops pending updates, if `telegram.drop_pending`
    /// is set.
    has_dropped_pending: AtomicBool,
    /// The reason the channel receives no updates, if any.
    receive_error: Mutex<Option<String>>,
}

impl Bot {
    /// Creates a bot. Makes no requests.
    pub fn new(options: TelegramOptions) -> Self {
        Self {
            client: BotApiClient::new(&options),
            limiter: Limiter::new(&options),
            delivery_log: DeliveryLog::new(&options.home),
            access_control: AccessControl::new(&options),
            typing: Typing::default(),
            previews: Previews::default(),
            sent_waiters: SentMessageWaiters::default(),
            notices: Arc::new(Semaphore::new(MAX_PENDING_NOTICES)),
            migrated_chats: Mutex::default(),
            identity: OnceLock::new(),
            has_dropped_pending: AtomicBool::new(false),
            receive_error: Mutex::default(),
            options,
        }
    }

    /// Whether a token is configured.
    pub(crate) fn is_enabled(&self) -> bool {
        self.options.token.is_some()
    }

    /// Whether the bot shows the typing indicator in any chat.
    pub fn is_typing(&self) -> bool {
        self.typing.is_active()
    }

    /// Records the new id of a group.
    fn record_migration(&self, from: i64, to: i64) {
        tracing::info!(from, to, "telegram.group_moved");
        lock(&self.migrated_chats).insert(from, to);
    }

    /// Queries the account of the bot, and removes a webhook so that updates can be polled.
    async fn prepare_polling(&self) -> Result<()> {
        let me = self.client.call("getMe", &json!({})).await?;
        let username = me
            .get("username")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        let id = me.get("id").and_then(Value::as_i64);
        let id = id.ok_or_else(|| Error::unknown(
                "unexpected response from Telegram: `getMe` returned no bot id; check `telegram.api_base`",
            ))?;
        let _ = self.identity.set(BotIdentity {
            id,
            username: username.clone(),
        });
        // Drop pending updates only at the first start, not after each network failure.
        let should_drop = self.options.drop_pending
            && !self
                .has_dropped_pending
                .load(std::sync::atomic::Ordering::Relaxed);
        self.client
            .call(
                "deleteWebhook",
                &json!({"drop_pending_updates": should_drop}),
            )
            .await?;
        self.has_dropped_pending
            .store(true, std::sync::atomic::Ordering::Relaxed);
        let (bot, access) = (format_args!("@{username}"), self.access_control.summary());
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
    /// Creates a channel that passes inbound messages to `handler`.
    pub fn new(bot: Arc<Bot>, handler: MessageHandler) -> Self {
        Self {
            bot,
            handler,
            running: Mutex::default(),
        }
    }
}

#[async_trait]
impl Channel for TelegramChannel {
    fn name(&self) -> &'static str {
        CHANNEL_NAME
    }

    async fn start(&self, stop: CancellationToken) -> Result<()> {
        if self.bot.options.token.is_none() {
            return Err(Error::config("no bot token: set `telegram.token`"));
        }
        self.bot.prepare_polling().await?;
        let task = tokio::spawn(poll::run(
            Arc::clone(&self.bot),
            Arc::clone(&self.handler),
            stop,
        ));
        if let Some(previous) = lock(&self.running).replace(task) {
            previous.abort();
        }
        Ok(())
    }

    async fn stop(&self) -> Result<()> {
        let running = lock(&self.running).take();
        if let Some(mut task) = running
            && tokio::time::timeout(STOP_TIMEOUT, &mut task).await.is_err()
        {
            task.abort();
        }
        Ok(())
    }

    async fn send(&self, reply: &Outbound) -> Result<()> {
        outbound::deliver_reply(&self.bot, reply).await
    }

    async fn on_event(&self, event: &StreamEvent, turn: &Turn) -> Result<()> {
        if let StreamEvent::Text(delta) = event {
            preview::append_delta(&self.bot, delta, turn);
        }
        Ok(())
    }

    fn restore_message(&self, inbound: &mut Inbound) {
        media::restore_files(&self.bot, &mut inbound.message);
        if let Ok(route) = Route::from_message(&inbound.message) {
            let typing = typing::TypingScope::new(&self.bot, route.chat_thread);
            inbound.lifespan = Some(Arc::new(Lifespan::new(typing)));
        }
    }

    async fn check_connection(&self) -> Result<Option<String>> {
        let me = self.bot.client.call("getMe", &json!({})).await?;
        Ok(me
            .get("username")
            .and_then(Value::as_str)
            .map(|username| format!("@{username}")))
    }

    fn receive_error(&self) -> Option<String> {
        lock(&self.bot.receive_error).clone()
    }

    fn needs_debounce(&self) -> bool {
        true
    }

    fn is_enabled(&self) -> bool {
        self.bot.is_enabled()
    }

    fn validate_settings(&self) -> Result<()> {
        self.bot.options.validate()
    }

    fn is_shared_chat(&self, chat_id: &str) -> bool {
        // The ids of private chats are those of users, which are positive.
        chat_id.starts_with('-')
    }

    fn sender_role(&self, sender_id: &str) -> Option<Role> {
        self.bot.access_control.role_by_id(sender_id)
    }

    fn access_summary(&self) -> Option<String> {
        Some(self.bot.access_control.summary())
    }
}

/// Locks a mutex even if a thread panicked while holding it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
