//! Handoffs, the context window, and spilled output.

use std::path::Path;

use bub_kernel::{ChannelMessage, ToolCall, ToolDecision, hooks};
use bub_tape::{Entry, EntryKind};
use bub_testkit::model::{ModelServer, Reply, ReplyUsage};
use serde_json::{Value, json};

use crate::{
    harness::AgentFixture,
    recording::tape_of,
    turn_loop::{entries, events, shown, step_statuses},
};

fn overflow() -> Reply {
    let error = json!({"error": {"code": "context_length_exceeded", "message": "maximum context length is 8192 tokens"}});
    Reply::status(400).with_json(&error)
}

fn anchors(entries: &[Entry]) -> Vec<&Entry> {
    entries
        .iter()
        .filter(|entry| entry.kind == EntryKind::Anchor)
        .collect()
}

// S-65, W-10: the first overflow of a turn adds an anchor and retries with less context; no tool runs twice.
#[tokio::test]
async fn an_overflow_hands_off_once_and_no_tool_runs_twice() {
    let server = ModelServer::start();
    server.script(Reply::text("an old answer"));
    server.script(Reply::new().call("a", "bash", r#"{"command": "echo ran >> log"}"#));
    server.script(overflow());
    server.script(Reply::text(
        "Goal: answer both\nDone:\n- the log is written",
    ));
    server.script(Reply::text("done"));
    let fixture = AgentFixture::asking(&server.url());
    let running = fixture.framework.open_scope().await.unwrap();
    fixture
        .own_turn(ChannelMessage::new("s", "lab", "old question"))
        .await
        .unwrap();
    let result = fixture
        .own_turn(ChannelMessage::new("s", "lab", "new question"))
        .await
        .unwrap();
    assert_eq!(result.model_output, "done");
    assert_eq!(
        std::fs::read_to_string(fixture.dir.path().join("workspace/log")).unwrap(),
        "ran\n"
    );

    let entries = entries(&fixture, "s").await;
    let anchor = *anchors(&entries).last().unwrap();
    assert_eq!(anchor.name(), Some("auto_handoff/context_overflow"));
    let state = &anchor.payload["state"];
    assert_eq!(state["reason"], "context_length_exceeded");
    assert!(
        state["error"]
            .as_str()
            .unwrap()
            .contains("maximum context length")
    );
    assert_eq!(state["goal"], "answer both");
    assert_eq!(state["done"], json!(["the log is written"]));
    assert_eq!(state["latest_instruction"], "new question");
    assert_eq!(
        step_statuses(&entries),
        ["1 ok", "1 continue", "2 auto_handoff", "3 ok"]
    );
    // H-71: the step that overflowed has the error of the provider.
    let steps = events(&entries, "loop.step");
    assert_eq!(steps[2]["error"], state["error"]);

    // The entries of the turn are shown again after the anchor; the old conversation is not.
    let shown = shown(&server);
    let text = json!(shown).to_string();
    assert!(text.contains("new question"), "{text}");
    assert!(
        shown
            .iter()
            .all(|message| message["content"] != "an old answer"),
        "{text}"
    );
    assert_eq!(
        shown
            .iter()
            .filter(|message| message["role"] == "tool")
            .count(),
        1
    );
    running.close().await.unwrap();
}

// S-65: the texts of servers that have no error code lead to a handoff too.
#[tokio::test]
async fn an_overflow_in_the_words_of_local_servers_hands_off() {
    for text in [
        "Trying to keep the first 15857 tokens when context the overflows. However, the model is loaded with context \
         length of only 4096 tokens, which is not enough.",
        "The number of tokens to keep from the initial prompt is greater than the context length.",
        "Invalid request: Your request exceeded model token limit: 262144 (requested: 269030)",
        "total message size 2113433 exceeds limit 2097152",
    ] {
        let server = ModelServer::start();
        server.script(Reply::status(400).with_json(&json!({"error": text})));
        server.otherwise(Reply::text("done"));
        let fixture = AgentFixture::asking(&server.url());
        let running = fixture.framework.open_scope().await.unwrap();
        let message = ChannelMessage::new("s", "lab", "question");
        let result = fixture.own_turn(message).await.unwrap();
        assert_eq!(result.model_output, "done", "{text}");
        let entries = entries(&fixture, "s").await;
        let anchor = *anchors(&entries).last().unwrap();
        assert_eq!(
            anchor.name(),
            Some("auto_handoff/context_overflow"),
            "{text}"
        );
        running.close().await.unwrap();
    }
}

// S-65: a second overflow in the same turn fails the turn.
#[tokio::test]
async fn a_second_overflow_ends_the_turn() {
    let server = ModelServer::start();
    server.otherwise(overflow());
    let fixture = AgentFixture::asking(&server.url());
    let running = fixture.framework.open_scope().await.unwrap();
    let error = fixture
        .own_turn(ChannelMessage::new("s", "lab", "hi"))
        .await
        .unwrap_err();
    assert!(
        error.message().contains("maximum context length"),
        "{error}"
    );
    // The step, the summary of the handoff, and the step again.
    assert_eq!(server.requests().len(), 3);
    running.close().await.unwrap();
}

// H-116, S-56: a handoff that the model requests takes effect at the end of its step, after the result; the user's
// message stays.
#[tokio::test]
async fn a_handoff_by_the_model_takes_effect_behind_its_result() {
    let server = ModelServer::start();
    server.script(
        Reply::new()
            .call(
                "a",
                "tape_handoff",
                r#"{"name": "phase 2", "summary": "all is well"}"#,
            )
            .call("b", "tape_info", "{}"),
    );
    server.script(Reply::text("done"));
    let fixture = AgentFixture::asking(&server.url());
    let running = fixture.framework.open_scope().await.unwrap();
    fixture
        .own_turn(ChannelMessage::new("s", "lab", "the question"))
        .await
        .unwrap();
    let entries = entries(&fixture, "s").await;
    let result = entries
        .iter()
        .find(|entry| entry.kind == EntryKind::ToolResult)
        .unwrap();
    assert_eq!(result.payload["results"][0], "anchor added: phase 2");
    let anchor = *anchors(&entries).last().unwrap();
    assert!(anchor.id > result.id);
    assert_eq!(anchor.payload["state"]["summary"], "all is well");
    let shown = shown(&server);
    let text = json!(shown).to_string();
    let opening = shown[0]["content"].as_str().unwrap();
    assert!(
        opening.starts_with("<handoff name=\"phase 2\">\nall is well\n")
            && text.matches("the question").count() == 2,
        "{text}"
    );
    // The model sees the results of the other calls in the same response.
    let results: Vec<_> = shown
        .iter()
        .filter(|message| message["role"] == "tool")
        .collect();
    assert!(
        results[1]["content"]
            .as_str()
            .unwrap()
            .starts_with("name: "),
        "{text}"
    );
    running.close().await.unwrap();
}

// If the handoff is the only call of a response, the new context starts with the summary and the prompt.
#[tokio::test]
async fn a_handoff_alone_leaves_only_the_summary_and_the_question() {
    let server = ModelServer::start();
    server.script(Reply::new().call("a", "tape_handoff", r#"{"summary": "all is well"}"#));
    server.script(Reply::text("done"));
    let fixture = AgentFixture::asking(&server.url());
    let running = fixture.framework.open_scope().await.unwrap();
    fixture
        .own_turn(ChannelMessage::new("s", "lab", "the question"))
        .await
        .unwrap();
    assert!(
        shown(&server)
            .iter()
            .all(|message| message["role"] != "tool")
    );
    running.close().await.unwrap();
}

// H-116: a reset that the model requests clears the tape at the end of its step. The new tape starts with the prompt
// and the call itself; otherwise the model would repeat the call. The old content is archived unless the model sets
// `archive=false`.
#[tokio::test]
async fn a_reset_by_the_model_keeps_the_question_the_call_and_an_archive() {
    let server = ModelServer::start();
    server.script(Reply::text("old"));
    let reset = Reply::new().call("a", "tape_reset", "{}");
    server.script(reset.call("b", "bash", r#"{"command": "touch after-reset"}"#));
    server.script(Reply::text("fresh"));
    let fixture = AgentFixture::asking(&server.url());
    let running = fixture.framework.open_scope().await.unwrap();
    fixture
        .own_turn(ChannelMessage::new("s", "lab", "before"))
        .await
        .unwrap();
    fixture
        .own_turn(ChannelMessage::new("s", "lab", "start over"))
        .await
        .unwrap();
    let text = json!(shown(&server)).to_string();
    assert!(
        text.contains("start over") && !text.contains("before"),
        "{text}"
    );
    let is_called = |message: &Value| message["tool_calls"][0]["function"]["name"] == "tape_reset";
    let messages = shown(&server);
    assert_eq!(
        messages.iter().filter(|message| is_called(message)).count(),
        1,
        "{text}"
    );
    assert_eq!(
        messages
            .iter()
            .filter(|message| message["role"] == "tool")
            .count(),
        2,
        "{text}"
    );
    assert!(
        !fixture.dir.path().join("workspace/after-reset").exists(),
        "the reset would remove the record of the call"
    );
    let tapes = std::fs::read_dir(fixture.dir.path().join("home/tapes")).unwrap();
    let names: Vec<String> = tapes
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(names.iter().any(|name| name.contains(".bak")), "{names:?}");
    running.close().await.unwrap();
}

fn small_window() -> [(&'static str, &'static str); 2] {
    [
        ("BUB_PROVIDERS", r#"{"llamacpp": {"context_window": 6000}}"#),
        ("BUB_MAX_TOKENS", "1000"),
    ]
}

// W-22: when the context window is nearly full, the model is asked to hand off.
#[tokio::test]
async fn near_the_window_the_model_is_asked_to_hand_off() {
    let server = ModelServer::start();
    server.otherwise(Reply::text("ok"));
    let fixture = AgentFixture::asking_so(&server.url(), &small_window(), |builder| builder);
    let running = fixture.framework.open_scope().await.unwrap();
    let mut asked = false;
    // Messages that are small against the window, so that none of them fills the last quarter at once.
    for turn in 0..18 {
        let text = format!("{turn} {}", "word ".repeat(200));
        fixture
            .own_turn(ChannelMessage::new("s", "lab", text))
            .await
            .unwrap();
        asked |= shown(&server).iter().any(|message| {
            message["content"]
                .as_str()
                .unwrap()
                .contains("call tape_handoff")
        });
    }
    assert!(asked);
    running.close().await.unwrap();
}

// W-22, L3: if the model does not hand off, bub does; the view shrinks, and the latest message stays verbatim.
#[tokio::test]
async fn a_full_window_is_handed_off_by_the_runtime() {
    let server = ModelServer::start();
    server.otherwise(Reply::text("ok"));
    let fixture = AgentFixture::asking_so(&server.url(), &small_window(), |builder| builder);
    let running = fixture.framework.open_scope().await.unwrap();
    let mut sizes = Vec::new();
    for turn in 0..20 {
        let text = format!("number {turn}: {}", "word ".repeat(500));
        fixture
            .own_turn(ChannelMessage::new("s", "lab", text.clone()))
            .await
            .unwrap();
        let shown = shown(&server);
        assert!(
            json!(shown).to_string().contains(text.trim()),
            "the latest message stays"
        );
        sizes.push(json!(shown).to_string().len());
    }
    assert!(sizes.iter().all(|size| *size < 6000 * 4), "{sizes:?}");
    let entries = entries(&fixture, "s").await;
    let budget: Vec<_> = anchors(&entries)
        .into_iter()
        .filter(|a| a.name() == Some("auto_handoff/context_budget"))
        .collect();
    assert!(budget.len() >= 2, "more than once");
    assert_eq!(budget[0].payload["state"]["reason"], "context_budget");
    assert!(budget[0].payload["state"]["source"]["first"].is_i64());
    running.close().await.unwrap();
}

// The estimate is calibrated with the reported usage: with a tokenizer that counts twice as much, the handoff comes
// earlier.
#[tokio::test]
async fn the_estimate_follows_the_reported_usage() {
    let mut turns_until_handoff = Vec::new();
    for hunger in [1, 3] {
        let server = ModelServer::start();
        let fixture = AgentFixture::asking_so(&server.url(), &small_window(), |builder| builder);
        let running = fixture.framework.open_scope().await.unwrap();
        let mut turns = 0;
        loop {
            let size = server
                .requests()
                .last()
                .map_or(4000, |request| request.json().to_string().len() as u64);
            let usage = ReplyUsage {
                input: size / 4 * hunger,
                output: 1,
                ..ReplyUsage::default()
            };
            server.otherwise(Reply::text("ok").usage(usage));
            let text = format!("{turns} {}", "word ".repeat(100));
            fixture
                .own_turn(ChannelMessage::new("s", "lab", text))
                .await
                .unwrap();
            turns += 1;
            if anchors(&entries(&fixture, "s").await).len() > 1 {
                break;
            }
            assert!(turns < 60);
        }
        turns_until_handoff.push(turns);
        running.close().await.unwrap();
    }
    assert!(
        turns_until_handoff[1] < turns_until_handoff[0],
        "{turns_until_handoff:?}"
    );
}

// H-130, H-131, H-132, H-38, W-28: large output is spilled, also that of errors; it can be read in pages, exactly.
#[tokio::test]
async fn big_output_is_put_aside_and_can_be_read() {
    let script = "seq 1 12000; echo été; exit 1";
    let server = ModelServer::start();
    server.script(Reply::new().call("a", "bash", &json!({"command": script}).to_string()));
    server.script(Reply::text("done"));
    let fixture = AgentFixture::asking(&server.url());
    let running = fixture.framework.open_scope().await.unwrap();
    fixture
        .own_turn(ChannelMessage::new("s", "lab", "go"))
        .await
        .unwrap();
    let list = entries(&fixture, "s").await;
    let result = list
        .iter()
        .find(|entry| entry.kind == EntryKind::ToolResult)
        .unwrap();
    let text = result.payload["results"][0]["message"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        text.starts_with("[tool output spilled: ") && text.len() < 1200,
        "{text}"
    );
    assert!(
        text.contains("chars omitted") && text.ends_with("été"),
        "{text}"
    );
    let handle = text
        .split("handle: ")
        .nth(1)
        .unwrap()
        .split(']')
        .next()
        .unwrap()
        .to_owned();
    assert_eq!(handle.len(), 32);
    let written = &events(&list, "spill.write")[0];
    assert_eq!(
        (&written["status"], &written["tool"]),
        (&json!("ok"), &json!("bash"))
    );

    let mut whole = String::new();
    let mut cursor = 0;
    loop {
        let call = json!({"handle": handle, "cursor": cursor, "count": 2}).to_string();
        server.script(Reply::new().call("r", "spill_read", &call));
        server.script(Reply::text("read"));
        fixture
            .own_turn(ChannelMessage::new("s", "lab", "read"))
            .await
            .unwrap();
        let shown = shown(&server);
        let page = shown.iter().rfind(|m| m["role"] == "tool").unwrap()["content"]
            .as_str()
            .unwrap()
            .to_owned();
        let (head, content) = page.split_once("content:\n").unwrap();
        whole.push_str(content);
        cursor = head
            .split("next_cursor: ")
            .nth(1)
            .unwrap()
            .lines()
            .next()
            .unwrap()
            .parse::<usize>()
            .unwrap();
        if head.contains("complete: true") {
            break;
        }
    }
    let expected = (1..=12000)
        .map(|n| n.to_string())
        .collect::<Vec<_>>()
        .join("\n");
    assert_eq!(
        whole,
        format!("command exited with code 1\noutput:\n{expected}\nété")
    );
    let sidecar = tape_of(&fixture, "s").name().sidecar("spill").unwrap();
    assert!(sidecar.as_str().ends_with("__sidecar__spill"));
    running.close().await.unwrap();
}

// H-132: output that cannot be read is reported.
#[tokio::test]
async fn what_was_not_put_aside_cannot_be_read() {
    let cases = [
        (
            json!({"handle": "nope"}),
            "[no spilled tool result for handle 'nope']",
        ),
        (
            json!({"handle": "x", "cursor": -1}),
            "invalid `cursor`: expected 0 or more",
        ),
        (
            json!({"handle": "x", "count": 0}),
            "invalid `count`: expected 1 or more",
        ),
    ];
    for (arguments, expected) in cases {
        let server = ModelServer::start();
        server.script(Reply::new().call("r", "spill_read", &arguments.to_string()));
        server.script(Reply::text("ok"));
        let fixture = AgentFixture::asking(&server.url());
        let running = fixture.framework.open_scope().await.unwrap();
        fixture
            .own_turn(ChannelMessage::new("s", "lab", "read"))
            .await
            .unwrap();
        let text = json!(shown(&server)).to_string();
        let expected = Value::from(expected).to_string();
        assert!(
            text.contains(expected.trim_matches('"')),
            "{expected}: {text}"
        );
        running.close().await.unwrap();
    }
}

// H-133: a threshold of 0 disables spilling.
#[tokio::test]
async fn a_threshold_of_zero_puts_nothing_aside() {
    let server = ModelServer::start();
    server.script(Reply::new().call("a", "bash", r#"{"command": "seq 1 12000"}"#));
    server.script(Reply::text("done"));
    let fixture =
        AgentFixture::asking_so(&server.url(), &[("BUB_SPILL_THRESHOLD", "0")], |builder| {
            builder
        });
    fixture
        .own_turn(ChannelMessage::new("s", "lab", "go"))
        .await
        .unwrap();
    let tool = shown(&server)
        .into_iter()
        .find(|m| m["role"] == "tool")
        .unwrap();
    assert!(tool["content"].as_str().unwrap().ends_with("12000"));
}

/// Returns every file below a directory that contains this text.
fn files_with(directory: &Path, text: &str) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let matches = entries.flat_map(|path| {
        if path.is_dir() {
            return files_with(&path, text);
        }
        let bytes = std::fs::read(&path).unwrap_or_default();
        if String::from_utf8_lossy(&bytes).contains(text) {
            vec![path]
        } else {
            Vec::new()
        }
    });
    matches.collect()
}

// L7: a secret in the result of a tool reaches neither the disk nor the model.
#[tokio::test]
async fn no_result_of_a_tool_carries_a_secret() {
    /// Contains a quote, which JSON escapes.
    const QUOTED: &str = "top\"secret\"token";
    const SECRET: &str = "correct-horse-battery";

    struct LeakingPlugin;

    #[hooks(crate = bub_kernel)]
    impl LeakingPlugin {
        fn before_tool_call(&self, call: &ToolCall) -> Option<ToolDecision> {
            let filler = "x".repeat(90_000);
            let object = json!({"a": [SECRET, {"b": QUOTED}], SECRET: 1});
            Some(match call.arguments["command"].as_str()? {
                "long text" => {
                    ToolDecision::Replace(format!("{SECRET}{filler}{SECRET} {QUOTED}").into())
                }
                "object" => ToolDecision::Replace(object),
                "long object" => ToolDecision::Replace(json!([object, filler, object])),
                _ => ToolDecision::Deny(Some(format!("{filler}{SECRET}{QUOTED}"))),
            })
        }
    }

    let server = ModelServer::start();
    let mut calls = Reply::new();
    for command in ["long text", "object", "long object", "failure"] {
        calls = calls.call(command, "bash", &json!({"command": command}).to_string());
    }
    server.script(calls);
    server.script(Reply::text("done"));
    let quoted = ("BUB_WEBHOOK_TOKEN", QUOTED);
    let fixture = AgentFixture::asking_so(&server.url(), &[quoted], |builder| {
        builder.plugin("leaking", LeakingPlugin)
    });
    let running = fixture.framework.open_scope().await.unwrap();
    fixture
        .own_turn(ChannelMessage::new("s", "lab", "go"))
        .await
        .unwrap();
    running.close().await.unwrap();

    let results: Vec<_> = shown(&server)
        .into_iter()
        .filter(|message| message["role"] == "tool")
        .collect();
    assert_eq!(results.len(), 4);
    for number in [0, 2] {
        let result = results[number]["content"].as_str().unwrap();
        assert!(
            result.starts_with("[tool output spilled:") && result.contains("***"),
            "{result}"
        );
    }
    let home = fixture.dir.path().join("home");
    assert!(
        !files_with(&home, &"x".repeat(1000)).is_empty(),
        "it was spilled"
    );
    for secret in [SECRET, QUOTED, "top\\\"secret"] {
        assert_eq!(
            files_with(&home, secret),
            Vec::<std::path::PathBuf>::new(),
            "{secret}"
        );
        let request = server.requests().last().unwrap().json().to_string();
        assert!(!request.contains(secret), "{request}");
    }
}
