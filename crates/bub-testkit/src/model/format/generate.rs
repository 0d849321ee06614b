//! Generate content: candidates made of parts. Tool arguments are never split here.

use serde_json::{Value, json};

use super::{Frame, Said};
use crate::model::reply::{Finish, Part, Usage};

pub(super) fn frames(said: &Said) -> Vec<Frame> {
    let mut frames = Vec::new();
    for part in &said.parts {
        match part {
            Part::Text(deltas) => {
                frames.extend(
                    deltas
                        .iter()
                        .map(|text| Frame::data(&body(said, &[json!({"text": text})], None))),
                );
            }
            Part::Reasoning(deltas) => frames.extend(deltas.iter().map(|text| {
                Frame::data(&body(said, &[json!({"text": text, "thought": true})], None))
            })),
            Part::Call { .. } => frames.push(Frame::data(&body(said, &parts(part), None))),
            Part::Error(error) => frames.push(Frame::data(&json!({"error": error}))),
            Part::Garbage(data) => frames.push(Frame::plain(data)),
            Part::Usage(_) | Part::Finish(_) => {}
        }
    }
    if !said.breaks_off() {
        frames.push(Frame::data(&body(said, &[], Some(said.finish))));
    }
    frames
}

pub(super) fn whole(said: &Said) -> Value {
    let all: Vec<Value> = said.parts.iter().flat_map(parts).collect();
    body(said, &all, Some(said.finish))
}

fn body(said: &Said, parts: &[Value], finish: Option<Finish>) -> Value {
    let mut candidate = json!({"index": 0, "content": {"role": "model", "parts": parts}});
    if let (Some(finish), Some(fields)) = (finish, candidate.as_object_mut()) {
        fields.insert("finishReason".to_owned(), reason(finish).into());
    }
    json!({"candidates": [candidate], "modelVersion": said.model, "usageMetadata": usage(said.usage)})
}

fn parts(part: &Part) -> Vec<Value> {
    match part {
        Part::Text(deltas) => vec![json!({"text": deltas.concat()})],
        Part::Reasoning(deltas) => vec![json!({"text": deltas.concat(), "thought": true})],
        Part::Call {
            id,
            name,
            arguments,
        } => {
            let arguments: Value =
                serde_json::from_str(&arguments.concat()).unwrap_or_else(|_| json!({}));
            vec![json!({"functionCall": {"id": id, "name": name, "args": arguments}})]
        }
        Part::Usage(_) | Part::Finish(_) | Part::Error(_) | Part::Garbage(_) => Vec::new(),
    }
}

fn reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop | Finish::ToolCalls => "STOP",
        Finish::Length => "MAX_TOKENS",
        Finish::Filter => "SAFETY",
    }
}

/// This format counts reasoning beside, not inside, the output.
fn usage(usage: Usage) -> Value {
    json!({"promptTokenCount": usage.input,
        "candidatesTokenCount": usage.output.saturating_sub(usage.reasoning),
        "thoughtsTokenCount": usage.reasoning, "cachedContentTokenCount": usage.cached,
        "totalTokenCount": usage.input + usage.output})
}
