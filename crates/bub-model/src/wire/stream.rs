//! From bytes of an answer to events, for any wire format.

use super::{WireFormat, surrogates::replace_lone_surrogates};
use crate::classify::classify;
use crate::error::{ModelError, ModelErrorKind, looks_like_html};
use crate::sse::{MAX_EVENT_BYTES, SseDecoder, SseError, SseEvent};
use crate::{ModelEvent, RecoveryAction};

/// Decodes the frames of one answer in one wire format.
///
/// `frame` and `body` only collect what belongs at the end (usage, state, finish); `end` emits it.
/// That way the last events come in the same order from every server, and an error that follows a
/// finish reason is not overlooked.
pub(super) trait FrameDecoder: Send {
    /// One event of the stream.
    fn frame(
        &mut self,
        event: &SseEvent<'_>,
        out: &mut Vec<ModelEvent>,
    ) -> Result<DecodeStatus, ModelError>;

    /// `[DONE]` came. Most formats have a better end mark and need not know.
    fn end_mark(&mut self) {}

    /// A whole answer in one JSON text.
    fn body(&mut self, body: &str, out: &mut Vec<ModelEvent>) -> Result<(), ModelError>;

    /// Whether the answer has said why it stops.
    fn has_finish(&self) -> bool;

    /// The answer is over: emits what was held back, or fails if something is missing.
    fn end(&mut self, out: &mut Vec<ModelEvent>) -> Result<(), ModelError>;
}

/// Whether more frames are expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DecodeStatus {
    More,
    Done,
}

/// Decodes an answer that arrives in chunks.
///
/// Feed it with [`push`](Self::push) until [`is_done`](Self::is_done) or the connection ends, then
/// call [`finish`](Self::finish). How the bytes were cut into chunks makes no difference. After an
/// error it stays silent.
///
/// Servers that were asked for a stream sometimes answer with a whole JSON body; that is recognised
/// by its first byte and decoded all the same.
pub struct StreamDecoder {
    frames: Box<dyn FrameDecoder>,
    mode: DecodeMode,
    received: usize,
    /// Whether an event was seen.
    any: bool,
    /// The beginning of what came: an answer in plain words, perhaps.
    words: Vec<u8>,
}

/// So much of an answer in plain words is kept.
const MAX_ERROR_TEXT_BYTES: usize = 500;

/// Bytes of one answer beyond which a server is out of its mind: many times the longest
/// answer any model gives.
const MAX_STREAM_BYTES: usize = 256 * 1024 * 1024;

enum DecodeMode {
    /// Nothing but white space so far.
    Start,
    Events(SseDecoder),
    Whole(Vec<u8>),
    Over,
}

impl StreamDecoder {
    pub(super) fn new(frames: Box<dyn FrameDecoder>) -> Self {
        Self {
            frames,
            mode: DecodeMode::Start,
            received: 0,
            any: false,
            words: Vec::new(),
        }
    }

    /// Takes a chunk in and appends what it means to `out`, also when it ends in an error.
    pub fn push(&mut self, chunk: &[u8], out: &mut Vec<ModelEvent>) -> Result<(), ModelError> {
        self.received = self.received.saturating_add(chunk.len());
        let result = if self.received > MAX_STREAM_BYTES {
            Err(ModelError::too_large("the stream does not end"))
        } else {
            self.feed_chunk(chunk, out)
        };
        if result.is_err() {
            self.mode = DecodeMode::Over;
        }
        result
    }

    /// The connection has ended.
    pub fn finish(&mut self, out: &mut Vec<ModelEvent>) -> Result<(), ModelError> {
        match std::mem::replace(&mut self.mode, DecodeMode::Over) {
            DecodeMode::Over => Ok(()),
            DecodeMode::Start => Err(empty()),
            DecodeMode::Whole(body) => {
                self.frames
                    .body(text(&replace_lone_surrogates(&body))?, out)?;
                self.frames.end(out)
            }
            DecodeMode::Events(mut sse) => {
                let frames = &mut self.frames;
                let mut flow = DecodeStatus::More;
                let last = sse.finish(|event| {
                    self.any = true;
                    step(frames.as_mut(), &event, &mut flow, out)
                });
                match last {
                    Ok(()) if flow == DecodeStatus::Done => Ok(()),
                    // The last frame was cut: that is the end of the connection, not bad JSON.
                    Err(error) if error.kind == ModelErrorKind::Malformed => Err(
                        ModelError::truncated("the stream was cut in the middle of an event"),
                    ),
                    Err(error) => Err(error),
                    Ok(()) => self.frames.end(out).map_err(|error| {
                        if self.any {
                            error
                        } else {
                            in_words(error, &self.words)
                        }
                    }),
                }
            }
        }
    }

