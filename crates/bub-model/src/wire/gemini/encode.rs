//! Encoder for requests in the `generateContent` format.

use std::fmt::Write as _;

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::wire::HttpRequest;
use crate::wire::body::RequestBody;
use crate::wire::media::{self, ContentPart, omitted_text};
use crate::wire::message::{
    CallParts, OPENING_LINE, content_text, function_object, is_system, opens_with_assistant,
    parameters_schema, role, system_text,
};
use crate::wire::replay::{ReplayPiece, replay_pieces, tool_calls};
use crate::{ChatRequest, EffortForm, Quirks};

/// Encodes a request in the `generateContent` format.
pub(in crate::wire) fn encode(request: &ChatRequest, quirks: &Quirks) -> HttpRequest {
    let mut body = RequestBody::new(request, quirks);
    translate_options(&mut body);
    if let Some(system) = system_text(&request.messages) {
        body.set("systemInstruction", json!({"parts": [{"text": system}]}));
    }
    body.set("contents", encode_contents(request));
    let declarations: Vec<_> = request
        .tools
        .iter()
        .filter(|tool| tool.get("function").is_some())
        .map(encode_function_declaration)
        .collect();
    let mut tools: Vec<_> = request
        .tools
        .iter()
        .filter(|tool| tool.get("function").is_none())
        .cloned()
        .collect();
    if !declarations.is_empty() {
        tools.push(json!({"functionDeclarations": declarations}));
    }
    if !tools.is_empty() {
        body.set("tools", tools);
    }
    if let Some(limit) = request.max_tokens {
        body.set_nested("generationConfig", "maxOutputTokens", limit.into());
    }
    if let Some(effort) = request
        .reasoning_effort
        .as_deref()
        .filter(|_| quirks.effort != EffortForm::Omit)
    {
        set_reasoning_effort(&mut body, &request.model, effort);
    }
    let model = request
        .model
        .strip_prefix("models/")
        .unwrap_or(&request.model);
    let method = if request.stream {
        "streamGenerateContent?alt=sse"
    } else {
        "generateContent"
    };
    let path = format!("/models/{}:{method}", percent_encode_segment(model));
    HttpRequest {
        path,
        headers: Vec::new(),
        body: body.into_bytes(quirks),
    }
}

/// Options of the chat-completions format and the corresponding fields of `generationConfig`.
const OPTION_PATHS: [(&str, &str); 9] = [
    ("temperature", "temperature"),
    ("top_p", "topP"),
    ("top_k", "topK"),
    ("seed", "seed"),
    ("stop", "stopSequences"),
    ("presence_penalty", "presencePenalty"),
    ("frequency_penalty", "frequencyPenalty"),
    ("max_tokens", "maxOutputTokens"),
    ("max_completion_tokens", "maxOutputTokens"),
];

fn translate_options(body: &mut RequestBody<'_>) {
    for (option, field) in OPTION_PATHS {
        if let Some(value) = body.remove(option) {
            let value = if field == "stopSequences" && value.is_string() {
                json!([value])
            } else {
                value
            };
            body.set_nested("generationConfig", field, value);
        }
    }
    if let Some(choice) = body.remove("tool_choice") {
        let calling = match (choice.as_str(), choice.pointer("/function/name")) {
            (_, Some(name)) => json!({"mode": "ANY", "allowedFunctionNames": [name]}),
            (Some("required" | "any"), _) => json!({"mode": "ANY"}),
            (Some("none"), _) => json!({"mode": "NONE"}),
            _ => json!({"mode": "AUTO"}),
        };
        body.set_nested("toolConfig", "functionCallingConfig", calling);
    }
    for unknown in ["stream_options", "parallel_tool_calls"] {
        body.remove(unknown);
    }
}

/// Sets the reasoning effort: a level for newer models, a number of tokens for older ones.
fn set_reasoning_effort(body: &mut RequestBody<'_>, model: &str, effort: &str) {
    let takes_level = !["gemini-1", "gemini-2"]
        .iter()
        .any(|prefix| model.contains(prefix));
    let thinking = match effort {
        "auto" => return,
        _ if takes_level => {
            let level = match effort {
                "none" | "minimal" => "minimal",
                "xhigh" | "max" => "high",
                other => other,
            };
            json!({"includeThoughts": effort != "none", "thinkingLevel": level})
        }
        _ => {
            let budget = match effort {
                "none" => 0,
                "minimal" => 512,
                "low" => 1024,
                "medium" => 8192,
                _ => 24_576,
            };
            json!({"includeThoughts": budget > 0, "thinkingBudget": budget})
        }
    };
    body.set_nested("generationConfig", "thinkingConfig", thinking);
}

fn encode_function_declaration(tool: &Value) -> Value {
    let function = function_object(tool);
    let mut out = Map::new();
    for key in ["name", "description"] {
        if let Some(value) = function.get(key).filter(|value| !value.is_null()) {
            out.insert(key.to_owned(), value.clone());
        }
    }
    out.insert("parametersJsonSchema".into(), parameters_schema(function));
    Value::Object(out)
}

