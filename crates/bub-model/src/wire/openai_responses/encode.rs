//! Encoder for requests in the Responses format.

use serde_json::{Value, json};

use crate::wire::HttpRequest;
use crate::wire::body::RequestBody;
use crate::wire::media::{self, ContentPart, Mime, PartKind, Source, omitted_text};
use crate::wire::message::{
    CallParts, OPENING_LINE, function_fields, is_system, opens_with_assistant, role, system_text,
};
use crate::wire::replay::{ReplayPiece, replay_pieces, with_mark};
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
        let tools: Vec<_> = request.tools.iter().map(encode_tool).collect();
        body.set("tools", tools);
    }
    if let Some(choice) = body.remove("tool_choice") {
        let flat = match choice.pointer("/function/name") {
            Some(name) => json!({"type": "function", "name": name}),
            None => choice,
        };
        body.set("tool_choice", flat);
    }
    for alias in ["max_tokens", "max_completion_tokens"] {
        if let Some(limit) = body.remove(alias) {
            body.set("max_output_tokens", limit);
        }
    }
    if let Some(limit) = request.max_tokens {
        body.set("max_output_tokens", limit);
    }
    let effort = request.reasoning_effort.as_deref();
    let is_sent = |effort: &&str| *effort != "auto" && quirks.effort != EffortForm::Omit;
    if let Some(effort) = effort.filter(is_sent) {
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

fn encode_tool(tool: &Value) -> Value {
    if tool.get("function").is_none() {
        return tool.clone();
    }
    let fields = function_fields(tool, &["name", "description", "strict"], "parameters");
    let kind = ("type".to_owned(), Value::from("function"));
    [kind].into_iter().chain(fields).collect()
}

fn encode_input(request: &ChatRequest, quirks: &Quirks) -> Vec<Value> {
    let mut items = Vec::new();
    if quirks.open_with_user && opens_with_assistant(&request.messages) {
        items.push(json!({"role": "user", "content": OPENING_LINE}));
    }
    let messages = request.messages.iter();
    for message in messages.filter(|message| !is_system(message)) {
        match role(message) {
            "assistant" => encode_assistant(message, &mut items),
            "tool" => items.extend(encode_tool_output(message)),
            role => {
                let content = encode_content(message.get("content"));
                items.push(json!({"role": role, "content": content}));
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
                let item = json!({"role": "assistant", "content": text});
                items.push(with_mark(item, mark));
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

/// Encodes the result of a tool call. Returns `None` if the message has no call id.
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
    use PartKind::{Audio, File, Image};
    let text = |text: &str| json!({"type": "input_text", "text": text});
    let data_url = |mime: Mime<'_>, data| format!("data:{};base64,{data}", mime.full_type());
    match part {
        ContentPart::Text(content) => text(content),
        ContentPart::Media(Image, Source::Inline(mime, data, _)) => {
            json!({"type": "input_image", "image_url": data_url(mime, data)})
        }
        ContentPart::Media(Image, Source::Url(url)) => {
            json!({"type": "input_image", "image_url": url})
        }
        ContentPart::Media(File, Source::Inline(mime, data, name)) => {
            let (name, data) = (name.unwrap_or("file"), data_url(mime, data));
            json!({"type": "input_file", "filename": name, "file_data": data})
        }
        ContentPart::Media(File, Source::Url(url)) => {
            json!({"type": "input_file", "file_url": url})
        }
        ContentPart::Uploaded(id) => json!({"type": "input_file", "file_id": id}),
        ContentPart::Media(Audio, Source::Inline(mime, data, _)) => {
            let format = match mime {
                Mime::AudioFormat(format) => format,
                Mime::Full(mime) => mime.rsplit('/').next().unwrap_or(mime),
            };
            json!({"type": "input_audio", "input_audio": {"data": data, "format": format}})
        }
        ContentPart::Media(kind, _) => text(&omitted_text(kind.into())),
        ContentPart::Unknown(kind) => text(&omitted_text(kind)),
    }
}
