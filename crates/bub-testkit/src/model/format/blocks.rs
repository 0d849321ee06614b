//! Messages: a list of content blocks.

use serde_json::{Value, json};

use super::{Frame, Said};
use crate::model::reply::{Finish, Part, Usage};

pub(super) fn frames(said: &Said) -> Vec<Frame> {
    let mut start = head(said);
    if let Some(fields) = start.as_object_mut() {
        fields.insert(
            "usage".to_owned(),
            usage(Usage {
                output: 1,
                ..said.usage
            }),
        );
    }
    let mut frames = vec![
        Frame::typed(&json!({"type": "message_start", "message": start})),
        Frame::typed(&json!({"type": "ping"})),
    ];
    for (index, part) in said.parts.iter().enumerate() {
        match part {
            Part::Error(error) => {
                frames.push(Frame::typed(&json!({"type": "error", "error": error})));
            }
            Part::Garbage(data) => frames.push(Frame::plain(data)),
            Part::Text(_) | Part::Reasoning(_) | Part::Call { .. } => {
                frames.extend(block_frames(index, part));
            }
            Part::Usage(_) | Part::Finish(_) => {}
        }
    }
    if !said.breaks_off() {
        frames.push(Frame::typed(&json!({"type": "message_delta",
            "delta": {"stop_reason": reason(said.finish), "stop_sequence": null},
            "usage": {"output_tokens": said.usage.output}})));
        frames.push(Frame::typed(&json!({"type": "message_stop"})));
    }
    frames
}

pub(super) fn whole(said: &Said) -> Value {
    let content: Vec<Value> = said.parts.iter().filter_map(block).collect();
    let mut message = head(said);
    if let Some(fields) = message.as_object_mut() {
        fields.insert("content".to_owned(), content.into());
        fields.insert("stop_reason".to_owned(), reason(said.finish).into());
        fields.insert("usage".to_owned(), usage(said.usage));
    }
    message
}

fn head(said: &Said) -> Value {
    json!({"id": "msg_1", "type": "message", "role": "assistant", "model": said.model, "content": [],
        "stop_reason": null, "stop_sequence": null})
}

fn block_frames(index: usize, part: &Part) -> Vec<Frame> {
    let (open, deltas): (Value, Vec<Value>) = match part {
        Part::Text(deltas) => (
            json!({"type": "text", "text": ""}),
            deltas
                .iter()
                .map(|text| json!({"type": "text_delta", "text": text}))
                .collect(),
        ),
        Part::Reasoning(deltas) => {
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
        Part::Call {
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
        Part::Usage(_) | Part::Finish(_) | Part::Error(_) | Part::Garbage(_) => return Vec::new(),
    };
    let start = json!({"type": "content_block_start", "index": index, "content_block": open});
    let stop = json!({"type": "content_block_stop", "index": index});
    let deltas = deltas.iter().map(|delta| {
        Frame::typed(&json!({"type": "content_block_delta", "index": index, "delta": delta}))
    });
    [Frame::typed(&start)]
        .into_iter()
        .chain(deltas)
        .chain([Frame::typed(&stop)])
        .collect()
}

fn block(part: &Part) -> Option<Value> {
    match part {
        Part::Text(deltas) => Some(json!({"type": "text", "text": deltas.concat()})),
        Part::Reasoning(deltas) => Some(
            json!({"type": "thinking", "thinking": deltas.concat(), "signature": "c2lnbmF0dXJl"}),
        ),
        Part::Call {
            id,
            name,
            arguments,
        } => {
            let input: Value =
                serde_json::from_str(&arguments.concat()).unwrap_or_else(|_| json!({}));
            Some(json!({"type": "tool_use", "id": id, "name": name, "input": input}))
        }
        Part::Usage(_) | Part::Finish(_) | Part::Error(_) | Part::Garbage(_) => None,
    }
}

fn reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "end_turn",
        Finish::ToolCalls => "tool_use",
        Finish::Length => "max_tokens",
        Finish::Filter => "refusal",
    }
}

/// This format counts cached input beside, not inside, the input.
fn usage(usage: Usage) -> Value {
    json!({"input_tokens": usage.input.saturating_sub(usage.cached), "output_tokens": usage.output,
        "cache_read_input_tokens": usage.cached, "cache_creation_input_tokens": 0})
}
