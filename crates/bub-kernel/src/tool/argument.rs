//! The types of tool arguments.
//!
//! Models and comma commands may write a number as text, for example. Each type accepts every unambiguous spelling of
//! its values.

use serde_json::{Map, Number, Value, json};

/// A type that an argument of a tool can have; see [`tool`](macro@crate::tool).
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a tool argument",
    note = "use `String`, `bool`, an integer, `f64`, `serde_json::Value` or `Map`, or a `Vec` or `Option` of these",
    note = "or implement `ToolArgument` for your own type"
)]
pub trait ToolArgument: Sized + Send + 'static {
    /// Returns the JSON Schema of the argument, which the model sees.
    fn schema() -> Value;

    /// Converts a value. The error describes what is wrong with it.
    fn from_value(value: Value) -> Result<Self, String>;

    /// Returns the value of a missing argument. `None`, the default, means that the argument is required.
    fn value_if_missing() -> Option<Self> {
        None
    }

    /// Returns the argument as JSON, to show a default value in the schema. `None`, the default, shows nothing.
    fn to_value(&self) -> Option<Value> {
        None
    }
}

/// Implements [`ToolArgument`]. The columns are the type, its JSON Schema, its description in errors, and the conversion
/// of a value, which returns an invalid value as the error.
macro_rules! tool_argument {
    ($ty:ty: $schema:tt, $expected:literal, $convert:expr) => {
        impl ToolArgument for $ty {
            fn schema() -> Value {
                json!($schema)
            }

            fn from_value(value: Value) -> Result<Self, String> {
                let convert: fn(Value) -> Result<Self, Value> = $convert;
                convert(value).map_err(|value| expected_error($expected, &value))
            }

            fn to_value(&self) -> Option<Value> {
                serde_json::to_value(self).ok()
            }
        }
    };
}

tool_argument!(String: {"type": "string"}, "a string", |value| match value {
    Value::String(text) => Ok(text),
    Value::Number(_) | Value::Bool(_) => Ok(value.to_string()),
    other => Err(other),
});
tool_argument!(bool: {"type": "boolean"}, "true or false", |value| {
    let word = match &value {
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => text.trim().to_lowercase(),
        _ => return Err(value),
    };
    match word.as_str() {
        "true" | "t" | "yes" | "y" | "on" | "1" | "1.0" => Ok(true),
        "false" | "f" | "no" | "n" | "off" | "0" | "0.0" => Ok(false),
        _ => Err(value),
    }
});
tool_argument!(f64: {"type": "number"}, "a number", |value| {
    let number = match &value {
        Value::String(text) => text.trim().parse().ok(),
        other => other.as_f64(),
    };
    number.filter(|number: &f64| number.is_finite()).ok_or(value)
});
tool_argument!(Value: {}, "a value", Ok);
tool_argument!(Map<String, Value>: {"type": "object"}, "an object", |value| match value {
    Value::Object(map) => Ok(map),
    Value::String(text) => serde_json::from_str(&text).map_err(|_| Value::String(text)),
    other => Err(other),
});

/// Converts a whole number. It may be text, such as `"3"`, or be written with a fraction, such as `3.0`.
fn parse_integer(value: &Value) -> Result<i128, String> {
    let number = match value {
        Value::Number(number) => Some(number.clone()),
        Value::String(text) => text.trim().trim_start_matches('+').parse::<Number>().ok(),
        _ => None,
    };
    let whole = number.and_then(|number| {
        let float = number.as_f64();
        let float = float.filter(|float| float.fract() == 0.0 && float.abs() < 1e15);
        #[allow(
            clippy::cast_possible_truncation,
            reason = "the value is an integer and small enough to be exact"
        )]
        number.as_i128().or(float.map(|float| float as i128))
    });
    whole.ok_or_else(|| expected_error("a whole number", value))
}

macro_rules! integers {
    ($($ty:ty)*) => {$(
        impl ToolArgument for $ty {
            fn schema() -> Value {
                json!({"type": "integer"})
            }

            fn from_value(value: Value) -> Result<Self, String> {
                let number = parse_integer(&value)?;
                Self::try_from(number).map_err(|_| {
                    format!("expected a number from {} to {}, got {number}", Self::MIN, Self::MAX)
                })
            }

            fn to_value(&self) -> Option<Value> {
                serde_json::to_value(self).ok()
            }
        }
    )*};
}

integers!(i32 i64 u16 u32 u64 usize);

impl<T: ToolArgument> ToolArgument for Vec<T> {
    fn schema() -> Value {
        json!({"type": "array", "items": T::schema()})
    }

    /// Converts a list, which may be JSON text. A single value becomes a list with one item.
    fn from_value(value: Value) -> Result<Self, String> {
        let items = match value {
            Value::Array(items) => items,
            Value::String(text) => {
                serde_json::from_str(&text).unwrap_or_else(|_| vec![Value::String(text)])
            }
            Value::Null | Value::Object(_) => return Err(expected_error("a list", &value)),
            single => vec![single],
        };
        let convert = |(index, item)| {
            T::from_value(item).map_err(|problem| format!("item {index}: {problem}"))
        };
        items.into_iter().enumerate().map(convert).collect()
    }

    fn to_value(&self) -> Option<Value> {
        self.iter().map(T::to_value).collect()
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

    fn value_if_missing() -> Option<Self> {
        Some(None)
    }
}

/// Returns the canonical form of a value for an argument with this schema, or `None` if the value does not fit.
pub(super) fn normalize_value(schema: &Value, value: &Value) -> Option<Value> {
    if let Some(any) = schema.get("anyOf").and_then(Value::as_array) {
        return any.iter().find_map(|schema| normalize_value(schema, value));
    }
    let whole = || {
        let number = Number::from_i128(parse_integer(value).ok()?)?;
        Some(Value::Number(number))
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
                .map(|item| normalize_value(schema.get("items")?, item))
                .collect()
        }
        Some("null") => value.is_null().then_some(Value::Null),
        _ => Some(value.clone()),
    }
}

fn expected_error(description: &str, value: &Value) -> String {
    const MAX_VALUE_CHARS: usize = 80;
    let mut text = value.to_string();
    if let Some((end, _)) = text.char_indices().nth(MAX_VALUE_CHARS) {
        text.replace_range(end.., "…");
    }
    format!("expected {description}, got {text}")
}
