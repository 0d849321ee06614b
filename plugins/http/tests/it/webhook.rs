//! Messages over HTTP and their replies.

use std::{sync::atomic::Ordering, time::Duration};

use bub::kernel::{Channel, Error, ErrorKind, Role};
use bub::kernel::{DropReason, MessageOutcome};
use bub_http::webhook::WebhookOptions;
use serde_json::json;

use crate::webhook_support::{TOKEN, WebhookFixture, id, outbound, settle};

#[tokio::test]
async fn a_message_comes_in_with_its_fields_and_the_role_of_the_token() {
    let fixture = WebhookFixture::with(|options| options.role = Role::Guest).await;
    let media =
        json!([{"type": "image", "mime_type": "image/png", "url": "data:image/png;base64,AA=="}]);
    let context =
        json!({"order": 7, "_runtime_thread_id": "x", "channel": "cli", "sender_id": "mallory"});
    let body = json!({"content": "hello", "chat_id": "room", "sender_id": "ann", "sender_name": "Ann", "context": context,
        "media": media, "reply": "none"});
    let answer = fixture.post(&body).await;
    assert_eq!(
        (answer.status, answer.json()),
        (202, json!({"id": "m0", "status": "accepted"}))
    );
    let message = fixture.inbound().await;
    assert_eq!(message.message.content(), "hello");
    assert_eq!(message.message.session_id().unwrap(), "webhook:room");
    assert_eq!(message.message.channel().unwrap(), "webhook");
    assert_eq!(
        message.message.context_str(),
        "order=7|channel=$webhook|sender_id=ann|sender_name=Ann|chat_id=room"
    );
    assert_eq!(message.message.media().len(), 1);
    let sender = message.sender();
    assert_eq!(
        (sender.role, sender.id.as_str(), sender.name.as_str()),
        (Role::Guest, "ann", "Ann")
    );
    assert_eq!(
        (sender.channel.as_str(), sender.chat_id.as_str()),
        ("webhook", "room")
    );
}

#[tokio::test]
async fn only_the_owner_speaks_in_sessions_of_other_channels() {
    let body = json!({"content": "x", "session_id": "cli:local", "reply": "none"});
    let member = WebhookFixture::open().await;
    assert_eq!(
        member.post(&body).await.problem(),
        (403, "session_forbidden".to_owned())
    );
    assert_eq!(
        member
            .post(json!({"content": "x", "session_id": "webhook:own", "reply": "none"}))
            .await
            .status,
        202
    );
    assert_eq!(
        member.inbound().await.message.session_id().unwrap(),
        "webhook:own"
    );
    let owner = WebhookFixture::with(|options| options.role = Role::Owner).await;
    assert_eq!(owner.post(&body).await.status, 202);
    assert_eq!(
        owner.inbound().await.message.session_id().unwrap(),
        "cli:local"
    );
}

#[tokio::test]
async fn sync_answers_with_all_replies_of_the_turn() {
    let fixture = WebhookFixture::open().await;
    let mut client = fixture.begin_post(json!({"content": "hello"})).await;
    let message = fixture.inbound().await;
    // One reply comes while the turn runs, one after its end.
    fixture.send(&message, "wait").await.unwrap();
    settle(
        &message,
        MessageOutcome::Done {
            replies: 2,
            report: None,
        },
    );
    fixture.send(&message, "done").await.unwrap();
    let answer = client.finish().await;
    let body = answer.json();
    assert_eq!(
        (answer.status, &body["reply"], &body["id"]),
        (200, &json!("wait\ndone"), &json!("m0"))
    );
    assert_eq!(
        body["outbounds"][1],
        json!({"content": "done", "kind": "normal", "chat_id": "default"})
    );
    // A second delivery of the same reply does not add a reply.
    fixture
        .webhook
        .send(&outbound(&message, "r1", "done", "normal"))
        .await
        .unwrap();
    assert_eq!(fixture.get("m0").await.json(), body);
}

