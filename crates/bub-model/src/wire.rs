//! The wire formats. They encode requests and decode responses without doing any I/O.
//!
//! Each format has two submodules: `encode` converts a [`ChatRequest`] to an HTTP request, and `decode` converts the
//! frames of the response, its server-sent events, to [`ModelEvent`](crate::ModelEvent)s. One decoder handles streamed
//! and complete responses, so that both produce equal [`Completion`]s.

use bub_settings::Secret;
use bytes::Bytes;
use serde::Deserialize;

use crate::classify::classify;
use crate::{Accumulator, ChatRequest, Completion, ModelError, Quirks};

mod anthropic;
mod body;
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
use raw::RawObject;
pub use stream::StreamDecoder;
use stream::{Answer, FrameDecoder, decode_complete_body};

/// The HTTP API format of a provider.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
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

    /// Encodes a request in this wire format.
    pub fn encode(self, request: &ChatRequest, quirks: &Quirks) -> HttpRequest {
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

    /// Decodes a complete response with status 2xx.
    pub fn decode(self, body: &[u8], quirks: &Quirks) -> Result<Completion, ModelError> {
        let mut answer = Answer::default();
        decode_complete_body(self.frame_decoder(quirks).as_mut(), body, &mut answer)?;
        let mut accumulator = Accumulator::new();
        for event in answer.events {
            accumulator.push(event);
        }
        accumulator.finish()
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

/// Returns the error that a frame or a response describes. `body` is its JSON text.
fn response_error(object: &RawObject<'_>, body: &[u8]) -> ModelError {
    let nested = object.object("error");
    let status = nested.as_ref().and_then(error_status);
    classify(status.or_else(|| error_status(object)), None, body)
}

/// Returns the HTTP status in an error object of a stream.
fn error_status(error: &RawObject<'_>) -> Option<u16> {
    let keys = [
        "code",
        "status",
        "status_code",
        "raw_status_code",
        "http_code",
    ];
    let status = keys
        .iter()
        .find_map(|key| error.u64(key).or_else(|| error.str(key)?.parse().ok()))?;
    u16::try_from(status)
        .ok()
        .filter(|status| (400..600).contains(status))
}
