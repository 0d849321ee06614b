//! Decodes responses in all wire formats to events.

use std::borrow::Cow;

use serde_json::Value;

use super::surrogates::replace_lone_surrogates;
use crate::classify::classify;
use crate::error::{ModelError, ModelErrorKind, Result, looks_like_html};
use crate::sse::{MAX_EVENT_BYTES, SseDecoder, SseError, SseEvent};
use crate::{FinishReason, ModelEvent, ToolCallDelta, Usage};

/// Decodes a response in one wire format: its frames (server-sent events), or its complete body.
pub(super) trait FrameDecoder: Send {
    /// Decodes a frame. Sets [`Answer::is_complete`] if it is the last frame of the response.
    fn decode_frame(&mut self, event: &SseEvent<'_>, answer: &mut Answer) -> Result<()>;

    /// Handles the end marker `[DONE]`. Formats with another end marker ignore it.
    fn handle_end_marker(&mut self, _answer: &mut Answer) {}

    /// Decodes a complete response from a JSON text.
    fn decode_body(&mut self, body: &str, answer: &mut Answer) -> Result<()>;

    /// Completes the parts of the answer that are still open. Returns the data that the provider expects back.
    fn close(&mut self, answer: &mut Answer) -> Option<Value>;

    /// Returns the error for an answer without a finish reason.
    fn incomplete_error(&self) -> ModelError {
        ModelError::truncated("incomplete answer: the stream ended without a finish reason")
    }
}

/// The answer that is being decoded.
///
/// Usage, provider state and finish reason are the last events of an answer. `decode_frame` and `decode_body` store
/// them, and [`finish_answer`] emits them. So the order of events does not depend on the server, and an error after a finish
/// reason is not missed.
#[derive(Default)]
pub(super) struct Answer {
    /// Events to emit.
    pub(super) events: Vec<ModelEvent>,
    pub(super) usage: Option<Usage>,
    pub(super) finish: Option<FinishReason>,
    pub(super) is_refusal: bool,
    /// Whether the last frame was decoded. Later frames are ignored.
    pub(super) is_complete: bool,
    /// Number of tool calls that [`start_call`](Self::start_call) counted.
    calls: usize,
}

impl Answer {
    /// Emits a piece of text, unless it is empty.
    pub(super) fn push_text(&mut self, text: Cow<'_, str>) {
        if !text.is_empty() {
            self.events.push(ModelEvent::Text(text.into_owned()));
        }
    }

    /// Emits a piece of reasoning, unless it is missing or empty.
    pub(super) fn push_reasoning(&mut self, text: Option<Cow<'_, str>>) {
        let text = text.filter(|text| !text.is_empty());
        self.events
            .extend(text.map(|text| ModelEvent::Reasoning(text.into_owned())));
    }

    /// Emits the start of a tool call and returns its position among the calls of the answer.
    pub(super) fn start_call(
        &mut self,
        id: Option<Cow<'_, str>>,
        name: Option<Cow<'_, str>>,
        arguments: String,
    ) -> usize {
        let index = self.calls;
        self.calls += 1;
        self.events.push(ModelEvent::ToolCall(ToolCallDelta {
            index,
            id: id.map(Cow::into_owned),
            name: name.map(Cow::into_owned),
            arguments,
        }));
        index
    }

    /// Emits a part of the arguments of a tool call.
    pub(super) fn push_arguments(&mut self, index: usize, arguments: String) {
        self.events.push(ModelEvent::ToolCall(ToolCallDelta {
            index,
            arguments,
            ..ToolCallDelta::default()
        }));
    }