#[tokio::test]
async fn every_end_of_a_message_ends_the_waiting() {
    let fixture = WebhookFixture::open().await;
    let mut silent = fixture
        .begin_post(json!({"content": "nothing to say"}))
        .await;
    settle(
        &fixture.inbound().await,
        MessageOutcome::Done {
            replies: 0,
            report: None,
        },
    );
    assert_eq!(silent.finish().await.json()["reply"], "");

    let mut dropped = fixture.begin_post(json!({"content": "too much"})).await;
    settle(
        &fixture.inbound().await,
        MessageOutcome::Dropped {
            reason: DropReason::NotAdmitted(Some("not wanted".to_owned())),
        },
    );
    let expected = json!({"id": "m1", "status": "dropped", "reason": "not wanted"});
    assert_eq!(dropped.finish().await.json(), expected);

    let mut first = fixture.begin_post(json!({"content": "first"})).await;
    let running = fixture.inbound().await;
    let mut second = fixture.begin_post(json!({"content": "and this"})).await;
    settle(
        &fixture.inbound().await,
        MessageOutcome::Joined {
            message_id: id(&running),
        },
    );
    fixture.answer(&running, &["both"]).await;
    assert_eq!(first.finish().await.json()["reply"], "both");
    let second = second.finish().await.json();
    assert_eq!(
        (&second["reply"], &second["id"]),
        (&json!("both"), &json!("m3"))
    );

    let mut failed = fixture.begin_post(json!({"content": "boom"})).await;
    let message = fixture.inbound().await;
    settle(
        &message,
        MessageOutcome::Done {
            replies: 1,
            report: None,
        },
    );
    fixture
        .send_kind(&message, "An error occurred", "error")
        .await
        .unwrap();
    assert_eq!(
        failed.finish().await.problem(),
        (500, "turn_failed".to_owned())
    );
}

#[tokio::test]
async fn a_reply_that_takes_too_long_is_asked_for_later() {
    let fixture =
        WebhookFixture::with(|options| options.reply_timeout = Duration::from_millis(10)).await;
    let answer = fixture.post(json!({"content": "think"})).await;
    assert_eq!(
        (answer.status, answer.json()),
        (202, json!({"id": "m0", "status": "accepted"}))
    );
    let pending = fixture.get("m0").await;
    assert_eq!(
        (pending.status, &pending.json()["status"]),
        (200, &json!("accepted"))
    );
    let message = fixture.inbound().await;
    fixture.answer(&message, &["at last"]).await;
    assert_eq!(fixture.get("m0").await.json()["reply"], "at last");
    assert_eq!(
        fixture.get("m9").await.problem(),
        (404, "unknown_message".to_owned())
    );
}

#[tokio::test]
async fn a_client_that_goes_away_holds_up_nothing_and_finds_its_reply_later() {
    let fixture = WebhookFixture::open().await;
    let client = fixture.begin_post(json!({"content": "hello"})).await;
    let message = fixture.inbound().await;
    drop(client);
    fixture.answer(&message, &["still here"]).await;
    assert_eq!(fixture.get("m0").await.json()["reply"], "still here");
}

// S-54
#[tokio::test]
async fn a_stream_brings_the_text_as_it_comes_and_then_the_whole() {
    let fixture = WebhookFixture::open().await;
    let mut client = fixture
        .begin_post(json!({"content": "hello", "reply": "stream"}))
        .await;
    let message = fixture.inbound().await;
    assert_eq!(message.message.field("stream_output"), Some(&json!(true)));
    client
        .until("event: accepted\ndata: {\"id\":\"m0\",\"status\":\"accepted\"}\n\n")
        .await;
    fixture.delta(&message, "Hel\nlo ").await;
    client
        .until("event: text\ndata: {\"delta\":\"Hel\\nlo \"}\n\n")
        .await;
    fixture.answer(&message, &["Hel\nlo you"]).await;
    let answer = client.finish().await;
    assert!(answer.head.contains("text/event-stream"), "{answer:?}");
    let end = answer.body.split_once("event: final\ndata: ").unwrap().1;
    assert!(end.contains("\"reply\":\"Hel\\nlo you\""), "{answer:?}");
}

