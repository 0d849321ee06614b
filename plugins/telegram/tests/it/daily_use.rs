//! Tests of what users meet every day: first contact, bursts of messages, answers that the platform rejects, approval
//! buttons, commands and files.

use std::{sync::Arc, time::Duration};

use bub::{
    gateway::GatewayOptions,
    kernel::{Channel as _, Role, SenderAccess},
    tape::fs::RealFs,
};
use bub_telegram::{Bot, TelegramChannel, html};
use bub_testkit::telegram::{BotServer, Fault, TOKEN, user_object};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::harness::{MEMBER, OWNER, TelegramFixture, check, gateway_options, options};

const STRANGER: i64 = 666;
const LISTED_GROUP: i64 = -100_600;

fn is_send(method: &str) -> bool {
    method == "sendMessage"
}

// L1: the greeting and the code are sent when the platform accepts them, also by the next process.
#[tokio::test]
async fn the_greeting_and_the_pairing_code_are_sent_until_they_arrive() {
    let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
    server.set_fault_fn(|method, _| is_send(method).then_some(Fault::Page(502)));
    let fixture = TelegramFixture::start(&server, &home).await;
    server.send_private(OWNER, "/start");
    server.send_private(STRANGER, "let me in");
    server.wait_for_calls("sendMessage", 2).await;
    server.wait_until_confirmed().await;
    fixture.stop().await;
    server.clear_faults();
    server.add_fault("sendMessage", Fault::Flood(1));
    let fixture = TelegramFixture::start(&server, &home).await;
    assert_eq!(
        server.wait_for_texts(OWNER, 1).await,
        ["Bub is online. Send text to start."]
    );
    let code = server.wait_for_texts(STRANGER, 1).await.remove(0);
    assert!(code.contains("bub pair "), "{code}");
    // A stranger who blocks the bot leaves nothing in the outbox.
    server.block_bot(STRANGER + 1);
    server.send_private(STRANGER + 1, "let me in");
    server.wait_for_calls("sendMessage", 6).await;
    server.send_private(OWNER, "say on");
    server.wait_for_texts(OWNER, 2).await;
    fixture.stop().await;
    check(&server);
}

// L4, W-70: a full session confirms nothing that it does not take, tells the chat once, and delays no other chat.
#[tokio::test]
async fn a_full_session_leaves_messages_unconfirmed_and_says_so_once() {
    let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
    let gateway_options = GatewayOptions {
        session_queue: 2,
        ..gateway_options(home.path(), Arc::new(RealFs))
    };
    let options = options(&server, home.path());
    let fixture = TelegramFixture::with_gateway(gateway_options, options, home.path()).await;
    server.send_private(MEMBER, "wait");
    fixture.wait_prompts(1).await;
    for number in 1..=4 {
        server.send_private(MEMBER, &format!(",{number}"));
    }
    let notice = server.wait_for_texts(MEMBER, 1).await.remove(0);
    assert!(notice.contains("still queued"), "{notice}");
    server.send_private(OWNER, "say here");
    server.wait_for_texts(OWNER, 1).await;
    assert!(server.pending() >= 3, "only {} pending", server.pending());
    fixture.model.permits.add_permits(1);
    let texts = server.wait_for_texts(MEMBER, 6).await;
    let expected = ["echo: wait", "echo: ,1", "echo: ,2", "echo: ,3", "echo: ,4"];
    assert_eq!(texts[1..], expected);
    server.wait_until_confirmed().await;
    fixture.stop().await;
    check(&server);
}

