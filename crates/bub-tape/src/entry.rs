//! Entries: the immutable records on a tape.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::time;

/// The number of an entry on its tape. The store assigns numbers in ascending order, starting at 1.
///
/// A tape can contain an id twice if a program wrote to it without taking its lock. Users refer to entries by id;
/// stores read from a [`Position`](crate::Position).
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct EntryId(i64);

impl EntryId {
    /// Creates an id from a number read from a tape.
    pub const fn new(id: i64) -> Self {
        Self(id)
    }

    /// Returns the number.
    pub const fn get(self) -> i64 {
        self.0
    }

    /// Returns the id that follows this one.
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

/// The kind of an entry. Unknown kinds are preserved as [`EntryKind::Other`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// A chat message. Payload: `{role, content, …}`, a message of the chat completions API.
    Message,
    /// A system prompt. Payload: `{content}`.
    System,
    /// An anchor, where the model's context starts. Payload: `{name, state?}`.
    Anchor,
    /// The tool calls of one model response. Payload: `{calls, content?}`.
    ToolCall,
    /// The results of tool calls, in the order of the calls. Payload: `{results}`.
    ToolResult,
    /// An event of the runtime, such as `run` or `handoff`. Payload: `{name, data?}`.
    Event,
    /// A failure. Payload: `{kind, message, details?}`.
    Error,
    /// A kind unknown to this version.
    Other(String),
}

impl EntryKind {
    /// Returns the kind as it is written on the tape.
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
/// The constructors set `id` to zero and `date` to the current time. The store assigns the id on append and ignores
/// the previous value.
///
/// ```
/// use bub_tape::{Entry, EntryKind};
///
/// let entry = Entry::message("user", "hello").with_meta("run_id", "run-1");
/// assert_eq!(entry.kind, EntryKind::Message);
/// assert_eq!(entry.payload["content"], "hello");
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The id, assigned by the store.
    pub id: EntryId,
    /// The kind of record.
    pub kind: EntryKind,
    /// The content; its form depends on `kind`.
    pub payload: Map<String, Value>,
    /// Metadata, such as `run_id`, or `context: false` for an entry that views exclude.
    pub meta: Map<String, Value>,
    /// The date in ISO 8601, preserved exactly as it was read.
    pub date: String,
    /// Keys unknown to this version, preserved in order.
    pub extra: Map<String, Value>,
}

impl Entry {
    /// Creates an entry of any kind.
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

    /// Creates a chat message.
    pub fn message(role: &str, content: impl Into<Value>) -> Self {
        let payload = json_object([("role", role.into()), ("content", content.into())]);
        Self::new(EntryKind::Message, payload)
    }

    /// Creates a chat message. `payload` is a message in the format of the chat completions API.
    pub fn raw_message(payload: Map<String, Value>) -> Self {
        Self::new(EntryKind::Message, payload)
    }

    /// Creates a system prompt.
    pub fn system(content: &str) -> Self {
        let payload = json_object([("content", content.into())]);
        Self::new(EntryKind::System, payload)
    }

    /// Creates an anchor. Without a state, the key `state` is absent, as in the Python version.
    pub fn anchor(name: &str, state: Option<Value>) -> Self {
        let mut payload = json_object([("name", name.into())]);
        payload.extend(state.map(|state| ("state".to_owned(), state)));
        Self::new(EntryKind::Anchor, payload)
    }

    /// Creates an event. Without data, the key `data` is absent.
    pub fn event(name: &str, data: Option<Value>) -> Self {
        let mut payload = json_object([("name", name.into())]);
        payload.extend(data.map(|data| ("data".to_owned(), data)));
        Self::new(EntryKind::Event, payload)
    }

    /// Creates an error entry. Without details, the key `details` is absent.
    pub fn error(kind: &str, message: &str, details: Option<Value>) -> Self {
        let mut payload = json_object([("kind", kind.into()), ("message", message.into())]);
        payload.extend(details.map(|details| ("details".to_owned(), details)));
        Self::new(EntryKind::Error, payload)
    }

    /// Creates an entry for the tool calls of one model response. `meta.call_ids` lists the ids of the calls.
    pub fn tool_call(calls: Vec<Value>) -> Self {
        let id = |call: &Value| call.get("id").cloned().unwrap_or_default();
        let ids: Value = calls.iter().map(id).collect();
        Self::new(EntryKind::ToolCall, json_object([("calls", calls.into())]))
            .with_meta("call_ids", ids)
    }

    /// Creates an entry for the results of one model response's tool calls, in the order of the calls.
    pub fn tool_result(results: Vec<Value>) -> Self {
        let payload = json_object([("results", results.into())]);
        Self::new(EntryKind::ToolResult, payload)
    }

    /// Sets one key of `meta`.
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

    /// Excludes the entry from views (`meta.context = false`).
    #[must_use]
    pub fn exclude_from_context(self) -> Self {
        self.with_meta("context", false)
    }

    /// Returns whether a view may include the entry.
    pub fn is_in_context(&self) -> bool {
        self.meta.get("context") != Some(&Value::Bool(false))
    }

    /// Returns the `name` of an anchor or event.
    pub fn name(&self) -> Option<&str> {
        self.payload.get("name").and_then(Value::as_str)
    }

    /// Returns the `data` of an event.
    pub fn data(&self) -> Option<&Value> {
        self.payload.get("data")
    }

    /// Parses `date`. Returns `None` if it is not an ISO 8601 date. Without an offset it is in UTC, and without a time
    /// it is midnight.
    pub fn timestamp(&self) -> Option<jiff::Timestamp> {
        time::parse_date(&self.date)
    }
}

/// Creates a JSON object with its keys in the given order.
pub(crate) fn json_object<const N: usize>(pairs: [(&str, Value); N]) -> Map<String, Value> {
    pairs
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
}
