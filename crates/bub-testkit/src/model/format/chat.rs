//! Chat completions.

use serde_json::{Value, json};

use super::{Frame, Said};
use crate::model::reply::{Finish, Part, Usage};

pub(super) fn frames(said: &Said) -> Vec<Frame> {
    let mut frames = vec![chunk(
        said,
        &json!({"role": "assistant", "content": ""}),
        None,
    )];
    let mut calls = 0_usize;
    for part in &said.parts {
        match part {
            Part::Text(deltas) => {
                frames.extend(
                    deltas
                        .iter()
                        .map(|text| chunk(said, &json!({"content": text}), None)),
                );
            }
            Part::Reasoning(deltas) => {
                frames.extend(
                    deltas
                        .iter()
                        .map(|text| chunk(said, &json!({"reasoning_content": text}), None)),
                );
            }
            Part::Call {
                id,
                name,
                arguments,
            } => {
                let head = json!({"index": calls, "id": id, "type": "function",
                    "function": {"name": name, "arguments": ""}});
                frames.push(chunk(said, &json!({"tool_calls": [head]}), None));
                frames.extend(arguments.iter().map(|piece| {
                    let delta = json!({"index": calls, "function": {"arguments": piece}});
                    chunk(said, &json!({"tool_calls": [delta]}), None)
                }));
                calls += 1;
            }
            Part::Error(error) => frames.push(Frame::data(&json!({"error": error}))),
            Part::Garbage(data) => frames.push(Frame::plain(data)),
            Part::Usage(_) | Part::Finish(_) => {}
        }
    }
    if !said.breaks_off() {
        frames.push(chunk(said, &json!({}), Some(reason(said.finish))));
        let last = json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": said.model,
            "choices": [], "usage": usage(said.usage)});
        frames.push(Frame::data(&last));
    }
    frames.push(Frame::plain("[DONE]"));
    frames
}

pub(super) fn whole(said: &Said) -> Value {
    let mut message = json!({"role": "assistant", "content": said.text()});
    let reasoning = said.reasoning();
    let calls: Vec<Value> = said.parts.iter().filter_map(call).collect();
    if let Some(fields) = message.as_object_mut() {
        if !reasoning.is_empty() {
            fields.insert("reasoning_content".to_owned(), reasoning.into());
        }
        if !calls.is_empty() {
            fields.insert("tool_calls".to_owned(), calls.into());
        }
    }
    json!({"id": "chatcmpl-1", "object": "chat.completion", "model": said.model,
        "choices": [{"index": 0, "message": message, "finish_reason": reason(said.finish)}],
        "usage": usage(said.usage)})
}

fn call(part: &Part) -> Option<Value> {
    let Part::Call {
        id,
        name,
        arguments,
    } = part
    else {
        return None;
    };
    Some(
        json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments.concat()}}),
    )
}

fn chunk(said: &Said, delta: &Value, finish: Option<&str>) -> Frame {
    Frame::data(
        &json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": said.model,
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}),
    )
}

fn reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "stop",
        Finish::ToolCalls => "tool_calls",
        Finish::Length => "length",
        Finish::Filter => "content_filter",
    }
}

fn usage(usage: Usage) -> Value {
    json!({"prompt_tokens": usage.input, "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning}})
}
