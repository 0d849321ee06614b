//! Types of the plugin protocol that are JSON objects.

use std::{sync::Arc, time::Duration};

use bub_kernel::{
    Admission, AdmissionDecision, ApprovalAnswer, ApprovalRequest, Envelope, Error, LlmDecision,
    LlmRequest, LlmResult, ModelOption, ModelOptions, Result, Sender, State, StatePatch, ToolCall,
    ToolDecision, ToolOutcome, TurnSnapshot,
};
use bub_tape::{AnchorSelector, MemoryStore, Tape, TapeContext, TapeName};
use serde_json::{Map, Value, json};

use super::{TurnFacts, Wire, type_error};

/// A duration that is sent in milliseconds.
#[derive(Default)]
pub(super) struct Milliseconds(pub(super) Duration);

/// A duration that is sent in seconds.
#[derive(Default)]
pub(super) struct Seconds(pub(super) Duration);

/// Implements [`Wire`] for the objects of a table. A row lists the fields of a struct. A field that is missing or invalid
/// has its default value, unless it is `required`. A field with another name in the protocol also has the type that it is
/// sent as. `in` names the field that is a fact about the turn. Other fields
/// are not sent.
macro_rules! wire_objects {
    ($( $ty:ident $(in $fact:ident)? { $($field:ident $(($($how:tt)+))?),* } )*) => {$(
        impl Wire for $ty {
            fn encode(&self) -> Value {
                let mut fields = Map::new();
                $( fields.insert(
                    wire_objects!(@name $field $($($how)+)?).to_owned(),
                    wire_objects!(@encode self.$field, $($($how)+)?),
                ); )*
                fields.into()
            }

            fn decode(value: Value) -> Result<Self> {
                let mut fields = Map::decode(value)?;
                let mut take = |name| fields.remove(name).unwrap_or_default();
                let mut object = Self::default();
                $( object.$field =
                    wire_objects!(@decode take(wire_objects!(@name $field $($($how)+)?)), $($($how)+)?); )*
                Ok(object)
            }

            fn schema() -> Value {
                let mut properties = Map::new();
                $( properties.insert(
                    wire_objects!(@name $field $($($how)+)?).to_owned(),
                    wire_objects!(@schema $field, $($($how)+)?),
                ); )*
                object_schema(&properties.into())
            }

            $( fn add_facts<'a>(&'a self, facts: &mut TurnFacts<'a>) {
                facts.$fact.get_or_insert(&self.$fact);
            } )?
        }
    )*};
    (@name $field:ident $(required)?) => { stringify!($field) };
    (@name $field:ident $name:literal as $ty:ident) => { $name };
    (@encode $field:expr, $(required)?) => { Wire::encode(&$field) };
    (@encode $field:expr, $name:literal as $ty:ident) => { Wire::encode(&$ty($field)) };
    (@decode $value:expr,) => { Wire::decode($value).unwrap_or_default() };
    (@decode $value:expr, required) => { Wire::decode($value)? };
    (@decode $value:expr, $name:literal as $ty:ident) => { $ty::decode($value).unwrap_or_default().0 };
    (@schema $field:ident, $(required)?) => { field_schema(|object: &Self| &object.$field) };
    (@schema $field:ident, $name:literal as $ty:ident) => { $ty::schema() };
}

wire_objects! {
    Sender { role, channel, chat_id, id, name }
    LlmRequest in run_id { run_id, model, messages (required), tool_names, max_tokens }
    LlmResult in run_id { run_id, text, tool_calls, usage, error, duration ("duration_ms" as Milliseconds) }
    ToolCall in run_id { run_id, tool, arguments (required), code_mode }
    TurnSnapshot { session_id, is_running, running_count, pending_count, steering_count }
    ApprovalRequest in session_id {
        id, tool, arguments (required), sender, session_id, expires ("expires_seconds" as Seconds), reason
    }
}

/// Returns the schema of the field that a function selects.
fn field_schema<O, T: Wire>(_: fn(&O) -> &T) -> Value {
    T::schema()
}

/// Returns the JSON Schema of an object whose properties are all required.
fn object_schema(properties: &Value) -> Value {
    let properties = properties.as_object();
    let names: Vec<_> = properties.into_iter().flat_map(Map::keys).collect();
    json!({"type": "object", "properties": properties, "required": names})
}

