//! Tests of replies: parts, markup, retries after failures, and no duplicates where they can be avoided.

use std::time::Duration;

use bub_testkit::telegram::{BotServer, Fault};

use crate::harness::{MEMBER, OWNER, TelegramFixture, check, options};

// W-60
#[tokio::test]
async fn a_long_reply_comes_in_parts_that_fit_and_in_order() {
    let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
    let fixture = TelegramFixture::start(&server, &home).await;
    server.send_private(OWNER, "long 20000");
    let texts = server.wait_for_texts(OWNER, 5).await;
    let joined: String = texts.concat().split_whitespace().collect();
    assert_eq!(joined.len(), 20_000 - 20_000 / 9, "nothing is lost");
    fixture.stop().await;
    check(&server);
}

#[tokio::test]
async fn markup_that_is_refused_is_sent_as_plain_text_part_by_part() {
    let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
    server.add_fault(
        "sendMessage",
        Fault::Refuse(
            400,
            "Bad Request: can't parse entities: Unsupported start tag",
        ),
    );
    let fixture = TelegramFixture::start(&server, &home).await;
    server.send_private(OWNER, "say **bold** & <b>");
    assert_eq!(server.wait_for_texts(OWNER, 1).await, ["bold & <b>"]);
    let calls = server.calls_to("sendMessage");
    assert_eq!(
        (calls[0].text("parse_mode"), calls[1].text("parse_mode")),
        ("HTML", "")
    );
    assert!(calls[0].text("text").contains("<b>bold</b>"), "{calls:?}");
    fixture.stop().await;
    check(&server);
}

// W-60: flood control is respected and the reply is still sent. Other chats do not wait.
#[tokio::test]
async fn a_chat_that_is_flooded_waits_as_long_as_it_is_told_to() {
    let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
    let fixture = TelegramFixture::start(&server, &home).await;
    server.add_fault("sendMessage", Fault::Flood(2));
    server.send_private(OWNER, "one");
    server.wait_for_calls("sendMessage", 1).await;
    server.send_private(MEMBER, "two");
    assert_eq!(server.wait_for_texts(MEMBER, 1).await, ["echo: two"]);
    assert!(server.texts(OWNER).is_empty());
    assert_eq!(server.wait_for_texts(OWNER, 1).await, ["echo: one"]);
    let calls = server.calls_to("sendMessage");
    let own: Vec<_> = calls
        .iter()
        .filter(|call| call.number("chat_id") == OWNER)
        .collect();
    assert!(
        own[1].at - own[0].at >= Duration::from_secs(2),
        "it waited {:?}",
        own[1].at - own[0].at
    );
    fixture.stop().await;
}

// L1: delivered parts of a reply are not sent again, neither by the next attempt nor by the next process.
#[tokio::test]
async fn a_reply_that_was_cut_off_goes_on_with_the_part_that_is_missing() {
    let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
    let fixture = TelegramFixture::start(&server, &home).await;
    let mut calls = 0;
    server.set_fault_fn(move |method, _| {
        calls += i32::from(method == "sendMessage");
        (method == "sendMessage" && calls > 2).then_some(Fault::Page(502))
    });
    server.send_private(OWNER, "long 15000");
    server.wait_for_calls("sendMessage", 3).await;
    fixture.stop().await;
    assert_eq!(server.texts(OWNER).len(), 2);
    server.clear_faults();
    let fixture = TelegramFixture::start(&server, &home).await;
    let texts = server.wait_for_texts(OWNER, 4).await;
    server.send_private(OWNER, "say done");
    server
        .wait_for(|server| {
            server
                .texts(OWNER)
                .contains(&"done".to_owned())
                .then_some(())
        })
        .await;
    assert_eq!(
        server.texts(OWNER).len(),
        5,
        "{:?}",
        texts.iter().map(String::len).collect::<Vec<_>>()
    );
    let joined: String = texts.concat().split_whitespace().collect();
    assert_eq!(joined.len(), 15_000 - 15_000 / 9);
    fixture.stop().await;
}

