//! Comma commands: tool calls that users make.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bub_kernel::{
    ApprovalAnswer, CancellationToken, ChannelMessage, Envelope, Error, ErrorKind, Inbound,
    ModelStream, Prompt, Result, Role, Sender, SessionId, StreamEvent, ToolDecision, hooks,
    hooks::{Next, point::RunModelStream},
};
use bub_tape::{EntryKind, LeaseWait};
use bub_testkit::model::{ModelServer, Reply};
use serde_json::{Value, json};

use crate::{
    harness::{AgentFixture, owned},
    recording::tape_of,
    turn_crash::delivered_as,
    turn_loop::{entries, events, shown},
};

fn command(text: &str) -> ChannelMessage {
    ChannelMessage::new("s", "lab", text)
}

// H-125, H-126, H-127, H-128: a command runs without a model; the tape has an event, and the model never sees it.
#[tokio::test]
async fn a_command_is_run_without_a_model() {
    let server = ModelServer::start();
    server.script(Reply::text("hello"));
    let fixture = AgentFixture::asking(&server.url());
    let running = fixture.framework.open_scope().await.unwrap();
    for (line, expected) in [
        (",echo a=b c", "a=b c"),
        (",tape.info", "entries: "),
        (",skill gh", "Location: "),
        (",bash command='echo hi'", "hi"),
        (",help", "tape.search"),
    ] {
        let result = fixture.own_turn(command(line)).await.unwrap();
        assert!(
            result.model_output.contains(expected),
            "{line}: {}",
            result.model_output
        );
    }
    for (line, expected) in [
        (",", "empty command"),
        (",echo 'a", "No closing quotation"),
        (
            ",bash command=true y",
            "positional argument 'y' cannot appear after keyword arguments",
        ),
        (",sessions extra", "takes no arguments"),
        (",help extra", "unknown command `extra`"),
        (",false", "command exited with code 1"),
    ] {
        let error = fixture.own_turn(command(line)).await.unwrap_err();
        assert!(error.message().contains(expected), "{line}: {error}");
    }
    assert_eq!(server.requests().len(), 0);
    fixture.own_turn(command("hi")).await.unwrap();
    assert_eq!(shown(&server).len(), 1, "{:#?}", shown(&server));
    let events = events(&entries(&fixture, "s").await, "command");
    assert_eq!(
        (&events[0]["raw"], &events[0]["name"]),
        (&json!("echo a=b c"), &json!("bash"))
    );
    assert_eq!(
        (&events[0]["status"], &events[0]["output"]),
        (&json!("ok"), &json!("a=b c"))
    );
    assert_eq!(events.last().unwrap()["status"], "error");
    running.close().await.unwrap();
}

// A failed command is one event, whether the tool fails or a stage before it.
#[tokio::test]
async fn a_failed_command_is_recorded_once() {
    struct FailingPlugin;

    #[hooks(crate = bub_kernel)]
    impl FailingPlugin {
        fn build_prompt(&self) -> Result<Option<Prompt>> {
            Err(Error::config("cannot build"))
        }
    }

    for (fixture, output) in [
        (AgentFixture::new(), "command exited with code 1"),
        (
            AgentFixture::with_plugin("failing", FailingPlugin),
            "cannot build",
        ),
    ] {
        let running = fixture.framework.open_scope().await.unwrap();
        fixture.own_turn(command(",false")).await.unwrap_err();
        let entries = entries(&fixture, "s").await;
        let [ended] = events(&entries, "command").try_into().unwrap();
        assert_eq!(
            (&ended["raw"], &ended["status"]),
            (&json!("false"), &json!("error"))
        );
        assert!(
            ended["output"].as_str().unwrap().starts_with(output),
            "{ended}"
        );
        // The model sees neither the command nor its failure.
        assert!(
            entries
                .iter()
                .all(|entry| !matches!(entry.kind, EntryKind::Message | EntryKind::Error)),
            "{entries:?}"
        );
        drop(tape_of(&fixture, "s").lease(LeaseWait::No).await.unwrap());
        running.close().await.unwrap();
    }
}

