//! Replies on their way to a chat: in parts that fit, each noted as soon as the platform has it.

#![expect(
    clippy::indexing_slicing,
    reason = "a JSON value is `null` where there is nothing"
)]

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bub::kernel::{
    Envelope, Error, ErrorKind, MediaItem, MediaKind, MessageId, MessageKind, Outbound, Result,
};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{
    Bot,
    client::{ApiError, ApiErrorKind, Upload},
    delivery_log::DeliveryProgress,
    html::{self, MessagePart},
    preview::Previews,
    route::{Button, Route},
};
use crate::lock;
use bub::gateway::{
    fields::{APPROVAL_DECIDED_FIELD, APPROVAL_ID_FIELD},
    is_permanent,
};

/// The field by which whoever sent a message learns its number.
pub(super) const SENT_ID_FIELD: &str = "telegram_note";
/// Bigger pictures are sent as files.
const MAX_PHOTO_BYTES: usize = 10 * 1024 * 1024;

/// Those who wait for the number of a message, or for the word that it will have none.
#[derive(Default)]
pub(super) struct SentMessageWaiters(Mutex<HashMap<String, oneshot::Sender<Result<i64>>>>);

impl SentMessageWaiters {
    pub(super) fn open(&self) -> (String, oneshot::Receiver<Result<i64>>) {
        let note = format!("{:016x}", getrandom::u64().unwrap_or_default());
        let (sender, receiver) = oneshot::channel();
        lock(&self.0).insert(note.clone(), sender);
        (note, receiver)
    }

    pub(super) fn close(&self, note: &str) -> Option<oneshot::Sender<Result<i64>>> {
        lock(&self.0).remove(note)
    }
}

/// Delivers a reply, from where an earlier attempt ended.
pub(super) async fn deliver(bot: &Arc<Bot>, reply: &Outbound) -> Result<()> {
    let sent = send(bot, reply).await;
    let word = match &sent {
        Ok(first) => first.map(Ok),
        Err(error) => is_permanent(error).then(|| Err(error.clone())),
    };
    if let Some(word) = word
        && let Some(waiting) = reply
            .str_field(SENT_ID_FIELD)
            .and_then(|note| bot.notes.close(note))
    {
        let _ = waiting.send(word);
    }
    sent.map(drop)
}

/// Sends a reply; the number of its first message.
async fn send(bot: &Arc<Bot>, reply: &Outbound) -> Result<Option<i64>> {
    let message = &reply.message;
    let mut route = Route::from_message(message)?;
    if let Some(chat) = lock(&bot.moved).get(&route.place.chat) {
        // What it answers stayed behind.
        (route.place.chat, route.message_id) = (*chat, None);
    }
    if let Some(button) = &route.button {
        return answer_button(bot, &route, button, message)
            .await
            .map(|()| None);
    }
    let reply_id = match &reply.attempt {
        Some(attempt) => String::from(&attempt.reply_id),
        None => format!(
            "direct:{}",
            message.str_field(SENT_ID_FIELD).unwrap_or_default()
        ),
    };
    let approval = message.str_field(APPROVAL_ID_FIELD);
    let mut pieces: Vec<OutgoingPart> = html::render(&markdown(message, approval.is_some()))
        .into_iter()
        .map(OutgoingPart::Text)
        .collect();
    if let Some(id) = approval
        && let Some(OutgoingPart::Text(part)) = pieces.pop()
    {
        pieces.push(OutgoingPart::Question(part, id.to_owned()));
    }
    pieces.extend(message.media().into_iter().map(OutgoingPart::Media));
    let sent = bot.progress.get(&reply_id);
    let is_plain = message.kind() == MessageKind::Normal
        && approval.is_none()
        && message.str_field(SENT_ID_FIELD).is_none();
    // Half an answer must not look like a whole one: an error takes its place as well.
    let takes_place = is_plain || message.kind() == MessageKind::Error;
    let answered = reply.message_id();
    let preview = match answered.filter(|_| takes_place && sent.parts == 0) {
        Some(message_id) => bot
            .previews
            .finish(bot, message_id)
            .await
            .map(|shown| (shown, message_id.clone())),
        None => None,
    };
    let sending = OutgoingReply {
        bot: Arc::clone(bot),
        route,
        reply_id,
        sent,
        preview,
    };
    Ok(sending.send(pieces).await?.sent.first)
}

/// The text of a reply as Markdown: a JSON object is its `message`; what was not meant as Markdown is quoted as code, so
/// that it is seen as it is.
fn markdown(message: &Envelope, is_literal: bool) -> String {
    let content = message.content();
    let object = content
        .trim_start()
        .starts_with('{')
        .then(|| serde_json::from_str::<Value>(&content).ok())
        .flatten();
    let inner = object
        .as_ref()
        .and_then(|object| object.get("message")?.as_str());
    let text = inner.unwrap_or(&content);
    let is_output = message.kind() == MessageKind::Command
        && text.contains(['\n', '*', '_', '`', '<', '[', '#', '~', '|', '\\']);
    if !(is_literal || is_output) {
        return text.to_owned();
    }
    let longest = text
        .split(|letter| letter != '`')
        .map(str::len)
        .max()
        .unwrap_or_default();
    let fence = "`".repeat(longest.max(2) + 1);
    format!("{fence}\n{text}\n{fence}")
}

