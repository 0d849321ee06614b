//! Tests of deviations of servers: streams modeled on what providers send, for cases without recordings.

use bub_model::{Completion, FinishReason, ModelError, ModelErrorKind, RecoveryAction, WireFormat};
use serde_json::{Value, json};

use super::support::{DecodeBody as _, complete, sse};

fn decode(wire: WireFormat, frames: &[Value]) -> Result<Completion, ModelError> {
    complete(wire, &sse(frames))
}

fn chat(frames: &[Value]) -> Completion {
    decode(WireFormat::ChatCompletions, frames).unwrap()
}

fn delta(delta: &Value) -> Value {
    json!({"choices": [{"index": 0, "delta": delta, "finish_reason": null}]})
}

fn stop(reason: &str) -> Value {
    json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
}

fn calls(found: &Completion) -> Vec<(&str, &str, &str)> {
    let text = |value: &'_ Value| -> &'static str {
        Box::leak(value.as_str().unwrap().to_owned().into_boxed_str())
    };
    let row = |call: &Value| {
        (
            text(&call["id"]),
            text(&call["function"]["name"]),
            text(&call["function"]["arguments"]),
        )
    };
    found.tool_calls.iter().map(row).collect()
}

#[test]
fn filter_results_without_choices_are_no_answer_and_no_error() {
    let found = chat(&[
        json!({"choices": [], "prompt_filter_results": [{"prompt_index": 0, "content_filter_results": {"hate": {"filtered": false}}}]}),
        json!({"choices": [{"index": 0, "delta": {"role": "assistant", "content": null, "refusal": null}, "content_filter_results": {}}]}),
        delta(&json!({"content": "hi"})),
        json!({"choices": [{"index": 0, "finish_reason": "stop", "delta": {}, "content_filter_offsets": {"check_offset": 1}}]}),
        json!({"choices": [{"index": 0, "delta": null, "finish_reason": null, "content_filter_results": {"hate": {"filtered": false}}}]}),
        json!({"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 1, "total_tokens": 5}}),
    ]);
    assert_eq!(
        (found.text.as_str(), found.finish),
        ("hi", FinishReason::Stop)
    );
    assert_eq!(found.usage.unwrap().total, 5);
    let filtered = chat(&[delta(&json!({"content": "h"})), stop("content_filter")]);
    assert_eq!(filtered.finish, FinishReason::ContentFilter);
}

#[test]
fn content_in_parts_has_its_thinking_apart() {
    let found = chat(&[
        delta(
            &json!({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "let me "}]}]}),
        ),
        delta(
            &json!({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "see"}], "closed": true}]}),
        ),
        delta(
            &json!({"content": [{"type": "text", "text": "two"}, {"type": "reference", "reference_ids": [1]}]}),
        ),
        delta(&json!({"content": "!"})),
        stop("stop"),
    ]);
    assert_eq!(
        (found.reasoning.as_str(), found.text.as_str()),
        ("let me see", "two!")
    );
}

#[test]
fn null_deltas_repeated_finishes_and_late_usage_change_nothing() {
    let found = chat(&[
        json!({"choices": [{"index": 0, "delta": null}]}),
        json!({"choices": null}),
        json!({"id": "x", "object": "chat.completion.chunk"}),
        delta(
            &json!({"role": "assistant", "content": "", "reasoning_content": null, "tool_calls": null}),
        ),
        delta(&json!({"content": "a", "tool_calls": []})),
        json!({"choices": [{"index": 1, "delta": {"content": "another choice"}}]}),
        stop("stop"),
        stop("stop"),
        json!({"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": ""}]}),
        json!({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}),
        json!({"choices": [], "usage": null}),
    ]);
    assert_eq!(
        (found.text.as_str(), found.finish),
        ("a", FinishReason::Stop)
    );
    assert_eq!(found.usage.unwrap().total, 3);
}

#[test]
fn usage_is_found_where_servers_put_it() {
    for (frame, cached) in [
        (
            json!({"choices": [], "x_groq": {"id": "r", "usage": {"prompt_tokens": 7, "completion_tokens": 1}}}),
            None,
        ),
        (
            json!({"choices": [{"index": 0, "delta": {}, "usage": {"prompt_tokens": 7, "completion_tokens": 1, "cached_tokens": 5}}]}),
            Some(5),
        ),
        (
            json!({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 1, "prompt_cache_hit_tokens": 5, "prompt_cache_miss_tokens": 2}}),
            Some(5),
        ),
        (
            json!({"choices": [], "usage": {"prompt_tokens": 7.0, "completion_tokens": 1.0, "prompt_tokens_details": {"cached_tokens": 5}}}),
            Some(5),
        ),
    ] {
        let usage = chat(&[delta(&json!({"content": "a"})), stop("stop"), frame])
            .usage
            .unwrap();
        assert_eq!(
            (usage.prompt, usage.completion, usage.cached),
            (7, 1, cached)
        );
    }
}

