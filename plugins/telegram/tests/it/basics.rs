//! Tests of the basic flow: messages, answers, topics, typing, albums and edits.

use bub::kernel::Role;
use bub_testkit::telegram::{BotServer, user_object};
use serde_json::json;

use crate::harness::{MEMBER, OWNER, TelegramFixture, check, options, written};

const GROUP: i64 = -1_001_234;

// L1, H-165
#[tokio::test]
async fn a_message_is_answered_and_confirmed_once_it_is_in_the_journal() {
    let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
    server.send_private(OWNER, "sent before the bot ran");
    let fixture = TelegramFixture::start(&server, &home).await;
    assert_eq!(
        server.wait_for_texts(OWNER, 1).await,
        ["echo: sent before the bot ran"]
    );
    server.send_private(MEMBER, "hello <you> & me");
    assert_eq!(
        server.wait_for_texts(MEMBER, 1).await,
        ["echo: hello <you> & me"]
    );
    server.wait_until_confirmed().await;
    let roles: Vec<_> = fixture
        .model
        .senders
        .lock()
        .unwrap()
        .iter()
        .map(|sender| (sender.id.clone(), sender.role))
        .collect();
    assert_eq!(
        roles,
        [
            (OWNER.to_string(), Role::Owner),
            (MEMBER.to_string(), Role::Member)
        ]
    );
    fixture.stop().await;
    check(&server);
}

#[tokio::test]
async fn what_was_sent_while_the_bot_was_down_is_dropped_only_when_a_setting_says_so() {
    let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
    server.send_private(OWNER, "old");
    let mut options = options(&server, home.path());
    options.drop_pending = true;
    let fixture = TelegramFixture::with(options, home.path()).await;
    server.wait_for_calls("getUpdates", 1).await;
    server.send_private(OWNER, "new");
    assert_eq!(server.wait_for_texts(OWNER, 1).await, ["echo: new"]);
    fixture.stop().await;
    check(&server);
}

// An update that was handled but not confirmed arrives again and is recognized.
#[tokio::test]
async fn an_update_that_comes_again_is_not_answered_again() {
    let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
    // The confirmation of the first update is lost, so the server sends it again.
    let fixture = TelegramFixture::start(&server, &home).await;
    server.wait_for_calls("getUpdates", 1).await;
    let update = json!({"message_id": 5, "date": 1, "chat": {"id": OWNER, "type": "private"}, "from": user_object(OWNER), "text": "once"});
    let id = server.add_update("message", update.clone());
    server.wait_for_texts(OWNER, 1).await;
    fixture.stop().await;
    server.repeat_update(id, "message", &update);
    let fixture = TelegramFixture::start(&server, &home).await;
    server.send_private(OWNER, "then");
    server.wait_for_texts(OWNER, 2).await;
    server.wait_until_confirmed().await;
    assert_eq!(server.texts(OWNER), ["echo: once", "echo: then"]);
    fixture.stop().await;
}

// Each topic has its own session, and answers stay in it. In groups, answers quote the message.
#[tokio::test]
async fn answers_go_to_their_topic_and_point_at_the_message_in_groups() {
    let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
    let fixture = TelegramFixture::start(&server, &home).await;
    let chat = json!({"id": GROUP, "type": "supergroup", "title": "g", "is_forum": true});
    let in_topic = server.add_message(json!({
        "chat": chat, "from": user_object(OWNER), "text": "bub in a topic", "message_thread_id": 77, "is_topic_message": true,
    }));
    let outside = server.add_message(json!({
        "chat": chat, "from": user_object(OWNER), "text": "bub outside", "message_thread_id": 12,
    }));
    server.send_private(OWNER, "alone");
    server.wait_for_texts(GROUP, 2).await;
    server.wait_for_texts(OWNER, 1).await;
    let calls = server.calls_to("sendMessage");
    let find = |part: &str| {
        calls
            .iter()
            .find(|call| call.text("text").contains(part))
            .unwrap()
    };
    let topic = find("topic");
    assert_eq!(topic.number("message_thread_id"), 77);
    assert_eq!(topic.params["reply_parameters"]["message_id"], in_topic);
    let plain = find("outside");
    assert!(plain.params["message_thread_id"].is_null(), "{plain:?}");
    assert_eq!(plain.params["reply_parameters"]["message_id"], outside);
    assert!(find("alone").params["reply_parameters"].is_null());
    let prompts = fixture.wait_prompts(3).await;
    assert!(
        prompts
            .iter()
            .any(|content| written(content).contains("outside")),
        "{prompts:?}"
    );
    fixture.stop().await;
    check(&server);
}

