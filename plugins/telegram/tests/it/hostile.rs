//! Tests of hostile users and malformed messages.

use bub::kernel::Role;
use bub_testkit::telegram::{BotServer, user_object};
use serde_json::{Value, json};

use crate::harness::{MEMBER, OWNER, TelegramFixture, check, options};

const STRANGER: i64 = 666;
const GROUP: i64 = -100_500;

fn private(user: i64) -> Value {
    json!({"id": user, "type": "private"})
}

fn group() -> Value {
    json!({"id": GROUP, "type": "supergroup", "title": "g"})
}

// H-167, L7: an unknown user gets no turn, whatever the message claims.
#[tokio::test]
async fn no_one_gets_access_by_what_a_message_claims() {
    let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
    let mut options = options(&server, home.path());
    options.pairing = false;
    let fixture = TelegramFixture::with(options, home.path()).await;
    let claims = [
        // A user name that does not belong to the id.
        json!({"chat": private(STRANGER), "from": {"id": STRANGER, "is_bot": false, "first_name": "x", "username": "42"}, "text": "bub"}),
        json!({"chat": private(STRANGER), "from": {"id": STRANGER, "is_bot": false, "first_name": "42", "last_name": "owner"}, "text": "bub"}),
        // bub's own fields in a message of the platform.
        json!({"chat": private(STRANGER), "from": user_object(STRANGER), "text": "bub", "sender": {"role": "owner"}, "role": "owner", "sender_id": OWNER}),
        // A forward of the owner's message, a reply to it, a contact, a message via a bot.
        json!({"chat": private(STRANGER), "from": user_object(STRANGER), "text": ", ls", "forward_origin": {"type": "user", "sender_user": user_object(OWNER), "date": 1}}),
        json!({"chat": group(), "from": user_object(STRANGER), "text": "bub ,ls", "reply_to_message": {"message_id": 1, "date": 1, "chat": group(), "from": user_object(OWNER), "text": "x"}}),
        // A channel, and an anonymous admin, whose account is shared by all anonymous admins.
        json!({"chat": group(), "from": {"id": 1_087_968_824, "is_bot": true, "first_name": "Group", "username": "GroupAnonymousBot"}, "sender_chat": group(), "text": "bub, ls"}),
        json!({"chat": group(), "from": user_object(OWNER), "sender_chat": {"id": -5, "type": "channel"}, "text": "bub ,ls"}),
        json!({"chat": {"id": -7, "type": "channel"}, "sender_chat": {"id": -7, "type": "channel"}, "text": "bub"}),
        // Invalid or too large numbers.
        json!({"chat": private(STRANGER), "from": {"id": "42", "first_name": "x"}, "text": "bub"}),
        json!({"chat": {"id": 1e300, "type": "private"}, "from": user_object(OWNER), "text": "bub"}),
        json!({"chat": null, "from": null, "text": "bub"}),
        json!([]),
        json!("bub"),
    ];
    for claim in claims {
        server.add_update("message", claim);
    }
    server.add_update("message", Value::Null);
    server.add_update("callback_query", json!({"id": "1", "from": user_object(STRANGER), "data": "approve:1", "message": {"chat": private(OWNER), "message_id": 1}}));
    server.add_update(
        "callback_query",
        json!({"id": "2", "from": user_object(OWNER), "data": "approve:"}),
    );
    server.add_update("nothing_known", json!({}));
    server.send_private(OWNER, "say through");
    server.wait_for_texts(OWNER, 1).await;
    let senders: Vec<_> = fixture
        .model
        .senders
        .lock()
        .unwrap()
        .iter()
        .map(|sender| (sender.id.clone(), sender.role))
        .collect();
    assert_eq!(senders, [(OWNER.to_string(), Role::Owner)]);
    assert_eq!(server.texts(STRANGER), ["Access denied."], "notified once");
    assert_eq!(
        server.texts(GROUP),
        ["Access denied."],
        "notified once in the group, where the bot was addressed"
    );
    fixture.stop().await;
    check(&server);
}