// A failure in a later stage does not change the recorded outcome of the command.
#[tokio::test]
async fn a_command_whose_output_cannot_be_rendered_has_succeeded() {
    struct FailingPlugin;

    #[hooks(crate = bub_kernel)]
    impl FailingPlugin {
        fn render_outbound(&self) -> Result<Vec<Envelope>> {
            Err(Error::config("cannot render"))
        }
    }

    let fixture = AgentFixture::with_plugin("failing", FailingPlugin);
    let running = fixture.framework.open_scope().await.unwrap();
    for attempt in [1, 2] {
        let message = delivered_as("in-7", ",echo hi", attempt);
        fixture.turn(message).await.unwrap_err();
    }
    let entries = entries(&fixture, "s").await;
    let [ended] = events(&entries, "command").try_into().unwrap();
    assert_eq!(
        (&ended["output"], &ended["status"]),
        (&json!("hi"), &json!("ok"))
    );
    let errors = entries
        .iter()
        .filter(|entry| entry.kind == EntryKind::Error);
    assert_eq!(errors.count(), 2, "one for each attempt");
    running.close().await.unwrap();
}

// A cancelled command counts as failed.
#[tokio::test]
async fn a_cancelled_command_is_recorded_once() {
    let fixture = AgentFixture::new();
    let running = fixture.framework.open_scope().await.unwrap();
    let cancel = CancellationToken::new();
    let started = fixture.dir.path().join("workspace/started");
    let canceller = async {
        while !started.exists() {
            tokio::task::yield_now().await;
        }
        cancel.cancel();
    };
    let message = owned(command(",touch started; sleep 60")).with_cancel(cancel.clone());
    let (outcome, ()) = tokio::join!(fixture.turn(message), canceller);
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Cancelled);
    let entries = entries(&fixture, "s").await;
    let [ended] = events(&entries, "command").try_into().unwrap();
    assert_eq!(
        (&ended["output"], &ended["status"]),
        (&json!("the turn was cancelled"), &json!("cancelled"))
    );
    assert!(entries.iter().all(|entry| entry.kind != EntryKind::Error));
    drop(tape_of(&fixture, "s").lease(LeaseWait::No).await.unwrap());
    running.close().await.unwrap();
}

// The output of a command is streamed line by line, unless a hook may change it.
#[tokio::test]
async fn the_output_of_a_command_is_streamed_while_it_runs() {
    #[derive(Clone, Default)]
    struct OutputRecorder(Arc<Mutex<Vec<String>>>);

    #[hooks(crate = bub_kernel)]
    impl OutputRecorder {
        async fn run_model_stream(
            &self,
            next: Next<'_, RunModelStream>,
        ) -> Result<Option<ModelStream>> {
            let seen = Arc::clone(&self.0);
            let stream = next.call().await?;
            Ok(stream.map(|stream| {
                stream.map_events(move |event| {
                    if let StreamEvent::Text(text) = &event {
                        seen.lock().unwrap().push(text.clone());
                    }
                    event
                })
            }))
        }
    }

    struct ChangingPlugin;

    #[hooks(crate = bub_kernel)]
    impl ChangingPlugin {
        fn after_tool_call(&self) -> Value {
            json!("changed")
        }
    }

    // The second line is printed after the first one was received.
    let line = ",echo a; until [ -e go ]; do sleep 0.01; done; echo b";
    let watching = OutputRecorder::default();
    let fixture = AgentFixture::with_plugin("watching", watching.clone());
    let running = fixture.framework.open_scope().await.unwrap();
    let reader = async {
        while watching.0.lock().unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        std::fs::write(fixture.dir.path().join("workspace/go"), "").unwrap();
    };
    let (result, ()) = tokio::join!(fixture.own_turn(command(line)), reader);
    assert_eq!(result.unwrap().model_output, "a\nb");
    assert_eq!(watching.0.lock().unwrap()[0], "a");
    running.close().await.unwrap();

    let watching = OutputRecorder::default();
    let fixture = AgentFixture::with_plugins(|builder| {
        let builder = builder.plugin("watching", watching.clone());
        builder.plugin("changing", ChangingPlugin)
    });
    fixture.own_turn(command(",echo a; echo b")).await.unwrap();
    assert_eq!(*watching.0.lock().unwrap(), ["changed"]);
}

