//! "typing…" in a chat for as long as any turn of it runs.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use bub::kernel::{BoxFuture, Error, LifespanScope, Result};
use serde_json::json;
use tokio::task::AbortHandle;

use super::{Bot, client::ApiErrorKind, route::ChatThread};
use crate::lock;

/// The platform shows it for five seconds.
const TYPING_INTERVAL: Duration = Duration::from_secs(4);

/// The chats in which the bot types, each with the number of its turns.
#[derive(Default)]
pub(super) struct Typing(Mutex<HashMap<ChatThread, (usize, AbortHandle)>>);

impl Typing {
    /// Whether the bot types anywhere.
    pub(super) fn is_on(&self) -> bool {
        !lock(&self.0).is_empty()
    }
}

/// Types in a chat until it is dropped.
struct TypingGuard {
    bot: Arc<Bot>,
    place: ChatThread,
}

impl TypingGuard {
    fn begin(bot: Arc<Bot>, place: ChatThread) -> Self {
        let mut typing = lock(&bot.typing.0);
        let new = || {
            (
                0,
                tokio::spawn(keep_typing(Arc::clone(&bot), place)).abort_handle(),
            )
        };
        typing.entry(place).or_insert_with(new).0 += 1;
        drop(typing);
        Self { bot, place }
    }
}

impl Drop for TypingGuard {
    fn drop(&mut self) {
        let mut typing = lock(&self.bot.typing.0);
        let Some((count, task)) = typing.get_mut(&self.place) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            task.abort();
            typing.remove(&self.place);
        }
    }
}

async fn keep_typing(bot: Arc<Bot>, place: ChatThread) {
    let params = place.params(json!({"action": "typing"}));
    loop {
        let pause = match bot.client.call("sendChatAction", &params).await {
            Ok(_) => TYPING_INTERVAL,
            Err(failure)
                if matches!(
                    failure.error_kind,
                    ApiErrorKind::Gone | ApiErrorKind::Refused | ApiErrorKind::Token
                ) =>
            {
                return;
            }
            Err(failure) => TYPING_INTERVAL.max(failure.retry_after.unwrap_or_default()),
        };
        tokio::time::sleep(pause).await;
    }
}

/// Types while a message is worked on.
pub(super) struct TypingScope {
    bot: Arc<Bot>,
    place: ChatThread,
    turn: Option<TypingGuard>,
}

impl TypingScope {
    pub(super) fn new(bot: &Arc<Bot>, place: ChatThread) -> Self {
        Self {
            bot: Arc::clone(bot),
            place,
            turn: None,
        }
    }
}

impl LifespanScope for TypingScope {
    fn enter(&mut self) -> BoxFuture<'_, Result<()>> {
        self.turn = Some(TypingGuard::begin(Arc::clone(&self.bot), self.place));
        Box::pin(std::future::ready(Ok(())))
    }

    fn exit<'a>(&'a mut self, _error: Option<&'a Error>) -> BoxFuture<'a, Result<()>> {
        self.turn = None;
        Box::pin(std::future::ready(Ok(())))
    }
}
