//! Replies are delivered, or listed as undelivered.

use std::time::Duration;

use bub_gateway::status;
use bub_kernel::{Error, ErrorKind};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::harness::{FakeChannel, GatewayFixture};

fn temporary(text: &str) -> Error {
    Error::new(ErrorKind::Temporary, text)
}

/// Waits until the list of undelivered replies meets a condition and returns it.
async fn listed(directory: &std::path::Path, is_met: impl Fn(&Value) -> bool) -> Value {
    let mut list = Value::Null;
    for _ in 0..5_000 {
        list = status::send_request(directory, &json!({"do": "outbox"}))
            .await
            .unwrap()
            .unwrap();
        if is_met(&list) {
            return list;
        }
        tokio::task::yield_now().await;
    }
    panic!("{list}");
}

// Design §7: a failed attempt is retried with backoff, not earlier than the platform asks for. The order is kept.
#[tokio::test(start_paused = true)]
async fn delivery_is_tried_again_and_keeps_its_order() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = GatewayFixture::open(dir.path(), vec![FakeChannel::new("lab")]).await;
    let channel = fixture.channel(0);
    let limited = temporary("slow down").with_retry_after(Duration::from_secs(100));
    *channel.failures.lock().unwrap() = vec![limited, temporary("gone"), temporary("gone")];
    let started = Instant::now();
    channel.say("a", "1").await.unwrap();
    channel.say("a", "2").await.unwrap();
    let sent = channel.wait_sent(2).await;
    assert_eq!(sent[0].content, "echo: 1");
    assert_eq!(sent[1].content, "echo: 2");
    let took = started.elapsed().as_secs();
    assert!((103..=110).contains(&took), "{took}");
    fixture.stop().await;
}

// A reply with a route, such as a callback URL, delays only replies with the same route.
#[tokio::test(start_paused = true)]
async fn a_callback_that_fails_holds_up_nobody_who_waits_in_the_chat() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = GatewayFixture::open(dir.path(), vec![FakeChannel::new("lab")]).await;
    let channel = fixture.channel(0);
    let later = temporary("down").with_retry_after(Duration::from_secs(1000));
    *channel.failures.lock().unwrap() = vec![later];
    let message = bub_kernel::ChannelMessage::new("lab:a", "lab", "1").chat_id("a");
    let message = bub_kernel::Envelope::from(message).with("reply_route", "http://127.0.0.1:1/");
    channel
        .hand_in(message, bub_kernel::Role::Owner, "ada", None)
        .await
        .unwrap()
        .outcome()
        .await;
    let started = Instant::now();
    channel.say("a", "2").await.unwrap();
    assert_eq!(channel.wait_sent(1).await[0].content, "echo: 2");
    assert!(started.elapsed() < Duration::from_secs(100));
    assert_eq!(channel.wait_sent(2).await[1].content, "echo: 1");
    fixture.stop().await;
}

