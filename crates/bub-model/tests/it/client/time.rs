//! Tests of timeouts, deadlines and cancellation.

use std::time::Duration;

use bub_model::{
    BaseUrl, CallOptions, Endpoint, ModelError, ModelErrorKind, ModelEvent, ModelEventStream,
    RecoveryAction, WireFormat,
};
use bub_settings::testing::load;
use bub_testkit::model::{ManualClock, ModelServer, Pace, Reply};
use futures_util::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::support::{TEST_TIMEOUT, client, endpoint, quick, request};

fn once() -> CallOptions {
    CallOptions {
        attempts: 1,
        ..quick()
    }
}

/// Reads until text arrives, so that the connection is established.
async fn until_text(stream: &mut ModelEventStream) {
    while !matches!(stream.next().await.unwrap().unwrap(), ModelEvent::Text(_)) {}
}

/// Waits until the server has sent the head of its answer and nothing more. Then it advances the clock until the stream
/// returns an error. Returns the error and the elapsed time.
async fn silence(
    server: &ModelServer,
    clock: &ManualClock,
    mut stream: ModelEventStream,
    step: Duration,
) -> (ModelError, Duration) {
    let started = Instant::now();
    let mut reading = tokio::spawn(async move { stream.next().await.unwrap().unwrap_err() });
    server.wait_sent(0, 0).await;
    clock.settle().await;
    loop {
        tokio::select! {
            biased;
            error = &mut reading => return (error.unwrap(), started.elapsed()),
            () = clock.advance(step) => {}
        }
        assert!(started.elapsed() < Duration::from_hours(2), "no timeout");
    }
}

#[tokio::test]
async fn silence_between_events_ends_the_call_after_the_idle_timeout() {
    for wire in WireFormat::ALL {
        let server = ModelServer::start();
        let pace = Pace::stopped();
        server.script(Reply::deltas(["a"; 20]).paced(&pace));
        pace.allow(5);
        let clock = ManualClock::pause();
        let mut stream = client().stream(endpoint(&server, wire), request(true), once());
        until_text(&mut stream).await;
        server.wait_sent(0, 5).await;
        clock.settle().await;
        // The number of text events differs between formats, so read all allowed events.
        let (error, passed) = loop {
            let (item, passed) = tick(&clock, &mut stream).await;
            if let Err(error) = item {
                break (error, passed);
            }
        };
        assert_eq!(
            (error.kind, error.action),
            (ModelErrorKind::Timeout, RecoveryAction::Retry),
            "{wire:?}"
        );
        assert!(error.message.contains("120 s"), "{error}");
        assert!(passed >= Duration::from_secs(119), "{passed:?}");
        server.wait_closed(0).await;
    }
}

/// Returns the next item of the stream and the elapsed time. Advances the clock in steps of one second.
async fn tick(
    clock: &ManualClock,
    stream: &mut ModelEventStream,
) -> (Result<ModelEvent, ModelError>, Duration) {
    let started = Instant::now();
    loop {
        tokio::select! {
            biased;
            item = stream.next() => return (item.unwrap(), started.elapsed()),
            () = clock.advance(Duration::from_secs(1)) => {}
        }
        assert!(started.elapsed() < Duration::from_mins(10), "no timeout");
    }
}

/// Sends a request and waits for the head of its answer. Then it advances the clock, and returns the next item.
async fn attempt(
    server: &ModelServer,
    request: usize,
    clock: &ManualClock,
    stream: &mut ModelEventStream,
) -> Result<ModelEvent, ModelError> {
    // The delay before another attempt is short, so small steps leave the connection its time.
    let mut is_sent = std::pin::pin!(server.wait_sent(request, 0));
    loop {
        tokio::select! {
            biased;
            item = stream.next() => return item.unwrap(),
            () = &mut is_sent => break,
            () = clock.advance(Duration::from_millis(1)) => clock.settle().await,
        }
    }
    clock.settle().await;
    tick(clock, stream).await.0
}

