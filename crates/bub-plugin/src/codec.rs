//! JSON encoding of hook arguments and results in the plugin protocol.

mod arguments;
mod results;
mod sender;

use std::time::Duration;

use bub_kernel::{Envelope, Error, Result, SessionId, State};
use serde_json::{Map, Value, json};

pub(crate) use sender::{decode_sender, encode_sender, sender_schema};

/// A hook argument in the plugin protocol. The host encodes the argument and the plugin decodes it. If a plugin replaces
/// the argument with `next/call`, the host decodes the new value and passes the old argument as `previous`.
pub(crate) trait ArgumentCodec<'a>: Copy {
    /// The decoded value that the argument borrows from.
    type Owned: Send + Sync;

    /// Returns the argument as JSON.
    fn encode(self) -> Value;

    /// Parses the JSON of an argument. `previous` is the argument that the new value replaces, if any.
    fn decode(value: Value, previous: Option<Self>) -> Result<Self::Owned>;

    /// Borrows the argument from its decoded value.
    fn from_owned(owned: &'a Self::Owned) -> Self;

    /// Returns the JSON Schema of the argument.
    fn schema() -> Value;

    /// Returns the state of the turn, if this argument is the state.
    fn state(self) -> Option<&'a State> {
        None
    }

    /// Returns the message of the turn, if this argument is the message.
    fn message(self) -> Option<&'a Envelope> {
        None
    }

    /// Returns the session of the turn, if this argument contains it.
    fn session_id(self) -> Option<&'a SessionId> {
        None
    }

    /// Returns the run id of the turn, if this argument contains it.
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
    /// Adds what one more argument says about the turn. Values from earlier arguments are kept.
    pub(crate) fn with_argument(self, argument: impl ArgumentCodec<'a>) -> Self {
        Self {
            message: self.message.or(argument.message()),
            state: self.state.or(argument.state()),
            session_id: self.session_id.or(argument.session_id()),
            run_id: self.run_id.or(argument.run_id()),
        }
    }
}

/// A hook result in the plugin protocol. The plugin encodes the result and the host decodes it.
pub(crate) trait ResultCodec: Sized {
    /// Returns the result as JSON.
    fn encode(self) -> Value;

    /// Parses the JSON of a result.
    fn decode(value: Value) -> Result<Self>;

    /// Returns the value that a plugin sends, or `None` if the result is equivalent to not returning one.
    fn into_response_value(self) -> Option<Value> {
        Some(self.encode())
    }

    /// Returns the JSON Schema of the result.
    fn schema() -> Value;
}

/// Prefix of the messages of [`type_error`]. Errors about arguments remove the prefix.
pub(crate) const INVALID_RESULT_TEXT: &str = "invalid result: ";

/// Builds the error for a JSON value of the wrong type. The message quotes at most 200 bytes of the value.
pub(crate) fn type_error(expected: &str, got: &Value) -> Error {
    let mut text = got.to_string();
    if text.len() > 200 {
        let end = text.floor_char_boundary(200);
        text.truncate(end);
        text.push('…');
    }
    Error::unknown(format!(
        "{INVALID_RESULT_TEXT}expected {expected}, got {text}"
    ))
}

/// Returns the text of a JSON string; fails for any other value.
fn parse_text(value: Value) -> Result<String> {
    match value {
        Value::String(text) => Ok(text),
        other => Err(type_error("a string", &other)),
    }
}

/// Returns the fields of a JSON object; fails for any other value.
fn parse_object(value: Value) -> Result<Map<String, Value>> {
    match value {
        Value::Object(map) => Ok(map),
        other => Err(type_error("an object", &other)),
    }
}

/// Returns the name and the value of the only field of an object, or `None` for any other value.
fn only_field(value: &Value) -> Option<(&str, &Value)> {
    let map = value.as_object().filter(|map| map.len() == 1)?;
    map.iter()
        .next()
        .map(|(name, value)| (name.as_str(), value))
}

fn optional_text(value: Option<&Value>) -> Option<String> {
    value.and_then(Value::as_str).map(str::to_owned)
}

fn duration_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the JSON Schema of an object whose properties are all required.
fn object_schema(properties: &Value) -> Value {
    let names: Vec<_> = properties
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, _)| name.as_str())
        .collect();
    json!({"type": "object", "properties": properties, "required": names})
}

/// Returns the JSON Schema of a value that may be null.
fn nullable_schema(schema: &Value) -> Value {
    json!({"anyOf": [schema, {"type": "null"}]})
}
