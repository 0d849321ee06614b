//! Types of the plugin protocol that are one JSON value, such as a string.

use std::{path::PathBuf, sync::Arc, time::Duration};

use bub_kernel::{
    Channel, CliApp, Envelope, Error, ExecutionEnvironment, Fields, HttpRoute, MessageHandler,
    ModelStream, Prompt, Provided, Result, Role, ScopeGuard, Service, SessionId, State, StatePatch,
    SteeringInbox, TurnId,
};
use bub_tape::{Sidecar, TapeStore};
use serde_json::{Map, Value, json};

use super::{
    TurnFacts, Wire,
    objects::{Milliseconds, Seconds},
    type_error,
};

/// Implements [`Wire`] for the types of a table. The columns are the type, the fact about the turn that it is, what an
/// error message calls it, its JSON Schema, its encoding, and its decoding.
macro_rules! wire_values {
    ($(
        $ty:ty $(, is $fact:ident)?: $expected:literal, $schema:tt, $encode:expr,
        { $($json:pat $(if $condition:expr)? => $decoded:expr),* };
    )*) => {$(
        impl Wire for $ty {
            fn encode(&self) -> Value {
                let encode: fn(&Self) -> Value = $encode;
                encode(self)
            }

            fn decode(value: Value) -> Result<Self> {
                #[allow(unreachable_patterns, unreachable_code, reason = "some types accept every value, others none")]
                match value {
                    $( $json $(if $condition)? => Ok($decoded), )*
                    other => Err(type_error($expected, &other)),
                }
            }

            fn schema() -> Value {
                json!($schema)
            }

            $( fn add_facts<'a>(&'a self, facts: &mut TurnFacts<'a>) {
                facts.$fact.get_or_insert(self);
            } )?
        }
    )*};
}

wire_values! {
    Value: "a value", {}, Value::clone, { value => value };
    (): "null", {"type": "null"}, |()| Value::Null, { _ => () };
    bool: "true or false", {"type": "boolean"}, |flag| (*flag).into(), { Value::Bool(flag) => flag };
    u64: "a whole number", {"type": "integer"}, |number| (*number).into(), {
        Value::Number(number) if number.is_u64() => number.as_u64().unwrap_or_default()
    };
    usize: "a whole number", {"type": "integer", "minimum": 0}, |number| (*number).into(), {
        number if number.is_u64() => usize::try_from(u64::decode(number)?).unwrap_or(usize::MAX)
    };
    Milliseconds: "milliseconds", {"type": "integer"},
        |duration| u64::try_from(duration.0.as_millis()).unwrap_or(u64::MAX).into(),
        { number => Self(Duration::from_millis(number.as_u64().unwrap_or_default())) };
    Seconds: "seconds", {"type": "number"}, |duration| duration.0.as_secs_f64().into(), {
        number => Self(Duration::try_from_secs_f64(number.as_f64().unwrap_or_default()).unwrap_or_default())
    };
    String: "a string", {"type": "string"}, |text| text.as_str().into(), { Value::String(text) => text };
    SessionId, is session_id: "a string", {"type": "string"}, |id| id.into(), { Value::String(text) => text.into() };
    TurnId: "a string", {"type": "string"}, |id| id.into(), { Value::String(text) => text.into() };
    PathBuf: "a string", {"type": "string"}, |path| path.to_string_lossy().into(), {
        Value::String(text) => text.into()
    };
    Role: "the name of a role", {"enum": Role::ALL.map(Role::name)}, |role| role.name().into(), {
        Value::String(name) if Role::from_name(&name).is_some() => Role::from_name(&name).unwrap_or_default()
    };
    Map<String, Value>: "an object", {"type": "object"}, |map| map.clone().into(), { Value::Object(map) => map };
    Vec<Value>: "a list", {"type": "array"}, |items| items.clone().into(), { Value::Array(items) => items };
    Vec<String>: "a list of strings", {"type": "array", "items": {"type": "string"}}, |texts| texts.clone().into(), {
        // Values of other types are skipped.
        Value::Array(items) => items.into_iter().flat_map(String::decode).collect()
    };
    Arc<Vec<Value>>: "a list of messages", {"type": "array", "items": {"type": "object"}},
        |messages| (**messages).clone().into(),
        { Value::Array(messages) => Arc::new(messages) };
    Prompt: "a string or a list of parts",
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]},
        |prompt| serde_json::to_value(prompt).unwrap_or_default(),
        { Value::String(text) => Self::Text(text), Value::Array(parts) => Self::Parts(parts) };
    StatePatch: "an object", {"type": "object"}, |patch| State::from_patch(patch.clone()).encode(), {
        Value::Object(map) => Self::from(Fields::from(map))
    };
    Vec<Envelope>: "messages", {"anyOf": [{"type": "object"}, {"type": "array", "items": {"type": "object"}}]},
        |messages| messages.iter().map(Wire::encode).collect(),
        { rendered => Envelope::from_rendered(rendered) };
    Error: "an error",
        {
            "type": "object",
            "properties": {
                "kind": {"enum": [
                    "invalid_input", "config", "provider", "tool", "temporary", "not_found", "cancelled", "unknown"
                ]},
                "message": {"type": "string"},
                "details": {"type": "object"}
            },
            "required": ["kind", "message"]
        },
        Self::to_value,
        { error => Self::from_value(&error) };

    // The module `stream` sends the events of a stream.
    ModelStream: "a string", {"type": "string", "description": "or a stream of events"}, |_| Value::Null, {
        Value::String(text) => Self::from_text(text)
    };

    // Arguments that are Rust objects. An external plugin declares its commands and channels in its descriptor.
    CliApp: "null", {"type": "null"}, |_| Value::Null, { _ => Self::default() };
    MessageHandler: "null", {"type": "null"}, |_| Value::Null, { _ => unsupported_handler() };

    // Results that are Rust objects, which cannot be sent between processes.
    // The object is in the plugin's process. The modules `hook` and `remote_store` use it through requests.
    Provided<dyn TapeStore>: "{\"provided\": true}", {"type": "object"}, |_| Value::Null, {};
    Provided<dyn SteeringInbox>: "{\"provided\": true}", {"type": "object"}, |_| Value::Null, {};
    Arc<dyn ExecutionEnvironment>: "an object with `id`",
        {
            "type": "object",
            "properties": {"id": {"type": "string"}, "workspace": {"type": ["string", "null"]}},
            "required": ["id"]
        },
        |_| Value::Null,
        {};
    Box<dyn ScopeGuard>: "null", {"type": "null"}, |_| Value::Null, {};
    Sidecar: "an object with `name`",
        {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
        |sidecar| json!({"name": sidecar.name}),
        { value if value.get("name").is_some_and(Value::is_string) => {
            Self::new(value.get("name").and_then(Value::as_str).unwrap_or_default())
        } };
    Vec<Arc<dyn Channel>>: "no result: an external plugin cannot provide a Rust object", false, |_| Value::Null, {};
    Vec<Arc<dyn Service>>: "no result: an external plugin cannot provide a Rust object", false, |_| Value::Null, {};
    Vec<HttpRoute>: "no result: an external plugin cannot provide a Rust object", false, |_| Value::Null, {};
}

fn unsupported_handler() -> MessageHandler {
    let error = "cannot handle the message: an external plugin sends the messages of its channels with `channel/inbound`";
    Arc::new(move |_| Box::pin(std::future::ready(Err(Error::unknown(error)))))
}
