//! Encoding of hook arguments.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bub_kernel::{
    ApprovalRequest, CliApp, Envelope, Error, LlmRequest, LlmResult, MessageHandler, Prompt,
    Result, SessionId, State, StatePatch, ToolCall, ToolOutcome, TurnSnapshot,
};
use bub_tape::{MemoryStore, Tape, TapeName};
use serde_json::{Value, json};

use super::{
    ArgumentCodec, ResultCodec, decode_sender, duration_millis, encode_sender, nullable_schema,
    object_schema, optional_text, parse_object, parse_text, sender_schema, type_error,
};

impl<'a> ArgumentCodec<'a> for &'a Envelope {
    type Owned = Envelope;

    fn encode(self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    fn decode(value: Value, previous: Option<Self>) -> Result<Envelope> {
        let new = Envelope::from_value(value);
        let Some(previous) = previous else {
            return Ok(new);
        };
        // Keep the slots of the message, such as its media fetcher: they are not serialized.
        let mut envelope = previous.clone();
        for (name, _) in previous
            .fields()
            .iter()
            .filter(|(name, _)| new.field(name).is_none())
        {
            envelope.set(name.to_owned(), Value::Null);
        }
        for (name, value) in new.fields().iter() {
            if envelope.field(name) != Some(value) {
                envelope.set(name.to_owned(), value.clone());
            }
        }
        Ok(envelope)
    }

    fn from_owned(owned: &'a Envelope) -> Self {
        owned
    }

    fn message(self) -> Option<&'a Envelope> {
        Some(self)
    }

    fn schema() -> Value {
        json!({"type": "object", "description": "an envelope"})
    }
}

impl<'a> ArgumentCodec<'a> for Option<&'a Envelope> {
    type Owned = Option<Envelope>;

    fn encode(self) -> Value {
        self.map(ArgumentCodec::encode).unwrap_or_default()
    }

    fn decode(value: Value, _: Option<Self>) -> Result<Option<Envelope>> {
        Ok((!value.is_null()).then(|| Envelope::from_value(value)))
    }

    fn from_owned(owned: &'a Option<Envelope>) -> Self {
        owned.as_ref()
    }

    fn message(self) -> Option<&'a Envelope> {
        self
    }

    fn schema() -> Value {
        nullable_schema(&<&Envelope as ArgumentCodec<'_>>::schema())
    }
}

impl<'a> ArgumentCodec<'a> for &'a str {
    type Owned = String;

    fn encode(self) -> Value {
        self.into()
    }

    fn decode(value: Value, _: Option<Self>) -> Result<String> {
        parse_text(value)
    }

    fn from_owned(owned: &'a String) -> Self {
        owned
    }

    fn schema() -> Value {
        json!({"type": "string"})
    }
}

impl<'a> ArgumentCodec<'a> for &'a SessionId {
    type Owned = SessionId;

    fn encode(self) -> Value {
        self.into()
    }

    fn decode(value: Value, _: Option<Self>) -> Result<SessionId> {
        parse_text(value).map(SessionId::from)
    }

    fn from_owned(owned: &'a SessionId) -> Self {
        owned
    }

    fn session_id(self) -> Option<&'a SessionId> {
        Some(self)
    }

    fn schema() -> Value {
        json!({"type": "string"})
    }
}

impl<'a> ArgumentCodec<'a> for &'a State {
    type Owned = State;

    fn encode(self) -> Value {
        serde_json::to_value(self.public_fields()).unwrap_or_default()
    }

    fn decode(value: Value, previous: Option<Self>) -> Result<State> {
        // A turn has one state, which a plugin cannot replace.
        Ok(previous
            .cloned()
            .unwrap_or_else(|| State::from_patch(StatePatch::from(value))))
    }

    fn from_owned(owned: &'a State) -> Self {
        owned
    }

    fn state(self) -> Option<&'a State> {
        Some(self)
    }

    fn schema() -> Value {
        json!({"type": "object", "description": "the public part of the state"})
    }
}

impl<'a> ArgumentCodec<'a> for &'a Prompt {
    type Owned = Prompt;

    fn encode(self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    fn decode(value: Value, _: Option<Self>) -> Result<Prompt> {
        ResultCodec::decode(value)
    }

    fn from_owned(owned: &'a Prompt) -> Self {
        owned
    }

    fn schema() -> Value {
        <Prompt as ResultCodec>::schema()
    }
}

