//! Handles updates: submits a message to the gateway, sends a notice, or ignores the update.

#![expect(
    clippy::indexing_slicing,
    reason = "a JSON value is `null` where there is nothing"
)]

use std::sync::Arc;

use bub::kernel::{
    ChannelMessage, Envelope, ErrorKind, Inbound, InboundReceipt, Lifespan, MessageHandler,
    MessageKind, Result, Role, Sender, UntrustedSource, command_prefix,
};
use serde_json::{Value, json};

use super::{
    Bot, CHANNEL_NAME,
    access::{AccessDecision, TelegramUser},
    group_context::ContextLine,
    inbound::{self, InboundMessage, InboundUpdate},
    media,
    route::{Button, ChatThread, Route},
    typing::{self, TypingScope},
};
use crate::lock;

/// The notice that is sent for `/start`, as in the Python version.
const GREETING_TEXT: &str = "Bub is online. Send text to start.";
const NO_ACCESS_TEXT: &str =
    "You are not allowed to chat with me. Please deploy your own instance of Bub.";
const ACCESS_DENIED_TEXT: &str = "Access denied.";
const UNKNOWN_BUTTON_TEXT: &str = "This button has no effect any more.";
const QUEUE_FULL_TEXT: &str = "Many of your messages are still queued. I answer later ones when there is room; nothing is lost. \
     Send /stop to drop the queued messages.";

/// Handles an update, or all updates of an album. On an error, the update was not accepted and should be submitted
/// again.
pub(super) async fn handle_update(
    bot: &Arc<Bot>,
    handler: &MessageHandler,
    updates: &[Value],
) -> Result<()> {
    let Some(update) = updates.first() else {
        return Ok(());
    };
    let update_handler = UpdateHandler {
        bot,
        handler,
        key: idempotency_key(updates),
    };
    match (
        &update["message"],
        &update["edited_message"],
        &update["callback_query"],
    ) {
        (message @ Value::Object(_), ..) => {
            let others: Vec<&Value> = updates
                .iter()
                .skip(1)
                .map(|update| &update["message"])
                .collect();
            update_handler.handle_message(message, &others, false).await
        }
        (_, message @ Value::Object(_), _) => {
            update_handler.handle_message(message, &[], true).await
        }
        (.., query @ Value::Object(_)) => update_handler.handle_button(query).await,
        _ => Ok(()),
    }
}

/// Returns the idempotency key of an update or an album. An album that arrives again with another message has another
/// key, because answering it twice is better than not at all.
fn idempotency_key(updates: &[Value]) -> String {
    let id = |update: Option<&Value>| {
        update
            .and_then(|update| update["update_id"].as_i64())
            .unwrap_or_default()
    };
    match updates {
        [_, .., _] => format!("update:{}-{}", id(updates.first()), id(updates.last())),
        _ => format!("update:{}", id(updates.first())),
    }
}

/// Returns the album id of an update and the user id of its sender. Returns `None` if the update belongs to no album.
pub(super) fn album_key(update: &Value) -> Option<(&str, Option<i64>)> {
    let message = &update["message"];
    Some((
        message["media_group_id"].as_str()?,
        message["from"]["id"].as_i64(),
    ))
}

/// Whether an update needs no room in the queue of its session, because it frees room or answers a question.
pub(super) fn is_control(update: &Value) -> bool {
    let text = update["message"]["text"].as_str().unwrap_or_default();
    let is_control = |word: &str| text.trim_start().starts_with(word);
    update["callback_query"].is_object()
        || [",quit", ",approve", ",deny", "/stop"]
            .into_iter()
            .any(is_control)
}

/// Returns the chat id of an update. Updates of a chat are handled in order.
pub(super) fn chat_id(update: &Value) -> Option<i64> {
    let chat = |message: &Value| message["chat"]["id"].as_i64();
    let message = chat(&update["message"]).or_else(|| chat(&update["edited_message"]));
    message.or_else(|| chat(&update["callback_query"]["message"]))
}

/// How a sender without access wrote to the bot.
#[derive(Clone, Copy)]
struct AccessRequest {
    is_private: bool,
    is_start: bool,
}

struct UpdateHandler<'a> {
    bot: &'a Arc<Bot>,
    handler: &'a MessageHandler,
    key: String,
}

