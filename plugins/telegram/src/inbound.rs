//! A message of the Bot API, as the agent sees it.
//!
//! * `entities`: marked stretches of a text, whose offsets count UTF-16 units; links, and who is addressed.
//! * `media`: what kind of message it is, its text, and the files in it.
//!
//! The content is the original's: one JSON object whose first keys are always the same. What the original does not
//! tell comes after them: `quote`, `forward_origin`, `correction`, `album`.

#![expect(
    clippy::indexing_slicing,
    reason = "a JSON value is `null` where there is nothing"
)]

mod entities;
mod media;

use serde_json::{Map, Value, json};

use self::media::TelegramMessageKind;
pub use self::media::{Attachment, safe_name};

/// What the model is told of an edited message.
const CORRECTION_NOTE: &str = "replaces what this message said before";

/// Who the bot is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BotIdentity {
    /// The number of its account.
    pub id: i64,
    /// Its name, without the `@`.
    pub username: String,
}

/// What a message is to the bot.
#[derive(Clone, Debug, PartialEq)]
pub enum InboundUpdate {
    /// `/start`.
    Start,
    /// A command of another bot, or none that there is; what the platform itself says.
    Ignored,
    /// Something for the agent.
    Message(InboundMessage),
}

/// A message for the agent.
#[derive(Clone, Debug, PartialEq)]
pub struct InboundMessage {
    /// Whether the bot was addressed, and did not merely hear it.
    pub is_active: bool,
    /// Whether it is a comma command. In groups only after the bot's name or `/bub`, or as a reply to it; never when it is
    /// edited or forwarded, or comes by way of another bot.
    pub is_command: bool,
    /// Files, with those of the message that is replied to after its own.
    pub media: Vec<Attachment>,
    /// The number of the album that it belongs to.
    pub album: Option<String>,
    text: String,
    fields: Map<String, Value>,
}

impl InboundMessage {
    /// What the agent is given: the command, or the JSON object.
    pub fn content(&self) -> String {
        if self.is_command {
            return self.text.clone();
        }
        let mut object = Map::from_iter([("message".to_owned(), json!(self.text))]);
        object.extend(self.fields.clone());
        Value::Object(object).to_string()
    }

    /// Takes up another message of the same album.
    pub fn absorb(&mut self, member: Self) {
        self.is_active |= member.is_active;
        self.text = format!("{}\n{}", self.text, member.text);
        self.media.extend(member.media);
        let fields = ["message_id", "type", "links", "media"].into_iter();
        let told = fields.filter_map(|key| Some((key.to_owned(), member.fields.get(key)?.clone())));
        let told = Value::Object(told.collect());
        match self.fields.get_mut("album") {
            Some(Value::Array(others)) => others.push(told),
            _ => drop(self.fields.insert("album".to_owned(), json!([told]))),
        }
    }
}

/// Reads a message, which may be an edited one.
pub fn read(message: &Value, is_edit: bool, me: &BotIdentity) -> InboundUpdate {
    let kind = TelegramMessageKind::from_message(message);
    if kind == TelegramMessageKind::Unknown && media::is_service(message) {
        return InboundUpdate::Ignored;
    }
    let mut text = kind.text(message);
    let mut called = false;
    let slash = Some(&text)
        .filter(|_| kind == TelegramMessageKind::Text)
        .and_then(|text| entities::slash(message, text, me));
    if let Some((name, is_ours, rest)) = slash {
        match name.to_ascii_lowercase().as_str() {
            "start" if is_ours && !is_edit => return InboundUpdate::Start,
            "bub" if is_ours && !rest.is_empty() => {
                called = true;
                text = rest.to_owned();
            }
            _ => return InboundUpdate::Ignored,
        }
    }
    let turned = AddressMode::from_message(message, kind, called, me);
    let own = ["forward_origin", "forward_date", "via_bot"]
        .iter()
        .all(|field| message[field].is_null());
    let is_command = kind == TelegramMessageKind::Text
        && turned == AddressMode::Explicitly
        && own
        && !is_edit
        && {
            let command = entities::without_mention(&text, me).trim();
            let is_command = command.starts_with(',');
            if is_command {
                text = command.to_owned();
            }
            is_command
        };
    let mut fields = describe(message, kind);
    let mut media: Vec<Attachment> = kind.attachment(message).into_iter().collect();
    if let Some(reply) = reply(message).filter(|reply| reply["from"].is_object()) {
        let kind = TelegramMessageKind::from_message(reply);
        let mut told = Map::from_iter([("message".to_owned(), json!(kind.text(reply)))]);
        told.extend(describe(reply, kind));
        fields.insert("reply_to_message".to_owned(), Value::Object(told));
        media.extend(kind.attachment(reply));
    }
    let extras = [
        ("quote", message["quote"]["text"].clone()),
        ("forward_origin", origin(&message["forward_origin"])),
        (
            "correction",
            if is_edit {
                json!(CORRECTION_NOTE)
            } else {
                Value::Null
            },
        ),
        (
            "edit_date",
            if is_edit {
                seconds(&message["edit_date"])
            } else {
                Value::Null
            },
        ),
    ];
    insert_all(&mut fields, extras);
    let album = message["media_group_id"].as_str().map(str::to_owned);
    InboundUpdate::Message(InboundMessage {
        is_active: turned > AddressMode::No,
        is_command,
        media,
        album,
        text,
        fields,
    })
}