// H-172, W-62, W-42: one indicator per chat, while any of its turns runs, even if turns fail.
#[tokio::test]
async fn the_bot_types_while_turns_run_and_stops_with_the_last() {
    let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
    let fixture = TelegramFixture::start(&server, &home).await;
    server.send_private(OWNER, "wait a little");
    fixture.wait_prompts(1).await;
    let typing = server.wait_for_calls("sendChatAction", 1).await;
    assert_eq!(
        (typing[0].text("action"), typing[0].number("chat_id")),
        ("typing", OWNER)
    );
    fixture.model.permits.add_permits(1);
    server.wait_for_texts(OWNER, 1).await;
    server.send_private(OWNER, "fail now");
    fixture.wait_prompts(2).await;
    // The end of the turn is not observable from outside; wait for it.
    let is_idle = async {
        while fixture.is_typing() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), is_idle)
        .await
        .expect("no turn runs any more");
    fixture.stop().await;
    check(&server);
}

// The images of an album arrive one by one and become one message. An edit is a correction, never a command.
#[tokio::test]
async fn albums_are_one_message_and_edits_are_corrections() {
    let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
    let mut options = options(&server, home.path());
    options.album_delay = std::time::Duration::from_millis(1500);
    let fixture = TelegramFixture::with(options, home.path()).await;
    server.wait_for_calls("getUpdates", 1).await;
    for (at, caption) in [json!("what is this?"), json!(null), json!(null)]
        .into_iter()
        .enumerate()
    {
        let photo =
            json!([{"file_id": format!("p{at}"), "file_unique_id": "u", "width": 1, "height": 1}]);
        let chat = json!({"id": OWNER, "type": "private"});
        let mut picture = json!({"chat": chat, "from": user_object(OWNER), "media_group_id": "77", "photo": photo});
        if !caption.is_null() {
            picture["caption"] = caption;
        }
        server.add_message(picture);
        tokio::time::sleep(std::time::Duration::from_millis(40)).await;
    }
    server.wait_for_texts(OWNER, 1).await;
    let prompts = fixture.wait_prompts(1).await;
    assert_eq!(prompts.len(), 1, "{prompts:?}");
    for file in ["p0", "p1", "p2", "what is this?"] {
        assert!(prompts[0].contains(file), "{file}: {}", prompts[0]);
    }
    let mut edited = json!({"message_id": 1, "date": 1, "edit_date": 2, "chat": {"id": OWNER, "type": "private"}, "from": user_object(OWNER)});
    edited["text"] = json!(", say nothing");
    server.add_update("edited_message", edited.clone());
    let prompts = fixture.wait_prompts(2).await;
    assert!(
        prompts[1].contains("correction") && prompts[1].starts_with('{'),
        "{}",
        prompts[1]
    );
    // A live location is not a correction.
    edited["text"] = json!(null);
    edited["location"] = json!({"latitude": 1.0, "longitude": 1.0});
    server.add_update("edited_message", edited);
    server.send_private(MEMBER, "say end");
    server.wait_for_texts(MEMBER, 1).await;
    assert_eq!(fixture.wait_prompts(3).await.len(), 3);
    fixture.stop().await;
    check(&server);
}
