//! The scenarios of the conformance tests in each wire format.

use bub_model::WireFormat;
use serde_json::{Value, json};

use super::support;

/// Scenarios that every format must implement or declare as unsupported.
pub(crate) const NAMES: [&str; 12] = [
    "text",
    "reasoning",
    "two tool calls",
    "text and tool call",
    "call without arguments",
    "length",
    "cut arguments",
    "refusal",
    "content filter",
    "cached and reasoning tokens",
    "error inside",
    "cut stream",
];

/// A scenario in one format.
pub(crate) struct Scenario {
    pub(crate) wire: WireFormat,
    pub(crate) name: &'static str,
    pub(crate) stream: Vec<u8>,
    /// The answer as a complete body; `None` if the scenario is about streaming.
    pub(crate) whole: Option<Value>,
}

/// Returns every scenario in every format that supports it.
pub(crate) fn scenarios() -> Vec<Scenario> {
    let mut all = Vec::new();
    let mut add = |wire, name, frames: Vec<Value>, whole: Value| {
        let mut stream = support::sse(&frames);
        if wire == WireFormat::ChatCompletions && !matches!(name, "cut stream" | "error inside") {
            stream.extend_from_slice(b"data: [DONE]\n\n");
        }
        all.push(Scenario {
            wire,
            name,
            stream,
            whole: Some(whole).filter(|whole| !whole.is_null()),
        });
    };
    for name in NAMES {
        let (frames, whole) = chat(name);
        add(WireFormat::ChatCompletions, name, frames, whole);
        let (frames, whole) = responses(name);
        add(WireFormat::Responses, name, frames, whole);
        if name != "content filter" {
            let (frames, whole) = messages(name);
            add(WireFormat::Messages, name, frames, whole);
        }
        if name != "refusal" {
            let (frames, whole) = gemini(name);
            add(WireFormat::GenerateContent, name, frames, whole);
        }
    }
    all
}

