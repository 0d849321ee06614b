//! Tests of damaged responses: a typed error, never a hang or a panic, and never a partial tool call that looks
//! complete.

use bub_model::{
    Completion, FinishReason, ModelErrorKind, ModelEvent, Quirks, RecoveryAction, WireFormat,
};
use serde_json::{Value, json};

use super::scenarios::scenarios;
use super::support::{DecodeBody as _, complete, fold, sse, stream};

fn chunk(delta: &Value) -> Value {
    json!({"choices": [{"index": 0, "delta": delta}]})
}

fn end(reason: &str) -> Value {
    json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
}

fn kind(wire: WireFormat, bytes: &[u8]) -> ModelErrorKind {
    complete(wire, bytes).expect_err("an error").kind
}

#[test]
fn an_empty_body_is_an_answer_that_never_came() {
    for wire in WireFormat::ALL {
        for body in [&b""[..], b"\n\n", b" \r\n", b"\xef\xbb\xbf"] {
            assert_eq!(kind(wire, body), ModelErrorKind::Truncated, "{body:?}");
            assert!(wire.decode(body, &Quirks::default()).is_err(), "{body:?}");
        }
        assert_eq!(
            kind(wire, b": only comments\n\n: here\n\n"),
            ModelErrorKind::Truncated
        );
    }
}

#[test]
fn a_web_page_is_named_and_not_dumped() {
    let page = format!(
        "<!DOCTYPE html><html><head><title>502 Bad Gateway</title></head>{}",
        "x".repeat(5000)
    );
    for wire in WireFormat::ALL {
        let error = complete(wire, page.as_bytes()).unwrap_err();
        assert_eq!(
            (error.kind, error.action),
            (ModelErrorKind::Malformed, RecoveryAction::Retry)
        );
        assert!(
            error.message.contains("502 Bad Gateway") && error.message.len() < 100,
            "{}",
            error.message
        );
    }
}

#[test]
fn a_malformed_frame_is_an_error_and_ends_the_stream() {
    for wire in WireFormat::ALL {
        assert_eq!(
            kind(wire, b"data: {broken\n\ndata: {}\n\n"),
            ModelErrorKind::Malformed
        );
        assert_eq!(
            kind(wire, b"data: 17\n\ndata: {}\n\n"),
            ModelErrorKind::Malformed
        );
    }
    let mut decoder = WireFormat::ChatCompletions.decoder(&Quirks::default());
    let mut events = Vec::new();
    let stream = [
        sse(&[chunk(&json!({"content": "a"}))]),
        b"data: {\"x\n\n".to_vec(),
    ]
    .concat();
    assert!(decoder.push(&stream, &mut events).is_err());
    assert_eq!(events, [ModelEvent::Text("a".into())]);
    // After an error, the decoder emits nothing.
    assert!(decoder.is_done());
    assert!(
        decoder
            .push(&sse(&[chunk(&json!({"content": "b"}))]), &mut events)
            .is_ok()
    );
    assert!(decoder.finish(&mut events).is_ok());
    assert_eq!(events.len(), 1);
}

#[test]
fn a_stream_cut_inside_an_event_is_truncated_not_malformed() {
    let whole = sse(&[
        chunk(&json!({"content": "abc"})),
        chunk(&json!({"content": "def"})),
    ]);
    assert_eq!(
        kind(WireFormat::ChatCompletions, &whole[..whole.len() - 10]),
        ModelErrorKind::Truncated
    );
}

#[test]
fn invalid_utf8_is_an_error_where_it_matters() {
    // Arguments with replacement characters would reach a tool.
    let broken = b"data: {\"choices\":[{\"delta\":{\"content\":\"\xff\"}}]}\n\ndata: [DONE]\n\n";
    assert_eq!(
        kind(WireFormat::ChatCompletions, broken),
        ModelErrorKind::Malformed
    );
    let harmless = [
        b": \xff\xfe\n\n".to_vec(),
        sse(&[chunk(&json!({"content": "a"})), end("stop")]),
    ]
    .concat();
    assert_eq!(
        complete(WireFormat::ChatCompletions, &harmless)
            .unwrap()
            .text,
        "a"
    );
    assert!(
        WireFormat::Messages
            .decode(
                b"{\"content\":[],\"stop_reason\":\"\xff\"}",
                &Quirks::default()
            )
            .is_err()
    );
}

