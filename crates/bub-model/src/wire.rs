//! The wire formats: requests out, events in, no input or output of their own.
//!
//! A format is a pair of modules below this one: how a [`ChatRequest`] becomes an HTTP request, and
//! how frames of its answer become [`ModelEvent`]s. Whole answers take the same way as streamed ones,
//! so both give the same [`Completion`].

use bub_settings::Secret;
use bytes::Bytes;

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
use stream::FrameDecoder;
pub use stream::StreamDecoder;

/// A wire format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WireFormat {
    /// Chat completions, the format nearly every server speaks.
    ChatCompletions,
    /// Responses: items instead of messages, encrypted reasoning.
    Responses,
    /// Messages: content blocks, signed thinking.
    Messages,
    /// `generateContent`: contents and parts, thought signatures.
    GenerateContent,
}

/// An HTTP request without host and credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpRequest {
    /// Path (and query) to append to the provider's base URL; begins with `/`.
    pub path: String,
    /// Headers the format needs, credentials excepted.
    pub headers: Vec<(&'static str, String)>,
    /// The JSON body.
    pub body: Bytes,
}

impl WireFormat {
    /// Every wire format.
    pub const ALL: [Self; 4] = [
        Self::ChatCompletions,
        Self::Responses,
        Self::Messages,
        Self::GenerateContent,
    ];

    /// The name used in config and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::ChatCompletions => openai_chat::NAME,
            Self::Responses => openai_responses::NAME,
            Self::Messages => anthropic::NAME,
            Self::GenerateContent => gemini::NAME,
        }
    }

    /// The format of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|wire| wire.name() == name)
    }

    /// The header that carries the key, and its value.
    pub fn credentials(self, key: &Secret) -> (&'static str, Secret) {
        match self {
            Self::ChatCompletions | Self::Responses => (
                "authorization",
                Secret::from(format!("Bearer {}", key.expose())),
            ),
            Self::Messages => (anthropic::KEY_HEADER, key.clone()),
            Self::GenerateContent => (gemini::KEY_HEADER, key.clone()),
        }
    }

    /// The HTTP request for a call.
    pub fn encode(self, request: &ChatRequest, quirks: &Quirks) -> HttpRequest {
        match self {
            Self::ChatCompletions => openai_chat::encode(request, quirks),
            Self::Responses => openai_responses::encode(request, quirks),
            Self::Messages => anthropic::encode(request, quirks),
            Self::GenerateContent => gemini::encode(request, quirks),
        }
    }

    /// A decoder for a streamed answer.
    pub fn decoder(self, quirks: &Quirks) -> StreamDecoder {
        StreamDecoder::new(self.frames(quirks))
    }

    /// Decodes a whole answer (status 2xx).
    pub fn decode(self, body: &[u8], quirks: &Quirks) -> Result<Completion, ModelError> {
        let mut frames = self.frames(quirks);
        let mut events = Vec::new();
        frames.body(
            stream::text(&surrogates::replace_lone_surrogates(body))?,
            &mut events,
        )?;
        frames.end(&mut events)?;
        let mut accumulator = Accumulator::new();
        for event in events {
            accumulator.push(event);
        }
        accumulator.finish()
    }

    fn frames(self, quirks: &Quirks) -> Box<dyn FrameDecoder> {
        match self {
            Self::ChatCompletions => Box::new(openai_chat::ChatCompletionsDecoder::new(quirks)),
            Self::Responses => Box::new(openai_responses::ResponsesDecoder::new(quirks)),
            Self::Messages => Box::new(anthropic::MessagesDecoder::new()),
            Self::GenerateContent => Box::new(gemini::GenerateContentDecoder::new()),
        }
    }
}

/// The HTTP status an error object inside a stream claims.
fn error_status(error: &RawObject<'_>) -> Option<u16> {
    let status = [
        "code",
        "status",
        "status_code",
        "raw_status_code",
        "http_code",
    ];
    let status = status
        .iter()
        .find_map(|key| error.u64(key).or_else(|| error.str(key)?.parse().ok()));
    status
        .and_then(|status| u16::try_from(status).ok())
        .filter(|status| (400..600).contains(status))
}