// The output of a command is streamed as it arrives, and the result has the same text.
#[tokio::test]
async fn the_output_of_a_command_is_trimmed_and_whole() {
    let fixture = AgentFixture::new();
    let running = fixture.framework.open_scope().await.unwrap();
    for (line, expected) in [
        (r",printf '\n\n  a\n\n\n b  \n\n'", "a\n\n\n b"),
        (
            r",printf 'a\n'; sleep 0.1; printf '\n\nb\n'; sleep 0.1; printf c",
            "a\n\n\nb\nc",
        ),
        (",true", "(no output)"),
        (r",printf ' \n\n'", "(no output)"),
    ] {
        let result = fixture.own_turn(command(line)).await.unwrap();
        assert_eq!(result.model_output, expected, "{line}");
    }
    // P-52
    let late = "command timed out after 1 seconds; continuing in background\nshell_id: bash-";
    for line in [
        ",bash cmd='echo a; sleep 9' timeout_seconds=1",
        ",bash command='sleep 9' timeout_seconds=1",
    ] {
        let result = fixture.own_turn(command(line)).await.unwrap();
        assert!(result.model_output.contains(late), "{line}: {result:?}");
    }
    let last = events(&entries(&fixture, "s").await, "command")
        .pop()
        .unwrap();
    assert_eq!(last["status"], "ok");
    let result = fixture
        .own_turn(command(",yes 12345 | head -c 3000000"))
        .await
        .unwrap();
    let (head, tail) = result
        .model_output
        .split_once(" bytes omitted …\n")
        .unwrap();
    assert!(
        head.len() > 500_000 && tail.len() > 500_000,
        "{} {}",
        head.len(),
        tail.len()
    );
    assert!(head.starts_with("12345\n12345\n") && tail.ends_with("12345\n12345"));
    running.close().await.unwrap();
}

// W-33, W-34, L7: a command of an unknown user is not run; hooks can deny commands like any call.
#[tokio::test]
async fn a_command_goes_through_policy_and_hooks() {
    struct DenyingPlugin;

    #[hooks(crate = bub_kernel)]
    impl DenyingPlugin {
        fn before_tool_call(&self) -> ToolDecision {
            ToolDecision::Deny(Some("not today".to_owned()))
        }
    }

    let fixture = AgentFixture::new();
    let running = fixture.framework.open_scope().await.unwrap();
    for role in [Role::Guest, Role::Member] {
        let sender = Sender {
            role,
            channel: "lab".into(),
            chat_id: "1".into(),
            id: "eve".into(),
            name: String::new(),
        };
        let message = Inbound::from(command(",touch pwned")).with_sender(sender);
        let error = fixture.turn(message).await.unwrap_err();
        assert!(error.message().contains("denied by policy"), "{error}");
    }
    let error = fixture.turn(command(",touch pwned")).await.unwrap_err();
    assert!(error.message().contains("denied by policy"), "{error}");
    assert!(!fixture.dir.path().join("workspace/pwned").exists());
    running.close().await.unwrap();

    let fixture = AgentFixture::with_plugin("denying", DenyingPlugin);
    let error = fixture.own_turn(command(",touch pwned")).await.unwrap_err();
    assert_eq!(error.message(), "not today");
    assert!(!fixture.dir.path().join("workspace/pwned").exists());
}

