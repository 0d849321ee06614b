//! Encoder for requests in the Messages format.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

use crate::wire::body::RequestBody;
use crate::wire::media::{self, ContentPart, PartKind, Source, omitted_text};
use crate::wire::message::{
    CallParts, OPENING_LINE, encode_turns, function_fields, role, system_text,
};
use crate::wire::replay::{ReplayPiece, replay_pieces, tool_calls};
use crate::wire::{HttpRequest, MESSAGES_VERSION_HEADER};
use crate::{ChatRequest, Quirks};

/// Output limit in tokens for requests without a limit, because the format requires one.
const DEFAULT_MAX_TOKENS: u64 = 8192;

/// Encodes a request in the Messages format.
pub(in crate::wire) fn encode(request: &ChatRequest, quirks: &Quirks) -> HttpRequest {
    let mut body = RequestBody::new(request, quirks);
    translate_options(&mut body);
    body.set("model", request.model.as_str());
    let limit = request.max_tokens.map(Value::from);
    let limit = limit.or_else(|| body.remove("max_tokens"));
    body.set("max_tokens", limit.unwrap_or(DEFAULT_MAX_TOKENS.into()));
    if let Some(system) = system_text(&request.messages) {
        body.set("system", system);
    }
    body.set("messages", encode_messages(&request.messages));
    if !request.tools.is_empty() {
        let tools: Vec<_> = request.tools.iter().map(encode_tool).collect();
        body.set("tools", tools);
    }
    if quirks.cache_control {
        body.set("cache_control", json!({"type": "ephemeral"}));
    }
    set_reasoning_effort(&mut body, request.reasoning_effort.as_deref());
    body.set("stream", request.stream);
    let (name, version) = MESSAGES_VERSION_HEADER;
    let headers = vec![(name, version.to_owned())];
    HttpRequest {
        path: "/v1/messages".into(),
        headers,
        body: body.into_bytes(quirks),
    }
}

/// Translates options from the chat-completions format to the Messages format.
fn translate_options(body: &mut RequestBody<'_>) {
    match body.remove("stop") {
        Some(stop @ Value::Array(_)) => body.set("stop_sequences", stop),
        Some(stop) => body.set("stop_sequences", json!([stop])),
        None => {}
    }
    let parallel = body
        .remove("parallel_tool_calls")
        .and_then(|value| value.as_bool());
    if let Some(choice) = body.remove("tool_choice") {
        let choice = match (choice.as_str(), choice.get("function")) {
            (Some("required"), _) => json!({"type": "any"}),
            (Some(other), _) => json!({"type": other}),
            (None, Some(function)) => json!({"type": "tool", "name": function.get("name")}),
            (None, None) => choice,
        };
        body.set("tool_choice", choice);
    } else if parallel == Some(false) {
        body.set("tool_choice", json!({"type": "auto"}));
    }
    if parallel == Some(false) {
        body.set_nested("tool_choice", "disable_parallel_tool_use", true.into());
    }
    body.remove("stream_options");
}

fn set_reasoning_effort(body: &mut RequestBody<'_>, effort: Option<&str>) {
    let effort = match effort {
        None | Some("auto") => return,
        Some("none") => {
            body.set("thinking", json!({"type": "disabled"}));
            return;
        }
        Some("minimal") => "low",
        Some(effort) => effort,
    };
    body.set("thinking", json!({"type": "adaptive"}));
    body.set_nested("output_config", "effort", effort.into());
}

fn encode_tool(tool: &Value) -> Value {
    // A tool that is already in the Messages format, such as the provider's web search, is sent unchanged.
    if tool.get("function").is_none() && tool.get("type").is_some() {
        return tool.clone();
    }
    function_fields(tool, &["name", "description", "strict"], "input_schema").into()
}

fn encode_messages(messages: &[Value]) -> Vec<Value> {
    let mut ids = CallIds::default();
    let opening = json!({"role": "user", "content": OPENING_LINE});
    encode_turns(messages, "content", opening, |message| {
        match role(message) {
            "assistant" => ("assistant", encode_assistant(message, &mut ids)),
            "tool" => ("user", vec![encode_tool_result(message, &ids)]),
            _ => ("user", encode_content_blocks(message.get("content"))),
        }
    })
}