// L4: many messages at once are one batch, which takes the room of one turn.
#[tokio::test]
async fn many_forwards_at_once_are_one_turn() {
    let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
    let gateway_options = GatewayOptions {
        debounce: Duration::from_secs(2),
        max_wait: Duration::from_secs(30),
        ..gateway_options(home.path(), Arc::new(RealFs))
    };
    let options = options(&server, home.path());
    let fixture = TelegramFixture::with_gateway(gateway_options, options, home.path()).await;
    for number in 0..150 {
        server.add_message(json!({
            "chat": {"id": MEMBER, "type": "private"}, "from": user_object(MEMBER), "text": format!("line {number}"),
            "forward_origin": {"type": "hidden_user", "sender_user_name": "x", "date": 1},
        }));
    }
    let prompts = fixture.wait_prompts(1).await;
    assert_eq!(prompts[0].lines().count(), 150);
    server.wait_until_confirmed().await;
    assert_eq!(server.wait_for_texts(MEMBER, 1).await.len(), 1);
    assert_eq!(fixture.wait_prompts(1).await.len(), 1);
    fixture.stop().await;
    check(&server);
}

// L1: an answer that the platform rejects for any reason is sent plainer, then shorter, then as a file. If that fails,
// too, the sender is notified.
#[tokio::test]
async fn a_rejected_answer_is_sent_plainer_shorter_or_as_a_file() {
    const REASON: Fault = Fault::Refuse(400, "Bad Request: SOMETHING_NEW");
    type IsRejected = fn(&str, &Value) -> bool;
    let rows: [(&str, IsRejected); 4] = [
        ("plain", |method, params| {
            is_send(method) && params["parse_mode"] == "HTML"
        }),
        ("pieces", |method, params| {
            is_send(method) && params["text"].as_str().unwrap_or_default().len() > 1500
        }),
        ("file", |method, params| {
            let text = params["text"].as_str().unwrap_or_default();
            is_send(method) && !text.starts_with("My answer could not")
        }),
        ("notice", |method, params| {
            let text = params["text"].as_str().unwrap_or_default();
            (is_send(method) || method == "sendDocument")
                && !text.starts_with("My answer could not")
        }),
    ];
    for (outcome, is_rejected) in rows {
        let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
        server.set_fault_fn(move |method, params| is_rejected(method, params).then_some(REASON));
        let fixture = TelegramFixture::start(&server, &home).await;
        server.send_private(OWNER, "long 3000");
        let texts = server
            .wait_for(|server| {
                let texts = server.texts(OWNER);
                let letters = texts.iter().flat_map(|text| text.split_whitespace());
                let length: usize = letters.map(str::len).sum();
                let is_done = match outcome {
                    "plain" | "pieces" => length >= 3000 - 3000 / 9,
                    "file" => !server.calls_to("sendDocument").is_empty(),
                    _ => !texts.is_empty(),
                };
                is_done.then_some(texts)
            })
            .await;
        let files = server.calls_to("sendDocument");
        match outcome {
            "plain" => assert_eq!(texts.len(), 1),
            "pieces" => {
                assert!(texts.len() > 2, "{}", texts.len());
            }
            "file" => {
                assert_eq!(files[0].params["document"]["filename"], "answer.md");
                assert!(files[0].params["document"]["size"].as_u64() > Some(2900));
            }
            _ => assert!(texts[0].contains("SOMETHING_NEW"), "{texts:?}"),
        }
        fixture.stop().await;
        check(&server);
    }
}

// An answer that looks like bub's own format is sent as it is.
#[tokio::test]
async fn an_answer_that_is_a_json_object_is_not_taken_apart() {
    let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
    let fixture = TelegramFixture::start(&server, &home).await;
    let answer = r#"{"message": "*hi*", "to": "all_of_you"}"#;
    server.send_private(OWNER, &format!("say {answer}"));
    assert_eq!(server.wait_for_texts(OWNER, 1).await, [answer]);
    fixture.stop().await;
    check(&server);
}

