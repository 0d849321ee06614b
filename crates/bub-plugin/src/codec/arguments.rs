//! Encoding of hook arguments.

use std::{path::PathBuf, sync::Arc, time::Duration};

use bub_kernel::{
    ApprovalRequest, CliApp, Envelope, Error, LlmRequest, LlmResult, MessageHandler, Result,
    Sender, SessionId, State, StatePatch, ToolCall, ToolOutcome, TurnSnapshot,
};
use bub_tape::{MemoryStore, Tape, TapeName};
use serde_json::{Map, Value, json};

use super::{
    TurnFacts, Wire, object_schema, optional_text, parse_object, parse_text, take_arguments,
    take_field, type_error,
};

impl Wire for Envelope {
    fn encode(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    fn decode(value: Value) -> Result<Self> {
        Ok(Self::from_value(value))
    }

    fn decode_replacement(&self, value: Value) -> Result<Self> {
        let new = Self::from_value(value);
        // Start from the previous message, to keep its values that are not serialized, such as the media fetcher.
        let mut envelope = self.clone();
        for (name, _) in self.fields().iter() {
            if new.field(name).is_none() {
                envelope.set(name.to_owned(), Value::Null);
            }
        }
        for (name, value) in new.fields().iter() {
            if envelope.field(name) != Some(value) {
                envelope.set(name.to_owned(), value.clone());
            }
        }
        Ok(envelope)
    }

    fn add_facts<'a>(&'a self, facts: &mut TurnFacts<'a>) {
        facts.message.get_or_insert(self);
    }

    fn schema() -> Value {
        json!({"type": "object", "description": "an envelope"})
    }
}

impl<T: Wire> Wire for Option<T> {
    fn encode(&self) -> Value {
        self.as_ref().map(T::encode).unwrap_or_default()
    }

    fn decode(value: Value) -> Result<Self> {
        (!value.is_null()).then(|| T::decode(value)).transpose()
    }

    fn schema() -> Value {
        json!({"anyOf": [T::schema(), {"type": "null"}]})
    }
}

impl Wire for SessionId {
    fn encode(&self) -> Value {
        self.into()
    }

    fn decode(value: Value) -> Result<Self> {
        parse_text(value).map(Self::from)
    }

    fn add_facts<'a>(&'a self, facts: &mut TurnFacts<'a>) {
        facts.session_id.get_or_insert(self);
    }

    fn schema() -> Value {
        String::schema()
    }
}

impl Wire for PathBuf {
    fn encode(&self) -> Value {
        self.to_string_lossy().into()
    }

    fn decode(value: Value) -> Result<Self> {
        parse_text(value).map(Self::from)
    }

    fn schema() -> Value {
        String::schema()
    }
}

impl Wire for State {
    fn encode(&self) -> Value {
        serde_json::to_value(self.public_fields()).unwrap_or_default()
    }

    fn decode(value: Value) -> Result<Self> {
        Ok(Self::from_patch(StatePatch::from(value)))
    }

    /// Returns the same state: a turn has one state, which a plugin cannot replace.
    fn decode_replacement(&self, _: Value) -> Result<Self> {
        Ok(self.clone())
    }

    fn add_facts<'a>(&'a self, facts: &mut TurnFacts<'a>) {
        facts.state.get_or_insert(self);
    }

    fn schema() -> Value {
        json!({"type": "object", "description": "the public part of the state"})
    }
}

impl Wire for Error {
    fn encode(&self) -> Value {
        self.to_value()
    }

