//! The message object that is passed between hooks.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    error::{Error, Result},
    fields::{FieldName, Fields},
    media::MediaItem,
};

/// The `output_channel` of messages whose answer is not sent. Tools can still send messages.
const NO_OUTPUT_CHANNEL: &str = "null";

/// A weakly typed message: named JSON fields, and media whose bytes are fetched on demand.
///
/// Channels and plugins can add any fields. Methods such as [`Envelope::chat_id`] read the standard ones.
/// [`ChannelMessage`](crate::ChannelMessage) builds an envelope with the standard fields.
///
/// ```
/// use bub_kernel::Envelope;
///
/// let message = Envelope::from_text("hello").with("chat_id", "42");
/// assert_eq!(message.content(), "hello");
/// assert_eq!(message.chat_id().as_deref(), Some("42"));
/// ```
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Envelope {
    fields: Fields,
    /// The attached items with their fetchers, which JSON cannot hold. If empty, [`Self::media`] parses the JSON field
    /// `media` in `fields`.
    #[serde(skip)]
    media: Vec<MediaItem>,
}

impl Envelope {
    /// Creates an envelope without fields.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an envelope with space for `capacity` fields.
    pub fn with_capacity(capacity: usize) -> Self {
        Fields::with_capacity(capacity).into()
    }

    /// Creates an envelope with the field `content`.
    pub fn from_text(content: impl Into<String>) -> Self {
        Self::with_capacity(4).with("content", content.into())
    }

    /// Converts any JSON value: an object becomes the fields, any other value becomes the content.
    pub fn from_value(value: Value) -> Self {
        match value {
            Value::Object(map) => Fields::from(map).into(),
            other => Self::from_text(stringify(&other)),
        }
    }

    /// Returns the value of a field.
    pub fn field(&self, name: &str) -> Option<&Value> {
        self.fields.get(name)
    }

    /// Returns the value of a field if it is a string.
    pub fn str_field(&self, name: &str) -> Option<&str> {
        self.fields.get_str(name)
    }

    /// Sets a field.
    pub fn set(&mut self, name: impl Into<FieldName>, value: impl Into<Value>) {
        let name = name.into();
        // The new value replaces the attached media items, too.
        if name == "media" {
            self.media.clear();
        }
        self.fields.set(name, value);
    }

    /// Sets a field and returns the envelope.
    #[must_use]
    pub fn with(mut self, name: impl Into<FieldName>, value: impl Into<Value>) -> Self {
        self.set(name, value);
        self
    }

    /// Returns all fields.
    pub fn fields(&self) -> &Fields {
        &self.fields
    }

