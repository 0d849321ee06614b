//! Tests the Telegram channel with the real gateway, a scripted model, and users who write to the bot.

use std::{
    os::unix::fs::PermissionsExt as _,
    process::Command,
    time::{Duration, Instant},
};

use bub_testkit::{
    gateway::GatewayProcess,
    model::{ModelServer, Reply},
    telegram::{BotServer, Fault, TOKEN},
};

use crate::sandbox::{Sandbox, bub, wait_until};

const OWNER: i64 = 42;
const MEMBER: i64 = 7;
const STRANGER: i64 = 666;
const GROUP: i64 = -100_777;

/// Program with a bot and a model, configured for all tests of this file.
pub(crate) fn command(sandbox: &Sandbox, server: &BotServer, model: &ModelServer) -> Command {
    configured(sandbox.command(&bub()), server, model)
}

fn configured(mut command: Command, server: &BotServer, model: &ModelServer) -> Command {
    command
        .env("BUB_TELEGRAM_TOKEN", TOKEN)
        .env("BUB_TELEGRAM_API_BASE", server.url())
        .env("BUB_TELEGRAM_ALLOW_USERS", MEMBER.to_string())
        .env("BUB_OWNERS", format!("telegram:{OWNER}"))
        .env("BUB_DEBOUNCE_SECONDS", "0.02")
        .env("BUB_MODEL", "openai:small")
        .env("BUB_API_BASE", format!("{}/v1", model.url()))
        .env("BUB_API_KEY", "sk-none-at-all");
    command
}

fn start(sandbox: &Sandbox, server: &BotServer, model: &ModelServer) -> GatewayProcess {
    start_with(command(sandbox, server, model))
}

pub(crate) fn start_with(mut command: Command) -> GatewayProcess {
    command.arg("gateway");
    GatewayProcess::start(command)
}

fn has_text(server: &BotServer, chat: i64, part: &str) -> bool {
    server.texts(chat).iter().any(|text| text.contains(part))
}