// L7: a rule about `background: true` applies to every spelling of it, typed or requested by a model.
#[tokio::test]
async fn rules_see_arguments_as_the_tool_reads_them() {
    let server = ModelServer::start();
    let rules = json!([{"tools": ["bash"], "arguments": {"background": "true"}, "action": "deny"}]);
    let fixture = AgentFixture::asking_so(
        &server.url(),
        &[("BUB_POLICY_RULES", &rules.to_string())],
        |builder| builder,
    );
    let running = fixture.framework.open_scope().await.unwrap();
    for spelling in ["true", "yes", "1", "On", " t "] {
        let line = format!(",bash command='touch pwned' background='{spelling}'");
        let error = fixture.own_turn(command(&line)).await.unwrap_err();
        assert_eq!(
            error.message(),
            "Tool 'bash' denied by policy: rule 1",
            "{line}"
        );
    }
    fixture
        .own_turn(command(",bash command='echo hi' background=no"))
        .await
        .unwrap();
    for spelling in [json!(1), json!("yes")] {
        let arguments = json!({"command": "touch pwned", "background": spelling});
        server.script(Reply::new().call("a", "bash", &arguments.to_string()));
        server.script(Reply::text("done"));
        fixture.own_turn(command("go")).await.unwrap();
    }
    assert!(!fixture.dir.path().join("workspace/pwned").exists());
    let shown = format!("{:?}", shown(&server));
    assert_eq!(
        shown.matches("denied by policy: rule 1").count(),
        2,
        "{shown}"
    );
    running.close().await.unwrap();
}

// A call that cannot succeed is no question for a user.
#[tokio::test]
async fn nobody_is_asked_about_a_call_with_missing_or_unknown_arguments() {
    struct FakeApprover(Arc<AtomicUsize>);
    #[hooks(crate = bub_kernel)]
    impl FakeApprover {
        async fn request_approval(&self) -> ApprovalAnswer {
            self.0.fetch_add(1, Ordering::SeqCst);
            ApprovalAnswer::Approved
        }
    }
    let (server, questions) = (ModelServer::start(), Arc::<AtomicUsize>::default());
    let approver = FakeApprover(Arc::clone(&questions));
    let rules = r#"[{"action": "ask", "tools": ["fs.*"]}]"#;
    let fixture =
        AgentFixture::asking_so(&server.url(), &[("BUB_POLICY_RULES", rules)], |builder| {
            builder.plugin("approver", approver)
        });
    let running = fixture.framework.open_scope().await.unwrap();
    for (arguments, problem, expected) in [
        (
            json!({"path": "a", "new": "x"}),
            "argument 'old' is missing",
            0,
        ),
        (
            json!({"path": "a", "old": "x", "new": "y", "text": "z"}),
            "unknown argument 'text' of fs.edit",
            0,
        ),
        (
            json!({"path": "a", "old": "x", "new": "y"}),
            "No such file",
            1,
        ),
    ] {
        server.script(Reply::new().call("a", "fs_edit", &arguments.to_string()));
        server.script(Reply::text("done"));
        fixture.own_turn(command("go")).await.unwrap();
        let shown = format!("{:?}", shown(&server));
        assert!(shown.contains(problem), "{problem}: {shown}");
        assert_eq!(questions.load(Ordering::SeqCst), expected, "{problem}");
    }
    running.close().await.unwrap();
}

// H-72, H-119: model and effort of a session apply from the next turn, and in no other session.
#[tokio::test]
async fn the_model_of_a_session_lasts() {
    let server = ModelServer::start();
    server.otherwise(Reply::text("ok"));
    let fixture = AgentFixture::asking(&server.url());
    let running = fixture.framework.open_scope().await.unwrap();
    let output = fixture
        .own_turn(command(",model llamacpp:other"))
        .await
        .unwrap()
        .model_output;
    assert_eq!(
        output,
        "Session model set to llamacpp:other (applies from the next turn)."
    );
    let output = fixture
        .own_turn(command(",reasoning_effort ' high '"))
        .await
        .unwrap()
        .model_output;
    assert_eq!(
        output,
        "Session reasoning effort set to high (applies from the next turn)."
    );
    assert!(
        fixture
            .own_turn(command(",reasoning_effort ' '"))
            .await
            .is_err()
    );
    assert!(
        fixture
            .own_turn(command(",reasoning_effort much"))
            .await
            .is_err()
    );
    // An invalid model would fail every later turn.
    assert!(fixture.own_turn(command(",model nonsense")).await.is_err());
    fixture.own_turn(command("hi")).await.unwrap();
    let request = server.requests().last().unwrap().json();
    assert_eq!(
        (&request["model"], &request["reasoning_effort"]),
        (&json!("other"), &json!("high"))
    );
    // The model in the message's context takes precedence for its turn.
    fixture
        .own_turn(command("hi").context("model", "llamacpp:third"))
        .await
        .unwrap();
    assert_eq!(server.requests().last().unwrap().json()["model"], "third");
    fixture
        .own_turn(ChannelMessage::new("t", "lab", "hi"))
        .await
        .unwrap();
    assert_eq!(server.requests().last().unwrap().json()["model"], "test");
    fixture.own_turn(command(",model default")).await.unwrap();
    fixture.own_turn(command("hi")).await.unwrap();
    assert_eq!(server.requests().last().unwrap().json()["model"], "test");
    running.close().await.unwrap();
}

