//! Chat completions.

use serde_json::{Value, json};

use super::{ScriptedAnswer, StreamFrame};
use crate::model::reply::{Finish, ReplyPart, ReplyUsage};

pub(super) fn frames(said: &ScriptedAnswer) -> Vec<StreamFrame> {
    let mut frames = vec![chunk(
        said,
        &json!({"role": "assistant", "content": ""}),
        None,
    )];
    let mut calls = 0_usize;
    for part in &said.parts {
        match part {
            ReplyPart::Text(deltas) => {
                frames.extend(
                    deltas
                        .iter()
                        .map(|text| chunk(said, &json!({"content": text}), None)),
                );
            }
            ReplyPart::Reasoning(deltas) => {
                frames.extend(
                    deltas
                        .iter()
                        .map(|text| chunk(said, &json!({"reasoning_content": text}), None)),
                );
            }
            ReplyPart::Call {
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
            ReplyPart::Error(error) => frames.push(StreamFrame::data(&json!({"error": error}))),
            ReplyPart::Garbage(data) => frames.push(StreamFrame::plain(data)),
            ReplyPart::Usage(_) | ReplyPart::Finish(_) => {}
        }
    }
    if !said.breaks_off() {
        frames.push(chunk(said, &json!({}), Some(reason(said.finish))));
        let last = json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": said.model,
            "choices": [], "usage": usage(said.usage)});
        frames.push(StreamFrame::data(&last));
    }
    frames.push(StreamFrame::plain("[DONE]"));
    frames
}

pub(super) fn full_response(said: &ScriptedAnswer) -> Value {
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

fn call(part: &ReplyPart) -> Option<Value> {
    let ReplyPart::Call {
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

fn chunk(said: &ScriptedAnswer, delta: &Value, finish: Option<&str>) -> StreamFrame {
    StreamFrame::data(
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

fn usage(usage: ReplyUsage) -> Value {
    json!({"prompt_tokens": usage.input, "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning}})
}
