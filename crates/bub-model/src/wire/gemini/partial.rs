//! Assembles the arguments of a tool call from pieces, each with a JSON path and a value.

use serde_json::{Value, json};

/// The arguments of an incomplete call.
#[derive(Clone, Debug, Default)]
pub(super) struct PartialArguments {
    arguments: Value,
    /// The path of a string that continues in the next piece.
    open_path: Option<String>,
}

/// Maximum length of a list, so that a wrong index does not fill memory.
const MAX_LIST_LEN: usize = 10_000;

impl PartialArguments {
    /// Adds a piece of the arguments. Returns `None` if the piece is invalid.
    pub(super) fn push_piece(&mut self, piece: &Value) -> Option<()> {
        let path = piece.get("jsonPath")?.as_str()?;
        let is_continuation = self.open_path.as_deref() == Some(path);
        let will_continue = piece.get("willContinue").and_then(Value::as_bool);
        self.open_path = will_continue.unwrap_or(false).then(|| path.to_owned());
        let target = value_at(&mut self.arguments, path)?;
        match (piece_value(piece)?, target) {
            (Value::String(more), Value::String(text)) if is_continuation => text.push_str(&more),
            (value, target) => *target = value,
        }
        Some(())
    }

    /// Returns the JSON text of the arguments. Without arguments, the text is empty.
    pub(super) fn into_json(self) -> String {
        match self.arguments {
            Value::Object(arguments) if !arguments.is_empty() => json!(arguments).to_string(),
            _ => String::new(),
        }
    }
}

fn piece_value(piece: &Value) -> Option<Value> {
    let value = |key: &str| piece.get(key).cloned();
    value("stringValue")
        .or_else(|| value("numberValue").map(without_zero_fraction))
        .or_else(|| value("boolValue"))
        .or_else(|| value("nullValue").map(|_| Value::Null))
}

/// Converts a number such as `3.0` to an integer, because a schema may require an integer.
fn without_zero_fraction(value: Value) -> Value {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "checked to be a small whole number"
    )]
    match value.as_f64() {
        Some(float) if float.fract() == 0.0 && float.abs() < 1e15 => Value::from(float as i64),
        _ => value,
    }
}

/// Returns the value at a path such as `$.items[2].name`. Creates missing values. Returns `None` if the path is invalid.
fn value_at<'a>(arguments: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    let mut rest = path.strip_prefix('$').filter(|rest| !rest.is_empty())?;
    let mut target = arguments;
    if target.is_null() {
        *target = json!({});
    }
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('.') {
            let end = after.find(['.', '[']).unwrap_or(after.len());
            let (key, after) = after.split_at_checked(end)?;
            target = member(target, key)?;
            rest = after;
        } else {
            let (inside, after) = rest.strip_prefix('[')?.split_once(']')?;
            target = match inside.parse() {
                Ok(index) => list_item(target, index)?,
                Err(_) => member(target, inside.trim_matches(['\'', '"']))?,
            };
            rest = after;
        }
    }
    Some(target)
}

fn member<'a>(target: &'a mut Value, key: &str) -> Option<&'a mut Value> {
    if !target.is_object() {
        *target = json!({});
    }
    Some(target.as_object_mut()?.entry(key).or_insert(Value::Null))
}

/// Returns an item of a list. An object, such as the arguments, does not become a list.
fn list_item(target: &mut Value, index: usize) -> Option<&mut Value> {
    if target.is_object() || index >= MAX_LIST_LEN {
        return None;
    }
    if !target.is_array() {
        *target = json!([]);
    }
    let list = target.as_array_mut()?;
    if list.len() <= index {
        list.resize(index + 1, Value::Null);
    }
    list.get_mut(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_with_paths_become_an_object() {
        let mut partial = PartialArguments::default();
        for piece in [
            json!({"jsonPath": "$.where.city", "stringValue": "San ", "willContinue": true}),
            json!({"jsonPath": "$.where.city", "stringValue": "Francisco"}),
            json!({"jsonPath": "$.days[1].n", "numberValue": 3.0}),
            json!({"jsonPath": "$.days[0]", "boolValue": true}),
            json!({"jsonPath": "$['odd key']", "nullValue": "NULL_VALUE"}),
            json!({"jsonPath": "$.x", "numberValue": 1.5}),
        ] {
            assert!(partial.push_piece(&piece).is_some(), "{piece}");
        }
        let arguments: Value = serde_json::from_str(&partial.into_json()).unwrap();
        let expected = json!({"where": {"city": "San Francisco"}, "days": [true, {"n": 3}], "odd key": null, "x": 1.5});
        assert_eq!(arguments, expected);
    }

    #[test]
    fn nonsense_is_noticed() {
        for piece in [
            json!({}),
            json!({"jsonPath": "$", "stringValue": ""}),
            json!({"jsonPath": "$[0]", "stringValue": ""}),
            json!({"jsonPath": "$.a[99999999999]", "stringValue": ""}),
            json!({"jsonPath": "x", "stringValue": ""}),
            json!({"jsonPath": "$.a"}),
        ] {
            let added = PartialArguments::default().push_piece(&piece);
            assert!(added.is_none(), "{piece}");
        }
    }
}
