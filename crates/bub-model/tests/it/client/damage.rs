//! Tests of truncated, empty, invalid and huge responses: a typed error, no hang, no panic, no partial tool call.

use bub_model::{CallOptions, ModelErrorKind, ModelEvent, RecoveryAction, WireFormat};
use bub_testkit::model::{ModelServer, Reply};
use serde_json::json;

use super::support::{client, collect, completion, endpoint, quick, request, text};

fn once() -> CallOptions {
    CallOptions {
        attempts: 1,
        ..quick()
    }
}

fn calling() -> Reply {
    Reply::text("I will").split_call("call_1", "rm", ["{\"path\":", "\"/tmp/x\"", "}"])
}

/// A stream that is truncated after every event: by FIN, by RST and by a regular end of the body.
#[tokio::test]
async fn a_stream_cut_anywhere_is_never_a_whole_answer() {
    for wire in WireFormat::ALL {
        for cut in [Reply::cut_after, Reply::reset_after, Reply::end_after] {
            for events in 0..=4 {
                let server = ModelServer::start();
                server.script(cut(calling(), events));
                let (events, error) =
                    collect(client().stream(endpoint(&server, wire), request(true), once())).await;
                // The last format has no end marker and sends complete calls. After its finish reason, the answer is
                // complete.
                if let Some(error) = error {
                    assert_eq!(error.action, RecoveryAction::Retry, "{wire:?} {error:?}");
                    assert!(
                        matches!(
                            error.kind,
                            ModelErrorKind::Truncated | ModelErrorKind::Transport
                        ),
                        "{error:?}"
                    );
                    assert!(!error.message.is_empty());
                    assert!(
                        !events
                            .iter()
                            .any(|event| matches!(event, ModelEvent::Finish(_))),
                        "{wire:?}"
                    );
                    assert!(completion(events).is_err());
                } else {
                    assert!(completion(events).is_ok(), "{wire:?}");
                }
            }
        }
    }
}

#[tokio::test]
async fn an_error_event_inside_a_200_is_the_error_it_names() {
    for wire in WireFormat::ALL {
        let server = ModelServer::start();
        let overloaded = json!({"type": "overloaded_error", "code": "overloaded_error", "message": "Overloaded"});
        let overflow = json!({"code": "context_length_exceeded", "type": "invalid_request_error", "message": "too long"});
        server
            .script(Reply::text("part").error_event(overloaded))
            .script(Reply::text("part").error_event(overflow));
        let client = client();
        let (events, error) =
            collect(client.stream(endpoint(&server, wire), request(true), once())).await;
        let error = error.unwrap();
        assert_eq!(
            (error.action, error.kind, error.message.as_str()),
            (
                RecoveryAction::Retry,
                ModelErrorKind::Provider,
                "Overloaded"
            ),
            "{wire:?}"
        );
        assert!(completion(events).is_err());
        let (_, error) =
            collect(client.stream(endpoint(&server, wire), request(true), once())).await;
        assert_eq!(
            error.unwrap().action,
            RecoveryAction::ShrinkContext,
            "{wire:?}"
        );
    }
}

#[tokio::test]
async fn empty_and_foreign_bodies_are_typed_errors() {
    let bodies = [
        (Reply::empty(), ModelErrorKind::Truncated),
        (Reply::raw("\r\n\r\n"), ModelErrorKind::Truncated),
        (
            Reply::raw(": only a comment\n\n"),
            ModelErrorKind::Truncated,
        ),
        (Reply::html(200, "Sign in"), ModelErrorKind::Malformed),
        (Reply::json(&json!([])), ModelErrorKind::Malformed),
        (Reply::json(&json!(null)), ModelErrorKind::Malformed),
        (Reply::raw("{\"half\": "), ModelErrorKind::Malformed),
        (Reply::raw(vec![0xff; 2000]), ModelErrorKind::Truncated),
    ];
    for wire in WireFormat::ALL {
        for stream in [true, false] {
            for (reply, kind) in &bodies {
                let server = ModelServer::start();
                server.script(reply.clone());
                let (events, error) =
                    collect(client().stream(endpoint(&server, wire), request(stream), once()))
                        .await;
                let error = error.unwrap_or_else(|| panic!("{wire:?} {reply:?} gave {events:?}"));
                assert!(
                    matches!(
                        error.kind,
                        ModelErrorKind::Truncated | ModelErrorKind::Malformed
                    ),
                    "{kind:?} {error:?}"
                );
                assert!(!error.message.contains(['<', '\n']), "{error}");
                assert!(events.is_empty());
            }
        }
    }
}