/// The parameters of a message to a chat; the first of a reply points at what it answers.
pub(super) fn reply_params(route: &Route, is_first: bool) -> Value {
    let mut params = route.place.params(json!({}));
    if let Some(message_id) = route.message_id.filter(|_| is_first && route.is_quoted) {
        params["reply_parameters"] =
            json!({"message_id": message_id, "allow_sending_without_reply": true});
    }
    params
}

/// Tells whoever pressed a button what came of it; the question says so from then on, and has no buttons any more.
async fn answer_button(
    bot: &Arc<Bot>,
    route: &Route,
    button: &Button,
    message: &Envelope,
) -> Result<()> {
    let outcome = message.content();
    let is_decided = message.field(APPROVAL_DECIDED_FIELD) == Some(&Value::Bool(true));
    let params =
        json!({"callback_query_id": button.query, "text": outcome, "show_alert": !is_decided});
    match bot.client.call("answerCallbackQuery", &params).await {
        Ok(_) => {}
        // The platform waits for seconds only.
        Err(failure) if failure.error_kind == ApiErrorKind::Refused => {}
        Err(failure) => return Err(failure.into()),
    }
    if !is_decided {
        return Ok(());
    }
    bot.limiter.wait(route.place.chat).await;
    let text = format!("{}\n\n{outcome}", button.text);
    let params =
        json!({"chat_id": route.place.chat, "message_id": button.message_id, "text": text});
    match bot.client.call("editMessageText", &params).await {
        Ok(_) => Ok(()),
        Err(failure)
            if matches!(
                failure.error_kind,
                ApiErrorKind::NotModified | ApiErrorKind::Refused
            ) =>
        {
            Ok(())
        }
        Err(failure) => Err(failure.into()),
    }
}

impl Bot {
    /// A text as HTML; as plain text when that is refused.
    pub(super) async fn with_markup(
        &self,
        method: &str,
        base: &Value,
        part: &MessagePart,
    ) -> Result<Value, ApiError> {
        let mut params = base.clone();
        params["text"] = part.html.as_str().into();
        params["parse_mode"] = "HTML".into();
        match self.client.call(method, &params).await {
            Err(failure) if failure.error_kind == ApiErrorKind::Markup => {
                // The part is sent as plain text.
                tracing::warn!(error = %failure.text, "telegram.markup_rejected");
                self.limiter
                    .wait(base["chat_id"].as_i64().unwrap_or_default())
                    .await;
                let mut params = base.clone();
                params["text"] = part.plain.as_str().into();
                self.client.call(method, &params).await
            }
            outcome => outcome,
        }
    }
}

/// What is one message of the platform.
enum OutgoingPart {
    Text(MessagePart),
    /// With buttons for the answer to the request of that id.
    Question(MessagePart, String),
    Media(MediaItem),
}

struct OutgoingReply {
    bot: Arc<Bot>,
    route: Route,
    reply_id: String,
    sent: DeliveryProgress,
    /// The message that showed the answer while it grew, and what it answers.
    preview: Option<(i64, MessageId)>,
}

impl OutgoingReply {
    async fn send(mut self, pieces: Vec<OutgoingPart>) -> Result<Self> {
        let done = self.sent.parts;
        for (at, piece) in pieces.into_iter().enumerate().skip(done) {
            self.bot.limiter.wait(self.route.place.chat).await;
            // In a task of its own: when whoever waits gives up, what the platform took is noted all the same.
            let task = tokio::spawn(async move {
                let outcome = self.send_piece(at, &piece).await;
                (self, outcome)
            });
            let outcome;
            (self, outcome) = task
                .await
                .map_err(|error| Error::new(ErrorKind::Temporary, error.to_string()))?;
            outcome?;
        }
        Ok(self)
    }

    async fn send_piece(&mut self, at: usize, piece: &OutgoingPart) -> Result<()> {
        let mut outcome = self.try_piece(at, piece).await?;
        if let Err(failure) = &outcome
            && failure.error_kind == ApiErrorKind::NoSuchMessage
            && self.route.message_id.take().is_some()
        {
            // H-174
            self.bot.limiter.wait(self.route.place.chat).await;
            outcome = self.try_piece(at, piece).await?;
        }
        match outcome {
            Ok(message_id) => {
                self.sent.parts = at + 1;
                self.sent.first = self.sent.first.or(message_id);
                self.bot.progress.record(&self.reply_id, self.sent.clone());
                if let Some((shown, inbound_id)) = self.preview.take()
                    && message_id == Some(shown)
                {
                    Previews::mark_replaced(&self.bot, &inbound_id);
                }
                Ok(())
            }
            Err(failure) => {
                match failure.error_kind {
                    ApiErrorKind::Flood => {
                        self.bot.limiter.apply_flood_wait(
                            self.route.place.chat,
                            failure.retry_after.unwrap_or_default(),
                        );
                    }
                    // The next attempt goes there.
                    ApiErrorKind::Moved(chat) => {
                        self.bot.record_migration(self.route.place.chat, chat);
                    }
                    _ => {}
                }
                Err(failure.into())
            }
        }
    }

