//! What travels through a turn: one message in, any number out.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::{
    error::{Error, Result},
    fields::{FieldName, Fields},
    media::MediaItem,
};

/// The `output_channel` of messages whose plain replies go nowhere.
const NO_OUTPUT_CHANNEL: &str = "null";

/// A weakly typed message: named JSON values, and media whose bytes are fetched when needed.
///
/// Channels and plugins add whatever fields they need; the accessors below name the ones everybody
/// shares. [`ChannelMessage`](crate::ChannelMessage) builds one with the usual fields.
#[derive(Clone, Debug, Default)]
pub struct Envelope {
    fields: Fields,
    /// What the field `media` describes, with how to fetch it; empty if only the field is known.
    media: Vec<MediaItem>,
}

impl Envelope {
    /// An envelope without fields.
    pub fn new() -> Self {
        Self::default()
    }

    /// An envelope with room for `capacity` fields.
    pub fn with_capacity(capacity: usize) -> Self {
        Self {
            fields: Fields::with_capacity(capacity),
            media: Vec::new(),
        }
    }

    /// An envelope that holds only content.
    pub fn text(content: impl Into<String>) -> Self {
        Self::with_capacity(4).with("content", content.into())
    }

    /// Makes an envelope of any value: an object becomes its fields, anything else its content.
    pub fn normalize(value: Value) -> Self {
        match value {
            Value::Object(map) => Fields::from(map).into(),
            other => Self::text(stringify(&other)),
        }
    }

    /// A field.
    pub fn field(&self, name: &str) -> Option<&Value> {
        self.fields.get(name)
    }

    /// A field that is a string.
    pub fn str_field(&self, name: &str) -> Option<&str> {
        self.fields.get_str(name)
    }

    /// Sets a field.
    pub fn set(&mut self, name: impl Into<FieldName>, value: impl Into<Value>) {
        let name = name.into();
        // The field is what everybody reads and writes; attached media must not outlive it.
        if name == "media" {
            self.media.clear();
        }
        self.fields.set(name, value);
    }

    /// The same with a field set.
    #[must_use]
    pub fn with(mut self, name: impl Into<FieldName>, value: impl Into<Value>) -> Self {
        self.set(name, value);
        self
    }

    /// All fields.
    pub fn fields(&self) -> &Fields {
        &self.fields
    }

