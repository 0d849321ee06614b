//! The provider `replay`: answers model calls from a recorded tape.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
    time::Duration,
};

use bub::{
    Error, ErrorKind, ModelStream, Result, StreamEvent,
    futures::{StreamExt as _, stream},
};
use parking_lot::Mutex;
use serde_json::Value;

use crate::{
    difference::first_difference,
    recording::{RecordedCall, Recording, RequestReader, normalize},
    settings::{Divergence, ReplaySettings},
};

/// Length in characters of the pieces in which a text is streamed.
const PIECE_CHARS: usize = 12;

/// A tape that answers model calls, step by step.
///
/// A call gets the answer that was recorded for the same request. The search starts after the previous answer, so that
/// equal requests get their answers in order. If no recorded request is equal, the call gets the next answer whose
/// request ends with the same message, or else the next answer; this is a divergence.
#[derive(Debug)]
pub struct RecordedModel {
    recording: Arc<Recording>,
    /// The hashes of all requests: the complete request, and its last message.
    requests: Vec<(u64, u64)>,
    next: Mutex<usize>,
}

impl RecordedModel {
    /// Creates a model that answers from a recording.
    pub async fn new(recording: Arc<Recording>) -> Result<Self> {
        let mut views = RequestReader::new()?;
        let mut requests = Vec::with_capacity(recording.calls.len());
        for call in &recording.calls {
            requests.push(hashes(&views.request(&recording, call).await?));
        }
        Ok(Self {
            recording,
            requests,
            next: Mutex::default(),
        })
    }

    /// Returns the answer to a request. The stream fails if the tape has no answer, or if the request differs and
    /// `divergence` is strict.
    pub async fn answer(&self, messages: &[Value], settings: ReplaySettings) -> ModelStream {
        match self.find_answer(messages, settings.divergence).await {
            Ok(call) => stream_answer(&call, settings.pace),
            Err(error) => ModelStream::new(stream::iter([Err(error)])),
        }
    }

    async fn find_answer(
        &self,
        messages: &[Value],
        divergence: Divergence,
    ) -> Result<RecordedCall> {
        let messages: Vec<Value> = messages.iter().map(normalize).collect();
        let (index, is_equal) = self.take_position(&messages);
        let Some(call) = self.recording.calls.get(index) else {
            let count = self.recording.calls.len();
            return Err(replay_error(format!(
                "the tape has no further answer: all {count} recorded model calls are used"
            )));
        };
        if is_equal {
            return Ok(call.clone());
        }
        let recorded = self.recording.request(call).await?;
        let difference = first_difference(&recorded, &messages).unwrap_or_default();
        let step = index + 1;
        if divergence == Divergence::Strict {
            return Err(replay_error(format!(
                "the request differs from model call {step} of the tape: {difference}; \
                 to continue anyway, set `replay.divergence` to `lenient`"
            )));
        }
        tracing::warn!(step, %difference, "replay.diverged");
        Ok(call.clone())
    }

    /// Returns the index of the recorded call that answers a request, and whether its request is equal.
    fn take_position(&self, messages: &[Value]) -> (usize, bool) {
        let (whole, last) = hashes(messages);
        let mut next = self.next.lock();
        let count = self.requests.len();
        let order = (*next..count).chain(0..*next);
        let mut matching = order.filter(|index| {
            self.requests
                .get(*index)
                .is_some_and(|hashes| hashes.0 == whole)
        });
        let equal = matching.next();
        let similar = || {
            (*next..count).find(|index| {
                self.requests
                    .get(*index)
                    .is_some_and(|hashes| hashes.1 == last)
            })
        };
        let index = equal.or_else(similar).unwrap_or(*next);
        *next = index + 1;
        (index, equal.is_some())
    }
}

fn hashes(messages: &[Value]) -> (u64, u64) {
    let hash = |messages: &[Value]| {
        let mut hasher = DefaultHasher::new();
        for message in messages {
            message.to_string().hash(&mut hasher);
        }
        hasher.finish()
    };
    (
        hash(messages),
        hash(
            messages
                .last()
                .map(std::slice::from_ref)
                .unwrap_or_default(),
        ),
    )
}

pub(crate) fn replay_error(message: String) -> Error {
    Error::new(ErrorKind::Provider, message)
}

/// Streams a recorded answer. `pace` is in characters per second; 0 streams it at once.
pub(crate) fn stream_answer(call: &RecordedCall, pace: u64) -> ModelStream {
    let mut events = text_pieces(&call.text, pace);
    events.extend(
        (!call.tool_calls.is_empty()).then(|| Ok(StreamEvent::ToolCall(call.tool_calls.clone()))),
    );
    events.extend(
        call.usage
            .clone()
            .map(|usage| Ok(StreamEvent::Usage(usage))),
    );
    events.extend(call.provider_state.clone().map(|data| {
        let kind = "provider_state".to_owned();
        Ok(StreamEvent::Other { kind, data })
    }));
    events.extend(
        call.error
            .as_ref()
            .map(|error| Err(Error::from_value(error))),
    );
    let delay = move |event: &Result<StreamEvent>| match event {
        Ok(StreamEvent::Text(text)) if pace > 0 => {
            Duration::from_millis(1_000 * text.chars().count() as u64 / pace)
        }
        _ => Duration::ZERO,
    };
    ModelStream::new(stream::iter(events).then(move |event| async move {
        let delay = delay(&event);
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        event
    }))
}

fn text_pieces(text: &str, pace: u64) -> Vec<Result<StreamEvent>> {
    let size = if pace == 0 { usize::MAX } else { PIECE_CHARS };
    let mut pieces = Vec::new();
    let mut piece = String::new();
    for (index, letter) in text.chars().enumerate() {
        if index % size == 0 && !piece.is_empty() {
            pieces.push(Ok(StreamEvent::Text(std::mem::take(&mut piece))));
        }
        piece.push(letter);
    }
    pieces.extend((!piece.is_empty()).then_some(Ok(StreamEvent::Text(piece))));
    pieces
}