#[test]
fn think_tags_stay_in_the_text_they_came_in() {
    let found = chat(&[
        delta(&json!({"content": "<think>\nhm\n</think>\n\nyes"})),
        stop("stop"),
    ]);
    assert_eq!(
        (found.text.as_str(), found.reasoning.as_str()),
        ("<think>\nhm\n</think>\n\nyes", "")
    );
}

// H-85
#[test]
fn calls_without_index_or_id_whole_or_as_objects_are_kept_apart() {
    // One complete call per chunk, all with index 0.
    let whole = |id: &str, name: &str| {
        delta(
            &json!({"role": "assistant", "content": "", "tool_calls": [{"id": id, "index": 0, "type": "function", "function": {"name": name, "arguments": "{\"a\":1}"}}]}),
        )
    };
    let found = chat(&[
        whole("call_a", "f"),
        whole("call_b", "g"),
        stop("tool_calls"),
    ]);
    assert_eq!(
        calls(&found),
        [("call_a", "f", "{\"a\":1}"), ("call_b", "g", "{\"a\":1}")]
    );
    // The arguments are objects, index and id are missing, and the finish reason is `stop`.
    let objects = delta(
        &json!({"tool_calls": [{"function": {"name": "f", "arguments": {"a": {"b": []}}}}, {"function": {"name": "g", "arguments": {}}}]}),
    );
    let found = chat(&[objects, stop("stop")]);
    assert_eq!(
        calls(&found),
        [("call_0", "f", "{\"a\":{\"b\":[]}}"), ("call_1", "g", "{}")]
    );
    assert_eq!(
        (found.finish, found.invalid_calls.len()),
        (FinishReason::ToolCalls, 0)
    );
    // Every piece has the type and an empty name.
    let piece = |name: Value, arguments: &str| {
        delta(
            &json!({"tool_calls": [{"index": 0, "type": "function", "id": null, "function": {"name": name, "arguments": arguments}}]}),
        )
    };
    let found = chat(&[
        piece(json!("f"), ""),
        piece(json!(""), "{\"a\""),
        piece(Value::Null, ":1}"),
        stop("tool_calls"),
    ]);
    assert_eq!(calls(&found), [("call_0", "f", "{\"a\":1}")]);
}