    /// Returns the content as text, or an empty string if the field is missing.
    pub fn content(&self) -> Cow<'_, str> {
        self.text_field("content").unwrap_or_default()
    }

    /// Returns a field of any type as text, or `None` if it is missing or null. Values other than strings become JSON.
    pub fn text_field(&self, name: &str) -> Option<Cow<'_, str>> {
        match self.field(name)? {
            Value::Null => None,
            Value::String(text) => Some(Cow::Borrowed(text)),
            other => Some(Cow::Owned(stringify(other))),
        }
    }

    /// Returns the field `session_id`.
    pub fn session_id(&self) -> Option<Cow<'_, str>> {
        self.text_field("session_id")
    }

    /// Returns the channel that the message came from or goes to.
    pub fn channel(&self) -> Option<Cow<'_, str>> {
        self.text_field("channel")
    }

    /// Returns the chat within the channel.
    pub fn chat_id(&self) -> Option<Cow<'_, str>> {
        self.text_field("chat_id")
    }

    /// Returns the channel that replies go to: `output_channel` if it is set, otherwise `channel`.
    pub fn output_channel(&self) -> Option<Cow<'_, str>> {
        let explicit = self.text_field("output_channel");
        let explicit = explicit.filter(|name| !name.is_empty());
        explicit.or_else(|| self.channel())
    }

    /// Discards the answer to the message instead of sending it: sets `output_channel` to the string `null`, which no
    /// channel has as its name.
    #[must_use]
    pub fn without_output(self) -> Self {
        self.with("output_channel", NO_OUTPUT_CHANNEL)
    }

    /// Returns whether the answer to the message is sent to a channel.
    pub fn has_output(&self) -> bool {
        self.str_field("output_channel") != Some(NO_OUTPUT_CHANNEL)
    }

    /// Returns `channel:chat_id`, the session of a message without a session id. If the channel or the chat is missing,
    /// `default` takes its place.
    pub fn chat_session_id(&self) -> String {
        let channel = self.channel().unwrap_or("default".into());
        let chat_id = self.chat_id().unwrap_or("default".into());
        format!("{channel}:{chat_id}")
    }

    /// Returns the kind of the message, from the field `kind`.
    pub fn kind(&self) -> MessageKind {
        self.str_field("kind")
            .map(MessageKind::from)
            .unwrap_or_default()
    }

    /// Returns whether the message is a comma command, which the runtime runs instead of the model.
    pub fn is_command(&self) -> bool {
        crate::command_line(&self.content()).is_some()
    }

    /// Returns whether the message addresses the agent. In a group, the agent also receives messages between other
    /// users.
    pub fn is_active(&self) -> bool {
        self.field("is_active").and_then(Value::as_bool) == Some(true)
    }

    /// Returns a value of the map in the field `context`.
    pub fn context_value(&self, key: &str) -> Option<&Value> {
        self.field("context")?.get(key)
    }

    /// Returns the map in the field `context` as `key=value` pairs joined by `|`, in insertion order, without keys that
    /// start with `_`.
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

    /// Returns the attached media.
    pub fn media(&self) -> Vec<MediaItem> {
        if !self.media.is_empty() {
            return self.media.clone();
        }
        let Some(Value::Array(items)) = self.field("media") else {
            return Vec::new();
        };
        items.iter().filter_map(MediaItem::from_value).collect()
    }

    /// Replaces the attached media.
    pub fn set_media(&mut self, items: Vec<MediaItem>) {
        let values: Vec<_> = items.iter().map(MediaItem::to_value).collect();
        self.set("media", values);
        self.media = items;
    }

    /// Merges messages that arrived together. Contents are joined by newlines, and media are collected from all
    /// messages. Other fields come from the last message.
    ///
    /// # Errors
    ///
    /// Fails if the batch is empty.
    pub fn merge_batch(mut batch: Vec<Self>) -> Result<Self> {
        let contents: Vec<_> = batch.iter().map(Self::content).collect();
        let contents = contents.join("\n");
        let media: Vec<_> = batch.iter().flat_map(Self::media).collect();
        let mut merged = batch.pop().ok_or_else(|| {
            Error::invalid_input(
                "cannot merge messages: the batch is empty; pass at least one message",
            )
        })?;
        merged.set("content", contents);
        if !media.is_empty() {
            merged.set_media(media);
        }
        Ok(merged)
    }

    /// Converts the result of an external plugin's `render_outbound`: null, one envelope or a list.
    pub fn from_rendered(value: Value) -> Vec<Self> {
        match value {
            Value::Null => Vec::new(),
            Value::Array(items) => items.into_iter().map(Self::from_value).collect(),
            single => vec![Self::from_value(single)],
        }
    }
}

/// The kind of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MessageKind {
    /// A message from a user or a model.
    #[default]
    Normal,
    /// A comma command, or its output.
    Command,
    /// A notice about a failure.
    Error,
    /// A request for approval of a tool call.
    Approval,
    /// A kind that a plugin defines.
    Other(String),
}

impl MessageKind {
    /// Returns the name that the field `kind` holds.
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

/// Returns a value as readable text: strings without quotes, other values as JSON.
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
