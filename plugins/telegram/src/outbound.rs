//! Sends replies to chats, in parts that fit into one message. Each part is recorded when the platform accepts it.
//!
//! * `files`: sends files as photos, audio, voice messages, videos, documents or albums.

#![expect(
    clippy::indexing_slicing,
    reason = "a JSON value is `null` where there is nothing"
)]

mod files;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use bub::kernel::{
    ApprovalAnswer, Envelope, Error, ErrorKind, MediaItem, MessageId, MessageKind, Outbound, Result,
};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{
    Bot,
    chat_store::Question,
    client::{ApiError, ApiErrorKind, Upload},
    delivery_log::DeliveryProgress,
    html::{self, MessagePart},
    preview::Previews,
    route::{Button, Route},
};
use crate::lock;
use bub::gateway::{
    fields::{APPROVAL_CHOICES_FIELD, APPROVAL_DECIDED_FIELD, APPROVAL_ID_FIELD},
    is_permanent_error,
};

/// Envelope field with the key of the tool call in [`SentMessageWaiters`].
pub(super) const SENT_ID_FIELD: &str = "telegram_note";
/// Maximum number of messages for the text of an answer. A longer answer is sent as its beginning and a file.
const MAX_TEXT_MESSAGES: usize = 5;
/// Maximum length of the pieces of a text that the platform rejects as a whole.
const MAX_PIECE_CHARS: usize = 1_000;
/// Maximum pause of a chat for which a reply waits in the channel. For a longer pause, it waits in the outbox.
const MAX_PAUSE: Duration = Duration::from_secs(30);

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
    let chat = bot.chats.current_id(route.chat_thread.chat);
    if chat != route.chat_thread.chat {
        // The answered message does not exist in the new group.
        (route.chat_thread.chat, route.message_id) = (chat, None);
    }
    let pause = bot.limiter.remaining_pause(chat);
    if pause > MAX_PAUSE {
        let text = format!(
            "Telegram accepts no messages to the chat for {} s",
            pause.as_secs()
        );
        return Err(Error::new(ErrorKind::Temporary, text).with_retry_after(pause));
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
        let buttons = approval_buttons(id, choices.as_ref());
        parts.push(OutgoingPart::Question(part, id.to_owned(), buttons));
    }
    if parts.len() > MAX_TEXT_MESSAGES && message.kind() == MessageKind::Normal {
        parts.truncate(1);
        parts.push(OutgoingPart::File(message.content().into_owned()));
    }
    let caption = match parts.as_slice() {
        [OutgoingPart::Text(part)] if files::fits_caption(part) => Some(part.clone()),
        _ => None,
    };
    let media = files::media_parts(message.media(), caption);
    if media.has_caption {
        parts.clear();
    }
    parts.extend(media.parts);
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
        is_from_tool: message.str_field(SENT_ID_FIELD).is_some(),
    };
    Ok(outgoing_reply.send_parts(parts).await?.sent.first)
}

/// Returns the text of a reply as Markdown. Text that is not meant as Markdown, such as a JSON object, becomes a code
/// block, so that it is shown verbatim.
fn reply_markdown(message: &Envelope, is_literal: bool) -> String {
    let text = message.content();
    let is_object = text.trim_start().starts_with('{')
        && serde_json::from_str::<Value>(&text).is_ok_and(|value| value.is_object());
    let is_output = message.kind() == MessageKind::Command
        && text.contains(['\n', '*', '_', '`', '<', '[', '#', '~', '|', '\\']);
    if !(is_literal || is_output || is_object) {
        return text.into_owned();
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
    // The end of the approval request also closes the question: the first one to find it does so.
    let is_pressed = |_: &str, question: &Question| {
        (question.chat, question.message_id) == (route.chat_thread.chat, button.message_id)
    };
    if is_decided && let Some(question) = bot.chats.take_question(is_pressed) {
        bot.close_question(&question, &outcome);
    }
    Ok(())
}

/// Returns the outcome of an approval request, as the gateway replies to `,approve` and `,deny`.
pub(super) fn approval_outcome(answer: Option<&ApprovalAnswer>) -> &'static str {
    match answer {
        Some(ApprovalAnswer::Approved) => "Approved.",
        Some(ApprovalAnswer::ApprovedForSession) => "Approved for this session.",
        Some(ApprovalAnswer::ApprovedAlways) => "Approved for always.",
        Some(_) => "Denied.",
        None => "Ended without an answer.",
    }
}

