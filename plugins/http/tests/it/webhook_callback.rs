//! Replies that are posted to a callback URL.

use std::time::Duration;

use bub::kernel::ErrorKind;
use ring::hmac;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use crate::webhook_support::{TOKEN, WebhookFixture, outbound};

/// Accepts one request, sends one response, and returns the head and the body of the request.
pub(crate) async fn receive(listener: &TcpListener, answer: &str) -> (String, String) {
    let (mut stream, _) = listener.accept().await.unwrap();
    let (mut received, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let count = stream.read(&mut buffer).await.unwrap();
        received.extend_from_slice(&buffer[..count]);
        let text = String::from_utf8_lossy(&received);
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let length = head
            .split("content-length: ")
            .nth(1)
            .unwrap()
            .lines()
            .next()
            .unwrap();
        if body.len() < length.parse().unwrap() {
            continue;
        }
        let answer = format!("HTTP/1.1 {answer}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        stream.write_all(answer.as_bytes()).await.unwrap();
        return (head.to_owned(), body.to_owned());
    }
}

async fn post_with_callback(fixture: &WebhookFixture, url: &str) -> bub::kernel::Inbound {
    let answer = fixture
        .post(json!({"content": "hello", "reply": "callback", "callback_url": url}))
        .await;
    assert_eq!(answer.status, 202, "{answer:?}");
    fixture.inbound().await
}

#[tokio::test]
async fn a_reply_is_posted_signed_and_named() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook?x=1", listener.local_addr().unwrap());
    let fixture =
        WebhookFixture::with(|options| options.callback_hosts = vec!["127.0.0.1".to_owned()]).await;
    let message = post_with_callback(&fixture, &url).await;
    assert_eq!(message.message.str_field("reply_route"), Some(url.as_str()));
    let (sent, (head, body)) = tokio::join!(
        fixture.send(&message, "hi"),
        receive(&listener, "204 No Content")
    );
    sent.unwrap();
    assert!(head.starts_with("POST /hook?x=1 HTTP/1.1"), "{head}");
    assert!(head.contains("idempotency-key: r0"), "{head}");
    assert!(!head.contains(TOKEN));
    let value: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (&value["id"], &value["delivery"], &value["reply"]),
        (&json!("m0"), &json!("r0"), &json!("hi"))
    );
    let key = hmac::Key::new(hmac::HMAC_SHA256, TOKEN.as_bytes());
    let tag = hmac::sign(&key, body.as_bytes());
    let hex: Vec<String> = tag
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert!(
        head.contains(&format!("x-bub-signature: sha256={}", hex.concat())),
        "{head}"
    );
}

// The process that accepted the message may have ended: the reply contains its own callback URL.
#[tokio::test]
async fn a_reply_finds_its_callback_after_a_restart() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let allow = |options: &mut bub_http::webhook::WebhookOptions| {
        options.callback_hosts = vec!["127.0.0.1".to_owned()];
    };
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let message = post_with_callback(&WebhookFixture::with(allow).await, &url).await;
    let next = WebhookFixture::with(allow).await;
    let reply = outbound(&message, "r7", "late", "normal");
    let (sent, (head, _)) = tokio::join!(
        bub::kernel::Channel::send(&*next.webhook, &reply),
        receive(&listener, "200 OK")
    );
    sent.unwrap();
    assert!(head.contains("idempotency-key: r7"), "{head}");
}

#[tokio::test]
async fn what_the_receiver_answers_decides_whether_it_is_tried_again() {
    let cases = [
        ("503 Busy\r\nretry-after: 9", ErrorKind::Temporary, Some(9)),
        ("429 Slow", ErrorKind::Temporary, None),
        ("404 Gone", ErrorKind::InvalidInput, None),
        // Redirects are not followed.
        (
            "307 Elsewhere\r\nlocation: http://127.0.0.1:1/",
            ErrorKind::InvalidInput,
            None,
        ),
    ];
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let fixture =
        WebhookFixture::with(|options| options.callback_hosts = vec!["127.0.0.1".to_owned()]).await;
    let message = post_with_callback(&fixture, &url).await;
    for (answer, kind, seconds) in cases {
        let (sent, _) = tokio::join!(fixture.send(&message, "hi"), receive(&listener, answer));
        let error = sent.unwrap_err();
        assert_eq!(
            (error.kind(), error.retry_after()),
            (kind, seconds.map(Duration::from_secs)),
            "{answer}"
        );
    }
    drop(listener);
    assert_eq!(
        fixture.send(&message, "hi").await.unwrap_err().kind(),
        ErrorKind::Temporary
    );
}

#[tokio::test]
async fn a_receiver_that_never_answers_is_tried_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let fixture = WebhookFixture::with(|options| {
        options.callback_hosts = vec!["127.0.0.1".to_owned()];
        options.callback_timeout = Duration::from_millis(30);
    });
    let fixture = fixture.await;
    let message = post_with_callback(&fixture, &url).await;
    let error = fixture.send(&message, "hi").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Temporary);
    assert!(error.message().contains("no response in time"), "{error}");
}

#[tokio::test]
async fn private_networks_are_not_called_back_unless_allowed() {
    let fixture = WebhookFixture::open().await;
    let refused = [
        "http://127.0.0.1/",
        "http://2130706433/",
        "http://[::1]:80/",
        "http://[::ffff:10.0.0.1]/",
        "http://169.254.169.254/latest/meta-data",
        "http://localhost:9/",
        "http://a.localhost./",
        "ftp://example.com/",
        "http://user:password@example.com/",
        "no url",
    ];
    for url in refused {
        let body = json!({"content": "x", "reply": "callback", "callback_url": url});
        assert_eq!(
            fixture.post(body).await.problem(),
            (400, "callback_refused".to_owned()),
            "{url}"
        );
    }
    // The setting may have changed since the message was accepted. A host that is no longer allowed is not retried.
    let open =
        WebhookFixture::with(|options| options.callback_hosts = vec!["localhost".to_owned()]).await;
    let message = post_with_callback(&open, "http://localhost:9/").await;
    assert_eq!(
        open.send(&message, "hi").await.unwrap_err().kind(),
        ErrorKind::Temporary,
        "no server listens there"
    );
    let reply = outbound(&message, "r0", "hi", "normal");
    let error = bub::kernel::Channel::send(&*fixture.webhook, &reply)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(
        error.message().contains("`webhook.callback_hosts`"),
        "{error}"
    );
}
