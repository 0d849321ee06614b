//! Decodes responses in all wire formats to events.

use super::{WireFormat, surrogates::replace_lone_surrogates};
use crate::classify::classify;
use crate::error::{ModelError, ModelErrorKind, looks_like_html};
use crate::sse::{MAX_EVENT_BYTES, SseDecoder, SseError, SseEvent};
use crate::{ModelEvent, RecoveryAction};

/// Decodes the frames of a response in one wire format.
///
/// `decode_frame` and `decode_body` only collect usage, state and finish reason; `finish` emits these last events. So the
/// order of events does not depend on the server, and an error after a finish reason is not missed.
pub(super) trait FrameDecoder: Send {
    /// Decodes an event of the stream.
    fn decode_frame(
        &mut self,
        event: &SseEvent<'_>,
        out: &mut Vec<ModelEvent>,
    ) -> Result<DecodeStatus, ModelError>;

    /// Handles the end marker `[DONE]`. Formats with another end marker ignore it.
    fn handle_end_marker(&mut self) {}

    /// Decodes a complete response from a JSON text.
    fn decode_body(&mut self, body: &str, out: &mut Vec<ModelEvent>) -> Result<(), ModelError>;

    /// Returns whether a finish reason was received.
    fn has_finish_reason(&self) -> bool;

    /// Ends the answer: emits the last events, or fails if the answer is incomplete.
    fn finish(&mut self, out: &mut Vec<ModelEvent>) -> Result<(), ModelError>;
}

/// Whether a response may have more frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DecodeStatus {
    More,
    Done,
}

/// Decodes a response that arrives in chunks.
///
/// Call [`push`](Self::push) until [`is_done`](Self::is_done) or the end of the connection, then call
/// [`finish`](Self::finish). The chunk boundaries do not matter. After an error, the decoder emits nothing.
///
/// Some servers respond to a streaming request with a complete JSON body. The decoder recognizes it by its first byte
/// and decodes it too.
pub struct StreamDecoder {
    frames: Box<dyn FrameDecoder>,
    mode: DecodeMode,
    received: usize,
    /// Whether an event was received.
    has_events: bool,
    /// The beginning of the response, in case it is an error in plain text.
    head: Vec<u8>,
}

/// Maximum bytes kept of a response in plain text.
const MAX_ERROR_TEXT_BYTES: usize = 500;

/// Maximum size of a response. It is many times larger than any real answer and stops streams that never end.
const MAX_STREAM_BYTES: usize = 256 * 1024 * 1024;

enum DecodeMode {
    /// Only whitespace was received.
    Start,
    Events(SseDecoder),
    Body(Vec<u8>),
    Done,
}

impl StreamDecoder {
    pub(super) fn new(frames: Box<dyn FrameDecoder>) -> Self {
        Self {
            frames,
            mode: DecodeMode::Start,
            received: 0,
            has_events: false,
            head: Vec::new(),
        }
    }

    /// Decodes a chunk and appends its events to `out`. On an error, events before the error are appended too.
    pub fn push(&mut self, chunk: &[u8], out: &mut Vec<ModelEvent>) -> Result<(), ModelError> {
        self.received = self.received.saturating_add(chunk.len());
        let result = if self.received > MAX_STREAM_BYTES {
            Err(ModelError::too_large(format!(
                "answer too large: it exceeds {MAX_STREAM_BYTES} bytes; ask for a shorter answer"
            )))
        } else {
            self.decode_chunk(chunk, out)
        };
        if result.is_err() {
            self.mode = DecodeMode::Done;
        }
        result
    }

    /// Handles the end of the connection. Fails if the answer is incomplete.
    pub fn finish(&mut self, out: &mut Vec<ModelEvent>) -> Result<(), ModelError> {
        match std::mem::replace(&mut self.mode, DecodeMode::Done) {
            DecodeMode::Done => Ok(()),
            DecodeMode::Start => Err(empty_error()),
            DecodeMode::Body(body) => {
                self.frames
                    .decode_body(body_text(&replace_lone_surrogates(&body))?, out)?;
                self.frames.finish(out)
            }
            DecodeMode::Events(mut sse) => {
                let frames = &mut self.frames;
                let mut status = DecodeStatus::More;
                let last = sse.finish(|event| {
                    self.has_events = true;
                    handle_event(frames.as_mut(), &event, &mut status, out)
                });
                match last {
                    Ok(()) if status == DecodeStatus::Done => Ok(()),
                    // The connection ended inside the last frame, so its JSON is truncated and not malformed.
                    Err(error) if error.kind == ModelErrorKind::Malformed => {
                        Err(ModelError::truncated(
                            "incomplete answer: the stream ended in the middle of an event",
                        ))
                    }
                    Err(error) => Err(error),
                    Ok(()) => self.frames.finish(out).map_err(|error| {
                        if self.has_events {
                            error
                        } else {
                            plain_text_error(error, &self.head)
                        }
                    }),
                }
            }
        }
    }

    /// Returns whether an end marker or an error was received, so that no more data is needed.
    pub fn is_done(&self) -> bool {
        matches!(self.mode, DecodeMode::Done)
    }