#[tokio::test]
async fn a_stream_shows_signs_of_life_and_ends_with_what_went_wrong() {
    let fixture =
        WebhookFixture::with(|options| options.keep_alive = Duration::from_millis(5)).await;
    let mut client = fixture
        .begin_post(json!({"content": "hello", "reply": "stream"}))
        .await;
    let message = fixture.inbound().await;
    client.until(": keep-alive\n\n").await;
    settle(
        &message,
        MessageOutcome::Done {
            replies: 1,
            report: None,
        },
    );
    fixture
        .send_kind(&message, "no model", "error")
        .await
        .unwrap();
    let answer = client.finish().await;
    assert!(answer.body.contains("event: error\ndata: "), "{answer:?}");
    assert!(
        answer
            .body
            .contains(r#""error":{"code":"turn_failed","message":"no model"}"#),
        "{answer:?}"
    );
}

#[tokio::test]
async fn a_slow_reader_delays_no_turn_and_gets_the_whole_at_the_end() {
    let fixture = WebhookFixture::open().await;
    let mut client = fixture
        .begin_post(json!({"content": "hello", "reply": "stream"}))
        .await;
    let message = fixture.inbound().await;
    client.until("event: accepted").await;
    let delta = "x".repeat(10_000);
    for _ in 0..2_000 {
        fixture.delta(&message, &delta).await;
    }
    settle(
        &message,
        MessageOutcome::Done {
            replies: 1,
            report: None,
        },
    );
    let (sent, answer) = tokio::join!(fixture.send(&message, "all of it"), client.finish());
    sent.unwrap();
    assert!(answer.body.contains(" deltas skipped\n\n"));
    assert!(answer.body.contains("\"reply\":\"all of it\""));
}

#[tokio::test]
async fn the_same_idempotency_key_gets_the_same_answer_and_leads_to_one_message() {
    let fixture = WebhookFixture::open().await;
    let body = json!({"content": "pay", "idempotency_key": "k1"}).to_string();
    let mut first = fixture.begin_post(&body).await;
    let message = fixture.inbound().await;
    let plain = json!({"content": "pay"}).to_string();
    let mut second = fixture
        .begin("POST", "/v1/messages", "Idempotency-Key: k1\r\n", &plain)
        .await;
    let stream = json!({"content": "pay", "idempotency_key": "k1", "reply": "stream"});
    let mut third = fixture.begin_post(stream).await;
    third.until("event: accepted").await;
    fixture.answer(&message, &["paid"]).await;
    let expected = first.finish().await.json();
    assert_eq!(expected["reply"], "paid");
    assert_eq!(second.finish().await.json(), expected);
    assert!(third.finish().await.body.contains("event: final"));
    assert_eq!(
        fixture.post(&body).await.json(),
        expected,
        "also afterwards"
    );
    let other = fixture
        .post(json!({"content": "pay twice", "idempotency_key": "k1"}))
        .await;
    assert_eq!(other.problem(), (422, "idempotency_key_reused".to_owned()));
    assert_eq!(fixture.accepted.load(Ordering::SeqCst), 1);
}

// After a restart, the outbox may be faster than the client that retries.
#[tokio::test]
async fn a_reply_that_is_there_before_its_request_is_found_by_it() {
    let fixture = WebhookFixture::open().await;
    let body = json!({"content": "pay", "idempotency_key": "k1", "reply": "none"});
    fixture.post(&body).await;
    let message = fixture.inbound().await;
    let next = WebhookFixture::open().await;
    next.keys
        .lock()
        .unwrap()
        .insert("k1".to_owned(), id(&message));
    next.webhook
        .send(&outbound(&message, "r0", "paid", "normal"))
        .await
        .unwrap();
    let again = next
        .post(json!({"content": "pay", "idempotency_key": "k1"}))
        .await;
    assert_eq!(
        (again.status, &again.json()["reply"]),
        (200, &json!("paid"))
    );
}

#[tokio::test]
async fn a_message_that_is_not_on_disk_is_not_accepted() {
    let cases = [
        (
            Error::new(ErrorKind::Temporary, "full").with_retry_after(Duration::from_secs(7)),
            503,
            "busy",
            "retry-after: 7",
        ),
        (Error::invalid_input("no"), 400, "refused", ""),
        (Error::unknown("disk gone"), 500, "not_accepted", ""),
    ];
    let fixture = WebhookFixture::open().await;
    for (error, status, code, header) in cases {
        *fixture.rejection.lock().unwrap() = Some(error);
        let answer = fixture.post(json!({"content": "x"})).await;
        assert_eq!(answer.problem(), (status, code.to_owned()));
        assert!(answer.head.contains(header), "{answer:?}");
    }
    assert_eq!(fixture.accepted.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn stopping_lets_nobody_wait_and_frees_the_port() {
    let fixture = WebhookFixture::open().await;
    let mut sync = fixture.begin_post(json!({"content": "a"})).await;
    fixture.inbound().await;
    let mut stream = fixture
        .begin_post(json!({"content": "b", "reply": "stream"}))
        .await;
    fixture.inbound().await;
    stream.until("event: accepted").await;
    fixture.stop.cancel();
    fixture.webhook.stop().await.unwrap();
    assert_eq!(sync.finish().await.status, 202);
    assert!(
        stream
            .finish()
            .await
            .body
            .contains("event: final\ndata: {\"id\":\"m1\",\"status\":\"accepted\"}")
    );
    drop(
        tokio::net::TcpListener::bind(fixture.address)
            .await
            .expect("the port is free"),
    );
}

#[test]
fn without_a_token_the_channel_is_off_and_the_token_is_never_shown() {
    use bub_http::webhook::WebhookChannel;
    let handler: bub::kernel::MessageHandler =
        std::sync::Arc::new(|_| Box::pin(std::future::ready(Ok(()))));
    let mut options = WebhookOptions::default();
    assert!(!WebhookChannel::new(options.clone(), handler.clone()).is_enabled());
    options.token = Some(TOKEN.into());
    assert!(!format!("{options:?}").contains(TOKEN));
    assert!(WebhookChannel::new(options, handler).is_enabled());
}
