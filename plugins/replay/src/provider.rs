//! The provider `replay`: answers model calls from a recorded tape.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
    time::Duration,
};

use bub::{
    Entry, Error, ErrorKind, ModelStream, Result, StreamEvent,
    agent::estimate_tokens,
    futures::{StreamExt as _, stream},
};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{
    difference::first_difference,
    recording::{ANSWER_EVENT, RecordedCall, Recording, RequestReader},
    settings::{Divergence, ReplaySettings},
    surroundings::{Normalizer, Surroundings},
};

/// Length in characters of the pieces in which a text is streamed.
const PIECE_CHARS: usize = 12;

/// A tape that answers model calls, step by step.
///
/// A call gets the answer that was recorded for the same request. The search starts after the previous answer, so that
/// equal requests get their answers in order. If no recorded request is equal, the call gets the next answer whose
/// request ends with the same message, or else the next answer; this is a divergence.
///
/// Requests are compared without workspace, session, and origin and date of messages. In an answer, the recorded
/// workspace is replaced by the current one.
#[derive(Debug)]
pub struct RecordedModel {
    recording: Arc<Recording>,
    recorded: Surroundings,
    current: Surroundings,
    normalizer: Normalizer,
    /// The hashes of all requests: the complete request, and its last message.
    requests: Vec<(u64, u64)>,
    next: Mutex<usize>,
}

impl RecordedModel {
    /// Creates a model that answers the calls of a run from a recording.
    pub async fn new(recording: Arc<Recording>, current: Surroundings) -> Result<Self> {
        let recorded = recording.surroundings();
        let normalizer = Normalizer::new(&recorded, &current);
        let mut views = RequestReader::new()?;
        let mut requests = Vec::with_capacity(recording.calls.len());
        for call in &recording.calls {
            let request = views.request(&recording, call).await?;
            requests.push(hashes(&normalizer.messages(&request)));
        }
        Ok(Self {
            recording,
            recorded,
            current,
            normalizer,
            requests,
            next: Mutex::default(),
        })
    }

    /// Returns the model with its position after the first `count` calls.
    #[must_use]
    pub fn starting_after(self, count: usize) -> Self {
        *self.next.lock() = count;
        self
    }

    /// Returns the answer to a request with these messages and definitions of tools, and the event that records where the
    /// answer comes from.
    ///
    /// # Errors
    ///
    /// Fails if the tape has no answer, or if the messages differ and `divergence` is strict.
    pub async fn answer(
        &self,
        messages: &[Value],
        tools: &[Value],
        settings: ReplaySettings,
    ) -> Result<(ModelStream, Entry)> {
        let last = self.next.lock().checked_sub(1);
        let last = last.and_then(|last| self.recording.calls.get(last));
        let position = last.map_or(0, |call| call.end);
        if let Some(answer) = self.recording.handoff_answer(messages, position) {
            let event = Entry::event(ANSWER_EVENT, Some(json!({"handoff": true})));
            return Ok((answer?, event.exclude_from_context()));
        }
        let (index, difference) = self.find_answer(messages, settings.divergence).await?;
        let mut call = self.translate(index)?;
        let origin = json!({
            "call": index + 1, "model": call.model, "difference": difference, "is_usage_estimated": call.usage.is_none(),
        });
        if call.usage.is_none() {
            call.usage = Some(estimate_usage(&call, messages, tools));
        }
        let event = Entry::event(ANSWER_EVENT, Some(origin)).exclude_from_context();
        Ok((stream_answer(&call, settings.pace), event))
    }

    /// Returns a recorded call with the workspace of this run.
    fn translate(&self, index: usize) -> Result<RecordedCall> {
        let count = self.recording.calls.len();
        let call = self.recording.calls.get(index).ok_or_else(|| {
            replay_error(format!(
                "the tape has no further answer: all {count} recorded model calls are used"
            ))
        })?;
        let translate = |value: &Value| self.recorded.translate(&self.current, value);
        let text = translate(&call.text.as_str().into());
        Ok(RecordedCall {
            text: text.as_str().unwrap_or_default().to_owned(),
            tool_calls: call.tool_calls.iter().map(translate).collect(),
            ..call.clone()
        })
    }

    /// Returns the index of the recorded call that answers a request, and the first difference between the requests.
    async fn find_answer(
        &self,
        messages: &[Value],
        divergence: Divergence,
    ) -> Result<(usize, Option<String>)> {
        let messages = self.normalizer.messages(messages);
        let (index, is_equal) = self.take_position(&messages);
        let call = self.recording.calls.get(index).filter(|_| !is_equal);
        let Some(call) = call else {
            return Ok((index, None));
        };
        let recorded = self.recording.request(call).await?;
        let recorded = self.normalizer.messages(&recorded);
        let difference = first_difference(&recorded, &messages).unwrap_or_default();
        let step = index + 1;
        if divergence == Divergence::Strict {
            return Err(replay_error(format!(
                "the request differs from model call {step} of the tape: {difference}; \
                 to continue anyway, set `replay.divergence` to `lenient`"
            )));
        }
        tracing::warn!(step, %difference, "replay.diverged");
        Ok((index, Some(difference)))
    }

    /// Returns the index of the recorded call that answers a request, and whether its request is equal.
    fn take_position(&self, messages: &[Value]) -> (usize, bool) {
        let (whole, last) = hashes(messages);
        let mut next = self.next.lock();
        let count = self.requests.len();
        let order = (*next..count).chain(0..(*next).min(count));
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

/// Returns the estimated usage of a call, in the format of the tape.
fn estimate_usage(call: &RecordedCall, messages: &[Value], tools: &[Value]) -> Value {
    let answer = [call.text.as_str().into(), call.tool_calls.clone().into()];
    let (input, output) = (
        estimate_tokens(messages) + estimate_tokens(tools),
        estimate_tokens(&answer),
    );
    json!({"prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output})
}

/// The text of a denied tool call, before the reason.
const DENIED_TEXT: &str = "denied by the user";

fn hashes(messages: &[Value]) -> (u64, u64) {
    let hash = |messages: &[Value]| {
        let mut hasher = DefaultHasher::new();
        for message in messages {
            message.to_string().hash(&mut hasher);
        }
        hasher.finish()
    };
    let mut last = messages.last().cloned();
    if let Some(Value::Object(last)) = &mut last {
        // The number of the call depends on the messages before.
        last.remove("tool_call_id");
        // Nor does the tape have the reason that a user gives.
        if let Some(Value::String(text)) = last.get_mut("content")
            && let Some(start) = text.find(DENIED_TEXT)
        {
            text.truncate(start + DENIED_TEXT.len());
        }
    }
    (hash(messages), hash(last.as_slice()))
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