    /// Discards what was received and emits that the answer starts again.
    pub(super) fn restart(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        events.push(ModelEvent::Restart);
        *self = Self {
            events,
            ..Self::default()
        };
    }
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
    answer: Answer,
    mode: DecodeMode,
    received: usize,
    /// Whether a server-sent event was received.
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
            answer: Answer::default(),
            mode: DecodeMode::Start,
            received: 0,
            has_events: false,
            head: Vec::new(),
        }
    }

    /// Decodes a chunk and appends its events to `out`. On an error, events before the error are appended too.
    pub fn push(&mut self, chunk: &[u8], out: &mut Vec<ModelEvent>) -> Result<()> {
        self.received = self.received.saturating_add(chunk.len());
        let result = if self.received > MAX_STREAM_BYTES {
            Err(answer_too_large_error(MAX_STREAM_BYTES))
        } else {
            self.decode_chunk(chunk)
        };
        out.append(&mut self.answer.events);
        if result.is_err() {
            self.mode = DecodeMode::Done;
        }
        result
    }

    /// Handles the end of the connection. Fails if the answer is incomplete.
    pub fn finish(&mut self, out: &mut Vec<ModelEvent>) -> Result<()> {
        let result = match std::mem::replace(&mut self.mode, DecodeMode::Done) {
            DecodeMode::Done => Ok(()),
            DecodeMode::Start => Err(empty_error()),
            DecodeMode::Body(body) => {
                decode_complete_body(self.frames.as_mut(), &body, &mut self.answer)
            }
            DecodeMode::Events(sse) => self.finish_events(sse),
        };
        out.append(&mut self.answer.events);
        result
    }

    fn finish_events(&mut self, mut sse: SseDecoder) -> Result<()> {
        let (frames, answer) = (self.frames.as_mut(), &mut self.answer);
        let last = sse.finish(|event| {
            self.has_events = true;
            handle_event(frames, &event, answer)
        });
        match last {
            Ok(()) if answer.is_complete => Ok(()),
            // The connection ended inside the last frame, so its JSON is truncated and not malformed.
            Err(error) if error.kind == ModelErrorKind::Malformed => Err(ModelError::truncated(
                "incomplete answer: the stream ended in the middle of an event",
            )),
            Err(error) => Err(error),
            Ok(()) if self.has_events => finish_answer(frames, answer),
            Ok(()) => {
                finish_answer(frames, answer).map_err(|error| plain_text_error(error, &self.head))
            }
        }
    }

    /// Returns whether an end marker or an error was received, so that no more data is needed.
    pub fn is_done(&self) -> bool {
        matches!(self.mode, DecodeMode::Done)
    }

    /// Returns whether a finish reason was received. In most wire formats, only usage or an end marker may follow, so
    /// the caller need not wait long for more data.
    pub fn has_finish_reason(&self) -> bool {
        self.is_done() || self.answer.finish.is_some()
    }

    fn decode_chunk(&mut self, chunk: &[u8]) -> Result<()> {
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
                self.decode_chunk(chunk)
            }
            DecodeMode::Body(body) => {
                if body.len() + chunk.len() > MAX_EVENT_BYTES {
                    return Err(answer_too_large_error(MAX_EVENT_BYTES));
                }
                body.extend_from_slice(chunk);
                Ok(())
            }
            DecodeMode::Events(sse) => {
                let (frames, answer) = (self.frames.as_mut(), &mut self.answer);
                let remaining = MAX_ERROR_TEXT_BYTES
                    .saturating_sub(self.head.len())
                    .min(chunk.len());
                self.head
                    .extend_from_slice(chunk.get(..remaining).unwrap_or_default());
                sse.push(chunk, |event| {
                    self.has_events = true;
                    handle_event(frames, &event, answer)
                })?;
                if answer.is_complete {
                    self.mode = DecodeMode::Done;
                }
                Ok(())
            }
        }
    }
}

/// Decodes a frame, unless the answer has ended already. If the frame ends the answer, finishes the answer.
fn handle_event(
    frames: &mut dyn FrameDecoder,
    event: &SseEvent<'_>,
    answer: &mut Answer,
) -> Result<()> {
    if answer.is_complete {
        return Ok(());
    }
    if event.data.trim_ascii() == b"[DONE]" {
        frames.handle_end_marker(answer);
        answer.is_complete = true;
    } else {
        let data = &*replace_lone_surrogates(event.data);
        let decoded = frames.decode_frame(&SseEvent { data, ..*event }, answer);
        decoded.map_err(|error| match error.kind {
            // Some servers send the text of an error instead of JSON.
            ModelErrorKind::Malformed if event.event == b"error" => classify(None, None, data),
            _ => error,
        })?;
    }
    if answer.is_complete {
        return finish_answer(frames, answer);
    }
    Ok(())
}

/// Returns the error for a stream without events. It contains the plain text that was received instead. If that text is
/// the beginning of an event, returns `error`.
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
        "the server sent plain text instead of an answer stream: {}",
        crate::short_message(line)
    ))
}

/// Decodes a complete response.
pub(super) fn decode_complete_body(
    frames: &mut dyn FrameDecoder,
    body: &[u8],
    answer: &mut Answer,
) -> Result<()> {
    frames.decode_body(body_text(&replace_lone_surrogates(body))?, answer)?;
    finish_answer(frames, answer)
}

/// Emits the last events of an answer. Fails if the answer has no finish reason.
fn finish_answer(frames: &mut dyn FrameDecoder, answer: &mut Answer) -> Result<()> {
    let finish = match answer.finish.take() {
        Some(FinishReason::Stop) if answer.is_refusal => FinishReason::Refusal,
        Some(finish) => finish,
        None => return Err(frames.incomplete_error()),
    };
    let state = frames.close(answer);
    let usage = answer.usage.take().map(ModelEvent::Usage);
    let state = state.map(ModelEvent::ProviderState);
    let last = usage.into_iter().chain(state);
    answer
        .events
        .extend(last.chain([ModelEvent::Finish(finish)]));
    Ok(())
}

/// Returns a response body as text. Fails if the body is empty, a web page or invalid UTF-8.
fn body_text(body: &[u8]) -> Result<&str> {
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

fn answer_too_large_error(limit: usize) -> ModelError {
    ModelError::too_large(format!(
        "answer too large: it exceeds {limit} bytes; ask for a shorter answer"
    ))
}

fn empty_error() -> ModelError {
    ModelError::truncated("incomplete answer: the server sent an empty response")
}

/// Skips whitespace and the byte order mark at the beginning of a chunk. Returns `None` if nothing follows.
fn skip_whitespace(chunk: &[u8]) -> Option<&[u8]> {
    let at = chunk
        .iter()
        .position(|byte| !matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | 0xef | 0xbb | 0xbf))?;
    chunk.get(at..)
}

impl From<SseError> for ModelError {
    fn from(error: SseError) -> Self {
        Self::too_large(error.to_string())
    }
}