/// A JSON array is a valid body of one format: its stream without SSE. In other formats, gateways wrap errors in it.
#[tokio::test]
async fn a_json_array_is_an_error_or_an_answer_but_never_nothing() {
    for wire in WireFormat::ALL {
        let server = ModelServer::start();
        server.script(Reply::json(&json!([{"error": {"code": 400, "message": "input token count (9) exceeds the maximum number of tokens allowed (1)", "status": "INVALID_ARGUMENT"}}])));
        let (events, error) =
            collect(client().stream(endpoint(&server, wire), request(true), once())).await;
        let error = error.unwrap();
        assert_eq!(
            (error.kind, error.action),
            (ModelErrorKind::Provider, RecoveryAction::ShrinkContext),
            "{wire:?}"
        );
        assert!(
            error.message.starts_with("input token count (9) exceeds"),
            "{wire:?} {error}"
        );
        assert!(events.is_empty());
    }
}

#[tokio::test]
async fn json_where_a_stream_was_asked_for_and_a_stream_where_not_are_read() {
    let whole_body = json!({"choices": [{"message": {"role": "assistant", "content": "whole"}, "finish_reason": "stop"}]});
    let sse = "data: {\"choices\":[{\"delta\":{\"content\":\"streamed\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
    let server = ModelServer::start();
    server
        .script(Reply::json(&whole_body))
        .script(Reply::raw(sse));
    let client = client();
    for (stream, expected) in [(true, "whole"), (false, "streamed")] {
        let (events, error) = collect(client.stream(
            endpoint(&server, WireFormat::ChatCompletions),
            request(stream),
            once(),
        ))
        .await;
        assert_eq!((error, text(&events).as_str()), (None, expected));
        completion(events).unwrap();
    }
}

#[tokio::test]
async fn crlf_comments_and_tiny_pieces_make_no_difference() {
    for wire in WireFormat::ALL {
        for bytes in [1, 7, 1000] {
            let server = ModelServer::start();
            server.script(
                Reply::deltas(["grüße ", "🎉"])
                    .call("c", "t", "{}")
                    .crlf()
                    .comments()
                    .split(bytes),
            );
            let (events, error) =
                collect(client().stream(endpoint(&server, wire), request(true), once())).await;
            assert_eq!(error, None, "{wire:?}");
            let answer = completion(events).unwrap();
            assert_eq!(
                (answer.text.as_str(), answer.tool_calls.len()),
                ("grüße 🎉", 1),
                "{wire:?}"
            );
        }
    }
}

#[tokio::test]
async fn garbage_between_events_is_an_error_not_an_answer() {
    for wire in WireFormat::ALL {
        let server = ModelServer::start();
        server.script(Reply::text("a").garbage("{not json").say("b"));
        let (events, error) =
            collect(client().stream(endpoint(&server, wire), request(true), once())).await;
        let error = error.unwrap();
        assert_eq!(error.kind, ModelErrorKind::Malformed, "{wire:?} {error:?}");
        assert_eq!(text(&events), "a", "{wire:?}");
        assert!(completion(events).is_err());
    }
}