    /// Whether the format's end mark, or an error, was seen: no need to wait for more bytes.
    pub fn is_done(&self) -> bool {
        matches!(self.mode, DecodeMode::Over)
    }

    /// Whether the answer has given its finish reason; only usage or an end mark may follow, and a
    /// server that keeps the connection open need not be waited for long.
    pub fn has_finish(&self) -> bool {
        self.is_done() || self.frames.has_finish()
    }

    fn feed_chunk(&mut self, chunk: &[u8], out: &mut Vec<ModelEvent>) -> Result<(), ModelError> {
        match &mut self.mode {
            DecodeMode::Over => Ok(()),
            DecodeMode::Start => {
                let Some(chunk) = skip_space(chunk) else {
                    return Ok(());
                };
                self.mode = match chunk.first() {
                    Some(b'{' | b'[' | b'"' | b'<') => DecodeMode::Whole(Vec::new()),
                    _ => DecodeMode::Events(SseDecoder::new()),
                };
                self.feed_chunk(chunk, out)
            }
            DecodeMode::Whole(body) => {
                if body.len() + chunk.len() > MAX_EVENT_BYTES {
                    return Err(ModelError::too_large(
                        "the answer is too long for one JSON body",
                    ));
                }
                body.extend_from_slice(chunk);
                Ok(())
            }
            DecodeMode::Events(sse) => {
                let frames = &mut self.frames;
                let mut flow = DecodeStatus::More;
                let room = MAX_ERROR_TEXT_BYTES
                    .saturating_sub(self.words.len())
                    .min(chunk.len());
                self.words
                    .extend_from_slice(chunk.get(..room).unwrap_or_default());
                sse.push(chunk, |event| {
                    self.any = true;
                    step(frames.as_mut(), &event, &mut flow, out)
                })?;
                if flow == DecodeStatus::Done {
                    self.mode = DecodeMode::Over;
                }
                Ok(())
            }
        }
    }
}

/// Decodes one frame, unless the end mark came before it.
fn step(
    frames: &mut dyn FrameDecoder,
    event: &SseEvent<'_>,
    flow: &mut DecodeStatus,
    out: &mut Vec<ModelEvent>,
) -> Result<(), ModelError> {
    if *flow == DecodeStatus::Done {
        return Ok(());
    }
    *flow = if event.data.trim_ascii() == b"[DONE]" {
        frames.end_mark();
        DecodeStatus::Done
    } else {
        let data = replace_lone_surrogates(event.data);
        let event = SseEvent {
            data: &data,
            ..*event
        };
        frames
            .frame(&event, out)
            .map_err(|error| explained(error, &event))?
    };
    if *flow == DecodeStatus::Done {
        frames.end(out)
    } else {
        Ok(())
    }
}

/// An error event need not be JSON to be the error it names.
fn explained(error: ModelError, event: &SseEvent<'_>) -> ModelError {
    let spoken = event.event == b"error" && error.kind == ModelErrorKind::Malformed;
    if spoken {
        classify(None, None, event.data, WireFormat::ChatCompletions)
    } else {
        error
    }
}

/// The error of a stream without events, with the words that came instead of them.
fn in_words(error: ModelError, words: &[u8]) -> ModelError {
    let text = String::from_utf8_lossy(words);
    let line = text.lines().next().unwrap_or_default();
    let field = line.split(':').next().unwrap_or_default();
    let cut = ["data", "event", "id", "retry"]
        .iter()
        .any(|name| name.starts_with(field));
    if cut || line.contains(char::REPLACEMENT_CHARACTER) {
        return error;
    }
    ModelError::truncated(format!(
        "no answer, but these words: {}",
        crate::short_message(line)
    ))
}

/// A body as text, with the errors an answer that is none deserves.
pub(super) fn text(body: &[u8]) -> Result<&str, ModelError> {
    let body = body
        .strip_prefix(b"\xef\xbb\xbf")
        .unwrap_or(body)
        .trim_ascii();
    let text = std::str::from_utf8(body)
        .map_err(|_| ModelError::malformed("the answer is not valid UTF-8"))?;
    if text.is_empty() {
        return Err(empty());
    }
    if looks_like_html(text) {
        let message = format!(
            "a web page instead of an answer: {}",
            crate::short_message(text)
        );
        return Err(ModelError::malformed(message));
    }
    Ok(text)
}

fn empty() -> ModelError {
    ModelError::truncated("the answer is empty")
}

/// The rest of a chunk from its first byte that is neither white space nor part of a byte order mark.
fn skip_space(chunk: &[u8]) -> Option<&[u8]> {
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
