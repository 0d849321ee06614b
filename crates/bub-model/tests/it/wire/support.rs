//! Helpers for decoding.

use bub_model::{Accumulator, Completion, ModelError, ModelEvent, Quirks, WireFormat};
use serde_json::{Value, json};

/// Decodes a stream that arrives in these chunks.
pub(crate) fn stream<'a>(
    wire: WireFormat,
    chunks: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<ModelEvent>, Option<ModelError>) {
    stream_with(wire, &Quirks::default(), chunks)
}

pub(crate) fn stream_with<'a>(
    wire: WireFormat,
    quirks: &Quirks,
    chunks: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<ModelEvent>, Option<ModelError>) {
    let mut decoder = wire.decoder(quirks);
    let mut events = Vec::new();
    for chunk in chunks {
        if let Err(error) = decoder.push(chunk, &mut events) {
            return (events, Some(error));
        }
        if decoder.is_done() {
            break;
        }
    }
    let error = decoder.finish(&mut events).err();
    (events, error)
}

/// Decodes a stream and returns the complete answer.
pub(crate) fn complete(wire: WireFormat, bytes: &[u8]) -> Result<Completion, ModelError> {
    let (events, error) = stream(wire, [bytes]);
    match error {
        Some(error) => Err(error),
        None => fold(events),
    }
}

/// Decodes a complete response, as a client does.
pub(crate) trait DecodeBody {
    fn decode(self, body: &[u8], quirks: &Quirks) -> Result<Completion, ModelError>;
}

impl DecodeBody for WireFormat {
    fn decode(self, body: &[u8], quirks: &Quirks) -> Result<Completion, ModelError> {
        let (events, error) = stream_with(self, quirks, [body]);
        error.map_or_else(|| fold(events), Err)
    }
}

pub(crate) fn fold(events: Vec<ModelEvent>) -> Result<Completion, ModelError> {
    let mut accumulator = Accumulator::new();
    for event in events {
        accumulator.push(event);
    }
    accumulator.finish()
}

/// Encodes JSON frames as server-sent events.
pub(crate) fn sse(frames: &[Value]) -> Vec<u8> {
    frames
        .iter()
        .flat_map(|frame| format!("data: {frame}\n\n").into_bytes())
        .collect()
}

/// Returns an answer as an assistant message for the next call.
pub(crate) fn message(answer: &Completion) -> Value {
    let mut message = json!({"role": "assistant", "content": answer.text});
    if !answer.tool_calls.is_empty() {
        message["tool_calls"] = json!(answer.tool_calls);
    }
    if let Some(state) = &answer.provider_state {
        message["provider_state"] = state.clone();
    }
    message
}
