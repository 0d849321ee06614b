//! The types that arguments of tools may have. Models and comma commands write numbers as text and the like, so
//! every type takes what can only mean one thing.

use serde_json::{Map, Number, Value, json};

/// A type that an argument of a [`tool`](macro@crate::tool) may have.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an argument of a tool",
    note = "an argument is a `String`, `bool`, integer, `f64`, `serde_json::Value` or `Map`, or a `Vec` or `Option` of those",
    note = "or a type of your own that implements `ToolArgument`"
)]
pub trait ToolArgument: Sized + Send + 'static {
    /// The JSON Schema the model is shown.
    fn schema() -> Value;

    /// Reads a value, or says what is wrong with it.
    fn from_value(value: Value) -> Result<Self, String>;

    /// What it is when the call does not have it; `None`: the call must.
    fn absent() -> Option<Self> {
        None
    }
}

impl ToolArgument for String {
    fn schema() -> Value {
        json!({"type": "string"})
    }

    fn from_value(value: Value) -> Result<Self, String> {
        match value {
            Value::String(text) => Ok(text),
            Value::Number(number) => Ok(number.to_string()),
            Value::Bool(flag) => Ok(flag.to_string()),
            other => Err(expected("a string", &other)),
        }
    }
}

impl ToolArgument for bool {
    fn schema() -> Value {
        json!({"type": "boolean"})
    }

    fn from_value(value: Value) -> Result<Self, String> {
        let word = match &value {
            Value::Bool(flag) => return Ok(*flag),
            Value::Number(number) => number.to_string(),
            Value::String(text) => text.trim().to_lowercase(),
            other => return Err(expected("true or false", other)),
        };
        match word.as_str() {
            "true" | "t" | "yes" | "y" | "on" | "1" | "1.0" => Ok(true),
            "false" | "f" | "no" | "n" | "off" | "0" | "0.0" => Ok(false),
            _ => Err(expected("true or false", &value)),
        }
    }
}

/// A whole number, also as text or with a fraction of zero.
fn integer(value: &Value) -> Result<i128, String> {
    let number = match value {
        Value::Number(number) => Some(number.clone()),
        Value::String(text) => text.trim().trim_start_matches('+').parse::<Number>().ok(),
        _ => None,
    };
    let whole = number.as_ref().and_then(|number| {
        let fraction = || {
            number
                .as_f64()
                .filter(|float| float.fract() == 0.0 && float.abs() < 1e15)
        };
        #[allow(
            clippy::cast_possible_truncation,
            reason = "whole, and small enough to be exact"
        )]
        number
            .as_i128()
            .or_else(|| fraction().map(|float| float as i128))
    });
    whole.ok_or_else(|| expected("a whole number", value))
}

macro_rules! integers {
    ($($ty:ty)*) => {$(
        impl ToolArgument for $ty {
            fn schema() -> Value {
                json!({"type": "integer"})
            }

            fn from_value(value: Value) -> Result<Self, String> {
                let number = integer(&value)?;
                Self::try_from(number).map_err(|_| {
                    format!("{number} is out of range: from {} to {}", Self::MIN, Self::MAX)
                })
            }
        }
    )*};
}

integers!(i32 i64 u16 u32 u64 usize);

impl ToolArgument for f64 {
    fn schema() -> Value {
        json!({"type": "number"})
    }

    fn from_value(value: Value) -> Result<Self, String> {
        let number = match &value {
            Value::String(text) => text.trim().parse().ok(),
            other => other.as_f64(),
        };
        number
            .filter(|number| number.is_finite())
            .ok_or_else(|| expected("a number", &value))
    }
}

impl ToolArgument for Value {
    fn schema() -> Value {
        json!({})
    }

    fn from_value(value: Value) -> Result<Self, String> {
        Ok(value)
    }
}

impl ToolArgument for Map<String, Value> {
    fn schema() -> Value {
        json!({"type": "object"})
    }

    fn from_value(value: Value) -> Result<Self, String> {
        match value {
            Value::Object(map) => Ok(map),
            Value::String(text) => {
                serde_json::from_str(&text).map_err(|_| expected("an object", &Value::String(text)))
            }
            other => Err(expected("an object", &other)),
        }
    }
}

impl<T: ToolArgument> ToolArgument for Vec<T> {
    fn schema() -> Value {
        json!({"type": "array", "items": T::schema()})
    }

    /// A single value is a list of one; a list may come as its JSON text.
    fn from_value(value: Value) -> Result<Self, String> {
        let items = match value {
            Value::Array(items) => items,
            Value::String(text) => {
                serde_json::from_str(&text).unwrap_or_else(|_| vec![Value::String(text)])
            }
            Value::Null | Value::Object(_) => return Err(expected("a list", &value)),
            single => vec![single],
        };
        let read =
            |(at, item)| T::from_value(item).map_err(|problem| format!("item {at}: {problem}"));
        items.into_iter().enumerate().map(read).collect()
    }
}

impl<T: ToolArgument> ToolArgument for Option<T> {
    fn schema() -> Value {
        json!({"anyOf": [T::schema(), {"type": "null"}]})
    }

    fn from_value(value: Value) -> Result<Self, String> {
        if value.is_null() {
            Ok(None)
        } else {
            T::from_value(value).map(Some)
        }
    }

    fn absent() -> Option<Self> {
        Some(None)
    }
}

/// The one spelling of a value that an argument of that schema reads it as; `None` when it reads none.
pub(super) fn normalized(schema: &Value, value: &Value) -> Option<Value> {
    if let Some(any) = schema.get("anyOf").and_then(Value::as_array) {
        return any.iter().find_map(|schema| normalized(schema, value));
    }
    let whole = || {
        integer(value)
            .ok()
            .and_then(Number::from_i128)
            .map(Value::Number)
    };
    match schema.get("type").and_then(Value::as_str) {
        Some("boolean") => bool::from_value(value.clone()).ok().map(Value::Bool),
        Some("integer") => whole(),
        Some("number") => whole().or_else(|| f64::from_value(value.clone()).ok().map(Value::from)),
        Some("string") => String::from_value(value.clone()).ok().map(Value::String),
        Some("object") => Map::from_value(value.clone()).ok().map(Value::Object),
        Some("array") => {
            let items = Vec::<Value>::from_value(value.clone()).ok()?;
            items
                .iter()
                .map(|item| normalized(schema.get("items")?, item))
                .collect()
        }
        Some("null") => value.is_null().then_some(Value::Null),
        _ => Some(value.clone()),
    }
}

fn expected(what: &str, value: &Value) -> String {
    const MAX_SHOWN_CHARS: usize = 80;
    let text = value.to_string();
    let (shown, rest) = text
        .char_indices()
        .nth(MAX_SHOWN_CHARS)
        .map_or((text.as_str(), ""), |(at, _)| {
            (text.get(..at).unwrap_or_default(), "…")
        });
    format!("expected {what}, got {shown}{rest}")
}
