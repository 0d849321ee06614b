//! Converts a message of the Bot API to the content that the agent reads.
//!
//! * `entities`: marked ranges of a text: links, commands and mentions.
//! * `media`: the kind of a message, its text and its files.
//!
//! The content has the format of the Python version: one JSON object whose first keys are always the same. Additional
//! keys follow them: `quote`, `forward_origin`, `correction`, `edit_date`, `album`, and in groups `addressed` and
//! `since_last_reply`.

#![expect(
    clippy::indexing_slicing,
    reason = "a JSON value is `null` where there is nothing"
)]

mod entities;
mod media;

use bub::kernel::command_line;
use serde_json::{Map, Value, json};

use self::media::TelegramMessageKind;
pub use self::media::{Attachment, sanitize_file_name};

/// Value of the field `correction` of an edited message.
const CORRECTION_NOTE: &str = "replaces the earlier version of this message";

/// The slash commands: name, description, the comma command, and whether the command has arguments.
const SLASH_COMMANDS: [(&str, &str, &str, bool); 6] = [
    ("help", "Show the commands", "help", true),
    (
        "new",
        "Start a new session; the old one is kept",
        "new",
        false,
    ),
    (
        "stop",
        "Stop the running answer and drop queued messages",
        "quit",
        false,
    ),
    (
        "status",
        "Show the session, the model and the context",
        "status",
        false,
    ),
    (
        "model",
        "Show or set the model of this session",
        "model",
        true,
    ),
    (
        "usage",
        "Show the tokens and the cost of this session",
        "usage",
        false,
    ),
];
/// Maximum length of a line of context in characters.
const MAX_CONTEXT_CHARS: usize = 1_000;

/// Returns the commands for the menu of the chat, as `BotCommand` objects.
pub(crate) fn menu_commands() -> Vec<Value> {
    let command = |(name, description, ..): &(&str, &str, &str, bool)| json!({"command": name, "description": description});
    SLASH_COMMANDS.iter().map(command).collect()
}

/// Returns the answer to `/help`, in Markdown.
pub(crate) fn help_text() -> String {
    let line =
        |(name, description, ..): &(&str, &str, &str, bool)| format!("/{name} – {description}");
    let lines: Vec<String> = SLASH_COMMANDS.iter().map(line).collect();
    format!(
        "Send a message, a file or a voice message, and I answer.\n\n{}\n\nIn groups, mention me or reply to me. \
         `,help` lists all commands and tools.",
        lines.join("\n")
    )
}

/// Returns the comma command for a slash command.
fn comma_command(name: &str, arguments: &str) -> Option<String> {
    let (_, _, command, has_arguments) =
        SLASH_COMMANDS.iter().find(|(slash, ..)| *slash == name)?;
    let arguments = if *has_arguments { arguments } else { "" };
    Some(format!(",{command} {arguments}").trim_end().to_owned())
}

/// The account of the bot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BotIdentity {
    /// The user id.
    pub id: i64,
    /// The user name, without the `@`.
    pub username: String,
}

/// How the bot handles a message.
#[derive(Clone, Debug, PartialEq)]
pub enum InboundUpdate {
    /// The command `/start`.
    Start,
    /// The command `/help`.
    Help,
    /// A command for another bot, or a service message of the platform.
    Ignored,
    /// A message for the agent.
    Message(InboundMessage),
}

/// A message for the agent.
#[derive(Clone, Debug, PartialEq)]
pub struct InboundMessage {
    /// Whether the message addresses the bot.
    pub is_active: bool,
    /// Whether the message is a comma command. In groups, a command must also mention the bot, follow `/bub`, or reply
    /// to the bot. Edited or forwarded messages, and messages sent via another bot, are never commands.
    pub is_command: bool,
    /// Whether the message contains text of another person or bot: it is forwarded, sent via another bot, or replies to a
    /// message of neither its sender nor this bot.
    pub has_foreign_text: bool,
    /// Files of the message, followed by the files of the message that it replies to.
    pub media: Vec<Attachment>,
    /// The id of the album that the message belongs to.
    pub album: Option<String>,
    text: String,
    fields: Map<String, Value>,
}

impl InboundMessage {
    /// Returns the content for the agent: the command, or the JSON object.
    pub fn content(&self) -> String {
        if self.is_command {
            return self.text.clone();
        }
        let mut object = Map::from_iter([("message".to_owned(), json!(self.text))]);
        object.extend(self.fields.clone());
        Value::Object(object).to_string()
    }