/// Whether somebody turned to the bot. To say its name is enough for that, but not for a command.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum AddressMode {
    No,
    ByName,
    Explicitly,
}

impl AddressMode {
    fn from_message(
        message: &Value,
        kind: TelegramMessageKind,
        called: bool,
        me: &BotIdentity,
    ) -> Self {
        let replied =
            || reply(message).is_some_and(|reply| reply["from"]["id"].as_i64() == Some(me.id));
        match message["chat"]["type"].as_str() {
            _ if kind == TelegramMessageKind::Unknown && media::other(message).is_none() => {
                Self::No
            }
            Some("private") => Self::Explicitly,
            Some("group" | "supergroup")
                if called || entities::mentions(message, me) || replied() =>
            {
                Self::Explicitly
            }
            Some("group" | "supergroup") if entities::says_bub(message) => Self::ByName,
            _ => Self::No,
        }
    }
}

/// The message that is replied to. In a topic, every message without a reply seems to be one to the topic's beginning.
fn reply(message: &Value) -> Option<&Value> {
    Some(&message["reply_to_message"])
        .filter(|reply| reply.is_object() && reply["forum_topic_created"].is_null())
}

/// What the original tells of a message, in its order.
fn describe(message: &Value, kind: TelegramMessageKind) -> Map<String, Value> {
    let from = &message["from"];
    // Without a sender, the original tells empty names.
    let unknown = if from.is_object() {
        Value::Null
    } else {
        json!("")
    };
    let given = |value: &Value| {
        if value.is_null() {
            unknown.clone()
        } else {
            value.clone()
        }
    };
    let id = from["id"]
        .as_i64()
        .map_or(unknown.clone(), |id| json!(id.to_string()));
    let name = full_name(from).map_or(unknown.clone(), Value::String);
    let mut fields = Map::new();
    insert_all(
        &mut fields,
        [
            ("message_id", message["message_id"].clone()),
            ("type", json!(kind.name())),
            ("username", given(&from["username"])),
            ("full_name", name),
            ("sender_id", id),
            ("sender_is_bot", from["is_bot"].clone()),
            ("date", seconds(&message["date"])),
            ("links", entities::links(message)),
            ("media", kind.metadata(message)),
        ],
    );
    fields
}

/// Where a forwarded message comes from.
fn origin(origin: &Value) -> Value {
    if !origin.is_object() {
        return Value::Null;
    }
    let chat = if origin["chat"].is_object() {
        &origin["chat"]
    } else {
        &origin["sender_chat"]
    };
    let name = full_name(&origin["sender_user"]).map(Value::String);
    let name = name.or_else(|| Some(origin["sender_user_name"].clone()).filter(Value::is_string));
    let source = if chat.is_object() {
        chat
    } else {
        &origin["sender_user"]
    };
    let mut fields = Map::new();
    insert_all(
        &mut fields,
        [
            ("type", origin["type"].clone()),
            ("name", name.unwrap_or_else(|| chat["title"].clone())),
            ("username", source["username"].clone()),
            (
                "id",
                source["id"]
                    .as_i64()
                    .map_or(Value::Null, |id| json!(id.to_string())),
            ),
            ("message_id", origin["message_id"].clone()),
            ("date", seconds(&origin["date"])),
        ],
    );
    Value::Object(fields)
}

fn full_name(user: &Value) -> Option<String> {
    let first = user["first_name"].as_str()?;
    Some(
        user["last_name"]
            .as_str()
            .map_or_else(|| first.to_owned(), |last| format!("{first} {last}")),
    )
}

/// A time as the original writes it.
fn seconds(date: &Value) -> Value {
    date.as_f64().map_or(Value::Null, |seconds| json!(seconds))
}

/// Adds fields; those without a value are left out.
fn insert_all<const N: usize>(fields: &mut Map<String, Value>, new: [(&str, Value); N]) {
    fields.extend(
        new.into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key.to_owned(), value)),
    );
}
