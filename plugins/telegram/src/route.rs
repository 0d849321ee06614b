//! Where a message belongs: its chat and topic, and what it answers. Travels with a message to its replies.

#![expect(
    clippy::indexing_slicing,
    reason = "a JSON value is `null` where there is nothing"
)]

use bub::kernel::{Envelope, Error, Result};
use serde_json::{Map, Value, json};

use bub::gateway::fields::REPLY_ROUTE_FIELD;

/// A chat, or a topic in one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ChatThread {
    pub(super) chat: i64,
    pub(super) thread: Option<i64>,
}

impl ChatThread {
    /// The session of what is said there: a topic is one of its own.
    pub(super) fn session(self) -> String {
        match self.thread {
            Some(thread) => format!("{}:{}:{thread}", super::CHANNEL_NAME, self.chat),
            None => format!("{}:{}", super::CHANNEL_NAME, self.chat),
        }
    }

    /// The parameters of a call that happens there.
    pub(super) fn params(self, mut params: Value) -> Value {
        params["chat_id"] = self.chat.into();
        if let Some(thread) = self.thread {
            params["message_thread_id"] = thread.into();
        }
        params
    }
}

/// Where replies to a message go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) place: ChatThread,
    /// The message that is answered.
    pub(super) message_id: Option<i64>,
    /// Whether the reply points at it, because others write in between.
    pub(super) is_quoted: bool,
    /// The button that was pressed, and the message it belongs to.
    pub(super) button: Option<Button>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Button {
    pub(super) query: String,
    pub(super) message_id: i64,
    /// What stood in the message.
    pub(super) text: String,
}

impl Route {
    pub(super) fn new(place: ChatThread) -> Self {
        Self {
            place,
            message_id: None,
            is_quoted: false,
            button: None,
        }
    }

    /// As the field of a message.
    pub(super) fn put_on(&self, message: &mut Envelope) {
        let mut route = Map::new();
        for (name, value) in [
            ("thread", self.place.thread),
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

    /// Of a message or a reply.
    pub(super) fn from_message(message: &Envelope) -> Result<Self> {
        let chat = message.chat_id().unwrap_or_default();
        let chat = chat.trim().parse().map_err(|_| {
            Error::invalid_input(format!(
                "`{chat}` is no chat of Telegram: its id is a number"
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
            place: ChatThread {
                chat,
                thread: number("thread"),
            },
            message_id: number("message_id"),
            is_quoted: route["is_quoted"] == true,
            button,
        })
    }
}
