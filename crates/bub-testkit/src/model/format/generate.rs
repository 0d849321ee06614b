//! Generate content: candidates made of parts. Tool arguments are never split.

use serde_json::{Value, json};

use super::{ScriptedAnswer, StreamFrame};
use crate::model::reply::{Finish, ReplyPart, ReplyUsage};

pub(super) fn frames(said: &ScriptedAnswer) -> Vec<StreamFrame> {
    let mut frames = Vec::new();
    for part in &said.parts {
        match part {
            ReplyPart::Text(deltas) => {
                frames.extend(
                    deltas
                        .iter()
                        .map(|text| StreamFrame::data(&body(said, &[json!({"text": text})], None))),
                );
            }
            ReplyPart::Reasoning(deltas) => frames.extend(deltas.iter().map(|text| {
                StreamFrame::data(&body(said, &[json!({"text": text, "thought": true})], None))
            })),
            ReplyPart::Call { .. } => {
                frames.push(StreamFrame::data(&body(said, &parts(part), None)));
            }
            ReplyPart::Error(error) => frames.push(StreamFrame::data(&json!({"error": error}))),
            ReplyPart::Garbage(data) => frames.push(StreamFrame::plain(data)),
            ReplyPart::Usage(_) | ReplyPart::Finish(_) => {}
        }
    }
    if !said.breaks_off() {
        frames.push(StreamFrame::data(&body(said, &[], Some(said.finish))));
    }
    frames
}

pub(super) fn full_response(said: &ScriptedAnswer) -> Value {
    let all: Vec<Value> = said.parts.iter().flat_map(parts).collect();
    body(said, &all, Some(said.finish))
}

fn body(said: &ScriptedAnswer, parts: &[Value], finish: Option<Finish>) -> Value {
    let mut candidate = json!({"index": 0, "content": {"role": "model", "parts": parts}});
    if let (Some(finish), Some(fields)) = (finish, candidate.as_object_mut()) {
        fields.insert("finishReason".to_owned(), reason(finish).into());
    }
    json!({"candidates": [candidate], "modelVersion": said.model, "usageMetadata": usage(said.usage)})
}

fn parts(part: &ReplyPart) -> Vec<Value> {
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

fn reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop | Finish::ToolCalls => "STOP",
        Finish::Length => "MAX_TOKENS",
        Finish::Filter => "SAFETY",
    }
}

/// Converts token counts. This format counts reasoning separately from the output.
fn usage(usage: ReplyUsage) -> Value {
    json!({"promptTokenCount": usage.input,
        "candidatesTokenCount": usage.output.saturating_sub(usage.reasoning),
        "thoughtsTokenCount": usage.reasoning, "cachedContentTokenCount": usage.cached,
        "totalTokenCount": usage.input + usage.output})
}