impl<'a> ArgumentCodec<'a> for &'a Error {
    type Owned = Error;

    fn encode(self) -> Value {
        self.to_value()
    }

    fn decode(value: Value, _: Option<Self>) -> Result<Error> {
        Ok(Error::from_value(&value))
    }

    fn from_owned(owned: &'a Error) -> Self {
        owned
    }

    fn schema() -> Value {
        let kinds = [
            "invalid_input",
            "config",
            "provider",
            "tool",
            "temporary",
            "not_found",
            "cancelled",
            "unknown",
        ];
        json!({"type": "object", "properties": {"kind": {"enum": kinds}, "message": {"type": "string"}, "details": {"type": "object"}}, "required": ["kind", "message"]})
    }
}

impl<'a> ArgumentCodec<'a> for Option<&'a Error> {
    type Owned = Option<Error>;

    fn encode(self) -> Value {
        self.map(Error::to_value).unwrap_or_default()
    }

    fn decode(value: Value, _: Option<Self>) -> Result<Option<Error>> {
        Ok((!value.is_null()).then(|| Error::from_value(&value)))
    }

    fn from_owned(owned: &'a Option<Error>) -> Self {
        owned.as_ref()
    }

    fn schema() -> Value {
        nullable_schema(&<&Error as ArgumentCodec<'_>>::schema())
    }
}

impl<'a> ArgumentCodec<'a> for &'a Value {
    type Owned = Value;

    fn encode(self) -> Value {
        self.clone()
    }

    fn decode(value: Value, _: Option<Self>) -> Result<Value> {
        Ok(value)
    }

    fn from_owned(owned: &'a Value) -> Self {
        owned
    }

    fn schema() -> Value {
        json!({})
    }
}

impl<'a> ArgumentCodec<'a> for &'a Path {
    type Owned = PathBuf;

    fn encode(self) -> Value {
        self.to_string_lossy().into()
    }

    fn decode(value: Value, _: Option<Self>) -> Result<PathBuf> {
        parse_text(value).map(PathBuf::from)
    }

    fn from_owned(owned: &'a PathBuf) -> Self {
        owned
    }

    fn schema() -> Value {
        json!({"type": "string"})
    }
}

impl<'a> ArgumentCodec<'a> for &'a LlmRequest {
    type Owned = LlmRequest;

    fn encode(self) -> Value {
        json!({
            "run_id": self.run_id, "model": self.model, "messages": *self.messages,
            "tool_names": self.tool_names, "max_tokens": self.max_tokens,
        })
    }

    fn decode(value: Value, _: Option<Self>) -> Result<LlmRequest> {
        let mut map = parse_object(value)?;
        let messages = match map.remove("messages") {
            Some(Value::Array(messages)) => messages,
            other => return Err(type_error("a list of messages", &other.unwrap_or_default())),
        };
        let names = map
            .get("tool_names")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        Ok(LlmRequest {
            run_id: optional_text(map.get("run_id")).unwrap_or_default().into(),
            model: optional_text(map.get("model")).unwrap_or_default(),
            messages: Arc::new(messages),
            tool_names: names
                .into_iter()
                .filter_map(|name| parse_text(name).ok())
                .collect(),
            max_tokens: map.get("max_tokens").and_then(Value::as_u64),
        })
    }

    fn from_owned(owned: &'a LlmRequest) -> Self {
        owned
    }

    fn run_id(self) -> Option<&'a str> {
        Some(&self.run_id)
    }

    fn schema() -> Value {
        object_schema(
            &json!({"run_id": {"type": "string"}, "model": {"type": "string"}, "messages": {"type": "array", "items": {"type": "object"}}, "tool_names": {"type": "array", "items": {"type": "string"}}, "max_tokens": {"type": ["integer", "null"]}}),
        )
    }
}