impl Bot {
    /// Sends a text, or edits a message, with the given method: as HTML, or as plain text if the platform rejects the
    /// HTML, or rejects the new message for any other reason.
    pub(super) async fn send_with_markup(
        &self,
        method: &str,
        base: &Value,
        part: &MessagePart,
    ) -> Result<Value, ApiError> {
        let mut params = base.clone();
        params["text"] = part.html.as_str().into();
        params["parse_mode"] = "HTML".into();
        params["link_preview_options"] = self.link_preview_options();
        let is_new = method == "sendMessage";
        match self.client.call(method, &params).await {
            Err(api_error)
                if api_error.error_kind == ApiErrorKind::Markup
                    || (is_new && api_error.error_kind == ApiErrorKind::Rejected) =>
            {
                tracing::warn!(error = %api_error.text, "telegram.markup_rejected");
                self.limiter
                    .wait_to_send(base["chat_id"].as_i64().unwrap_or_default())
                    .await;
                let mut params = base.clone();
                params["text"] = part.plain.as_str().into();
                params["link_preview_options"] = self.link_preview_options();
                self.client.call(method, &params).await
            }
            outcome => outcome,
        }
    }

    pub(super) fn link_preview_options(&self) -> Value {
        json!({"is_disabled": !self.options.link_previews})
    }
}

/// One Telegram message of a reply.
enum OutgoingPart {
    Text(MessagePart),
    /// A text with buttons to answer an approval request, and the id of the request.
    Question(MessagePart, String, Value),
    /// A text that is sent as a file.
    File(String),
    /// A file, or several files as an album, with a caption.
    Media(Vec<MediaItem>, Option<MessagePart>),
}