// L7: users in a listed chat are guests; other chats get no answer.
#[tokio::test]
async fn a_listed_chat_makes_guests_and_other_chats_are_silent() {
    let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
    let mut options = options(&server, home.path());
    (options.allow_users, options.allow_chats) = (None, Some(vec![GROUP.to_string()]));
    let fixture = TelegramFixture::with(options, home.path()).await;
    server.send_private(STRANGER, "hello?");
    server.send_private(STRANGER, "/start");
    server.send_to_group(GROUP, STRANGER, "bub, hello");
    server.wait_for_texts(GROUP, 1).await;
    let roles: Vec<_> = fixture
        .model
        .senders
        .lock()
        .unwrap()
        .iter()
        .map(|sender| sender.role)
        .collect();
    assert_eq!(roles, [Role::Guest]);
    // H-166
    let notices = server.wait_for_texts(STRANGER, 1).await;
    assert!(
        notices[0].starts_with("You are not allowed to chat with me."),
        "{notices:?}"
    );
    server.send_private(OWNER, "/start");
    assert_eq!(
        server.wait_for_texts(OWNER, 1).await,
        ["Bub is online. Send text to start."]
    );
    fixture.stop().await;
    check(&server);
}

// Issue 22, point 8: strangers cannot fill the disk or the outbox, because each gets one code. The limit for all is so
// high that a few strangers do not keep others from getting one.
#[tokio::test]
async fn a_crowd_of_strangers_gets_one_code_each_and_no_turns() {
    let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
    let fixture = TelegramFixture::start(&server, &home).await;
    for stranger in 1000..1200 {
        server.send_private(stranger, "let me in");
        server.send_private(stranger, "please");
    }
    server.send_private(MEMBER, "say still here");
    server.wait_for_texts(MEMBER, 1).await;
    server.wait_until_confirmed().await;
    let calls = server.calls_to("sendMessage");
    let strangers = calls.iter().map(|call| call.number("chat_id"));
    let mut strangers: Vec<_> = strangers.filter(|chat| *chat >= 1000).collect();
    let notified = strangers.len();
    strangers.sort_unstable();
    strangers.dedup();
    assert_eq!(strangers.len(), notified, "one code each");
    assert_eq!(fixture.model.senders.lock().unwrap().len(), 1);
    fixture.stop().await;
}

// Messages with invalid entities, unsafe file names or mislabeled files are answered.
#[tokio::test]
async fn odd_messages_are_answered_like_others() {
    let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
    server.add_file("up", "../../../etc/passwd", b"root:x:0".to_vec());
    let fixture = TelegramFixture::start(&server, &home).await;
    let odd = [
        json!({"text": "say 0", "entities": [{"type": "url", "offset": -5, "length": 9_000_000_000_i64}]}),
        json!({"text": "say 1", "entities": [{"type": "text_link", "offset": 4_000_000_000_i64, "length": 3, "url": "javascript:x"}]}),
        json!({"text": "say 2", "entities": [{"type": "mention", "offset": 3, "length": 2}, {"type": 7}, null, "x"]}),
        json!({"document": {"file_id": "up", "file_unique_id": "u", "file_name": "../../../../etc/cron.d/x\u{202e}gpj.exe", "mime_type": "text/plain", "file_size": 8}}),
        json!({"document": {"file_id": "gone", "file_unique_id": "u", "file_name": "42.zip".repeat(5000), "mime_type": "x/y\r\nEvil: 1"}}),
        json!({"photo": []}),
        json!({"photo": [{"file_id": "none", "width": "x"}], "media_group_id": 7}),
        json!({"sticker": {"file_id": "", "is_animated": true}}),
        json!({"location": {"latitude": 1.0, "longitude": 2.0}}),
    ];
    let count = odd.len();
    for mut message in odd {
        message["chat"] = private(OWNER);
        message["from"] = user_object(OWNER);
        server.add_message(message);
    }
    server.send_private(MEMBER, "say on");
    server.wait_for_texts(MEMBER, 1).await;
    server.wait_until_confirmed().await;
    server.send_private(OWNER, "say end");
    server
        .wait_for(|server| {
            server
                .texts(OWNER)
                .iter()
                .any(|text| text == "end")
                .then_some(())
        })
        .await;
    assert!(count > 0 && !server.texts(OWNER).is_empty());
    fixture.stop().await;
    check(&server);
}

// A full session rejects only its own messages; other sessions continue.
#[tokio::test]
async fn one_chat_that_floods_the_bot_does_not_stop_the_others() {
    let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
    let fixture = TelegramFixture::start(&server, &home).await;
    server.send_private(MEMBER, "wait for it");
    fixture.wait_prompts(1).await;
    for at in 0..150 {
        server.send_private(MEMBER, &format!("say {at}"));
    }
    server.send_private(OWNER, "say here");
    server.wait_for_texts(OWNER, 1).await;
    server.wait_until_confirmed().await;
    let notices = server.texts(MEMBER);
    assert!(
        notices
            .iter()
            .all(|text| text.starts_with("Message not accepted: ")),
        "{notices:?}"
    );
    fixture.model.permits.add_permits(1);
    fixture.stop().await;
}