// Pairing: an unknown user gets a code once; `bub pair` grants access while the gateway runs, `remove` revokes it.
#[test]
fn an_unknown_user_gets_a_code_that_grants_access() {
    let (sandbox, server, model) = (Sandbox::new(), BotServer::start(), ModelServer::start());
    model.otherwise(Reply::text("at your service"));
    let gateway = start(&sandbox, &server, &model);
    server.send_private(STRANGER, "hello");
    wait_until("a code", || server.texts(STRANGER).len() == 1);
    let notice = server.texts(STRANGER).remove(0);
    assert!(notice.starts_with("Access denied."), "{notice}");
    let code = notice
        .split("bub pair ")
        .nth(1)
        .unwrap()
        .split(['`', ' '])
        .next()
        .unwrap()
        .to_owned();
    server.send_private(STRANGER, "hello?");
    server.send_private(STRANGER, ", ls");
    server.send_private(MEMBER, "meanwhile");
    wait_until("the member's answer", || {
        has_text(&server, MEMBER, "at your service")
    });
    assert_eq!(server.texts(STRANGER).len(), 1, "one notice");

    let listed = sandbox.bub(["pair", "list"]).ok();
    assert!(
        listed.contains(&code) && listed.contains("telegram:666"),
        "{listed}"
    );
    let run = sandbox.bub(["pair", "WRONGONE"]);
    assert_eq!(run.code, Some(2), "{run:?}");
    let paired = sandbox.bub(["pair", &code.to_lowercase()]).ok();
    assert!(
        paired.starts_with("added telegram:666 (User 666 @user666) as member"),
        "{paired}"
    );
    server.send_private(STRANGER, "and now?");
    wait_until("the answer", || {
        has_text(&server, STRANGER, "at your service")
    });
    sandbox.bub(["pair", "remove", "telegram:666"]).ok();
    server.send_private(STRANGER, "still there?");
    wait_until("another code", || server.texts(STRANGER).len() == 3);
    assert!(server.texts(STRANGER)[2].starts_with("Access denied."));
    // Also a pending request.
    sandbox.bub(["pair", "remove", "telegram:666"]).ok();
    assert_eq!(
        sandbox.bub(["pair", "remove", "telegram:666"]).code,
        Some(2)
    );
    let mode = std::fs::metadata(sandbox.home().join("pairings.json"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    gateway.stop();
    assert_eq!(server.violations(), Vec::<String>::new());
}

// W-33: comma commands run for owners; in groups only if the bot is addressed; never for unknown users, forwards, edits.
#[test]
fn commas_reach_the_shell_only_of_owners_who_address_the_bot() {
    let (sandbox, server, model) = (Sandbox::new(), BotServer::start(), ModelServer::start());
    model.otherwise(Reply::text("just talk"));
    let gateway = start(&sandbox, &server, &model);
    server.send_private(OWNER, ", echo priv$((40+2))");
    wait_until("the output", || has_text(&server, OWNER, "priv42"));
    server.send_private(MEMBER, ", echo member$((40+2))");
    wait_until("the refusal", || server.texts(MEMBER).len() == 1);
    assert!(
        has_text(&server, MEMBER, "denied by policy"),
        "{:?}",
        server.texts(MEMBER)
    );
    server.send_to_group(GROUP, OWNER, ", echo unaddressed$((40+2))");
    server.send_to_group(GROUP, STRANGER, "@helpful_bot , echo stranger$((40+2))");
    server.send_to_group(GROUP, OWNER, "@helpful_bot , echo group$((40+2))");
    wait_until("the output in the group", || {
        has_text(&server, GROUP, "group42")
    });
    let forwarded = serde_json::json!({
        "chat": {"id": OWNER, "type": "private"}, "from": bub_testkit::telegram::user_object(OWNER),
        "text": ", echo forwarded$((40+2))", "forward_origin": {"type": "hidden_user", "sender_user_name": "x", "date": 1},
    });
    server.add_message(forwarded);
    wait_until("words about the forward", || {
        has_text(&server, OWNER, "just talk")
    });
    let all = format!(
        "{:?}{:?}{:?}",
        server.texts(OWNER),
        server.texts(GROUP),
        server.texts(STRANGER)
    );
    for hidden in ["unaddressed42", "stranger42", "forwarded42"] {
        assert!(!all.contains(hidden), "{hidden} ran: {all}");
    }
    gateway.stop();
    assert_eq!(server.violations(), Vec::<String>::new());
}

// Tools: messages that the model sends are the answer; only owners can make it write to other chats.
#[test]
fn the_model_can_send_edit_and_react_and_then_the_plain_reply_is_not_sent() {
    let (sandbox, server, model) = (Sandbox::new(), BotServer::start(), ModelServer::start());
    std::fs::write(sandbox.workspace().join("chart.png"), b"\x89PNG not really").unwrap();
    model.script(Reply::new().call(
        "c1",
        "telegram_send",
        r#"{"text": "working on **it**", "file": "chart.png"}"#,
    ));
    model.script(Reply::new().call("c2", "telegram_react", r#"{"emoji": "👍"}"#));
    model.script(Reply::new().call("c3", "telegram_send", r#"{"text": "psst", "chat_id": 42}"#));
    model.script(Reply::text("this is not sent"));
    let gateway = start(&sandbox, &server, &model);
    let asked = server.send_private(MEMBER, "do it");
    wait_until("the whole turn", || model.unused_replies() == 0);
    let log = gateway.stop();
    assert_eq!(server.texts(MEMBER), ["working on it"], "{log}");
    let photo = server.calls_to("sendPhoto").remove(0);
    assert_eq!(photo.params["photo"]["filename"], "chart.png");
    assert_eq!(photo.text("caption"), "working on <b>it</b>");
    let reaction = server.calls_to("setMessageReaction").remove(0);
    assert_eq!(
        (reaction.number("message_id"), reaction.number("chat_id")),
        (asked, MEMBER)
    );
    assert!(
        server.texts(OWNER).is_empty(),
        "members reach their own chat only"
    );
    let last = model.requests().pop().unwrap().json().to_string();
    assert!(last.contains("only owners can use other chats"), "{last}");
    assert!(last.contains("message_id"), "{last}");

    model.script(Reply::new().call(
        "c4",
        "telegram_edit",
        r#"{"message_id": 2, "text": "done", "chat_id": 7}"#,
    ));
    model.script(Reply::text("edited it"));
    let mut allowed = command(&sandbox, &server, &model);
    let rule =
        r#"[{"tools": ["telegram.edit"], "arguments": {"chat_id": "7"}, "action": "allow"}]"#;
    let gateway = start_with({
        allowed.env("BUB_POLICY_RULES", rule);
        allowed
    });
    // The text of a photo is its caption.
    server.add_fault(
        "editMessageText",
        Fault::Refuse(400, "Bad Request: there is no text in the message to edit"),
    );
    server.send_private(OWNER, "edit it");
    wait_until("the plain reply", || has_text(&server, OWNER, "edited it"));
    let edits = server.calls_to("editMessageCaption");
    assert_eq!(edits[0].text("caption"), "done");
    gateway.stop();
    assert_eq!(server.violations(), Vec::<String>::new());
}

// A message that the platform rejects permanently is not an answer: the model gets the error, and its next text is sent.
#[test]
fn a_message_that_the_platform_refuses_is_an_error_of_the_tool() {
    let (sandbox, server, model) = (Sandbox::new(), BotServer::start(), ModelServer::start());
    model.script(Reply::new().call("c1", "telegram_send", r#"{"text": "psst"}"#));
    model.script(Reply::text("then I say it here"));
    server.add_fault(
        "sendMessage",
        Fault::Refuse(400, "Bad Request: message thread not found"),
    );
    let gateway = start(&sandbox, &server, &model);
    let began = Instant::now();
    server.send_private(MEMBER, "do it");
    wait_until("the plain reply", || {
        has_text(&server, MEMBER, "then I say it here")
    });
    assert!(
        began.elapsed() < Duration::from_secs(15),
        "it took {:?}",
        began.elapsed()
    );
    let request = model.requests().pop().unwrap().json().to_string();
    assert!(
        request.contains("message thread not found") && !request.contains("on its way"),
        "{request}"
    );
    gateway.stop();
}

// Many concurrent chats need many files: the gateway raises the limit as far as the system allows.
#[cfg(target_os = "linux")]
#[test]
fn the_limit_of_open_files_is_raised() {
    let (sandbox, server, model) = (Sandbox::new(), BotServer::start(), ModelServer::start());
    let mut shell = sandbox.command(std::path::Path::new("/bin/sh"));
    shell
        .args(["-c", r#"ulimit -Sn 200 && exec "$0" "$@""#])
        .arg(bub());
    let gateway = start_with(configured(shell, &server, &model));
    wait_until("a poll", || !server.calls_to("getUpdates").is_empty());
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", gateway.child.id())).unwrap();
    let files = limits
        .lines()
        .find(|line| line.starts_with("Max open files"))
        .unwrap();
    let [soft, hard] = files.split_whitespace().skip(3).take(2).collect::<Vec<_>>()[..] else {
        panic!("{files}")
    };
    let hard = hard.parse().unwrap_or(u64::MAX).min(65_536);
    assert_eq!(soft.parse(), Ok(hard), "{files}");
    gateway.stop();
}

// L1, L7: if the tape cannot be read, users are notified, and only owners see details about the machine.
#[test]
fn a_broken_home_is_reported_without_its_paths() {
    let (sandbox, server, model) = (Sandbox::new(), BotServer::start(), ModelServer::start());
    model.otherwise(Reply::text("fine"));
    let gateway = start(&sandbox, &server, &model);
    server.send_private(MEMBER, "hello");
    wait_until("an answer", || has_text(&server, MEMBER, "fine"));
    let tapes = sandbox.home().join("tapes");
    std::fs::rename(&tapes, sandbox.home().join("aside")).unwrap();
    std::fs::write(&tapes, "in the way").unwrap();
    for person in [MEMBER, OWNER] {
        server.send_private(person, "and now?");
        wait_until("a word about it", || {
            has_text(&server, person, "An error occurred")
        });
    }
    let (member, owner) = (
        server.texts(MEMBER).join(" "),
        server.texts(OWNER).join(" "),
    );
    assert!(
        member.contains("ask the owner of this bot") && !member.contains("tapes"),
        "{member}"
    );
    assert!(owner.contains("tapes"), "{owner}");
    let log = gateway.stop();
    assert!(!log.contains("telegram.update_skipped"), "{log}");
    assert_eq!(server.pending(), 0);
}

// A member approved their own shell.
#[test]
fn a_question_has_buttons_and_only_an_owner_can_press_them() {
    let (sandbox, server, model) = (Sandbox::new(), BotServer::start(), ModelServer::start());
    let rules = "policy:\n  rules:\n    - roles: [member]\n      tools: [bash]\n      action: ask\n      reason: the shell is asked about\n";
    sandbox.write("home/config.yml", rules);
    model.script(Reply::new().call(
        "c1",
        "bash",
        r#"{"command": "echo *ran*$((40+2)) > ran.txt"}"#,
    ));
    model.otherwise(Reply::text("finished"));
    let mut command = command(&sandbox, &server, &model);
    command.env("BUB_TELEGRAM_ALLOW_USERS", format!("{MEMBER},8"));
    let gateway = start_with(command);
    server.send_to_group(GROUP, MEMBER, "bub, run it");
    wait_until("the question", || {
        has_text(&server, GROUP, "the shell is asked about")
    });
    let question = server.texts(GROUP).remove(0);
    assert!(
        question.contains("echo *ran*$((40+2))"),
        "shown as it is: {question}"
    );
    let sent = server.calls_to("sendMessage").remove(0);
    let buttons = sent.params["reply_markup"]["inline_keyboard"][0].clone();
    let texts: Vec<_> = buttons
        .as_array()
        .unwrap()
        .iter()
        .map(|button| &button["text"])
        .collect();
    assert_eq!(
        texts,
        ["Approve", "This session", "Deny"],
        "the command has a wildcard"
    );
    let data = buttons[0]["callback_data"].as_str().unwrap().to_owned();
    let message_id = 2;
    server.press_button(STRANGER, GROUP, message_id, &data);
    server.press_button(8, GROUP, message_id, &data);
    server.press_button(MEMBER, GROUP, message_id, &data);
    wait_until("three refusals", || {
        server.calls_to("answerCallbackQuery").len() == 3
    });
    assert!(!sandbox.workspace().join("ran.txt").exists());
    assert_eq!(
        server.texts(GROUP).len(),
        1,
        "a press by another user changes nothing"
    );
    server.press_button(OWNER, GROUP, message_id, &data);
    wait_until("the answer", || has_text(&server, GROUP, "finished"));
    assert!(sandbox.workspace().join("ran.txt").exists());
    assert!(
        server.texts(GROUP)[0].ends_with("Approved."),
        "{:?}",
        server.texts(GROUP)
    );
    gateway.stop();
    assert_eq!(server.violations(), Vec::<String>::new());
}

// A wrong token is one clear line; other channels are not affected, and the token is in no log.
#[test]
fn a_wrong_token_is_one_line_and_other_channels_run() {
    let (sandbox, server, model) = (Sandbox::new(), BotServer::start(), ModelServer::start());
    let mut command = command(&sandbox, &server, &model);
    command
        .env(
            "BUB_TELEGRAM_TOKEN",
            "999999:wrong-but-as-long-as-a-real-token",
        )
        .env("BUB_WEBHOOK_TOKEN", "x-long-enough-token");
    command.env("BUB_WEBHOOK_LISTEN", "127.0.0.1:0");
    let gateway = start_with(command);
    wait_until("both channels", || {
        let status = sandbox.bub(["status"]).stdout;
        status.contains("webhook: running") && status.contains("rejected the bot token")
    });
    let log = gateway.stop();
    assert_eq!(log.matches("rejected the bot token").count(), 1, "{log}");
    assert!(!log.contains("wrong-token"), "{log}");
}

// Media from users reach the model: pictures, and documents as text.
#[test]
fn pictures_and_text_documents_reach_the_model() {
    let (sandbox, server, model) = (Sandbox::new(), BotServer::start(), ModelServer::start());
    model.otherwise(Reply::text("seen"));
    server.add_file("pic", "photos/1.jpg", bub_testkit::TINY_PNG.to_vec());
    server.add_file(
        "doc",
        "documents/a b.txt",
        b"the secret word is plum".to_vec(),
    );
    let gateway = start(&sandbox, &server, &model);
    let from = bub_testkit::telegram::user_object(OWNER);
    let chat = serde_json::json!({"id": OWNER, "type": "private"});
    server.add_message(serde_json::json!({
        "chat": chat, "from": from, "caption": "look",
        "photo": [{"file_id": "pic", "file_unique_id": "p", "width": 1, "height": 1, "file_size": 10}],
    }));
    wait_until("an answer", || server.texts(OWNER).len() == 1);
    server.add_message(serde_json::json!({
        "chat": chat, "from": from,
        "document": {"file_id": "doc", "file_unique_id": "d", "file_name": "../../a b.txt", "mime_type": "text/plain", "file_size": 23},
    }));
    wait_until("another answer", || server.texts(OWNER).len() == 2);
    server.add_message(serde_json::json!({
        "chat": chat, "from": from,
        "document": {"file_id": "huge", "file_unique_id": "h", "file_name": "huge.zip", "mime_type": "application/zip", "file_size": 4_000_000_000_i64},
    }));
    wait_until("a third", || server.texts(OWNER).len() == 3);
    // Unavailable and mislabeled files are mentioned, too.
    server.add_file("binary", "documents/b.txt", vec![0xff, 0xfe, 0]);
    for (at, file) in ["gone", "binary"].into_iter().enumerate() {
        server.add_message(serde_json::json!({
            "chat": chat, "from": from,
            "document": {"file_id": file, "file_unique_id": "d", "file_name": format!("{file}.txt"), "mime_type": "text/plain"},
        }));
        wait_until("an answer without it", || {
            server.texts(OWNER).len() == 4 + at
        });
    }
    let requests: Vec<String> = model
        .requests()
        .iter()
        .map(|request| request.json().to_string())
        .collect();
    assert!(
        requests[0].contains("data:image/png;base64,iVBORw0KGgo"),
        "{}",
        requests[0]
    );
    assert!(
        requests[1].contains("the secret word is plum"),
        "{}",
        requests[1]
    );
    assert!(!requests[1].contains("../../a b.txt]"), "{}", requests[1]);
    assert!(
        requests[2].contains("huge.zip (larger than 2 MiB)"),
        "{}",
        requests[2]
    );
    assert!(
        requests[3].contains(
            "files_not_read=gone.txt (Telegram rejected the request: Bad Request: wrong file_id"
        ),
        "{}",
        requests[3]
    );
    assert!(
        requests[4].contains(
            "files_not_read=binary.txt (not a text file: the content is not valid UTF-8)"
        ),
        "{}",
        requests[4]
    );
    let log = gateway.stop();
    assert_eq!(log.matches("prompt.file_not_read").count(), 2, "{log}");
}

// `reply: tool` as in the Python version: the text answer is not sent; H-173: errors are reported anyway.
#[test]
fn with_reply_by_tool_only_errors_and_commands_are_sent_by_themselves() {
    let (sandbox, server, model) = (Sandbox::new(), BotServer::start(), ModelServer::start());
    model.script(Reply::text("kept inside"));
    model.otherwise(Reply::status(400).message("the model is not well"));
    let mut command = command(&sandbox, &server, &model);
    command.env("BUB_TELEGRAM_REPLY", "tool");
    let gateway = start_with(command);
    server.send_private(OWNER, "hello");
    wait_until("the first turn", || model.unused_replies() == 0);
    server.send_private(OWNER, ",help");
    wait_until("the output of the command", || {
        server.texts(OWNER).len() == 1
    });
    server.send_private(OWNER, "again");
    wait_until("the error", || has_text(&server, OWNER, "not well"));
    assert!(
        !has_text(&server, OWNER, "kept inside"),
        "{:?}",
        server.texts(OWNER)
    );
    gateway.stop();
    assert_eq!(server.violations(), Vec::<String>::new());
}