// W-60: the pause that the platform asks for also holds for the next process.
#[tokio::test]
async fn a_pause_holds_after_a_restart() {
    let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
    let fixture = TelegramFixture::start(&server, &home).await;
    server.add_fault("sendMessage", Fault::Flood(5));
    server.send_private(OWNER, "hello");
    server.wait_for_calls("sendMessage", 1).await;
    // The file is written after the response.
    let store = home.path().join("telegram/chats.json");
    while !store.exists() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    fixture.stop().await;
    let fixture = TelegramFixture::start(&server, &home).await;
    server.wait_for_texts(OWNER, 1).await;
    let calls = server.calls_to("sendMessage");
    assert_eq!(calls.len(), 2);
    let pause = calls[1].at - calls[0].at;
    assert!(pause >= Duration::from_secs(5), "only {pause:?}");
    fixture.stop().await;
}

// The buttons of a question go when the question ends: without an answer, or with its process.
#[tokio::test]
async fn buttons_go_with_their_question_and_unknown_buttons_are_answered() {
    for is_restarted in [false, true] {
        let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
        let mut fixture = TelegramFixture::start(&server, &home).await;
        server.send_private(OWNER, "approval");
        server.wait_for_texts(OWNER, 1).await;
        let question = &server.calls_to("sendMessage")[0];
        assert!(!question.params["reply_markup"].is_null(), "{question:?}");
        let query =
            json!({"id": "q", "from": user_object(OWNER), "chat_instance": "1", "data": "other:1"});
        server.add_update("callback_query", query);
        server.press_button(OWNER, OWNER, 2, "from an older version");
        server.wait_for_calls("answerCallbackQuery", 2).await;
        if is_restarted {
            fixture.interrupt().await;
            fixture = TelegramFixture::start(&server, &home).await;
        } else {
            fixture.approval_permits.add_permits(1);
        }
        let edits = server.wait_for_calls("editMessageText", 1).await;
        assert!(edits[0].text("text").contains("Ended without an answer"));
        assert!(edits[0].params["reply_markup"].is_null());
        fixture.approval_permits.add_permits(1);
        fixture.interrupt().await;
        check(&server);
    }
}

// Half an answer never stays beside the whole one, even if the platform refuses to edit it.
#[tokio::test]
async fn a_preview_that_cannot_be_edited_is_removed() {
    let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
    let mut options = options(&server, home.path());
    (options.preview_delay, options.edit_interval) = (Duration::ZERO, Duration::from_millis(10));
    server.set_fault_fn(|method, _| {
        (method == "editMessageText")
            .then_some(Fault::Refuse(400, "Bad Request: message can't be edited"))
    });
    let fixture = TelegramFixture::with(options, home.path()).await;
    server.send_private(OWNER, "grow half whole");
    fixture.wait_prompts(1).await;
    fixture.model.permits.add_permits(1);
    assert_eq!(server.wait_for_texts(OWNER, 1).await, ["half"]);
    fixture.model.permits.add_permits(1);
    server.wait_for_calls("deleteMessage", 1).await;
    assert_eq!(server.texts(OWNER), ["half whole"]);
    fixture.stop().await;
    check(&server);
}

// A Bot API server in local mode returns absolute paths in the directory of the bot. Other absolute paths are refused.
#[tokio::test]
async fn files_of_a_local_server_are_read() {
    let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
    let directory = home.path().join(TOKEN).join("documents");
    std::fs::create_dir_all(&directory).unwrap();
    let (local, other) = (directory.join("a b.txt"), home.path().join("secret.txt"));
    std::fs::write(&local, "12345").unwrap();
    std::fs::write(&other, "no").unwrap();
    let large = directory.join("large.bin");
    std::fs::write(&large, vec![0; 3 << 20]).unwrap();
    let escaping = format!("{}/../../secret.txt", directory.display());
    let remote = format!("/var/lib/bot-api/{TOKEN}/documents/b.txt");
    let paths = [
        ("local", local.to_str().unwrap(), Ok(5)),
        ("large", large.to_str().unwrap(), Err("larger than 2 MiB")),
        ("other", other.to_str().unwrap(), Err("no path")),
        ("escaping", escaping.as_str(), Err("no path")),
        ("remote", remote.as_str(), Ok(3)),
    ];
    for (id, path, _) in paths {
        server.add_file(id, path, b"x".to_vec());
    }
    server.add_file("served", "documents/b.txt", b"abc".to_vec());
    let fixture = TelegramFixture::start(&server, &home).await;
    for (at, (id, _, expected)) in paths.into_iter().enumerate() {
        server.add_message(json!({
            "chat": {"id": OWNER, "type": "private"}, "from": user_object(OWNER),
            "document": {"file_id": id, "file_unique_id": "u", "file_name": "a.txt", "mime_type": "text/plain"},
        }));
        server.wait_for_texts(OWNER, at + 1).await;
        match (expected, fixture.files.borrow()[at].clone()) {
            (Ok(length), outcome) => assert_eq!(outcome, Ok(length), "{id}"),
            (Err(reason), Err(error)) => assert!(error.contains(reason), "{id}: {error}"),
            (_, outcome) => panic!("{id}: {outcome:?}"),
        }
    }
    fixture.stop().await;
}