impl UpdateHandler<'_> {
    async fn handle_message(
        &self,
        message: &Value,
        others: &[&Value],
        is_edit: bool,
    ) -> Result<()> {
        let (chat_id, moved) = (
            message["chat"]["id"].as_i64(),
            ["migrate_to_chat_id", "migrate_from_chat_id"].map(|field| message[field].as_i64()),
        );
        if let (Some(from), [Some(to), _]) | (Some(to), [_, Some(from)]) = (chat_id, moved) {
            self.bot.chats.record_move(from, to);
        }
        let (Some(chat), Some(telegram_user), Some(me)) = (
            message["chat"]["id"].as_i64(),
            TelegramUser::from_message(message),
            self.bot.identity.get(),
        ) else {
            return Ok(());
        };
        let is_private = message["chat"]["type"] == "private";
        // Outside of forums, this id identifies a chain of replies.
        let thread = message["message_thread_id"]
            .as_i64()
            .filter(|_| message["is_topic_message"] == true);
        let message_id = message["message_id"].as_i64();
        let route = Route {
            message_id,
            is_quoted: !is_private,
            ..Route::new(ChatThread { chat, thread })
        };
        // Ignore edits without text: a live location or a running poll.
        if is_edit && message["text"].is_null() && message["caption"].is_null() {
            return Ok(());
        }
        let mut update = inbound::convert_message(message, is_edit, me);
        if let InboundUpdate::Message(inbound_message) = &mut update {
            for other in others {
                if let InboundUpdate::Message(member) = inbound::convert_message(other, false, me) {
                    inbound_message.merge_album_message(member);
                }
            }
        }
        let role = match self.bot.decide_access(&telegram_user, chat) {
            AccessDecision::Granted(role) => role,
            access => {
                let is_addressed = match &update {
                    InboundUpdate::Start | InboundUpdate::Help => true,
                    InboundUpdate::Ignored => false,
                    InboundUpdate::Message(inbound_message) => inbound_message.is_active,
                };
                if is_addressed && !is_edit {
                    let is_start = update == InboundUpdate::Start;
                    let access_request = AccessRequest {
                        is_private,
                        is_start,
                    };
                    return self
                        .notify_denied_sender(&telegram_user, access, &route, access_request)
                        .await;
                }
                return Ok(());
            }
        };
        match update {
            InboundUpdate::Start => self.answer(&route, GREETING_TEXT).await,
            InboundUpdate::Help => self.answer(&route, &inbound::help_text()).await,
            InboundUpdate::Ignored => Ok(()),
            InboundUpdate::Message(inbound_message) => {
                self.accept_message(inbound_message, &route, &telegram_user, role)
                    .await
            }
        }
    }

    /// Submits a message to the gateway, or keeps it as context if it does not address the bot.
    async fn accept_message(
        &self,
        mut inbound_message: InboundMessage,
        route: &Route,
        telegram_user: &TelegramUser,
        role: Role,
    ) -> Result<()> {
        let user_id = &telegram_user.id;
        let (chat_thread, groups) = (route.chat_thread, &self.bot.groups);
        let is_private = !route.is_quoted;
        let window = self.bot.options.active_window;
        let is_active = inbound_message.is_active;
        if !is_active && !groups.is_follow_up(chat_thread, user_id, window) {
            if !inbound_message.is_edit() {
                let line = ContextLine {
                    sender_id: user_id.clone(),
                    role,
                    has_foreign_text: inbound_message.has_foreign_text,
                    fields: inbound_message.to_context_line(),
                };
                groups.add_line(chat_thread, line);
            }
            return Ok(());
        }
        let mut has_foreign_text = inbound_message.has_foreign_text;
        if !is_private && !inbound_message.is_command {
            let lines = groups.lines(chat_thread);
            has_foreign_text |= lines.iter().any(|line| {
                let is_own = line.sender_id == *user_id && !line.has_foreign_text;
                !is_own && (line.role < Role::Owner || line.has_foreign_text)
            });
            let lines = lines.into_iter().map(|line| line.fields).collect();
            inbound_message.add_group_context(lines);
        }
        let mut message = self.build_envelope(route, &inbound_message.content());
        message.set("is_active", inbound_message.is_active);
        if inbound_message.is_command {
            message.set("kind", MessageKind::Command.name());
        } else {
            media::attach_files(self.bot, &mut message, &inbound_message.media);
            let is_auto = self.bot.options.is_auto;
            if !is_auto {
                message = message.without_output();
            }
            message.set("stream_output", self.bot.options.stream && is_auto);
        }
        let mut inbound = self.build_inbound(message, route, telegram_user, role);
        if has_foreign_text {
            inbound = inbound.with_untrusted(UntrustedSource::Forwarded);
        }
        self.submit(inbound, route).await?;
        if !is_private && !inbound_message.is_command {
            groups.mark_seen(chat_thread, Some(user_id).filter(|_| is_active));
        }
        if is_active {
            typing::show_once(self.bot, chat_thread);
        }
        Ok(())
    }

    /// Answers a message without a turn. The gateway delivers the answer with retries, also after a restart.
    async fn answer(&self, route: &Route, text: &str) -> Result<()> {
        let inbound = Inbound::new(self.build_envelope(route, "")).with_answer(text);
        (self.handler)(inbound).await
    }

    /// Notifies a sender without access, once per sender and chat.
    async fn notify_denied_sender(
        &self,
        telegram_user: &TelegramUser,
        access: AccessDecision,
        route: &Route,
        access_request: AccessRequest,
    ) -> Result<()> {
        let chat = if access_request.is_private {
            0
        } else {
            route.chat_thread.chat
        };
        let is_first_notice = || {
            self.bot
                .access_control
                .mark_notified(format!("{}:{chat}", telegram_user.id))
        };
        let text = match access {
            AccessDecision::ChatNotAllowed if access_request.is_start && is_first_notice() => {
                NO_ACCESS_TEXT.to_owned()
            }
            AccessDecision::UnknownUser
                if access_request.is_private
                    && self.bot.options.pairing
                    && !telegram_user.id.is_empty() =>
            {
                return self.send_pairing_code(telegram_user, route).await;
            }
            AccessDecision::UnknownUser if !telegram_user.id.is_empty() && is_first_notice() => {
                ACCESS_DENIED_TEXT.to_owned()
            }
            _ => return Ok(()),
        };
        log_denied_access(telegram_user, route);
        self.bot.send_notice(route, text);
        Ok(())
    }

    /// Sends a pairing code to an unknown user, unless the user has one.
    async fn send_pairing_code(&self, telegram_user: &TelegramUser, route: &Route) -> Result<()> {
        let pairings = &self.bot.access_control.pairings;
        let (user_id, name) = (&telegram_user.id, telegram_user.to_display_string());
        let code = match pairings.request_code(CHANNEL_NAME, user_id, &name) {
            Ok(Some(code)) => code,
            Ok(None) => return Ok(()),
            Err(error) => {
                tracing::error!(error = error.message(), "telegram.pairing_failed");
                return Ok(());
            }
        };
        log_denied_access(telegram_user, route);
        let text = format!(
            "{ACCESS_DENIED_TEXT} To request access, send this code to the owner of this bot: {code}\n\
             The owner runs `bub pair {code}` to grant access. Then send your message again."
        );
        let sent = self.answer(route, &text).await;
        if sent.is_err() {
            // The update is handled again, and the user gets another code.
            let _ = pairings.remove(&code);
        }
        sent
    }

    /// Handles a pressed button as the command that it represents.
    async fn handle_button(&self, query: &Value) -> Result<()> {
        let message = &query["message"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let query_id = text(&query["id"]);
        // Without an answer, the app shows a progress bar on the button.
        let reject = |text: &str| {
            let (bot, query_id) = (self.bot, query_id.clone());
            bot.answer_callback_query(query_id, text.to_owned());
            Ok(())
        };
        let (Some(chat), Some(telegram_user)) = (
            message["chat"]["id"].as_i64(),
            TelegramUser::from_message(query),
        ) else {
            return reject(UNKNOWN_BUTTON_TEXT);
        };
        let data = query["data"].as_str().unwrap_or_default();
        let prefix = command_prefix();
        let command = match data.split_once(':') {
            Some((verb @ ("approve" | "deny"), id)) if !id.is_empty() => {
                format!("{prefix}{verb} {id}")
            }
            Some((scope @ ("session" | "always"), id)) if !id.is_empty() => {
                format!("{prefix}approve {id} {scope}")
            }
            _ => return reject(UNKNOWN_BUTTON_TEXT),
        };
        let chat_thread = ChatThread {
            chat,
            thread: message["message_thread_id"].as_i64(),
        };
        let AccessDecision::Granted(role) = self.bot.decide_access(&telegram_user, chat) else {
            return reject(ACCESS_DENIED_TEXT);
        };
        let message_id = message["message_id"].as_i64().unwrap_or_default();
        let button = Some(Button {
            query: query_id,
            message_id,
            text: text(&message["text"]),
        });
        let route = Route {
            button,
            ..Route::new(chat_thread)
        };
        let message = self
            .build_envelope(&route, &command)
            .with("kind", MessageKind::Command.name());
        let inbound = self.build_inbound(message, &route, &telegram_user, role);
        self.submit(inbound, &route).await
    }

    fn build_inbound(
        &self,
        message: Envelope,
        route: &Route,
        telegram_user: &TelegramUser,
        role: Role,
    ) -> Inbound {
        let sender = Sender {
            role,
            channel: CHANNEL_NAME.to_owned(),
            chat_id: route.chat_thread.chat.to_string(),
            id: telegram_user.id.clone(),
            name: telegram_user.name.clone(),
        };
        Inbound::new(message)
            .with_sender(sender)
            .with_lifespan(Lifespan::new(TypingScope::new(self.bot, route.chat_thread)))
            .with_receipt(Arc::new(InboundReceipt::new(Some(self.key.clone()))))
    }

    async fn submit(&self, inbound: Inbound, route: &Route) -> Result<()> {
        let chat_thread = route.chat_thread;
        match (self.handler)(inbound).await {
            // The update stays unconfirmed and is handled again later; other chats continue.
            Err(error) if error.kind() == ErrorKind::SessionFull => {
                if lock(&self.bot.full_chats).insert(chat_thread) {
                    let (chat_id, error_text) = (chat_thread.chat, error.message());
                    tracing::warn!(chat_id, error = error_text, "telegram.queue_full");
                    self.bot.send_notice(route, QUEUE_FULL_TEXT.to_owned());
                }
                Err(error)
            }
            Err(error) if error.is_reported() => {
                let (chat_id, error) = (route.chat_thread.chat, error.message());
                tracing::error!(chat_id, error, "telegram.update_failed");
                Ok(())
            }
            outcome => {
                lock(&self.bot.full_chats).remove(&chat_thread);
                outcome
            }
        }
    }

    /// Creates a message for the gateway.
    fn build_envelope(&self, route: &Route, content: &str) -> Envelope {
        let session_id = self.bot.session_id(route.chat_thread);
        let message = ChannelMessage::new(session_id, CHANNEL_NAME, content)
            .chat_id(route.chat_thread.chat.to_string())
            .active();
        let mut message = Envelope::from(message);
        route.write_to(&mut message);
        message
    }
}

