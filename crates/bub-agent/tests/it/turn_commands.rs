//! Commands: tool calls that people make.

use bub_kernel::{ChannelMessage, Role, Sender, ToolDecision, hooks};
use bub_testkit::model::{ModelServer, Reply};
use serde_json::json;

use crate::{
    harness::World,
    recording::tape_of,
    turn_loop::{entries, events, shown},
};

fn command(text: &str) -> ChannelMessage {
    ChannelMessage::new("s", "lab", text)
}

// H-125, H-126, H-127, H-128: a command is run without a model; the tape has an event, and the model never sees it.
#[tokio::test]
async fn a_command_is_run_without_a_model() {
    let server = ModelServer::start();
    server.script(Reply::text("hello"));
    let world = World::asking(&server.url());
    let running = world.framework.running().await.unwrap();
    for (line, expected) in [
        (",echo a=b c", "a=b c"),
        (",tape.info", "entries: "),
        (",skill gh", "Location: "),
        (",bash cmd='echo hi'", "hi"),
        (",help", "tape.search"),
    ] {
        let result = world.own_turn(command(line)).await.unwrap();
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
            ",bash cmd=true y",
            "positional argument 'y' cannot appear after keyword arguments",
        ),
        (",help extra", "takes no arguments"),
        (",false", "command exited with code 1"),
    ] {
        let error = world.own_turn(command(line)).await.unwrap_err();
        assert!(error.message().contains(expected), "{line}: {error}");
    }
    assert_eq!(server.requests().len(), 0);
    world.own_turn(command("hi")).await.unwrap();
    assert_eq!(shown(&server).len(), 3, "{:#?}", shown(&server));
    let events = events(&entries(&world, "s").await, "command");
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

