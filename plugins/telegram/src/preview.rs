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

use bub::kernel::{Delivery, Envelope};
use serde_json::json;
use tokio::{sync::Mutex as Turn, time::Instant};

use super::{Bot, client::Why, html, outbound::reply_params, progress::Sent, route::Route};
use crate::lock;
use bub::gateway::{Outcome, Ticket, spoken};

/// A reply that has not taken the place of its preview by then is not going to.
const LATE: Duration = Duration::from_mins(2);
/// So many answers grow at a time; others are sent when they are done.
const MOST: usize = 1_000;

#[derive(Default)]
pub(super) struct Previews(Mutex<HashMap<String, Arc<Preview>>>);

/// One answer.
pub(super) struct Preview {
    text: Mutex<Text>,
    /// The message it is shown in, and what stands there. Locked while it is sent or edited.
    message: Turn<(Option<i64>, String)>,
}

struct Text {
    so_far: String,
    since: Instant,
    shown: Option<Instant>,
}

impl Previews {
    /// The preview of the answer to a message, which does not grow any more; where it stands.
    pub(super) async fn finish(&self, bot: &Bot, inbound_id: &str) -> Option<i64> {
        let preview = lock(&self.0).remove(inbound_id);
        let shown = match preview {
            Some(preview) => preview.message.lock().await.0,
            None => None,
        };
        // It may be one of the process before this.
        shown.or_else(|| bot.progress.get(&key(inbound_id)).first)
    }

    /// Notes that a reply stands where the preview stood: the next one has to find a place of its own.
    pub(super) fn used(bot: &Bot, inbound_id: &str) {
        bot.progress.note(
            &key(inbound_id),
            Sent {
                parts: 1,
                first: None,
            },
        );
    }
}

/// The name of a preview among what was sent.
fn key(inbound_id: &str) -> String {
    format!("preview:{inbound_id}")
}

/// Adds to the answer to a message, and shows it when it is time.
pub(super) fn grow(bot: &Arc<Bot>, delta: &str, message: &Envelope) {
    let Some(delivery) = message.slot::<Delivery>() else {
        return;
    };
    if !bot.options.stream || !bot.options.is_auto || spoken::is_noted() {
        return;
    }
    let Ok(route) = Route::of(message) else {
        return;
    };
    let preview = {
        let mut previews = lock(&bot.previews.0);
        if previews.len() >= MOST && !previews.contains_key(&delivery.inbound_id) {
            return;
        }
        let new = || {
            let text = Text {
                so_far: String::new(),
                since: Instant::now(),
                shown: None,
            };
            watch(bot, &delivery.inbound_id, message);
            // The process before this may have shown something.
            let shown = bot.progress.get(&key(&delivery.inbound_id)).first;
            Arc::new(Preview {
                text: Mutex::new(text),
                message: Turn::new((shown, String::new())),
            })
        };
        Arc::clone(
            previews
                .entry(delivery.inbound_id.clone())
                .or_insert_with(new),
        )
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
            delivery.inbound_id.clone(),
        ));
    }
}

/// Shows how far an answer has come, if there is room for that now. Nothing depends on it.
async fn show(
    bot: Arc<Bot>,
    preview: Arc<Preview>,
    text: String,
    route: Route,
    inbound_id: String,
) {
    let Ok(mut message) = preview.message.try_lock() else {
        return;
    };
    let (shown, standing) = &mut *message;
    // The reply may have come meanwhile.
    if !lock(&bot.previews.0).contains_key(&inbound_id) {
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
    if !bot.limiter.try_now(route.place.chat) {
        return;
    }
    let mut params = reply_params(&route, shown.is_none());
    params["text"] = part.html.as_str().into();
    params["parse_mode"] = "HTML".into();
    let outcome = match *shown {
        Some(message_id) => {
            if let Some(params) = params.as_object_mut() {
                params.shift_remove("message_thread_id");
            }
            params["message_id"] = message_id.into();
            bot.client.call("editMessageText", &params).await
        }
        None => bot.client.call("sendMessage", &params).await,
    };
    match outcome {
        Ok(sent) => {
            *standing = part.html;
            if shown.is_none() {
                *shown = sent["message_id"].as_i64();
                bot.progress.note(
                    &key(&inbound_id),
                    Sent {
                        parts: 0,
                        first: *shown,
                    },
                );
            }
        }
        Err(failure) if failure.why == Why::Flood => {
            bot.limiter
                .flooded(route.place.chat, failure.retry_after.unwrap_or_default());
        }
        Err(failure) => tracing::debug!("telegram.preview_failed error={}", failure.text),
    }
}

/// When the turn ends without a reply in its place, the preview goes.
fn watch(bot: &Arc<Bot>, inbound_id: &str, message: &Envelope) {
    let (Some(ticket), Ok(route)) = (message.slot::<Ticket>(), Route::of(message)) else {
        return;
    };
    let (bot, inbound_id) = (Arc::clone(bot), inbound_id.to_owned());
    tokio::spawn(async move {
        if matches!(ticket.settled().await, Outcome::Done { replies: 1.. }) {
            // On its way, unless all of them were sent by a tool.
            tokio::time::sleep(LATE).await;
        }
        if !lock(&bot.previews.0).contains_key(&inbound_id) {
            return;
        }
        if let Some(message_id) = bot.previews.finish(&bot, &inbound_id).await {
            let params = json!({"chat_id": route.place.chat, "message_id": message_id});
            let _ = bot.client.call("deleteMessage", &params).await;
        }
    });
}
