//! The agent loop: steps, tools, steering, limits, cancellation.

use std::sync::{Arc, Mutex};

use bub_kernel::{
    CancellationToken, ChannelMessage, Envelope, Error, Inbound, LlmDecision, LlmRequest, Result,
    SessionId, ToolCall, ToolDecision, Turn, hooks, tool,
};
use bub_tape::{Entry, EntryKind, EntryRange, ViewOptions};
use bub_testkit::model::{Finish, ModelServer, Reply};
use serde_json::{Value, json};

use crate::{
    harness::{AgentFixture, owned},
    recording::tape_of,
};

pub(crate) async fn entries(fixture: &AgentFixture, session: &str) -> Vec<Entry> {
    tape_of(fixture, session)
        .entries(EntryRange::ALL)
        .await
        .unwrap()
}

/// Returns the data of the events with this name.
pub(crate) fn events(entries: &[Entry], name: &str) -> Vec<Value> {
    let matches = entries
        .iter()
        .filter(|entry| entry.kind == EntryKind::Event && entry.name() == Some(name));
    matches
        .map(|entry| entry.data().cloned().unwrap_or_default())
        .collect()
}

/// Returns the messages of the last model request, without the system prompt.
pub(crate) fn shown(server: &ModelServer) -> Vec<Value> {
    let request = server.requests().last().unwrap().json();
    request["messages"].as_array().unwrap()[1..].to_vec()
}

/// Returns the number and the status of each step. Checks that each step has exactly one status, after its start.
pub(crate) fn step_statuses(entries: &[Entry]) -> Vec<String> {
    let (mut open, mut statuses) = (None, Vec::new());
    for entry in entries {
        let data = entry.data().cloned().unwrap_or_default();
        match entry.name() {
            Some("loop.step.start") => {
                let number = data["step"].as_u64();
                assert_eq!(
                    std::mem::replace(&mut open, number),
                    None,
                    "a step without status"
                );
            }
            Some("loop.step") => {
                assert_eq!(open.take(), data["step"].as_u64(), "a status without step");
                let status = data["status"].as_str().unwrap();
                statuses.push(format!("{} {status}", data["step"]));
            }
            _ => {}
        }
    }
    assert_eq!(open, None, "a step without status");
    statuses
}

fn message(text: &str) -> Inbound {
    owned(ChannelMessage::new("s", "lab", text))
}

