//! Tests of failures: each is reported once, and the bot continues.

use std::time::Duration;

use bub::settings::Secret;
use bub_testkit::{
    Faults,
    telegram::{BotServer, Fault, TOKEN, user_object},
};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::harness::{MEMBER, OWNER, TelegramFixture, check, options};

// H-165: an existing webhook is removed, and pending updates are kept.
#[tokio::test]
async fn a_webhook_that_was_left_behind_is_removed_without_losing_messages() {
    let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
    server.set_webhook("https://example.com/old");
    server.send_private(OWNER, "waiting");
    let fixture = TelegramFixture::start(&server, &home).await;
    server.wait_for_texts(OWNER, 1).await;
    // Also while the bot is running.
    server.set_webhook("https://example.com/new");
    server.add_fault("getUpdates", Fault::Cut);
    server.send_private(OWNER, "more");
    server.wait_for_texts(OWNER, 2).await;
    fixture.stop().await;
    check(&server);
}

#[tokio::test]
async fn a_wrong_token_is_reported_once_and_not_retried_at_once() {
    let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
    let mut options = options(&server, home.path());
    options.token = Some(Secret::from("1:wrong-but-as-long-as-a-real-token"));
    let fixture = TelegramFixture::with(options, home.path()).await;
    let error = fixture.last_error().await.unwrap();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert!(error.contains("rejected the bot token"), "{error}");
    assert!(
        !error.contains("1:wrong-but-as-long-as-a-real-token"),
        "{error}"
    );
    assert_eq!(server.requests(), 1, "it is retried in ten minutes");
    fixture.stop().await;
}

// An invalid token must not become part of a URL.
#[tokio::test]
async fn a_token_of_another_shape_never_leaves() {
    let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
    let mut options = options(&server, home.path());
    options.token = Some(Secret::from("../../admin?x="));
    let fixture = TelegramFixture::with(options, home.path()).await;
    let error = fixture.last_error().await.unwrap();
    assert!(error.contains("invalid bot token"), "{error}");
    assert_eq!(server.requests(), 0);
    fixture.stop().await;
}

#[tokio::test]
async fn no_network_at_the_start_is_retried() {
    let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
    server
        .add_fault("getMe", Fault::Cut)
        .add_fault("deleteWebhook", Fault::Page(502));
    server.send_private(OWNER, "hello");
    let fixture = TelegramFixture::start(&server, &home).await;
    assert_eq!(server.wait_for_texts(OWNER, 1).await, ["echo: hello"]);
    fixture.stop().await;
}

// A failed poll is repeated, and no message is lost or duplicated.
#[tokio::test]
async fn polls_that_fail_hang_or_collide_are_made_again() {
    for fault in [
        Fault::Cut,
        Fault::Page(502),
        Fault::Refuse(500, "Internal Server Error"),
        Fault::Refuse(409, "Conflict: terminated by other getUpdates request"),
        Fault::Flood(1),
        Fault::Hang,
    ] {
        let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
        let mut options = options(&server, home.path());
        options.poll_timeout = Duration::from_secs(1);
        options.poll_grace = Duration::from_millis(300);
        server.add_fault("getUpdates", fault.clone());
        server.send_private(OWNER, "hello");
        let fixture = TelegramFixture::with(options, home.path()).await;
        assert_eq!(
            server.wait_for_texts(OWNER, 1).await,
            ["echo: hello"],
            "after {fault:?}"
        );
        server.wait_until_confirmed().await;
        assert_eq!(server.texts(OWNER).len(), 1);
        fixture.stop().await;
    }
}

#[tokio::test]
async fn a_token_that_is_revoked_ends_nothing_but_the_bot() {
    let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
    let mut options = options(&server, home.path());
    options.poll_timeout = Duration::from_secs(1);
    let fixture = TelegramFixture::with(options, home.path()).await;
    server.wait_for_calls("getUpdates", 1).await;
    server.wait_for_calls("setMyCommands", 1).await;
    let before = server.requests();
    server.revoke_token();
    server.send_private(OWNER, "hello");
    let status = fixture
        .wait_status(|channel| channel["state"] == "degraded")
        .await;
    assert!(
        status["last_error"]
            .as_str()
            .unwrap()
            .contains("rejected the bot token"),
        "{status}"
    );
    tokio::time::sleep(Duration::from_millis(1200)).await;
    let requests = server.requests() - before;
    assert!(requests < 5, "{requests} requests");
    fixture.stop().await;
}

// L1: an update is confirmed only after it is in the journal.
#[tokio::test]
async fn an_update_that_cannot_be_written_down_is_not_confirmed() {
    let (server, home, faults) = (
        BotServer::start(),
        tempfile::tempdir().unwrap(),
        Faults::new(),
    );
    let fixture =
        TelegramFixture::on(faults.fs(), options(&server, home.path()), home.path()).await;
    server.send_private(OWNER, "first");
    server.wait_for_texts(OWNER, 1).await;
    server.wait_until_confirmed().await;
    faults.set_disk_space(Some(0));
    let before = faults.steps();
    server.send_private(OWNER, "second");
    // Wait for two attempts, so that an early confirmation would show.
    while faults.steps() < before + 4 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(server.pending(), 1, "confirmed, but not in the journal");
    faults.set_disk_space(None);
    assert_eq!(
        server.wait_for_texts(OWNER, 2).await,
        ["echo: first", "echo: second"]
    );
    server.wait_until_confirmed().await;
    fixture.stop().await;
    check(&server);
}

