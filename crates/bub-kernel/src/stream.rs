//! The events of a model stage.

mod redaction;

use std::{
    borrow::Cow,
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use bub_settings::Redactor;
use futures_core::Stream;
use futures_util::{StreamExt, stream};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use self::redaction::EventRedactor;
use crate::{
    error::{Error, Result},
    hooks::guard,
};

/// One event of a model stream.
///
/// The plugin protocol represents it as `{"kind": …, "data": …}`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StreamEvent {
    /// A part of the answer.
    Text(String),
    /// A part of the model's reasoning.
    Reasoning(String),
    /// The tool calls that the model requests, in the chat-completions format.
    ToolCall(Vec<Value>),
    /// Output of a running tool call, for users who wait. It can have gaps; the result has the complete output.
    ToolOutput {
        /// Position of the call in [`StreamEvent::ToolCall`].
        index: usize,
        /// The output since the last event of the call.
        text: String,
    },
    /// The tool results, in the order of the calls.
    ToolResult(Vec<Value>),
    /// The token usage, as the provider reported it.
    Usage(Value),
    /// A model call failed and is repeated after a delay: `{attempt, wait_seconds, reason}`.
    Retry(Value),
    /// An error that does not end the stream.
    Error(Error),
    /// The end of a step: `{ok, text}` or `{ok, tool_calls, tool_results}`.
    Final(Value),
    /// An event of an unknown kind. It is passed on unchanged.
    Other {
        /// The kind.
        kind: String,
        /// The data.
        data: Value,
    },
}

impl StreamEvent {
    /// Returns the name of the event's kind.
    pub fn kind(&self) -> &str {
        match self {
            Self::Text(_) => "text",
            Self::Reasoning(_) => "reasoning",
            Self::ToolCall(_) => "tool_call",
            Self::ToolOutput { .. } => "tool_output",
            Self::ToolResult(_) => "tool_result",
            Self::Usage(_) => "usage",
            Self::Retry(_) => "retry",
            Self::Error(_) => "error",
            Self::Final(_) => "final",
            Self::Other { kind, .. } => kind,
        }
    }

    /// Returns the event as `{kind, data}`.
    pub fn to_value(&self) -> Value {
        let data = match self {
            Self::Text(delta) | Self::Reasoning(delta) => json!({"delta": delta}),
            Self::ToolCall(calls) => json!({"tool_calls": calls}),
            Self::ToolOutput { index, text } => json!({"index": index, "delta": text}),
            Self::ToolResult(results) => json!({"tool_results": results}),
            Self::Error(error) => error.to_value(),
            Self::Usage(data)
            | Self::Retry(data)
            | Self::Final(data)
            | Self::Other { data, .. } => data.clone(),
        };
        json!({"kind": self.kind(), "data": data})
    }

    /// Converts `{kind, data}`. A known kind with unexpected data becomes [`Self::Other`].
    pub fn from_value(value: &Value) -> Self {
        let kind = value.get("kind").and_then(Value::as_str);
        let kind = kind.unwrap_or("unknown");
        let data = value.get("data").cloned().unwrap_or_default();
        let text = || data.get("delta").and_then(Value::as_str).map(str::to_owned);
        let list = |name: &str| data.get(name).and_then(Value::as_array).cloned();
        let event = match kind {
            "text" => text().map(Self::Text),
            "reasoning" => text().map(Self::Reasoning),
            "tool_call" => list("tool_calls").map(Self::ToolCall),
            "tool_output" => {
                let index = data.get("index").and_then(Value::as_u64);
                let index = index.and_then(|index| usize::try_from(index).ok());
                let output = index.zip(text());
                output.map(|(index, text)| Self::ToolOutput { index, text })
            }
            "tool_result" => list("tool_results").map(Self::ToolResult),
            "usage" => Some(Self::Usage(data.clone())),
            "retry" => Some(Self::Retry(data.clone())),
            "error" => Some(Self::Error(Error::from_value(&data))),
            "final" => Some(Self::Final(data.clone())),
            _ => None,
        };
        event.unwrap_or_else(|| Self::Other {
            kind: kind.to_owned(),
            data,
        })
    }
}