#[tokio::test]
async fn a_server_that_never_begins_is_abandoned() {
    let server = ModelServer::start();
    let pace = Pace::stopped();
    server.script(Reply::text("x").paced(&pace));
    let clock = ManualClock::pause();
    let stream = client().stream(
        endpoint(&server, WireFormat::ChatCompletions),
        request(true),
        once(),
    );
    let (error, passed) = silence(&server, &clock, stream, Duration::from_secs(5)).await;
    assert_eq!(error.kind, ModelErrorKind::Timeout);
    assert!(
        error
            .message
            .contains("120 s; increase `model_idle_timeout_seconds`"),
        "{error}"
    );
    assert!(
        passed >= Duration::from_secs(119) && passed < Duration::from_secs(200),
        "{passed:?}"
    );
}

/// A stream of comments and pings times out later than a stream without data.
#[tokio::test]
async fn a_server_that_only_keeps_the_connection_alive_is_abandoned() {
    let ping = "event: ping\ndata: {\"type\": \"ping\"}\n\n";
    for (sign, wire) in [
        (": OPENROUTER PROCESSING\n\n", WireFormat::ChatCompletions),
        (ping, WireFormat::Messages),
    ] {
        let clock = ManualClock::pause();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base =
            BaseUrl::parse(&format!("http://{}/v1", listener.local_addr().unwrap())).unwrap();
        let endpoint = Endpoint::new("a:b".parse().unwrap(), wire, base);
        let mut stream = client().stream(endpoint, request(true), once());
        let mut reading = tokio::spawn(async move { stream.next().await.unwrap().unwrap_err() });
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut request_bytes = [0; 4096];
        assert!(socket.read(&mut request_bytes).await.unwrap() > 0);
        socket
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
            .await
            .unwrap();
        let started = Instant::now();
        let error = loop {
            let _ = socket.write_all(sign.as_bytes()).await;
            clock.settle().await;
            tokio::select! {
                biased;
                error = &mut reading => break error.unwrap(),
                () = clock.advance(Duration::from_mins(1)) => {}
            }
            assert!(started.elapsed() < Duration::from_hours(1), "no timeout");
        };
        let passed = started.elapsed();
        assert_eq!(
            (error.kind, error.action),
            (ModelErrorKind::Timeout, RecoveryAction::Retry),
            "{wire:?}"
        );
        assert!(
            error
                .message
                .contains("only keep-alive data from the server for 600 s"),
            "{error}"
        );
        assert!(
            passed >= Duration::from_mins(9) && passed <= Duration::from_mins(12),
            "{passed:?}"
        );
    }
}

/// A timeout is retried once and not twice, and the stream reports the retry.
#[tokio::test]
async fn silence_is_tried_once_more_and_said() {
    let server = ModelServer::start();
    server.otherwise(Reply::text("x").hang_after(0));
    let clock = ManualClock::pause();
    let mut stream = client().stream(
        endpoint(&server, WireFormat::ChatCompletions),
        request(true),
        quick(),
    );
    let notice = attempt(&server, 0, &clock, &mut stream).await;
    let Ok(ModelEvent::Retry(notice)) = notice else {
        panic!("{notice:?}")
    };
    assert_eq!(
        (notice.attempt, notice.error.kind),
        (2, ModelErrorKind::Timeout)
    );
    let error = attempt(&server, 1, &clock, &mut stream).await;
    let error = error.unwrap_err();
    assert!(
        error.message.ends_with("failed after 2 attempts"),
        "{error}"
    );
    assert_eq!(server.requests().len(), 2);
}

/// The setting also limits the time before the first event. Without streaming, the limit is five times longer.
#[tokio::test]
async fn the_idle_timeout_is_a_setting() {
    let variables = [
        ("HOME", "/nowhere"),
        ("BUB_MODEL_IDLE_TIMEOUT_SECONDS", "7"),
    ];
    let settings = load(variables, bub_model::settings::sections());
    let options = CallOptions {
        attempts: 1,
        ..CallOptions::from_settings(&settings)
    };
    assert_eq!(options.idle_timeout, Duration::from_secs(7));
    for (stream, least) in [(true, 7), (false, 35)] {
        let server = ModelServer::start();
        server.script(Reply::text("x").hang_after(0));
        let clock = ManualClock::pause();
        let endpoint = endpoint(&server, WireFormat::ChatCompletions);
        let stream = client().stream(endpoint, request(stream), options.clone());
        let (error, passed) = silence(&server, &clock, stream, Duration::from_secs(1)).await;
        assert_eq!(error.kind, ModelErrorKind::Timeout);
        assert!(passed >= Duration::from_secs(least - 1), "{passed:?}");
        assert!(passed <= Duration::from_secs(2 * least + 2), "{passed:?}");
    }
}

