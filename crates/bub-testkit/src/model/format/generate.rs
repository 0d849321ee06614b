//! Generate content: candidates made of parts. Tool arguments are never split.

use serde_json::{Value, json};

use super::{ScriptedAnswer, StreamFrame};
use crate::model::reply::{Finish, ReplyPart, ReplyUsage};

pub(super) fn frames(script: &ScriptedAnswer) -> Vec<StreamFrame> {
    let mut frames = Vec::new();
    for part in &script.parts {
        match part {
            ReplyPart::Text(deltas) => {
                frames.extend(deltas.iter().map(|text| {
                    StreamFrame::from_json(&response_body(script, &[json!({"text": text})], None))
                }));
            }
            ReplyPart::Reasoning(deltas) => frames.extend(deltas.iter().map(|text| {
                StreamFrame::from_json(&response_body(
                    script,
                    &[json!({"text": text, "thought": true})],
                    None,
                ))
            })),
            ReplyPart::Call { .. } => {
                frames.push(StreamFrame::from_json(&response_body(
                    script,
                    &content_parts(part),
                    None,
                )));
            }
            ReplyPart::Error(error) => {
                frames.push(StreamFrame::from_json(&json!({"error": error})));
            }
            ReplyPart::Garbage(data) => frames.push(StreamFrame::from_text(data)),
            ReplyPart::Usage(_) | ReplyPart::Finish(_) => {}
        }
    }
    if !script.has_error_event() {
        frames.push(StreamFrame::from_json(&response_body(
            script,
            &[],
            Some(script.finish),
        )));
    }
    frames
}

pub(super) fn full_response(script: &ScriptedAnswer) -> Value {
    let all: Vec<Value> = script.parts.iter().flat_map(content_parts).collect();
    response_body(script, &all, Some(script.finish))
}

fn response_body(script: &ScriptedAnswer, parts: &[Value], finish: Option<Finish>) -> Value {
    let mut candidate = json!({"index": 0, "content": {"role": "model", "parts": parts}});
    if let (Some(finish), Some(fields)) = (finish, candidate.as_object_mut()) {
        fields.insert("finishReason".to_owned(), finish_reason(finish).into());
    }
    json!({"candidates": [candidate], "modelVersion": script.model, "usageMetadata": usage_json(script.usage)})
}

fn content_parts(part: &ReplyPart) -> Vec<Value> {
    match part {
        ReplyPart::Text(deltas) => vec![json!({"text": deltas.concat()})],
        ReplyPart::Reasoning(deltas) => vec![json!({"text": deltas.concat(), "thought": true})],
        ReplyPart::Call {
            id,
            name,
            arguments,
        } => {
            let arguments: Value =
                serde_json::from_str(&arguments.concat()).unwrap_or_else(|_| json!({}));
            vec![json!({"functionCall": {"id": id, "name": name, "args": arguments}})]
        }
        ReplyPart::Usage(_)
        | ReplyPart::Finish(_)
        | ReplyPart::Error(_)
        | ReplyPart::Garbage(_) => Vec::new(),
    }
}

fn finish_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop | Finish::ToolCalls => "STOP",
        Finish::Length => "MAX_TOKENS",
        Finish::Filter => "SAFETY",
    }
}

/// Converts token counts. This format counts reasoning separately from the output.
fn usage_json(usage: ReplyUsage) -> Value {
    json!({"promptTokenCount": usage.input,
        "candidatesTokenCount": usage.output.saturating_sub(usage.reasoning),
        "thoughtsTokenCount": usage.reasoning, "cachedContentTokenCount": usage.cached,
        "totalTokenCount": usage.input + usage.output})
}
