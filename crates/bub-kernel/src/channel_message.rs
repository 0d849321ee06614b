//! A builder for the envelopes that channels create, with the standard fields and their defaults.

use serde_json::{Map, Value};

use crate::{
    envelope::{Envelope, MessageKind},
    media::MediaItem,
};

/// A builder for the [`Envelope`] of a channel's message.
///
/// ```
/// use bub_kernel::{ChannelMessage, Envelope};
///
/// let message: Envelope =
///     ChannelMessage::new("cli:local", "cli", "hello").chat_id("local").context("sender_id", "human").into();
/// assert_eq!(message.context_str(), "sender_id=human|channel=$cli|chat_id=local");
/// ```
#[derive(Debug)]
#[must_use]
pub struct ChannelMessage {
    session_id: String,
    channel: String,
    content: String,
    chat_id: String,
    is_active: bool,
    kind: MessageKind,
    context: Map<String, Value>,
    media: Vec<MediaItem>,
    output_channel: Option<String>,
}

impl ChannelMessage {
    /// Creates a message from a channel for a session.
    pub fn new(
        session_id: impl Into<String>,
        channel: impl Into<String>,
        content: impl Into<String>,
    ) -> Self {
        Self {
            session_id: session_id.into(),
            channel: channel.into(),
            content: content.into(),
            chat_id: "default".into(),
            is_active: false,
            kind: MessageKind::Normal,
            context: Map::new(),
            media: Vec::new(),
            output_channel: None,
        }
    }

    /// Sets the chat within the channel. The default is `default`.
    pub fn chat_id(mut self, chat_id: impl Into<String>) -> Self {
        self.chat_id = chat_id.into();
        self
    }

    /// Marks the message as addressed to the agent.
    pub fn active(mut self) -> Self {
        self.is_active = true;
        self
    }

    /// Sets the kind. The default is [`MessageKind::Normal`].
    pub fn kind(mut self, kind: impl Into<MessageKind>) -> Self {
        self.kind = kind.into();
        self
    }

    /// Adds a value to the field `context`. The prompt shows these values, except for keys that start with `_`.
    pub fn context(mut self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        self.context.insert(key.into(), value.into());
        self
    }

    /// Attaches a media item.
    pub fn media(mut self, item: MediaItem) -> Self {
        self.media.push(item);
        self
    }

    /// Sets the channel that receives the replies. The default is the message's own channel.
    pub fn output_channel(mut self, channel: impl Into<String>) -> Self {
        self.output_channel = Some(channel.into());
        self
    }
}

impl From<ChannelMessage> for Envelope {
    fn from(message: ChannelMessage) -> Self {
        let mut context = message.context;
        // The prompt shows the context. A `$` before a name in the prompt loads the skill with that name, here the
        // channel's.
        context.insert("channel".into(), format!("${}", message.channel).into());
        context.insert("chat_id".into(), message.chat_id.clone().into());
        let output_channel = message.output_channel.filter(|name| !name.is_empty());
        let output_channel = output_channel.unwrap_or_else(|| message.channel.clone());
        let mut envelope = Self::with_capacity(10)
            .with("session_id", message.session_id)
            .with("channel", message.channel)
            .with("content", message.content)
            .with("chat_id", message.chat_id)
            .with("is_active", message.is_active)
            .with("kind", message.kind.name())
            .with("context", context)
            .with("output_channel", output_channel);
        if !message.media.is_empty() {
            envelope.set_media(message.media);
        }
        envelope
    }
}