impl<'a> ArgumentCodec<'a> for &'a LlmResult {
    type Owned = LlmResult;

    fn encode(self) -> Value {
        json!({
            "run_id": self.run_id, "text": self.text, "tool_calls": self.tool_calls, "usage": self.usage,
            "error": self.error.as_ref().map(Error::to_value), "duration_ms": duration_millis(self.duration),
        })
    }

    fn decode(value: Value, _: Option<Self>) -> Result<LlmResult> {
        let map = parse_object(value)?;
        let field = |name: &str| map.get(name).filter(|value| !value.is_null());
        Ok(LlmResult {
            run_id: optional_text(field("run_id")).unwrap_or_default().into(),
            text: optional_text(field("text")),
            tool_calls: field("tool_calls")
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default(),
            usage: field("usage").cloned(),
            error: field("error").map(Error::from_value),
            duration: Duration::from_millis(
                field("duration_ms")
                    .and_then(Value::as_u64)
                    .unwrap_or_default(),
            ),
        })
    }

    fn from_owned(owned: &'a LlmResult) -> Self {
        owned
    }

    fn run_id(self) -> Option<&'a str> {
        Some(&self.run_id)
    }

    fn schema() -> Value {
        object_schema(
            &json!({"run_id": {"type": "string"}, "text": {"type": ["string", "null"]}, "tool_calls": {"type": "array"}, "usage": {}, "error": <Option<&Error> as ArgumentCodec<'_>>::schema(), "duration_ms": {"type": "integer"}}),
        )
    }
}

impl<'a> ArgumentCodec<'a> for &'a ToolCall {
    type Owned = ToolCall;

    fn encode(self) -> Value {
        json!({"run_id": self.run_id, "tool": self.tool, "arguments": self.arguments})
    }

    fn decode(value: Value, _: Option<Self>) -> Result<ToolCall> {
        let mut map = parse_object(value)?;
        Ok(ToolCall {
            run_id: optional_text(map.get("run_id")).unwrap_or_default().into(),
            tool: optional_text(map.get("tool")).unwrap_or_default(),
            arguments: map
                .remove("arguments")
                .map(parse_object)
                .transpose()?
                .unwrap_or_default(),
        })
    }

    fn from_owned(owned: &'a ToolCall) -> Self {
        owned
    }

    fn run_id(self) -> Option<&'a str> {
        Some(&self.run_id)
    }

    fn schema() -> Value {
        object_schema(
            &json!({"run_id": {"type": "string"}, "tool": {"type": "string"}, "arguments": {"type": "object"}}),
        )
    }
}

impl<'a> ArgumentCodec<'a> for &'a ToolOutcome {
    type Owned = ToolOutcome;

    fn encode(self) -> Value {
        let duration_ms = duration_millis(self.duration);
        match &self.result {
            Ok(result) => json!({"result": result, "error": null, "duration_ms": duration_ms}),
            Err(error) => {
                json!({"result": null, "error": error.to_value(), "duration_ms": duration_ms})
            }
        }
    }

    fn decode(value: Value, _: Option<Self>) -> Result<ToolOutcome> {
        let mut map = parse_object(value)?;
        let error = map
            .get("error")
            .filter(|error| !error.is_null())
            .map(Error::from_value);
        let duration = map
            .get("duration_ms")
            .and_then(Value::as_u64)
            .unwrap_or_default();
        Ok(ToolOutcome {
            result: error.map_or_else(|| Ok(map.remove("result").unwrap_or_default()), Err),
            duration: Duration::from_millis(duration),
        })
    }

    fn from_owned(owned: &'a ToolOutcome) -> Self {
        owned
    }

    fn schema() -> Value {
        object_schema(
            &json!({"result": {}, "error": <Option<&Error> as ArgumentCodec<'_>>::schema(), "duration_ms": {"type": "integer"}}),
        )
    }
}

impl<'a> ArgumentCodec<'a> for &'a TurnSnapshot {
    type Owned = TurnSnapshot;

    fn encode(self) -> Value {
        json!({
            "session_id": self.session_id, "is_running": self.is_running, "running_count": self.running_count,
            "pending_count": self.pending_count, "steering_count": self.steering_count,
        })
    }

    fn decode(value: Value, _: Option<Self>) -> Result<TurnSnapshot> {
        let map = parse_object(value)?;
        let count = |name: &str| {
            let count = map.get(name).and_then(Value::as_u64);
            count
                .and_then(|count| usize::try_from(count).ok())
                .unwrap_or_default()
        };
        Ok(TurnSnapshot {
            session_id: optional_text(map.get("session_id"))
                .unwrap_or_default()
                .into(),
            is_running: map
                .get("is_running")
                .and_then(Value::as_bool)
                .unwrap_or_default(),
            running_count: count("running_count"),
            pending_count: count("pending_count"),
            steering_count: count("steering_count"),
        })
    }

    fn from_owned(owned: &'a TurnSnapshot) -> Self {
        owned
    }

    fn schema() -> Value {
        let count = json!({"type": "integer", "minimum": 0});
        object_schema(
            &json!({"session_id": {"type": "string"}, "is_running": {"type": "boolean"}, "running_count": count, "pending_count": count, "steering_count": count}),
        )
    }
}