// H-119: without an argument, the command names the model that is used, and the models to choose from.
#[tokio::test]
async fn the_model_command_lists_the_usable_models() {
    let server = ModelServer::start();
    let settings = [
        ("BUB_LOCAL_MODELS", "false"),
        ("BUB_FALLBACK_MODELS", "llamacpp:small"),
        ("BUB_ANTHROPIC_API_KEY", "key"),
    ];
    let fixture = AgentFixture::asking_so(&server.url(), &settings, |builder| builder);
    let running = fixture.framework.open_scope().await.unwrap();
    let shown = async || {
        let turn = fixture.own_turn(command(",model")).await;
        turn.unwrap().model_output
    };
    let output = shown().await;
    assert!(
        output.starts_with(
            "Session model: llamacpp:test.\n* 1: llamacpp:test\n- 2: llamacpp:small\n- 3: anthropic:"
        ),
        "{output}"
    );
    fixture
        .own_turn(command(",model llamacpp:small"))
        .await
        .unwrap();
    let output = shown().await;
    assert!(
        output.starts_with(
            "Session model: llamacpp:small.\n- 1: llamacpp:test\n* 2: llamacpp:small\n- 3: anthropic:"
        ),
        "{output}"
    );
    // A number selects a model of the list.
    fixture.own_turn(command(",model 1")).await.unwrap();
    let output = shown().await;
    assert!(
        output.starts_with("Session model: llamacpp:test."),
        "{output}"
    );
    for number in ["0", "99"] {
        let refused = fixture.own_turn(command(&format!(",model {number}"))).await;
        assert!(refused.is_err(), "{number}");
    }
    running.close().await.unwrap();
}

// `,new` starts a new session in the chat; the old one is listed and can be resumed.
#[tokio::test]
async fn a_chat_can_have_a_fresh_session_and_go_back() {
    let server = ModelServer::start();
    server.otherwise(Reply::text("ok"));
    let fixture = AgentFixture::asking(&server.url());
    let running = fixture.framework.open_scope().await.unwrap();
    fixture.own_turn(command("remember 42")).await.unwrap();
    let output = fixture
        .own_turn(command(",new"))
        .await
        .unwrap()
        .model_output;
    assert!(output.contains(",resume s"), "{output}");
    let fresh = fixture.own_turn(command("what was it?")).await.unwrap();
    assert!(fresh.session_id.starts_with("s~"), "{}", fresh.session_id);
    assert!(!json!(shown(&server)).to_string().contains("remember 42"));
    let list = fixture
        .own_turn(command(",sessions"))
        .await
        .unwrap()
        .model_output;
    assert_eq!(list.lines().count(), 2, "{list}");
    assert!(
        list.contains("remember 42") && list.contains(&format!("* {}", fresh.session_id)),
        "{list}"
    );
    // The dates are below each other.
    let columns: Vec<_> = list.lines().map(|line| line.find("  20")).collect();
    let width = 2 + fresh.session_id.len();
    assert_eq!(columns, [Some(width); 2], "{list}");
    assert!(
        fixture
            .own_turn(command(",resume other-chat"))
            .await
            .is_err()
    );
    assert!(
        fixture
            .own_turn(command(",resume s~nothing"))
            .await
            .is_err()
    );
    fixture.own_turn(command(",resume s")).await.unwrap();
    let back = fixture.own_turn(command("what was it?")).await.unwrap();
    assert_eq!(back.session_id, "s");
    assert!(json!(shown(&server)).to_string().contains("remember 42"));

    // The start of an id is enough, also of the timestamp in it, if only one session has it.
    let stamp = fresh.session_id.strip_prefix("s~").unwrap();
    for start in [&fresh.session_id[..8], &stamp[..6]] {
        fixture.own_turn(command(",resume s")).await.unwrap();
        let output = fixture.own_turn(command(&format!(",resume {start}"))).await;
        let expected = format!("Resumed session: {}", fresh.session_id);
        assert_eq!(output.unwrap().model_output, expected);
    }
    let newer = fixture.own_turn(command(",new")).await;
    newer.unwrap();
    fixture.own_turn(command("a third session")).await.unwrap();
    let error = fixture.own_turn(command(",resume s~2")).await.unwrap_err();
    assert!(
        error.message().contains("`s~2` matches 2 sessions: ")
            && error.message().contains(&*fresh.session_id),
        "{error}"
    );
    running.close().await.unwrap();
}