    fn decode(value: Value) -> Result<Self> {
        Ok(Self::from_value(&value))
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

impl Wire for LlmRequest {
    fn encode(&self) -> Value {
        json!({
            "run_id": self.run_id, "model": self.model, "messages": *self.messages,
            "tool_names": self.tool_names, "max_tokens": self.max_tokens,
        })
    }

    fn decode(value: Value) -> Result<Self> {
        let mut fields = parse_object(value)?;
        let messages = match fields.remove("messages") {
            Some(Value::Array(messages)) => messages,
            other => return Err(type_error("a list of messages", &other.unwrap_or_default())),
        };
        let names: Vec<Value> = take_field(&mut fields, "tool_names");
        Ok(Self {
            run_id: take_field(&mut fields, "run_id"),
            model: take_field(&mut fields, "model"),
            messages: Arc::new(messages),
            tool_names: names.into_iter().flat_map(parse_text).collect(),
            max_tokens: take_field(&mut fields, "max_tokens"),
        })
    }

    fn add_facts<'a>(&'a self, facts: &mut TurnFacts<'a>) {
        facts.run_id.get_or_insert(&self.run_id);
    }

    fn schema() -> Value {
        object_schema(
            &json!({"run_id": {"type": "string"}, "model": {"type": "string"}, "messages": {"type": "array", "items": {"type": "object"}}, "tool_names": {"type": "array", "items": {"type": "string"}}, "max_tokens": {"type": ["integer", "null"]}}),
        )
    }
}

impl Wire for LlmResult {
    fn encode(&self) -> Value {
        json!({
            "run_id": self.run_id, "text": self.text, "tool_calls": self.tool_calls, "usage": self.usage,
            "error": self.error.encode(), "duration_ms": duration_millis(self.duration),
        })
    }

    fn decode(value: Value) -> Result<Self> {
        let mut fields = parse_object(value)?;
        Ok(Self {
            run_id: take_field(&mut fields, "run_id"),
            text: take_field(&mut fields, "text"),
            tool_calls: take_field(&mut fields, "tool_calls"),
            usage: take_field(&mut fields, "usage"),
            error: take_error(&mut fields),
            duration: Duration::from_millis(take_field(&mut fields, "duration_ms")),
        })
    }

    fn add_facts<'a>(&'a self, facts: &mut TurnFacts<'a>) {
        facts.run_id.get_or_insert(&self.run_id);
    }

    fn schema() -> Value {
        object_schema(
            &json!({"run_id": {"type": "string"}, "text": {"type": ["string", "null"]}, "tool_calls": {"type": "array"}, "usage": {}, "error": Option::<Error>::schema(), "duration_ms": {"type": "integer"}}),
        )
    }
}

impl Wire for ToolCall {
    fn encode(&self) -> Value {
        json!({"run_id": self.run_id, "tool": self.tool, "arguments": self.arguments})
    }

    fn decode(value: Value) -> Result<Self> {
        let mut fields = parse_object(value)?;
        Ok(Self {
            run_id: take_field(&mut fields, "run_id"),
            tool: take_field(&mut fields, "tool"),
            arguments: take_arguments(&mut fields)?,
        })
    }

    fn add_facts<'a>(&'a self, facts: &mut TurnFacts<'a>) {
        facts.run_id.get_or_insert(&self.run_id);
    }

    fn schema() -> Value {
        object_schema(
            &json!({"run_id": {"type": "string"}, "tool": {"type": "string"}, "arguments": {"type": "object"}}),
        )
    }
}

impl Wire for ToolOutcome {
    fn encode(&self) -> Value {
        let error = self.result.as_ref().err().map(Error::to_value);
        json!({
            "result": self.result.as_ref().ok(), "error": error, "duration_ms": duration_millis(self.duration),
        })
    }

    fn decode(value: Value) -> Result<Self> {
        let mut fields = parse_object(value)?;
        let error = take_error(&mut fields);
        Ok(Self {
            result: error.map_or_else(|| Ok(take_field(&mut fields, "result")), Err),
            duration: Duration::from_millis(take_field(&mut fields, "duration_ms")),
        })
    }

    fn schema() -> Value {
        object_schema(
            &json!({"result": {}, "error": Option::<Error>::schema(), "duration_ms": {"type": "integer"}}),
        )
    }
}

impl Wire for TurnSnapshot {
    fn encode(&self) -> Value {
        json!({
            "session_id": self.session_id, "is_running": self.is_running, "running_count": self.running_count,
            "pending_count": self.pending_count, "steering_count": self.steering_count,
        })
    }