#[test]
fn ten_megabytes_in_one_event_are_decoded_and_much_more_refused() {
    let text = "x".repeat(10 * 1024 * 1024);
    let bytes = sse(&[chunk(&json!({"content": text})), end("stop")]);
    assert_eq!(
        complete(WireFormat::ChatCompletions, &bytes)
            .unwrap()
            .text
            .len(),
        text.len()
    );
    let endless = vec![b'x'; 1024 * 1024];
    let mut pieces = vec![&b"data: "[..]];
    pieces.extend(std::iter::repeat_n(&endless[..], 20));
    let (events, error) = stream(WireFormat::ChatCompletions, pieces);
    assert_eq!(
        (events.len(), error.unwrap().kind),
        (0, ModelErrorKind::TooLarge)
    );
}

#[test]
fn crlf_comments_and_a_missing_blank_line_are_fine() {
    let text = ": hello\r\n\r\ndata: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}]}\r\n\r\ndata: [DONE]";
    assert_eq!(
        complete(WireFormat::ChatCompletions, text.as_bytes())
            .unwrap()
            .text,
        "a"
    );
}

#[test]
fn a_json_array_is_a_stream_of_chunks() {
    let chunks = json!([
        {"candidates": [{"content": {"parts": [{"text": "a"}]}}]},
        {"candidates": [{"content": {"parts": [{"text": "b"}]}, "finishReason": "STOP"}]},
    ]);
    let text = chunks.to_string();
    assert_eq!(
        complete(WireFormat::GenerateContent, text.as_bytes())
            .unwrap()
            .text,
        "ab"
    );
    let cut = &text.as_bytes()[..text.len() - 5];
    assert_eq!(
        kind(WireFormat::GenerateContent, cut),
        ModelErrorKind::Truncated
    );
}

#[test]
fn an_error_object_in_place_of_an_answer_is_an_error() {
    for (wire, body) in [
        (
            WireFormat::ChatCompletions,
            json!({"error": {"message": "no", "type": "server_error"}}),
        ),
        (
            WireFormat::Responses,
            json!({"error": {"message": "no", "code": "server_error"}}),
        ),
        (
            WireFormat::Messages,
            json!({"type": "error", "error": {"type": "api_error", "message": "no"}}),
        ),
        (
            WireFormat::GenerateContent,
            json!([{"error": {"code": 500, "message": "no", "status": "INTERNAL"}}]),
        ),
    ] {
        let body = body.to_string();
        assert_eq!(
            kind(wire, body.as_bytes()),
            ModelErrorKind::Provider,
            "{body}"
        );
        assert_eq!(
            kind(wire, format!("data: {body}\n\n").as_bytes()),
            ModelErrorKind::Provider
        );
    }
    for wire in WireFormat::ALL {
        assert_eq!(
            wire.decode(b"{\"hello\":1}", &Quirks::default())
                .unwrap_err()
                .kind,
            ModelErrorKind::Malformed
        );
        assert!(wire.decode(b"null", &Quirks::default()).is_err());
    }
}

