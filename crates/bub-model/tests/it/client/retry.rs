//! Tests of retries: which errors, how often and when.

use std::time::Duration;

use bub_model::{
    BaseUrl, CallOptions, Endpoint, ModelErrorKind, ModelEvent, RecoveryAction, WireFormat,
};
use bub_testkit::model::{ManualClock, ModelServer, Reply};
use futures_util::StreamExt;
use serde_json::json;
use tokio::{io::AsyncReadExt as _, net::TcpListener};

use super::support::{client, collect, completion, drain, endpoint, logged, quick, request, text};

#[tokio::test]
async fn temporary_errors_are_retried_up_to_the_limit() {
    for reply in [
        Reply::status(500),
        Reply::status(503),
        Reply::status(529),
        Reply::status(429),
        Reply::html(502, "Bad Gateway"),
        Reply::empty(),
        Reply::text("never seen").reset_after(0),
        Reply::text("never seen").cut_after(0),
    ] {
        let server = ModelServer::start();
        server
            .script(reply.clone())
            .script(reply.clone())
            .script(Reply::text("at last"));
        let (events, error) = collect(client().stream(
            endpoint(&server, WireFormat::ChatCompletions),
            request(true),
            quick(),
        ))
        .await;
        assert_eq!(
            (error, text(&events).as_str()),
            (None, "at last"),
            "{reply:?}"
        );
        let server = ModelServer::start();
        server.otherwise(reply.clone());
        let (_, error) = collect(client().stream(
            endpoint(&server, WireFormat::ChatCompletions),
            request(true),
            quick(),
        ))
        .await;
        assert_eq!(error.unwrap().action, RecoveryAction::Retry, "{reply:?}");
        assert_eq!(server.requests().len(), 3);
    }
}

#[tokio::test]
async fn permanent_errors_are_not_retried() {
    for (status, action) in [
        (400, RecoveryAction::GiveUp),
        (401, RecoveryAction::Reauthenticate),
        (402, RecoveryAction::NextModel),
        (404, RecoveryAction::NextModel),
        (413, RecoveryAction::ShrinkContext),
        (422, RecoveryAction::GiveUp),
    ] {
        let server = ModelServer::start();
        server.otherwise(Reply::status(status));
        let (_, error) = collect(client().stream(
            endpoint(&server, WireFormat::Messages),
            request(true),
            quick(),
        ))
        .await;
        let error = error.unwrap();
        assert_eq!((error.action, error.status), (action, Some(status)));
        assert_eq!(server.requests().len(), 1, "{status}");
    }
}

/// W-10: a token rate limit causes a retry and does not shrink the context.
#[tokio::test]
async fn a_token_rate_limit_waits_and_an_overflow_does_not() {
    let server = ModelServer::start();
    let limit = json!({"error": {"code": "429", "message": "Requests have exceeded token rate limit of your current pricing tier."}});
    let overflow = json!({"type": "error", "error": {"type": "invalid_request_error", "message": "exceed context limit: 199000 + 16384 > 200000"}});
    server
        .script(Reply::status(429).with_json(&limit))
        .script(Reply::text("fine"));
    server.script(Reply::status(400).with_json(&overflow));
    let client = client();
    let answer = client
        .complete(
            endpoint(&server, WireFormat::ChatCompletions),
            request(true),
            quick(),
        )
        .await
        .unwrap();
    assert_eq!(answer.text, "fine");
    let error = client
        .complete(
            endpoint(&server, WireFormat::Messages),
            request(true),
            quick(),
        )
        .await
        .unwrap_err();
    assert_eq!(error.action, RecoveryAction::ShrinkContext);
}

/// Returns how long the client waits before the second request. Only this function advances the clock.
async fn measured_delay(server: &ModelServer, reply: Reply, options: CallOptions) -> Duration {
    server.script(reply).script(Reply::text("ok"));
    let clock = ManualClock::pause();
    let call = tokio::spawn(drain(client().stream(
        endpoint(server, WireFormat::ChatCompletions),
        request(true),
        options,
    )));
    server.wait_sent(0, 1).await;
    clock.settle().await;
    let mut passed = Duration::ZERO;
    let step = Duration::from_millis(100);
    while !call.is_finished() {
        clock.advance(step).await;
        passed += step;
        clock.settle().await;
        if server.requests().len() > 1 {
            break;
        }
        assert!(passed < Duration::from_mins(3), "no second request");
    }
    drop(clock);
    assert_eq!(call.await.unwrap().1, None);
    passed
}