// If a chat blocked the bot or a topic was deleted, delivery fails immediately and other chats do not wait.
#[tokio::test]
async fn a_reply_that_cannot_be_delivered_fails_and_others_are_answered() {
    let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
    let fixture = TelegramFixture::start(&server, &home).await;
    server.block_bot(MEMBER);
    server.send_private(MEMBER, "hello");
    server.wait_for_calls("sendMessage", 1).await;
    server.send_private(OWNER, "hello");
    server.wait_for_texts(OWNER, 1).await;
    let attempts = server
        .calls_to("sendMessage")
        .iter()
        .filter(|call| call.number("chat_id") == MEMBER)
        .count();
    assert_eq!(attempts, 1, "it is not retried");
    server.delete_topic(-100, 9);
    server.add_message(serde_json::json!({
        "chat": {"id": -100, "type": "supergroup"}, "from": bub_testkit::telegram::user_object(OWNER), "text": "bub, hello",
        "message_thread_id": 9, "is_topic_message": true,
    }));
    server
        .wait_for(|server| {
            server
                .calls_to("sendMessage")
                .iter()
                .any(|call| call.number("chat_id") == -100)
                .then_some(())
        })
        .await;
    server.send_private(OWNER, "say more");
    server.wait_for_texts(OWNER, 2).await;
    assert_eq!(
        server
            .calls_to("sendMessage")
            .iter()
            .filter(|call| call.number("chat_id") == -100)
            .count(),
        1
    );
    fixture.stop().await;
}

// The preview is one message, which becomes the reply.
#[tokio::test]
async fn a_long_answer_is_seen_to_grow_and_ends_as_the_reply() {
    let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
    let mut options = options(&server, home.path());
    options.preview_delay = Duration::ZERO;
    options.edit_interval = Duration::from_millis(10);
    let fixture = TelegramFixture::with(options, home.path()).await;
    server.send_private(OWNER, "grow one two three four");
    fixture.wait_prompts(1).await;
    fixture.model.permits.add_permits(2);
    server
        .wait_for(|server| {
            server
                .texts(OWNER)
                .first()
                .is_some_and(|text| text.starts_with("one"))
                .then_some(())
        })
        .await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    fixture.model.permits.add_permits(10);
    server
        .wait_for(|server| {
            server
                .texts(OWNER)
                .iter()
                .any(|text| text == "one two three four")
                .then_some(())
        })
        .await;
    assert_eq!(
        server.texts(OWNER).len(),
        1,
        "one message for preview and reply"
    );
    assert_eq!(server.calls_to("sendMessage").len(), 1);
    // An edit that changes nothing is not an error.
    server.send_private(OWNER, "grow same");
    fixture.wait_prompts(2).await;
    server
        .wait_for(|server| {
            server
                .texts(OWNER)
                .iter()
                .any(|text| text == "same")
                .then_some(())
        })
        .await;
    fixture.stop().await;
    check(&server);
}

// The preview of an interrupted process does not remain beside the complete reply.
#[tokio::test]
async fn a_preview_of_the_process_before_becomes_the_reply() {
    let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
    let quick = || {
        let mut options = options(&server, home.path());
        (options.preview_delay, options.edit_interval) =
            (Duration::ZERO, Duration::from_millis(10));
        options
    };
    let fixture = TelegramFixture::with(quick(), home.path()).await;
    server.send_private(OWNER, "grow one two three");
    fixture.wait_prompts(1).await;
    fixture.model.permits.add_permits(1);
    server.wait_for_texts(OWNER, 1).await;
    fixture.interrupt().await;
    let fixture = TelegramFixture::with(quick(), home.path()).await;
    fixture.wait_prompts(1).await;
    fixture.model.permits.add_permits(10);
    server
        .wait_for(|server| (server.texts(OWNER) == ["one two three"]).then_some(()))
        .await;
    fixture.stop().await;
    assert_eq!(server.texts(OWNER).len(), 1);
}

