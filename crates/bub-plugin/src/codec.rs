//! JSON encoding of hook arguments and results in the plugin protocol.

mod objects;
mod values;

use std::{path::Path, path::PathBuf};

use bub_kernel::{Envelope, Error, Result, SessionId, State};
use serde_json::Value;

/// A value of the plugin protocol: a hook argument, which the host encodes and the plugin decodes, or a hook result,
/// which the plugin encodes and the host decodes.
pub(crate) trait Wire: Sized {
    /// Returns the value as JSON.
    fn encode(&self) -> Value;

    /// Parses the JSON of a value.
    fn decode(value: Value) -> Result<Self>;

    /// Returns the JSON Schema of the value.
    fn schema() -> Value;

    /// Parses the JSON of an argument that replaces `self`, if a plugin sends a new value in a `next/call` request.
    fn decode_replacement(&self, value: Value) -> Result<Self> {
        Self::decode(value)
    }

    /// Returns the JSON for the field `value` of the plugin's response. Returns `None` if the response can omit the
    /// field: the host then assumes this result.
    fn to_response_value(&self) -> Option<Value> {
        Some(self.encode())
    }

    /// Adds what the value says about the turn. Does not replace values of earlier arguments.
    fn add_facts<'a>(&'a self, _facts: &mut TurnFacts<'a>) {}
}

/// A hook argument as the kernel passes it: a reference to a [`Wire`] value.
pub(crate) trait Argument<'a>: Copy {
    /// The decoded value that the argument borrows from.
    type Owned: Wire + Send + Sync;

    /// Borrows the argument from its decoded value.
    fn from_owned(owned: &'a Self::Owned) -> Self;

    /// Returns the argument as JSON.
    fn encode(self) -> Value;

    /// Parses the JSON of an argument that replaces `self`.
    fn decode_replacement(self, value: Value) -> Result<Self::Owned> {
        Wire::decode(value)
    }

    /// Adds what the argument says about the turn.
    fn add_facts(self, _facts: &mut TurnFacts<'a>) {}
}

impl<'a, T: Wire + Send + Sync> Argument<'a> for &'a T {
    type Owned = T;

    fn from_owned(owned: &'a T) -> Self {
        owned
    }

    fn encode(self) -> Value {
        Wire::encode(self)
    }

    fn decode_replacement(self, value: Value) -> Result<T> {
        Wire::decode_replacement(self, value)
    }

    fn add_facts(self, facts: &mut TurnFacts<'a>) {
        Wire::add_facts(self, facts);
    }
}

impl<'a, T: Wire + Send + Sync> Argument<'a> for Option<&'a T> {
    type Owned = Option<T>;

    fn from_owned(owned: &'a Option<T>) -> Self {
        owned.as_ref()
    }

    fn encode(self) -> Value {
        self.map(Wire::encode).unwrap_or_default()
    }

    fn add_facts(self, facts: &mut TurnFacts<'a>) {
        if let Some(value) = self {
            Wire::add_facts(value, facts);
        }
    }
}

impl<'a> Argument<'a> for &'a str {
    type Owned = String;

    fn from_owned(owned: &'a String) -> Self {
        owned
    }

    fn encode(self) -> Value {
        self.into()
    }
}

impl<'a> Argument<'a> for &'a Path {
    type Owned = PathBuf;

    fn from_owned(owned: &'a PathBuf) -> Self {
        owned
    }

    fn encode(self) -> Value {
        self.to_string_lossy().into()
    }
}

/// Data about a turn, collected from the arguments of one hook call. `None` means that no argument has the value.
#[derive(Clone, Copy, Default)]
pub(crate) struct TurnFacts<'a> {
    pub(crate) message: Option<&'a Envelope>,
    pub(crate) state: Option<&'a State>,
    pub(crate) session_id: Option<&'a SessionId>,
    pub(crate) run_id: Option<&'a str>,
}

/// Prefix of the error messages that [`type_error`] builds. It is removed from errors about arguments.
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
