//! Kills `bub run` in the middle of a tool call: finished calls stay finished, no process is left, and the session
//! continues.

use std::{
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use bub_testkit::model::{ModelServer, Reply};
use serde_json::{Value, json};

use crate::sandbox::{Run, Sandbox, bub, signal, wait_until};

const INTERRUPTED: &str =
    "[interrupted: outcome unknown; check whether it took effect before repeating]";

/// Returns the entries of the only tape.
fn tape_entries(sandbox: &Sandbox) -> Vec<Value> {
    let text = tape_text(sandbox);
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Returns the role of a message or the kind of another entry of the conversation.
fn conversation_kind(entry: &Value) -> Option<&str> {
    match entry["kind"].as_str()? {
        "message" => entry["payload"]["role"].as_str(),
        kind => Some(kind).filter(|kind| kind.starts_with("tool_")),
    }
}

/// Returns the text of all drafts.
pub(crate) fn drafts(sandbox: &Sandbox) -> String {
    let files = std::fs::read_dir(sandbox.home().join("tapes/.bub/drafts"));
    let files = files.into_iter().flatten().flatten();
    files
        .map(|file| std::fs::read_to_string(file.path()).unwrap_or_default())
        .collect()
}

fn program(sandbox: &Sandbox, server: &ModelServer, text: &str) -> Command {
    let mut command = sandbox.command(&bub());
    let base = format!("{}/v1", server.url());
    command
        .env("BUB_MODEL", "llamacpp:test")
        .env("BUB_LLAMACPP_API_BASE", base)
        .args(["run", text]);
    command
}

/// Returns whether the arguments of a process contain a text.
fn is_running(text: &str) -> bool {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let mut arguments =
        processes.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    arguments.any(|line| {
        String::from_utf8_lossy(&line)
            .replace('\0', " ")
            .contains(text)
    })
}

// L1: kill -9 in a model call. That the call began is on the tape, and what was received survives: the next turn shows it
// to the model and to the user as interrupted.
#[test]
fn a_program_killed_in_a_model_call_keeps_what_it_received() {
    let server = ModelServer::start();
    server.script(Reply::deltas(["Once upon ", "a time", " there was"]).hang_after(3));
    server.script(Reply::text("a tape."));
    let sandbox = Sandbox::new();
    let mut child = program(&sandbox, &server, "tell a story").spawn().unwrap();
    wait_until("the answer is in the draft", || {
        drafts(&sandbox).contains("Once upon ")
    });
    signal(&child, "KILL");
    child.wait().unwrap();

    let entries = tape_entries(&sandbox);
    let start = entries
        .iter()
        .rfind(|entry| entry["payload"]["name"] == "loop.step.start");
    let prompt = entries
        .iter()
        .find(|entry| entry["payload"]["role"] == "user")
        .unwrap();
    let view = &start.unwrap()["payload"]["data"]["view"];
    assert_eq!(view, &json!([[prompt["id"], prompt["id"]]]));
    let begun = entries
        .iter()
        .find(|entry| entry["payload"]["name"] == "loop.start");
    assert_eq!(begun.unwrap()["payload"]["data"]["model"], "llamacpp:test");
    assert_eq!(sandbox.bub(["tape", "check"]).code, Some(0));

    let run = Run::from_output(program(&sandbox, &server, "and then?").output().unwrap());
    assert_eq!(run.stdout, "a tape.\n");
    assert!(
        run.stderr.contains("message: tell a story"),
        "{}",
        run.stderr
    );
    assert!(
        run.stderr.contains("answer so far: Once upon"),
        "{}",
        run.stderr
    );
    let request = server.requests().last().unwrap().json();
    let messages = request["messages"].as_array().unwrap();
    let roles: Vec<_> = messages
        .iter()
        .map(|message| message["role"].as_str().unwrap())
        .collect();
    assert_eq!(roles, ["system", "user", "assistant", "user"]);
    let partial = messages[2]["content"].as_str().unwrap();
    assert!(partial.starts_with("Once upon "), "{partial}");
    assert!(partial.ends_with("\n\n[interrupted: the answer ends here because bub was stopped]"));
    assert_eq!(drafts(&sandbox), "");
    // The next turn is complete, so nothing is offered again.
    server.script(Reply::text("fine"));
    assert_eq!(
        program(&sandbox, &server, "thanks")
            .output()
            .unwrap()
            .stderr,
        b""
    );
    let statuses: Vec<_> = tape_entries(&sandbox)
        .iter()
        .filter(|entry| entry["payload"]["name"] == "loop.step")
        .map(|entry| entry["payload"]["data"]["status"].clone())
        .collect();
    assert_eq!(statuses, ["error", "ok", "ok"]);
}

// L1, L3, design §5: kill -9 in the middle of a tool. The next run shows the finished call as done and the open one as
// interrupted; neither runs again, and no process is left.
#[test]
fn a_program_killed_in_the_middle_of_a_tool_resumes() {
    let server = ModelServer::start();
    // A command does not know its process number outside the sandbox, so a number that is unique finds it.
    let sleep = format!("sleep 3{}", std::process::id());
    let command = format!(r#"{{"command": "echo two >> log; echo > started; {sleep}"}}"#);
    server.script(
        Reply::text("working")
            .call("one", "bash", r#"{"command": "echo one | tee -a log"}"#)
            .call("two", "bash", &command),
    );
    server.script(Reply::text("I see"));
    let sandbox = Sandbox::new();
    let mut child = program(&sandbox, &server, "go").spawn().unwrap();
    wait_until("the command runs", || {
        sandbox.workspace().join("started").exists()
    });
    assert!(is_running(&sleep));
    signal(&child, "KILL");
    child.wait().unwrap();
    wait_until("the command is gone", || !is_running(&sleep));

    assert_eq!(sandbox.bub(["tape", "check"]).code, Some(0));
    let run = Run::from_output(
        program(&sandbox, &server, "what happened?")
            .output()
            .unwrap(),
    );
    let hint =
        "to finish it, run `bub run --session-id 'cli:local' 'Continue the interrupted turn.'`";
    assert!(run.stderr.contains(hint), "{}", run.stderr);
    assert!(
        run.stderr.contains("outcome unknown of: bash"),
        "{}",
        run.stderr
    );
    assert_eq!(run.stdout, "I see\n");
    // The result is on the tape, before the next message, so that every reader sees a valid conversation.
    let entries = tape_entries(&sandbox);
    let conversation: Vec<&str> = entries.iter().filter_map(conversation_kind).collect();
    let expected = ["user", "tool_call", "tool_result", "user", "assistant"];
    assert_eq!(conversation, expected);
    let result = entries.iter().find(|entry| entry["kind"] == "tool_result");
    let result = result.unwrap();
    assert_eq!(result["payload"]["results"], json!(["one", INTERRUPTED]));
    assert_eq!(result["meta"]["call_ids"], json!(["one", "two"]));
    let request = server.requests().last().unwrap().json();
    let results: Vec<&Value> = request["messages"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|message| message["role"] == "tool")
        .collect();
    assert_eq!(results[0]["content"], "one");
    assert_eq!(results[1]["content"], INTERRUPTED);
    assert_eq!(
        std::fs::read_to_string(sandbox.workspace().join("log")).unwrap(),
        "one\ntwo\n"
    );
}

/// Where `bub run` is killed in a handoff.
#[derive(Clone, Copy, Debug)]
enum HandoffMoment {
    /// The model writes the summary.
    Summary,
    /// The anchor is on the tape.
    Anchor,
    /// The model was called again.
    NextCall,
}

// L1, L2: kill -9 in a handoff. The tape stays valid, a handoff is there completely or not at all, and the next run
// continues; no tool runs twice and no message is recorded twice.
#[test]
fn a_program_killed_in_a_handoff_doubles_nothing() {
    use HandoffMoment::{Anchor, NextCall, Summary};
    for moment in [Summary, Anchor, NextCall] {
        let (sandbox, server) = (Sandbox::new(), ModelServer::start());
        let text = "many words ".repeat(1_200);
        std::fs::write(sandbox.workspace().join("big.txt"), text).unwrap();
        let is_summary = |messages: &Value| messages[0]["content"] == bub::agent::HANDOFF_PROMPT;
        let (calls, is_killed) = (AtomicUsize::new(0), Arc::new(AtomicBool::new(false)));
        let killed = Arc::clone(&is_killed);
        server.answer_with(move |request| {
            let is_summary = is_summary(&request.json()["messages"]);
            let hangs = !killed.load(Ordering::SeqCst);
            match (is_summary, moment) {
                (true, Summary) if hangs => Reply::deltas(["Goal:", " a boat"]).hang_after(1),
                (true, _) => Reply::text("Goal: a boat"),
                (false, _) if calls.fetch_add(1, Ordering::SeqCst) == 0 => {
                    let command = r#"{"command": "echo ran >> log; cat big.txt"}"#;
                    Reply::new().call("a", "bash", command)
                }
                (false, _) if hangs => Reply::deltas(["so", " it goes"]).hang_after(1),
                (false, _) => Reply::text("I see"),
            }
        });
        let start = |text: &str| {
            let mut command = program(&sandbox, &server, text);
            let providers = r#"{"llamacpp": {"context_window": 6000}}"#;
            command.env("BUB_PROVIDERS", providers);
            command.env("BUB_MAX_TOKENS", "1000");
            command
        };
        let mut child = start("the first message").spawn().unwrap();
        wait_until("the handoff is written", || match moment {
            Summary => server.requests().len() == 2,
            Anchor => tape_text(&sandbox).contains("auto_handoff/context_budget"),
            NextCall => server.requests().len() == 3,
        });
        signal(&child, "KILL");
        child.wait().unwrap();
        is_killed.store(true, Ordering::SeqCst);
        assert!(
            is_summary(&server.requests()[1].json()["messages"]),
            "{moment:?}"
        );

        let check = |handoffs: usize, messages: &[&str]| {
            assert_eq!(sandbox.bub(["tape", "check"]).code, Some(0), "{moment:?}");
            let entries = tape_entries(&sandbox);
            let ids: Vec<i64> = entries
                .iter()
                .map(|entry| entry["id"].as_i64().unwrap())
                .collect();
            assert!(
                ids.is_sorted_by(|left, right| left < right),
                "{moment:?}: {ids:?}"
            );
            let payloads = |kind: &str| -> Vec<Value> {
                let entries = entries.iter().filter(|entry| entry["kind"] == kind);
                entries.map(|entry| entry["payload"].clone()).collect()
            };
            // Each anchor has its event.
            let anchors = payloads("anchor");
            let events = payloads("event").into_iter();
            let events = events.filter(|event| event["name"] == "handoff");
            let events: Vec<Value> = events.map(|event| event["data"].clone()).collect();
            assert_eq!(anchors, events, "{moment:?}");
            assert_eq!(anchors.len(), 1 + handoffs, "{moment:?}");
            let users = payloads("message").into_iter();
            let users: Vec<Value> = users.filter(|message| message["role"] == "user").collect();
            assert_eq!(users.len(), messages.len(), "{moment:?}: {users:?}");
            for (user, expected) in users.iter().zip(messages) {
                assert!(
                    user["content"].as_str().unwrap().ends_with(expected),
                    "{moment:?}"
                );
            }
            assert_eq!(payloads("tool_call").len(), 1, "{moment:?}");
        };
        let is_written = !matches!(moment, Summary);
        check(usize::from(is_written), &["the first message"]);
        let run = Run::from_output(start("and then?").output().unwrap());
        assert_eq!(run.stdout, "I see\n", "{moment:?}: {}", run.stderr);
        // If the first handoff is missing, the next run writes it.
        check(1, &["the first message", "and then?"]);
        let log = std::fs::read_to_string(sandbox.workspace().join("log")).unwrap();
        assert_eq!(log, "ran\n", "{moment:?}");
    }
}

/// Returns the text of the only tape.
fn tape_text(sandbox: &Sandbox) -> String {
    let files = std::fs::read_dir(sandbox.home().join("tapes"));
    let files = files.into_iter().flatten().flatten();
    let mut files = files.map(|file| file.path());
    let file = files.find(|path| {
        path.extension()
            .is_some_and(|extension| extension == "jsonl")
    });
    file.map(|file| std::fs::read_to_string(file).unwrap())
        .unwrap_or_default()
}
