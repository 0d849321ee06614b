//! Responses: a list of output items.

use serde_json::{Value, json};

use super::{ScriptedAnswer, StreamFrame};
use crate::model::reply::{Finish, ReplyPart, ReplyUsage};

pub(super) fn frames(script: &ScriptedAnswer) -> Vec<StreamFrame> {
    let mut frames = vec![StreamFrame::typed(
        &json!({"type": "response.created", "response": response_head(script)}),
    )];
    for (index, part) in script.parts.iter().enumerate() {
        match part {
            ReplyPart::Text(deltas) => frames.extend(text_frames(index, deltas)),
            ReplyPart::Reasoning(deltas) => frames.extend(reasoning_frames(index, deltas)),
            ReplyPart::Call { arguments, .. } => frames.extend(call_frames(index, part, arguments)),
            ReplyPart::Error(error) => {
                frames.push(StreamFrame::typed(&failure_event(script, error)));
            }
            ReplyPart::Garbage(data) => frames.push(StreamFrame::from_text(data)),
            ReplyPart::Usage(_) | ReplyPart::Finish(_) => {}
        }
    }
    if !script.has_error_event() {
        let kind = if is_complete(script.finish) {
            "response.completed"
        } else {
            "response.incomplete"
        };
        frames.push(StreamFrame::typed(
            &json!({"type": kind, "response": full_response(script)}),
        ));
    }
    frames
}

pub(super) fn full_response(script: &ScriptedAnswer) -> Value {
    let output: Vec<Value> = script
        .parts
        .iter()
        .enumerate()
        .filter_map(|(index, part)| output_item(index, part))
        .collect();
    let mut response = response_head(script);
    if let Some(fields) = response.as_object_mut() {
        let status = if is_complete(script.finish) {
            "completed"
        } else {
            "incomplete"
        };
        fields.insert("status".to_owned(), status.into());
        fields.insert("output".to_owned(), output.into());
        fields.insert("usage".to_owned(), usage_json(script.usage));
        if let Some(reason) = incomplete_reason(script.finish) {
            fields.insert("incomplete_details".to_owned(), json!({"reason": reason}));
        }
    }
    response
}

fn response_head(script: &ScriptedAnswer) -> Value {
    json!({"id": "resp_1", "object": "response", "model": script.model, "status": "in_progress", "output": []})
}

fn text_frames(index: usize, deltas: &[String]) -> Vec<StreamFrame> {
    let id = format!("msg_{index}");
    let open = json!({"type": "response.output_item.added", "output_index": index,
        "item": {"id": id, "type": "message", "role": "assistant", "status": "in_progress", "content": []}});
    let mut frames = vec![StreamFrame::typed(&open)];
    frames.extend(deltas.iter().map(|delta| {
        StreamFrame::typed(
            &json!({"type": "response.output_text.delta", "output_index": index, "item_id": id,
            "content_index": 0, "delta": delta}),
        )
    }));
    let part = ReplyPart::Text(deltas.to_vec());
    frames.push(StreamFrame::typed(
        &json!({"type": "response.output_text.done", "output_index": index,
        "item_id": id, "content_index": 0, "text": deltas.concat()}),
    ));
    frames.push(done_frame(index, &part));
    frames
}

fn reasoning_frames(index: usize, deltas: &[String]) -> Vec<StreamFrame> {
    let id = format!("rs_{index}");
    let open = json!({"type": "response.output_item.added", "output_index": index,
        "item": {"id": id, "type": "reasoning", "summary": []}});
    let mut frames = vec![StreamFrame::typed(&open)];
    frames.extend(deltas.iter().map(|delta| {
        StreamFrame::typed(
            &json!({"type": "response.reasoning_summary_text.delta", "output_index": index,
            "item_id": id, "summary_index": 0, "delta": delta}),
        )
    }));
    frames.push(done_frame(index, &ReplyPart::Reasoning(deltas.to_vec())));
    frames
}

fn call_frames(index: usize, part: &ReplyPart, arguments: &[String]) -> Vec<StreamFrame> {
    let mut open = output_item(index, part).unwrap_or_default();
    if let Some(fields) = open.as_object_mut() {
        fields.insert("arguments".to_owned(), "".into());
        fields.insert("status".to_owned(), "in_progress".into());
    }
    let id = format!("fc_{index}");
    let mut frames = vec![StreamFrame::typed(
        &json!({"type": "response.output_item.added", "output_index": index, "item": open}),
    )];
    frames.extend(arguments.iter().map(|delta| {
        StreamFrame::typed(
            &json!({"type": "response.function_call_arguments.delta", "output_index": index,
            "item_id": id, "delta": delta}),
        )
    }));
    frames.push(StreamFrame::typed(
        &json!({"type": "response.function_call_arguments.done",
        "output_index": index, "item_id": id, "arguments": arguments.concat()}),
    ));
    frames.push(done_frame(index, part));
    frames
}

fn done_frame(index: usize, part: &ReplyPart) -> StreamFrame {
    StreamFrame::typed(
        &json!({"type": "response.output_item.done", "output_index": index, "item": output_item(index, part)}),
    )
}

fn output_item(index: usize, part: &ReplyPart) -> Option<Value> {
    match part {
        ReplyPart::Text(deltas) => Some(
            json!({"id": format!("msg_{index}"), "type": "message", "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": deltas.concat(), "annotations": []}]}),
        ),
        ReplyPart::Reasoning(deltas) => {
            Some(json!({"id": format!("rs_{index}"), "type": "reasoning",
            "summary": [{"type": "summary_text", "text": deltas.concat()}]}))
        }
        ReplyPart::Call {
            id,
            name,
            arguments,
        } => Some(json!({"id": format!("fc_{index}"), "type": "function_call",
            "call_id": id, "name": name, "arguments": arguments.concat(), "status": "completed"})),
        ReplyPart::Usage(_)
        | ReplyPart::Finish(_)
        | ReplyPart::Error(_)
        | ReplyPart::Garbage(_) => None,
    }
}

fn failure_event(script: &ScriptedAnswer, error: &Value) -> Value {
    let mut response = response_head(script);
    if let Some(fields) = response.as_object_mut() {
        fields.insert("status".to_owned(), "failed".into());
        fields.insert("error".to_owned(), error.clone());
    }
    json!({"type": "response.failed", "response": response})
}

fn is_complete(finish: Finish) -> bool {
    incomplete_reason(finish).is_none()
}

fn incomplete_reason(finish: Finish) -> Option<&'static str> {
    match finish {
        Finish::Stop | Finish::ToolCalls => None,
        Finish::Length => Some("max_output_tokens"),
        Finish::Filter => Some("content_filter"),
    }
}

fn usage_json(usage: ReplyUsage) -> Value {
    json!({"input_tokens": usage.input, "output_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens_details": {"reasoning_tokens": usage.reasoning}})
}
