//! Encoder for requests in the chat-completions format, which [`ChatRequest`] uses for messages and tools.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use crate::wire::HttpRequest;
use crate::wire::body::{Field, RequestBody};
use crate::wire::message::{CallParts, OPENING_LINE, opens_with_assistant};
use crate::wire::replay::tool_calls;
use crate::{ChatRequest, EffortForm, Quirks};

/// Encodes a request in the chat-completions format.
pub(in crate::wire) fn encode(request: &ChatRequest, quirks: &Quirks) -> HttpRequest {
    let mut body = RequestBody::new(request, quirks);
    body.set("model", request.model.as_str());
    body.set("messages", encode_messages(request, quirks));
    if !request.tools.is_empty() {
        body.set("tools", Field::list(&request.tools));
    }
    if let Some(limit) = request.max_tokens {
        for alias in ["max_tokens", "max_completion_tokens"] {
            body.remove(alias);
        }
        if !quirks.max_tokens_field.is_empty() {
            body.set(&quirks.max_tokens_field, limit);
        }
    }
    body.set("stream", request.stream);
    if request.stream && quirks.stream_options {
        body.set("stream_options", json!({"include_usage": true}));
    }
    set_reasoning_effort(&mut body, request, quirks);
    HttpRequest {
        path: "/chat/completions".into(),
        headers: Vec::new(),
        body: body.into_bytes(quirks),
    }
}

fn set_reasoning_effort<'a>(body: &mut RequestBody<'a>, request: &'a ChatRequest, quirks: &Quirks) {
    let Some(effort) = request.reasoning_effort.as_deref() else {
        return;
    };
    body.remove("reasoning_effort");
    if effort == "auto" {
        return;
    }
    match quirks.effort {
        EffortForm::Standard => body.set("reasoning_effort", effort),
        EffortForm::ReasoningObject => body.set_nested("reasoning", "effort", effort.into()),
        EffortForm::ThinkingSwitch => {
            let switch = if effort == "none" {
                "disabled"
            } else {
                "enabled"
            };
            body.set_nested("thinking", "type", switch.into());
        }
        EffortForm::Omit => {}
    }
}

fn encode_messages<'a>(request: &'a ChatRequest, quirks: &Quirks) -> Field<'a> {
    let mut messages: Vec<_> = request
        .messages
        .iter()
        .map(|message| encode_message(message, quirks))
        .collect();
    if quirks.open_with_user && opens_with_assistant(&request.messages) {
        let first = messages
            .iter()
            .position(|message| message.get("role") == Some(&"assistant".into()));
        let line = json!({"role": "user", "content": OPENING_LINE});
        messages.insert(first.unwrap_or(0), Cow::Owned(line));
    }
    Field::List(messages)
}

/// Returns a message in the form that is sent. Most messages are unchanged.
fn encode_message<'a>(message: &'a Value, quirks: &Quirks) -> Cow<'a, Value> {
    let mut message = Cow::Borrowed(message);
    if message.get("provider_state").is_some() {
        restore_provider_state(message.to_mut());
    }
    if tool_calls(&message)
        .iter()
        .any(|call| !CallParts::from_value(call).has_valid_arguments())
    {
        repair_arguments(message.to_mut());
    }
    if quirks.media_as_file {
        convert_parts(&mut message, to_file_part);
    }
    message
}

/// Replaces `provider_state` with the fields that it contains for the chat-completions format, such as reasoning.
fn restore_provider_state(message: &mut Value) {
    let Some(message) = message.as_object_mut() else {
        return;
    };
    let state = message.shift_remove("provider_state").unwrap_or_default();
    let Some(Value::Object(fields)) = state.get(super::NAME) else {
        return;
    };
    for (key, value) in fields {
        message.insert(key.clone(), value.clone());
    }
}

fn repair_arguments(message: &mut Value) {
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
    for call in calls.into_iter().flatten() {
        let arguments = CallParts::from_value(call).arguments_json().into_owned();
        if let Some(function) = call.get_mut("function").and_then(Value::as_object_mut) {
            function.insert("arguments".into(), arguments.into());
        }
    }
}

/// Replaces the content parts for which `convert` returns another part.
fn convert_parts(message: &mut Cow<'_, Value>, convert: impl Fn(&Value) -> Option<Value>) {
    let parts = message.get("content").and_then(Value::as_array);
    let is_converted = |part: &Value| convert(part).is_some();
    if !parts.is_some_and(|parts| parts.iter().any(is_converted)) {
        return;
    }
    let parts = message.to_mut().get_mut("content");
    for part in parts.and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(converted) = convert(part) {
            *part = converted;
        }
    }
}

/// Converts a `video_url` or `input_audio` part to a `file` part. Returns `None` for other parts.
fn to_file_part(part: &Value) -> Option<Value> {
    let url = match part.get("type")?.as_str()? {
        "video_url" => part.get("video_url")?.get("url")?.as_str()?.to_owned(),
        "input_audio" => {
            let audio = part.get("input_audio")?;
            let format = audio.get("format").and_then(Value::as_str).unwrap_or("wav");
            format!(
                "data:audio/{format};base64,{}",
                audio.get("data")?.as_str()?
            )
        }
        _ => return None,
    };
    let file = Map::from_iter([("file_data".to_owned(), Value::String(url))]);
    Some(json!({"type": "file", "file": file}))
}
