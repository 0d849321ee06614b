//! Tests of successful calls and their requests.

use bub_model::fetch::{Fetch, FetchRequest};
use bub_model::{FinishReason, ModelEvent, WireFormat};
use bub_testkit::model::{Finish, Format, ModelServer, Reply, ReplyUsage};
use serde_json::json;

use super::support::{KEY, TEST_TIMEOUT, client, collect, completion, endpoint, quick, request};

#[tokio::test]
async fn every_format_is_called_streamed_and_whole() {
    for wire in WireFormat::ALL {
        for stream in [true, false] {
            let server = ModelServer::start();
            server.script(
                Reply::new()
                    .reasoning("hm")
                    .say("let me look")
                    .call("call_1", "fs_read", r#"{"path":"a"}"#)
                    .split_call("call_2", "fs_read", ["{\"path\"", ":\"b\"}"])
                    .usage(ReplyUsage {
                        input: 100,
                        output: 20,
                        cached: 40,
                        reasoning: 0,
                    }),
            );
            let (events, error) =
                collect(client().stream(endpoint(&server, wire), request(stream), quick())).await;
            assert_eq!(error, None, "{wire:?} {stream}");
            let answer = completion(events).unwrap();
            assert_eq!(answer.text, "let me look", "{wire:?} {stream}");
            assert_eq!(answer.reasoning, "hm", "{wire:?} {stream}");
            assert_eq!(answer.tool_calls.len(), 2, "{wire:?} {stream}");
            assert_eq!(
                answer.tool_calls[1]["function"]["arguments"], r#"{"path":"b"}"#,
                "{wire:?} {stream}"
            );
            assert!(answer.invalid_calls.is_empty());
            assert_eq!(answer.finish, FinishReason::ToolCalls, "{wire:?} {stream}");
            let usage = answer.usage.unwrap();
            assert_eq!(
                (usage.prompt, usage.completion, usage.cached),
                (100, 20, Some(40)),
                "{wire:?} {stream}"
            );
        }
    }
}

#[tokio::test]
async fn the_request_has_the_key_where_the_format_wants_it_and_nowhere_else() {
    let places = [
        (
            WireFormat::ChatCompletions,
            "authorization",
            format!("Bearer {KEY}"),
        ),
        (
            WireFormat::Responses,
            "authorization",
            format!("Bearer {KEY}"),
        ),
        (WireFormat::Messages, "x-api-key", KEY.to_owned()),
        (
            WireFormat::GenerateContent,
            "x-goog-api-key",
            KEY.to_owned(),
        ),
    ];
    for (wire, header, value) in places {
        let server = ModelServer::start();
        server.script(Reply::text("ok"));
        collect(client().stream(endpoint(&server, wire), request(true), quick())).await;
        let sent = server.wait_request(0).await;
        assert_eq!(sent.header(header), Some(value.as_str()));
        assert_eq!(sent.header("accept"), Some("text/event-stream"));
        assert_eq!(sent.header("content-type"), Some("application/json"));
        assert!(sent.header("user-agent").unwrap().starts_with("bub/"));
        assert!(!String::from_utf8_lossy(&sent.body).contains(KEY) && !sent.query.contains(KEY));
        assert_eq!(
            sent.headers
                .iter()
                .filter(|(_, value)| value.contains(KEY))
                .count(),
            1
        );
        assert!(sent.format().is_some() && sent.wants_stream());
    }
}

/// Connections are reused: one handshake for many calls (W-46).
#[tokio::test]
async fn one_connection_serves_many_calls() {
    for wire in WireFormat::ALL {
        let server = ModelServer::start();
        server.otherwise(Reply::deltas(["a", "b"]));
        let client = client();
        for round in 0..5 {
            let (events, error) =
                collect(client.stream(endpoint(&server, wire), request(round % 2 == 0), quick()))
                    .await;
            assert_eq!(
                (error, completion(events).unwrap().text.as_str()),
                (None, "ab")
            );
        }
        assert_eq!(
            (server.requests().len(), server.connections()),
            (5, 1),
            "{wire:?}"
        );
    }
}

#[tokio::test]
async fn a_limit_or_a_filter_is_not_taken_for_a_whole_answer() {
    for wire in WireFormat::ALL {
        let server = ModelServer::start();
        server
            .script(Reply::text("cut").finish(Finish::Length))
            .script(Reply::text("no").finish(Finish::Filter));
        let client = client();
        let length = client
            .complete(endpoint(&server, wire), request(true), quick())
            .await
            .unwrap();
        assert_eq!(length.finish, FinishReason::Length, "{wire:?}");
        let filter = client
            .complete(endpoint(&server, wire), request(false), quick())
            .await
            .unwrap();
        assert!(!filter.finish.is_complete(), "{wire:?} {:?}", filter.finish);
    }
}

#[tokio::test]
async fn nothing_is_sent_before_the_stream_is_polled() {
    let server = ModelServer::start();
    let stream = client().stream(
        endpoint(&server, WireFormat::ChatCompletions),
        request(true),
        quick(),
    );
    drop(stream);
    assert_eq!((server.connections(), server.requests().len()), (0, 0));
}

#[tokio::test]
async fn the_stream_ends_with_finish_and_names_its_model() {
    let server = ModelServer::start();
    server.script(Reply::text("x"));
    let mut stream = client().stream(
        endpoint(&server, WireFormat::ChatCompletions),
        request(true),
        quick(),
    );
    assert_eq!(stream.model(), None);
    let mut last = None;
    while let Some(event) = futures_util::StreamExt::next(&mut stream).await {
        last = Some(event.unwrap());
    }
    assert_eq!(last, Some(ModelEvent::Finish(FinishReason::Stop)));
    assert_eq!(stream.model().unwrap().to_string(), "test:model");
}

#[tokio::test]
async fn small_exchanges_go_through_the_same_client() {
    let server = ModelServer::start();
    server
        .models(["small"])
        .script(Reply::json(&json!({"access_token": "t"})));
    let client = client();
    let url = format!("{}/v1/models", server.url());
    let list = client
        .fetch(FetchRequest {
            url: &url,
            form: None,
            timeout: TEST_TIMEOUT,
        })
        .await
        .unwrap();
    assert!(list.status == 200 && String::from_utf8_lossy(&list.body).contains("small"));
    let url = format!("{}/oauth/token", server.url());
    let token = client
        .fetch(FetchRequest {
            url: &url,
            form: Some("a=b&c=d"),
            timeout: TEST_TIMEOUT,
        })
        .await
        .unwrap();
    assert_eq!(token.body, br#"{"access_token":"t"}"#);
    let sent = server.wait_request(1).await;
    assert_eq!(
        (sent.body.as_slice(), sent.header("content-type")),
        (&b"a=b&c=d"[..], Some("application/x-www-form-urlencoded"))
    );
    assert_eq!(sent.format(), None::<Format>);
    assert_eq!(server.connections(), 1);
    drop(server);
    assert!(
        client
            .fetch(FetchRequest {
                url: &url,
                form: None,
                timeout: TEST_TIMEOUT
            })
            .await
            .is_err()
    );
}
