//! Handles updates: submits a message to the gateway, sends a notice, or ignores the update.

#![expect(
    clippy::indexing_slicing,
    reason = "a JSON value is `null` where there is nothing"
)]

use std::sync::Arc;

use bub::kernel::{
    ChannelMessage, Envelope, ErrorKind, Inbound, InboundReceipt, Lifespan, MessageHandler,
    MessageKind, Result, Role, Sender, UntrustedSource,
};
use serde_json::{Value, json};

use super::{
    Bot, CHANNEL_NAME,
    access::{AccessDecision, TelegramUser},
    inbound::{self, InboundUpdate},
    media,
    route::{Button, ChatThread, Route},
    typing::TypingScope,
};

/// The notice that is sent for `/start`, as in the Python version.
const GREETING_TEXT: &str = "Bub is online. Send text to start.";
const NO_ACCESS_TEXT: &str =
    "You are not allowed to chat with me. Please deploy your own instance of Bub.";
const ACCESS_DENIED_TEXT: &str = "Access denied.";

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
        let role = match self.bot.access_control.decide_access(&telegram_user, chat) {
            AccessDecision::Granted(role) => role,
            access => {
                let is_addressed = match &update {
                    InboundUpdate::Start => true,
                    InboundUpdate::Ignored => false,
                    InboundUpdate::Message(inbound_message) => inbound_message.is_active,
                };
                if is_addressed && !is_edit {
                    let is_start = update == InboundUpdate::Start;
                    self.notify_denied_sender(
                        &telegram_user,
                        access,
                        &route,
                        AccessRequest {
                            is_private,
                            is_start,
                        },
                    );
                }
                return Ok(());
            }
        };
        match update {
            InboundUpdate::Start => self.bot.send_notice(route, GREETING_TEXT.to_owned()),
            InboundUpdate::Ignored => {}
            InboundUpdate::Message(inbound_message) => {
                let mut message = build_envelope(&route, &inbound_message.content());
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
                let mut inbound = self.build_inbound(message, &route, &telegram_user, role);
                if inbound_message.has_foreign_text {
                    inbound = inbound.with_untrusted(UntrustedSource::Forwarded);
                }
                return self.submit(inbound, &route).await;
            }
        }
        Ok(())
    }

    /// Notifies a sender without access, once per sender and chat.
    fn notify_denied_sender(
        &self,
        telegram_user: &TelegramUser,
        access: AccessDecision,
        route: &Route,
        access_request: AccessRequest,
    ) {
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
                match self.bot.access_control.pairings.request_code(
                    CHANNEL_NAME,
                    &telegram_user.id,
                    &telegram_user.to_display_string(),
                ) {
                    Ok(Some(code)) => format!(
                        "{ACCESS_DENIED_TEXT} To request access, send this code to the owner of this bot: {code}\n\
                         The owner grants access with `bub pair {code}`. Then send your message again."
                    ),
                    Ok(None) => return,
                    Err(error) => {
                        return tracing::error!(error = error.message(), "telegram.pairing_failed");
                    }
                }
            }
            AccessDecision::UnknownUser if !telegram_user.id.is_empty() && is_first_notice() => {
                ACCESS_DENIED_TEXT.to_owned()
            }
            _ => return,
        };
        let (user_id, chat_id) = (&telegram_user.id, route.chat_thread.chat);
        tracing::info!(%user_id, chat_id, "telegram.access_denied");
        self.bot.send_notice(route.clone(), text);
    }

    /// Handles a pressed button as the command that it represents.
    async fn handle_button(&self, query: &Value) -> Result<()> {
        let message = &query["message"];
        let (Some(chat), Some(telegram_user)) = (
            message["chat"]["id"].as_i64(),
            TelegramUser::from_message(query),
        ) else {
            return Ok(());
        };
        let data = query["data"].as_str().unwrap_or_default();
        let command = match data.split_once(':') {
            Some((verb @ ("approve" | "deny"), id)) if !id.is_empty() => format!(",{verb} {id}"),
            Some((scope @ ("session" | "always"), id)) if !id.is_empty() => {
                format!(",approve {id} {scope}")
            }
            _ => return Ok(()),
        };
        let chat_thread = ChatThread {
            chat,
            thread: message["message_thread_id"].as_i64(),
        };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let query_id = text(&query["id"]);
        let AccessDecision::Granted(role) =
            self.bot.access_control.decide_access(&telegram_user, chat)
        else {
            self.bot
                .answer_callback_query(query_id, ACCESS_DENIED_TEXT.to_owned());
            return Ok(());
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
        let message = build_envelope(&route, &command).with("kind", MessageKind::Command.name());
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
        match (self.handler)(inbound).await {
            // Do not retry: all other chats would wait. Notify the sender, who can send the message again.
            Err(error) if error.kind() == ErrorKind::SessionFull => {
                let (chat_id, error_text) = (route.chat_thread.chat, error.message());
                tracing::warn!(chat_id, error = error_text, "telegram.message_rejected");
                self.bot.send_notice(
                    route.clone(),
                    format!("Message not accepted: {}", error.message()),
                );
                Ok(())
            }
            Err(error) if error.is_reported() => {
                let (chat_id, error) = (route.chat_thread.chat, error.message());
                tracing::error!(chat_id, error, "telegram.update_failed");
                Ok(())
            }
            outcome => outcome,
        }
    }
}

/// Creates a message for the gateway.
fn build_envelope(route: &Route, content: &str) -> Envelope {
    let message = ChannelMessage::new(route.chat_thread.session_id(), CHANNEL_NAME, content)
        .chat_id(route.chat_thread.chat.to_string())
        .active();
    let mut message = Envelope::from(message);
    route.write_to(&mut message);
    message
}

impl Bot {
    /// Sends a notice that is not a reply of a turn, in the background. Errors are logged.
    fn send_notice(self: &Arc<Self>, route: Route, text: String) {
        let Ok(permit) = Arc::clone(&self.notices).try_acquire_owned() else {
            return;
        };
        let bot = Arc::clone(self);
        tokio::spawn(async move {
            bot.limiter.wait_to_send(route.chat_thread.chat).await;
            let mut params = super::outbound::reply_params(&route, true);
            params["text"] = text.into();
            if let Err(api_error) = bot.client.call("sendMessage", &params).await {
                let (chat_id, error) = (route.chat_thread.chat, &api_error.text);
                tracing::warn!(chat_id, %error, "telegram.notice_failed");
            }
            drop(permit);
        });
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
