//! Encoder for requests in the Responses format.

use serde_json::{Map, Value, json};

use crate::wire::HttpRequest;
use crate::wire::body::RequestBody;
use crate::wire::media::{self, ContentPart, Mime, PartKind, omitted_text};
use crate::wire::message::{
    CallParts, OPENING_LINE, function_object, is_system, opens_with_assistant, parameters_schema,
    role, system_text,
};
use crate::wire::replay::{ReplayPiece, replay_pieces};
use crate::{ChatRequest, EffortForm, Quirks};

/// Encodes a request in the Responses format.
pub(in crate::wire) fn encode(request: &ChatRequest, quirks: &Quirks) -> HttpRequest {
    let mut body = RequestBody::new(request, quirks);
    body.remove("stream_options");
    body.set("model", request.model.as_str());
    let system = system_text(&request.messages).or_else(|| quirks.default_instructions.clone());
    if let Some(system) = system {
        body.set("instructions", system);
    }
    body.set("input", encode_input(request, quirks));
    if !request.tools.is_empty() {
        body.set(
            "tools",
            request.tools.iter().map(encode_tool).collect::<Vec<_>>(),
        );
    }
    if let Some(function) = body.remove("tool_choice") {
        body.set("tool_choice", flatten_tool_choice(function));
    }
    for alias in ["max_tokens", "max_completion_tokens"] {
        if let Some(limit) = body.remove(alias) {
            body.set("max_output_tokens", limit);
        }
    }
    if let Some(limit) = request.max_tokens {
        body.set("max_output_tokens", limit);
    }
    if let Some(effort) = request
        .reasoning_effort
        .as_deref()
        .filter(|effort| *effort != "auto")
        && quirks.effort != EffortForm::Omit
    {
        body.set_nested("reasoning", "effort", effort.into());
    }
    // bub keeps the conversation on the tape and not on the server, so reasoning must be sent with each request.
    body.set("store", false);
    body.set("include", json!(["reasoning.encrypted_content"]));
    body.set("stream", request.stream);
    HttpRequest {
        path: "/responses".into(),
        headers: Vec::new(),
        body: body.into_bytes(quirks),
    }
}

fn flatten_tool_choice(choice: Value) -> Value {
    match choice
        .get("function")
        .and_then(|function| function.get("name"))
    {
        Some(name) => json!({"type": "function", "name": name}),
        None => choice,
    }
}

fn encode_tool(tool: &Value) -> Value {
    if tool.get("function").is_none() {
        return tool.clone();
    }
    let function = function_object(tool);
    let mut out = Map::from_iter([("type".to_owned(), Value::from("function"))]);
    for key in ["name", "description", "strict"] {
        if let Some(value) = function.get(key).filter(|value| !value.is_null()) {
            out.insert(key.to_owned(), value.clone());
        }
    }
    out.insert("parameters".into(), parameters_schema(function));
    Value::Object(out)
}

fn encode_input(request: &ChatRequest, quirks: &Quirks) -> Vec<Value> {
    let mut items = Vec::new();
    if quirks.open_with_user && opens_with_assistant(&request.messages) {
        items.push(json!({"role": "user", "content": OPENING_LINE}));
    }
    for message in request
        .messages
        .iter()
        .filter(|message| !is_system(message))
    {
        match role(message) {
            "assistant" => encode_assistant(message, &mut items),
            "tool" => items.extend(encode_tool_output(message)),
            role => {
                items
                    .push(json!({"role": role, "content": encode_content(message.get("content"))}));
            }
        }
    }
    items
}

fn encode_assistant(message: &Value, items: &mut Vec<Value>) {
    for piece in replay_pieces(message, super::NAME) {
        match piece {
            ReplayPiece::Kept(item) => items.push(item.clone()),
            ReplayPiece::Text("", _) => {}
            ReplayPiece::Text(text, mark) => {
                let mut item = json!({"role": "assistant", "content": text});
                if let (Some(item), Some(Value::Object(mark))) = (item.as_object_mut(), mark) {
                    item.extend(mark.clone());
                }
                items.push(item);
            }
            ReplayPiece::Parts(parts) => {
                let parts: Vec<_> = media::parse_parts(Some(parts))
                    .into_iter()
                    .map(encode_assistant_part)
                    .collect();
                items.push(json!({"role": "assistant", "content": parts}));
            }
            ReplayPiece::Call(call, _) => {
                let call = CallParts::from_value(call);
                items.push(json!({
                    "type": "function_call",
                    "call_id": call.id,
                    "name": call.name,
                    "arguments": call.arguments_json(),
                    "status": "completed",
                }));
            }
        }
    }
}

/// Returns the result of a tool call, or `None` for a result without a call id.
fn encode_tool_output(message: &Value) -> Option<Value> {
    let id = message
        .get("tool_call_id")?
        .as_str()
        .filter(|id| !id.is_empty())?;
    let output = match message.get("content") {
        Some(Value::Null) | None => Value::from(""),
        other => encode_content(other),
    };
    Some(json!({"type": "function_call_output", "call_id": id, "output": output}))
}

fn encode_content(content: Option<&Value>) -> Value {
    match content {
        Some(Value::String(text)) => Value::from(text.as_str()),
        Some(parts @ Value::Array(_)) => media::parse_parts(Some(parts))
            .into_iter()
            .map(encode_part)
            .collect(),
        _ => Value::from(""),
    }
}

/// Converts a content part of an assistant message.
fn encode_assistant_part(part: ContentPart<'_>) -> Value {
    match part {
        ContentPart::Text(text) => json!({"type": "output_text", "text": text}),
        _ => json!({"type": "output_text", "text": omitted_text("part")}),
    }
}

fn encode_part(part: ContentPart<'_>) -> Value {
    match part {
        ContentPart::Text(text) => json!({"type": "input_text", "text": text}),
        ContentPart::Inline {
            kind: PartKind::Image,
            mime,
            data,
            ..
        } => {
            json!({"type": "input_image", "image_url": format!("data:{};base64,{data}", mime.full_type())})
        }
        ContentPart::Remote {
            kind: PartKind::Image,
            url,
        } => json!({"type": "input_image", "image_url": url}),
        ContentPart::Inline {
            kind: PartKind::File,
            mime,
            data,
            name,
        } => json!({
            "type": "input_file",
            "filename": name.unwrap_or("file"),
            "file_data": format!("data:{};base64,{data}", mime.full_type()),
        }),
        ContentPart::Remote {
            kind: PartKind::File,
            url,
        } => json!({"type": "input_file", "file_url": url}),
        ContentPart::Uploaded(id) => json!({"type": "input_file", "file_id": id}),
        ContentPart::Inline {
            kind: PartKind::Audio,
            mime,
            data,
            ..
        } => {
            let format = match mime {
                Mime::AudioFormat(format) => format,
                Mime::Full(mime) => mime.rsplit('/').next().unwrap_or(mime),
            };
            json!({"type": "input_audio", "input_audio": {"data": data, "format": format}})
        }
        ContentPart::Inline { kind, .. } | ContentPart::Remote { kind, .. } => {
            json!({"type": "input_text", "text": omitted_text(kind.name())})
        }
        ContentPart::Unknown(kind) => json!({"type": "input_text", "text": omitted_text(kind)}),
    }
}