fn optional_text(value: Option<&Value>) -> Option<String> {
    value.and_then(Value::as_str).map(str::to_owned)
}

impl<T: Wire> Wire for Option<T> {
    fn encode(&self) -> Value {
        self.as_ref().map(T::encode).unwrap_or_default()
    }

    fn decode(value: Value) -> Result<Self> {
        (!value.is_null()).then(|| T::decode(value)).transpose()
    }

    fn schema() -> Value {
        let schema = T::schema();
        match (schema.get("type"), schema.as_object().map(Map::len)) {
            // Every value, which includes null.
            (None, Some(0)) => schema,
            (Some(name), Some(1)) => json!({"type": [name, "null"]}),
            _ => json!({"anyOf": [schema, {"type": "null"}]}),
        }
    }
}

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

impl Wire for ToolOutcome {
    fn encode(&self) -> Value {
        let error = self.result.as_ref().err().map(Error::to_value);
        let duration = Milliseconds(self.duration).encode();
        json!({"result": self.result.as_ref().ok(), "error": error, "duration_ms": duration})
    }

    fn decode(value: Value) -> Result<Self> {
        let mut fields = Map::decode(value)?;
        let mut take = |name| fields.remove(name).unwrap_or_default();
        let error = Option::<Error>::decode(take("error"))?;
        Ok(Self {
            result: error.map_or_else(|| Ok(take("result")), Err),
            duration: Milliseconds::decode(take("duration_ms"))?.0,
        })
    }

