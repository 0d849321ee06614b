//! What a model says while it says it.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use futures_core::Stream;
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    error::{Error, Result},
    hooks::guard,
};

/// One event of a model stream.
///
/// On the wire and in plugins of other processes it is `{"kind": …, "data": …}`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StreamEvent {
    /// A piece of the answer.
    Text(String),
    /// A piece of the model's reasoning.
    Reasoning(String),
    /// The model asks for tools: the calls in the chat-completions shape.
    ToolCall(Vec<Value>),
    /// What the tools returned, in the order of the calls.
    ToolResult(Vec<Value>),
    /// Tokens used, as the provider reported them.
    Usage(Value),
    /// Something went wrong and the stream goes on.
    Error(Error),
    /// A step ended: `{ok, text}` or `{ok, tool_calls, tool_results}`.
    Final(Value),
    /// An event of a kind that this version does not know; it is passed on as it is.
    Other {
        /// Its kind.
        kind: String,
        /// Its data.
        data: Value,
    },
}

impl StreamEvent {
    /// The name of the event's kind.
    pub fn kind(&self) -> &str {
        match self {
            Self::Text(_) => "text",
            Self::Reasoning(_) => "reasoning",
            Self::ToolCall(_) => "tool_call",
            Self::ToolResult(_) => "tool_result",
            Self::Usage(_) => "usage",
            Self::Error(_) => "error",
            Self::Final(_) => "final",
            Self::Other { kind, .. } => kind,
        }
    }

    /// The event as `{kind, data}`.
    pub fn to_value(&self) -> Value {
        let data = match self {
            Self::Text(delta) | Self::Reasoning(delta) => json!({"delta": delta}),
            Self::ToolCall(calls) => json!({"tool_calls": calls}),
            Self::ToolResult(results) => json!({"tool_results": results}),
            Self::Error(error) => error.to_value(),
            Self::Usage(data) | Self::Final(data) | Self::Other { data, .. } => data.clone(),
        };
        json!({"kind": self.kind(), "data": data})
    }

    /// Reads `{kind, data}`. A known kind with data of another shape is passed on as [`Self::Other`].
    pub fn from_value(value: &Value) -> Self {
        let kind = value
            .get("kind")
            .and_then(Value::as_str)
            .unwrap_or("unknown");
        let data = value.get("data").cloned().unwrap_or_default();
        let text = || data.get("delta").and_then(Value::as_str).map(str::to_owned);
        let list = |name: &str| data.get(name).and_then(Value::as_array).cloned();
        let known = match kind {
            "text" => text().map(Self::Text),
            "reasoning" => text().map(Self::Reasoning),
            "tool_call" => list("tool_calls").map(Self::ToolCall),
            "tool_result" => list("tool_results").map(Self::ToolResult),
            "usage" => Some(Self::Usage(data.clone())),
            "error" => Some(Self::Error(Error::from_value(&data))),
            "final" => Some(Self::Final(data.clone())),
            _ => None,
        };
        known.unwrap_or_else(|| Self::Other {
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

/// The events of one model stage. An `Err` item ends the turn; an [`StreamEvent::Error`] does not.
///
/// It remembers the last usage and the last error that passed.
pub struct ModelStream {
    source: StreamInner,
    usage: Option<Value>,
    error: Option<Error>,
}

/// A plain text answer is the commonest stream, and needs no boxed one.
enum StreamInner {
    Text(Option<String>),
    Stream(Pin<Box<dyn Stream<Item = Result<StreamEvent>> + Send>>),
}

impl ModelStream {
    /// Wraps a stream.
    pub fn new(stream: impl Stream<Item = Result<StreamEvent>> + Send + 'static) -> Self {
        Self::from_source(StreamInner::Stream(Box::pin(stream)))
    }

    /// A stream of exactly one text event.
    pub fn text(text: impl Into<String>) -> Self {
        Self::from_source(StreamInner::Text(Some(text.into())))
    }

    /// A stream of ready events.
    pub fn from_events(
        events: impl IntoIterator<Item = StreamEvent, IntoIter: Send + 'static>,
    ) -> Self {
        Self::new(futures_util::stream::iter(events.into_iter().map(Ok)))
    }

    /// Changes every event on its way: the usual form of a plugin that wraps the stream below it.
    #[must_use]
    pub fn map_events(
        self,
        mut change: impl FnMut(StreamEvent) -> StreamEvent + Send + 'static,
    ) -> Self {
        Self::new(self.map(move |event| event.map(&mut change)))
    }

    /// The last usage that passed.
    pub fn usage(&self) -> Option<&Value> {
        self.usage.as_ref()
    }

    /// The last error that passed, whether it ended the stream or not.
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
            StreamInner::Stream(stream) => match guard::catch(|| stream.as_mut().poll_next(cx)) {
                Ok(polled) => std::task::ready!(polled),
                Err(panic) => {
                    // What panicked once must not be polled again.
                    self.source = StreamInner::Text(None);
                    Some(Err(panic))
                }
            },
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