/// W-43: the time of a slow consumer does not count towards timeouts.
#[tokio::test]
async fn a_slow_reader_is_not_interrupted() {
    let server = ModelServer::start();
    server.script(Reply::deltas(["a", "b", "c"]));
    let clock = ManualClock::pause();
    let mut stream = client().stream(
        endpoint(&server, WireFormat::ChatCompletions),
        request(true),
        once(),
    );
    let mut seen = 0;
    while let Some(event) = stream.next().await {
        event.unwrap();
        seen += 1;
        clock.advance(Duration::from_hours(1)).await;
    }
    assert!(seen >= 4);
}

/// W-32, W-43: the overall timeout has a message and closes the socket.
#[tokio::test]
async fn the_overall_timeout_ends_a_call_that_drips() {
    let server = ModelServer::start();
    let pace = Pace::stopped();
    server.script(Reply::deltas(["a"; 50]).paced(&pace));
    let clock = ManualClock::pause();
    let options = CallOptions {
        timeout: Some(Duration::from_secs(30)),
        ..once()
    };
    let mut stream = client().stream(
        endpoint(&server, WireFormat::ChatCompletions),
        request(true),
        options,
    );
    pace.allow(2);
    until_text(&mut stream).await;
    let error = loop {
        let (item, _) = tick(&clock, &mut stream).await;
        match item {
            Ok(_) => {
                // Every event takes time, so that the timeout comes before the last one.
                clock.advance(Duration::from_secs(1)).await;
                pace.allow(1);
            }
            Err(error) => break error,
        }
    };
    assert_eq!(
        (error.kind, error.action),
        (ModelErrorKind::Timeout, RecoveryAction::NextModel)
    );
    assert!(error.message.contains("longer than 30 s"), "{error}");
    server.wait_closed(0).await;
}

#[tokio::test]
async fn dropping_the_stream_closes_the_socket_at_once() {
    for wire in WireFormat::ALL {
        let server = ModelServer::start();
        let pace = Pace::stopped();
        server.script(Reply::deltas(["a", "b", "c"]).paced(&pace));
        pace.allow(4);
        let mut stream = client().stream(endpoint(&server, wire), request(true), once());
        until_text(&mut stream).await;
        drop(stream);
        timeout(TEST_TIMEOUT, server.wait_closed(0))
            .await
            .expect("the server still waits");
    }
}

#[tokio::test]
async fn a_token_cancels_before_the_answer_and_in_the_middle_of_it() {
    for events in [0, 4] {
        let server = ModelServer::start();
        let pace = Pace::stopped();
        server.script(Reply::deltas(["a", "b", "c"]).paced(&pace));
        pace.allow(events);
        let cancel = CancellationToken::new();
        let options = CallOptions {
            cancel: cancel.clone(),
            ..quick()
        };
        let mut stream = client().stream(
            endpoint(&server, WireFormat::ChatCompletions),
            request(true),
            options,
        );
        let reading = tokio::spawn(async move {
            loop {
                match stream.next().await {
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return (error, stream),
                    None => panic!("the answer ended"),
                }
            }
        });
        server.wait_request(0).await;
        cancel.cancel();
        let (error, _still_held) = timeout(TEST_TIMEOUT, reading).await.unwrap().unwrap();
        assert_eq!(
            (error.kind, error.action),
            (ModelErrorKind::Cancelled, RecoveryAction::GiveUp)
        );
        // The stream still exists, so the token closed the socket.
        timeout(TEST_TIMEOUT, server.wait_closed(0))
            .await
            .expect("the server still waits");
        assert_eq!(
            server.requests().len(),
            1,
            "a cancelled call is not retried"
        );
    }
}

#[tokio::test]
async fn a_token_that_is_cancelled_already_sends_nothing() {
    let server = ModelServer::start();
    let cancel = CancellationToken::new();
    cancel.cancel();
    let options = CallOptions { cancel, ..quick() };
    let mut stream = client().stream(
        endpoint(&server, WireFormat::ChatCompletions),
        request(true),
        options,
    );
    assert_eq!(
        stream.next().await.unwrap().unwrap_err().kind,
        ModelErrorKind::Cancelled
    );
    assert!(stream.next().await.is_none());
    assert_eq!(server.connections(), 0);
}