fn encode_contents(request: &ChatRequest) -> Vec<Value> {
    let needs_signature = request.model.contains("gemini-3");
    let mut names: HashMap<&str, &str> = HashMap::new();
    let mut out: Vec<Value> = Vec::new();
    if opens_with_assistant(&request.messages) {
        out.push(json!({"role": "user", "parts": [{"text": OPENING_LINE}]}));
    }
    let mut after_tool = false;
    for message in request
        .messages
        .iter()
        .filter(|message| !is_system(message))
    {
        let is_tool = role(message) == "tool";
        let (role, parts) = match role(message) {
            "assistant" => {
                names.extend(
                    tool_calls(message)
                        .iter()
                        .map(CallParts::from_value)
                        .map(|call| (call.id, call.name)),
                );
                ("model", encode_assistant(message, needs_signature))
            }
            "tool" => ("user", encode_tool_result(message, &names)),
            _ => (
                "user",
                media::parse_parts(message.get("content"))
                    .into_iter()
                    .map(encode_part)
                    .collect(),
            ),
        };
        let joins = is_tool && after_tool;
        after_tool = is_tool;
        let last = out
            .last_mut()
            .filter(|_| joins)
            .and_then(|last| last.get_mut("parts")?.as_array_mut());
        match last {
            Some(last_parts) => last_parts.extend(parts),
            None if parts.is_empty() => {}
            None => out.push(json!({"role": role, "parts": parts})),
        }
    }
    out
}

/// Signature for calls that another model made. The provider documents this value.
const PLACEHOLDER_SIGNATURE: &str = "skip_thought_signature_validator";

fn encode_assistant(message: &Value, needs_signature: bool) -> Vec<Value> {
    let mut out = Vec::new();
    let mut unsigned = needs_signature;
    for piece in replay_pieces(message, super::NAME) {
        match piece {
            ReplayPiece::Kept(part) => out.push(part.clone()),
            ReplayPiece::Text("", None) => {}
            ReplayPiece::Text(text, mark) => out.push(with_signature(json!({"text": text}), mark)),
            ReplayPiece::Parts(parts) => {
                out.extend(media::parse_parts(Some(parts)).into_iter().map(encode_part));
            }
            ReplayPiece::Call(call, mark) => {
                let call = CallParts::from_value(call);
                let placeholder = json!({"thoughtSignature": PLACEHOLDER_SIGNATURE});
                let mark = mark.or((unsigned).then_some(&placeholder));
                // Only the first call of an answer has a signature.
                unsigned = false;
                out.push(with_signature(
                    json!({"functionCall": {"name": call.name, "args": call.arguments_object()}}),
                    mark,
                ));
            }
        }
    }
    out
}

fn with_signature(mut part: Value, mark: Option<&Value>) -> Value {
    if let (Some(part), Some(Value::Object(mark))) = (part.as_object_mut(), mark) {
        part.extend(mark.clone());
    }
    part
}

fn encode_tool_result(message: &Value, names: &HashMap<&str, &str>) -> Vec<Value> {
    let text = |key: &str| {
        message
            .get(key)
            .and_then(Value::as_str)
            .filter(|text| !text.is_empty())
    };
    let called_name = || text("tool_call_id").and_then(|id| names.get(id).copied());
    let name = called_name().or(text("name")).unwrap_or("tool");
    let result = content_text(message.get("content"));
    let response = match serde_json::from_str(&result) {
        Ok(Value::Object(object)) => Value::Object(object),
        _ => json!({"result": result}),
    };
    let mut parts = vec![json!({"functionResponse": {"name": name, "response": response}})];
    let media = media::parse_parts(message.get("content").filter(|content| content.is_array()));
    parts.extend(
        media
            .into_iter()
            .filter(|part| !matches!(part, ContentPart::Text(_)))
            .map(encode_part),
    );
    parts
}

fn encode_part(part: ContentPart<'_>) -> Value {
    match part {
        ContentPart::Text(text) => json!({"text": text}),
        ContentPart::Inline { mime, data, .. } => {
            json!({"inlineData": {"mimeType": mime.full_type(), "data": data}})
        }
        ContentPart::Remote { url, .. } => json!({"fileData": {"fileUri": url}}),
        ContentPart::Uploaded(id) => json!({"fileData": {"fileUri": id}}),
        ContentPart::Unknown(kind) => json!({"text": omitted_text(kind)}),
    }
}

/// Percent-encodes the model's name as a single path segment, so that it cannot change the path.
fn percent_encode_segment(model: &str) -> String {
    let mut segment = String::with_capacity(model.len());
    for byte in model.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'@' => {
                segment.push(char::from(byte));
            }
            other => {
                let _ = write!(segment, "%{other:02X}");
            }
        }
    }
    segment
}
