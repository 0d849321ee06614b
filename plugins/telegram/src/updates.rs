//! What becomes of an update: a message for the gateway, a word of the channel's own, or nothing.

#![expect(
    clippy::indexing_slicing,
    reason = "a JSON value is `null` where there is nothing"
)]

use std::sync::Arc;

use bub::kernel::{
    ChannelMessage, Envelope, ErrorKind, Inbound, InboundReceipt, Lifespan, MessageHandler,
    MessageKind, Result, Role, Sender,
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

/// What `/start` is answered with, as the original does.
const GREETING: &str = "Bub is online. Send text to start.";
const NO_ACCESS: &str =
    "You are not allowed to chat with me. Please deploy your own instance of Bub.";
const DENIED: &str = "Access denied.";

/// Takes an update, or all updates of an album. An error means that it was not taken, and should come again.
pub(super) async fn handle_update(
    bot: &Arc<Bot>,
    handler: &MessageHandler,
    updates: &[Value],
) -> Result<()> {
    let Some(update) = updates.first() else {
        return Ok(());
    };
    let intake = UpdateHandler {
        bot,
        handler,
        key: key(updates),
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
            intake.message(message, &others, false).await
        }
        (_, message @ Value::Object(_), _) => intake.message(message, &[], true).await,
        (.., query @ Value::Object(_)) => intake.button(query).await,
        _ => Ok(()),
    }
}

