//! Messages: a list of content blocks.

use serde_json::{Value, json};

use super::{ScriptedAnswer, StreamFrame};
use crate::model::reply::{Finish, ReplyPart, ReplyUsage};

pub(super) fn frames(script: &ScriptedAnswer) -> Vec<StreamFrame> {
    let mut start = message_head(script);
    if let Some(fields) = start.as_object_mut() {
        fields.insert(
            "usage".to_owned(),
            usage_json(ReplyUsage {
                output: 1,
                ..script.usage
            }),
        );
    }
    let mut frames = vec![
        StreamFrame::typed(&json!({"type": "message_start", "message": start})),
        StreamFrame::typed(&json!({"type": "ping"})),
    ];
    for (index, part) in script.parts.iter().enumerate() {
        match part {
            ReplyPart::Error(error) => {
                frames.push(StreamFrame::typed(
                    &json!({"type": "error", "error": error}),
                ));
            }
            ReplyPart::Garbage(data) => frames.push(StreamFrame::from_text(data)),
            ReplyPart::Text(_) | ReplyPart::Reasoning(_) | ReplyPart::Call { .. } => {
                frames.extend(block_frames(index, part));
            }
            ReplyPart::Usage(_) | ReplyPart::Finish(_) => {}
        }
    }
    if !script.has_error_event() {
        frames.push(StreamFrame::typed(&json!({"type": "message_delta",
            "delta": {"stop_reason": finish_reason(script.finish), "stop_sequence": null},
            "usage": {"output_tokens": script.usage.output}})));
        frames.push(StreamFrame::typed(&json!({"type": "message_stop"})));
    }
    frames
}

pub(super) fn full_response(script: &ScriptedAnswer) -> Value {
    let content: Vec<Value> = script.parts.iter().filter_map(content_block).collect();
    let mut message = message_head(script);
    if let Some(fields) = message.as_object_mut() {
        fields.insert("content".to_owned(), content.into());
        fields.insert(
            "stop_reason".to_owned(),
            finish_reason(script.finish).into(),
        );
        fields.insert("usage".to_owned(), usage_json(script.usage));
    }
    message
}

fn message_head(script: &ScriptedAnswer) -> Value {
    json!({"id": "msg_1", "type": "message", "role": "assistant", "model": script.model, "content": [],
        "stop_reason": null, "stop_sequence": null})
}

fn block_frames(index: usize, part: &ReplyPart) -> Vec<StreamFrame> {
    let (open, deltas): (Value, Vec<Value>) = match part {
        ReplyPart::Text(deltas) => (
            json!({"type": "text", "text": ""}),
            deltas
                .iter()
                .map(|text| json!({"type": "text_delta", "text": text}))
                .collect(),
        ),
        ReplyPart::Reasoning(deltas) => {
            let mut events: Vec<Value> = deltas
                .iter()
                .map(|text| json!({"type": "thinking_delta", "thinking": text}))
                .collect();
            events.push(json!({"type": "signature_delta", "signature": "c2lnbmF0dXJl"}));
            (
                json!({"type": "thinking", "thinking": "", "signature": ""}),
                events,
            )
        }
        ReplyPart::Call {
            id,
            name,
            arguments,
        } => (
            json!({"type": "tool_use", "id": id, "name": name, "input": {}}),
            arguments
                .iter()
                .map(|json| json!({"type": "input_json_delta", "partial_json": json}))
                .collect(),
        ),
        ReplyPart::Usage(_)
        | ReplyPart::Finish(_)
        | ReplyPart::Error(_)
        | ReplyPart::Garbage(_) => return Vec::new(),
    };
    let start = json!({"type": "content_block_start", "index": index, "content_block": open});
    let stop = json!({"type": "content_block_stop", "index": index});
    let deltas = deltas.iter().map(|delta| {
        StreamFrame::typed(&json!({"type": "content_block_delta", "index": index, "delta": delta}))
    });
    [StreamFrame::typed(&start)]
        .into_iter()
        .chain(deltas)
        .chain([StreamFrame::typed(&stop)])
        .collect()
}

fn content_block(part: &ReplyPart) -> Option<Value> {
    match part {
        ReplyPart::Text(deltas) => Some(json!({"type": "text", "text": deltas.concat()})),
        ReplyPart::Reasoning(deltas) => Some(
            json!({"type": "thinking", "thinking": deltas.concat(), "signature": "c2lnbmF0dXJl"}),
        ),
        ReplyPart::Call {
            id,
            name,
            arguments,
        } => {
            let input: Value =
                serde_json::from_str(&arguments.concat()).unwrap_or_else(|_| json!({}));
            Some(json!({"type": "tool_use", "id": id, "name": name, "input": input}))
        }
        ReplyPart::Usage(_)
        | ReplyPart::Finish(_)
        | ReplyPart::Error(_)
        | ReplyPart::Garbage(_) => None,
    }
}

fn finish_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "end_turn",
        Finish::ToolCalls => "tool_use",
        Finish::Length => "max_tokens",
        Finish::Filter => "refusal",
    }
}

/// Converts token counts. This format counts cached input separately from the input.
fn usage_json(usage: ReplyUsage) -> Value {
    json!({"input_tokens": usage.input.saturating_sub(usage.cached), "output_tokens": usage.output,
        "cache_read_input_tokens": usage.cached, "cache_creation_input_tokens": 0})
}
