//! Asks for updates, and hands each in. The next question confirms only what was taken, so what the process did not
//! live to take comes again; what it took and did not confirm is known by its number.

#![expect(
    clippy::indexing_slicing,
    reason = "a JSON value is `null` where there is nothing"
)]

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use bub::kernel::{CancellationToken, Error, ErrorKind, MessageHandler, Result};
use futures_util::FutureExt as _;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    Bot,
    client::{ApiError, ApiErrorKind},
    updates,
};
use crate::lock;

const INITIAL_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// A rival that was not heard of for so long is gone.
const CONFLICT_RESET: Duration = Duration::from_mins(1);
/// How soon an update is handed in again that was not taken.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// What the bot wants to hear of.
const ALLOWED_UPDATES: [&str; 3] = ["message", "edited_message", "callback_query"];

/// Polls until it is told to stop.
pub(super) async fn run(bot: Arc<Bot>, handler: MessageHandler, stop: CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => {}
        () = poll(&bot, &handler) => {}
    }
}

async fn poll(bot: &Arc<Bot>, handler: &MessageHandler) {
    let mut offset = None;
    let mut trouble = PollBackoff {
        bot,
        said: None,
        pause: Duration::ZERO,
        last: None,
    };
    loop {
        let asked = Instant::now();
        match get_updates(bot, offset, bot.options.poll).await {
            // Something in between does not hold polls: then it is asked less often.
            Ok(updates)
                if updates.is_empty()
                    && asked.elapsed() < INITIAL_BACKOFF.min(bot.options.poll) =>
            {
                trouble.is_over();
                tokio::time::sleep(INITIAL_BACKOFF).await;
            }
            Ok(mut updates) => {
                trouble.is_over();
                if updates
                    .iter()
                    .any(|update| updates::album_of(update).is_some())
                {
                    updates = wait_for_albums(bot, offset, updates).await;
                }
                let last = updates
                    .iter()
                    .filter_map(|update| update["update_id"].as_i64())
                    .max();
                take_all(bot, handler, updates).await;
                offset = last.map(|last| last + 1).or(offset);
            }
            Err(failure) => {
                let pause = trouble.pause(&failure);
                if is_webhook(&failure) {
                    // Somebody set one while the bot ran. What waits is kept.
                    let _ = bot
                        .client
                        .call("deleteWebhook", &json!({"drop_pending_updates": false}))
                        .await;
                }
                tokio::time::sleep(pause).await;
            }
        }
    }
}

/// The pictures of an album come one by one. What was not confirmed comes again, with those that came meanwhile.
async fn wait_for_albums(bot: &Bot, offset: Option<i64>, updates: Vec<Value>) -> Vec<Value> {
    tokio::time::sleep(bot.options.album_wait).await;
    match get_updates(bot, offset, Duration::ZERO).await {
        Ok(more) if more.len() > updates.len() => more,
        _ => updates,
    }
}

async fn get_updates(
    bot: &Bot,
    offset: Option<i64>,
    hold: Duration,
) -> Result<Vec<Value>, ApiError> {
    let options = &bot.options;
    let mut params = json!({"timeout": hold.as_secs(), "allowed_updates": ALLOWED_UPDATES});
    if let Some(offset) = offset {
        params["offset"] = offset.into();
    }
    // The watchdog: a poll that nobody answers is given up, and made again.
    let mut answer = bot
        .client
        .call_within("getUpdates", &params, hold + options.wait_timeout)
        .await?;
    Ok(answer
        .as_array_mut()
        .map(std::mem::take)
        .unwrap_or_default())
}

