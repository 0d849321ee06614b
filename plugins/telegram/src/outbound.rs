//! Sends replies to chats, in parts that fit into one message. Each part is recorded when the platform accepts it.

#![expect(
    clippy::indexing_slicing,
    reason = "a JSON value is `null` where there is nothing"
)]

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bub::agent::files::AllowedFile;
use bub::kernel::{
    Envelope, Error, ErrorKind, MediaItem, MediaKind, MessageId, MessageKind, Outbound, Result,
    tool::run_blocking,
};
use bub::settings::Redactor;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{
    Bot,
    client::{ApiError, ApiErrorKind, Upload},
    delivery_log::DeliveryProgress,
    html::{self, MessagePart},
    preview::Previews,
    route::{Button, Route},
    tools::read_file,
};
use crate::lock;
use bub::gateway::{
    fields::{APPROVAL_CHOICES_FIELD, APPROVAL_DECIDED_FIELD, APPROVAL_ID_FIELD},
    is_permanent_error,
};

/// Envelope field with the key of the tool call in [`SentMessageWaiters`].
pub(super) const SENT_ID_FIELD: &str = "telegram_note";
/// Maximum size of a photo. Larger images are sent as files.
const MAX_PHOTO_BYTES: usize = 10 * 1024 * 1024;

/// Tool calls that wait for the id of a sent message, or for the error.
#[derive(Default)]
pub(super) struct SentMessageWaiters(Mutex<HashMap<String, oneshot::Sender<Result<i64>>>>);

impl SentMessageWaiters {
    pub(super) fn register(&self) -> (String, oneshot::Receiver<Result<i64>>) {
        let sent_id = format!("{:016x}", getrandom::u64().unwrap_or_default());
        let (sender, receiver) = oneshot::channel();
        lock(&self.0).insert(sent_id.clone(), sender);
        (sent_id, receiver)
    }

    pub(super) fn remove(&self, sent_id: &str) -> Option<oneshot::Sender<Result<i64>>> {
        lock(&self.0).remove(sent_id)
    }
}

/// Delivers a reply and reports its message id to the waiting tool call, if any. Resumes where an earlier attempt
/// ended.
pub(super) async fn deliver_reply(bot: &Arc<Bot>, reply: &Outbound) -> Result<()> {
    let sent = send_reply(bot, reply).await;
    let result = match &sent {
        Ok(first) => first.map(Ok),
        Err(error) => is_permanent_error(error).then(|| Err(error.clone())),
    };
    if let Some(result) = result
        && let Some(waiter) = reply
            .str_field(SENT_ID_FIELD)
            .and_then(|sent_id| bot.sent_waiters.remove(sent_id))
    {
        let _ = waiter.send(result);
    }
    sent.map(drop)
}

