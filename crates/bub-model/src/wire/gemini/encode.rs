//! Encoder for requests in the `generateContent` format.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::wire::HttpRequest;
use crate::wire::body::RequestBody;
use crate::wire::media::{self, ContentPart, Source, omitted_text};
use crate::wire::message::{
    CallParts, OPENING_LINE, content_text, encode_turns, function_fields, role, system_text,
};
use crate::wire::replay::{ReplayPiece, replay_pieces, tool_calls, with_mark};
use crate::{ChatRequest, EffortForm, Quirks};

/// Encodes a request in the `generateContent` format.
pub(in crate::wire) fn encode(request: &ChatRequest, quirks: &Quirks) -> HttpRequest {
    let mut body = RequestBody::new(request, quirks);
    translate_options(&mut body);
    if let Some(system) = system_text(&request.messages) {
        body.set("systemInstruction", json!({"parts": [{"text": system}]}));
    }
    body.set("contents", encode_contents(request));
    let (functions, others): (Vec<&Value>, Vec<&Value>) = request
        .tools
        .iter()
        .partition(|tool| tool.get("function").is_some());
    let mut tools: Vec<_> = others.into_iter().cloned().collect();
    if !functions.is_empty() {
        let declaration =
            |tool| function_fields(tool, &["name", "description"], "parametersJsonSchema");
        let declarations: Vec<_> = functions.into_iter().map(declaration).collect();
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
    let model = request.model.as_str();
    let model = model.strip_prefix("models/").unwrap_or(model);
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
        if let Some(mut value) = body.remove(option) {
            if field == "stopSequences" && value.is_string() {
                value = json!([value]);
            }
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

fn encode_contents(request: &ChatRequest) -> Vec<Value> {
    let needs_signature = request.model.contains("gemini-3");
    let mut names: HashMap<&str, &str> = HashMap::new();
    let opening = json!({"role": "user", "parts": [{"text": OPENING_LINE}]});
    encode_turns(&request.messages, "parts", opening, |message| {
        match role(message) {
            "assistant" => {
                let calls = tool_calls(message).iter().map(CallParts::from_value);
                names.extend(calls.map(|call| (call.id, call.name)));
                ("model", encode_assistant(message, needs_signature))
            }
            "tool" => ("user", encode_tool_result(message, &names)),
            _ => ("user", encode_parts(message.get("content"))),
        }
    })
}

/// Value to send as the thought signature of tool calls that another model made. The provider documents this value.
const PLACEHOLDER_SIGNATURE: &str = "skip_thought_signature_validator";

fn encode_assistant(message: &Value, needs_signature: bool) -> Vec<Value> {
    let mut out = Vec::new();
    let mut unsigned = needs_signature;
    for piece in replay_pieces(message, super::NAME) {
        match piece {
            ReplayPiece::Kept(part) => out.push(part.clone()),
            ReplayPiece::Text("", None) => {}
            ReplayPiece::Text(text, mark) => out.push(with_mark(json!({"text": text}), mark)),
            ReplayPiece::Parts(parts) => out.extend(encode_parts(Some(parts))),
            ReplayPiece::Call(call, mark) => {
                let call = CallParts::from_value(call);
                let placeholder = json!({"thoughtSignature": PLACEHOLDER_SIGNATURE});
                let mark = mark.or((unsigned).then_some(&placeholder));
                // Only the first call of an answer has a signature.
                unsigned = false;
                out.push(with_mark(
                    json!({"functionCall": {"name": call.name, "args": call.arguments_object()}}),
                    mark,
                ));
            }
        }
    }
    out
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

fn encode_parts(content: Option<&Value>) -> Vec<Value> {
    let parts = media::parse_parts(content).into_iter();
    parts.map(encode_part).collect()
}

fn encode_part(part: ContentPart<'_>) -> Value {
    match part {
        ContentPart::Text(text) => json!({"text": text}),
        ContentPart::Media(_, Source::Inline(mime, data, _)) => {
            json!({"inlineData": {"mimeType": mime.full_type(), "data": data}})
        }
        ContentPart::Media(_, Source::Url(uri)) | ContentPart::Uploaded(uri) => {
            json!({"fileData": {"fileUri": uri}})
        }
        ContentPart::Unknown(kind) => json!({"text": omitted_text(kind)}),
    }
}

/// Percent-encodes the model's name as a single path segment, so that it cannot change the path.
fn percent_encode_segment(model: &str) -> String {
    let encode = |byte: u8| match byte {
        b'-' | b'_' | b'.' | b'~' | b'@' => char::from(byte).to_string(),
        _ if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    model.bytes().map(encode).collect()
}