// S-31, H-70, H-71, H-74, W-23: tools run until the model requests none; the tape records every step; the texts of
// the steps are separated.
#[tokio::test]
async fn tools_run_until_the_model_has_nothing_more_to_ask() {
    let server = ModelServer::start();
    server.script(Reply::text("let me look").call(
        "c1",
        "bash",
        r#"{"command": "echo found; exit 3"}"#,
    ));
    server.script(Reply::new().call("c2", "fs_write", r#"{"path": "a.txt", "content": "hi"}"#));
    server.script(Reply::text("done"));
    let fixture = AgentFixture::asking(&server.url());
    let running = fixture.framework.open_scope().await.unwrap();
    let result = fixture
        .own_turn(ChannelMessage::new("s", "lab", "go"))
        .await
        .unwrap();
    assert_eq!(result.model_output, "let me look\n\ndone");
    assert_eq!(
        std::fs::read_to_string(fixture.dir.path().join("workspace/a.txt")).unwrap(),
        "hi"
    );

    let entries = entries(&fixture, "s").await;
    let steps: Vec<_> = events(&entries, "loop.step")
        .iter()
        .map(|step| step["status"].clone())
        .collect();
    assert_eq!(steps, ["continue", "continue", "ok"]);
    let starts: Vec<_> = events(&entries, "loop.step.start")
        .iter()
        .map(|step| step["step"].clone())
        .collect();
    assert_eq!(starts, [1, 2, 3]);
    let start = &events(&entries, "loop.start")[0];
    assert_eq!(
        (&start["model"], &start["allowed_tools"]),
        (&json!("llamacpp:test"), &Value::Null)
    );
    let call = entries
        .iter()
        .find(|entry| entry.kind == EntryKind::ToolCall)
        .unwrap();
    assert_eq!(call.payload["content"], "let me look");
    assert_eq!(call.meta["call_ids"], json!(["c1"]));
    let result = entries
        .iter()
        .find(|entry| entry.kind == EntryKind::ToolResult)
        .unwrap();
    assert_eq!(result.payload["results"][0]["kind"], "tool");
    assert_eq!(
        result.payload["results"][0]["message"],
        "command exited with code 3\noutput:\nfound"
    );
    // The call is on the tape before its result, with the same run id.
    assert!(call.id < result.id && call.meta["run_id"] == result.meta["run_id"]);

    let shown = shown(&server);
    let roles: Vec<_> = shown
        .iter()
        .map(|message| message["role"].as_str().unwrap().to_owned())
        .collect();
    // P-34, P-35: no message but those of the conversation.
    let expected = ["user", "assistant", "tool", "assistant", "tool"];
    assert_eq!(roles, expected, "{shown:#?}");
    running.close().await.unwrap();
}

// P-35, P-132: the next step has a prompt only if a plugin returns one.
#[tokio::test]
async fn the_next_step_has_the_prompt_of_a_plugin_or_none() {
    struct ContinuingPlugin;

    #[hooks(crate = bub_kernel)]
    impl ContinuingPlugin {
        fn continue_prompt(&self) -> String {
            "Go on.".to_owned()
        }
    }

    let script = |server: &ModelServer| {
        server.script(Reply::new().call("c1", "tape_info", "{}"));
        server.script(Reply::text("done"));
    };
    let server = ModelServer::start();
    let plain = AgentFixture::asking(&server.url());
    let continuing = AgentFixture::asking_with(&server.url(), "continuing", ContinuingPlugin);
    for (fixture, role, prompt) in [
        (plain, "tool", Value::Null),
        (continuing, "user", json!("Go on.")),
    ] {
        script(&server);
        let running = fixture.framework.open_scope().await.unwrap();
        let message = ChannelMessage::new("s", "lab", "go").context("sender_id", "ada");
        fixture.own_turn(message).await.unwrap();
        assert_eq!(shown(&server).pop().unwrap()["role"], role);
        let starts = events(&entries(&fixture, "s").await, "loop.step.start");
        assert_eq!(starts[1]["prompt"], prompt);
        running.close().await.unwrap();
    }
}

// P-39: a skill that a message names stays in the system prompt in all steps, which is then the same in each of them.
#[tokio::test]
async fn a_named_skill_stays_loaded_in_all_steps() {
    let server = ModelServer::start();
    server.script(Reply::new().call("c1", "tape_info", "{}"));
    server.script(Reply::text("done"));
    let fixture = AgentFixture::asking(&server.url());
    fixture
        .own_turn(ChannelMessage::new("s", "lab", "use $gh"))
        .await
        .unwrap();
    let requests = server.requests();
    let systems: Vec<_> = requests
        .iter()
        .map(|request| request.json()["messages"][0]["content"].clone())
        .collect();
    assert_eq!(systems.len(), 2);
    assert_eq!(systems[0], systems[1]);
    assert!(systems[0].as_str().unwrap().contains("  Location: "));
}

// H-37, H-111, W-39: every problem with a call is reported to the model, and the turn continues.
#[tokio::test]
async fn a_wrong_call_is_answered_and_the_turn_goes_on() {
    let cases = [
        (
            Reply::new().call("c", "fs_raed", "{}"),
            "Did you mean one of the following?",
        ),
        (Reply::new().call("c", "frobnicate", "{}"), "invoke `skill`"),
        // A shell would expand the mark of a redacted name to all files.
        (
            Reply::new().call("c", "bash", r#"{"command": "rm ***"}"#),
            "the command contains `***`",
        ),
        (
            Reply::new().call("c", "fs_read", r#"{"path": "a", "color": 1}"#),
            "unknown argument 'color'",
        ),
        (Reply::new().call("c", "fs_read", "{}"), "path"),
        (
            Reply::new().call("c", "fs_read", r#"{"path": "#),
            "not valid JSON",
        ),
        (
            Reply::new().call("c", "fs_read", "[1]"),
            "not a JSON object",
        ),
        (
            Reply::new()
                .call("c", "fs_read", r#"{"path": "a"#)
                .finish(Finish::Length),
            "truncated",
        ),
        (
            Reply::new()
                .call("c", "fs_read", r#"{"path": "a"}"#)
                .finish(Finish::Filter),
            "the provider stopped the answer (content_filter); the call did not run",
        ),
        (
            Reply::new().call("c", "fs_read", r#"{"path": "no-such-file"}"#),
            "no-such-file",
        ),
    ];
    for (reply, expected) in cases {
        let server = ModelServer::start();
        server.script(reply);
        server.script(Reply::text("sorry"));
        let fixture = AgentFixture::asking(&server.url());
        let result = fixture
            .own_turn(ChannelMessage::new("s", "lab", "go"))
            .await
            .unwrap();
        assert_eq!(result.model_output, "sorry", "{expected}");
        let results: Vec<_> = shown(&server)
            .into_iter()
            .filter(|message| message["role"] == "tool")
            .collect();
        let text = results[0]["content"].as_str().unwrap().to_owned();
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

// W-30: calls that change something run one after the other, in order.
#[tokio::test]
async fn calls_of_one_response_run_in_order() {
    let server = ModelServer::start();
    let write = r#"{"command": "sleep 0.2; echo one > log"}"#;
    server.script(Reply::new().call("a", "bash", write).call(
        "b",
        "bash",
        r#"{"command": "echo two >> log"}"#,
    ));
    server.script(Reply::text("done"));
    let fixture = AgentFixture::asking(&server.url());
    let running = fixture.framework.open_scope().await.unwrap();
    fixture
        .own_turn(ChannelMessage::new("s", "lab", "go"))
        .await
        .unwrap();
    assert_eq!(
        std::fs::read_to_string(fixture.dir.path().join("workspace/log")).unwrap(),
        "one\ntwo\n"
    );
    // Each result is on the tape as soon as its call is done.
    assert_eq!(events(&entries(&fixture, "s").await, "tool.done").len(), 2);
    running.close().await.unwrap();
}

/// Waits for a second call, so that it ends only if two calls run concurrently.
#[tool(crate = bub_kernel, read_only)]
async fn meet(name: String) -> String {
    static BARRIER: std::sync::LazyLock<tokio::sync::Barrier> =
        std::sync::LazyLock::new(|| tokio::sync::Barrier::new(2));
    BARRIER.wait().await;
    name
}

// W-30: read-only calls run concurrently; their results keep their order.
#[tokio::test]
async fn calls_that_only_read_run_side_by_side() {
    let server = ModelServer::start();
    server.script(Reply::new().call("a", "meet", r#"{"name": "x"}"#).call(
        "b",
        "meet",
        r#"{"name": "y"}"#,
    ));
    server.script(Reply::text("done"));
    let fixture = AgentFixture::asking_so(&server.url(), &[], |builder| builder.tool(meet()));
    fixture
        .own_turn(ChannelMessage::new("s", "lab", "go"))
        .await
        .unwrap();
    let results: Vec<_> = shown(&server)
        .into_iter()
        .filter(|m| m["role"] == "tool")
        .collect();
    assert_eq!(
        (&results[0]["content"], &results[1]["content"]),
        (&json!("x"), &json!("y"))
    );
}

/// Panics.
#[tool(crate = bub_kernel)]
async fn blow_up() -> String {
    panic!("boom")
}

// L8: a tool that panics fails only its own call.
#[tokio::test]
async fn a_tool_that_panics_is_a_failed_call() {
    let server = ModelServer::start();
    server.script(Reply::new().call("a", "blow_up", "{}"));
    server.script(Reply::text("done"));
    let fixture = AgentFixture::asking_so(&server.url(), &[], |builder| builder.tool(blow_up()));
    let result = fixture
        .own_turn(ChannelMessage::new("s", "lab", "go"))
        .await
        .unwrap();
    assert_eq!(result.model_output, "done");
}

// H-71, W-32: the number of steps per turn is limited.
#[tokio::test]
async fn a_turn_ends_at_the_limit_of_its_steps() {
    let server = ModelServer::start();
    for step in 0..4 {
        server.script(Reply::new().call("a", "bash", &format!(r#"{{"command": "echo {step}"}}"#)));
    }
    let fixture =
        AgentFixture::asking_so(&server.url(), &[("BUB_MAX_STEPS", "3")], |builder| builder);
    let running = fixture.framework.open_scope().await.unwrap();
    let error = fixture
        .own_turn(ChannelMessage::new("s", "lab", "go"))
        .await
        .unwrap_err();
    let expected = "max_steps_reached=3; the turn stopped after 3 steps: send `continue` to go on, or raise `max_steps`";
    assert_eq!(error.message(), expected);
    assert_eq!(server.requests().len(), 3);
    let entries = entries(&fixture, "s").await;
    let failure = entries.iter().rfind(|entry| entry.kind == EntryKind::Error);
    assert_eq!(failure.unwrap().payload["message"], expected);
    assert_eq!(
        step_statuses(&entries),
        ["1 continue", "2 continue", "3 continue"]
    );
    running.close().await.unwrap();
}

// A model that repeats the same call gets a warning, then a refusal, and then the turn ends.
#[tokio::test]
async fn a_model_that_repeats_itself_is_stopped() {
    let server = ModelServer::start();
    server.otherwise(Reply::new().call("a", "bash", r#"{"command": "echo x | tee -a log"}"#));
    let fixture = AgentFixture::asking(&server.url());
    let error = fixture
        .own_turn(ChannelMessage::new("s", "lab", "go"))
        .await
        .unwrap_err();
    assert!(error.message().contains("the same tool call"), "{error}");
    let ran = std::fs::read_to_string(fixture.dir.path().join("workspace/log")).unwrap();
    assert_eq!(ran.lines().count(), 5, "refused from the sixth on");
    assert_eq!(server.requests().len(), 8);
}

// H-73, S-54, W-47: steering messages come before the prompt of the next step, once, and only in their session. A
// comma command runs with the role of its sender, and the model does not see it.
#[tokio::test]
async fn steering_messages_reach_the_next_step() {
    struct SteeringPlugin(Mutex<bool>);

    #[hooks(crate = bub_kernel)]
    impl SteeringPlugin {
        async fn after_tool_call(&self, turn: &Turn) -> Result<Option<Value>> {
            if !std::mem::replace(&mut *self.0.lock().unwrap(), true) {
                let messages: [Inbound; 6] = [
                    owned(ChannelMessage::new("s", "lab", "see ,touch named")),
                    // P-47
                    owned(ChannelMessage::new("s", "lab", " ,touch spaced")),
                    ChannelMessage::new("s", "lab", "in French!").into(),
                    owned(ChannelMessage::new("s", "lab", ",echo ran")),
                    ChannelMessage::new("s", "lab", ",touch pwned").into(),
                    ChannelMessage::new("other", "lab", "not here").into(),
                ];
                for message in messages {
                    let session_id =
                        SessionId::from(message.message.session_id().unwrap().as_ref());
                    let framework = turn.framework();
                    assert!(framework.steer_message(&session_id, message).await?);
                }
            }
            Ok(None)
        }
    }

    let server = ModelServer::start();
    server.script(Reply::new().call("a", "tape_info", "{}"));
    server.script(Reply::text("fini"));
    let fixture = AgentFixture::asking_so(&server.url(), &[], |b| {
        b.plugin("steering", SteeringPlugin(Mutex::new(false)))
    });
    let running = fixture.framework.open_scope().await.unwrap();
    let result = fixture
        .own_turn(ChannelMessage::new("s", "lab", "go"))
        .await
        .unwrap();
    assert!(
        result.model_output.contains(",echo ran\nran"),
        "{}",
        result.model_output
    );
    assert!(
        result.model_output.contains("denied by policy"),
        "{}",
        result.model_output
    );
    assert!(!fixture.dir.path().join("workspace/pwned").exists());
    let shown = shown(&server);
    let texts: Vec<_> = shown
        .iter()
        .map(|m| m["content"].as_str().unwrap_or_default().to_owned())
        .collect();
    assert!(texts[texts.len() - 1].ends_with("in French!"), "{texts:#?}");
    // As at the start of a turn, only a comma before the first word makes a command.
    assert!(
        texts[texts.len() - 2].ends_with("see ,touch named"),
        "{texts:#?}"
    );
    assert!(!fixture.dir.path().join("workspace/named").exists());
    assert!(fixture.dir.path().join("workspace/spaced").exists());
    assert!(
        !texts.iter().any(|text| text.contains("echo ran")),
        "{texts:#?}"
    );
    assert!(!texts.iter().any(|text| text.contains("not here")));
    let inbox = fixture.framework.steering_inbox().unwrap();
    let count = |session: &str| inbox.count(&SessionId::from(session));
    assert_eq!((count("s"), count("other")), (0, 1));
    running.close().await.unwrap();
}

// H-73: messages that are queued when a turn starts come before its prompt, and a message that arrives at the very
// end is not lost.
#[tokio::test]
async fn what_waits_before_the_turn_comes_before_its_question() {
    let server = ModelServer::start();
    server.script(Reply::text("ok"));
    let fixture = AgentFixture::asking(&server.url());
    let running = fixture.framework.open_scope().await.unwrap();
    let early = ChannelMessage::new("s", "lab", "early").into();
    let session_id = SessionId::from("s");
    let steered = fixture.framework.steer_message(&session_id, early).await;
    assert!(steered.unwrap());
    fixture
        .own_turn(ChannelMessage::new("s", "lab", "question"))
        .await
        .unwrap();
    let texts: Vec<_> = shown(&server)
        .iter()
        .map(|m| m["content"].as_str().unwrap().to_owned())
        .collect();
    assert!(
        texts[0].ends_with("early") && texts[1].ends_with("question"),
        "{texts:#?}"
    );
    running.close().await.unwrap();
}

// H-33…H-36: hooks around calls change requests, answers, calls and results; their changes are on the tape.
#[tokio::test]
async fn hooks_around_the_calls_have_the_last_word() {
    struct WatchingPlugin;

    #[hooks(crate = bub_kernel)]
    impl WatchingPlugin {
        fn before_llm_call(&self, request: &LlmRequest) -> Option<LlmDecision> {
            let done = request
                .messages
                .iter()
                .any(|message| message["role"] == "tool");
            done.then(|| LlmDecision::Finish("enough".to_owned()))
        }

        fn before_tool_call(&self, call: &ToolCall) -> Option<ToolDecision> {
            match call.arguments.get("command")?.as_str()? {
                "deny" => Some(ToolDecision::Deny(None)),
                "replace" => Some(ToolDecision::Replace("something else".into())),
                _ => Some(ToolDecision::Proceed(Some(
                    json!({"command": "echo changed"})
                        .as_object()
                        .unwrap()
                        .clone(),
                ))),
            }
        }

        fn after_tool_call(&self, result: &bub_kernel::ToolOutcome) -> Option<Value> {
            let text = result.result.as_ref().ok()?.as_str()?;
            (text == "changed").then(|| "changed twice".into())
        }
    }

    let server = ModelServer::start();
    server.script(
        Reply::new()
            .call("a", "bash", r#"{"command": "deny"}"#)
            .call("b", "bash", r#"{"command": "replace"}"#)
            .call("c", "bash", r#"{"command": "run"}"#),
    );
    let fixture = AgentFixture::asking_with(&server.url(), "watching", WatchingPlugin);
    let running = fixture.framework.open_scope().await.unwrap();
    let result = fixture
        .own_turn(ChannelMessage::new("s", "lab", "go"))
        .await
        .unwrap();
    assert_eq!(result.model_output, "enough");
    assert_eq!(
        server.requests().len(),
        1,
        "the second call was answered by the hook"
    );
    let entries = entries(&fixture, "s").await;
    let results = &entries
        .iter()
        .find(|entry| entry.kind == EntryKind::ToolResult)
        .unwrap()
        .payload["results"];
    assert_eq!(
        results[0]["message"],
        "Tool 'bash' call denied by policy hook."
    );
    assert_eq!(
        (&results[1], &results[2]),
        (&json!("something else"), &json!("changed twice"))
    );
    let actions: Vec<_> = events(&entries, "hook")
        .iter()
        .map(|note| note["action"].clone())
        .collect();
    assert_eq!(
        actions,
        ["denied", "replaced", "rewrote", "rewrote", "finished"]
    );
    running.close().await.unwrap();
}

// H-34: a hook that gets a failed call gets the reason.
#[tokio::test]
async fn a_failed_call_is_seen_by_after_llm_call_once() {
    struct WatchingPlugin(Arc<Mutex<Vec<Option<String>>>>);

    #[hooks(crate = bub_kernel)]
    impl WatchingPlugin {
        fn after_llm_call(&self, result: &bub_kernel::LlmResult) {
            self.0
                .lock()
                .unwrap()
                .push(result.error.as_ref().map(ToString::to_string));
        }
    }

    let seen = Arc::default();
    let server = ModelServer::start();
    server.script(Reply::text("fine"));
    server.otherwise(Reply::status(401));
    let fixture =
        AgentFixture::asking_with(&server.url(), "watching", WatchingPlugin(Arc::clone(&seen)));
    fixture
        .own_turn(ChannelMessage::new("s", "lab", "go"))
        .await
        .unwrap();
    fixture
        .own_turn(ChannelMessage::new("s", "lab", "go"))
        .await
        .unwrap_err();
    let seen = seen.lock().unwrap();
    assert!(
        matches!(&seen[..], [None, Some(error)] if error.contains("401")),
        "{seen:?}"
    );
}

// A stream that breaks in a tool call is repeated, because no tool has run. The tape has the second answer only.
#[tokio::test]
async fn an_answer_that_breaks_in_a_tool_call_is_repeated_and_its_tool_runs_once() {
    let server = ModelServer::start();
    let command = r#"{"cmd": "echo ran >> log"}"#;
    let busy = json!({"type": "overloaded_error", "message": "Overloaded"});
    let first = Reply::text("I look.").call("a", "bash", command);
    server.script(first.error_event(busy));
    server.script(Reply::text("I look again.").call("b", "bash", command));
    server.script(Reply::text("done"));
    let fixture = AgentFixture::asking(&server.url());
    let running = fixture.framework.open_scope().await.unwrap();
    let result = fixture
        .own_turn(ChannelMessage::new("s", "lab", "go"))
        .await
        .unwrap();
    assert_eq!(result.model_output, "I look.\n\nI look again.\n\ndone");
    let log = fixture.dir.path().join("workspace/log");
    assert_eq!(std::fs::read_to_string(log).unwrap(), "ran\n");
    let entries = entries(&fixture, "s").await;
    let calls = entries
        .iter()
        .filter(|entry| entry.kind == EntryKind::ToolCall);
    let calls: Vec<_> = calls.map(|entry| &entry.payload["content"]).collect();
    assert_eq!(calls, ["I look again."]);
    assert_eq!(step_statuses(&entries), ["1 continue", "2 ok"]);
    running.close().await.unwrap();
}

// If a turn is cancelled during a tool call, the command ends, the tape stays valid, and the next turn sees the call
// as interrupted.
#[tokio::test]
async fn a_turn_cancelled_in_the_middle_of_a_tool_leaves_a_valid_tape() {
    let server = ModelServer::start();
    let command = r#"{"command": "echo $$ > pid; sleep 60"}"#;
    let calls = Reply::text("one moment")
        .call("z", "bash", r#"{"command": "echo zero"}"#)
        .call("a", "bash", command);
    server.script(calls.call("b", "bash", r#"{"command": "echo never"}"#));
    server.script(Reply::text("I was interrupted"));
    let fixture = AgentFixture::asking(&server.url());
    let running = fixture.framework.open_scope().await.unwrap();
    let cancel = CancellationToken::new();
    let pid = fixture.dir.path().join("workspace/pid");
    let canceller = async {
        while std::fs::read_to_string(&pid)
            .unwrap_or_default()
            .trim()
            .is_empty()
        {
            tokio::task::yield_now().await;
        }
        cancel.cancel();
    };
    let (outcome, ()) = tokio::join!(
        fixture.turn(message("go").with_cancel(cancel.clone())),
        canceller
    );
    assert_eq!(
        outcome.unwrap_err().kind(),
        bub_kernel::ErrorKind::Cancelled
    );
    let pid = std::fs::read_to_string(&pid).unwrap();
    let stat = format!("/proc/{}/stat", pid.trim());
    while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
        tokio::task::yield_now().await;
    }
    let entries = entries(&fixture, "s").await;
    assert_eq!(step_statuses(&entries), ["1 error"]);
    let view = tape_of(&fixture, "s")
        .view(&ViewOptions::new())
        .await
        .unwrap();
    assert_eq!(
        view.messages
            .iter()
            .filter(|message| message["role"] == "tool")
            .count(),
        3
    );
    // The results have the state of each call: done, interrupted, not started.
    let closed = entries
        .iter()
        .rfind(|entry| entry.kind == EntryKind::ToolResult)
        .unwrap();
    assert_eq!(
        closed.payload["results"],
        json!(["zero", bub_tape::INTERRUPTED_RESULT, "[not run]"])
    );
    fixture
        .own_turn(ChannelMessage::new("s", "lab", "what happened?"))
        .await
        .unwrap();
    let shown = shown(&server);
    let tools: Vec<_> = shown
        .iter()
        .filter(|message| message["role"] == "tool")
        .collect();
    assert_eq!(tools[1]["content"], bub_tape::INTERRUPTED_RESULT);
    running.close().await.unwrap();
}

// If a turn is cancelled while the model answers, the partial answer is on the tape, and the connection is closed.
#[tokio::test]
async fn a_turn_cancelled_in_the_middle_of_an_answer_keeps_what_was_said() {
    struct CancellingPlugin(CancellationToken);

    #[hooks(crate = bub_kernel)]
    impl CancellingPlugin {
        async fn run_model_stream(
            &self,
            next: bub_kernel::hooks::Next<'_, bub_kernel::hooks::point::RunModelStream>,
        ) -> Result<Option<bub_kernel::ModelStream>> {
            let cancel = self.0.clone();
            let stream = next.call().await?;
            Ok(stream.map(|stream| {
                stream.map_events(move |event| {
                    if matches!(&event, bub_kernel::StreamEvent::Text(text) if text == "half") {
                        cancel.cancel();
                    }
                    event
                })
            }))
        }
    }

    let server = ModelServer::start();
    server.script(Reply::deltas(["half", " an answer"]).hang_after(2));
    let cancel = CancellationToken::new();
    let fixture =
        AgentFixture::asking_with(&server.url(), "stopping", CancellingPlugin(cancel.clone()));
    let running = fixture.framework.open_scope().await.unwrap();
    fixture
        .turn(message("go").with_cancel(cancel))
        .await
        .unwrap_err();
    let entries = entries(&fixture, "s").await;
    let said = entries
        .iter()
        .find(|entry| entry.payload.get("role") == Some(&json!("assistant")))
        .unwrap();
    assert!(
        said.payload["content"]
            .as_str()
            .unwrap()
            .starts_with("half")
    );
    assert!(
        entries
            .iter()
            .any(|entry| entry.kind == EntryKind::Error && entry.payload["kind"] == "cancelled")
    );
    running.close().await.unwrap();
}

// A command that steered the turn does not complete it: the record is completed also if the turn is cancelled later.
#[tokio::test]
async fn a_turn_cancelled_after_a_steered_command_keeps_what_was_said() {
    struct CancellingPlugin(CancellationToken);

    #[hooks(crate = bub_kernel)]
    impl CancellingPlugin {
        async fn after_tool_call(&self, call: &ToolCall, turn: &Turn) -> Result<Option<Value>> {
            if call.tool == "tape.info" {
                let command = owned(ChannelMessage::new("s", "lab", ",echo ran"));
                let session_id = turn.session_id();
                assert!(turn.framework().steer_message(session_id, command).await?);
            }
            Ok(None)
        }

        async fn run_model_stream(
            &self,
            next: bub_kernel::hooks::Next<'_, bub_kernel::hooks::point::RunModelStream>,
        ) -> Result<Option<bub_kernel::ModelStream>> {
            let cancel = self.0.clone();
            let stream = next.call().await?;
            Ok(stream.map(|stream| {
                stream.map_events(move |event| {
                    if matches!(&event, bub_kernel::StreamEvent::Text(text) if text == "half") {
                        cancel.cancel();
                    }
                    event
                })
            }))
        }
    }

    let server = ModelServer::start();
    server.script(Reply::new().call("a", "tape_info", "{}"));
    server.script(Reply::deltas(["half", " an answer"]).hang_after(2));
    let cancel = CancellationToken::new();
    let fixture =
        AgentFixture::asking_with(&server.url(), "stopping", CancellingPlugin(cancel.clone()));
    let running = fixture.framework.open_scope().await.unwrap();
    let outcome = fixture.turn(message("go").with_cancel(cancel)).await;
    outcome.unwrap_err();
    let entries = entries(&fixture, "s").await;
    let ran = &events(&entries, "command")[0];
    assert_eq!(
        (&ran["raw"], &ran["status"]),
        (&json!("echo ran"), &json!("ok"))
    );
    let said = entries
        .iter()
        .rfind(|entry| entry.payload.get("role") == Some(&json!("assistant")))
        .unwrap();
    assert!(
        said.payload["content"]
            .as_str()
            .unwrap()
            .starts_with("half")
    );
    let errors = entries
        .iter()
        .filter(|entry| entry.kind == EntryKind::Error);
    assert_eq!(errors.count(), 1);
    assert_eq!(
        events(&entries, "loop.step").last().unwrap()["status"],
        "error"
    );
    running.close().await.unwrap();
}

// H-70: an empty prompt is answered without a model and leaves nothing on the tape.
#[tokio::test]
async fn an_empty_prompt_leaves_no_trace() {
    let server = ModelServer::start();
    let fixture = AgentFixture::asking(&server.url());
    let running = fixture.framework.open_scope().await.unwrap();
    let result = fixture
        .own_turn(Envelope::from_text("").with("session_id", "s"))
        .await
        .unwrap();
    assert_eq!(result.model_output, "error: empty prompt");
    assert_eq!(entries(&fixture, "s").await.len(), 0);
    assert_eq!(server.requests().len(), 0);
    running.close().await.unwrap();
}

// W-36, L7: a secret that a tool prints reaches neither the model nor the tape.
#[tokio::test]
async fn a_secret_in_a_tool_result_is_taken_out() {
    let server = ModelServer::start();
    server.script(Reply::new().call(
        "a",
        "bash",
        r#"{"command": "echo correct-horse-battery; env"}"#,
    ));
    server.script(Reply::text("done"));
    let fixture = AgentFixture::asking(&server.url());
    let running = fixture.framework.open_scope().await.unwrap();
    fixture
        .own_turn(ChannelMessage::new("s", "lab", "go"))
        .await
        .unwrap();
    let tool = shown(&server)
        .into_iter()
        .find(|message| message["role"] == "tool")
        .unwrap();
    assert!(
        !tool.to_string().contains("correct-horse-battery"),
        "{tool}"
    );
    let results: Vec<_> = entries(&fixture, "s")
        .await
        .into_iter()
        .filter(|entry| entry.kind == EntryKind::ToolResult)
        .collect();
    assert!(
        !results[0].payload["results"]
            .to_string()
            .contains("correct-horse-battery")
    );
    running.close().await.unwrap();
}

// H-75: only allowed tools are offered and listed; an unknown name is an error.
#[tokio::test]
async fn a_turn_has_only_the_tools_it_is_allowed() {
    struct AllowlistPlugin(&'static [&'static str]);

    #[hooks(crate = bub_kernel)]
    impl AllowlistPlugin {
        fn load_state(&self) -> bub_kernel::StatePatch {
            bub_kernel::StatePatch::new().with("allowed_tools", json!(self.0))
        }
    }

    let server = ModelServer::start();
    server.script(Reply::text("ok"));
    let fixture = AgentFixture::asking_with(
        &server.url(),
        "allowing",
        AllowlistPlugin(&[" FS.read ", "tape_info"]),
    );
    fixture
        .own_turn(ChannelMessage::new("s", "lab", "go"))
        .await
        .unwrap();
    let request = server.requests().last().unwrap().json();
    let names: Vec<_> = request["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t["function"]["name"].clone())
        .collect();
    assert_eq!(names, ["fs_read", "tape_info"]);
    let fixture = AgentFixture::asking_with(&server.url(), "allowing", AllowlistPlugin(&["x"]));
    let error: Error = fixture
        .own_turn(ChannelMessage::new("s", "lab", "go"))
        .await
        .unwrap_err();
    assert!(
        error.message().contains("unknown tool name(s): 'x'"),
        "{error}"
    );
}

// H-110: the order in which the model sees the tools; commands are not included. `web_fetch` is a tool of the plugin
// `fetch`, whose tests check its position.
#[tokio::test]
async fn the_model_sees_the_tools_in_their_order() {
    let server = ModelServer::start();
    server.script(Reply::text("ok"));
    let fixture = AgentFixture::asking(&server.url());
    fixture
        .own_turn(ChannelMessage::new("s", "lab", "go"))
        .await
        .unwrap();
    let request = server.requests().last().unwrap().json();
    let names: Vec<_> = request["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t["function"]["name"].clone())
        .collect();
    let expected = [
        "spill_read",
        "bash",
        "bash_output",
        "bash_kill",
        "fs_read",
        "fs_write",
        "fs_edit",
        "skill",
        "tape_info",
        "tape_search",
        "tape_reset",
        "tape_handoff",
        "tape_anchors",
        "subagent",
        "fs_list",
        "fs_glob",
        "fs_grep",
        "todo",
        "tape_read",
        "memory_search",
    ];
    let names: Vec<_> = names.iter().map(|name| name.as_str().unwrap()).collect();
    assert_eq!(names, expected);
}

/// Records the kind of every event in the stream of a turn.
struct EventRecorder(Arc<Mutex<Vec<String>>>);

#[hooks(crate = bub_kernel)]
impl EventRecorder {
    async fn run_model_stream(
        &self,
        next: bub_kernel::hooks::Next<'_, bub_kernel::hooks::point::RunModelStream>,
    ) -> Result<Option<bub_kernel::ModelStream>> {
        let heard = Arc::clone(&self.0);
        let stream = next.call().await?;
        Ok(stream.map(|stream| {
            stream.map_events(move |event| {
                heard.lock().unwrap().push(event.kind().to_owned());
                event
            })
        }))
    }
}

// H-74, H-86: the stream has the calls, the results and the end of every step, in this order.
#[tokio::test]
async fn the_stream_tells_of_calls_results_and_the_end_of_each_step() {
    let server = ModelServer::start();
    server.script(Reply::text("look").call("a", "tape_info", "{}"));
    server.script(Reply::text("done"));
    let heard = Arc::default();
    let fixture = AgentFixture::asking_with(
        &server.url(),
        "listening",
        EventRecorder(Arc::clone(&heard)),
    );
    fixture
        .own_turn(ChannelMessage::new("s", "lab", "go"))
        .await
        .unwrap();
    let heard = heard.lock().unwrap();
    let expected = [
        "text",
        "usage",
        "tool_call",
        "tool_result",
        "final",
        "text",
        "text",
        "usage",
        "final",
    ];
    assert_eq!(*heard, expected);
}

// H-90: if the context cannot be built, the turn fails and the tape has the reason.
#[tokio::test]
async fn a_context_that_cannot_be_built_is_recorded() {
    struct FailingContextPlugin;

    #[hooks(crate = bub_kernel)]
    impl FailingContextPlugin {
        fn build_tape_context(&self) -> bub_tape::TapeContext {
            bub_tape::TapeContext {
                anchor: bub_tape::AnchorSelector::Named("nowhere".to_owned()),
                ..Default::default()
            }
        }
    }

    let server = ModelServer::start();
    let fixture = AgentFixture::asking_with(&server.url(), "lost", FailingContextPlugin);
    let running = fixture.framework.open_scope().await.unwrap();
    let error = fixture
        .own_turn(ChannelMessage::new("s", "lab", "go"))
        .await
        .unwrap_err();
    assert!(error.message().contains("nowhere"), "{error}");
    let entries = entries(&fixture, "s").await;
    assert!(entries.iter().any(|entry| entry.kind == EntryKind::Error));
    assert_eq!(events(&entries, "run").last().unwrap()["status"], "error");
    running.close().await.unwrap();
}

// H-103: the system prompt has the fragments of the plugins, the tools and the skills, separated by blank lines.
#[tokio::test]
async fn the_system_prompt_is_fragments_and_skills() {
    let server = ModelServer::start();
    server.script(Reply::text("ok"));
    let fixture = AgentFixture::asking(&server.url());
    std::fs::write(fixture.dir.path().join("workspace/AGENTS.md"), "Use tabs.").unwrap();
    fixture
        .own_turn(ChannelMessage::new("s", "lab", "go").chat_id("room"))
        .await
        .unwrap();
    let mut request = server.requests().last().unwrap().json();
    let directory = fixture.dir.path().canonicalize().unwrap();
    let system = request["messages"][0]["content"].as_str().unwrap();
    let system = system.replace(directory.to_str().unwrap(), "[DIRECTORY]");
    insta::assert_snapshot!("system_prompt", system);

    // The schemas of the tools have their own tests.
    request["messages"][0]["content"] = json!("[SYSTEM PROMPT]");
    for tool in request["tools"].as_array_mut().unwrap() {
        *tool = tool["function"]["name"].take();
    }
    let text = serde_json::to_string_pretty(&request).unwrap();
    let (before, rest) = text.split_once("---Date: ").expect(&text);
    let (_, after) = rest.split_once("---").unwrap();
    let text = format!("{before}---Date: [DATE]---{after}");
    insta::assert_snapshot!("first_request", text);
}