    fn schema() -> Value {
        object_schema(
            &json!({"result": {}, "error": Option::<Error>::schema(), "duration_ms": Milliseconds::schema()}),
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

impl Wire for TapeContext {
    fn encode(&self) -> Value {
        match &self.anchor {
            AnchorSelector::Last => json!({"anchor": "last"}),
            AnchorSelector::Whole => json!({"anchor": null}),
            AnchorSelector::Named(name) => json!({"anchor": {"name": name}}),
        }
    }

    fn decode(value: Value) -> Result<Self> {
        let anchor = match value.get("anchor") {
            Some(Value::Null) => AnchorSelector::Whole,
            Some(Value::String(last)) if last == "last" => AnchorSelector::Last,
            Some(Value::Object(named)) if named.contains_key("name") => {
                AnchorSelector::Named(optional_text(named.get("name")).unwrap_or_default())
            }
            _ => {
                return Err(type_error(
                    "an object with `anchor`: \"last\", null or {\"name\": …}",
                    &value,
                ));
            }
        };
        Ok(Self::new().with_anchor(anchor))
    }

    fn schema() -> Value {
        let named = object_schema(&json!({"name": {"type": "string"}}));
        object_schema(&json!({"anchor": {"anyOf": [{"const": "last"}, {"type": "null"}, named]}}))
    }
}

impl Wire for ModelOptions {
    fn encode(&self) -> Value {
        let choices = self
            .choices
            .iter()
            .map(|choice| json!({"id": choice.id, "label": choice.label}));
        json!({"choices": choices.collect::<Vec<_>>(), "current": self.current})
    }

    fn decode(value: Value) -> Result<Self> {
        let Some(choices) = value.get("choices").and_then(Value::as_array) else {
            return Err(type_error("an object with `choices`", &value));
        };
        let choice = |choice: &Value| {
            let id = optional_text(choice.get("id").or(Some(choice)))?;
            Some(ModelOption {
                id,
                label: optional_text(choice.get("label")),
            })
        };
        Ok(Self {
            choices: choices.iter().filter_map(choice).collect(),
            current: optional_text(value.get("current")),
        })
    }

    fn schema() -> Value {
        let choice = json!({"type": "object", "properties": {"id": {"type": "string"}, "label": {"type": ["string", "null"]}}, "required": ["id"]});
        json!({"type": "object", "properties": {"choices": {"type": "array", "items": choice}, "current": {"type": ["string", "null"]}}, "required": ["choices"]})
    }
}

impl Wire for LlmDecision {
    fn encode(&self) -> Value {
        match self {
            Self::Proceed(request) => json!({"proceed": request.encode()}),
            Self::Finish(text) => json!({"finish": text}),
            _ => Value::Null,
        }
    }

    fn decode(value: Value) -> Result<Self> {
        match only_field(&value) {
            Some(("proceed", request)) => LlmRequest::decode(request.clone()).map(Self::Proceed),
            Some(("finish", Value::String(text))) => Ok(Self::Finish(text.clone())),
            _ => Err(type_error(
                "{\"proceed\": request} or {\"finish\": text}",
                &value,
            )),
        }
    }

    fn schema() -> Value {
        let request = LlmRequest::schema();
        json!({"oneOf": [object_schema(&json!({"proceed": request})), object_schema(&json!({"finish": {"type": "string"}}))]})
    }
}

impl Wire for ToolDecision {
    fn encode(&self) -> Value {
        match self {
            Self::Proceed(arguments) => json!({"proceed": arguments}),
            Self::Replace(result) => json!({"replace": result}),
            Self::Deny(reason) => json!({"deny": reason}),
            // Not a decision, so the call is denied.
            _ => Value::Null,
        }
    }

    fn to_response_value(&self) -> Option<Value> {
        (*self != Self::Proceed(None)).then(|| self.encode())
    }

    fn decode(value: Value) -> Result<Self> {
        let expected = "{\"proceed\": arguments}, {\"replace\": result} or {\"deny\": reason}";
        match only_field(&value) {
            Some(("proceed", Value::Object(arguments))) => {
                Ok(Self::Proceed(Some(arguments.clone())))
            }
            Some(("replace", result)) => Ok(Self::Replace(result.clone())),
            Some(("deny", Value::Null)) => Ok(Self::Deny(None)),
            Some(("deny", Value::String(reason))) => Ok(Self::Deny(Some(reason.clone()))),
            _ => Err(type_error(expected, &value)),
        }
    }

    fn schema() -> Value {
        let (arguments, reason) = (
            json!({"type": "object"}),
            json!({"type": ["string", "null"]}),
        );
        json!({"oneOf": [object_schema(&json!({"proceed": arguments})), object_schema(&json!({"replace": {}})), object_schema(&json!({"deny": reason}))]})
    }
}

impl Wire for Admission {
    fn encode(&self) -> Value {
        json!({"decision": self.decision.name(), "reason": self.reason})
    }

    fn decode(value: Value) -> Result<Self> {
        let name = value.as_str().or_else(|| value.get("decision")?.as_str());
        let decision = name.and_then(AdmissionDecision::from_name);
        let decision = decision.ok_or_else(|| {
            type_error(
                "an object with `decision`: process, drop, follow_up or steer",
                &value,
            )
        })?;
        Ok(Self {
            decision,
            reason: optional_text(value.get("reason")),
        })
    }

    fn schema() -> Value {
        let decisions = ["process", "drop", "follow_up", "steer"];
        json!({"type": "object", "properties": {"decision": {"enum": decisions}, "reason": {"type": ["string", "null"]}}, "required": ["decision"]})
    }
}

impl Wire for ApprovalAnswer {
    fn encode(&self) -> Value {
        match self {
            Self::Approved => json!({"approved": true}),
            Self::ApprovedForSession => json!({"approved": true, "scope": "session"}),
            Self::ApprovedAlways => json!({"approved": true, "scope": "always"}),
            Self::Denied(reason) => json!({"approved": false, "reason": reason}),
            _ => json!({"approved": false}),
        }
    }

    fn decode(value: Value) -> Result<Self> {
        match value.get("approved").and_then(Value::as_bool) {
            Some(true) => match value.get("scope").and_then(Value::as_str) {
                Some("session") => Ok(Self::ApprovedForSession),
                Some("always") => Ok(Self::ApprovedAlways),
                Some("once") | None => Ok(Self::Approved),
                Some(_) => Err(type_error("a scope: once, session or always", &value)),
            },
            Some(false) => Ok(Self::Denied(optional_text(value.get("reason")))),
            None => Err(type_error("an object with `approved`", &value)),
        }
    }

    fn schema() -> Value {
        json!({"type": "object", "properties": {"approved": {"type": "boolean"}, "scope": {"enum": ["once", "session", "always"]}, "reason": {"type": ["string", "null"]}}, "required": ["approved"]})
    }
}

/// Returns the name and the value of the only field of an object, or `None` for any other value.
fn only_field(value: &Value) -> Option<(&str, &Value)> {
    let map = value.as_object().filter(|map| map.len() == 1)?;
    map.iter()
        .next()
        .map(|(name, value)| (name.as_str(), value))
}