#[tokio::test]
async fn retry_after_is_honored_in_seconds_and_as_a_date() {
    let seconds = Reply::status(429).header("retry-after", "7");
    let server = ModelServer::start();
    assert!(
        measured_delay(&server, seconds, CallOptions::default()).await >= Duration::from_secs(7)
    );
    let date = Reply::status(503)
        .header("date", "Sun, 06 Nov 1994 08:49:37 GMT")
        .header("retry-after", "Sun, 06 Nov 1994 08:49:57 GMT");
    let server = ModelServer::start();
    assert!(measured_delay(&server, date, CallOptions::default()).await >= Duration::from_secs(20));
}

#[tokio::test]
async fn without_retry_after_the_wait_is_the_backoff() {
    let server = ModelServer::start();
    assert!(
        measured_delay(&server, Reply::status(500), CallOptions::default()).await
            >= Duration::from_millis(250)
    );
}

#[tokio::test]
async fn a_server_that_asks_for_too_long_is_not_waited_for() {
    let server = ModelServer::start();
    server.otherwise(Reply::status(429).header("retry-after", "3600"));
    let (_, error) = collect(client().stream(
        endpoint(&server, WireFormat::ChatCompletions),
        request(true),
        quick(),
    ))
    .await;
    let error = error.unwrap();
    assert_eq!(
        (error.action, error.retry_after),
        (RecoveryAction::Retry, Some(Duration::from_hours(1)))
    );
    assert!(error.message.ends_with("; try again in 3600 s"), "{error}");
    assert_eq!(server.requests().len(), 1);
}

/// The stream reports a retry before the delay. The event is not part of the answer.
#[tokio::test]
async fn every_wait_is_announced_with_its_reason() {
    let server = ModelServer::start();
    let limit = || Reply::status(429).message("slow down");
    server.script(limit().header("retry-after", "8"));
    let mut stream = client().stream(
        endpoint(&server, WireFormat::ChatCompletions),
        request(true),
        CallOptions::default(),
    );
    let notice = stream.next().await.unwrap().unwrap();
    let ModelEvent::Retry(notice) = notice else {
        panic!("{notice:?}")
    };
    assert_eq!(
        (notice.attempt, notice.error.status, server.requests().len()),
        (2, Some(429), 1)
    );
    assert!(notice.delay >= Duration::from_secs(8), "{notice:?}");
    assert_eq!(
        notice.error.to_string(),
        "test:model: slow down (HTTP 429, rate_limit_error)"
    );
    drop(stream);
    server
        .script(limit())
        .script(Reply::status(503))
        .script(Reply::text("ok"));
    let (events, error) = collect(client().stream(
        endpoint(&server, WireFormat::ChatCompletions),
        request(true),
        quick(),
    ))
    .await;
    let attempts = events.iter().filter_map(|event| match event {
        ModelEvent::Retry(retry) => Some(retry.attempt),
        _ => None,
    });
    assert_eq!((error, attempts.collect::<Vec<_>>()), (None, vec![2, 3]));
    assert_eq!(completion(events).unwrap().text, "ok");
    let is_logged = logged().into_iter().any(|line| {
        let is_retry = line.contains("message=model.retry delay_ms=8");
        is_retry && line.contains("slow down")
    });
    assert!(is_logged, "the retry is also logged");
}

/// Servers close idle connections, and the client can notice that only when it sends the next request.
#[tokio::test]
async fn a_connection_closed_before_the_response_is_replaced_at_once_and_silently() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}/v1", listener.local_addr().unwrap());
    let base = BaseUrl::parse(&base).unwrap();
    let id = "test:model".parse().unwrap();
    let endpoint = Endpoint::new(id, WireFormat::ChatCompletions, base);
    let clock = ManualClock::pause();
    let call = tokio::spawn(drain(client().stream(endpoint, request(true), quick())));
    // The clock stands still: only the retry without a delay arrives.
    for _ in 0..2 {
        let (mut socket, _) = listener.accept().await.unwrap();
        // Bytes that are not read would reset the connection.
        let mut request = Vec::new();
        while !request.ends_with(b"}") {
            assert!(socket.read_buf(&mut request).await.unwrap() > 0);
        }
    }
    clock.settle().await;
    assert!(!call.is_finished());
    drop((clock, listener));
    let (events, error) = call.await.unwrap();
    let retries = events
        .iter()
        .filter_map(|event| match event {
            ModelEvent::Retry(retry) => Some(retry.attempt),
            _ => None,
        })
        .collect::<Vec<_>>();
    assert_eq!(retries, [3], "{error:?}");
}

