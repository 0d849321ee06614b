//! The route of a message: its chat and topic, and the message that a reply answers. A reply has the route of its
//! inbound message.

#![expect(
    clippy::indexing_slicing,
    reason = "a JSON value is `null` where there is nothing"
)]

use bub::kernel::{Envelope, Error, Result};
use serde_json::{Map, Value, json};

use bub::gateway::fields::REPLY_ROUTE_FIELD;

/// A chat, or a topic in a chat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ChatThread {
    pub(super) chat: i64,
    pub(super) thread: Option<i64>,
}

impl ChatThread {
    /// Returns the session id. Each topic has its own session.
    pub(super) fn session_id(self) -> String {
        match self.thread {
            Some(thread) => format!("{}:{}:{thread}", super::CHANNEL_NAME, self.chat),
            None => format!("{}:{}", super::CHANNEL_NAME, self.chat),
        }
    }

    /// Adds the chat and topic to the parameters of a call.
    pub(super) fn add_to_params(self, mut params: Value) -> Value {
        params["chat_id"] = self.chat.into();
        if let Some(thread) = self.thread {
            params["message_thread_id"] = thread.into();
        }
        params
    }
}

/// The destination of replies to a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) chat_thread: ChatThread,
    /// The Telegram message id of the inbound message that a reply answers.
    pub(super) message_id: Option<i64>,
    /// Whether the reply quotes the answered message, because other users may write in between.
    pub(super) is_quoted: bool,
    /// The button that the user pressed, if the inbound message is a press of a button.
    pub(super) button: Option<Button>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Button {
    /// The id of the callback query, with which the platform reports the press of the button.
    pub(super) query: String,
    pub(super) message_id: i64,
    /// The text of the message with the button.
    pub(super) text: String,
}

impl Route {
    pub(super) fn new(chat_thread: ChatThread) -> Self {
        Self {
            chat_thread,
            message_id: None,
            is_quoted: false,
            button: None,
        }
    }

    /// Writes the route to the route field of a message.
    pub(super) fn write_to(&self, message: &mut Envelope) {
        let mut route = Map::new();
        for (name, value) in [
            ("thread", self.chat_thread.thread),
            ("message_id", self.message_id),
        ] {
            if let Some(value) = value {
                route.insert(name.to_owned(), value.into());
            }
        }
        if self.is_quoted {
            route.insert("is_quoted".to_owned(), true.into());
        }
        if let Some(Button {
            query,
            message_id,
            text,
        }) = &self.button
        {
            route.insert(
                "button".to_owned(),
                json!({"query": query, "message_id": message_id, "text": text}),
            );
        }
        message.set(REPLY_ROUTE_FIELD, route);
    }

    /// Reads the route of a message or a reply. Fails if the chat id is not a number.
    pub(super) fn from_message(message: &Envelope) -> Result<Self> {
        let chat = message.chat_id().unwrap_or_default();
        let chat = chat.trim().parse().map_err(|_| {
            Error::invalid_input(format!(
                "invalid `chat_id` `{chat}`: expected the numeric id of a Telegram chat"
            ))
        })?;
        let route = message
            .field(REPLY_ROUTE_FIELD)
            .cloned()
            .unwrap_or_default();
        let number = |name: &str| route[name].as_i64();
        let button = &route["button"];
        let button = button["message_id"].as_i64().map(|message_id| Button {
            query: button["query"].as_str().unwrap_or_default().to_owned(),
            message_id,
            text: button["text"].as_str().unwrap_or_default().to_owned(),
        });
        Ok(Self {
            chat_thread: ChatThread {
                chat,
                thread: number("thread"),
            },
            message_id: number("message_id"),
            is_quoted: route["is_quoted"] == true,
            button,
        })
    }
}