/// Polls once, as another program would.
async fn poll_as_another_program(server: &BotServer) {
    let mut stream = tokio::net::TcpStream::connect(server.url().strip_prefix("http://").unwrap())
        .await
        .unwrap();
    let request = format!(
        "POST /bot{TOKEN}/getUpdates HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{{}}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let _ = stream.read(&mut [0; 64]).await.unwrap();
}

// The status shows that another program polls, and when that ends.
#[tokio::test]
async fn another_program_that_polls_is_shown_for_as_long_as_it_does() {
    let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
    let mut options = options(&server, home.path());
    options.poll_timeout = Duration::from_secs(1);
    let fixture = TelegramFixture::with(options, home.path()).await;
    server.wait_for_calls("getUpdates", 1).await;
    poll_as_another_program(&server).await;
    let status = fixture
        .wait_status(|channel| channel["state"] == "degraded")
        .await;
    assert!(
        status["last_error"]
            .as_str()
            .unwrap()
            .contains("another program"),
        "{status}"
    );
    server.send_private(OWNER, "hello");
    assert_eq!(server.wait_for_texts(OWNER, 1).await, ["echo: hello"]);
    let status = fixture
        .wait_status(|channel| channel["state"] == "running")
        .await;
    assert_eq!(status["last_error"], json!(null));
    fixture.stop().await;
}

// W-60: if a file stalls, is too large, or is not available, the turn continues without it and reports the reason.
#[tokio::test]
async fn a_file_that_cannot_be_read_holds_no_turn_up() {
    let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
    let mut options = options(&server, home.path());
    (options.file_idle_timeout, options.file_timeout) =
        (Duration::from_secs(1), Duration::from_secs(20));
    server.add_file("stalls", "a/stalls.txt", b"x".to_vec());
    server.add_file("long", "a/long.txt", vec![b'x'; 3 << 20]);
    server.add_file("up", "../up.txt", b"x".to_vec());
    server.add_file("fine", "a/fine.txt", b"x".to_vec());
    server.set_fault_fn(|method, params| {
        (method == "file" && params["path"] == "a/stalls.txt").then_some(Fault::Hang)
    });
    let fixture = TelegramFixture::with(options, home.path()).await;
    let reasons = [
        ("stalls", Err("no data received in time")),
        ("long", Err("larger than 2 MiB")),
        ("up", Err("no path for the file")),
        ("gone", Err("wrong file_id")),
        ("fine", Ok(1)),
    ];
    for (at, (file, expected)) in reasons.into_iter().enumerate() {
        server.add_message(json!({
            "chat": {"id": OWNER, "type": "private"}, "from": user_object(OWNER),
            "document": {"file_id": file, "file_unique_id": "u", "file_name": "a.txt", "mime_type": "text/plain"},
        }));
        server.wait_for_texts(OWNER, at + 1).await;
        let outcome = fixture.files.borrow()[at].clone();
        match (expected, outcome) {
            (Ok(expected), outcome) => assert_eq!(outcome, Ok(expected)),
            (Err(expected), Err(reason)) => assert!(reason.contains(expected), "{file}: {reason}"),
            (_, other) => panic!("{file}: {other:?}"),
        }
    }
    fixture.stop().await;
}

// Many chats need many connections for a moment; afterwards they are closed.
#[tokio::test]
async fn connections_do_not_stay_open_after_a_crowd() {
    let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
    let mut options = options(&server, home.path());
    options.allow_users = Some((1000..1040).map(|id: i64| id.to_string()).collect());
    server.set_fault_fn(|method, _| {
        (method == "sendChatAction").then_some(Fault::Slow(Duration::from_secs(3)))
    });
    let fixture = TelegramFixture::with(options, home.path()).await;
    for person in 1000..1040 {
        server.send_private(person, "wait here");
    }
    server
        .wait_for(|server| (server.connections() > 30).then_some(()))
        .await;
    fixture.model.permits.add_permits(40);
    server
        .wait_for(|server| (server.connections() < 12).then_some(()))
        .await;
    fixture.stop().await;
}

#[tokio::test]
async fn a_proxy_is_used_for_everything() {
    let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
    let mut options = options(&server, home.path());
    (options.proxy, options.api_base) = (Some(server.url()), "http://api.invalid".to_owned());
    server.send_private(MEMBER, "hello");
    let fixture = TelegramFixture::with(options, home.path()).await;
    assert_eq!(server.wait_for_texts(MEMBER, 1).await, ["echo: hello"]);
    fixture.stop().await;
    check(&server);
}