    /// The content as text; empty when there is none.
    pub fn content(&self) -> Cow<'_, str> {
        self.text_field("content").unwrap_or_default()
    }

    /// A field as text, whatever its type; `None` when it is absent or null.
    pub fn text_field(&self, name: &str) -> Option<Cow<'_, str>> {
        match self.field(name)? {
            Value::Null => None,
            Value::String(text) => Some(Cow::Borrowed(text)),
            other => Some(Cow::Owned(stringify(other))),
        }
    }

    /// The session id the envelope itself carries.
    pub fn session_id(&self) -> Option<Cow<'_, str>> {
        self.text_field("session_id")
    }

    /// The channel it came from or goes to.
    pub fn channel(&self) -> Option<Cow<'_, str>> {
        self.text_field("channel")
    }

    /// The chat within the channel.
    pub fn chat_id(&self) -> Option<Cow<'_, str>> {
        self.text_field("chat_id")
    }

    /// The channel a reply goes to: `output_channel`, or else the channel itself.
    pub fn output_channel(&self) -> Option<Cow<'_, str>> {
        let own = self
            .text_field("output_channel")
            .filter(|name| !name.is_empty());
        own.or_else(|| self.channel())
    }

    /// The same message, whose plain replies go nowhere: `output_channel` is `null`, which no channel is called.
    #[must_use]
    pub fn without_output(self) -> Self {
        self.with("output_channel", NO_OUTPUT_CHANNEL)
    }

    /// Whether plain replies go to a channel.
    pub fn has_output(&self) -> bool {
        self.str_field("output_channel") != Some(NO_OUTPUT_CHANNEL)
    }

    /// `channel:chat_id`, each `default` when it is not there: the session of a message that names none.
    pub fn chat_session(&self) -> String {
        let part = |value: Option<Cow<'_, str>>| {
            value.map_or_else(|| "default".to_owned(), Cow::into_owned)
        };
        format!("{}:{}", part(self.channel()), part(self.chat_id()))
    }

    /// The kind of the message, from the field `kind`.
    pub fn kind(&self) -> MessageKind {
        self.str_field("kind")
            .map_or(MessageKind::Normal, MessageKind::from)
    }

    /// Whether it is a comma command: a line for the runtime, not for the model. After a space, a comma is text.
    pub fn is_command(&self) -> bool {
        self.content().starts_with(crate::prompt::COMMAND_PREFIX)
    }

    /// Whether somebody addressed the agent, as opposed to merely being heard.
    pub fn is_active(&self) -> bool {
        self.field("is_active")
            .and_then(Value::as_bool)
            .unwrap_or(false)
    }

    /// One value of the context map.
    pub fn context(&self, key: &str) -> Option<&Value> {
        self.field("context")?.get(key)
    }

    /// The context as `key=value` pairs joined by `|`, in insertion order, without `_private` keys.
    pub fn context_str(&self) -> String {
        let Some(Value::Object(context)) = self.field("context") else {
            return String::new();
        };
        let public = context.iter().filter(|(key, _)| !key.starts_with('_'));
        let pairs: Vec<String> = public
            .map(|(key, value)| format!("{key}={}", stringify(value)))
            .collect();
        pairs.join("|")
    }

    /// The media attached to it.
    pub fn media(&self) -> Vec<MediaItem> {
        if !self.media.is_empty() {
            return self.media.clone();
        }
        let Some(Value::Array(items)) = self.field("media") else {
            return Vec::new();
        };
        items.iter().filter_map(MediaItem::from_value).collect()
    }

    /// Attaches media, in place of what was attached.
    pub fn set_media(&mut self, items: Vec<MediaItem>) {
        self.set(
            "media",
            items.iter().map(MediaItem::to_value).collect::<Vec<_>>(),
        );
        self.media = items;
    }

    /// Merges messages that arrived together: the last one is the template, content is joined by
    /// newlines, media are collected from all.
    pub fn merge_batch(batch: Vec<Self>) -> Result<Self> {
        let contents: Vec<_> = batch
            .iter()
            .map(|message| message.content().into_owned())
            .collect();
        let media: Vec<_> = batch.iter().flat_map(Self::media).collect();
        let mut merged = batch
            .into_iter()
            .next_back()
            .ok_or_else(|| Error::invalid_input("cannot merge an empty batch"))?;
        merged.set("content", contents.join("\n"));
        if !media.is_empty() {
            merged.set_media(media);
        }
        Ok(merged)
    }

    /// Reads what a `render_outbound` of another process returned: nothing, one envelope or a list.
    pub fn unpack_batch(value: Value) -> Vec<Self> {
        match value {
            Value::Null => Vec::new(),
            Value::Array(items) => items.into_iter().map(Self::normalize).collect(),
            single => vec![Self::normalize(single)],
        }
    }
}

/// The kind of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MessageKind {
    /// A message of a user or a model.
    #[default]
    Normal,
    /// A comma command, or its output.
    Command,
    /// The notice of a failure.
    Error,
    /// A request for approval of a tool call.
    Approval,
    /// A kind that a plugin defines.
    Other(String),
}

impl MessageKind {
    /// The name in the field `kind`.
    pub fn name(&self) -> &str {
        match self {
            Self::Normal => "normal",
            Self::Command => "command",
            Self::Error => "error",
            Self::Approval => "approval",
            Self::Other(name) => name,
        }
    }
}

impl From<&str> for MessageKind {
    fn from(name: &str) -> Self {
        match name {
            "normal" => Self::Normal,
            "command" => Self::Command,
            "error" => Self::Error,
            "approval" => Self::Approval,
            other => Self::Other(other.to_owned()),
        }
    }
}

/// A value as people read it: strings without quotes, everything else as JSON.
pub(crate) fn stringify(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

impl From<Fields> for Envelope {
    fn from(fields: Fields) -> Self {
        Self {
            fields,
            media: Vec::new(),
        }
    }
}

impl Serialize for Envelope {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.fields.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Envelope {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Fields::deserialize(deserializer).map(Self::from)
    }
}
