//! An answer that is seen to grow: one message, edited now and then, until the reply takes its place.

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

/// A reply that has not taken the place of its preview by then is not going to.
const PREVIEW_TTL: Duration = Duration::from_mins(2);
/// So many answers grow at a time; others are sent when they are done.
const MAX_PREVIEWS: usize = 1_000;

#[derive(Default)]
pub(super) struct Previews(Mutex<HashMap<MessageId, Arc<Preview>>>);

/// One answer.
pub(super) struct Preview {
    text: Mutex<PreviewText>,
    /// The message it is shown in, and what stands there. Locked while it is sent or edited.
    message: tokio::sync::Mutex<(Option<i64>, String)>,
}

struct PreviewText {
    so_far: String,
    since: Instant,
    shown: Option<Instant>,
}

impl Previews {
    /// The preview of the answer to a message, which does not grow any more; where it stands.
    pub(super) async fn finish(&self, bot: &Bot, message_id: &MessageId) -> Option<i64> {
        let preview = lock(&self.0).remove(message_id);
        let shown = match preview {
            Some(preview) => preview.message.lock().await.0,
            None => None,
        };
        // It may be one of the process before this.
        shown.or_else(|| bot.progress.get(&key(message_id)).first)
    }

    /// Notes that a reply stands where the preview stood: the next one has to find a place of its own.
    pub(super) fn mark_replaced(bot: &Bot, message_id: &MessageId) {
        bot.progress.record(
            &key(message_id),
            DeliveryProgress {
                parts: 1,
                first: None,
            },
        );
    }
}

/// The name of a preview among what was sent.
fn key(message_id: &MessageId) -> String {
    format!("preview:{message_id}")
}

/// Adds to the answer to a message, and shows it when it is time.
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
                so_far: String::new(),
                since: Instant::now(),
                shown: None,
            };
            watch(bot, message_id, turn);
            // The process before this may have shown something.
            let shown = bot.progress.get(&key(message_id)).first;
            Arc::new(Preview {
                text: Mutex::new(text),
                message: tokio::sync::Mutex::new((shown, String::new())),
            })
        };
        Arc::clone(previews.entry(message_id.clone()).or_insert_with(new))
    };
    let due = {
        let mut text = lock(&preview.text);
        text.so_far.push_str(delta);
        let now = Instant::now();
        let is_time = match text.shown {
            Some(shown) => now.duration_since(shown) >= bot.options.edit_pace,
            None => now.duration_since(text.since) >= bot.options.first_preview,
        };
        is_time.then(|| {
            text.shown = Some(now);
            text.so_far.clone()
        })
    };
    if let Some(text) = due {
        tokio::spawn(show(
            Arc::clone(bot),
            preview,
            text,
            route,
            message_id.clone(),
        ));
    }
}

/// Shows how far an answer has come, if there is room for that now. Nothing depends on it.
async fn show(
    bot: Arc<Bot>,
    preview: Arc<Preview>,
    text: String,
    route: Route,
    message_id: MessageId,
) {
    let Ok(mut message) = preview.message.try_lock() else {
        return;
    };
    let (shown, standing) = &mut *message;
    // The reply may have come meanwhile.
    if !lock(&bot.previews.0).contains_key(&message_id) {
        return;
    }
    let text = bot.options.redactor.redact(&text);
    // Of one that is longer than a message, the beginning.
    let Some(part) = html::render(&text)
        .into_iter()
        .next()
        .filter(|part| part.html != *standing)
    else {
        return;
    };
    if !bot.limiter.try_acquire(route.place.chat) {
        return;
    }
    let mut params = reply_params(&route, shown.is_none());
    params["text"] = part.html.as_str().into();
    params["parse_mode"] = "HTML".into();
    let outcome = match *shown {
        Some(shown) => {
            if let Some(params) = params.as_object_mut() {
                params.shift_remove("message_thread_id");
            }
            params["message_id"] = shown.into();
            bot.client.call("editMessageText", &params).await
        }
        None => bot.client.call("sendMessage", &params).await,
    };
    match outcome {
        Ok(sent) => {
            *standing = part.html;
            if shown.is_none() {
                *shown = sent["message_id"].as_i64();
                bot.progress.record(
                    &key(&message_id),
                    DeliveryProgress {
                        parts: 0,
                        first: *shown,
                    },
                );
            }
        }
        Err(failure) if failure.error_kind == ApiErrorKind::Flood => {
            bot.limiter
                .apply_flood_wait(route.place.chat, failure.retry_after.unwrap_or_default());
        }
        Err(failure) => tracing::debug!(error = %failure.text, "telegram.preview_failed"),
    }
}

/// When the turn ends without a reply in its place, the preview goes.
fn watch(bot: &Arc<Bot>, message_id: &MessageId, turn: &Turn) {
    let receipt = turn.inbound().receipt.clone();
    let (Some(receipt), Ok(route)) = (receipt, Route::from_message(turn.message())) else {
        return;
    };
    let (bot, message_id) = (Arc::clone(bot), message_id.clone());
    tokio::spawn(async move {
        let outcome = receipt.outcome().await;
        if matches!(outcome, MessageOutcome::Done { replies: 1.., .. }) {
            // On its way, unless all of them were sent by a tool.
            tokio::time::sleep(PREVIEW_TTL).await;
        }
        if !lock(&bot.previews.0).contains_key(&message_id) {
            return;
        }
        if let Some(shown) = bot.previews.finish(&bot, &message_id).await {
            let params = json!({"chat_id": route.place.chat, "message_id": shown});
            let _ = bot.client.call("deleteMessage", &params).await;
        }
    });
}
