//! Encoding of hook results.

use std::sync::Arc;

use bub_kernel::{
    Admission, AdmissionDecision, ApprovalAnswer, Channel, Envelope, Error, Fields, LlmDecision,
    LlmRequest, ModelOption, ModelOptions, ModelStream, Prompt, Provided, Result, State,
    StatePatch, SteeringInbox, ToolDecision,
};
use bub_tape::{AnchorSelector, Sidecar, TapeContext, TapeStore};
use serde_json::{Value, json};

use super::{Wire, object_schema, optional_text, parse_object, parse_text, type_error};

/// Implements [`Wire`] for results that are Rust objects: decoding fails, because they cannot be sent between
/// processes.
macro_rules! reject_result {
    ($($ty:ty),*) => {$(
        impl Wire for $ty {
            fn encode(&self) -> Value {
                Value::Null
            }

            fn decode(_: Value) -> Result<Self> {
                Err(Error::unknown("unsupported result: an external plugin cannot provide a Rust object"))
            }

            fn schema() -> Value {
                json!(false)
            }
        }
    )*};
}

reject_result!(
    Provided<dyn TapeStore>,
    Provided<dyn SteeringInbox>,
    Sidecar,
    Vec<Arc<dyn Channel>>
);

impl Wire for String {
    fn encode(&self) -> Value {
        self.as_str().into()
    }

    fn decode(value: Value) -> Result<Self> {
        parse_text(value)
    }

    fn schema() -> Value {
        json!({"type": "string"})
    }
}

impl Wire for () {
    fn encode(&self) -> Value {
        Value::Null
    }

    fn decode(_: Value) -> Result<Self> {
        Ok(())
    }

    fn schema() -> Value {
        json!({"type": "null"})
    }
}

impl Wire for bool {
    fn encode(&self) -> Value {
        (*self).into()
    }

    fn decode(value: Value) -> Result<Self> {
        value
            .as_bool()
            .ok_or_else(|| type_error("true or false", &value))
    }

    fn schema() -> Value {
        json!({"type": "boolean"})
    }
}

impl Wire for Value {
    fn encode(&self) -> Value {
        self.clone()
    }

    fn decode(value: Value) -> Result<Self> {
        Ok(value)
    }

    fn schema() -> Value {
        json!({})
    }
}

impl Wire for StatePatch {
    fn encode(&self) -> Value {
        State::from_patch(self.clone()).encode()
    }

    fn decode(value: Value) -> Result<Self> {
        parse_object(value).map(|map| Self::from(Fields::from(map)))
    }

    fn schema() -> Value {
        json!({"type": "object"})
    }
}

impl Wire for Prompt {
    fn encode(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    fn decode(value: Value) -> Result<Self> {
        match value {
            Value::String(text) => Ok(Self::Text(text)),
            Value::Array(parts) => Ok(Self::Parts(parts)),
            other => Err(type_error("a string or a list of parts", &other)),
        }
    }

    fn schema() -> Value {
        json!({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]})
    }
}

impl Wire for Vec<Envelope> {
    fn encode(&self) -> Value {
        self.iter().map(Wire::encode).collect()
    }

    fn decode(value: Value) -> Result<Self> {
        Ok(Envelope::from_rendered(value))
    }

    fn schema() -> Value {
        json!({"anyOf": [{"type": "object"}, {"type": "array", "items": {"type": "object"}}]})
    }
}

impl Wire for ModelStream {
    /// Returns null. The module `stream` sends the events of the stream.
    fn encode(&self) -> Value {
        Value::Null
    }

    fn decode(value: Value) -> Result<Self> {
        parse_text(value).map(Self::from_text)
    }

    fn schema() -> Value {
        json!({"type": "string", "description": "or a stream of events"})
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
            Self::Denied(reason) => json!({"approved": false, "reason": reason}),
        }
    }

    fn decode(value: Value) -> Result<Self> {
        match value.get("approved").and_then(Value::as_bool) {
            Some(true) => Ok(Self::Approved),
            Some(false) => Ok(Self::Denied(optional_text(value.get("reason")))),
            None => Err(type_error("an object with `approved`", &value)),
        }
    }

    fn schema() -> Value {
        json!({"type": "object", "properties": {"approved": {"type": "boolean"}, "reason": {"type": ["string", "null"]}}, "required": ["approved"]})
    }
}

/// Returns the name and the value of the only field of an object, or `None` for any other value.
fn only_field(value: &Value) -> Option<(&str, &Value)> {
    let map = value.as_object().filter(|map| map.len() == 1)?;
    map.iter()
        .next()
        .map(|(name, value)| (name.as_str(), value))
}
