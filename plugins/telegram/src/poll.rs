//! Polls for updates and handles each one. A poll confirms only handled updates, so that unhandled ones arrive again
//! after a crash. If an update was handled but not confirmed, it also arrives again and is recognized by its id.

#![expect(
    clippy::indexing_slicing,
    reason = "a JSON value is `null` where there is nothing"
)]

use std::{collections::HashSet, panic::AssertUnwindSafe, sync::Arc, time::Duration};

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
/// How long polls must succeed after a conflict until the other polling program counts as stopped.
const CONFLICT_RESET: Duration = Duration::from_mins(1);
/// Delay before an update that was not accepted is submitted again.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// The kinds of updates to receive.
const ALLOWED_UPDATES: [&str; 3] = ["message", "edited_message", "callback_query"];

/// Polls until `stop` is cancelled.
pub(super) async fn run(bot: Arc<Bot>, handler: MessageHandler, stop: CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => {}
        () = poll_updates(&bot, &handler) => {}
    }
}

async fn poll_updates(bot: &Arc<Bot>, handler: &MessageHandler) {
    let mut offset = None;
    // Handled updates after the offset, which are behind an update that has no room in its session.
    let mut known_ids = HashSet::new();
    let mut backoff = PollBackoff {
        bot,
        reported_kind: None,
        delay: Duration::ZERO,
        last_failure: None,
    };
    loop {
        let started = Instant::now();
        match get_updates(bot, offset, bot.options.poll_timeout).await {
            // An empty response arrived too early, because the server or a proxy does not delay it: poll less often.
            Ok(updates)
                if updates.is_empty()
                    && started.elapsed() < INITIAL_BACKOFF.min(bot.options.poll_timeout) =>
            {
                backoff.record_success();
                tokio::time::sleep(INITIAL_BACKOFF).await;
            }
            Ok(mut updates) => {
                backoff.record_success();
                if updates
                    .iter()
                    .any(|update| updates::album_key(update).is_some())
                {
                    updates = wait_for_albums(bot, offset, updates).await;
                }
                let ids: Vec<i64> = updates.iter().filter_map(update_id).collect();
                updates
                    .retain(|update| !update_id(update).is_some_and(|id| known_ids.contains(&id)));
                let waiting = handle_updates(bot, handler, updates).await;
                let next = ids.iter().max().map(|last| last + 1);
                // Only handled updates may be confirmed.
                offset = waiting.iter().min().copied().or(next).or(offset);
                known_ids = ids.into_iter().filter(|id| !waiting.contains(id)).collect();
                if !waiting.is_empty() {
                    tokio::time::sleep(RETRY_DELAY).await;
                }
            }
            Err(api_error) => {
                let delay = backoff.record_failure(&api_error);
                if is_webhook_conflict(&api_error) {
                    // A webhook was set while the bot was running: remove it, but keep pending updates.
                    let _ = bot
                        .client
                        .call("deleteWebhook", &json!({"drop_pending_updates": false}))
                        .await;
                }
                tokio::time::sleep(delay).await;
            }
        }
    }
}

/// Waits for the other messages of an album, which arrive one by one, and polls again. Unconfirmed updates are returned
/// again, together with new ones.
async fn wait_for_albums(bot: &Bot, offset: Option<i64>, updates: Vec<Value>) -> Vec<Value> {
    tokio::time::sleep(bot.options.album_delay).await;
    match get_updates(bot, offset, Duration::ZERO).await {
        Ok(more) if more.len() > updates.len() => more,
        _ => updates,
    }
}

async fn get_updates(
    bot: &Bot,
    offset: Option<i64>,
    hold_time: Duration,
) -> Result<Vec<Value>, ApiError> {
    let options = &bot.options;
    let mut params = json!({"timeout": hold_time.as_secs(), "allowed_updates": ALLOWED_UPDATES});
    if let Some(offset) = offset {
        params["offset"] = offset.into();
    }
    // A poll without a response times out and is repeated.
    let mut answer = bot
        .client
        .call_with_timeout("getUpdates", &params, hold_time + options.poll_grace)
        .await?;
    Ok(answer
        .as_array_mut()
        .map(std::mem::take)
        .unwrap_or_default())
}

fn update_id(update: &Value) -> Option<i64> {
    update["update_id"].as_i64()
}

