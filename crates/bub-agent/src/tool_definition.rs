//! The definition of a tool as the model sees it.

use bub_kernel::ToolSpec;
use serde_json::{Map, Value, json};

/// Returns the definition of a tool in the chat-completions format.
pub fn tool_definition(spec: &ToolSpec) -> Value {
    let mut parameters = spec.parameters.clone();
    compact_schema(&mut parameters);
    json!({
        "type": "function",
        "function": {
            "name": spec.model_name(),
            "description": spec.description,
            "parameters": parameters,
        },
    })
}

/// Removes what tells the model nothing from the schema of an object: titles, and `null` as a value of properties that
/// can be omitted.
fn compact_schema(schema: &mut Value) {
    let Value::Object(object) = schema else {
        return;
    };
    object.remove("title");
    let required = object.get("required").and_then(Value::as_array);
    let required = required.cloned().unwrap_or_default();
    let Some(Value::Object(properties)) = object.get_mut("properties") else {
        return;
    };
    for (name, property) in properties {
        if let Value::Object(property) = property
            && !required.iter().any(|required| required == name)
        {
            remove_null(property);
        }
        compact_schema(property);
    }
}

/// Removes `null` from the types of a property, and a default of `null`.
fn remove_null(property: &mut Map<String, Value>) {
    if property.get("default").is_some_and(Value::is_null) {
        property.remove("default");
    }
    let Some(Value::Array(types)) = property.get_mut("anyOf") else {
        return;
    };
    types.retain(|schema| schema.get("type").is_none_or(|name| name != "null"));
    if let [Value::Object(only)] = types.as_mut_slice() {
        let mut only = std::mem::take(only);
        property.remove("anyOf");
        only.append(property);
        *property = only;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_definition_has_no_titles_and_no_null_for_optional_arguments() {
        let text = json!({"anyOf": [{"type": "string"}, {"type": "null"}], "default": null, "description": "Filter"});
        let mut schema = json!({
            "type": "object",
            "title": "Search",
            "required": ["must"],
            "properties": {
                "must": text,
                "filter": text,
                "several": {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]},
                "title": {"type": "string", "title": "Title"},
                "nested": {"type": "object", "title": "Nested", "properties": {"title": {"title": "T"}}},
                "limit": {"type": "integer", "default": 20},
            },
        });
        compact_schema(&mut schema);
        let expected = json!({
            "type": "object",
            "required": ["must"],
            "properties": {
                "must": text,
                "filter": {"type": "string", "description": "Filter"},
                "several": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
                "title": {"type": "string"},
                "nested": {"type": "object", "properties": {"title": {}}},
                "limit": {"type": "integer", "default": 20},
            },
        });
        assert_eq!(schema, expected);
    }
}