// A partial answer must not look complete: the error replaces it, also when the next process reports the error.
#[tokio::test]
async fn an_error_takes_the_place_of_what_was_shown_of_the_answer() {
    for is_killed in [false, true] {
        let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
        let quick = || {
            let mut options = options(&server, home.path());
            (options.preview_delay, options.edit_interval) =
                (Duration::ZERO, Duration::from_millis(10));
            options
        };
        let mut fixture = TelegramFixture::with(quick(), home.path()).await;
        server.send_private(OWNER, "grow half break");
        fixture.wait_prompts(1).await;
        fixture.model.permits.add_permits(1);
        assert_eq!(server.wait_for_texts(OWNER, 1).await, ["half"]);
        if is_killed {
            fixture.interrupt().await;
            fixture = TelegramFixture::with(quick(), home.path()).await;
        }
        fixture.model.permits.add_permits(2);
        let is_reported = |server: &BotServer| {
            server
                .texts(OWNER)
                .iter()
                .any(|text| text.contains("internal error"))
        };
        server
            .wait_for(|server| is_reported(server).then_some(()))
            .await;
        assert_eq!(server.texts(OWNER).len(), 1, "{:?}", server.texts(OWNER));
        assert_eq!(server.calls_to("sendMessage").len(), 1);
        fixture.stop().await;
        check(&server);
    }
}

// A reply is sent twice only if the platform accepted it and the response was lost.
#[tokio::test]
async fn a_reply_whose_answer_is_lost_is_sent_again() {
    let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
    let fixture = TelegramFixture::start(&server, &home).await;
    server.add_fault("sendMessage", Fault::CutAfter);
    server.send_private(OWNER, "hello");
    assert_eq!(
        server.wait_for_texts(OWNER, 2).await,
        ["echo: hello", "echo: hello"]
    );
    fixture.stop().await;
}

// A group with a new id is answered there, without a quote.
#[tokio::test]
async fn a_group_that_moved_is_answered_where_it_is() {
    let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
    let fixture = TelegramFixture::start(&server, &home).await;
    server.add_fault("sendMessage", Fault::Moved(-100_900));
    server.send_to_group(-55, OWNER, "bub, hello");
    assert_eq!(
        server.wait_for_texts(-100_900, 1).await,
        ["echo: bub, hello"]
    );
    let calls = server.calls_to("sendMessage");
    assert!(!calls[0].params["reply_parameters"].is_null(), "{calls:?}");
    assert!(calls[1].params["reply_parameters"].is_null(), "{calls:?}");
    assert!(server.texts(-55).is_empty());
    fixture.stop().await;
    check(&server);
}

// H-174
#[tokio::test]
async fn a_reply_to_a_message_that_is_gone_is_sent_without_pointing_at_it() {
    let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
    let fixture = TelegramFixture::start(&server, &home).await;
    server.add_fault(
        "sendMessage",
        Fault::Refuse(400, "Bad Request: message to be replied not found"),
    );
    server.send_to_group(-100_901, OWNER, "bub, hello");
    assert_eq!(
        server.wait_for_texts(-100_901, 1).await,
        ["echo: bub, hello"]
    );
    assert!(server.calls_to("sendMessage")[1].params["reply_parameters"].is_null());
    fixture.stop().await;
    check(&server);
}

// If an answer is longer than a message before its first preview, the preview shows its beginning.
#[tokio::test]
async fn an_answer_that_grows_fast_is_seen_to_grow() {
    let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
    let mut options = options(&server, home.path());
    (options.preview_delay, options.edit_interval) = (Duration::ZERO, Duration::ZERO);
    let fixture = TelegramFixture::with(options, home.path()).await;
    server.send_private(OWNER, &format!("grow {} end", "x".repeat(5000)));
    fixture.wait_prompts(1).await;
    fixture.model.permits.add_permits(1);
    let shown = server.wait_for_texts(OWNER, 1).await;
    assert!(
        shown[0].starts_with("xxx") && shown[0].len() <= 4096,
        "{}",
        shown[0].len()
    );
    fixture.model.permits.add_permits(10);
    let texts = server.wait_for_texts(OWNER, 2).await;
    assert!(texts[1].ends_with("end"), "{}", texts[1].len());
    assert_eq!(
        server.calls_to("sendMessage").len(),
        2,
        "the preview is the first part of the reply"
    );
    fixture.stop().await;
    check(&server);
}
