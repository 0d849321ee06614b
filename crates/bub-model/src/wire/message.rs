//! Accessors for messages in the chat-completions format.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

/// User message inserted before a conversation that would otherwise start with an assistant message.
pub(super) const OPENING_LINE: &str = "(The conversation so far follows.)";

/// Returns the role of a message; `user` if it has none.
pub(super) fn role(message: &Value) -> &str {
    message
        .get("role")
        .and_then(Value::as_str)
        .unwrap_or("user")
}

/// Returns whether a message is a system or developer message.
pub(super) fn is_system(message: &Value) -> bool {
    matches!(role(message), "system" | "developer")
}

/// Returns the text of all system messages, joined with newlines.
pub(super) fn system_text(messages: &[Value]) -> Option<String> {
    let system = messages.iter().filter(|message| is_system(message));
    let texts: Vec<_> = system
        .map(|message| content_text(message.get("content")))
        .collect();
    let text = texts.join("\n");
    (!text.trim().is_empty()).then_some(text)
}

/// Returns the text in a message's content, without media.
pub(super) fn content_text(content: Option<&Value>) -> Cow<'_, str> {
    match content {
        Some(Value::String(text)) => Cow::Borrowed(text),
        Some(Value::Array(parts)) => {
            let texts: Vec<_> = parts
                .iter()
                .filter_map(|part| part.get("text")?.as_str())
                .collect();
            Cow::Owned(texts.join("\n"))
        }
        Some(Value::Null) | None => Cow::Borrowed(""),
        Some(other) => Cow::Owned(other.to_string()),
    }
}

/// Returns whether the first message that is not a system message is from the assistant.
pub(super) fn opens_with_assistant(messages: &[Value]) -> bool {
    messages
        .iter()
        .find(|message| !is_system(message))
        .is_some_and(|message| role(message) == "assistant")
}

/// The id, name and arguments of a tool call.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallParts<'a> {
    pub(super) id: &'a str,
    pub(super) name: &'a str,
    arguments: &'a Value,
}

impl<'a> CallParts<'a> {
    /// Reads a call in the chat-completions format.
    pub(super) fn from_value(call: &'a Value) -> Self {
        let text = |value: Option<&'a Value>| value.and_then(Value::as_str).unwrap_or_default();
        let function = call.get("function").unwrap_or(&Value::Null);
        Self {
            id: text(call.get("id")),
            name: text(function.get("name")),
            arguments: function.get("arguments").unwrap_or(&Value::Null),
        }
    }

    /// Returns the arguments as an object. Wraps invalid arguments in an object: the model must see what it wrote, but
    /// servers reject invalid arguments.
    pub(super) fn arguments_object(&self) -> Map<String, Value> {
        match self.arguments {
            Value::Object(object) => object.clone(),
            Value::String(text) if text.trim().is_empty() => Map::new(),
            Value::String(text) => match serde_json::from_str(text) {
                Ok(Value::Object(object)) => object,
                _ => wrap_invalid_arguments(text),
            },
            Value::Null => Map::new(),
            other => wrap_invalid_arguments(&other.to_string()),
        }
    }

    /// Returns the arguments as the JSON text of an object.
    pub(super) fn arguments_json(&self) -> Cow<'a, str> {
        match self.arguments {
            Value::String(text) if is_json_object(text) => Cow::Borrowed(text),
            _ => Cow::Owned(Value::Object(self.arguments_object()).to_string()),
        }
    }

    /// Returns whether the arguments are the JSON text of an object and can be sent unchanged.
    pub(super) fn has_valid_arguments(&self) -> bool {
        self.arguments.as_str().is_some_and(is_json_object)
    }
}

fn is_json_object(text: &str) -> bool {
    text.trim_start().starts_with('{')
        && serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

fn wrap_invalid_arguments(text: &str) -> Map<String, Value> {
    Map::from_iter([("invalid_arguments".to_owned(), Value::from(text))])
}

/// Returns the fields of a function tool, with the JSON Schema of its parameters in the field `schema`. The schema of a
/// function without parameters is that of an empty object.
pub(super) fn function_fields(tool: &Value, keys: &[&str], schema: &str) -> Map<String, Value> {
    let function = tool.get("function").unwrap_or(tool);
    let present = keys
        .iter()
        .filter_map(|key| Some((key.to_string(), function.get(key)?.clone())));
    let mut fields: Map<_, _> = present.filter(|(_, value)| !value.is_null()).collect();
    let parameters = match function.get("parameters") {
        Some(Value::Object(schema)) if !schema.is_empty() => Value::Object(schema.clone()),
        _ => json!({"type": "object", "properties": {}}),
    };
    fields.insert(schema.to_owned(), parameters);
    fields
}

/// Encodes a conversation without its system messages. `encode` returns the role and the content of a message, which is
/// sent in the field `content_key`. The results of tool calls that follow each other become one message. If the
/// conversation starts with an assistant message, `opening` comes first.
pub(super) fn encode_turns<'a>(
    messages: &'a [Value],
    content_key: &str,
    opening: Value,
    mut encode: impl FnMut(&'a Value) -> (&'static str, Vec<Value>),
) -> Vec<Value> {
    let mut turns: Vec<(&str, Vec<Value>)> = Vec::with_capacity(messages.len());
    let mut after_tool = false;
    for message in messages.iter().filter(|message| !is_system(message)) {
        let is_tool = role(message) == "tool";
        let (role, content) = encode(message);
        match turns.last_mut().filter(|_| is_tool && after_tool) {
            Some((_, last)) => last.extend(content),
            None => turns.push((role, content)),
        }
        after_tool = is_tool;
    }
    let turns = turns.into_iter().filter(|(_, content)| !content.is_empty());
    let turns = turns.map(|(role, content)| json!({"role": role, content_key: content}));
    let opening = opens_with_assistant(messages).then_some(opening);
    opening.into_iter().chain(turns).collect()
}
