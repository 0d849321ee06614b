//! JSON Schema of an answer: the keywords that describe data, without references and patterns.

use serde_json::{Map, Value};

use super::check::shorten;

/// Keywords that are checked.
const KEYWORDS: [&str; 17] = [
    "type",
    "enum",
    "const",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "minItems",
    "maxItems",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "anyOf",
    "allOf",
];
/// Keywords that describe a schema and check nothing.
const ANNOTATIONS: [&str; 7] = [
    "$schema",
    "$id",
    "$comment",
    "title",
    "description",
    "default",
    "examples",
];
const TYPES: [&str; 7] = [
    "object", "array", "string", "boolean", "integer", "number", "null",
];

/// Checks that bub can check a schema. Returns the first part that it cannot check.
pub(super) fn schema_problem(schema: &Value, place: &str) -> Option<String> {
    let keywords = match schema {
        Value::Object(keywords) => keywords,
        Value::Bool(_) => return None,
        _ => return Some(format!("{place} is neither a map nor true or false")),
    };
    for (keyword, value) in keywords {
        let inner = |name: &str| format!("{place}.{keyword}{name}");
        let problem = match keyword.as_str() {
            keyword if ANNOTATIONS.contains(&keyword) => None,
            keyword if !KEYWORDS.contains(&keyword) => Some(format!(
                "{place} has the unsupported keyword `{keyword}`; supported: {}",
                KEYWORDS.join(", ")
            )),
            "properties" => match value {
                Value::Object(properties) => properties
                    .iter()
                    .find_map(|(name, schema)| schema_problem(schema, &inner(&format!(".{name}")))),
                _ => Some(format!("{} is not a map", inner(""))),
            },
            "items" | "additionalProperties" => schema_problem(value, &inner("")),
            "anyOf" | "allOf" => match value {
                Value::Array(schemas) => schemas
                    .iter()
                    .find_map(|schema| schema_problem(schema, &inner(""))),
                _ => Some(format!("{} is not a list", inner(""))),
            },
            "type" => {
                let known = |name: &Value| name.as_str().is_some_and(|name| TYPES.contains(&name));
                let is_valid = match value {
                    Value::Array(names) => names.iter().all(known),
                    name => known(name),
                };
                (!is_valid).then(|| {
                    let types = TYPES.join(", ");
                    format!("{} is unknown: `{value}`; known types: {types}", inner(""))
                })
            }
            "enum" | "required" => {
                (!value.is_array()).then(|| format!("{} is not a list", inner("")))
            }
            "const" => None,
            _ => (!value.is_number()).then(|| format!("{} is not a number", inner(""))),
        };
        if problem.is_some() {
            return problem;
        }
    }
    None
}

/// Returns the first part of a value that does not match a schema.
pub(super) fn first_mismatch(schema: &Value, value: &Value, place: &str) -> Option<String> {
    let keywords = match schema {
        Value::Object(keywords) => keywords,
        Value::Bool(false) => return Some(format!("{place} is not allowed")),
        _ => return None,
    };
    let shown = || shorten(&value.to_string());
    let mismatch = keywords.iter().find_map(|(keyword, expected)| {
        let fails = match keyword.as_str() {
            "type" => {
                let names = expected
                    .as_array()
                    .map_or(std::slice::from_ref(expected), Vec::as_slice);
                let mut names = names.iter().filter_map(Value::as_str);
                !names.any(|name| has_type(value, name))
            }
            "enum" => expected
                .as_array()
                .is_some_and(|choices| !choices.contains(value)),
            "const" => value != expected,
            "anyOf" => {
                let mut schemas = expected.as_array().into_iter().flatten();
                !schemas.any(|schema| first_mismatch(schema, value, place).is_none())
            }
            _ => is_out_of_range(keyword, expected, value),
        };
        fails.then(|| {
            format!(
                "{place} does not match `{keyword}: {expected}`: `{}`",
                shown()
            )
        })
    });
    let part = |key: &str| keywords.get(key);
    mismatch
        .or_else(|| {
            let mut schemas = part("allOf")?.as_array()?.iter();
            schemas.find_map(|schema| first_mismatch(schema, value, place))
        })
        .or_else(|| fields_mismatch(keywords, value.as_object()?, place))
        .or_else(|| {
            let (schema, mut items) = (part("items")?, value.as_array()?.iter().enumerate());
            items.find_map(|(index, item)| first_mismatch(schema, item, &format!("item {index}")))
        })
}

fn has_type(value: &Value, name: &str) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        // In JSON Schema, 1.0 is an integer.
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "number" => value.is_number(),
        _ => value.is_null(),
    }
}

/// Returns whether a number, or the length of a text or list, is not within a limit.
#[expect(clippy::cast_precision_loss, reason = "lengths are far below 2^52")]
fn is_out_of_range(keyword: &str, limit: &Value, value: &Value) -> bool {
    let length = |length: usize| length as f64;
    let measured = match keyword {
        "minItems" | "maxItems" => value.as_array().map(|items| length(items.len())),
        "minLength" | "maxLength" => value.as_str().map(|text| length(text.chars().count())),
        _ => value.as_f64(),
    };
    let (Some(measured), Some(limit)) = (measured, limit.as_f64()) else {
        return false;
    };
    match keyword {
        "minItems" | "minLength" | "minimum" => measured < limit,
        "maxItems" | "maxLength" | "maximum" => measured > limit,
        "exclusiveMinimum" => measured <= limit,
        "exclusiveMaximum" => measured >= limit,
        _ => false,
    }
}

fn fields_mismatch(
    keywords: &Map<String, Value>,
    fields: &Map<String, Value>,
    place: &str,
) -> Option<String> {
    let required = keywords.get("required").and_then(Value::as_array);
    let mut names = required.into_iter().flatten().filter_map(Value::as_str);
    if let Some(name) = names.find(|name| !fields.contains_key(*name)) {
        return Some(format!("{place} has no field `{name}`"));
    }
    let properties = keywords.get("properties").and_then(Value::as_object);
    fields.iter().find_map(|(name, value)| {
        let known = properties.and_then(|properties| properties.get(name));
        let schema = known.or_else(|| keywords.get("additionalProperties"))?;
        first_mismatch(schema, value, &format!("the field `{name}`"))
    })
}