/// Hands updates in: those of a chat in order, albums in one piece, chats beside each other.
async fn take_all(bot: &Arc<Bot>, handler: &MessageHandler, updates: Vec<Value>) {
    let mut chats: Vec<(Option<i64>, Vec<Vec<Value>>)> = Vec::new();
    for update in updates {
        let chat = updates::chat_of(&update);
        let Some((_, pieces)) = chats.iter_mut().find(|(known, _)| *known == chat) else {
            chats.push((chat, vec![vec![update]]));
            continue;
        };
        let album = updates::album_of(&update);
        let is_same = |piece: &&mut Vec<Value>| {
            album.is_some() && piece.first().and_then(updates::album_of) == album
        };
        match pieces.last_mut().filter(is_same) {
            Some(piece) => piece.push(update),
            None => pieces.push(vec![update]),
        }
    }
    let taking = chats.into_iter().map(|(_, pieces)| async move {
        for piece in pieces {
            submit_until_accepted(bot, handler, &piece).await;
        }
    });
    futures_util::future::join_all(taking).await;
}

/// Hands an update or an album in, as often as it takes.
async fn submit_until_accepted(bot: &Arc<Bot>, handler: &MessageHandler, updates: &[Value]) {
    let id = updates
        .first()
        .and_then(|update| update["update_id"].as_i64())
        .unwrap_or_default();
    let mut is_known = false;
    loop {
        let taking = AssertUnwindSafe(updates::handle_update(bot, handler, updates)).catch_unwind();
        let error = match taking.await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error,
            Err(_) => {
                let error = "the channel panicked";
                tracing::error!(update_id = id, error, "telegram.update_skipped");
                return;
            }
        };
        if !may_succeed(&error) {
            let error = error.message();
            tracing::error!(update_id = id, error, "telegram.update_skipped");
            return;
        }
        let delay = error.retry_after().unwrap_or(RETRY_DELAY);
        if !std::mem::replace(&mut is_known, true) {
            let (error, delay_ms) = (error.message(), delay.as_millis());
            tracing::warn!(update_id = id, delay_ms, error, "telegram.update_retry");
        }
        tokio::time::sleep(delay).await;
    }
}

/// Updates go to a webhook.
fn is_webhook(failure: &ApiError) -> bool {
    failure.error_kind == ApiErrorKind::Conflict && failure.text.contains("webhook")
}

fn may_succeed(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Temporary | ErrorKind::Cancelled | ErrorKind::Unknown
    )
}

/// Says once what is wrong, and waits longer each time.
struct PollBackoff<'a> {
    bot: &'a Bot,
    said: Option<ApiErrorKind>,
    pause: Duration,
    last: Option<Instant>,
}

impl PollBackoff<'_> {
    /// A poll has worked. Between two programs that poll some do: only after a while is that the end of it.
    fn is_over(&mut self) {
        *lock(&self.bot.trouble) = None;
        let is_rival = self.said == Some(ApiErrorKind::Conflict);
        if is_rival
            && self
                .last
                .is_some_and(|last| last.elapsed() < CONFLICT_RESET)
        {
            return;
        }
        if self.said.take().is_some() {
            tracing::info!("telegram.recovered");
        }
        self.pause = Duration::ZERO;
    }

    fn pause(&mut self, failure: &ApiError) -> Duration {
        self.last = Some(Instant::now());
        self.pause = (self.pause * 2).clamp(INITIAL_BACKOFF, MAX_BACKOFF);
        let pause = self.pause.max(failure.retry_after.unwrap_or_default());
        let hint = match failure.error_kind {
            ApiErrorKind::Conflict if is_webhook(failure) => {
                Some("somebody set it while bub runs: it is removed")
            }
            ApiErrorKind::Conflict => Some(
                "another program asks for the updates of this bot: end it, or use another token",
            ),
            _ => None,
        };
        let text = match hint {
            Some(hint) => format!("{}; {hint}", failure.text),
            None => failure.text.clone(),
        };
        if self.said.as_ref() != Some(&failure.error_kind) {
            let (error, delay_ms) = (&failure.text, pause.as_millis());
            tracing::error!(delay_ms, %error, hint, "telegram.poll_failed");
            self.said = Some(failure.error_kind.clone());
        }
        *lock(&self.bot.trouble) = Some(text);
        pause
    }
}