#[test]
fn a_router_error_in_the_middle_is_the_error_it_names() {
    let error = decode(
        WireFormat::ChatCompletions,
        &[
            delta(&json!({"content": "half"})),
            json!({"id": "gen", "provider": "x", "error": {"code": 502, "message": "Upstream idle timeout"}, "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "error"}]}),
        ],
    )
    .unwrap_err();
    assert_eq!(
        (error.kind, error.action, error.status),
        (ModelErrorKind::Provider, RecoveryAction::Retry, Some(502))
    );
    assert_eq!(error.message, "Upstream idle timeout");
    let flagged = json!({"error": {"code": 403, "message": "Input was flagged", "metadata": {"reasons": ["x"]}}});
    assert_eq!(
        decode(WireFormat::ChatCompletions, &[flagged])
            .unwrap_err()
            .action,
        RecoveryAction::NextModel
    );
}

#[test]
fn reasoning_details_are_joined_and_kept_for_the_next_call() {
    let detail = |text: &str| {
        delta(
            &json!({"content": "", "reasoning": text, "reasoning_details": [{"type": "reasoning.text", "text": text, "format": "f", "index": 0}]}),
        )
    };
    let sealed = delta(
        &json!({"reasoning_details": [{"type": "reasoning.encrypted", "data": "zzz", "index": 1}]}),
    );
    let found = chat(&[
        detail("a"),
        detail("b"),
        sealed,
        delta(&json!({"content": "c"})),
        stop("stop"),
    ]);
    assert_eq!((found.reasoning.as_str(), found.text.as_str()), ("ab", "c"));
    let state = found.provider_state.unwrap().to_string();
    assert!(
        state.contains("\"text\":\"ab\"") && state.contains("zzz"),
        "{state}"
    );
}

#[test]
fn reasons_in_other_words_are_understood() {
    for (word, reason) in [
        ("eos", FinishReason::Stop),
        ("end_turn", FinishReason::Stop),
        ("COMPLETE", FinishReason::Stop),
        ("max_tokens", FinishReason::Length),
        ("MAX_TOKENS", FinishReason::Length),
        ("model_length", FinishReason::Length),
        ("content_filter", FinishReason::ContentFilter),
        (
            "insufficient_system_resource",
            FinishReason::Other("insufficient_system_resource".into()),
        ),
    ] {
        assert_eq!(
            chat(&[delta(&json!({"content": "a"})), stop(word)]).finish,
            reason,
            "{word}"
        );
    }
}

#[test]
fn a_second_reason_does_not_hide_the_first() {
    for reason in ["length", "content_filter", "tool_calls"] {
        let call = json!({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]});
        let once = chat(&[delta(&call), stop(reason)]);
        assert_eq!(
            chat(&[delta(&call), stop(reason), stop("stop")]).finish,
            once.finish
        );
    }
}

#[test]
fn errors_in_plain_words_keep_them() {
    for wire in WireFormat::ALL {
        let event = complete(wire, b"event: error\ndata: Internal Server Error\n\n").unwrap_err();
        assert_eq!(
            (event.kind, &*event.message),
            (ModelErrorKind::Provider, "Internal Server Error"),
            "{wire:?}"
        );
        let body = complete(wire, b"upstream connect error\r\nreset reason: overflow").unwrap_err();
        assert_eq!(
            (body.kind, body.action),
            (ModelErrorKind::Truncated, RecoveryAction::Retry),
            "{wire:?}"
        );
        assert_eq!(
            body.message,
            "the server sent plain text instead of an answer stream: upstream connect error",
            "{wire:?}"
        );
        for cut in [
            "da",
            "data",
            "data:",
            ": ping\n\n",
            "event: message_st",
            "id: 7",
            "\u{fffd}",
        ] {
            let error = complete(wire, cut.as_bytes()).unwrap_err();
            assert!(!error.message.contains("words"), "{cut}: {error}");
        }
    }
}

// H-98
#[test]
fn events_of_responses_become_text_reasoning_and_calls() {
    let item = |kind: &str, index: u64, item: Value| json!({"type": kind, "output_index": index, "item": item});
    let frames = [
        json!({"type": "response.created", "response": {"status": "in_progress"}}),
        json!({"type": "response.reasoning_summary_text.delta", "output_index": 0, "item_id": "rs", "delta": "so "}),
        json!({"type": "response.reasoning_text.delta", "output_index": 0, "item_id": "rs", "delta": "then"}),
        json!({"type": "response.output_text.delta", "output_index": 1, "item_id": "m", "delta": "hi"}),
        // The arguments arrive in pieces and are not taken again from the last event.
        item(
            "response.output_item.added",
            2,
            json!({"type": "function_call", "id": "fc", "call_id": "call_1", "name": "f", "arguments": ""}),
        ),
        json!({"type": "response.function_call_arguments.delta", "output_index": 2, "item_id": "fc", "delta": "{\"a\""}),
        json!({"type": "response.function_call_arguments.delta", "item_id": "fc", "delta": ":1}"}),
        json!({"type": "response.function_call_arguments.done", "output_index": 2, "item_id": "fc", "arguments": "{\"a\":1}"}),
        item(
            "response.output_item.done",
            2,
            json!({"type": "function_call", "id": "fc", "call_id": "call_1", "name": "f", "arguments": "{\"a\":1}"}),
        ),
        // Only the last event has the arguments, and the only id is that of the item.
        item(
            "response.output_item.added",
            3,
            json!({"type": "function_call", "id": "fc_2", "name": "g"}),
        ),
        json!({"type": "response.function_call_arguments.done", "output_index": 3, "item_id": "fc_2", "arguments": "{\"b\":2}"}),
        // A call that arrives complete, and a call of a tool that the server runs itself.
        item(
            "response.output_item.done",
            4,
            json!({"type": "function_call", "call_id": "call_3", "name": "h", "arguments": "{}"}),
        ),
        item(
            "response.output_item.added",
            5,
            json!({"type": "custom_tool_call", "id": "ct", "call_id": "call_4", "name": "x_keyword_search"}),
        ),
        json!({"type": "response.custom_tool_call_input.delta", "output_index": 5, "item_id": "ct", "delta": "{}"}),
        json!({"type": "response.custom_tool_call_input.done", "output_index": 5, "item_id": "ct", "input": "{}"}),
        item(
            "response.output_item.done",
            5,
            json!({"type": "custom_tool_call", "id": "ct", "call_id": "call_4", "name": "x_keyword_search", "input": "{}", "status": "completed"}),
        ),
        json!({"type": "response.something_new", "output_index": 9}),
        json!({"type": "response.completed", "response": {"status": "completed", "usage": {"input_tokens": 9, "output_tokens": 4, "total_tokens": 13, "input_tokens_details": {"cached_tokens": 2}}}}),
    ];
    let found = decode(WireFormat::Responses, &frames).unwrap();
    assert_eq!(
        (found.reasoning.as_str(), found.text.as_str()),
        ("so then", "hi")
    );
    assert_eq!(
        calls(&found),
        [
            ("call_1", "f", "{\"a\":1}"),
            ("fc_2", "g", "{\"b\":2}"),
            ("call_3", "h", "{}")
        ]
    );
    let usage = found.usage.unwrap();
    assert_eq!(
        (usage.prompt, usage.completion, usage.total, usage.cached),
        (9, 4, 13, Some(2))
    );
    for end in ["response.failed", "error"] {
        let error = json!({"type": end, "response": {"status": "failed", "error": {"code": "server_error", "message": "sorry"}}, "message": "sorry"});
        assert_eq!(
            decode(WireFormat::Responses, &[error]).unwrap_err().message,
            "sorry",
            "{end}"
        );
    }
}

#[test]
fn a_blocked_prompt_and_a_malformed_call_are_not_answers() {
    let blocked = json!({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": {"promptTokenCount": 3, "totalTokenCount": 3}});
    let found = decode(WireFormat::GenerateContent, &[blocked]).unwrap();
    assert_eq!(
        (found.finish, found.text.as_str()),
        (FinishReason::ContentFilter, "")
    );
    let malformed = json!({"candidates": [{"content": {}, "finishReason": "MALFORMED_FUNCTION_CALL", "finishMessage": "Malformed function call: print(", "index": 0}]});
    let found = decode(WireFormat::GenerateContent, &[malformed]).unwrap();
    assert!(
        !found.finish.is_complete() && found.tool_calls.is_empty(),
        "{:?}",
        found.finish
    );
    let nothing = json!({"usageMetadata": {"promptTokenCount": 3, "totalTokenCount": 3}});
    assert_eq!(
        decode(WireFormat::GenerateContent, &[nothing])
            .unwrap_err()
            .action,
        RecoveryAction::Retry
    );
}

#[test]
fn pauses_refusals_and_overload_of_messages_are_distinguished() {
    let start = json!({"type": "message_start", "message": {"id": "m", "content": [], "usage": {"input_tokens": 1}}});
    let text = json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "a"}});
    let end = |reason: &str| json!({"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": null}, "usage": {"output_tokens": 1}});
    let last = json!({"type": "message_stop"});
    let ending = |reason: &str| {
        decode(
            WireFormat::Messages,
            &[
                start.clone(),
                text.clone(),
                json!({"type": "ping"}),
                end(reason),
                last.clone(),
            ],
        )
    };
    assert_eq!(ending("refusal").unwrap().finish, FinishReason::Refusal);
    let paused = ending("pause_turn").unwrap().finish;
    assert!(
        !paused.is_complete() && paused.as_str() == "pause_turn",
        "{paused}"
    );
    let full = ending("model_context_window_exceeded").unwrap().finish;
    assert!(
        !full.is_complete() && full.as_str() == "model_context_window_exceeded",
        "not the token limit: {full}"
    );
    let overloaded = json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}, "request_id": "r"});
    let error = decode(
        WireFormat::Messages,
        &[start.clone(), text.clone(), overloaded],
    )
    .unwrap_err();
    assert_eq!(
        (error.action, error.code.as_deref()),
        (RecoveryAction::Retry, Some("overloaded_error"))
    );
    // Blocks of the provider's tools are kept and are not tool calls.
    let server = json!({"type": "content_block_start", "index": 1, "content_block": {"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {}}});
    let input = json!({"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": "{\"query\":\"x\"}"}});
    let closed = json!({"type": "content_block_stop", "index": 1});
    let found = decode(
        WireFormat::Messages,
        &[
            start.clone(),
            text,
            server,
            input,
            closed,
            end("end_turn"),
            last.clone(),
        ],
    )
    .unwrap();
    assert_eq!(
        (found.tool_calls.len(), found.finish),
        (0, FinishReason::Stop)
    );
    assert!(
        found
            .provider_state
            .unwrap()
            .to_string()
            .contains("\"query\":\"x\"")
    );
    // An empty answer is valid: the model may have nothing to add after tool results.
    let empty = decode(WireFormat::Messages, &[start, end("end_turn"), last]).unwrap();
    assert_eq!(
        (empty.text.as_str(), empty.finish),
        ("", FinishReason::Stop)
    );
}

#[test]
fn an_empty_stop_is_an_answer_when_the_server_says_so() {
    let usage = json!({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 0}});
    let found = chat(&[delta(&json!({"role": "assistant"})), stop("stop"), usage]);
    assert_eq!(
        (found.text.as_str(), found.finish),
        ("", FinishReason::Stop)
    );
    for body in [
        "data: [DONE]\n\n",
        "data: {\"choices\":[]}\n\ndata: [DONE]\n\n",
        "{\"choices\":[]}",
    ] {
        let error = complete(WireFormat::ChatCompletions, body.as_bytes()).unwrap_err();
        assert_eq!(
            (error.kind, error.message.as_str()),
            (ModelErrorKind::Empty, "the model returned an empty answer"),
            "{body}"
        );
    }
}