impl Serialize for StreamEvent {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_value().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for StreamEvent {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer).map(|value| Self::from_value(&value))
    }
}

/// The events of one model stage. An `Err` item ends the turn; a [`StreamEvent::Error`] does not.
///
/// The stream keeps the last usage and the last error that it yielded.
///
/// ```
/// use bub_kernel::{ModelStream, StreamEvent};
///
/// let stream = ModelStream::from_text("hello").map_events(|event| match event {
///     StreamEvent::Text(text) => StreamEvent::Text(text.to_uppercase()),
///     other => other,
/// });
/// # let _ = stream;
/// ```
pub struct ModelStream {
    source: StreamInner,
    usage: Option<Value>,
    error: Option<Error>,
}

/// The source of events. A plain text answer is the most common one and needs no boxed stream.
enum StreamInner {
    Text(Option<String>),
    Stream(Pin<Box<dyn Stream<Item = Result<StreamEvent>> + Send>>),
}

impl ModelStream {
    /// Wraps a stream.
    pub fn new(stream: impl Stream<Item = Result<StreamEvent>> + Send + 'static) -> Self {
        Self::from_source(StreamInner::Stream(Box::pin(stream)))
    }

    /// Creates a stream with one text event.
    pub fn from_text(text: impl Into<String>) -> Self {
        Self::from_source(StreamInner::Text(Some(text.into())))
    }

    /// Creates a stream from a list of events.
    pub fn from_events(
        events: impl IntoIterator<Item = StreamEvent, IntoIter: Send + 'static>,
    ) -> Self {
        Self::new(stream::iter(events.into_iter().map(Ok)))
    }

    /// Applies a function to every event. Plugins use it to wrap the stream of the next plugin.
    #[must_use]
    pub fn map_events(
        self,
        mut change: impl FnMut(StreamEvent) -> StreamEvent + Send + 'static,
    ) -> Self {
        Self::new(self.map(move |event| event.map(&mut change)))
    }

    /// Removes secrets from all events, also a secret that arrives in several events.
    pub(crate) fn redact(self, redactor: &Redactor) -> Self {
        if let StreamInner::Text(text) = self.source {
            let redact = |text: String| match redactor.redact(&text) {
                Cow::Owned(redacted) => redacted,
                Cow::Borrowed(_) => text,
            };
            return Self::from_source(StreamInner::Text(text.map(redact)));
        }
        let mut events = EventRedactor::new(redactor);
        let source = self.map(Some).chain(stream::iter([None]));
        Self::new(source.flat_map(move |event| stream::iter(events.redact(event))))
    }

    /// Returns the last usage that the stream yielded.
    pub fn usage(&self) -> Option<&Value> {
        self.usage.as_ref()
    }

    /// Returns the last error that the stream yielded, whether it ended the stream or not.
    pub fn error(&self) -> Option<&Error> {
        self.error.as_ref()
    }

    fn from_source(source: StreamInner) -> Self {
        Self {
            source,
            usage: None,
            error: None,
        }
    }
}

impl Stream for ModelStream {
    type Item = Result<StreamEvent>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let item = match &mut self.source {
            StreamInner::Text(text) => text.take().map(|text| Ok(StreamEvent::Text(text))),
            StreamInner::Stream(stream) => {
                match guard::catch_panic(|| stream.as_mut().poll_next(cx)) {
                    Ok(polled) => std::task::ready!(polled),
                    Err(panic) => {
                        // A stream must not be polled again after a panic.
                        self.source = StreamInner::Text(None);
                        Some(Err(panic))
                    }
                }
            }
        };
        match &item {
            Some(Ok(StreamEvent::Usage(usage))) => self.usage = Some(usage.clone()),
            Some(Ok(StreamEvent::Error(error)) | Err(error)) => self.error = Some(error.clone()),
            _ => {}
        }
        Poll::Ready(item)
    }
}

impl fmt::Debug for ModelStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ModelStream")
    }
}
