//! Chat completions.

use serde_json::{Value, json};

use super::{ScriptedAnswer, StreamFrame};
use crate::model::reply::{Finish, ReplyPart, ReplyUsage};

pub(super) fn frames(script: &ScriptedAnswer) -> Vec<StreamFrame> {
    let mut frames = vec![chunk(
        script,
        &json!({"role": "assistant", "content": ""}),
        None,
    )];
    let mut calls = 0_usize;
    for part in &script.parts {
        match part {
            ReplyPart::Text(deltas) => {
                frames.extend(
                    deltas
                        .iter()
                        .map(|text| chunk(script, &json!({"content": text}), None)),
                );
            }
            ReplyPart::Reasoning(deltas) => {
                frames.extend(
                    deltas
                        .iter()
                        .map(|text| chunk(script, &json!({"reasoning_content": text}), None)),
                );
            }
            ReplyPart::Call {
                id,
                name,
                arguments,
            } => {
                let head = json!({"index": calls, "id": id, "type": "function",
                    "function": {"name": name, "arguments": ""}});
                frames.push(chunk(script, &json!({"tool_calls": [head]}), None));
                frames.extend(arguments.iter().map(|delta| {
                    let call = json!({"index": calls, "function": {"arguments": delta}});
                    chunk(script, &json!({"tool_calls": [call]}), None)
                }));
                calls += 1;
            }
            ReplyPart::Error(error) => {
                frames.push(StreamFrame::from_json(&json!({"error": error})));
            }
            ReplyPart::Garbage(data) => frames.push(StreamFrame::from_text(data)),
            ReplyPart::Usage(_) | ReplyPart::Finish(_) => {}
        }
    }
    if !script.has_error_event() {
        frames.push(chunk(
            script,
            &json!({}),
            Some(finish_reason(script.finish)),
        ));
        let last = json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": script.model,
            "choices": [], "usage": usage_json(script.usage)});
        frames.push(StreamFrame::from_json(&last));
    }
    frames.push(StreamFrame::from_text("[DONE]"));
    frames
}

pub(super) fn full_response(script: &ScriptedAnswer) -> Value {
    let mut message = json!({"role": "assistant", "content": script.text()});
    let reasoning = script.reasoning();
    let calls: Vec<Value> = script.parts.iter().filter_map(tool_call).collect();
    if let Some(fields) = message.as_object_mut() {
        if !reasoning.is_empty() {
            fields.insert("reasoning_content".to_owned(), reasoning.into());
        }
        if !calls.is_empty() {
            fields.insert("tool_calls".to_owned(), calls.into());
        }
    }
    json!({"id": "chatcmpl-1", "object": "chat.completion", "model": script.model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason(script.finish)}],
        "usage": usage_json(script.usage)})
}

fn tool_call(part: &ReplyPart) -> Option<Value> {
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

fn chunk(script: &ScriptedAnswer, delta: &Value, finish: Option<&str>) -> StreamFrame {
    StreamFrame::from_json(
        &json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": script.model,
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}),
    )
}

fn finish_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "stop",
        Finish::ToolCalls => "tool_calls",
        Finish::Length => "length",
        Finish::Filter => "content_filter",
    }
}

fn usage_json(usage: ReplyUsage) -> Value {
    json!({"prompt_tokens": usage.input, "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning}})
}