    /// Returns whether a finish reason was received. Only usage or an end marker may follow, so the caller need not wait
    /// long for more data.
    pub fn has_finish_reason(&self) -> bool {
        self.is_done() || self.frames.has_finish_reason()
    }

    fn decode_chunk(&mut self, chunk: &[u8], out: &mut Vec<ModelEvent>) -> Result<(), ModelError> {
        match &mut self.mode {
            DecodeMode::Done => Ok(()),
            DecodeMode::Start => {
                let Some(chunk) = skip_whitespace(chunk) else {
                    return Ok(());
                };
                self.mode = match chunk.first() {
                    Some(b'{' | b'[' | b'"' | b'<') => DecodeMode::Body(Vec::new()),
                    _ => DecodeMode::Events(SseDecoder::new()),
                };
                self.decode_chunk(chunk, out)
            }
            DecodeMode::Body(body) => {
                if body.len() + chunk.len() > MAX_EVENT_BYTES {
                    return Err(ModelError::too_large(format!(
                        "answer too large: it exceeds {MAX_EVENT_BYTES} bytes; ask for a shorter answer"
                    )));
                }
                body.extend_from_slice(chunk);
                Ok(())
            }
            DecodeMode::Events(sse) => {
                let frames = &mut self.frames;
                let mut status = DecodeStatus::More;
                let remaining = MAX_ERROR_TEXT_BYTES
                    .saturating_sub(self.head.len())
                    .min(chunk.len());
                self.head
                    .extend_from_slice(chunk.get(..remaining).unwrap_or_default());
                sse.push(chunk, |event| {
                    self.has_events = true;
                    handle_event(frames.as_mut(), &event, &mut status, out)
                })?;
                if status == DecodeStatus::Done {
                    self.mode = DecodeMode::Done;
                }
                Ok(())
            }
        }
    }
}

/// Decodes a frame, unless an end marker preceded it.
fn handle_event(
    frames: &mut dyn FrameDecoder,
    event: &SseEvent<'_>,
    status: &mut DecodeStatus,
    out: &mut Vec<ModelEvent>,
) -> Result<(), ModelError> {
    if *status == DecodeStatus::Done {
        return Ok(());
    }
    *status = if event.data.trim_ascii() == b"[DONE]" {
        frames.handle_end_marker();
        DecodeStatus::Done
    } else {
        let data = replace_lone_surrogates(event.data);
        let event = SseEvent {
            data: &data,
            ..*event
        };
        frames
            .decode_frame(&event, out)
            .map_err(|error| plain_text_event_error(error, &event))?
    };
    if *status == DecodeStatus::Done {
        frames.finish(out)
    } else {
        Ok(())
    }
}

/// Replaces the error for an invalid frame if the frame is an `error` event in plain text.
fn plain_text_event_error(error: ModelError, event: &SseEvent<'_>) -> ModelError {
    let is_error_event = event.event == b"error" && error.kind == ModelErrorKind::Malformed;
    if is_error_event {
        classify(None, None, event.data, WireFormat::ChatCompletions)
    } else {
        error
    }
}

/// Returns the error for a stream without events. It contains the plain text that was received instead.
fn plain_text_error(error: ModelError, head: &[u8]) -> ModelError {
    let text = String::from_utf8_lossy(head);
    let line = text.lines().next().unwrap_or_default();
    let field = line.split(':').next().unwrap_or_default();
    let is_sse_field = ["data", "event", "id", "retry"]
        .iter()
        .any(|name| name.starts_with(field));
    if is_sse_field || line.contains(char::REPLACEMENT_CHARACTER) {
        return error;
    }
    ModelError::truncated(format!(
        "received plain text instead of an answer: {}",
        crate::short_message(line)
    ))
}

/// Returns a response body as text. Fails if the body is empty, a web page or invalid UTF-8.
pub(super) fn body_text(body: &[u8]) -> Result<&str, ModelError> {
    let body = body
        .strip_prefix(b"\xef\xbb\xbf")
        .unwrap_or(body)
        .trim_ascii();
    let text = std::str::from_utf8(body)
        .map_err(|_| unexpected_response_error("it is not valid UTF-8"))?;
    if text.is_empty() {
        return Err(empty_error());
    }
    if looks_like_html(text) {
        return Err(ModelError::malformed(format!(
            "received a web page instead of an answer: {}; check the provider's `base_url`",
            crate::short_message(text)
        )));
    }
    Ok(text)
}

/// Returns the error for a response that is not in the wire format of the provider.
pub(super) fn unexpected_response_error(problem: &str) -> ModelError {
    ModelError::malformed(format!(
        "unexpected response: {problem}; check the provider's `base_url` and `wire`"
    ))
}

fn empty_error() -> ModelError {
    ModelError::truncated("incomplete answer: the server sent an empty response")
}

/// Skips whitespace and the byte order mark at the beginning of a chunk.
fn skip_whitespace(chunk: &[u8]) -> Option<&[u8]> {
    let at = chunk
        .iter()
        .position(|byte| !matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | 0xef | 0xbb | 0xbf))?;
    chunk.get(at..)
}

impl From<SseError> for ModelError {
    fn from(error: SseError) -> Self {
        Self::new(
            ModelErrorKind::TooLarge,
            RecoveryAction::NextModel,
            error.to_string(),
        )
    }
}