fn log_denied_access(telegram_user: &TelegramUser, route: &Route) {
    let (user_id, chat_id) = (&telegram_user.id, route.chat_thread.chat);
    tracing::info!(%user_id, chat_id, "telegram.access_denied");
}

impl Bot {
    /// Sends a notice that is not a reply of a turn, in the background. Errors are logged.
    pub(super) fn send_notice(self: &Arc<Self>, route: &Route, text: String) {
        let Ok(permit) = Arc::clone(&self.notices).try_acquire_owned() else {
            return;
        };
        let (bot, chat) = (Arc::clone(self), route.chat_thread.chat);
        let mut params = super::outbound::reply_params(route, true);
        params["text"] = text.into();
        tokio::spawn(async move {
            bot.call_until_decided(chat, "sendMessage", params).await;
            drop(permit);
        });
    }

    /// Deletes a message of the bot, in the background.
    pub(super) fn delete_message(self: &Arc<Self>, chat: i64, message_id: i64) {
        let params = json!({"chat_id": chat, "message_id": message_id});
        self.call_in_background(chat, "deleteMessage", params);
    }

    /// Shows a text to the user who pressed a button, in the background. Errors are only logged, because the platform
    /// accepts the call only for a few seconds after the press.
    fn answer_callback_query(self: &Arc<Self>, query: String, text: String) {
        let bot = Arc::clone(self);
        tokio::spawn(async move {
            let params = json!({"callback_query_id": query, "text": text, "show_alert": true});
            if let Err(api_error) = bot.client.call("answerCallbackQuery", &params).await {
                tracing::debug!(error = %api_error.text, "telegram.callback_failed");
            }
        });
    }
}
