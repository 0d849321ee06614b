//! The wire formats. They encode requests and decode responses without doing any I/O.
//!
//! Each format has two submodules: `encode` converts a [`ChatRequest`] to an HTTP request, and `decode` converts the
//! frames of the response, its server-sent events, to [`ModelEvent`](crate::ModelEvent)s. One decoder handles streamed
//! and complete responses, so that both produce equal [`Completion`](crate::Completion)s.

use bub_settings::Secret;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{ChatRequest, Quirks};

mod anthropic;
mod body;
mod format_table;
mod gemini;
mod media;
mod message;
mod openai_chat;
mod openai_responses;
mod raw;
mod replay;
mod stream;
mod surrogates;

pub(crate) use openai_chat::{ORGANIZATION_HEADER, PROJECT_HEADER};
use raw::as_count;
use stream::FrameDecoder;
pub use stream::StreamDecoder;

/// The header that every request in the Messages format needs, and its value.
pub(crate) const MESSAGES_VERSION_HEADER: (&str, &str) = ("anthropic-version", "2023-06-01");

/// The HTTP API format of a provider.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum WireFormat {
    /// The chat-completions format, which nearly every server supports.
    #[default]
    #[serde(rename = "openai-chat")]
    ChatCompletions,
    /// The Responses format, with encrypted reasoning, and with items instead of messages.
    #[serde(rename = "openai-responses")]
    Responses,
    /// The Messages format, with content blocks and signed thinking.
    #[serde(rename = "anthropic-messages")]
    Messages,
    /// The `generateContent` format, with contents, parts and thought signatures.
    #[serde(rename = "gemini")]
    GenerateContent,
}

/// An HTTP request without the host and credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpRequest {
    /// Path and query to append to the provider's base URL. Starts with `/`.
    pub path: String,
    /// Headers that the format requires, without credentials.
    pub headers: Vec<(&'static str, String)>,
    /// The JSON body.
    pub body: Bytes,
}

impl WireFormat {
    /// All wire formats.
    pub const ALL: [Self; 4] = [
        Self::ChatCompletions,
        Self::Responses,
        Self::Messages,
        Self::GenerateContent,
    ];

    /// Returns the name used in the config and in logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::ChatCompletions => openai_chat::NAME,
            Self::Responses => openai_responses::NAME,
            Self::Messages => anthropic::NAME,
            Self::GenerateContent => gemini::NAME,
        }
    }

    /// Returns the wire format with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|wire| wire.name() == name)
    }

    /// Returns the name and value of the header that carries the key.
    pub fn key_header(self, key: &Secret) -> (&'static str, Secret) {
        match self {
            Self::ChatCompletions | Self::Responses => (
                "authorization",
                Secret::from(format!("Bearer {}", key.expose())),
            ),
            Self::Messages => (anthropic::KEY_HEADER, key.clone()),
            Self::GenerateContent => (gemini::KEY_HEADER, key.clone()),
        }
    }

    /// Encodes a request in this wire format. A note replaces images and audio that the server would reject.
    pub fn encode(self, request: &ChatRequest, quirks: &Quirks) -> HttpRequest {
        let accepted = media::omit_rejected_media(request, quirks);
        let request = accepted.as_ref().unwrap_or(request);
        match self {
            Self::ChatCompletions => openai_chat::encode(request, quirks),
            Self::Responses => openai_responses::encode(request, quirks),
            Self::Messages => anthropic::encode(request, quirks),
            Self::GenerateContent => gemini::encode(request, quirks),
        }
    }

    /// Creates a decoder for a streamed response.
    pub fn decoder(self, quirks: &Quirks) -> StreamDecoder {
        StreamDecoder::new(self.frame_decoder(quirks))
    }

    fn frame_decoder(self, quirks: &Quirks) -> Box<dyn FrameDecoder> {
        match self {
            Self::ChatCompletions => Box::new(openai_chat::ChatCompletionsDecoder::new(quirks)),
            Self::Responses => Box::new(openai_responses::ResponsesDecoder::new(quirks)),
            Self::Messages => Box::new(anthropic::MessagesDecoder::default()),
            Self::GenerateContent => Box::new(gemini::GenerateContentDecoder::default()),
        }
    }
}
