//! Previews of growing answers: one message that is edited until the reply replaces it.

#![expect(
    clippy::indexing_slicing,
    reason = "a JSON value is `null` where there is nothing"
)]

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use bub::kernel::{MessageId, MessageOutcome, Turn};
use serde_json::json;
use tokio::time::Instant;

use super::{
    Bot, client::ApiErrorKind, delivery_log::DeliveryProgress, html, outbound::reply_params,
    route::Route,
};
use crate::lock;

/// How long a preview waits for its reply after the turn. Then it is deleted.
const PREVIEW_TTL: Duration = Duration::from_mins(2);
/// Maximum number of concurrent previews. Other answers are sent when they are complete.
const MAX_PREVIEWS: usize = 1_000;

#[derive(Default)]
pub(super) struct Previews(Mutex<HashMap<MessageId, Arc<Preview>>>);

/// The preview of one answer.
pub(super) struct Preview {
    text: Mutex<PreviewText>,
    /// The id of the message that shows the preview, and its HTML. Locked while it is sent or edited.
    message: tokio::sync::Mutex<(Option<i64>, String)>,
}

struct PreviewText {
    answer: String,
    started: Instant,
    last_update: Option<Instant>,
}

impl Previews {
    /// Ends the preview of the answer to an inbound message. Returns the id of the Telegram message that shows the
    /// preview.
    pub(super) async fn finish(&self, bot: &Bot, message_id: &MessageId) -> Option<i64> {
        let preview = lock(&self.0).remove(message_id);
        let preview_id = match preview {
            Some(preview) => preview.message.lock().await.0,
            None => None,
        };
        // An earlier process may have sent the preview.
        preview_id.or_else(|| bot.delivery_log.progress(&log_key(message_id)).first)
    }

    /// Records that a reply replaced the preview, so that the next reply is sent as a new message.
    pub(super) fn mark_replaced(bot: &Bot, message_id: &MessageId) {
        bot.delivery_log.record(
            &log_key(message_id),
            DeliveryProgress {
                parts: 1,
                ..DeliveryProgress::default()
            },
        );
    }
}

/// Returns the key of a preview in the delivery log.
fn log_key(message_id: &MessageId) -> String {
    format!("preview:{message_id}")
}

/// Adds text to the answer of a turn, and updates its preview if the edit interval has passed.
pub(super) fn append_delta(bot: &Arc<Bot>, delta: &str, turn: &Turn) {
    let Some(message_id) = turn.message_id() else {
        return;
    };
    if !bot.options.stream || !bot.options.is_auto || turn.was_sent_by_tool() {
        return;
    }
    let Ok(route) = Route::from_message(turn.message()) else {
        return;
    };
    let preview = {
        let mut previews = lock(&bot.previews.0);
        if previews.len() >= MAX_PREVIEWS && !previews.contains_key(message_id) {
            return;
        }
        let new = || {
            let text = PreviewText {
                answer: String::new(),
                started: Instant::now(),
                last_update: None,
            };
            spawn_cleanup(bot, message_id, turn);
            // An earlier process may have sent the preview.
            let preview_id = bot.delivery_log.progress(&log_key(message_id)).first;
            Arc::new(Preview {
                text: Mutex::new(text),
                message: tokio::sync::Mutex::new((preview_id, String::new())),
            })
        };
        Arc::clone(previews.entry(message_id.clone()).or_insert_with(new))
    };
    let due_text = {
        let mut text = lock(&preview.text);
        text.answer.push_str(delta);
        let now = Instant::now();
        let is_due = match text.last_update {
            Some(last_update) => now.duration_since(last_update) >= bot.options.edit_interval,
            None => now.duration_since(text.started) >= bot.options.preview_delay,
        };
        is_due.then(|| {
            text.last_update = Some(now);
            text.answer.clone()
        })
    };
    if let Some(text) = due_text {
        tokio::spawn(update_preview(
            Arc::clone(bot),
            preview,
            text,
            route,
            message_id.clone(),
        ));
    }
}

/// Sends or edits the preview if the rate limits allow it. Errors are only logged, because the reply does not depend
/// on the preview.
async fn update_preview(
    bot: Arc<Bot>,
    preview: Arc<Preview>,
    text: String,
    route: Route,
    message_id: MessageId,
) {
    let Ok(mut message) = preview.message.try_lock() else {
        return;
    };
    let (preview_id, shown_html) = &mut *message;
    // The reply may have been sent in the meantime.
    if !lock(&bot.previews.0).contains_key(&message_id) {
        return;
    }
    // Show the first part of an answer that is longer than a message.
    let Some(part) = html::render(&text)
        .into_iter()
        .next()
        .filter(|part| part.html != *shown_html)
    else {
        return;
    };
    if !bot.limiter.try_acquire(route.chat_thread.chat) {
        return;
    }
    let mut params = reply_params(&route, preview_id.is_none());
    params["text"] = part.html.as_str().into();
    params["parse_mode"] = "HTML".into();
    params["link_preview_options"] = json!({"is_disabled": !bot.options.link_previews});
    let outcome = match *preview_id {
        Some(preview_id) => {
            if let Some(params) = params.as_object_mut() {
                params.shift_remove("message_thread_id");
            }
            params["message_id"] = preview_id.into();
            bot.client.call("editMessageText", &params).await
        }
        None => bot.client.call("sendMessage", &params).await,
    };
    match outcome {
        Ok(sent) => {
            *shown_html = part.html;
            if preview_id.is_none() {
                *preview_id = sent["message_id"].as_i64();
                bot.delivery_log.record(
                    &log_key(&message_id),
                    DeliveryProgress {
                        first: *preview_id,
                        ..DeliveryProgress::default()
                    },
                );
            }
        }
        Err(api_error) if api_error.error_kind == ApiErrorKind::Flood => {
            bot.apply_flood_wait(
                route.chat_thread.chat,
                api_error.retry_after.unwrap_or_default(),
            );
        }
        Err(api_error) => tracing::debug!(error = %api_error.text, "telegram.preview_failed"),
    }
}

/// Starts a task that deletes the preview if the turn ends without a reply that replaces it.
fn spawn_cleanup(bot: &Arc<Bot>, message_id: &MessageId, turn: &Turn) {
    let receipt = turn.inbound().receipt.clone();
    let (Some(receipt), Ok(route)) = (receipt, Route::from_message(turn.message())) else {
        return;
    };
    let (bot, message_id, turn) = (Arc::clone(bot), message_id.clone(), turn.clone());
    tokio::spawn(async move {
        let outcome = receipt.outcome().await;
        let has_replies = matches!(outcome, MessageOutcome::Done { replies: 1.., .. });
        // After a message of a tool, the answer is not sent.
        if has_replies && !turn.was_sent_by_tool() {
            // The reply that replaces the preview is still to be delivered.
            tokio::time::sleep(PREVIEW_TTL).await;
        }
        if !lock(&bot.previews.0).contains_key(&message_id) {
            return;
        }
        if let Some(preview_id) = bot.previews.finish(&bot, &message_id).await {
            bot.delete_message(route.chat_thread.chat, preview_id);
            Previews::mark_replaced(&bot, &message_id);
        }
    });
}