#[test]
fn an_error_beside_choices_or_in_a_choice_is_seen() {
    let error = json!({"message": "upstream died", "code": 502});
    for frame in [
        json!({"error": error, "choices": [{"delta": {"content": ""}, "finish_reason": "error"}]}),
        json!({"choices": [{"delta": {"content": ""}, "error": error, "finish_reason": "error"}]}),
        json!({"choices": [{"delta": {}, "finish_reason": "error"}]}),
    ] {
        let found = complete(WireFormat::ChatCompletions, &sse(&[frame])).unwrap_err();
        assert_eq!(
            (found.kind, found.action),
            (ModelErrorKind::Provider, RecoveryAction::Retry),
            "{found:?}"
        );
    }
    let fine =
        json!({"error": null, "choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]});
    assert_eq!(
        complete(WireFormat::ChatCompletions, &sse(&[fine]))
            .unwrap()
            .text,
        "a"
    );
}

#[test]
fn errors_in_the_shapes_of_compatible_servers_are_seen() {
    for body in [
        json!({"object": "error", "message": "boom", "code": 500}),
        json!({"message": "boom", "code": "InternalError"}),
        json!({"detail": "boom"}),
        json!({"choices": null, "base_resp": {"status_code": 1000, "status_msg": "boom"}}),
        json!({"error": "boom"}),
    ] {
        let text = body.to_string();
        for found in [
            complete(WireFormat::ChatCompletions, &sse(&[body])),
            WireFormat::ChatCompletions.decode(text.as_bytes(), &Quirks::default()),
        ] {
            let error = found.expect_err(&text);
            assert_eq!(
                (error.kind, error.message.contains("boom")),
                (ModelErrorKind::Provider, true),
                "{text}: {error:?}"
            );
        }
    }
    let fine = json!({"choices": [{"delta": {"content": ""}, "message": {"content": "a"}, "finish_reason": "stop"}],
        "base_resp": {"status_code": 0}});
    let found = WireFormat::ChatCompletions
        .decode(fine.to_string().as_bytes(), &Quirks::default())
        .unwrap();
    assert_eq!(
        found.text, "a",
        "`message` is used and not the empty `delta`"
    );
}

/// W-6, H-87: malformed arguments do not end the turn, and the call never runs.
#[test]
fn malformed_arguments_are_marked() {
    let call = |arguments: &str| {
        let delta = json!({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": arguments}}]});
        complete(
            WireFormat::ChatCompletions,
            &sse(&[chunk(&delta), end("tool_calls")]),
        )
        .unwrap()
    };
    for arguments in [
        "{\"a\": ", "[1]", "\"text\"", "{} {}", "{'a': 1}", "nonsense",
    ] {
        let found = call(arguments);
        assert_eq!(found.invalid_calls.len(), 1, "{arguments}");
        assert_eq!(
            found.tool_calls[0]["function"]["arguments"], arguments,
            "the call is kept for the tape"
        );
    }
    for arguments in ["", "{}", " {\"a\": 1} ", "null"] {
        assert_eq!(call(arguments).invalid_calls, [], "{arguments}");
    }
    let nameless =
        json!({"tool_calls": [{"index": 0, "id": "c", "function": {"arguments": "{}"}}]});
    let found = complete(
        WireFormat::ChatCompletions,
        &sse(&[chunk(&nameless), end("tool_calls")]),
    )
    .unwrap();
    assert_eq!(
        found.invalid_call(0).unwrap().reason,
        "the tool call has no name; send the name of a tool"
    );
}

/// W-6: a call that the token limit truncated before its arguments is not a call without arguments.
#[test]
fn empty_arguments_after_a_length_stop_are_cut_arguments() {
    let delta = json!({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}]});
    let found = complete(
        WireFormat::ChatCompletions,
        &sse(&[chunk(&delta), end("length")]),
    )
    .unwrap();
    assert_eq!(
        (found.finish, found.invalid_calls.len()),
        (FinishReason::Length, 1)
    );
}

/// W-6: calls in an answer that the provider stopped do not run, even if they look complete.
#[test]
fn calls_of_a_stopped_answer_must_not_be_run() {
    let whole = [
        (
            WireFormat::ChatCompletions,
            "content_filter",
            json!({"choices": [{"message": {"tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]}, "finish_reason": "content_filter"}]}),
        ),
        (
            WireFormat::Messages,
            "refusal",
            json!({"type": "message", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}], "stop_reason": "refusal"}),
        ),
        (
            WireFormat::GenerateContent,
            "content_filter",
            json!({"candidates": [{"content": {"parts": [{"functionCall": {"name": "f", "args": {}}}]}, "finishReason": "SAFETY"}]}),
        ),
        (
            WireFormat::Responses,
            "content_filter",
            json!({"object": "response", "status": "incomplete", "incomplete_details": {"reason": "content_filter"},
                "output": [{"type": "function_call", "id": "i", "call_id": "c", "name": "f", "arguments": "{}"}]}),
        ),
    ];
    for (wire, word, body) in whole {
        let found = complete(wire, body.to_string().as_bytes()).unwrap();
        let reason = format!("the provider stopped the answer ({word}); the call did not run");
        assert_eq!(
            (found.finish.as_str(), found.tool_calls.len()),
            (word, 1),
            "{wire:?}"
        );
        assert_eq!(found.invalid_call(0).unwrap().reason, reason, "{wire:?}");
    }
    // The token limit may follow a complete call.
    let delta = json!({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]});
    let found = complete(
        WireFormat::ChatCompletions,
        &sse(&[chunk(&delta), end("length")]),
    )
    .unwrap();
    assert_eq!(
        (found.finish, found.invalid_calls),
        (FinishReason::Length, vec![])
    );
}

/// H-85: deviations of compatible servers.
#[test]
fn tool_calls_in_every_accent_are_understood() {
    let names_and_arguments = |deltas: &[Value]| {
        let mut frames: Vec<_> = deltas.iter().map(chunk).collect();
        frames.push(end("stop"));
        let found = complete(WireFormat::ChatCompletions, &sse(&frames)).unwrap();
        assert_eq!(
            (found.finish, found.invalid_calls.len()),
            (FinishReason::ToolCalls, 0)
        );
        let row = |call: &Value| {
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            (
                text(&call["id"]),
                text(&call["function"]["name"]),
                text(&call["function"]["arguments"]),
            )
        };
        found.tool_calls.iter().map(row).collect::<Vec<_>>()
    };
    let row = |id: &str, name: &str, arguments: &str| {
        (id.to_owned(), name.to_owned(), arguments.to_owned())
    };
    // The arguments are an object; index and id are missing.
    let object = json!({"tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}, {"function": {"name": "g"}}]});
    assert_eq!(
        names_and_arguments(&[object]),
        [
            row("call_0", "f", r#"{"a": 1}"#.replace(' ', "").as_str()),
            row("call_1", "g", "{}")
        ]
    );
    // The name is repeated with every piece; the id is empty after the first piece.
    let piece = |id: &str, arguments: &str| json!({"tool_calls": [{"index": 0, "id": id, "function": {"name": "f", "arguments": arguments}}]});
    assert_eq!(
        names_and_arguments(&[piece("c", "{\"a\""), piece("", ":1}")]),
        [row("c", "f", "{\"a\":1}")]
    );
    // The name arrives in pieces.
    let named = |name: &str| json!({"tool_calls": [{"index": 0, "function": {"name": name}}]});
    assert_eq!(
        names_and_arguments(&[named("get_"), named("weather")]),
        [row("call_0", "get_weather", "{}")]
    );
    // The deprecated single function call.
    let old = json!({"function_call": {"name": "f", "arguments": "{}"}});
    assert_eq!(names_and_arguments(&[old]), [row("call_0", "f", "{}")]);
}

/// H-93.
#[test]
fn reasoning_is_found_under_every_alias() {
    for field in bub_model::REASONING_FIELDS {
        let found = complete(
            WireFormat::ChatCompletions,
            &sse(&[chunk(&json!({field: "hm"})), end("stop")]),
        )
        .unwrap();
        assert_eq!((&*found.reasoning, &*found.text), ("hm", ""), "{field}");
    }
    let both = json!({"reasoning": "hm", "reasoning_content": "hm"});
    assert_eq!(
        complete(
            WireFormat::ChatCompletions,
            &sse(&[chunk(&both), end("stop")])
        )
        .unwrap()
        .reasoning,
        "hm"
    );
}

#[test]
fn an_answer_that_begins_anew_voids_what_came_before() {
    let start = |id: &str| json!({"type": "message_start", "message": {"id": id, "usage": {"input_tokens": 1}}});
    let text = |text: &str| json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": text}});
    let stop = json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}});
    let frames = [
        start("a"),
        text("old"),
        start("a"),
        start("b"),
        text("new"),
        stop,
    ];
    let (events, error) = stream(WireFormat::Messages, [&*sse(&frames)]);
    assert_eq!((error, events.contains(&ModelEvent::Restart)), (None, true));
    assert_eq!(fold(events).unwrap().text, "new");
}

#[test]
fn a_done_mark_ends_every_format() {
    let frames = [
        json!({"type": "message_start", "message": {"id": "m"}}),
        json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}),
    ];
    let stream = [sse(&frames), b"data: [DONE]\n\n".to_vec()].concat();
    assert_eq!(
        complete(WireFormat::Messages, &stream).unwrap().finish,
        FinishReason::Stop
    );
    for wire in [
        WireFormat::Responses,
        WireFormat::Messages,
        WireFormat::GenerateContent,
    ] {
        assert_eq!(
            kind(wire, b"data: [DONE]\n\n"),
            ModelErrorKind::Truncated,
            "no finish reason was received"
        );
    }
}

#[test]
fn the_end_is_noticed_before_the_connection_closes() {
    let mut decoder = WireFormat::ChatCompletions.decoder(&Quirks::default());
    let mut events = Vec::new();
    decoder
        .push(&sse(&[chunk(&json!({"content": "a"}))]), &mut events)
        .unwrap();
    assert!(!decoder.has_finish_reason() && !decoder.is_done());
    decoder.push(&sse(&[end("stop")]), &mut events).unwrap();
    assert!(decoder.has_finish_reason() && !decoder.is_done());
    decoder.push(b"data: [DONE]\n\n", &mut events).unwrap();
    assert!(decoder.is_done());
    assert_eq!(events.last(), Some(&ModelEvent::Finish(FinishReason::Stop)));
    let count = events.len();
    decoder.finish(&mut events).unwrap();
    assert_eq!(events.len(), count, "the end is emitted once");
}

/// A lone surrogate in an escape is replaced with one character. Servers that split between UTF-16 units send it.
#[test]
fn half_a_character_never_takes_the_text_around_it_along() {
    let halves = [
        (r"\ud83d", "\u{fffd}"),
        (r"a\uDE00b", "a\u{fffd}b"),
        (r"\ud83d\u0041", "\u{fffd}A"),
        (r"\ud83d\ud83d\ude00", "\u{fffd}😀"),
        (r"\ud83d\n", "\u{fffd}\n"),
        (r"\\ud83d", r"\ud83d"),
    ];
    for (escaped, meant) in halves {
        for scenario in scenarios()
            .into_iter()
            .filter(|scenario| scenario.name == "text")
        {
            let with_half = |json: &[u8]| String::from_utf8_lossy(json).replace("there", escaped);
            let whole = with_half(scenario.whole.unwrap().to_string().as_bytes());
            let found = [
                complete(scenario.wire, with_half(&scenario.stream).as_bytes()),
                complete(scenario.wire, whole.as_bytes()),
                scenario.wire.decode(whole.as_bytes(), &Quirks::default()),
            ];
            for found in found {
                assert_eq!(
                    found.unwrap().text,
                    format!("Hé {meant}"),
                    "{:?} {escaped}",
                    scenario.wire
                );
            }
        }
    }
}

/// A piece of arguments with a lone surrogate is still decoded.
#[test]
fn half_a_character_in_arguments_is_replaced_or_breaks_the_call() {
    let call = |piece: &str| json!({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": piece}}]});
    let found = |first: &str, second: &str| {
        let frames = sse(&[
            chunk(&call("{\"a\":\"FIRST")),
            chunk(&call("SECOND\"}")),
            end("tool_calls"),
        ]);
        let frames = String::from_utf8(frames)
            .unwrap()
            .replace("FIRST", first)
            .replace("SECOND", second);
        complete(WireFormat::ChatCompletions, frames.as_bytes()).unwrap()
    };
    let arguments = |found: &Completion| {
        found.tool_calls[0]["function"]["arguments"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let split = found(r"x\ud83d", r"\ude00y");
    assert_eq!(
        (arguments(&split), split.invalid_calls.len()),
        ("{\"a\":\"x\u{fffd}\u{fffd}y\"}".to_owned(), 0)
    );
    // The escapes inside the arguments form a pair again.
    let joined = found(r"x\\ud83d", r"\\ude00y");
    assert_eq!(
        (&*arguments(&joined), joined.invalid_calls.len()),
        (r#"{"a":"x\ud83d\ude00y"}"#, 0)
    );
    assert_eq!(found(r"x\\ud83d", "y").invalid_calls.len(), 1);
    let whole = [
        (
            WireFormat::Messages,
            r#"{"type":"message","content":[{"type":"tool_use","id":"c","name":"f","input":{"a":"\ud83d"}}],"stop_reason":"tool_use"}"#,
        ),
        (
            WireFormat::GenerateContent,
            r#"{"candidates":[{"content":{"parts":[{"functionCall":{"name":"f","args":{"a":"\ud83d"}}}]},"finishReason":"STOP"}]}"#,
        ),
        (
            WireFormat::Responses,
            r#"{"object":"response","status":"completed","output":[{"type":"function_call","id":"i","call_id":"c","name":"f","arguments":"{\"a\":\"\ud83d\"}"}]}"#,
        ),
    ];
    for (wire, body) in whole {
        let found = complete(wire, body.as_bytes()).unwrap();
        let given: Value = serde_json::from_str(&arguments(&found)).unwrap();
        assert_eq!(
            (given, found.invalid_calls.len()),
            (json!({"a": "\u{fffd}"}), 0),
            "{wire:?}"
        );
    }
}