/// Sends a reply. Returns the id of its first message.
async fn send_reply(bot: &Arc<Bot>, reply: &Outbound) -> Result<Option<i64>> {
    let message = &reply.message;
    let mut route = Route::from_message(message)?;
    if let Some(chat) = lock(&bot.migrated_chats).get(&route.chat_thread.chat) {
        // The answered message does not exist in the new group.
        (route.chat_thread.chat, route.message_id) = (*chat, None);
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
    let mut parts: Vec<OutgoingPart> = html::render(&reply_markdown(message, approval.is_some()))
        .into_iter()
        .map(OutgoingPart::Text)
        .collect();
    if let Some(id) = approval
        && let Some(OutgoingPart::Text(part)) = parts.pop()
    {
        let choices = message.field(APPROVAL_CHOICES_FIELD).cloned();
        parts.push(OutgoingPart::Question(
            part,
            approval_buttons(id, choices.as_ref()),
        ));
    }
    parts.extend(message.media().into_iter().map(OutgoingPart::Media));
    let sent = bot.delivery_log.progress(&reply_id);
    let is_plain = message.kind() == MessageKind::Normal
        && approval.is_none()
        && message.str_field(SENT_ID_FIELD).is_none();
    // An error also replaces the preview, so that a partial answer does not look complete.
    let replaces_preview = is_plain || message.kind() == MessageKind::Error;
    let answered = reply.message_id();
    let preview = match answered.filter(|_| replaces_preview && sent.parts == 0) {
        Some(message_id) => bot
            .previews
            .finish(bot, message_id)
            .await
            .map(|preview_id| (preview_id, message_id.clone())),
        None => None,
    };
    let outgoing_reply = OutgoingReply {
        bot: Arc::clone(bot),
        route,
        reply_id,
        sent,
        preview,
    };
    Ok(outgoing_reply.send_parts(parts).await?.sent.first)
}

/// Returns the text of a reply as Markdown. For a JSON object, that is its `message`. Text that is not meant as
/// Markdown becomes a code block, so that it is shown verbatim.
fn reply_markdown(message: &Envelope, is_literal: bool) -> String {
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
    let longest_run = text
        .split(|letter| letter != '`')
        .map(str::len)
        .max()
        .unwrap_or_default();
    let fence = "`".repeat(longest_run.max(2) + 1);
    format!("{fence}\n{text}\n{fence}")
}

/// Returns the parameters of a message to a chat. In groups, the first message of a reply quotes the message that it
/// answers.
pub(super) fn reply_params(route: &Route, is_first: bool) -> Value {
    let mut params = route.chat_thread.add_to_params(json!({}));
    if let Some(message_id) = route.message_id.filter(|_| is_first && route.is_quoted) {
        params["reply_parameters"] =
            json!({"message_id": message_id, "allow_sending_without_reply": true});
    }
    params
}

/// Returns the buttons for an approval request. Which user may press them is checked when the answer arrives.
fn approval_buttons(id: &str, choices: Option<&Value>) -> Value {
    let button =
        |text: &str, verb: &str| json!({"text": text, "callback_data": format!("{verb}:{id}")});
    let has_choice = |choice: &&(&str, &str)| {
        let choices = choices.and_then(Value::as_array);
        choices.is_some_and(|choices| choices.iter().any(|other| other == choice.1))
    };
    let longer = [("This session", "session"), ("Always", "always")];
    let mut buttons = vec![button("Approve", "approve")];
    buttons.extend(
        longer
            .iter()
            .filter(has_choice)
            .map(|(text, verb)| button(text, verb)),
    );
    buttons.push(button("Deny", "deny"));
    json!({"inline_keyboard": [buttons]})
}

/// Shows the outcome of a pressed approval button to the user who pressed it. If the approval is decided, also adds the
/// outcome to the question and removes its buttons.
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
        // Ignore the rejection: the platform accepts this call only for a few seconds after the press.
        Err(api_error) if api_error.error_kind == ApiErrorKind::Rejected => {}
        Err(api_error) => return Err(api_error.into()),
    }
    if !is_decided {
        return Ok(());
    }
    bot.limiter.wait_to_send(route.chat_thread.chat).await;
    let text = format!("{}\n\n{outcome}", button.text);
    let params =
        json!({"chat_id": route.chat_thread.chat, "message_id": button.message_id, "text": text});
    match bot.client.call("editMessageText", &params).await {
        Ok(_) => Ok(()),
        Err(api_error)
            if matches!(
                api_error.error_kind,
                ApiErrorKind::NotModified | ApiErrorKind::Rejected
            ) =>
        {
            Ok(())
        }
        Err(api_error) => Err(api_error.into()),
    }
}

impl Bot {
    /// Sends a text, or edits a message, with the given method: as HTML, or as plain text if the platform rejects the
    /// HTML.
    pub(super) async fn send_with_markup(
        &self,
        method: &str,
        base: &Value,
        part: &MessagePart,
    ) -> Result<Value, ApiError> {
        let mut params = base.clone();
        params["text"] = part.html.as_str().into();
        params["parse_mode"] = "HTML".into();
        match self.client.call(method, &params).await {
            Err(api_error) if api_error.error_kind == ApiErrorKind::Markup => {
                // The part is sent as plain text.
                tracing::warn!(error = %api_error.text, "telegram.markup_rejected");
                self.limiter
                    .wait_to_send(base["chat_id"].as_i64().unwrap_or_default())
                    .await;
                let mut params = base.clone();
                params["text"] = part.plain.as_str().into();
                self.client.call(method, &params).await
            }
            outcome => outcome,
        }
    }
}

/// One Telegram message of a reply.
enum OutgoingPart {
    Text(MessagePart),
    /// A text with buttons to answer an approval request.
    Question(MessagePart, Value),
    Media(MediaItem),
}

struct OutgoingReply {
    bot: Arc<Bot>,
    route: Route,
    reply_id: String,
    sent: DeliveryProgress,
    /// The message id of the preview, and the inbound message that it answers.
    preview: Option<(i64, MessageId)>,
}

impl OutgoingReply {
    async fn send_parts(mut self, parts: Vec<OutgoingPart>) -> Result<Self> {
        let delivered_parts = self.sent.parts;
        for (index, outgoing_part) in parts.into_iter().enumerate().skip(delivered_parts) {
            self.bot
                .limiter
                .wait_to_send(self.route.chat_thread.chat)
                .await;
            // Send in a separate task, so that the progress is recorded even if the caller is cancelled.
            let task = tokio::spawn(async move {
                let outcome = self.send_part(index, &outgoing_part).await;
                (self, outcome)
            });
            let outcome;
            (self, outcome) = task.await.map_err(|_| {
                let text = format!("cannot send part {} of the reply: internal error (panic); see the log for the panic", index + 1);
                Error::new(ErrorKind::Temporary, text)
            })?;
            outcome?;
        }
        Ok(self)
    }

