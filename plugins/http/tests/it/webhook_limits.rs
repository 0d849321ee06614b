//! Invalid requests, and limits on size, time and number.

use std::time::Duration;

use bub::kernel::{CancellationToken, Channel, ErrorKind};
use bub_http::webhook::{WebhookChannel, WebhookOptions};
use serde_json::json;
use tokio::io::AsyncWriteExt;

use crate::webhook_support::{TOKEN, WebhookFixture};

#[tokio::test]
async fn wrong_requests_are_told_what_is_wrong() {
    let fixture = WebhookFixture::open().await;
    let cases = [
        (
            "{\"content\": \"a\",\n oops}",
            400,
            "malformed_json",
            "line 2 column 2",
        ),
        ("", 400, "malformed_json", "line 1 column 0"),
        ("[]", 400, "invalid_request", "JSON object"),
        ("{}", 400, "invalid_request", "`content`"),
        (r#"{"content": " "}"#, 400, "invalid_request", "`content`"),
        (
            r#"{"content": 5}"#,
            400,
            "invalid_request",
            "invalid `content`: expected a string",
        ),
        (
            r#"{"content": "x", "role": "owner"}"#,
            400,
            "invalid_request",
            "unknown field `role`",
        ),
        (
            r#"{"content": "x", "chat_id": "a\nb"}"#,
            400,
            "invalid_request",
            "one line",
        ),
        (
            r#"{"content": "x", "reply": "fast"}"#,
            400,
            "invalid_request",
            "`sync`, `stream`, `callback` or `none`",
        ),
        (
            r#"{"content": "x", "reply": "callback"}"#,
            400,
            "invalid_request",
            "missing `callback_url`",
        ),
        (
            r#"{"content": "x", "context": []}"#,
            400,
            "invalid_request",
            "invalid `context`: expected an object",
        ),
        (
            r#"{"content": "x", "media": [{"url": "file:///etc/passwd"}]}"#,
            400,
            "invalid_request",
            "data:",
        ),
    ];
    for (body, status, code, text) in cases {
        let answer = fixture.post(body).await;
        assert_eq!(answer.problem(), (status, code.to_owned()), "{body}");
        assert!(answer.body.contains(text), "{body}: {answer:?}");
        assert!(
            answer.head.contains("content-type: application/json"),
            "{answer:?}"
        );
    }
}

#[tokio::test]
async fn paths_methods_and_tokens_are_checked() {
    let fixture = WebhookFixture::open().await;
    let request = |method, path| fixture.request(method, path, "", "");
    assert_eq!(
        request("GET", "/").await.problem(),
        (404, "not_found".to_owned())
    );
    assert_eq!(request("POST", "/v1/messages/").await.problem().0, 404);
    let wrong = request("GET", "/v1/messages").await;
    assert_eq!(wrong.problem(), (405, "method_not_allowed".to_owned()));
    assert!(wrong.head.contains("allow: POST"), "{wrong:?}");
    assert_eq!(request("DELETE", "/v1/messages/m0").await.problem().0, 405);
    let body = r#"{"content": "x"}"#;
    let almost = &TOKEN[1..];
    for authorization in [
        "",
        &format!("Bearer {almost}"),
        &format!("Bearer {TOKEN}x"),
        &format!("Basic {TOKEN}"),
        "Bearer ",
        "é",
    ] {
        let mut client = fixture.connect().await;
        let head = format!(
            "POST /v1/messages HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: {authorization}\r\n"
        );
        client
            .write(&format!(
                "{head}content-length: {}\r\n\r\n{body}",
                body.len()
            ))
            .await;
        let answer = client.finish().await;
        assert_eq!(
            answer.problem(),
            (401, "unauthorized".to_owned()),
            "{authorization}"
        );
        assert!(
            answer.head.contains("www-authenticate: Bearer"),
            "{answer:?}"
        );
    }
    let mut client = fixture.connect().await;
    client
        .write("GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .await;
    let health = client.finish().await;
    assert_eq!(
        (health.status, health.json()),
        (200, json!({"status": "ok"}))
    );
    let head = fixture.request("HEAD", "/healthz", "", "").await;
    assert_eq!(
        (head.status, head.body.as_str()),
        (200, ""),
        "load balancers use HEAD"
    );
    assert_eq!(
        fixture.accepted.load(std::sync::atomic::Ordering::SeqCst),
        0
    );
}

#[tokio::test]
async fn one_connection_serves_many_requests() {
    let fixture = WebhookFixture::open().await;
    let mut client = fixture.connect().await;
    for _ in 0..3 {
        client
            .write(&format!(
                "GET /healthz HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n\r\n"
            ))
            .await;
    }
    client
        .write("GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .await;
    let all = client.finish().await;
    assert_eq!(all.body.matches("200 OK").count(), 3);
}

// Issue 22, point 8: without the token, a client cannot keep a connection that others need.
#[tokio::test]
async fn a_connection_without_the_token_ends_with_its_first_response() {
    let fixture = WebhookFixture::open().await;
    for (path, status) in [
        ("/healthz", 200),
        ("/v1/messages/m0", 401),
        ("/nowhere", 404),
    ] {
        let mut client = fixture.connect().await;
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
        client.write(&request).await;
        // The client does not ask for the end of the connection.
        let answer = client.finish().await;
        assert_eq!(answer.status, status, "{answer:?}");
        assert!(answer.head.contains("connection: close"), "{answer:?}");
    }
}

#[tokio::test]
async fn a_large_body_is_refused_by_its_length_without_being_read() {
    let fixture = WebhookFixture::with(|options| options.body_limit = 100).await;
    let mut client = fixture.connect().await;
    let head =
        format!("POST /v1/messages HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n");
    client
        .write(&format!("{head}content-length: 100000000\r\n\r\n"))
        .await;
    let seen = client.until("\r\n\r\n").await;
    assert!(
        seen.starts_with("HTTP/1.1 413 ") && seen.contains("connection: close"),
        "{seen}"
    );
    client.until("`webhook.body_limit`").await;
    assert_eq!(
        fixture
            .post(json!({"content": "x".repeat(50), "reply": "none"}))
            .await
            .status,
        202
    );
}

#[test]
fn a_hundred_megabytes_without_a_length_cost_no_memory() {
    let name = "webhook_limits::a_hundred_megabytes_without_a_length_cost_no_memory";
    bub_testkit::run_alone(name, || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(send_a_hundred_megabytes());
    });
}

fn resident_bytes() -> u64 {
    bub_testkit::program::process_memory("self").unwrap()
}

async fn send_a_hundred_megabytes() {
    let fixture = WebhookFixture::open().await;
    let before = resident_bytes();
    let mut client = fixture.connect().await;
    let head =
        format!("POST /v1/messages HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n");
    client
        .write(&format!("{head}transfer-encoding: chunked\r\n\r\n"))
        .await;
    let chunk = format!("{:x}\r\n{}\r\n", 1 << 20, "x".repeat(1 << 20));
    let mut max_growth = 0;
    for _ in 0..100 {
        client
            .stream
            .write_all(chunk.as_bytes())
            .await
            .expect("the client can finish sending and read the response");
        max_growth = max_growth.max(resident_bytes().saturating_sub(before));
    }
    let seen = client.until("\r\n\r\n").await;
    assert!(seen.starts_with("HTTP/1.1 413 "), "{seen}");
    assert!(max_growth < 30_000_000, "grew by {max_growth} bytes");
}

#[tokio::test]
async fn slow_clients_are_sent_away() {
    let fixture =
        WebhookFixture::with(|options| options.read_timeout = Duration::from_secs(1)).await;
    let mut silent = fixture.connect().await;
    let mut head = fixture.connect().await;
    head.write("POST /v1/messages HTTP/1.1\r\nhost:").await;
    let mut body = fixture.connect().await;
    let start = format!(
        "POST /v1/messages HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\ncontent-length: 9\r\n\r\n{{"
    );
    body.write(&start).await;
    assert_eq!(body.finish().await.problem(), (408, "too_slow".to_owned()));
    for client in [&mut silent, &mut head] {
        let mut rest = Vec::new();
        // The connection is closed, with or without status 408.
        let _ = tokio::io::AsyncReadExt::read_to_end(&mut client.stream, &mut rest).await;
    }
    let mut long = fixture.connect().await;
    long.write(&format!(
        "GET /healthz HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n",
        "y".repeat(60_000)
    ))
    .await;
    assert!(long.until("\r\n").await.starts_with("HTTP/1.1 431 "));
}

#[tokio::test]
async fn more_connections_than_allowed_are_told_to_come_again() {
    let fixture = WebhookFixture::with(|options| options.connections = 1).await;
    let mut first = fixture.connect().await;
    first
        .write(&format!(
            "GET /healthz HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n\r\n"
        ))
        .await;
    first.until("ok").await;
    let mut second = fixture.begin("GET", "/healthz", "", "").await;
    let answer = second.finish().await;
    assert_eq!(answer.problem(), (503, "too_many_connections".to_owned()));
    assert!(answer.head.contains("retry-after: 1"), "{answer:?}");
    let length = answer.head.split("content-length: ").nth(1).unwrap().trim();
    assert_eq!(length, answer.body.len().to_string());
}

#[tokio::test]
async fn more_waiting_requests_than_allowed_are_told_to_come_again() {
    let fixture = WebhookFixture::with(|options| options.waiting = 1).await;
    let mut first = fixture
        .begin_post(json!({"content": "a", "reply": "stream"}))
        .await;
    let message = fixture.inbound().await;
    first.until("event: accepted").await;
    let second = fixture.post(json!({"content": "b"})).await;
    assert_eq!(second.problem(), (429, "too_many_waiting".to_owned()));
    assert!(second.head.contains("retry-after: 1"), "{second:?}");
    assert_eq!(
        fixture
            .post(json!({"content": "c", "reply": "none"}))
            .await
            .status,
        202,
        "it does not wait"
    );
    fixture.answer(&message, &["done"]).await;
    first.finish().await;
    let mut third = fixture.begin_post(json!({"content": "d"})).await;
    assert_eq!(fixture.inbound().await.message.content(), "c");
    fixture
        .answer(&fixture.inbound().await, &["permitted again"])
        .await;
    assert_eq!(third.finish().await.status, 200);
}

#[tokio::test]
async fn what_is_remembered_is_bounded_and_the_waiting_are_not_forgotten() {
    let fixture =
        WebhookFixture::with(|options| (options.kept, options.kept_bytes) = (3, 1000)).await;
    let mut waiting = fixture.begin_post(json!({"content": "slow"})).await;
    let slow = fixture.inbound().await;
    for _ in 0..10 {
        fixture.post(json!({"content": "x", "reply": "none"})).await;
        fixture.answer(&fixture.inbound().await, &["short"]).await;
    }
    assert_eq!(fixture.get("m1").await.status, 404);
    assert_eq!(fixture.get("m10").await.json()["reply"], "short");
    fixture.post(json!({"content": "x", "reply": "none"})).await;
    fixture
        .answer(&fixture.inbound().await, &["long".repeat(500).as_str()])
        .await;
    assert_eq!(
        fixture.get("m10").await.status,
        404,
        "evicted by the size limit"
    );
    fixture.answer(&slow, &["there"]).await;
    assert_eq!(waiting.finish().await.json()["reply"], "there");
}

#[tokio::test]
async fn a_port_in_use_is_one_clear_line() {
    let fixture = WebhookFixture::open().await;
    let start = async |listen: &str| {
        let mut options = WebhookOptions::default();
        (options.token, options.listen) = (Some(TOKEN.into()), listen.to_owned());
        let handler: bub::kernel::MessageHandler =
            std::sync::Arc::new(|_| Box::pin(std::future::ready(Ok(()))));
        WebhookChannel::new(options, handler)
            .start(CancellationToken::new())
            .await
            .unwrap_err()
    };
    let in_use = start(&fixture.address.to_string()).await;
    assert_eq!(in_use.kind(), ErrorKind::Temporary);
    let (port, text) = (fixture.address.port(), in_use.message());
    assert!(
        text.contains(&format!("another program uses port {port}"))
            && text.contains("`webhook.listen`"),
        "{text}"
    );
    assert!(!text.contains('\n'));
    let wrong = start("nowhere").await;
    assert_eq!(wrong.kind(), ErrorKind::Config);
    assert!(wrong.message().contains("`webhook.listen`"), "{wrong}");
}