#[test]
fn the_address_of_a_long_link_is_shown() {
    for length in [500, 1500, 3000, 9000] {
        let address = format!("https://example.org/{}", "a".repeat(length));
        let parts = html::render(&format!("see [this page]({address}) now"));
        let is_link = parts.iter().any(|part| part.html.contains("<a href"));
        let plain: String = parts.iter().map(|part| part.plain.as_str()).collect();
        assert!(is_link || plain.contains(&address), "{length}: {plain}");
        assert!(plain.contains("this page") && plain.ends_with("now"));
    }
}

// L7: `bub policy explain` uses the access that the channel really gives.
#[test]
fn the_channel_says_which_access_a_sender_has() {
    let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
    let access = |chats: Option<i64>, users: Option<&str>, sender: &str, chat: Option<i64>| {
        let mut options = options(&server, home.path());
        options.allow_chats = chats.map(|chat| vec![chat.to_string()]);
        options.allow_users = users.map(|user| vec![user.to_owned()]);
        let handler = Arc::new(|_| Box::pin(async { Ok(()) }) as _);
        let channel = TelegramChannel::new(Arc::new(Bot::new(options)), handler);
        let chat = chat.map(|chat| chat.to_string());
        match channel.sender_access(sender, chat.as_deref()) {
            Some(SenderAccess::Granted(role)) => Ok(role),
            Some(SenderAccess::Denied(reason)) => Err(reason),
            _ => panic!("no access known"),
        }
    };
    assert_eq!(access(None, None, "42", None), Ok(Role::Owner));
    assert_eq!(access(None, Some("7"), "7", None), Ok(Role::Member));
    assert_eq!(access(None, Some("ada"), "@ada", None), Ok(Role::Member));
    let listed = Some(LISTED_GROUP);
    assert_eq!(access(listed, None, "9", listed), Ok(Role::Guest));
    let denied = |access: Result<Role, String>, reason: &str| {
        let error = access.unwrap_err();
        assert!(error.contains(reason), "{error}");
    };
    denied(access(None, None, "9", None), "allow_users");
    denied(access(listed, Some("7"), "9", listed), "allow_users");
    denied(access(listed, Some("7"), "7", None), "allow_chats");
}

// Users see the commands in the menu, and the first sign of life before messages are collected.
#[tokio::test]
async fn commands_are_in_the_menu_and_the_bot_types_at_once() {
    let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
    let gateway_options = GatewayOptions {
        debounce: Duration::from_secs(3),
        ..gateway_options(home.path(), Arc::new(RealFs))
    };
    let options = options(&server, home.path());
    let fixture = TelegramFixture::with_gateway(gateway_options, options, home.path()).await;
    let menu = server.wait_for_calls("setMyCommands", 1).await;
    let commands = menu[0].params["commands"].as_array().unwrap().clone();
    let names: Vec<_> = commands.iter().map(|item| &item["command"]).collect();
    assert_eq!(names, ["help", "new", "stop", "status", "model", "usage"]);
    server.send_private(MEMBER, "/help");
    let help = server.wait_for_texts(MEMBER, 1).await.remove(0);
    assert!(help.contains("/new") && help.contains("/stop"), "{help}");
    server.send_private(MEMBER, "/status");
    assert_eq!(fixture.wait_prompts(1).await, [",status"]);
    let began = Instant::now();
    server.send_private(OWNER, "hello");
    server
        .wait_for(|server| {
            let calls = server.calls_to("sendChatAction");
            calls
                .iter()
                .any(|call| call.number("chat_id") == OWNER)
                .then_some(())
        })
        .await;
    let elapsed = began.elapsed();
    println!("first sign of life after {elapsed:?}");
    assert!(elapsed < Duration::from_secs(2), "{elapsed:?}");
    fixture.stop().await;
    check(&server);
}