/// Handles updates. Chats are handled concurrently, updates of one chat in order, and an album as one message. Returns
/// the ids of updates that must be handled again, because their session has no room.
async fn handle_updates(
    bot: &Arc<Bot>,
    handler: &MessageHandler,
    updates: Vec<Value>,
) -> HashSet<i64> {
    let mut chats: Vec<(Option<i64>, Vec<Vec<Value>>)> = Vec::new();
    for update in updates {
        let chat = updates::chat_id(&update);
        let Some((_, groups)) = chats.iter_mut().find(|(other, _)| *other == chat) else {
            chats.push((chat, vec![vec![update]]));
            continue;
        };
        let album = updates::album_key(&update);
        let is_same_album = |group: &&mut Vec<Value>| {
            album.is_some() && group.first().and_then(updates::album_key) == album
        };
        match groups.last_mut().filter(is_same_album) {
            Some(group) => group.push(update),
            None => groups.push(vec![update]),
        }
    }
    let handling = chats.into_iter().map(|(_, groups)| async move {
        let mut waiting = Vec::new();
        for group in groups {
            let is_control = group.first().is_some_and(updates::is_control);
            // Later messages wait behind the first one that has no room, but a user can still stop the session.
            let can_submit = waiting.is_empty() || is_control;
            if !can_submit || !submit_until_accepted(bot, handler, &group).await {
                waiting.extend(group.iter().filter_map(update_id));
            }
        }
        waiting
    });
    let waiting = futures_util::future::join_all(handling).await;
    waiting.into_iter().flatten().collect()
}

/// Submits an update or an album until it is accepted or fails permanently. Returns `false` if its session has no room.
async fn submit_until_accepted(
    bot: &Arc<Bot>,
    handler: &MessageHandler,
    updates: &[Value],
) -> bool {
    let id = updates.first().and_then(update_id).unwrap_or_default();
    let mut is_reported = false;
    loop {
        let handling =
            AssertUnwindSafe(updates::handle_update(bot, handler, updates)).catch_unwind();
        let error = match handling.await {
            Ok(Ok(())) => return true,
            Ok(Err(error)) => error,
            Err(_) => {
                let error = "the channel panicked; the update is not processed";
                tracing::error!(update_id = id, error, "telegram.update_skipped");
                return true;
            }
        };
        if error.kind() == ErrorKind::SessionFull {
            return false;
        }
        if !is_retryable(&error) {
            let error = error.message();
            tracing::error!(update_id = id, error, "telegram.update_skipped");
            return true;
        }
        let delay = error.retry_after().unwrap_or(RETRY_DELAY);
        if !std::mem::replace(&mut is_reported, true) {
            let (error, delay_ms) = (error.message(), delay.as_millis());
            tracing::warn!(update_id = id, delay_ms, error, "telegram.update_retry");
        }
        tokio::time::sleep(delay).await;
    }
}

/// Whether a poll failed because Telegram sends the updates to a webhook.
fn is_webhook_conflict(api_error: &ApiError) -> bool {
    api_error.error_kind == ApiErrorKind::Conflict && api_error.text.contains("webhook")
}

fn is_retryable(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Temporary | ErrorKind::Cancelled | ErrorKind::Unknown
    )
}

/// Logs each kind of poll failure once, and computes the delay before the next poll.
struct PollBackoff<'a> {
    bot: &'a Bot,
    reported_kind: Option<ApiErrorKind>,
    delay: Duration,
    last_failure: Option<Instant>,
}

impl PollBackoff<'_> {
    /// Resets the delay after a successful poll. While two programs poll, some polls succeed, so a conflict ends only
    /// after [`CONFLICT_RESET`].
    fn record_success(&mut self) {
        *lock(&self.bot.receive_error) = None;
        let is_conflict = self.reported_kind == Some(ApiErrorKind::Conflict);
        if is_conflict
            && self
                .last_failure
                .is_some_and(|last| last.elapsed() < CONFLICT_RESET)
        {
            return;
        }
        if self.reported_kind.take().is_some() {
            tracing::info!("telegram.recovered");
        }
        self.delay = Duration::ZERO;
    }

    fn record_failure(&mut self, api_error: &ApiError) -> Duration {
        self.last_failure = Some(Instant::now());
        self.delay = (self.delay * 2).clamp(INITIAL_BACKOFF, MAX_BACKOFF);
        let delay = self.delay.max(api_error.retry_after.unwrap_or_default());
        let hint = match api_error.error_kind {
            ApiErrorKind::Conflict if is_webhook_conflict(api_error) => {
                Some("a webhook was set while bub was running; bub removes it")
            }
            ApiErrorKind::Conflict => Some(
                "another program polls for the updates of this bot; stop it or use another token",
            ),
            _ => None,
        };
        let text = match hint {
            Some(hint) => format!("{}; {hint}", api_error.text),
            None => api_error.text.clone(),
        };
        if self.reported_kind.as_ref() != Some(&api_error.error_kind) {
            let (error, delay_ms) = (&api_error.text, delay.as_millis());
            tracing::error!(delay_ms, %error, hint, "telegram.poll_failed");
            self.reported_kind = Some(api_error.error_kind.clone());
        }
        *lock(&self.bot.receive_error) = Some(text);
        delay
    }
}