fn chat(name: &str) -> (Vec<Value>, Value) {
    let delta = |delta: Value| json!({"choices": [{"index": 0, "delta": delta}]});
    let end =
        |reason: &str| json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]});
    let whole = |message: Value, reason: &str| json!({"choices": [{"message": message, "finish_reason": reason}]});
    let piece = |index: usize, id: Value, name: Value, arguments: &str| {
        delta(
            json!({"tool_calls": [{"index": index, "id": id, "function": {"name": name, "arguments": arguments}}]}),
        )
    };
    let call = |id: &str, name: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    match name {
        "text" => (
            vec![
                delta(json!({"role": "assistant"})),
                delta(json!({"content": "Hé"})),
                delta(json!({"content": " there"})),
                end("stop"),
            ],
            whole(json!({"content": "Hé there"}), "stop"),
        ),
        "reasoning" => (
            vec![
                delta(json!({"reasoning_content": "because"})),
                delta(json!({"content": "so"})),
                end("stop"),
            ],
            whole(json!({"reasoning": "because", "content": "so"}), "stop"),
        ),
        "two tool calls" => (
            vec![
                piece(0, json!("c1"), json!("f"), ""),
                piece(0, Value::Null, Value::Null, r#"{"a""#),
                piece(1, json!("c2"), json!("g"), r#"{"b":"#),
                piece(0, Value::Null, Value::Null, ":1}"),
                piece(1, Value::Null, Value::Null, "[2]}"),
                end("tool_calls"),
            ],
            whole(
                json!({"tool_calls": [call("c1", "f", r#"{"a":1}"#), call("c2", "g", r#"{"b":[2]}"#)]}),
                "tool_calls",
            ),
        ),
        "text and tool call" => (
            vec![
                delta(json!({"content": "look"})),
                piece(0, json!("c1"), json!("f"), "{}"),
                end("tool_calls"),
            ],
            whole(
                json!({"content": "look", "tool_calls": [call("c1", "f", "{}")]}),
                "tool_calls",
            ),
        ),
        "call without arguments" => (
            vec![piece(0, Value::Null, json!("f"), ""), end("tool_calls")],
            whole(
                json!({"tool_calls": [{"function": {"name": "f"}}]}),
                "tool_calls",
            ),
        ),
        "length" => (
            vec![delta(json!({"content": "half of"})), end("length")],
            whole(json!({"content": "half of"}), "length"),
        ),
        "cut arguments" => (
            vec![
                piece(0, json!("c1"), json!("f"), r#"{"a": "lo"#),
                end("length"),
            ],
            whole(
                json!({"tool_calls": [call("c1", "f", r#"{"a": "lo"#)]}),
                "length",
            ),
        ),
        "refusal" => (
            vec![delta(json!({"refusal": "No."})), end("stop")],
            whole(json!({"refusal": "No."}), "stop"),
        ),
        "content filter" => (
            vec![end("content_filter")],
            whole(json!({}), "content_filter"),
        ),
        "cached and reasoning tokens" => {
            let usage = json!({"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120,
                "prompt_tokens_details": {"cached_tokens": 64}, "completion_tokens_details": {"reasoning_tokens": 7}});
            let mut answer = whole(json!({"content": ""}), "stop");
            answer["usage"] = usage.clone();
            (
                vec![end("stop"), json!({"choices": [], "usage": usage})],
                answer,
            )
        }
        "error inside" => {
            let error = json!({"error": {"message": "upstream overloaded", "code": 503}});
            (vec![delta(json!({"content": "Hé"})), error.clone()], error)
        }
        _ => (vec![delta(json!({"content": "Hé"}))], Value::Null),
    }
}

#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn responses(name: &str) -> (Vec<Value>, Value) {
    let event = |kind: &str, mut fields: Value| {
        fields["type"] = json!(format!("response.{kind}"));
        fields
    };
    let response = |status: &str, output: Value| json!({"object": "response", "status": status, "output": output});
    let done = |response: &Value| event("completed", json!({"response": response}));
    let message = |text: &str| json!({"type": "message", "id": "m", "content": [{"type": "output_text", "text": text}]});
    let call = |n: usize, name: &str, arguments: &str| json!({"type": "function_call", "id": format!("fc{n}"), "call_id": format!("c{n}"), "name": name, "arguments": arguments});
    let added = |index: usize, item: Value| {
        event(
            "output_item.added",
            json!({"output_index": index, "item": item}),
        )
    };
    let delta = |index: usize, delta: &str| {
        event(
            "function_call_arguments.delta",
            json!({"output_index": index, "delta": delta}),
        )
    };
    let text = |text: &str| {
        event(
            "output_text.delta",
            json!({"item_id": "m", "output_index": 0, "delta": text}),
        )
    };
    match name {
        "text" => {
            let whole = response("completed", json!([message("Hé there")]));
            (vec![text("Hé"), text(" there"), done(&whole)], whole)
        }
        "reasoning" => {
            let thought = json!({"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "because"}]});
            let whole = response("completed", json!([thought, message("so")]));
            let reasoning = event(
                "reasoning_summary_text.delta",
                json!({"output_index": 9, "item_id": "r", "delta": "because"}),
            );
            (vec![reasoning, text("so"), done(&whole)], whole)
        }
        "two tool calls" => {
            let whole = response(
                "completed",
                json!([call(1, "f", r#"{"a":1}"#), call(2, "g", r#"{"b":[2]}"#)]),
            );
            let frames = vec![
                added(0, call(1, "f", "")),
                delta(0, r#"{"a""#),
                delta(0, ":1}"),
                added(1, call(2, "g", "")),
                event(
                    "output_item.done",
                    json!({"output_index": 0, "item": call(1, "f", r#"{"a":1}"#)}),
                ),
                // The second item has no deltas, so its complete content is used.
                event(
                    "function_call_arguments.done",
                    json!({"output_index": 1, "arguments": r#"{"b":[2]}"#}),
                ),
                event(
                    "output_item.done",
                    json!({"output_index": 1, "item": call(2, "g", r#"{"b":[2]}"#)}),
                ),
                done(&whole),
            ];
            (frames, whole)
        }
        "text and tool call" => {
            let whole = response("completed", json!([message("look"), call(1, "f", "{}")]));
            (
                vec![
                    text("look"),
                    added(1, call(1, "f", "")),
                    delta(1, "{}"),
                    done(&whole),
                ],
                whole,
            )
        }
        "call without arguments" => {
            let whole = response("completed", json!([call(1, "f", "")]));
            (vec![added(0, call(1, "f", "")), done(&whole)], whole)
        }
        "length" => {
            let mut whole = response("incomplete", json!([message("half of")]));
            whole["incomplete_details"] = json!({"reason": "max_output_tokens"});
            (
                vec![
                    text("half of"),
                    event("incomplete", json!({"response": whole})),
                ],
                whole,
            )
        }
        "cut arguments" => {
            let mut whole = response("incomplete", json!([call(1, "f", r#"{"a": "lo"#)]));
            whole["incomplete_details"] = json!({"reason": "max_output_tokens"});
            let end = event("incomplete", json!({"response": whole}));
            (
                vec![added(0, call(1, "f", "")), delta(0, r#"{"a": "lo"#), end],
                whole,
            )
        }
        "refusal" => {
            let refusal =
                json!({"type": "message", "content": [{"type": "refusal", "refusal": "No."}]});
            let whole = response("completed", json!([refusal]));
            (
                vec![
                    event("refusal.delta", json!({"output_index": 0, "delta": "No."})),
                    done(&whole),
                ],
                whole,
            )
        }
        "content filter" => {
            let mut whole = response("incomplete", json!([]));
            whole["incomplete_details"] = json!({"reason": "content_filter"});
            (vec![event("incomplete", json!({"response": whole}))], whole)
        }
        "cached and reasoning tokens" => {
            let mut whole = response("completed", json!([]));
            whole["usage"] = json!({"input_tokens": 100, "output_tokens": 20, "total_tokens": 120,
                "input_tokens_details": {"cached_tokens": 64}, "output_tokens_details": {"reasoning_tokens": 7}});
            (vec![done(&whole)], whole)
        }
        "error inside" => {
            let mut whole = response("failed", json!([]));
            whole["error"] = json!({"code": "server_error", "message": "something broke"});
            (
                vec![text("Hé"), event("failed", json!({"response": whole}))],
                whole,
            )
        }
        _ => (vec![text("Hé")], Value::Null),
    }
}

#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn messages(name: &str) -> (Vec<Value>, Value) {
    let start = json!({"type": "message_start", "message": {"id": "m1", "content": [], "usage": {"input_tokens": 36, "output_tokens": 1, "cache_read_input_tokens": 64}}});
    let block = |index: usize, block: Value| json!({"type": "content_block_start", "index": index, "content_block": block});
    let delta = |index: usize, kind: &str, key: &str, text: &str| json!({"type": "content_block_delta", "index": index, "delta": {"type": kind, key: text}});
    let stop = |index: usize| json!({"type": "content_block_stop", "index": index});
    let end = |reason: &str| {
        let usage = json!({"output_tokens": 20, "output_tokens_details": {"thinking_tokens": 7}});
        vec![
            json!({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage}),
            json!({"type": "message_stop"}),
        ]
    };
    let stream =
        |blocks: Vec<Value>, reason: &str| [vec![start.clone()], blocks, end(reason)].concat();
    let whole = |content: Value, reason: &str| {
        let usage = json!({"input_tokens": 36, "output_tokens": 20, "cache_read_input_tokens": 64, "output_tokens_details": {"thinking_tokens": 7}});
        json!({"type": "message", "id": "m1", "content": content, "stop_reason": reason, "usage": usage})
    };
    let empty_text = json!({"type": "text", "text": ""});
    let text = |text: &str| {
        vec![
            block(0, empty_text.clone()),
            delta(0, "text_delta", "text", text),
            stop(0),
        ]
    };
    let call = |id: &str, name: &str, input: Value| json!({"type": "tool_use", "id": id, "name": name, "input": input});
    let json_delta = |index, text| delta(index, "input_json_delta", "partial_json", text);
    match name {
        "text" => (
            stream(text("Hé there"), "end_turn"),
            whole(json!([{"type": "text", "text": "Hé there"}]), "end_turn"),
        ),
        "reasoning" => {
            let blocks = vec![
                block(
                    0,
                    json!({"type": "thinking", "thinking": "", "signature": ""}),
                ),
                delta(0, "thinking_delta", "thinking", "because"),
                delta(0, "signature_delta", "signature", "s1"),
                stop(0),
                block(1, json!({"type": "text", "text": "so"})),
                stop(1),
            ];
            let content = json!([{"type": "thinking", "thinking": "because", "signature": "s1"}, {"type": "text", "text": "so"}]);
            (stream(blocks, "end_turn"), whole(content, "end_turn"))
        }
        "two tool calls" => {
            let blocks = vec![
                block(1, call("c1", "f", json!({}))),
                json_delta(1, r#"{"a""#),
                json_delta(1, ":1}"),
                stop(1),
                block(2, call("c2", "g", json!({}))),
                json_delta(2, r#"{"b":[2]}"#),
                stop(2),
            ];
            let content = json!([
                call("c1", "f", json!({"a": 1})),
                call("c2", "g", json!({"b": [2]}))
            ]);
            (stream(blocks, "tool_use"), whole(content, "tool_use"))
        }
        "text and tool call" => {
            let blocks = [
                text("look"),
                vec![block(1, call("c1", "f", json!({"x": 1}))), stop(1)],
            ]
            .concat();
            let content =
                json!([{"type": "text", "text": "look"}, call("c1", "f", json!({"x": 1}))]);
            (stream(blocks, "tool_use"), whole(content, "tool_use"))
        }
        "call without arguments" => {
            let content = json!([call("c1", "f", json!({}))]);
            (
                stream(
                    vec![block(0, call("c1", "f", json!({}))), stop(0)],
                    "tool_use",
                ),
                whole(content, "tool_use"),
            )
        }
        "length" => (
            stream(text("half of"), "max_tokens"),
            whole(json!([{"type": "text", "text": "half of"}]), "max_tokens"),
        ),
        "cut arguments" => {
            let blocks = vec![
                block(0, call("c1", "f", json!({}))),
                json_delta(0, r#"{"a": "lo"#),
                stop(0),
            ];
            (
                stream(blocks, "max_tokens"),
                whole(json!([call("c1", "f", json!({}))]), "max_tokens"),
            )
        }
        "refusal" => (stream(vec![], "refusal"), whole(json!([]), "refusal")),
        "cached and reasoning tokens" => (stream(vec![], "end_turn"), whole(json!([]), "end_turn")),
        "error inside" => {
            let error = json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}});
            (vec![start, error.clone()], error)
        }
        _ => ([vec![start.clone()], text("Hé")].concat(), Value::Null),
    }
}

fn gemini(name: &str) -> (Vec<Value>, Value) {
    let chunk =
        |parts: Value| json!({"candidates": [{"content": {"role": "model", "parts": parts}}]});
    let end = |reason: &str| json!({"candidates": [{"finishReason": reason}]});
    let whole = |parts: Value, reason: &str| json!({"candidates": [{"content": {"parts": parts}, "finishReason": reason}]});
    let call = |name: &str, args: Value| json!({"functionCall": {"name": name, "args": args}});
    match name {
        "text" => (
            vec![
                chunk(json!([{"text": "Hé"}])),
                chunk(json!([{"text": " there"}])),
                end("STOP"),
            ],
            whole(json!([{"text": "Hé there"}]), "STOP"),
        ),
        "reasoning" => (
            vec![
                chunk(json!([{"text": "because", "thought": true}])),
                chunk(json!([{"text": "so"}])),
                end("STOP"),
            ],
            whole(
                json!([{"text": "because", "thought": true}, {"text": "so"}]),
                "STOP",
            ),
        ),
        "two tool calls" => (
            vec![
                chunk(json!([call("f", json!({"a": 1}))])),
                chunk(json!([{"functionCall": {"name": "g", "willContinue": true}}])),
                chunk(
                    json!([{"functionCall": {"partialArgs": [{"jsonPath": "$.b[0]", "numberValue": 2}], "willContinue": true}}]),
                ),
                chunk(json!([{"functionCall": {}}])),
                end("STOP"),
            ],
            whole(
                json!([call("f", json!({"a": 1})), call("g", json!({"b": [2]}))]),
                "STOP",
            ),
        ),
        "text and tool call" => (
            vec![
                chunk(json!([{"text": "look"}])),
                chunk(json!([call("f", json!({}))])),
                end("STOP"),
            ],
            whole(json!([{"text": "look"}, call("f", json!({}))]), "STOP"),
        ),
        "call without arguments" => (
            vec![chunk(json!([{"functionCall": {"name": "f"}}])), end("STOP")],
            whole(json!([{"functionCall": {"name": "f"}}]), "STOP"),
        ),
        "length" => (
            vec![chunk(json!([{"text": "half of"}])), end("MAX_TOKENS")],
            whole(json!([{"text": "half of"}]), "MAX_TOKENS"),
        ),
        "cut arguments" => (
            vec![
                chunk(json!([{"functionCall": {"name": "f", "willContinue": true}}])),
                chunk(
                    json!([{"functionCall": {"partialArgs": [{"jsonPath": "$.a", "stringValue": "lo", "willContinue": true}], "willContinue": true}}]),
                ),
                end("MAX_TOKENS"),
            ],
            whole(
                json!([{"functionCall": {"name": "f", "args": {}}}]),
                "MAX_TOKENS",
            ),
        ),
        "content filter" => {
            let blocked = json!({"promptFeedback": {"blockReason": "SAFETY"}});
            (vec![blocked.clone()], blocked)
        }
        "cached and reasoning tokens" => {
            let mut answer = whole(json!([]), "STOP");
            answer["usageMetadata"] = json!({"promptTokenCount": 100, "candidatesTokenCount": 13, "thoughtsTokenCount": 7,
                "totalTokenCount": 120, "cachedContentTokenCount": 64});
            (vec![answer.clone()], answer)
        }
        "error inside" => {
            let error = json!({"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}});
            (
                vec![chunk(json!([{"text": "Hé"}])), error.clone()],
                json!([error]),
            )
        }
        _ => (vec![chunk(json!([{"text": "Hé"}]))], Value::Null),
    }
}