// An undelivered reply is listed, and a user can retry or drop it.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_delivered_waits_for_a_person() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = GatewayFixture::open(dir.path(), vec![FakeChannel::new("lab")]).await;
    let channel = fixture.channel(0);
    *channel.failures.lock().unwrap() = vec![
        Error::invalid_input("no such chat"),
        Error::invalid_input("no such chat"),
    ];
    channel.say("a", "1").await.unwrap().outcome().await;
    channel.say("b", "2").await.unwrap().outcome().await;
    let failed_count = |list: &Value| {
        list["replies"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|reply| reply["state"] == "failed")
            .count()
    };
    let listed = listed(dir.path(), |list| failed_count(list) == 2).await;
    assert_eq!(listed["replies"][0]["error"], "no such chat");
    let id = |at: usize| listed["replies"][at]["id"].clone();
    status::send_request(dir.path(), &json!({"do": "retry", "id": id(0)}))
        .await
        .unwrap();
    assert_eq!(channel.wait_sent(1).await[0].content, "echo: 1");
    fixture.stop().await;
    // If the gateway is not running, the journal is edited directly.
    assert!(
        status::send_request(dir.path(), &json!({"do": "outbox"}))
            .await
            .unwrap()
            .is_none()
    );
    let fs = || std::sync::Arc::new(bub_tape::fs::RealFs) as std::sync::Arc<dyn bub_tape::fs::Fs>;
    let path = dir.path();
    let edit = |request: Value| async move {
        status::edit_offline_outbox(fs(), path, bub_tape::Durability::Os, &request).await
    };
    assert!(edit(json!({"do": "drop", "id": "nothing"})).await.is_err());
    assert_eq!(
        edit(json!({"do": "outbox"})).await.unwrap()["replies"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    // Listing needs no disk space. A full disk is not a configuration error.
    let full = bub_testkit::Faults::new();
    full.fill_disk_from(0);
    let on_full = |request: Value| {
        let fs = full.fs();
        async move { status::edit_offline_outbox(fs, path, bub_tape::Durability::Os, &request).await }
    };
    let seen = on_full(json!({"do": "outbox"})).await.unwrap();
    assert_eq!((seen["replies"][0]["id"].clone(), full.steps()), (id(1), 0));
    let refused = on_full(json!({"do": "drop", "id": id(1)}))
        .await
        .unwrap_err();
    assert!(
        refused.kind() == bub_kernel::ErrorKind::Unknown
            && refused.message().contains("cannot write the journal"),
        "{refused}"
    );
    edit(json!({"do": "drop", "id": id(1)})).await.unwrap();
    assert_eq!(
        edit(json!({"do": "outbox"})).await.unwrap()["replies"]
            .as_array()
            .unwrap()
            .len(),
        0
    );
}

// Dropping a reply does not trigger other replies: they wait as long as their platform asks.
#[tokio::test(start_paused = true)]
async fn dropping_a_reply_hurries_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = GatewayFixture::open(dir.path(), vec![FakeChannel::new("lab")]).await;
    let channel = fixture.channel(0);
    let later = Error::new(bub_kernel::ErrorKind::Temporary, "slow down");
    *channel.failures.lock().unwrap() = vec![
        Error::invalid_input("no such chat"),
        later.with_retry_after(std::time::Duration::from_mins(1)),
    ];
    channel.say("a", "1").await.unwrap().outcome().await;
    channel.say("b", "2").await.unwrap().outcome().await;
    let started = tokio::time::Instant::now();
    let list = listed(dir.path(), |list| {
        let states: Vec<_> = list["replies"]
            .as_array()
            .unwrap()
            .iter()
            .map(|reply| &reply["state"])
            .collect();
        states.contains(&&json!("failed")) && states.contains(&&json!("retrying"))
    })
    .await;
    let replies = list["replies"].as_array().unwrap();
    let failed = replies
        .iter()
        .find(|reply| reply["state"] == "failed")
        .unwrap();
    status::send_request(dir.path(), &json!({"do": "drop", "id": failed["id"]}))
        .await
        .unwrap();
    channel.wait_sent(1).await;
    assert!(
        started.elapsed() >= std::time::Duration::from_secs(59),
        "{:?}",
        started.elapsed()
    );
    fixture.stop().await;
}

// A reply without text is not sent.
#[tokio::test(start_paused = true)]
async fn an_empty_reply_sends_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = GatewayFixture::open(dir.path(), vec![FakeChannel::new("lab")]).await;
    let router = fixture.framework.router().unwrap();
    let message = bub_kernel::Envelope::from_text(" \n").with("channel", "lab");
    assert!(router.dispatch(message.into()).await.unwrap());
    // H-148: unknown channels accept nothing. Missing fields get defaults.
    assert!(
        !router
            .dispatch(
                bub_kernel::Envelope::from_text("x")
                    .with("channel", "null")
                    .into()
            )
            .await
            .unwrap()
    );
    let message = bub_kernel::Envelope::from_text("hi")
        .with("channel", "x")
        .with("output_channel", "lab");
    assert!(router.dispatch(message.into()).await.unwrap());
    let sent = fixture.channel(0).wait_sent(1).await;
    assert_eq!(
        (sent[0].chat.as_str(), sent[0].content.as_str()),
        ("default", "hi")
    );
    fixture.stop().await;
}
