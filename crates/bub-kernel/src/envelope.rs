//! What travels through a turn: one message in, any number out.

use std::{any::Any, borrow::Cow, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::{
    error::{Error, Result},
    fields::{Fields, Name},
    lifespan::Lifespan,
    media::{Media, MediaItem},
    slots::Slots,
};

/// A weakly typed message: named JSON values, plus slots for things that are not data.
///
/// Channels and plugins add whatever fields they need; the accessors below name the ones everybody
/// shares. [`ChannelMessage`](crate::ChannelMessage) builds one with the usual fields.
#[derive(Clone, Debug, Default)]
pub struct Envelope {
    fields: Fields,
    slots: Slots,
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
            slots: Slots::default(),
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
    pub fn set(&mut self, name: impl Into<Name>, value: impl Into<Value>) {
        let name = name.into();
        // The field is what everybody reads and writes; attached media must not outlive it.
        if name == "media" {
            self.slots.remove::<Media>();
        }
        self.fields.set(name, value);
    }

    /// The same with a field set.
    #[must_use]
    pub fn with(mut self, name: impl Into<Name>, value: impl Into<Value>) -> Self {
        self.set(name, value);
        self
    }

    /// All fields.
    pub fn fields(&self) -> &Fields {
        &self.fields
    }

    /// The thing of type `T`, when somebody put one in.
    pub fn slot<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        self.slots.get()
    }

    /// Puts a thing into its slot.
    pub fn put_slot<T: Any + Send + Sync>(&mut self, value: Arc<T>) {
        self.slots.put(value);
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

    /// `channel:chat_id`, each `default` when it is not there: the session of a message that names none.
    pub fn chat_session(&self) -> String {
        let part = |value: Option<Cow<'_, str>>| {
            value.map_or_else(|| "default".to_owned(), Cow::into_owned)
        };
        format!("{}:{}", part(self.channel()), part(self.chat_id()))
    }

    /// `normal`, `command` or `error`.
    pub fn kind(&self) -> &str {
        self.str_field("kind").unwrap_or("normal")
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
        if let Some(media) = self.slot::<Media>() {
            return media.0.clone();
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
        self.put_slot(Arc::new(Media(items)));
    }

    /// The scope that lives as long as this message is worked on.
    pub fn lifespan(&self) -> Option<Arc<Lifespan>> {
        self.slot()
    }

    /// Merges messages that arrived together: the last one is the template, content is joined by
    /// newlines, media are collected from all. It can do no more than the least of the senders.
    pub fn merge_batch(batch: Vec<Self>) -> Result<Self> {
        let contents: Vec<_> = batch
            .iter()
            .map(|message| message.content().into_owned())
            .collect();
        let media: Vec<_> = batch.iter().flat_map(Self::media).collect();
        let least = batch
            .iter()
            .rev()
            .map(Self::sender)
            .min_by_key(|sender| sender.role);
        let mut merged = batch
            .into_iter()
            .next_back()
            .ok_or_else(|| Error::invalid_input("cannot merge an empty batch"))?;
        merged.set("content", contents.join("\n"));
        if !media.is_empty() {
            merged.set_media(media);
        }
        if let Some(least) = least.filter(|least| least.role < merged.sender().role) {
            merged.put_slot(least);
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
            slots: Slots::default(),
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
