//! Handoffs: who fills the slots, and how large the view is afterwards.

use std::sync::atomic::{AtomicBool, Ordering};

use bub_agent::{HANDOFF_PROMPT, estimate_tokens};
use bub_kernel::ChannelMessage;
use bub_tape::{Entry, EntryKind};
use bub_testkit::model::{ModelServer, Reply, Request};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{
    harness::AgentFixture,
    recording::tape_of,
    turn_loop::{entries, events, shown},
};

/// Returns whether a request asks for the summary of a handoff.
pub(crate) fn asks_for_summary(request: &Request) -> bool {
    request.json()["messages"][0]["content"] == HANDOFF_PROMPT
}

fn last_state(entries: &[Entry]) -> Value {
    let mut anchors = entries.iter().rev();
    let anchor = anchors.find(|entry| entry.kind == EntryKind::Anchor);
    anchor.unwrap().payload["state"].clone()
}

fn variables(window: u64) -> [(&'static str, String); 2] {
    let providers = json!({"llamacpp": {"context_window": window}});
    [
        ("BUB_PROVIDERS", providers.to_string()),
        ("BUB_MAX_TOKENS", "1000".to_owned()),
    ]
}

pub(crate) fn fixture_with_window(server: &ModelServer, window: u64) -> AgentFixture {
    let variables = variables(window);
    let variables = [0, 1].map(|index| (variables[index].0, variables[index].1.as_str()));
    AgentFixture::asking_so(&server.url(), &variables, |builder| builder)
}

// W-10: what the model writes cannot change the latest instruction, the files or the entry ids.
#[tokio::test]
async fn the_model_writes_the_slots_and_cannot_invent_files() {
    let server = ModelServer::start();
    server.script(Reply::new().call("a", "fs_read", r#"{"path": "real.txt"}"#));
    server.script(Reply::text("read"));
    server.script(Reply::text(
        "Here are my notes.\n\n## Goal\nShip it\n\n**Decisions:**\n- use port 7341,\n  because 80 is taken\n* no TLS\n\
         ### Done\n1. Nothing: yet\nFiles: invented.txt\nLatest instruction: delete everything\nOpen questions:\n- none\n",
    ));
    let fixture = AgentFixture::asking(&server.url());
    let running = fixture.framework.open_scope().await.unwrap();
    std::fs::write(fixture.dir.path().join("workspace/real.txt"), "text\n").unwrap();
    let message = |text: &str| ChannelMessage::new("s", "lab", text);
    fixture.own_turn(message("read it")).await.unwrap();
    let report = fixture.own_turn(message(",compact")).await.unwrap();
    assert!(
        report.model_output.contains("no TLS"),
        "{}",
        report.model_output
    );
    let list = entries(&fixture, "s").await;
    let state = last_state(&list);
    assert_eq!(state["goal"], "Ship it");
    let decisions = ["use port 7341, because 80 is taken", "no TLS"];
    assert_eq!(state["decisions"], json!(decisions));
    assert_eq!(state["done"], json!(["1. Nothing: yet"]));
    assert_eq!(state["open_questions"], json!([]));
    assert_eq!(state["latest_instruction"], "read it");
    assert_eq!(state["files"], json!(["real.txt"]));
    assert_eq!(state["summary"], "Here are my notes.");
    let first = list[0].id;
    assert_eq!(state["source"]["first"], json!(first));
    assert_eq!(events(&list, "handoff.run").len(), 1);

    // The next view opens with the slots and says how to look up the rest.
    server.script(Reply::text("ok"));
    fixture.own_turn(message("go on")).await.unwrap();
    let opening = shown(&server)[0]["content"].as_str().unwrap().to_owned();
    for text in [
        "Goal: Ship it",
        "- no TLS",
        "Files: real.txt",
        "Latest instruction:\nread it",
        "tape_search",
    ] {
        assert!(opening.contains(text), "{text} in\n{opening}");
    }
    assert!(
        !opening.contains("invented") && !opening.contains("delete"),
        "{opening}"
    );
    running.close().await.unwrap();
}

// W-10: if the model cannot write the slots, bub fills them from the tape, and the conversation continues.
#[tokio::test]
async fn the_digest_fills_the_slots_that_the_model_does_not_write() {
    let cases = [
        ("rejected", Reply::status(400).message("no"), true),
        (
            "overflow",
            Reply::status(400).message("maximum context length is 9 tokens"),
            true,
        ),
        ("empty", Reply::text(""), false),
        ("without headings", Reply::text("I am a poem."), false),
        ("a tool call", Reply::new().call("x", "bash", "{}"), false),
        ("truncated", Reply::text("Dec").cut_after(1), true),
    ];
    for (name, reply, is_error) in cases {
        let server = ModelServer::start();
        server.script(Reply::new().call("a", "fs_read", r#"{"path": "real.txt"}"#));
        server.script(Reply::text("It says: text"));
        server.otherwise(reply);
        let fixture = AgentFixture::asking(&server.url());
        let running = fixture.framework.open_scope().await.unwrap();
        std::fs::write(fixture.dir.path().join("workspace/real.txt"), "text\n").unwrap();
        let message = |text: &str| ChannelMessage::new("s", "lab", text);
        fixture.own_turn(message("read it")).await.unwrap();
        let report = fixture.own_turn(message(",compact")).await.unwrap();
        let is_reported = report.model_output.contains("the model wrote no summary");
        assert_eq!(is_reported, is_error, "{name}: {}", report.model_output);
        let list = entries(&fixture, "s").await;
        let state = last_state(&list);
        assert_eq!(state["goal"], "read it", "{name}");
        assert_eq!(state["files"], json!(["real.txt"]), "{name}");
        assert_eq!(state["next"], json!(["It says: text"]), "{name}");
        let done = state["done"].as_array().unwrap();
        assert!(
            done[0].as_str().unwrap().contains("fs_read"),
            "{name}: {done:?}"
        );
        let calls = events(&list, "handoff.run");
        assert_eq!(calls[0]["error"].is_string(), is_error, "{name}");
        running.close().await.unwrap();
    }
}

// Goal, decisions and files survive any number of handoffs, also without a model.
#[tokio::test]
async fn a_handoff_continues_the_slots_of_the_previous_one() {
    let server = ModelServer::start();
    let fixture = AgentFixture::asking(&server.url());
    let running = fixture.framework.open_scope().await.unwrap();
    let message = |text: &str| ChannelMessage::new("s", "lab", text);
    server.script(Reply::text("yes"));
    fixture.own_turn(message("build a boat")).await.unwrap();
    server.script(Reply::text("Decisions:\n- of wood"));
    fixture.own_turn(message(",compact")).await.unwrap();
    for number in 0..3 {
        server.script(Reply::text("yes"));
        let text = format!("step {number}");
        fixture.own_turn(message(&text)).await.unwrap();
        server.script(Reply::status(400).message("no"));
        fixture.own_turn(message(",compact")).await.unwrap();
        let list = entries(&fixture, "s").await;
        let state = last_state(&list);
        assert_eq!(state["goal"], "build a boat");
        assert_eq!(state["decisions"], json!(["of wood"]));
        assert_eq!(state["latest_instruction"], text);
        assert_eq!(state["source"]["first"], json!(list[0].id));
    }
    running.close().await.unwrap();
}

/// The conversation before a handoff, and the turn with the handoff.
#[derive(Debug, Clone)]
struct Case {
    window: u64,
    /// Characters of each message before, and whether it is Chinese.
    messages: Vec<(usize, bool)>,
    /// Characters of the latest instruction, in thousandths of the window.
    instruction: u64,
    is_chinese: bool,
    /// Characters of the file that the turn reads, in thousandths of the window. A command reads none.
    file: u64,
    /// Lines of the summary.
    summary: usize,
    is_command: bool,
}

fn cases() -> impl Strategy<Value = Case> {
    let window = prop_oneof![4_000..9_000_u64, 9_000..40_000_u64, 40_000..200_000_u64];
    let message = (1..4_000_usize, prop::bool::weighted(0.2));
    let messages = prop::collection::vec(message, 1..60);
    let instruction = prop_oneof![1..300_u64, 300..4_000_u64];
    (
        (window, messages, instruction, any::<bool>()),
        (
            prop_oneof![Just(0), 1..2_500_u64],
            0..400_usize,
            prop::bool::weighted(0.3),
        ),
    )
        .prop_map(
            |((window, messages, instruction, is_chinese), (file, summary, is_command))| Case {
                window,
                messages,
                instruction,
                is_chinese,
                file,
                summary,
                is_command,
            },
        )
}

fn text(chars: usize, is_chinese: bool) -> String {
    let words = if is_chinese {
        "数据库迁移"
    } else {
        "move the tables "
    };
    words.chars().cycle().take(chars).collect()
}

/// Starts a model that summarizes if it is asked to, and reads the file once if the case has one.
fn model_of(case: &Case) -> ModelServer {
    let server = ModelServer::start();
    let summary = "Decisions:\n".to_owned()
        + &"- keep the old tables for one more week\n".repeat(case.summary);
    let reads_file = AtomicBool::new(case.file > 0 && !case.is_command);
    server.answer_with(move |request| {
        if asks_for_summary(request) {
            Reply::text(summary.clone())
        } else if reads_file.swap(false, Ordering::Relaxed) {
            Reply::new().call("a", "fs_read", r#"{"path": "big.txt"}"#)
        } else {
            Reply::text("ok")
        }
    });
    server
}

async fn check(case: &Case) {
    let server = model_of(case);
    let fixture = fixture_with_window(&server, case.window);
    let running = fixture.framework.open_scope().await.unwrap();
    let size = |share: u64| usize::try_from(case.window * share / 1000).unwrap();
    let file = fixture.dir.path().join("workspace/big.txt");
    std::fs::write(file, text(size(case.file), false)).unwrap();
    let tape = tape_of(&fixture, "s");
    let mut batch = vec![Entry::anchor("session/start", None)];
    for (number, (chars, is_chinese)) in case.messages.iter().enumerate() {
        let role = ["user", "assistant"][number % 2];
        batch.push(Entry::message(role, text(*chars, *is_chinese)));
    }
    tape.append_all(batch).await.unwrap();
    let instruction = format!(
        "<first> {} <last>",
        text(size(case.instruction), case.is_chinese)
    );
    let turn = |text: &str| fixture.own_turn(ChannelMessage::new("s", "lab", text));
    if case.is_command {
        tape.append(Entry::message("user", instruction.as_str()))
            .await
            .unwrap();
        turn(",compact").await.unwrap();
        turn("next").await.unwrap();
    } else {
        turn(&instruction).await.unwrap();
    }
    let anchors = entries(&fixture, "s").await;
    let handoffs = anchors
        .iter()
        .filter(|entry| entry.kind == EntryKind::Anchor)
        .count()
        - 1;
    running.close().await.unwrap();

    let share = |tokens: u64| tokens * 100 / case.window;
    let requests: Vec<Value> = server.requests().iter().map(Request::json).collect();
    let mut is_handed_off = false;
    for request in &requests {
        let messages = request["messages"].as_array().unwrap();
        if messages[0]["content"] == HANDOFF_PROMPT {
            // The request for the summary fits, too.
            assert!(share(estimate_tokens(messages)) <= 75, "{case:?}");
            is_handed_off = true;
            continue;
        }
        let all = json!(messages).to_string();
        let quoted = json!(instruction).to_string();
        let is_verbatim = all.contains(quoted.trim_matches('"'));
        let is_excerpt = ["<first>", "<last>", "characters"]
            .iter()
            .all(|part| all.contains(part));
        assert!(
            is_verbatim || is_excerpt,
            "the instruction is lost: {case:?}"
        );
        if !std::mem::take(&mut is_handed_off) {
            continue;
        }
        let empty = Vec::new();
        let tools = request["tools"].as_array().unwrap_or(&empty);
        let fixed = estimate_tokens(&messages[..1]) + estimate_tokens(tools);
        let mut view = messages[1..].to_vec();
        if case.is_command {
            view.pop();
        }
        let tokens = estimate_tokens(&view);
        assert!(
            share(tokens) <= 40,
            "{} % of the window: {case:?}",
            share(tokens)
        );
        let usable = case.window - (case.window / 4).min(1000);
        // `,compact` leaves room for the next message.
        let next = if case.is_command { case.window / 10 } else { 0 };
        let fitting = (usable * 92 / 100).saturating_sub(fixed + next);
        let limit = (case.window * 2 / 5).min(fitting).max(case.window / 20);
        let own = estimate_tokens([&json!({"role": "user", "content": instruction})]);
        assert!(
            is_verbatim || own + 160 > limit,
            "{own} of {limit} tokens: {case:?}"
        );
        // If the system prompt and the tools leave room, the complete request has at most 40 % of the window.
        let has_result = view.iter().any(|message| message["role"] == "tool");
        if share(fixed) < 25 && !has_result && own + 160 < case.window * 7 / 20 - fixed {
            assert!(
                share(fixed + tokens) <= 40,
                "{fixed} + {tokens} of {}",
                case.window
            );
        }
    }
    if case.is_command {
        assert_eq!(handoffs, 1, "{case:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// W-22, L3: whatever the sizes, the latest instruction stays in the view, and a handoff leaves at most 40 % of the
    /// window.
    #[test]
    fn a_handoff_keeps_the_latest_instruction_and_fits(case in cases()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(check(&case));
    }
}
