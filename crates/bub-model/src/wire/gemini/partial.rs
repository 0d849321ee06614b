//! Assembles arguments of a function call from pieces with JSON paths.

use serde_json::{Map, Number, Value};

/// The arguments of an incomplete call.
#[derive(Clone, Debug, Default)]
pub(super) struct PartialArguments {
    arguments: Map<String, Value>,
    /// The path of a string that continues in the next piece.
    open_path: Option<String>,
}

/// A segment of a path such as `$.items[2].name`.
enum PathSegment<'a> {
    Key(&'a str),
    Index(usize),
}

/// Maximum length of a list, so that a wrong index does not fill memory.
const MAX_LIST_LEN: usize = 10_000;

impl PartialArguments {
    /// Adds a piece of the arguments. Returns `false` if the piece is invalid.
    pub(super) fn push_piece(&mut self, piece: &Value) -> bool {
        let Some(path) = piece.get("jsonPath").and_then(Value::as_str) else {
            return false;
        };
        let is_continuation = self.open_path.as_deref() == Some(path);
        let will_continue = piece
            .get("willContinue")
            .and_then(Value::as_bool)
            .unwrap_or(false);
        self.open_path = will_continue.then(|| path.to_owned());
        let Some(segments) = parse_path(path) else {
            return false;
        };
        let Some(target) = get_or_insert_path(&mut self.arguments, &segments) else {
            return false;
        };
        match (piece_value(piece), target) {
            (Some(Value::String(more)), Value::String(text)) if is_continuation => {
                text.push_str(&more);
            }
            (Some(value), target) => *target = value,
            (None, _) => return false,
        }
        true
    }

    /// Returns the JSON text of the arguments. Without arguments, the text is empty.
    pub(super) fn into_json(self) -> String {
        if self.arguments.is_empty() {
            String::new()
        } else {
            Value::Object(self.arguments).to_string()
        }
    }
}

fn piece_value(piece: &Value) -> Option<Value> {
    let number = |value: &Value| match value {
        // An integer sent as `3.0` must not violate a schema that requires an integer.
        Value::Number(number) => as_integer(number).map_or_else(|| value.clone(), Value::from),
        other => other.clone(),
    };
    piece
        .get("stringValue")
        .cloned()
        .or_else(|| piece.get("numberValue").map(number))
        .or_else(|| piece.get("boolValue").cloned())
        .or_else(|| piece.get("nullValue").map(|_| Value::Null))
}

fn as_integer(number: &Number) -> Option<i64> {
    let float = number
        .as_f64()
        .filter(|float| float.fract() == 0.0 && float.abs() < 1e15)?;
    #[expect(
        clippy::cast_possible_truncation,
        reason = "checked to be a small whole number"
    )]
    Some(float as i64)
}

fn parse_path(path: &str) -> Option<Vec<PathSegment<'_>>> {
    let mut rest = path.strip_prefix('$')?;
    let mut segments = Vec::new();
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('.') {
            let end = after.find(['.', '[']).unwrap_or(after.len());
            let (key, after) = after.split_at_checked(end)?;
            segments.push(PathSegment::Key(key));
            rest = after;
        } else {
            let (inside, after) = rest.strip_prefix('[')?.split_once(']')?;
            let quoted = inside.trim_matches(['\'', '"']);
            segments.push(
                inside
                    .parse()
                    .map_or(PathSegment::Key(quoted), PathSegment::Index),
            );
            rest = after;
        }
    }
    (!segments.is_empty()).then_some(segments)
}

/// Returns the value at a path. Creates missing values. Returns `None` if the path is invalid.
fn get_or_insert_path<'a>(
    arguments: &'a mut Map<String, Value>,
    segments: &[PathSegment<'_>],
) -> Option<&'a mut Value> {
    let (first, rest) = segments.split_first()?;
    let PathSegment::Key(key) = first else {
        return None;
    };
    let mut target = arguments.entry(*key).or_insert(Value::Null);
    for segment in rest {
        target = match segment {
            PathSegment::Key(key) => {
                if !target.is_object() {
                    *target = Value::Object(Map::new());
                }
                target.as_object_mut()?.entry(*key).or_insert(Value::Null)
            }
            PathSegment::Index(index) => {
                if !target.is_array() {
                    *target = Value::Array(Vec::new());
                }
                let list = target.as_array_mut()?;
                if *index >= MAX_LIST_LEN {
                    return None;
                }
                if list.len() <= *index {
                    list.resize(index + 1, Value::Null);
                }
                list.get_mut(*index)?
            }
        };
    }
    Some(target)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
            assert!(partial.push_piece(&piece), "{piece}");
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
            assert!(!PartialArguments::default().push_piece(&piece), "{piece}");
        }
    }
}