#[test]
fn responses_that_end_badly_say_how() {
    let created = json!({"type": "response.created", "response": {"id": "r", "status": "in_progress", "error": null}});
    let ended = |kind: &str, response: Value| {
        decode(
            WireFormat::Responses,
            &[created.clone(), json!({"type": kind, "response": response})],
        )
    };
    let cut = ended(
        "response.incomplete",
        json!({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "output": []}),
    );
    assert_eq!(cut.unwrap().finish, FinishReason::Length);
    let filtered = ended(
        "response.incomplete",
        json!({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}, "output": []}),
    );
    assert_eq!(filtered.unwrap().finish, FinishReason::ContentFilter);
    let failed = ended(
        "response.failed",
        json!({"status": "failed", "error": {"code": "rate_limit_exceeded", "message": "Please try again in 2s"}}),
    );
    let failed = failed.unwrap_err();
    assert_eq!(
        (failed.action, failed.retry_after),
        (
            RecoveryAction::Retry,
            Some(std::time::Duration::from_secs(2))
        )
    );
    let frames = [
        created,
        json!({"type": "response.output_item.added", "output_index": 0, "item": {"type": "message", "id": "m"}}),
        json!({"type": "response.refusal.delta", "output_index": 0, "item_id": "m", "delta": "I cannot"}),
        json!({"type": "response.completed", "response": {"status": "completed", "output": []}}),
    ];
    let refused = decode(WireFormat::Responses, &frames).unwrap();
    assert_eq!(
        (refused.text.as_str(), refused.finish),
        ("I cannot", FinishReason::Refusal)
    );
}