    fn decode(value: Value) -> Result<Self> {
        let mut fields = parse_object(value)?;
        Ok(Self {
            session_id: take_field(&mut fields, "session_id"),
            is_running: take_field(&mut fields, "is_running"),
            running_count: take_field(&mut fields, "running_count"),
            pending_count: take_field(&mut fields, "pending_count"),
            steering_count: take_field(&mut fields, "steering_count"),
        })
    }

    fn schema() -> Value {
        let count = json!({"type": "integer", "minimum": 0});
        object_schema(
            &json!({"session_id": {"type": "string"}, "is_running": {"type": "boolean"}, "running_count": count, "pending_count": count, "steering_count": count}),
        )
    }
}

impl Wire for ApprovalRequest {
    fn encode(&self) -> Value {
        json!({
            "id": self.id, "tool": self.tool, "arguments": self.arguments, "sender": self.sender.encode(),
            "session_id": self.session_id, "expires_seconds": self.expires.as_secs_f64(), "reason": self.reason,
        })
    }

    fn decode(value: Value) -> Result<Self> {
        let mut fields = parse_object(value)?;
        let seconds = take_field(&mut fields, "expires_seconds");
        Ok(Self {
            id: take_field(&mut fields, "id"),
            tool: take_field(&mut fields, "tool"),
            arguments: take_arguments(&mut fields)?,
            sender: Sender::decode(fields.remove("sender").unwrap_or_default())?,
            session_id: take_field(&mut fields, "session_id"),
            expires: Duration::try_from_secs_f64(seconds).unwrap_or_default(),
            reason: take_field(&mut fields, "reason"),
        })
    }

    fn add_facts<'a>(&'a self, facts: &mut TurnFacts<'a>) {
        facts.session_id.get_or_insert(&self.session_id);
    }

    fn schema() -> Value {
        object_schema(
            &json!({"id": {"type": "string"}, "tool": {"type": "string"}, "arguments": {"type": "object"}, "sender": Sender::schema(), "session_id": {"type": "string"}, "expires_seconds": {"type": "number"}, "reason": {"type": "string"}}),
        )
    }
}

impl Wire for Tape {
    /// Returns the name. A plugin reads the entries with `tape/query`.
    fn encode(&self) -> Value {
        json!({"name": self.name().to_string()})
    }

    fn decode(value: Value) -> Result<Self> {
        let name = optional_text(value.get("name")).unwrap_or_default();
        let name = TapeName::new(name)?;
        Ok(Self::new(Arc::new(MemoryStore::default()), name))
    }

    /// Returns the same tape: a turn has one tape, which a plugin cannot replace.
    fn decode_replacement(&self, _: Value) -> Result<Self> {
        Ok(self.clone())
    }

    fn schema() -> Value {
        object_schema(&json!({"name": {"type": "string"}}))
    }
}

/// The argument of `register_cli_commands` cannot be serialized. An external plugin does not need it, because its
/// descriptor declares its commands.
impl Wire for CliApp {
    fn encode(&self) -> Value {
        Value::Null
    }

    fn decode(_: Value) -> Result<Self> {
        Ok(Self::default())
    }

    fn schema() -> Value {
        <()>::schema()
    }
}

/// The argument of `provide_channels` cannot be serialized. An external plugin does not need it, because its
/// descriptor declares its channels.
impl Wire for MessageHandler {
    fn encode(&self) -> Value {
        Value::Null
    }

    fn decode(_: Value) -> Result<Self> {
        let error = "cannot handle the message: an external plugin sends the messages of its channels with `channel/inbound`";
        Ok(Arc::new(move |_| {
            Box::pin(std::future::ready(Err(Error::unknown(error))))
        }))
    }

    fn schema() -> Value {
        <()>::schema()
    }
}

fn take_error(fields: &mut Map<String, Value>) -> Option<Error> {
    let error = fields.remove("error").filter(|error| !error.is_null());
    error.as_ref().map(Error::from_value)
}

fn duration_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