struct OutgoingReply {
    bot: Arc<Bot>,
    route: Route,
    reply_id: String,
    sent: DeliveryProgress,
    /// The message id of the preview, and the inbound message that it answers.
    preview: Option<(i64, MessageId)>,
    /// Whether a tool call waits for the outcome.
    is_from_tool: bool,
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
        let mut outcome = match self.try_send_part(index, outgoing_part).await {
            Ok(outcome) => outcome,
            Err(error) => {
                self.notify_failure(outgoing_part, error.message());
                return Err(error);
            }
        };
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
                (self.sent.parts, self.sent.pieces) = (index + 1, 0);
                self.sent.first = self.sent.first.or(message_id);
                self.bot
                    .delivery_log
                    .record(&self.reply_id, self.sent.clone());
                if let Some((preview_id, inbound_id)) = self.preview.take() {
                    Previews::mark_replaced(&self.bot, &inbound_id);
                    if message_id != Some(preview_id) {
                        // A partial answer must not stay beside the complete one.
                        let chat = self.route.chat_thread.chat;
                        self.bot.delete_message(chat, preview_id);
                    }
                }
                Ok(())
            }
            Err(api_error) => {
                match api_error.error_kind {
                    ApiErrorKind::Flood => {
                        self.bot.apply_flood_wait(
                            self.route.chat_thread.chat,
                            api_error.retry_after.unwrap_or_default(),
                        );
                    }
                    // The next attempt uses the new id.
                    ApiErrorKind::ChatMoved(chat) => {
                        let old = self.route.chat_thread.chat;
                        self.bot.chats.record_move(old, chat);
                    }
                    ApiErrorKind::Rejected | ApiErrorKind::Markup => {
                        self.notify_failure(outgoing_part, &api_error.text);
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
            OutgoingPart::Question(part, id, buttons) => {
                let sent = self.send_text(index, part, Some(buttons)).await;
                if let Ok(Some(message_id)) = &sent {
                    self.open_question(id, *message_id, &part.plain);
                }
                sent
            }
            OutgoingPart::File(text) => self.send_text_file(text.clone().into_bytes()).await,
            OutgoingPart::Media(items, caption) => {
                self.send_files(index, items, caption.as_ref()).await?
            }
        })
    }

    async fn send_text(
        &mut self,
        index: usize,
        part: &MessagePart,
        buttons: Option<&Value>,
    ) -> Result<Option<i64>, ApiError> {
        if self.sent.pieces > 0 {
            return self.send_pieces(part).await;
        }
        if let (0, Some((preview, _))) = (index, &self.preview) {
            let preview = *preview;
            let base = json!({"chat_id": self.route.chat_thread.chat, "message_id": preview});
            match self
                .bot
                .send_with_markup("editMessageText", &base, part)
                .await
            {
                // The preview was deleted or cannot be changed: send a new message.
                Err(api_error) if api_error.is_rejection() => {}
                Err(api_error) if api_error.error_kind != ApiErrorKind::NotModified => {
                    return Err(api_error);
                }
                _ => return Ok(Some(preview)),
            }
        }
        let mut base = reply_params(&self.route, index == 0);
        if let Some(buttons) = buttons {
            base["reply_markup"] = buttons.clone();
        }
        match self.bot.send_with_markup("sendMessage", &base, part).await {
            Err(api_error) if api_error.is_rejection() => self.send_pieces(part).await,
            outcome => outcome.map(|answer| answer["message_id"].as_i64()),
        }
    }

    /// Sends a part that the platform rejects as shorter plain messages, and as a file where it rejects these, too.
    async fn send_pieces(&mut self, part: &MessagePart) -> Result<Option<i64>, ApiError> {
        let pieces = split_pieces(&part.plain);
        while let Some(piece) = pieces.get(self.sent.pieces) {
            let chat_thread = self.route.chat_thread;
            self.bot.limiter.wait_to_send(chat_thread.chat).await;
            let params = chat_thread.add_to_params(json!({"text": piece}));
            match self.bot.client.call("sendMessage", &params).await {
                Ok(answer) => {
                    self.sent.first = self.sent.first.or(answer["message_id"].as_i64());
                    self.sent.pieces += 1;
                    self.bot
                        .delivery_log
                        .record(&self.reply_id, self.sent.clone());
                }
                Err(api_error) if api_error.is_rejection() => {
                    let rest = pieces.get(self.sent.pieces..).unwrap_or_default();
                    return self.send_text_file(rest.concat().into_bytes()).await;
                }
                Err(api_error) => return Err(api_error),
            }
        }
        Ok(self.sent.first)
    }

    async fn send_text_file(&self, bytes: Vec<u8>) -> Result<Option<i64>, ApiError> {
        let chat_thread = self.route.chat_thread;
        let params = chat_thread.add_to_params(json!({}));
        let params = params.as_object().cloned().unwrap_or_default();
        let upload = Upload {
            name: "document".to_owned(),
            filename: "answer.md".to_owned(),
            mime: "text/markdown".to_owned(),
            bytes,
        };
        self.bot.limiter.wait_to_send(chat_thread.chat).await;
        let client = &self.bot.client;
        let answer = client.upload("sendDocument", &params, &[upload]).await?;
        Ok(answer["message_id"].as_i64())
    }

    /// Tells the chat that a part of the reply cannot be sent. A tool call returns the error to the model instead.
    fn notify_failure(&self, outgoing_part: &OutgoingPart, reason: &str) {
        if self.is_from_tool {
            return;
        }
        let subject = match outgoing_part {
            OutgoingPart::Media(..) => "A file of my answer",
            _ => "My answer",
        };
        let text = format!(
            "{subject} could not be sent: {reason}\nThe owner of this bot finds it with `bub outbox list`."
        );
        self.bot.send_notice(&self.route, text);
    }

    /// Records a message with buttons, so that they are removed when the approval request ends.
    fn open_question(&self, id: &str, message_id: i64, text: &str) {
        let question = Question {
            chat: self.route.chat_thread.chat,
            message_id,
            text: text.to_owned(),
        };
        if let Some(question) = self.bot.chats.open_question(id, question) {
            self.bot.close_question(&question, approval_outcome(None));
        }
    }
}

/// Splits a plain text into pieces that are much shorter than a message, if possible after a space.
fn split_pieces(text: &str) -> Vec<&str> {
    let (mut pieces, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let end = rest
            .char_indices()
            .nth(MAX_PIECE_CHARS)
            .map_or(rest.len(), |(index, _)| index);
        let head = rest.get(..end).unwrap_or(rest);
        let is_last = end == rest.len();
        let space = head.rfind(char::is_whitespace).filter(|_| !is_last);
        let (piece, tail) = rest
            .split_at_checked(space.map_or(end, |space| {
                space
                    + head
                        .get(space..)
                        .and_then(|tail| tail.chars().next())
                        .map_or(1, char::len_utf8)
            }))
            .unwrap_or((rest, ""));
        if !piece.trim().is_empty() {
            pieces.push(piece);
        }
        rest = tail;
    }
    pieces
}
