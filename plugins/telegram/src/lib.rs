//! The Telegram channel connects bub to a Telegram bot. Only users with access can use it.
//!
//! * [`TelegramPlugin`]: the plugin that provides the channel and its tools.
//! * [`html`]: converts Markdown to messages that the platform accepts.
//! * [`inbound`]: converts messages of the Bot API to the content that the model reads.
//! * [`settings`]: the settings; `options`: their values and fixed limits.
//! * `client`: the HTTP client of the Bot API; `rate_limit`: the platform's rate limits.
//! * `poll`: receives updates; `updates`: handles each update; `access`: decides who has access.
//! * `outbound`: sends replies; `delivery_log`: records the delivered parts of each reply.
//! * `chat_store`: facts about chats that outlive the process; `group_context`: what is said in groups in between.
//! * `preview`: shows a growing answer; `typing`: shows the typing indicator.
//! * `tools`: the tools for the model; `media`: files attached to messages.
//! * `route`: the chat and topic of a message, and the message that a reply answers.

mod access;
mod chat_store;
mod client;
mod delivery_log;
mod group_context;
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
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, atomic::AtomicBool},
    time::Duration,
};

use bub::kernel::{
    ApprovalAnswer, CancellationToken, Channel, Error, Inbound, Lifespan, MessageHandler, Outbound,
    Result, SenderAccess, StreamEvent, Turn, async_trait,
};
use serde_json::{Value, json};
use tokio::{sync::Semaphore, task::JoinHandle};

use self::{
    access::{AccessControl, AccessDecision, TelegramUser},
    chat_store::{ChatStore, Question},
    client::{ApiErrorKind, BotApiClient},
    delivery_log::DeliveryLog,
    group_context::GroupContexts,
    inbound::BotIdentity,
    outbound::SentMessageWaiters,
    preview::Previews,
    rate_limit::Limiter,
    route::{ChatThread, Route},
    typing::Typing,
};
pub use self::{options::TelegramOptions, plugin::TelegramPlugin};

/// The name of the channel.
pub const CHANNEL_NAME: &str = "telegram";
/// How long stopping the channel waits for the poll to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// Delay before a call in the background is repeated. It doubles each time.
const INITIAL_BACKOFF: Duration = Duration::from_secs(1);
/// Delay after which a call in the background is not repeated.
const MAX_BACKOFF: Duration = Duration::from_mins(10);

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
    chats: ChatStore,
    groups: GroupContexts,
    /// Chats whose queue is full and whose users were notified.
    full_chats: Mutex<HashSet<ChatThread>>,
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
            chats: ChatStore::new(&options.home),
            groups: GroupContexts::default(),
            full_chats: Mutex::default(),
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

    /// Decides about the access of a user in a chat. An upgraded group keeps the access of its old id.
    fn decide_access(&self, user: &TelegramUser, chat: i64) -> AccessDecision {
        let ids = self.chats.known_ids(chat);
        self.access_control.decide_access(user, &ids)
    }

    /// Returns the session id of a chat. An upgraded group keeps its session.
    fn session_id(&self, chat_thread: ChatThread) -> String {
        let first_id = self.chats.known_ids(chat_thread.chat).last().copied();
        let chat = first_id.unwrap_or(chat_thread.chat);
        ChatThread {
            chat,
            ..chat_thread
        }
        .session_id()
    }

    /// Pauses a chat as the platform asks, also after a restart.
    fn apply_flood_wait(&self, chat: i64, delay: Duration) {
        self.limiter.apply_flood_wait(chat, delay);
        self.chats.record_pause(chat, delay);
    }

    /// Calls a method for a chat in the background. Retries it until the platform accepts or rejects it.
    fn call_in_background(self: &Arc<Self>, chat: i64, method: &'static str, params: Value) {
        let bot = Arc::clone(self);
        tokio::spawn(async move { bot.call_until_decided(chat, method, params).await });
    }

    async fn call_until_decided(&self, chat: i64, method: &str, params: Value) {
        let mut backoff = INITIAL_BACKOFF;
        loop {
            // Edits and deletions are rare and should take effect at once.
            if method == "sendMessage" {
                self.limiter.wait_to_send(chat).await;
            }
            let Err(api_error) = self.client.call(method, &params).await else {
                return;
            };
            match api_error.error_kind {
                ApiErrorKind::Flood => {
                    self.apply_flood_wait(chat, api_error.retry_after.unwrap_or_default());
                }
                ApiErrorKind::Unavailable if backoff <= MAX_BACKOFF => {}
                ApiErrorKind::NotModified => return,
                _ => {
                    let error = &api_error.text;
                    return tracing::warn!(chat_id = chat, method, %error, "telegram.call_failed");
                }
            }
            tokio::time::sleep(backoff).await;
            backoff *= 2;
        }
    }

    /// Adds the outcome to the question of an approval request and removes its buttons, in the background.
    fn close_question(self: &Arc<Self>, question: &Question, outcome: &str) {
        let chat = self.chats.current_id(question.chat);
        let text = format!("{}\n\n{outcome}", question.text);
        let params = json!({"chat_id": chat, "message_id": question.message_id, "text": text});
        self.call_in_background(chat, "editMessageText", params);
    }

    /// Restores what an earlier process knew, and sets the commands that users see in the menu of the chat.
    fn resume(self: &Arc<Self>) {
        for (chat, delay) in self.chats.pauses() {
            self.limiter.pause_chat(chat, delay);
        }
        // The turns that asked ended with their process; they ask again.
        while let Some(question) = self.chats.take_question(|_, _| true) {
            self.close_question(&question, "Ended without an answer: bub was restarted.");
        }
        let bot = Arc::clone(self);
        tokio::spawn(async move {
            let params = json!({"commands": inbound::menu_commands()});
            if let Err(api_error) = bot.client.call("setMyCommands", &params).await {
                tracing::warn!(error = %api_error.text, "telegram.commands_not_set");
            }
        });
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
        self.bot.resume();
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

    fn sender_access(&self, sender_id: &str, chat_id: Option<&str>) -> Option<SenderAccess> {
        let user = TelegramUser::from_id(sender_id).filter(|user| !user.id.is_empty())?;
        let chat = chat_id
            .unwrap_or(sender_id)
            .trim()
            .parse()
            .unwrap_or_default();
        Some(match self.bot.decide_access(&user, chat) {
            AccessDecision::Granted(role) => SenderAccess::Granted(role),
            AccessDecision::UnknownUser => SenderAccess::Denied(
                "the user is neither an owner, nor in `telegram.allow_users`, nor paired"
                    .to_owned(),
            ),
            AccessDecision::ChatNotAllowed => {
                SenderAccess::Denied("the chat is not in `telegram.allow_chats`".to_owned())
            }
        })
    }

    async fn end_approval(&self, request_id: &str, answer: Option<&ApprovalAnswer>) -> Result<()> {
        if let Some(question) = self.bot.chats.end_question(request_id) {
            let outcome = outbound::approval_outcome(answer);
            self.bot.close_question(&question, outcome);
        }
        Ok(())
    }

    fn access_summary(&self) -> Option<String> {
        Some(self.bot.access_control.summary())
    }
}

/// Locks a mutex even if a thread panicked while holding it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
