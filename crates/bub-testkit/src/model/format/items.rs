//! Responses: a list of output items.

use serde_json::{Value, json};

use super::{Frame, Said};
use crate::model::reply::{Finish, Part, Usage};

pub(super) fn frames(said: &Said) -> Vec<Frame> {
    let mut frames = vec![Frame::typed(
        &json!({"type": "response.created", "response": head(said)}),
    )];
    for (index, part) in said.parts.iter().enumerate() {
        match part {
            Part::Text(deltas) => frames.extend(text(index, deltas)),
            Part::Reasoning(deltas) => frames.extend(reasoning(index, deltas)),
            Part::Call { arguments, .. } => frames.extend(call(index, part, arguments)),
            Part::Error(error) => frames.push(Frame::typed(&failure(said, error))),
            Part::Garbage(data) => frames.push(Frame::plain(data)),
            Part::Usage(_) | Part::Finish(_) => {}
        }
    }
    if !said.breaks_off() {
        let kind = if complete(said.finish) {
            "response.completed"
        } else {
            "response.incomplete"
        };
        frames.push(Frame::typed(
            &json!({"type": kind, "response": whole(said)}),
        ));
    }
    frames
}

pub(super) fn whole(said: &Said) -> Value {
    let output: Vec<Value> = said
        .parts
        .iter()
        .enumerate()
        .filter_map(|(index, part)| item(index, part))
        .collect();
    let mut response = head(said);
    if let Some(fields) = response.as_object_mut() {
        let status = if complete(said.finish) {
            "completed"
        } else {
            "incomplete"
        };
        fields.insert("status".to_owned(), status.into());
        fields.insert("output".to_owned(), output.into());
        fields.insert("usage".to_owned(), usage(said.usage));
        if let Some(reason) = incomplete_reason(said.finish) {
            fields.insert("incomplete_details".to_owned(), json!({"reason": reason}));
        }
    }
    response
}

fn head(said: &Said) -> Value {
    json!({"id": "resp_1", "object": "response", "model": said.model, "status": "in_progress", "output": []})
}

fn text(index: usize, deltas: &[String]) -> Vec<Frame> {
    let id = format!("msg_{index}");
    let open = json!({"type": "response.output_item.added", "output_index": index,
        "item": {"id": id, "type": "message", "role": "assistant", "status": "in_progress", "content": []}});
    let mut frames = vec![Frame::typed(&open)];
    frames.extend(deltas.iter().map(|delta| {
        Frame::typed(
            &json!({"type": "response.output_text.delta", "output_index": index, "item_id": id,
            "content_index": 0, "delta": delta}),
        )
    }));
    let part = Part::Text(deltas.to_vec());
    frames.push(Frame::typed(
        &json!({"type": "response.output_text.done", "output_index": index,
        "item_id": id, "content_index": 0, "text": deltas.concat()}),
    ));
    frames.push(done(index, &part));
    frames
}

fn reasoning(index: usize, deltas: &[String]) -> Vec<Frame> {
    let id = format!("rs_{index}");
    let open = json!({"type": "response.output_item.added", "output_index": index,
        "item": {"id": id, "type": "reasoning", "summary": []}});
    let mut frames = vec![Frame::typed(&open)];
    frames.extend(deltas.iter().map(|delta| {
        Frame::typed(
            &json!({"type": "response.reasoning_summary_text.delta", "output_index": index,
            "item_id": id, "summary_index": 0, "delta": delta}),
        )
    }));
    frames.push(done(index, &Part::Reasoning(deltas.to_vec())));
    frames
}

fn call(index: usize, part: &Part, arguments: &[String]) -> Vec<Frame> {
    let mut open = item(index, part).unwrap_or_default();
    if let Some(fields) = open.as_object_mut() {
        fields.insert("arguments".to_owned(), "".into());
        fields.insert("status".to_owned(), "in_progress".into());
    }
    let id = format!("fc_{index}");
    let mut frames = vec![Frame::typed(
        &json!({"type": "response.output_item.added", "output_index": index, "item": open}),
    )];
    frames.extend(arguments.iter().map(|delta| {
        Frame::typed(
            &json!({"type": "response.function_call_arguments.delta", "output_index": index,
            "item_id": id, "delta": delta}),
        )
    }));
    frames.push(Frame::typed(
        &json!({"type": "response.function_call_arguments.done",
        "output_index": index, "item_id": id, "arguments": arguments.concat()}),
    ));
    frames.push(done(index, part));
    frames
}

fn done(index: usize, part: &Part) -> Frame {
    Frame::typed(
        &json!({"type": "response.output_item.done", "output_index": index, "item": item(index, part)}),
    )
}

fn item(index: usize, part: &Part) -> Option<Value> {
    match part {
        Part::Text(deltas) => Some(
            json!({"id": format!("msg_{index}"), "type": "message", "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": deltas.concat(), "annotations": []}]}),
        ),
        Part::Reasoning(deltas) => Some(json!({"id": format!("rs_{index}"), "type": "reasoning",
            "summary": [{"type": "summary_text", "text": deltas.concat()}]})),
        Part::Call {
            id,
            name,
            arguments,
        } => Some(json!({"id": format!("fc_{index}"), "type": "function_call",
            "call_id": id, "name": name, "arguments": arguments.concat(), "status": "completed"})),
        Part::Usage(_) | Part::Finish(_) | Part::Error(_) | Part::Garbage(_) => None,
    }
}

fn failure(said: &Said, error: &Value) -> Value {
    let mut response = head(said);
    if let Some(fields) = response.as_object_mut() {
        fields.insert("status".to_owned(), "failed".into());
        fields.insert("error".to_owned(), error.clone());
    }
    json!({"type": "response.failed", "response": response})
}

fn complete(finish: Finish) -> bool {
    incomplete_reason(finish).is_none()
}

fn incomplete_reason(finish: Finish) -> Option<&'static str> {
    match finish {
        Finish::Stop | Finish::ToolCalls => None,
        Finish::Length => Some("max_output_tokens"),
        Finish::Filter => Some("content_filter"),
    }
}

fn usage(usage: Usage) -> Value {
    json!({"input_tokens": usage.input, "output_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens_details": {"reasoning_tokens": usage.reasoning}})
}