#[tokio::test]
async fn invalid_utf8_is_an_error_and_never_patched_into_arguments() {
    for wire in WireFormat::ALL {
        let server = ModelServer::start();
        server.script(Reply::raw(
            b"data: {\"choices\":[{\"delta\":{\"content\":\"\xff\xfe\"}}],\"type\":\"x\xff\"}\n\n"
                .to_vec(),
        ));
        let (events, error) =
            collect(client().stream(endpoint(&server, wire), request(true), once())).await;
        assert_eq!(error.unwrap().kind, ModelErrorKind::Malformed, "{wire:?}");
        assert!(events.is_empty());
    }
}

/// A 10 MB event is accepted; one above the limit is rejected while it arrives. All formats share the SSE decoder, so
/// the other three are tested with less data.
#[tokio::test]
async fn a_single_event_of_ten_megabytes_is_read_and_a_larger_one_refused() {
    let megabyte = "x".repeat(1024 * 1024);
    for wire in WireFormat::ALL {
        let server = ModelServer::start();
        let big = if wire == WireFormat::ChatCompletions {
            megabyte.repeat(10)
        } else {
            megabyte.clone()
        };
        server.script(Reply::text(big.as_str()));
        let (events, error) =
            collect(client().stream(endpoint(&server, wire), request(true), once())).await;
        assert_eq!(error, None, "{wire:?}");
        assert_eq!(text(&events).len(), big.len(), "{wire:?}");
    }
    let big = megabyte.repeat(20);
    let server = ModelServer::start();
    let large = format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{big}\"}}}}]}}\n\n");
    server.script(Reply::raw(large));
    let (events, error) = collect(client().stream(
        endpoint(&server, WireFormat::ChatCompletions),
        request(true),
        once(),
    ))
    .await;
    assert_eq!(error.unwrap().kind, ModelErrorKind::TooLarge);
    assert!(text(&events).is_empty());
}

#[tokio::test]
async fn an_endless_error_body_is_not_read_to_its_end() {
    let server = ModelServer::start();
    let body = format!(
        "{{\"error\":{{\"message\":\"{}\"}}}}",
        "long ".repeat(1_000_000)
    );
    server.script(Reply::status(400).with_json(&json!(body)));
    let (_, error) = collect(client().stream(
        endpoint(&server, WireFormat::ChatCompletions),
        request(true),
        once(),
    ))
    .await;
    let error = error.unwrap();
    assert_eq!(error.status, Some(400));
    assert!(error.message.chars().count() < 500);
}

/// Events before an error are emitted, however the network splits the data.
#[tokio::test]
async fn whether_a_call_is_repeated_does_not_depend_on_packets() {
    for wire in WireFormat::ALL {
        for bytes in [1, 40, 100_000] {
            let server = ModelServer::start();
            let busy =
                json!({"code": "overloaded_error", "type": "overloaded_error", "message": "busy"});
            server.script(Reply::deltas(["a", "b"]).error_event(busy).split(bytes));
            server.otherwise(Reply::text("again"));
            let (events, error) =
                collect(client().stream(endpoint(&server, wire), request(true), quick())).await;
            assert_eq!(
                (text(&events).as_str(), server.requests().len()),
                ("ab", 1),
                "{wire:?} {bytes}"
            );
            assert_eq!(
                error.unwrap().action,
                RecoveryAction::Retry,
                "{wire:?} {bytes}"
            );
        }
    }
}

/// Events before an error are emitted if all data is in one packet.
#[tokio::test]
async fn what_came_in_one_packet_with_an_error_is_handed_out() {
    let server = ModelServer::start();
    let packet = "data: {\"choices\":[{\"delta\":{\"content\":\"ab\"}}]}\n\ndata: {\"error\":{\"message\":\"busy\",\"code\":503}}\n\n";
    server.script(Reply::raw(packet));
    server.otherwise(Reply::text("again"));
    let (events, error) = collect(client().stream(
        endpoint(&server, WireFormat::ChatCompletions),
        request(true),
        quick(),
    ))
    .await;
    assert_eq!((text(&events).as_str(), server.requests().len()), ("ab", 1));
    assert_eq!(error.unwrap().action, RecoveryAction::Retry);
}