impl<'a> ArgumentCodec<'a> for &'a ApprovalRequest {
    type Owned = ApprovalRequest;

    fn encode(self) -> Value {
        json!({
            "id": self.id, "tool": self.tool, "arguments": self.arguments, "sender": encode_sender(&self.sender),
            "session_id": self.session_id, "expires_seconds": self.expires.as_secs_f64(), "reason": self.reason,
        })
    }

    fn decode(value: Value, _: Option<Self>) -> Result<ApprovalRequest> {
        let mut map = parse_object(value)?;
        let arguments = map
            .remove("arguments")
            .map(parse_object)
            .transpose()?
            .unwrap_or_default();
        let field = |name: &str| optional_text(map.get(name)).unwrap_or_default();
        let expires = map
            .get("expires_seconds")
            .and_then(Value::as_f64)
            .unwrap_or_default();
        Ok(ApprovalRequest {
            id: field("id"),
            tool: field("tool"),
            arguments,
            sender: decode_sender(map.get("sender")),
            session_id: field("session_id").into(),
            expires: Duration::try_from_secs_f64(expires).unwrap_or_default(),
            reason: field("reason"),
        })
    }

    fn from_owned(owned: &'a ApprovalRequest) -> Self {
        owned
    }

    fn session_id(self) -> Option<&'a SessionId> {
        Some(&self.session_id)
    }

    fn schema() -> Value {
        object_schema(
            &json!({"id": {"type": "string"}, "tool": {"type": "string"}, "arguments": {"type": "object"}, "sender": sender_schema(), "session_id": {"type": "string"}, "expires_seconds": {"type": "number"}, "reason": {"type": "string"}}),
        )
    }
}

impl<'a> ArgumentCodec<'a> for &'a Tape {
    type Owned = Tape;

    fn encode(self) -> Value {
        json!({"name": self.name().to_string()})
    }

    fn decode(value: Value, previous: Option<Self>) -> Result<Tape> {
        let name = optional_text(value.get("name")).unwrap_or_default();
        // The protocol carries only the name; a plugin reads the entries with `tape/query`.
        if let Some(previous) = previous {
            return Ok(previous.clone());
        }
        Ok(Tape::new(
            Arc::new(MemoryStore::default()),
            TapeName::new(name)?,
        ))
    }

    fn from_owned(owned: &'a Tape) -> Self {
        owned
    }

    fn schema() -> Value {
        object_schema(&json!({"name": {"type": "string"}}))
    }
}

/// Implements [`ArgumentCodec`] for arguments that cannot be serialized: they are sent as null. A plugin declares its
/// channels and commands in its descriptor instead.
macro_rules! impl_null_argument {
    ($($ty:ty: $empty:expr;)*) => {$(
        impl<'a> ArgumentCodec<'a> for &'a $ty {
            type Owned = $ty;

            fn encode(self) -> Value {
                Value::Null
            }

            fn decode(_: Value, _: Option<Self>) -> Result<$ty> {
                Ok($empty)
            }

            fn from_owned(owned: &'a $ty) -> Self {
                owned
            }

            fn schema() -> Value {
                json!({"type": "null"})
            }
        }
    )*};
}

impl_null_argument! {
    CliApp: CliApp::default();
    MessageHandler: Arc::new(|_| {
        Box::pin(std::future::ready(Err(Error::unknown("cannot handle the message: an external plugin sends the messages of its channels with `channel/inbound`"))))
    });
}