    /// Adds what the model needs to know in a group: whether the message addresses the bot, and what was said since the
    /// last message that did.
    pub(crate) fn add_group_context(&mut self, lines: Vec<Value>) {
        self.fields
            .insert("addressed".to_owned(), self.is_active.into());
        if !lines.is_empty() {
            self.fields
                .insert("since_last_reply".to_owned(), lines.into());
        }
    }

    /// Whether the user edited the message.
    pub(crate) fn is_edit(&self) -> bool {
        self.fields.contains_key("correction")
    }

    /// Returns the message as a line of context for a later one.
    pub(crate) fn to_context_line(&self) -> Value {
        let text: String = self.text.chars().take(MAX_CONTEXT_CHARS).collect();
        let mut line = Map::from_iter([("message".to_owned(), json!(text))]);
        for key in ["message_id", "username", "full_name", "sender_id", "date"] {
            if let Some(value) = self.fields.get(key) {
                line.insert(key.to_owned(), value.clone());
            }
        }
        Value::Object(line)
    }

    /// Adds the text and the files of another message of the album.
    pub fn merge_album_message(&mut self, member: Self) {
        self.is_active |= member.is_active;
        self.has_foreign_text |= member.has_foreign_text;
        self.text = format!("{}\n{}", self.text, member.text);
        self.media.extend(member.media);
        let fields = ["message_id", "type", "links", "media"].into_iter();
        let member_fields =
            fields.filter_map(|key| Some((key.to_owned(), member.fields.get(key)?.clone())));
        let member_fields = Value::Object(member_fields.collect());
        match self.fields.get_mut("album") {
            Some(Value::Array(others)) => others.push(member_fields),
            _ => drop(
                self.fields
                    .insert("album".to_owned(), json!([member_fields])),
            ),
        }
    }
}

/// Converts a message of the Bot API. `is_edit` tells whether the user edited the message.
pub fn convert_message(message: &Value, is_edit: bool, me: &BotIdentity) -> InboundUpdate {
    let kind = TelegramMessageKind::from_message(message);
    if kind == TelegramMessageKind::Unknown && media::is_service_message(message) {
        return InboundUpdate::Ignored;
    }
    let mut text = kind.text_or_description(message);
    let is_original = ["forward_origin", "forward_date", "via_bot"]
        .iter()
        .all(|field| message[field].is_null());
    let mut is_bub_command = false;
    let slash = Some(&text)
        .filter(|_| kind == TelegramMessageKind::Text)
        .and_then(|text| entities::parse_slash_command(message, text, me));
    if let Some((name, is_ours, rest)) = slash {
        let name = name.to_ascii_lowercase();
        let command = Some(&name).filter(|_| is_original && !is_edit);
        match command.and_then(|name| comma_command(name, rest)) {
            _ if !is_ours => return InboundUpdate::Ignored,
            _ if name == "start" && is_edit => return InboundUpdate::Ignored,
            _ if name == "start" => return InboundUpdate::Start,
            Some(_) if name == "help" && rest.is_empty() => return InboundUpdate::Help,
            Some(command) => (is_bub_command, text) = (true, command),
            None if name == "bub" && rest.is_empty() => return InboundUpdate::Ignored,
            None if name == "bub" => (is_bub_command, text) = (true, rest.to_owned()),
            // Other text that starts with a slash is text. In a group, `/text@the_bot` addresses the bot.
            None => {
                let word = text.split_whitespace().next();
                is_bub_command = word.is_some_and(|word| word.contains('@'));
            }
        }
    }
    let address_mode = AddressMode::from_message(message, kind, is_bub_command, me);
    let is_command = kind == TelegramMessageKind::Text
        && address_mode == AddressMode::Explicitly
        && is_original
        && !is_edit
        && {
            let command = entities::strip_mention(&text, me).trim();
            let is_command = command_line(command).is_some();
            if is_command {
                text = command.to_owned();
            }
            is_command
        };
    let mut fields = message_fields(message, kind);
    let mut media: Vec<Attachment> = kind.attachment(message).into_iter().collect();
    if let Some(reply) = replied_message(message).filter(|reply| reply["from"].is_object()) {
        let kind = TelegramMessageKind::from_message(reply);
        let mut reply_fields =
            Map::from_iter([("message".to_owned(), json!(kind.text_or_description(reply)))]);
        reply_fields.extend(message_fields(reply, kind));
        fields.insert("reply_to_message".to_owned(), Value::Object(reply_fields));
        media.extend(kind.attachment(reply));
    }
    let extras = [
        ("quote", message["quote"]["text"].clone()),
        ("forward_origin", forward_origin(&message["forward_origin"])),
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
                float_seconds(&message["edit_date"])
            } else {
                Value::Null
            },
        ),
    ];
    insert_non_null(&mut fields, extras);
    let album = message["media_group_id"].as_str().map(str::to_owned);
    InboundUpdate::Message(InboundMessage {
        is_active: address_mode > AddressMode::NotAddressed,
        is_command,
        has_foreign_text: has_foreign_text(message, is_original, me),
        media,
        album,
        text,
        fields,
    })
}

