//! How arguments and results of hooks are written in the protocol.

mod arguments;
mod results;

use std::time::Duration;

use bub_kernel::{Envelope, Error, Result, SessionId, State};
use serde_json::{Map, Value, json};

pub(crate) use arguments::{read_sender, sender, sender_schema};

/// An argument: written by the host, read by the plugin. `like` is the argument it takes the place of.
pub(crate) trait ArgumentCodec<'a>: Copy {
    /// What is read; the argument borrows from it.
    type Owned: Send + Sync;

    fn write(self) -> Value;
    fn read(value: Value, like: Option<Self>) -> Result<Self::Owned>;
    fn from_owned(owned: &'a Self::Owned) -> Self;

    /// Its JSON Schema.
    fn schema() -> Value;

    /// The state of the turn, when this is it.
    fn state(self) -> Option<&'a State> {
        None
    }

    /// The message of the turn, when this is it.
    fn message(self) -> Option<&'a Envelope> {
        None
    }

    /// The session of the turn, when this is it.
    fn session_id(self) -> Option<&'a SessionId> {
        None
    }

    /// The id of the turn, when this has it.
    fn run_id(self) -> Option<&'a str> {
        None
    }
}

/// What the arguments of a hook say about its turn.
#[derive(Clone, Copy, Default)]
pub(crate) struct TurnFacts<'a> {
    pub(crate) message: Option<&'a Envelope>,
    pub(crate) state: Option<&'a State>,
    pub(crate) session_id: Option<&'a SessionId>,
    pub(crate) run_id: Option<&'a str>,
}

impl<'a> TurnFacts<'a> {
    /// Adds what one argument says.
    pub(crate) fn with(self, argument: impl ArgumentCodec<'a>) -> Self {
        Self {
            message: self.message.or(argument.message()),
            state: self.state.or(argument.state()),
            session_id: self.session_id.or(argument.session_id()),
            run_id: self.run_id.or(argument.run_id()),
        }
    }
}

/// A result: written by the plugin, read by the host.
pub(crate) trait ResultCodec: Sized {
    fn write(self) -> Value;
    fn read(value: Value) -> Result<Self>;

    /// What a plugin answers; `None` when it is the same as to have no opinion.
    fn opinion(self) -> Option<Value> {
        Some(self.write())
    }

    /// Its JSON Schema.
    fn schema() -> Value;
}

pub(crate) fn wrong(expected: &str, got: &Value) -> Error {
    let mut shown = got.to_string();
    if shown.len() > 200 {
        let end = shown.floor_char_boundary(200);
        shown.truncate(end);
        shown.push('…');
    }
    Error::unknown(format!("it returned {shown}, expected {expected}"))
}

fn text(value: Value) -> Result<String> {
    match value {
        Value::String(text) => Ok(text),
        other => Err(wrong("a string", &other)),
    }
}

fn object(value: Value) -> Result<Map<String, Value>> {
    match value {
        Value::Object(map) => Ok(map),
        other => Err(wrong("an object", &other)),
    }
}

/// The name and the value of an object with one field.
fn only_field(value: &Value) -> Option<(&str, &Value)> {
    let map = value.as_object().filter(|map| map.len() == 1)?;
    map.iter()
        .next()
        .map(|(name, value)| (name.as_str(), value))
}

fn optional_text(value: Option<&Value>) -> Option<String> {
    value.and_then(Value::as_str).map(str::to_owned)
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The JSON Schema of an object with these properties, all of which are there.
fn object_schema(properties: &Value) -> Value {
    let names: Vec<_> = properties
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, _)| name.as_str())
        .collect();
    json!({"type": "object", "properties": properties, "required": names})
}

/// The JSON Schema of something that may be null.
fn nullable(schema: &Value) -> Value {
    json!({"anyOf": [schema, {"type": "null"}]})
}