    async fn try_piece(
        &mut self,
        at: usize,
        piece: &OutgoingPart,
    ) -> Result<Result<Option<i64>, ApiError>> {
        Ok(match piece {
            OutgoingPart::Text(part) => self.send_text(at, part, None).await,
            OutgoingPart::Question(part, id) => self.send_text(at, part, Some(id)).await,
            OutgoingPart::Media(item) => {
                let file = load(item).await?;
                self.send_media(at, file).await
            }
        })
    }

    async fn send_text(
        &mut self,
        at: usize,
        part: &MessagePart,
        question: Option<&str>,
    ) -> Result<Option<i64>, ApiError> {
        if let (0, Some((preview, _))) = (at, &self.preview) {
            let preview = *preview;
            let base = json!({"chat_id": self.route.place.chat, "message_id": preview});
            match self.bot.with_markup("editMessageText", &base, part).await {
                Err(failure)
                    if failure.error_kind != ApiErrorKind::NotModified
                        && failure.error_kind != ApiErrorKind::Refused =>
                {
                    return Err(failure);
                }
                // It is gone: somebody deleted it.
                Err(failure) if failure.error_kind == ApiErrorKind::Refused => {}
                _ => return Ok(Some(preview)),
            }
        }
        let mut base = reply_params(&self.route, at == 0);
        if let Some(id) = question {
            let button = |text: &str, verb: &str| json!({"text": text, "callback_data": format!("{verb}:{id}")});
            base["reply_markup"] = json!({"inline_keyboard": [[button("Approve", "approve"), button("Deny", "deny")]]});
        }
        let answer = self.bot.with_markup("sendMessage", &base, part).await?;
        Ok(answer["message_id"].as_i64())
    }

    async fn send_media(&self, at: usize, file: FileSource) -> Result<Option<i64>, ApiError> {
        let mut params = reply_params(&self.route, at == 0);
        let (upload, is_photo) = match file {
            FileSource::Link(url, is_photo) => {
                let (method, name) = if is_photo {
                    ("sendPhoto", "photo")
                } else {
                    ("sendDocument", "document")
                };
                params[name] = url.into();
                return self
                    .bot
                    .client
                    .call(method, &params)
                    .await
                    .map(|answer| answer["message_id"].as_i64());
            }
            FileSource::Bytes(upload, is_photo) => (upload, is_photo),
        };
        let params = params.as_object().cloned().unwrap_or_default();
        if is_photo {
            match self.bot.client.upload("sendPhoto", &params, &upload).await {
                // Too long, too thin, or no picture at all: a file it is.
                Err(failure) if failure.error_kind == ApiErrorKind::Refused => {}
                outcome => return outcome.map(|answer| answer["message_id"].as_i64()),
            }
        }
        let upload = Upload {
            name: "document",
            ..upload
        };
        let answer = self
            .bot
            .client
            .upload("sendDocument", &params, &upload)
            .await?;
        Ok(answer["message_id"].as_i64())
    }
}

/// A file on its way out, and whether it is a picture.
enum FileSource {
    Link(String, bool),
    Bytes(Upload, bool),
}

async fn load(item: &MediaItem) -> Result<FileSource> {
    let is_image = item.kind == MediaKind::Image;
    let url = item.resolve_url().await?.unwrap_or_default();
    let gone = |error_kind: String| {
        Error::not_found(format!("a file of the reply cannot be sent: {error_kind}"))
    };
    let (bytes, name) = if let Some(path) = url.strip_prefix("file://") {
        let bytes = tokio::task::spawn_blocking({
            let path = path.to_owned();
            move || std::fs::read(path)
        });
        let bytes = bytes
            .await
            .map_err(|error| gone(error.to_string()))?
            .map_err(|error| gone(error.to_string()))?;
        (
            bytes,
            Path::new(path)
                .file_name()
                .map(|name| name.to_string_lossy().into_owned()),
        )
    } else if let Some((_, data)) = url
        .strip_prefix("data:")
        .and_then(|data| data.split_once(";base64,"))
    {
        (
            STANDARD
                .decode(data)
                .map_err(|error| gone(error.to_string()))?,
            None,
        )
    } else if url.starts_with("http") {
        return Ok(FileSource::Link(url, is_image));
    } else {
        return Err(gone("it has no content".to_owned()));
    };
    let filename = item
        .filename
        .clone()
        .or(name)
        .unwrap_or_else(|| "file".to_owned());
    let is_photo = is_image && bytes.len() <= MAX_PHOTO_BYTES && item.mime != "image/svg+xml";
    Ok(FileSource::Bytes(
        Upload {
            name: "photo",
            filename,
            mime: item.mime.clone(),
            bytes,
        },
        is_photo,
    ))
}