/// How a message addresses the bot. In a group, the word `bub` is enough for an ordinary message, but not for a
/// command.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum AddressMode {
    NotAddressed,
    ByName,
    Explicitly,
}

impl AddressMode {
    fn from_message(
        message: &Value,
        kind: TelegramMessageKind,
        is_bub_command: bool,
        me: &BotIdentity,
    ) -> Self {
        let is_reply_to_bot = || {
            replied_message(message)
                .is_some_and(|reply| reply["from"]["id"].as_i64() == Some(me.id))
        };
        match message["chat"]["type"].as_str() {
            _ if kind == TelegramMessageKind::Unknown
                && media::describe_unknown_kind(message).is_none() =>
            {
                Self::NotAddressed
            }
            Some("private") => Self::Explicitly,
            Some("group" | "supergroup")
                if is_bub_command
                    || entities::is_bot_mentioned(message, me)
                    || is_reply_to_bot() =>
            {
                Self::Explicitly
            }
            Some("group" | "supergroup") if entities::has_bub_word(message) => Self::ByName,
            _ => Self::NotAddressed,
        }
    }
}

/// Returns the message that this message replies to. In a topic, the platform reports messages that are not replies as
/// replies to the start of the topic; these are ignored.
fn replied_message(message: &Value) -> Option<&Value> {
    Some(&message["reply_to_message"])
        .filter(|reply| reply.is_object() && reply["forum_topic_created"].is_null())
}

/// Returns whether a message contains text that its sender did not write. Text of the bot is not foreign: the session
/// has it anyway.
fn has_foreign_text(message: &Value, is_original: bool, me: &BotIdentity) -> bool {
    let is_own = |author: &Value| {
        let id = author.as_i64();
        id.is_some() && (id == message["from"]["id"].as_i64() || id == Some(me.id))
    };
    let is_own_forward =
        message["via_bot"].is_null() && is_own(&message["forward_origin"]["sender_user"]["id"]);
    let reply = replied_message(message);
    (!is_original && !is_own_forward)
        || !message["external_reply"].is_null()
        || reply.is_some_and(|reply| {
            !is_own(&reply["from"]["id"]) || !reply["forward_origin"].is_null()
        })
}

/// Returns the fields of a message for the JSON content, in the order of the Python version.
fn message_fields(message: &Value, kind: TelegramMessageKind) -> Map<String, Value> {
    let from = &message["from"];
    // Without a sender, the Python version sets empty names.
    let unknown = if from.is_object() {
        Value::Null
    } else {
        json!("")
    };
    let or_unknown = |value: &Value| {
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
    insert_non_null(
        &mut fields,
        [
            ("message_id", message["message_id"].clone()),
            ("type", json!(kind.name())),
            ("username", or_unknown(&from["username"])),
            ("full_name", name),
            ("sender_id", id),
            ("sender_is_bot", from["is_bot"].clone()),
            ("date", float_seconds(&message["date"])),
            ("links", entities::links(message)),
            ("media", kind.file_metadata(message)),
        ],
    );
    fields
}

/// Returns the source of a forwarded message.
fn forward_origin(origin: &Value) -> Value {
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
    insert_non_null(
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
            ("date", float_seconds(&origin["date"])),
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

/// Converts a time to the format of the Python version: seconds as a float.
fn float_seconds(date: &Value) -> Value {
    date.as_f64().map_or(Value::Null, |seconds| json!(seconds))
}

/// Adds the fields whose value is not `null`.
fn insert_non_null<const N: usize>(fields: &mut Map<String, Value>, new: [(&str, Value); N]) {
    fields.extend(
        new.into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key.to_owned(), value)),
    );
}