fn encode_assistant(message: &Value, ids: &mut CallIds) -> Vec<Value> {
    ids.assign_ids(tool_calls(message));
    let mut out = Vec::new();
    for piece in replay_pieces(message, super::NAME) {
        match piece {
            ReplayPiece::Kept(block) => out.push(block.clone()),
            ReplayPiece::Text(text, _) if text.trim().is_empty() => {}
            ReplayPiece::Text(text, _) => out.push(json!({"type": "text", "text": text})),
            ReplayPiece::Parts(parts) => out.extend(encode_content_blocks(Some(parts))),
            ReplayPiece::Call(call, _) => {
                let call = CallParts::from_value(call);
                let id = ids.get(call.id);
                out.push(json!({"type": "tool_use", "id": id, "name": call.name, "input": call.arguments_object()}));
            }
        }
    }
    out
}

fn encode_tool_result(message: &Value, ids: &CallIds) -> Value {
    let id = message
        .get("tool_call_id")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let content = match message.get("content") {
        Some(Value::String(text)) => Value::from(text.as_str()),
        content => Value::Array(encode_content_blocks(content)),
    };
    json!({"type": "tool_result", "tool_use_id": ids.get(id), "content": content})
}

fn encode_content_blocks(content: Option<&Value>) -> Vec<Value> {
    media::parse_parts(content)
        .into_iter()
        .map(encode_content_block)
        .collect()
}

fn encode_content_block(part: ContentPart<'_>) -> Value {
    use PartKind::{File, Image};
    let text = |text: &str| json!({"type": "text", "text": text});
    match part {
        ContentPart::Text(content) => text(content),
        ContentPart::Media(Image, Source::Inline(mime, data, _)) => {
            json!({"type": "image", "source": {"type": "base64", "media_type": mime.full_type(), "data": data}})
        }
        ContentPart::Media(File, Source::Inline(mime, data, name)) => {
            encode_document_block(&mime.full_type(), data, name)
        }
        ContentPart::Media(Image, Source::Url(url)) => {
            json!({"type": "image", "source": {"type": "url", "url": url}})
        }
        ContentPart::Media(File, Source::Url(url)) => {
            json!({"type": "document", "source": {"type": "url", "url": url}})
        }
        ContentPart::Uploaded(id) => {
            json!({"type": "document", "source": {"type": "file", "file_id": id}})
        }
        ContentPart::Media(kind, _) => text(&omitted_text(kind.into())),
        ContentPart::Unknown(kind) => text(&omitted_text(kind)),
    }
}

fn encode_document_block(mime: &str, data: &str, name: Option<&str>) -> Value {
    let text = mime
        .starts_with("text/")
        .then(|| media::decode_text(data))
        .flatten();
    let source = match text {
        Some(text) => json!({"type": "text", "media_type": "text/plain", "data": text}),
        None => json!({"type": "base64", "media_type": mime, "data": data}),
    };
    match name {
        Some(name) => json!({"type": "document", "source": source, "title": name}),
        None => json!({"type": "document", "source": source}),
    }
}

/// Maps call ids to unique ids with the characters that the Messages format allows. Other servers use `call_0` in every
/// step, and the format rejects repeated ids.
#[derive(Default)]
struct CallIds {
    used: HashSet<String>,
    current: HashMap<String, String>,
}

impl CallIds {
    /// Assigns a unique id to each call in `calls`.
    fn assign_ids(&mut self, calls: &[Value]) {
        for call in calls {
            let original = CallParts::from_value(call).id;
            let is_forbidden = |c: char| !c.is_ascii_alphanumeric() && !matches!(c, '_' | '-');
            let plain = match original {
                "" => "call".to_owned(),
                original => original.replace(is_forbidden, "_"),
            };
            let mut id = plain.clone();
            let mut count = 1;
            while !self.used.insert(id.clone()) {
                count += 1;
                id = format!("{plain}_{count}");
            }
            self.current.insert(original.to_owned(), id);
        }
    }

    fn get<'a>(&'a self, id: &'a str) -> &'a str {
        self.current.get(id).map_or(id, String::as_str)
    }
}
