//! Shows the typing indicator in a chat while any of its turns runs.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use bub::kernel::{Error, LifespanScope, Result, async_trait};
use serde_json::json;
use tokio::task::AbortHandle;

use super::{Bot, client::ApiErrorKind, route::ChatThread};
use crate::lock;

/// How often the typing indicator is renewed. The platform shows it for five seconds.
const TYPING_INTERVAL: Duration = Duration::from_secs(4);

/// The chats with a typing indicator, each with the number of its running turns.
#[derive(Default)]
pub(super) struct Typing(Mutex<HashMap<ChatThread, (usize, AbortHandle)>>);

impl Typing {
    /// Whether the typing indicator is shown in any chat.
    pub(super) fn is_active(&self) -> bool {
        !lock(&self.0).is_empty()
    }
}

/// Shows the typing indicator in a chat. The indicator ends when all guards of the chat are dropped.
struct TypingGuard {
    bot: Arc<Bot>,
    chat_thread: ChatThread,
}

impl TypingGuard {
    fn start(bot: Arc<Bot>, chat_thread: ChatThread) -> Self {
        let mut typing = lock(&bot.typing.0);
        let new = || {
            (
                0,
                tokio::spawn(keep_typing(Arc::clone(&bot), chat_thread)).abort_handle(),
            )
        };
        typing.entry(chat_thread).or_insert_with(new).0 += 1;
        drop(typing);
        Self { bot, chat_thread }
    }
}

impl Drop for TypingGuard {
    fn drop(&mut self) {
        let mut typing = lock(&self.bot.typing.0);
        let Some((count, task)) = typing.get_mut(&self.chat_thread) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            task.abort();
            typing.remove(&self.chat_thread);
        }
    }
}

/// Shows the typing indicator once, in the background, unless a turn of the chat shows it. The turn of a message starts
/// only after messages that belong together are collected, and the user should see at once that the message has arrived.
pub(super) fn show_once(bot: &Arc<Bot>, chat_thread: ChatThread) {
    if lock(&bot.typing.0).contains_key(&chat_thread) {
        return;
    }
    let bot = Arc::clone(bot);
    tokio::spawn(async move {
        let params = chat_thread.add_to_params(json!({"action": "typing"}));
        // The indicator is optional.
        let _ = bot.client.call("sendChatAction", &params).await;
    });
}

async fn keep_typing(bot: Arc<Bot>, chat_thread: ChatThread) {
    let params = chat_thread.add_to_params(json!({"action": "typing"}));
    loop {
        let delay = match bot.client.call("sendChatAction", &params).await {
            Ok(_) => TYPING_INTERVAL,
            Err(api_error)
                if matches!(
                    api_error.error_kind,
                    ApiErrorKind::ChatUnavailable | ApiErrorKind::Rejected | ApiErrorKind::Token
                ) =>
            {
                return;
            }
            Err(api_error) => TYPING_INTERVAL.max(api_error.retry_after.unwrap_or_default()),
        };
        tokio::time::sleep(delay).await;
    }
}

/// Lifespan that shows the typing indicator while a message is processed.
pub(super) struct TypingScope {
    bot: Arc<Bot>,
    chat_thread: ChatThread,
    guard: Option<TypingGuard>,
}

impl TypingScope {
    pub(super) fn new(bot: &Arc<Bot>, chat_thread: ChatThread) -> Self {
        Self {
            bot: Arc::clone(bot),
            chat_thread,
            guard: None,
        }
    }
}

#[async_trait]
impl LifespanScope for TypingScope {
    async fn enter(&mut self) -> Result<()> {
        self.guard = Some(TypingGuard::start(Arc::clone(&self.bot), self.chat_thread));
        Ok(())
    }

    async fn exit(&mut self, _error: Option<&Error>) -> Result<()> {
        self.guard = None;
        Ok(())
    }
}