// What a command prints is said as it comes, and is the same text in the end.
#[tokio::test]
async fn the_output_of_a_command_is_trimmed_and_whole() {
    let world = World::new();
    let running = world.framework.running().await.unwrap();
    for (line, expected) in [
        (r",printf '\n\n  a\n\n\n b  \n\n'", "a\n\n\n b"),
        (
            r",printf 'a\n'; sleep 0.1; printf '\n\nb\n'; sleep 0.1; printf c",
            "a\n\n\nb\nc",
        ),
        (",true", "(no output)"),
        (r",printf ' \n\n'", "(no output)"),
    ] {
        let result = world.own_turn(command(line)).await.unwrap();
        assert_eq!(result.model_output, expected, "{line}");
    }
    // H-127: to the model this is a result, to whoever typed it a failure.
    let late = "command timed out after 1 seconds and was terminated";
    for (line, expected) in [
        (
            ",bash cmd='echo a; sleep 9' timeout_seconds=1",
            format!("{late}\noutput:\na"),
        ),
        (",bash cmd='sleep 9' timeout_seconds=1", late.to_owned()),
    ] {
        let error = world.own_turn(command(line)).await.unwrap_err();
        assert!(error.message().ends_with(&expected), "{line}: {error}");
    }
    let last = events(&entries(&world, "s").await, "command")
        .pop()
        .unwrap();
    assert_eq!(
        (&last["status"], &last["output"]),
        (&json!("error"), &json!(late))
    );
    let result = world
        .own_turn(command(",yes 12345 | head -c 3000000"))
        .await
        .unwrap();
    let (head, tail) = result
        .model_output
        .split_once(" bytes left out …\n")
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

// W-33, W-34, L7: a stranger's comma is nobody's command; hooks that deny are asked as for any call.
#[tokio::test]
async fn a_command_goes_through_policy_and_hooks() {
    struct Denying;

    #[hooks(crate = bub_kernel)]
    impl Denying {
        fn before_tool_call(&self) -> ToolDecision {
            ToolDecision::Deny(Some("not today".to_owned()))
        }
    }

    let world = World::new();
    let running = world.framework.running().await.unwrap();
    for role in [Role::Guest, Role::Member] {
        let sender = Sender {
            role,
            channel: "lab".into(),
            chat_id: "1".into(),
            id: "eve".into(),
            name: String::new(),
        };
        let mut message: bub_kernel::Envelope = command(",touch pwned").into();
        message.put_slot(std::sync::Arc::new(sender));
        let error = world.turn(message).await.unwrap_err();
        assert!(error.message().contains("denied by policy"), "{error}");
    }
    let error = world.turn(command(",touch pwned")).await.unwrap_err();
    assert!(error.message().contains("denied by policy"), "{error}");
    assert!(!world.dir.path().join("workspace/pwned").exists());
    running.close().await.unwrap();

    let world = World::with_plugin("denying", Denying);
    let error = world.own_turn(command(",touch pwned")).await.unwrap_err();
    assert_eq!(error.message(), "not today");
    assert!(!world.dir.path().join("workspace/pwned").exists());
}

// L7: a rule about `background: true` is about every spelling of it, typed or asked for by a model.
#[tokio::test]
async fn rules_see_arguments_as_the_tool_reads_them() {
    let server = ModelServer::start();
    let rules = json!([{"tools": ["bash"], "arguments": {"background": "true"}, "action": "deny"}]);
    let world = World::asking_so(
        &server.url(),
        &[("BUB_POLICY_RULES", &rules.to_string())],
        |builder| builder,
    );
    let running = world.framework.running().await.unwrap();
    for spelling in ["true", "yes", "1", "On", " t "] {
        let line = format!(",bash cmd='touch pwned' background='{spelling}'");
        let error = world.own_turn(command(&line)).await.unwrap_err();
        assert_eq!(
            error.message(),
            "Tool 'bash' denied by policy: rule 1",
            "{line}"
        );
    }
    world
        .own_turn(command(",bash cmd='echo hi' background=no"))
        .await
        .unwrap();
    for spelling in [json!(1), json!("yes")] {
        let arguments = json!({"cmd": "touch pwned", "background": spelling});
        server.script(Reply::new().call("a", "bash", &arguments.to_string()));
        server.script(Reply::text("done"));
        world.own_turn(command("go")).await.unwrap();
    }
    assert!(!world.dir.path().join("workspace/pwned").exists());
    let shown = format!("{:?}", shown(&server));
    assert_eq!(
        shown.matches("denied by policy: rule 1").count(),
        2,
        "{shown}"
    );
    running.close().await.unwrap();
}

// H-72, H-119: model and effort of a session last from the next turn on, and in no other session.
#[tokio::test]
async fn the_model_of_a_session_lasts() {
    let server = ModelServer::start();
    server.otherwise(Reply::text("ok"));
    let world = World::asking(&server.url());
    let running = world.framework.running().await.unwrap();
    let said = world
        .own_turn(command(",model llamacpp:other"))
        .await
        .unwrap()
        .model_output;
    assert_eq!(
        said,
        "Session model set to llamacpp:other (applies from the next turn)."
    );
    let said = world
        .own_turn(command(",reasoning_effort ' high '"))
        .await
        .unwrap()
        .model_output;
    assert_eq!(
        said,
        "Session reasoning effort set to high (applies from the next turn)."
    );
    assert!(
        world
            .own_turn(command(",reasoning_effort ' '"))
            .await
            .is_err()
    );
    assert!(
        world
            .own_turn(command(",reasoning_effort much"))
            .await
            .is_err()
    );
    // One that cannot be would fail every turn from now on.
    assert!(world.own_turn(command(",model nonsense")).await.is_err());
    world.own_turn(command("hi")).await.unwrap();
    let request = server.requests().last().unwrap().json();
    assert_eq!(
        (&request["model"], &request["reasoning_effort"]),
        (&json!("other"), &json!("high"))
    );
    // The message's own wish wins for its turn.
    world
        .own_turn(command("hi").context("model", "llamacpp:third"))
        .await
        .unwrap();
    assert_eq!(server.requests().last().unwrap().json()["model"], "third");
    world
        .own_turn(ChannelMessage::new("t", "lab", "hi"))
        .await
        .unwrap();
    assert_eq!(server.requests().last().unwrap().json()["model"], "test");
    world.own_turn(command(",model default")).await.unwrap();
    world.own_turn(command("hi")).await.unwrap();
    assert_eq!(server.requests().last().unwrap().json()["model"], "test");
    running.close().await.unwrap();
}

// `,new`: a fresh session in the chat; the old one is listed, and can be resumed.
#[tokio::test]
async fn a_chat_can_have_a_fresh_session_and_go_back() {
    let server = ModelServer::start();
    server.otherwise(Reply::text("ok"));
    let world = World::asking(&server.url());
    let running = world.framework.running().await.unwrap();
    world.own_turn(command("remember 42")).await.unwrap();
    let said = world.own_turn(command(",new")).await.unwrap().model_output;
    assert!(said.contains(",resume s"), "{said}");
    let fresh = world.own_turn(command("what was it?")).await.unwrap();
    assert!(fresh.session_id.starts_with("s~"), "{}", fresh.session_id);
    assert!(!json!(shown(&server)).to_string().contains("remember 42"));
    let list = world
        .own_turn(command(",sessions"))
        .await
        .unwrap()
        .model_output;
    assert_eq!(list.lines().count(), 2, "{list}");
    assert!(
        list.contains("remember 42") && list.contains(&format!("* {}", fresh.session_id)),
        "{list}"
    );
    assert!(world.own_turn(command(",resume other-chat")).await.is_err());
    assert!(world.own_turn(command(",resume s~nothing")).await.is_err());
    world.own_turn(command(",resume s")).await.unwrap();
    let back = world.own_turn(command("what was it?")).await.unwrap();
    assert_eq!(back.session_id, "s");
    assert!(json!(shown(&server)).to_string().contains("remember 42"));
    running.close().await.unwrap();
}

// H-116: a reset by a person takes effect at once.
#[tokio::test]
async fn a_reset_by_a_person_is_done_at_once() {
    let world = World::echoing();
    let running = world.framework.running().await.unwrap();
    world.own_turn(command("hi")).await.unwrap();
    running.close().await.unwrap();
    let world = World {
        framework: World::new().framework,
        ..world
    };
    let running = world.framework.running().await.unwrap();
    let said = world
        .own_turn(command(",tape.reset archive=true"))
        .await
        .unwrap()
        .model_output;
    assert!(said.starts_with("tape reset"), "{said}");
    assert!(tape_of(&world, "s").summary().await.unwrap().anchors >= 1);
    running.close().await.unwrap();
}

// H-112, H-119: `,quit` ends what the session started.
#[tokio::test]
async fn quit_ends_the_commands_of_the_session() {
    let world = World::new();
    let running = world.framework.running().await.unwrap();
    let line = ",bash cmd='echo $$ > pid; sleep 60' background=true";
    let said = world.own_turn(command(line)).await.unwrap().model_output;
    assert!(said.starts_with("started: bash-"), "{said}");
    let pid = world.dir.path().join("workspace/pid");
    while std::fs::read_to_string(&pid)
        .unwrap_or_default()
        .trim()
        .is_empty()
    {
        tokio::task::yield_now().await;
    }
    let said = world.own_turn(command(",quit")).await.unwrap().model_output;
    assert_eq!(said, "Session tasks stopped.");
    let stat = format!(
        "/proc/{}/stat",
        std::fs::read_to_string(&pid).unwrap().trim()
    );
    assert!(!std::fs::read_to_string(stat).is_ok_and(|stat| !stat.contains(") Z ")));
    running.close().await.unwrap();
}
