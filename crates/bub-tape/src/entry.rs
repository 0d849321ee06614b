//! One immutable fact on a tape.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::time;

/// The number of an entry on its tape, assigned by the store from 1 upwards.
///
/// Tapes written by unlocked writers may hold the same id twice, so an id names an entry for people;
/// a [`Position`](crate::Position) is what a store reads from.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct EntryId(i64);

impl EntryId {
    /// Wraps a number read from a tape.
    pub const fn new(id: i64) -> Self {
        Self(id)
    }

    /// The plain number.
    pub const fn get(self) -> i64 {
        self.0
    }

    /// The id that follows this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What an entry records. The set is open: unknown kinds are kept as they were read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// A chat message, payload as the model sees it.
    Message,
    /// A system prompt, `{content}`.
    System,
    /// A checkpoint, `{name, state?}`.
    Anchor,
    /// The tool calls of one model response, `{calls, content?}`.
    ToolCall,
    /// Their results by position, `{results}`.
    ToolResult,
    /// Something that happened, `{name, data?}`.
    Event,
    /// A failure, `{kind, message, details?}`.
    Error,
    /// A kind this version does not know.
    Other(String),
}

impl EntryKind {
    /// The spelling on the tape.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Message => "message",
            Self::System => "system",
            Self::Anchor => "anchor",
            Self::ToolCall => "tool_call",
            Self::ToolResult => "tool_result",
            Self::Event => "event",
            Self::Error => "error",
            Self::Other(name) => name,
        }
    }
}

impl From<&str> for EntryKind {
    fn from(name: &str) -> Self {
        match name {
            "message" => Self::Message,
            "system" => Self::System,
            "anchor" => Self::Anchor,
            "tool_call" => Self::ToolCall,
            "tool_result" => Self::ToolResult,
            "event" => Self::Event,
            "error" => Self::Error,
            other => Self::Other(other.to_owned()),
        }
    }
}

impl fmt::Display for EntryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An immutable record on a tape.
///
/// The constructors leave `id` at zero: the store assigns it on append and ignores what is there.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Assigned by the store.
    pub id: EntryId,
    /// What is recorded.
    pub kind: EntryKind,
    /// The fact itself; its shape depends on `kind`.
    pub payload: Map<String, Value>,
    /// Facts about the fact, such as `run_id` or `context: false`.
    pub meta: Map<String, Value>,
    /// ISO 8601, kept exactly as it was read.
    pub date: String,
    /// Keys of the line that this version does not know, preserved in order.
    pub extra: Map<String, Value>,
}

impl Entry {
    /// An entry of any kind, dated now.
    pub fn new(kind: EntryKind, payload: Map<String, Value>) -> Self {
        Self {
            id: EntryId::default(),
            kind,
            payload,
            meta: Map::new(),
            date: time::now_iso(),
            extra: Map::new(),
        }
    }

    /// A plain chat message.
    pub fn message(role: &str, content: impl Into<Value>) -> Self {
        Self::new(
            EntryKind::Message,
            object([("role", role.into()), ("content", content.into())]),
        )
    }

    /// A chat message whose payload is already in the shape of the model API.
    pub fn raw_message(payload: Map<String, Value>) -> Self {
        Self::new(EntryKind::Message, payload)
    }

    /// A system prompt.
    pub fn system(content: &str) -> Self {
        Self::new(EntryKind::System, object([("content", content.into())]))
    }

    /// A checkpoint. Without a state the key is absent, as in the original.
    pub fn anchor(name: &str, state: Option<Value>) -> Self {
        let mut payload = object([("name", name.into())]);
        if let Some(state) = state {
            payload.insert("state".to_owned(), state);
        }
        Self::new(EntryKind::Anchor, payload)
    }

    /// Something that happened. Without data the key is absent.
    pub fn event(name: &str, data: Option<Value>) -> Self {
        let mut payload = object([("name", name.into())]);
        if let Some(data) = data {
            payload.insert("data".to_owned(), data);
        }
        Self::new(EntryKind::Event, payload)
    }

    /// A failure.
    pub fn error(kind: &str, message: &str, details: Option<Value>) -> Self {
        let mut payload = object([("kind", kind.into()), ("message", message.into())]);
        if let Some(details) = details {
            payload.insert("details".to_owned(), details);
        }
        Self::new(EntryKind::Error, payload)
    }

    /// The tool calls of one model response. `meta.call_ids` names the calls.
    pub fn tool_call(calls: Vec<Value>) -> Self {
        let ids = call_ids(&calls);
        Self::new(EntryKind::ToolCall, object([("calls", calls.into())])).with_meta("call_ids", ids)
    }

    /// The results of one model response's calls, by position.
    pub fn tool_result(results: Vec<Value>) -> Self {
        Self::new(EntryKind::ToolResult, object([("results", results.into())]))
    }

    /// Adds one key to `meta`.
    #[must_use]
    pub fn with_meta(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.meta.insert(key.to_owned(), value.into());
        self
    }

    /// Replaces the date, for tests and imports.
    #[must_use]
    pub fn with_date(mut self, date: impl Into<String>) -> Self {
        self.date = date.into();
        self
    }

    /// Marks the entry as never part of a model context (`meta.context = false`).
    #[must_use]
    pub fn outside_context(self) -> Self {
        self.with_meta("context", false)
    }

    /// Whether a view may show the entry.
    pub fn in_context(&self) -> bool {
        self.meta.get("context") != Some(&Value::Bool(false))
    }

    /// The `name` of an anchor or event.
    pub fn name(&self) -> Option<&str> {
        self.payload.get("name").and_then(Value::as_str)
    }

    /// The `data` of an event.
    pub fn data(&self) -> Option<&Value> {
        self.payload.get("data")
    }

    /// The moment of `date`; `None` when it is not a date anybody can read.
    pub fn timestamp(&self) -> Option<jiff::Timestamp> {
        time::parse(&self.date)
    }
}

/// An object from literal keys, in the order given.
pub(crate) fn object<const N: usize>(pairs: [(&str, Value); N]) -> Map<String, Value> {
    pairs
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
}

fn call_ids(calls: &[Value]) -> Value {
    calls
        .iter()
        .map(|call| call.get("id").cloned().unwrap_or_else(|| json!(null)))
        .collect()
}