/// What names an update when it comes again. An album that comes again with one more is another one: rather twice than
/// not at all.
fn key(updates: &[Value]) -> String {
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

/// The album that an update belongs to, and whose it is.
pub(super) fn album_of(update: &Value) -> Option<(&str, Option<i64>)> {
    let message = &update["message"];
    Some((
        message["media_group_id"].as_str()?,
        message["from"]["id"].as_i64(),
    ))
}

/// The chat of an update, within which the order counts.
pub(super) fn chat_of(update: &Value) -> Option<i64> {
    let chat = |message: &Value| message["chat"]["id"].as_i64();
    let message = chat(&update["message"]).or_else(|| chat(&update["edited_message"]));
    message.or_else(|| chat(&update["callback_query"]["message"]))
}

/// How somebody asked.
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
    async fn message(&self, message: &Value, others: &[&Value], is_edit: bool) -> Result<()> {
        let (Some(chat), Some(telegram_user), Some(me)) = (
            message["chat"]["id"].as_i64(),
            TelegramUser::from_message(message),
            self.bot.me.get(),
        ) else {
            return Ok(());
        };
        let is_private = message["chat"]["type"] == "private";
        // Outside of forums the number names a chain of replies.
        let thread = message["message_thread_id"]
            .as_i64()
            .filter(|_| message["is_topic_message"] == true);
        let message_id = message["message_id"].as_i64();
        let route = Route {
            message_id,
            is_quoted: !is_private,
            ..Route::new(ChatThread { chat, thread })
        };
        // A place that moves, a poll that goes on: nobody said anything.
        if is_edit && message["text"].is_null() && message["caption"].is_null() {
            return Ok(());
        }
        let mut reading = inbound::read(message, is_edit, me);
        if let InboundUpdate::Message(said) = &mut reading {
            for other in others {
                if let InboundUpdate::Message(member) = inbound::read(other, false, me) {
                    said.absorb(member);
                }
            }
        }
        let role = match self.bot.access_control.decide(&telegram_user, chat) {
            AccessDecision::Granted(role) => role,
            access => {
                let is_addressed = match &reading {
                    InboundUpdate::Start => true,
                    InboundUpdate::Ignored => false,
                    InboundUpdate::Message(said) => said.is_active,
                };
                if is_addressed && !is_edit {
                    let is_start = reading == InboundUpdate::Start;
                    self.reject_sender(
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
        match reading {
            InboundUpdate::Start => self.bot.send_notice(route, GREETING.to_owned()),
            InboundUpdate::Ignored => {}
            InboundUpdate::Message(said) => {
                let mut message = envelope(&route, &said.content());
                message.set("is_active", said.is_active);
                if said.is_command {
                    message.set("kind", MessageKind::Command.name());
                } else {
                    media::attach(self.bot, &mut message, &said.media);
                    let is_auto = self.bot.options.is_auto;
                    if !is_auto {
                        message = message.without_output();
                    }
                    message.set("stream_output", self.bot.options.stream && is_auto);
                }
                let inbound = self.inbound(message, &route, &telegram_user, role);
                return self.submit(inbound, &route).await;
            }
        }
        Ok(())
    }

    /// Says no, once, to somebody who asked for something.
    fn reject_sender(
        &self,
        telegram_user: &TelegramUser,
        access: AccessDecision,
        route: &Route,
        access_request: AccessRequest,
    ) {
        let chat = if access_request.is_private {
            0
        } else {
            route.place.chat
        };
        let is_first = || {
            self.bot
                .access_control
                .is_first(format!("{}:{chat}", telegram_user.id))
        };
        let text = match access {
            AccessDecision::ChatNotAllowed if access_request.is_start && is_first() => {
                NO_ACCESS.to_owned()
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
                        "{DENIED} To be let in, give this code to whoever runs me, and write again: {code}\n\
                         (They say `bub pair {code}` on the computer I run on.)"
                    ),
                    Ok(None) => return,
                    Err(error) => {
                        return tracing::error!(error = error.message(), "telegram.pairing_failed");
                    }
                }
            }
            AccessDecision::UnknownUser if !telegram_user.id.is_empty() && is_first() => {
                DENIED.to_owned()
            }
            _ => return,
        };
        let (user_id, chat_id) = (&telegram_user.id, route.place.chat);
        tracing::info!(%user_id, chat_id, "telegram.access_denied");
        self.bot.send_notice(route.clone(), text);
    }

    /// Somebody pressed a button: the same as writing the command that it stands for.
    async fn button(&self, query: &Value) -> Result<()> {
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
            _ => return Ok(()),
        };
        let place = ChatThread {
            chat,
            thread: message["message_thread_id"].as_i64(),
        };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let query_id = text(&query["id"]);
        let AccessDecision::Granted(role) = self.bot.access_control.decide(&telegram_user, chat)
        else {
            self.bot.answer_query(query_id, DENIED.to_owned());
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
            ..Route::new(place)
        };
        let message = envelope(&route, &command).with("kind", MessageKind::Command.name());
        let inbound = self.inbound(message, &route, &telegram_user, role);
        self.submit(inbound, &route).await
    }

    fn inbound(
        &self,
        message: Envelope,
        route: &Route,
        telegram_user: &TelegramUser,
        role: Role,
    ) -> Inbound {
        let sender = Sender {
            role,
            channel: CHANNEL_NAME.to_owned(),
            chat_id: route.place.chat.to_string(),
            id: telegram_user.id.clone(),
            name: telegram_user.name.clone(),
        };
        Inbound::new(message)
            .with_sender(sender)
            .with_lifespan(Lifespan::new(TypingScope::new(self.bot, route.place)))
            .with_receipt(Arc::new(InboundReceipt::new(Some(self.key.clone()))))
    }

    async fn submit(&self, inbound: Inbound, route: &Route) -> Result<()> {
        match (self.handler)(inbound).await {
            // Everybody else would wait for this chat. Its sender knows, and has the message.
            Err(error) if error.kind() == ErrorKind::SessionFull => {
                let (chat_id, error_text) = (route.place.chat, error.message());
                tracing::warn!(chat_id, error = error_text, "telegram.message_rejected");
                self.bot
                    .send_notice(route.clone(), format!("Not taken: {}", error.message()));
                Ok(())
            }
            Err(error) if error.is_reported() => {
                let (chat_id, error) = (route.place.chat, error.message());
                tracing::error!(chat_id, error, "telegram.update_failed");
                Ok(())
            }
            outcome => outcome,
        }
    }
}

/// A message for the gateway.
fn envelope(route: &Route, content: &str) -> Envelope {
    let message = ChannelMessage::new(route.place.session(), CHANNEL_NAME, content)
        .chat_id(route.place.chat.to_string())
        .active();
    let mut message = Envelope::from(message);
    route.put_on(&mut message);
    message
}

impl Bot {
    /// Says something that is no reply of a turn: as well as it can, and without anybody waiting for it.
    fn send_notice(self: &Arc<Self>, route: Route, text: String) {
        let Ok(permit) = Arc::clone(&self.notices).try_acquire_owned() else {
            return;
        };
        let bot = Arc::clone(self);
        tokio::spawn(async move {
            bot.limiter.wait(route.place.chat).await;
            let mut params = super::outbound::reply_params(&route, true);
            params["text"] = text.into();
            if let Err(failure) = bot.client.call("sendMessage", &params).await {
                let (chat_id, error) = (route.place.chat, &failure.text);
                tracing::warn!(chat_id, %error, "telegram.notice_failed");
            }
            drop(permit);
        });
    }

    /// Answers whoever pressed a button, as well as it can: the platform waits for seconds only.
    fn answer_query(self: &Arc<Self>, query: String, text: String) {
        let bot = Arc::clone(self);
        tokio::spawn(async move {
            let params = json!({"callback_query_id": query, "text": text, "show_alert": true});
            if let Err(failure) = bot.client.call("answerCallbackQuery", &params).await {
                tracing::debug!(error = %failure.text, "telegram.callback_failed");
            }
        });
    }
}