    async fn send_part(&mut self, index: usize, outgoing_part: &OutgoingPart) -> Result<()> {
        let mut outcome = self.try_send_part(index, outgoing_part).await?;
        if let Err(api_error) = &outcome
            && api_error.error_kind == ApiErrorKind::NoSuchMessage
            && self.route.message_id.take().is_some()
        {
            // The message to quote was deleted: retry without quoting it.
            self.bot
                .limiter
                .wait_to_send(self.route.chat_thread.chat)
                .await;
            outcome = self.try_send_part(index, outgoing_part).await?;
        }
        match outcome {
            Ok(message_id) => {
                self.sent.parts = index + 1;
                self.sent.first = self.sent.first.or(message_id);
                self.bot
                    .delivery_log
                    .record(&self.reply_id, self.sent.clone());
                if let Some((preview_id, inbound_id)) = self.preview.take()
                    && message_id == Some(preview_id)
                {
                    Previews::mark_replaced(&self.bot, &inbound_id);
                }
                Ok(())
            }
            Err(api_error) => {
                match api_error.error_kind {
                    ApiErrorKind::Flood => {
                        self.bot.limiter.apply_flood_wait(
                            self.route.chat_thread.chat,
                            api_error.retry_after.unwrap_or_default(),
                        );
                    }
                    // The next attempt uses the new id.
                    ApiErrorKind::ChatMoved(chat) => {
                        self.bot.record_migration(self.route.chat_thread.chat, chat);
                    }
                    _ => {}
                }
                Err(api_error.into())
            }
        }
    }

    async fn try_send_part(
        &mut self,
        index: usize,
        outgoing_part: &OutgoingPart,
    ) -> Result<Result<Option<i64>, ApiError>> {
        Ok(match outgoing_part {
            OutgoingPart::Text(part) => self.send_text(index, part, None).await,
            OutgoingPart::Question(part, buttons) => {
                self.send_text(index, part, Some(buttons)).await
            }
            OutgoingPart::Media(item) => {
                let file = load_file(item, &self.bot.options.redactor).await?;
                self.send_media(index, file).await
            }
        })
    }

    async fn send_text(
        &mut self,
        index: usize,
        part: &MessagePart,
        buttons: Option<&Value>,
    ) -> Result<Option<i64>, ApiError> {
        if let (0, Some((preview, _))) = (index, &self.preview) {
            let preview = *preview;
            let base = json!({"chat_id": self.route.chat_thread.chat, "message_id": preview});
            match self
                .bot
                .send_with_markup("editMessageText", &base, part)
                .await
            {
                Err(api_error)
                    if api_error.error_kind != ApiErrorKind::NotModified
                        && api_error.error_kind != ApiErrorKind::Rejected =>
                {
                    return Err(api_error);
                }
                // The preview was deleted: send a new message.
                Err(api_error) if api_error.error_kind == ApiErrorKind::Rejected => {}
                _ => return Ok(Some(preview)),
            }
        }
        let mut base = reply_params(&self.route, index == 0);
        if let Some(buttons) = buttons {
            base["reply_markup"] = buttons.clone();
        }
        let answer = self
            .bot
            .send_with_markup("sendMessage", &base, part)
            .await?;
        Ok(answer["message_id"].as_i64())
    }

    async fn send_media(&self, index: usize, file: FileSource) -> Result<Option<i64>, ApiError> {
        let mut params = reply_params(&self.route, index == 0);
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
                // The image has unsupported dimensions or is invalid: send it as a file.
                Err(api_error) if api_error.error_kind == ApiErrorKind::Rejected => {}
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

/// The content of a file to send, and whether to send it as a photo.
enum FileSource {
    Link(String, bool),
    Bytes(Upload, bool),
}

async fn load_file(item: &MediaItem, redactor: &Redactor) -> Result<FileSource> {
    let is_image = item.kind == MediaKind::Image;
    let url = item.resolve_url().await?.unwrap_or_default();
    let file_error = |reason: String| {
        Error::not_found(format!(
            "cannot send file `{}` of the reply: {reason}",
            item.filename.as_deref().unwrap_or(item.kind.name())
        ))
    };
    let (bytes, name) = if let Some(path) = url.strip_prefix("file://") {
        let path = PathBuf::from(path);
        let name = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        let redactor = redactor.clone();
        let bytes = run_blocking(move || {
            // The tool that named the file has resolved its links. A link that is there now leads elsewhere.
            let file = AllowedFile::open_resolved(&path)?;
            Ok::<_, Error>(read_file(file, &redactor)?)
        });
        let bytes = bytes
            .await?
            .map_err(|error| file_error(error.message().to_owned()))?;
        (bytes, name)
    } else if let Some((_, data)) = url
        .strip_prefix("data:")
        .and_then(|data| data.split_once(";base64,"))
    {
        (
            STANDARD
                .decode(data)
                .map_err(|error| file_error(error.to_string()))?,
            None,
        )
    } else if url.starts_with("http") {
        return Ok(FileSource::Link(url, is_image));
    } else {
        return Err(file_error("it has no content and no URL".to_owned()));
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