#[test]
fn a_list_of_one_is_the_one_in_it() {
    let error =
        json!([{"error": {"code": 429, "message": "slow down", "status": "RESOURCE_EXHAUSTED"}}])
            .to_string();
    for wire in WireFormat::ALL {
        for bytes in [
            error.clone(),
            format!("data: {error}\n\n"),
            format!(" {error}\n"),
        ] {
            let found = complete(wire, bytes.as_bytes()).unwrap_err();
            assert_eq!(
                (found.action, found.status, &*found.message),
                (RecoveryAction::Retry, Some(429), "slow down"),
                "{wire:?}"
            );
        }
    }
}

#[test]
fn an_empty_function_call_in_a_message_is_no_call() {
    let empty = json!({"arguments": "", "name": ""});
    let body = json!({"choices": [{"message": {"content": "hi", "function_call": empty}, "finish_reason": "stop"}]});
    let found = WireFormat::ChatCompletions
        .decode(body.to_string().as_bytes(), &bub_model::Quirks::default())
        .unwrap();
    assert_eq!(
        (found.text.as_str(), found.tool_calls.len(), found.finish),
        ("hi", 0, FinishReason::Stop)
    );
    let streamed = chat(&[
        delta(&json!({"content": "hi", "function_call": empty})),
        stop("stop"),
    ]);
    assert_eq!(
        (streamed.text.as_str(), streamed.tool_calls.len()),
        ("hi", 0)
    );
    // A call in several deltas still has all of its parts.
    let called = chat(&[
        delta(&json!({"function_call": {"name": "f", "arguments": ""}})),
        delta(&json!({"function_call": {"arguments": "{}"}})),
        stop("function_call"),
    ]);
    assert_eq!(calls(&called), [("call_0", "f", "{}")]);
}