// Link previews are off, and a very long answer is its beginning and a file.
#[tokio::test]
async fn a_very_long_answer_is_a_file_and_links_have_no_previews() {
    let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
    let fixture = TelegramFixture::start(&server, &home).await;
    server.send_private(OWNER, "long 40000");
    let files = server.wait_for_calls("sendDocument", 1).await;
    assert_eq!(files[0].params["document"]["size"], 40_000);
    let texts = server.calls_to("sendMessage");
    assert_eq!(texts.len(), 1);
    assert_eq!(texts[0].params["link_preview_options"]["is_disabled"], true);
    fixture.stop().await;
    check(&server);
}

// Files are sent as what they are, several as albums, with the text as the caption.
#[tokio::test]
async fn files_are_sent_as_what_they_are() {
    let rows: [(&str, &[(&str, &str)]); 6] = [
        ("a.png", &[("sendPhoto", "photo")]),
        ("a.mp3", &[("sendAudio", "audio")]),
        ("a.ogg", &[("sendVoice", "voice")]),
        ("a.mp4", &[("sendVideo", "video")]),
        ("a.gif", &[("sendAnimation", "animation")]),
        ("a.pdf", &[("sendDocument", "document")]),
    ];
    let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
    let fixture = TelegramFixture::start(&server, &home).await;
    for (files, methods) in rows {
        server.send_private(OWNER, &format!("say files {files}"));
        for (method, name) in methods {
            let call = server.wait_for_calls(method, 1).await.remove(0);
            assert_eq!(call.params[*name]["filename"], files);
            assert_eq!(call.text("caption"), "<b>see</b>");
        }
    }
    server.send_private(OWNER, "say files a.png b.mp4 c.png d.pdf e.ogg f.pdf");
    let album = server.wait_for_calls("sendMediaGroup", 1).await.remove(0);
    let items = album.params["media"].as_array().unwrap();
    let kinds: Vec<_> = items.iter().map(|item| &item["type"]).collect();
    assert_eq!(kinds, ["photo", "video", "photo"]);
    assert_eq!(items[0]["caption"], "<b>see</b>");
    assert_eq!(album.params["file1"]["filename"], "b.mp4");
    server.wait_for_calls("sendDocument", 3).await;
    assert_eq!(server.calls_to("sendVoice").len(), 2);
    assert_eq!(server.calls_to("sendMessage").len(), 0);
    // An album that the platform rejects comes one by one, and a photo that it rejects as a document.
    server.add_fault(
        "sendMediaGroup",
        Fault::Refuse(400, "Bad Request: IMAGE_PROCESS_FAILED"),
    );
    server.add_fault(
        "sendPhoto",
        Fault::Refuse(400, "Bad Request: IMAGE_PROCESS_FAILED"),
    );
    server.send_private(OWNER, "say files x.png y.png");
    let documents = server.wait_for_calls("sendDocument", 4).await;
    assert_eq!(documents[3].params["document"]["filename"], "x.png");
    let photos = server.wait_for_calls("sendPhoto", 3).await;
    assert_eq!(photos[2].params["photo"]["filename"], "y.png");
    fixture.stop().await;
    check(&server);
}