/// An empty answer is retried once; then it is an error.
#[tokio::test]
async fn an_answer_with_nothing_in_it_is_tried_once_more() {
    let nothing = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3}}\n\ndata: [DONE]\n\n";
    for reply in [
        Reply::raw("data: [DONE]\n\n"),
        Reply::raw(nothing),
        Reply::raw(
            "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\ndata: [DONE]\n\n",
        ),
        Reply::json(&json!({"choices": []})),
    ] {
        let server = ModelServer::start();
        server.otherwise(reply.clone());
        let endpoint = endpoint(&server, WireFormat::ChatCompletions);
        let (_, error) = collect(client().stream(endpoint, request(true), quick())).await;
        let error = error.unwrap_or_else(|| panic!("{reply:?} is taken for an answer"));
        assert_eq!(
            (error.kind, error.action),
            (ModelErrorKind::Empty, RecoveryAction::Retry),
            "{reply:?}"
        );
        assert_eq!(
            error.message,
            "the model returned an empty answer; failed after 2 attempts; try again later"
        );
        assert_eq!(server.requests().len(), 2);
    }
}

/// H-80: nothing is retried after the first output, because the caller may have acted on it.
#[tokio::test]
async fn after_the_first_event_a_broken_stream_is_not_repeated() {
    for wire in WireFormat::ALL {
        let server = ModelServer::start();
        server.script(
            Reply::deltas(["one ", "two"])
                .error_event(json!({"type": "overloaded_error", "message": "Overloaded"})),
        );
        server.otherwise(Reply::text("again"));
        let (events, error) =
            collect(client().stream(endpoint(&server, wire), request(true), quick())).await;
        assert_eq!(text(&events), "one two", "{wire:?}");
        assert_eq!(error.unwrap().action, RecoveryAction::Retry, "{wire:?}");
        assert_eq!(server.requests().len(), 1, "{wire:?}");
    }
}

/// Reasoning and tool calls are used only when the answer is complete, so nothing was done with them yet.
#[tokio::test]
async fn a_stream_that_breaks_in_reasoning_or_in_a_tool_call_is_repeated() {
    for wire in WireFormat::ALL {
        for reply in [
            Reply::new().reasoning("let me think about it"),
            Reply::deltas(["I look. "]).call("c", "read", "{}"),
        ] {
            let server = ModelServer::start();
            let busy = json!({"type": "overloaded_error", "message": "Overloaded"});
            server
                .script(reply.error_event(busy))
                .script(Reply::text("fresh"));
            let (events, error) =
                collect(client().stream(endpoint(&server, wire), request(true), quick())).await;
            assert_eq!(error, None, "{wire:?}");
            assert_eq!(server.requests().len(), 2, "{wire:?}");
            let answer = completion(events).unwrap();
            assert_eq!(
                (answer.text.as_str(), answer.tool_calls.len()),
                ("fresh", 0),
                "{wire:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_caller_that_discards_gets_a_restart_and_a_new_answer() {
    for wire in WireFormat::ALL {
        let server = ModelServer::start();
        server
            .script(
                Reply::deltas(["a", "b", "c", "d", "e", "f"])
                    .call("c", "t", "{}")
                    .cut_after(5),
            )
            .script(Reply::text("fresh"));
        let options = CallOptions {
            restartable: true,
            ..quick()
        };
        let (events, error) =
            collect(client().stream(endpoint(&server, wire), request(true), options)).await;
        assert_eq!(error, None, "{wire:?}");
        assert!(events.contains(&ModelEvent::Restart), "{wire:?} {events:?}");
        let answer = completion(events).unwrap();
        assert_eq!(
            (answer.text.as_str(), answer.tool_calls.len()),
            ("fresh", 0),
            "{wire:?}"
        );
        // Waiting for the complete answer always discards earlier events.
        let server = ModelServer::start();
        server
            .script(Reply::deltas(["a", "b", "c", "d", "e", "f"]).cut_after(5))
            .script(Reply::text("fresh"));
        let answer = client()
            .complete(endpoint(&server, wire), request(true), quick())
            .await
            .unwrap();
        assert_eq!(answer.text, "fresh", "{wire:?}");
    }
}

#[tokio::test]
async fn a_refused_connection_is_reported_at_once() {
    let server = ModelServer::start();
    let endpoint = endpoint(&server, WireFormat::ChatCompletions);
    drop(server);
    let mut stream = client().stream(endpoint, request(true), CallOptions::default());
    let error = stream.next().await.unwrap().unwrap_err();
    assert_eq!(
        (error.kind, error.action),
        (ModelErrorKind::Transport, RecoveryAction::NextModel)
    );
    assert!(
        error
            .message
            .ends_with("refused the connection; check that the server is running"),
        "{error}"
    );
}