/// The client does not wait for a server that keeps the connection open after the finish reason.
#[tokio::test]
async fn after_the_finish_reason_the_end_mark_is_not_needed() {
    let server = ModelServer::start();
    let pace = Pace::stopped();
    server.script(Reply::text("all").paced(&pace));
    pace.allow(3);
    let clock = ManualClock::pause();
    let mut stream = client().stream(
        endpoint(&server, WireFormat::ChatCompletions),
        request(true),
        once(),
    );
    until_text(&mut stream).await;
    server.wait_sent(0, 3).await;
    clock.settle().await;
    let (item, passed) = tick(&clock, &mut stream).await;
    assert!(
        matches!(item, Ok(ModelEvent::Finish(_) | ModelEvent::Usage(_))),
        "{item:?}"
    );
    assert!(passed <= Duration::from_secs(10), "{passed:?}");
}

/// A format without an end marker may repeat the finish reason in every event, so a pause is not the end.
#[tokio::test]
async fn a_reason_in_every_event_does_not_end_the_answer_at_the_first_pause() {
    let clock = ManualClock::pause();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = BaseUrl::parse(&format!("http://{}/v1", listener.local_addr().unwrap())).unwrap();
    let endpoint = Endpoint::new("a:b".parse().unwrap(), WireFormat::GenerateContent, base);
    let stream = client().stream(endpoint, request(true), once());
    let reading = tokio::spawn(super::support::drain(stream));
    let (mut socket, _) = listener.accept().await.unwrap();
    let mut request_bytes = [0; 4096];
    assert!(socket.read(&mut request_bytes).await.unwrap() > 0);
    socket
        .write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")
        .await
        .unwrap();
    for text in ["one ", "two"] {
        let event = serde_json::json!({"candidates": [{"content": {"parts": [{"text": text}]}, "finishReason": "STOP"}]});
        socket
            .write_all(format!("data: {event}\n\n").as_bytes())
            .await
            .unwrap();
        clock.settle().await;
        clock.advance(Duration::from_secs(30)).await;
        clock.settle().await;
    }
    drop(socket);
    let (events, error) = timeout(TEST_TIMEOUT, reading).await.unwrap().unwrap();
    assert_eq!(
        (error, super::support::text(&events).as_str()),
        (None, "one two")
    );
}

#[tokio::test]
async fn a_token_ends_the_wait_before_another_try() {
    let server = ModelServer::start();
    server.otherwise(Reply::status(503).header("retry-after", "50"));
    let cancel = CancellationToken::new();
    let options = CallOptions {
        cancel: cancel.clone(),
        ..CallOptions::default()
    };
    let mut stream = client().stream(
        endpoint(&server, WireFormat::ChatCompletions),
        request(true),
        options,
    );
    let notice = timeout(TEST_TIMEOUT, stream.next())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert!(matches!(notice, ModelEvent::Retry(_)), "{notice:?}");
    let waiting = tokio::spawn(async move { stream.next().await.unwrap().unwrap_err() });
    cancel.cancel();
    assert_eq!(
        timeout(TEST_TIMEOUT, waiting).await.unwrap().unwrap().kind,
        ModelErrorKind::Cancelled
    );
}

/// After the end of the answer is emitted, neither a deadline nor a cancellation causes an error.
#[tokio::test]
async fn nothing_goes_wrong_after_the_finish() {
    let clock = ManualClock::pause();
    let cancel = CancellationToken::new();
    let server = ModelServer::start();
    let body = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
    server.script(Reply::raw(body).then_hold());
    let options = CallOptions {
        cancel: cancel.clone(),
        timeout: Some(Duration::from_secs(30)),
        ..once()
    };
    let mut stream = client().stream(
        endpoint(&server, WireFormat::ChatCompletions),
        request(true),
        options,
    );
    while !matches!(stream.next().await.unwrap().unwrap(), ModelEvent::Finish(_)) {}
    clock.advance(Duration::from_mins(5)).await;
    cancel.cancel();
    let mut end = tokio::spawn(async move { stream.next().await.is_none() });
    loop {
        tokio::select! {
            biased;
            ended = &mut end => { assert!(ended.unwrap()); break; }
            () = clock.advance(Duration::from_millis(50)) => {}
        }
    }
}