// The chat uses the session that was switched to last, also if several commands that steer one turn switch sessions.
#[tokio::test]
async fn the_last_switch_of_a_turn_counts() {
    let server = ModelServer::start();
    server.otherwise(Reply::text("ok"));
    let fixture = AgentFixture::asking(&server.url());
    let running = fixture.framework.open_scope().await.unwrap();
    let session_id = SessionId::from("s");
    fixture.own_turn(command("hi")).await.unwrap();
    for line in [",new", ",resume s"] {
        let steered = fixture
            .framework
            .steer_message(&session_id, owned(command(line)));
        assert!(steered.await.unwrap());
    }
    let (turn, outcome) = fixture.framework.process_turn(owned(command("hi"))).await;
    outcome.unwrap();
    assert_eq!(turn.report().session_switch, Some(session_id.clone()));
    let next = fixture.own_turn(command("hi")).await.unwrap();
    assert_eq!(next.session_id, session_id);
    running.close().await.unwrap();
}

// H-60, H-116: a reset by a user takes effect immediately.
#[tokio::test]
async fn a_reset_by_a_person_is_done_at_once() {
    let fixture = AgentFixture::echoing();
    let running = fixture.framework.open_scope().await.unwrap();
    fixture.own_turn(command("hi")).await.unwrap();
    running.close().await.unwrap();
    let fixture = AgentFixture {
        framework: AgentFixture::new().framework,
        ..fixture
    };
    let running = fixture.framework.open_scope().await.unwrap();
    let output = fixture
        .own_turn(command(",tape.reset archive=true"))
        .await
        .unwrap()
        .model_output;
    assert!(output.starts_with("Archived: /"), "{output}");
    assert!(tape_of(&fixture, "s").summary().await.unwrap().anchors >= 1);
    running.close().await.unwrap();
}

// H-112, H-119: `,quit` terminates the shells of the session.
#[tokio::test]
async fn quit_ends_the_commands_of_the_session() {
    let fixture = AgentFixture::new();
    let running = fixture.framework.open_scope().await.unwrap();
    let line = ",bash command='echo $$ > pid; sleep 60' background=true";
    let output = fixture.own_turn(command(line)).await.unwrap().model_output;
    assert!(
        output.starts_with("Shell started, shell_id: bash-"),
        "{output}"
    );
    let pid = fixture.dir.path().join("workspace/pid");
    while std::fs::read_to_string(&pid)
        .unwrap_or_default()
        .trim()
        .is_empty()
    {
        tokio::task::yield_now().await;
    }
    let output = fixture
        .own_turn(command(",quit"))
        .await
        .unwrap()
        .model_output;
    assert_eq!(output, "Session tasks stopped.");
    let stat = format!(
        "/proc/{}/stat",
        std::fs::read_to_string(&pid).unwrap().trim()
    );
    assert!(!std::fs::read_to_string(stat).is_ok_and(|stat| !stat.contains(") Z ")));
    running.close().await.unwrap();
}
