//! The tool `subagent`.

use bub_kernel::{ChannelMessage, Inbound, Role, Sender};
use bub_tape::TapeListFilter;
use bub_testkit::model::{ModelServer, Reply};
use serde_json::{Value, json};

use crate::{
    harness::{AgentFixture, owned},
    turn_loop::{entries, shown},
};

async fn answer_of_subagent(
    arguments: Value,
    replies: Vec<Reply>,
) -> (AgentFixture, ModelServer, String) {
    let server = ModelServer::start();
    server.script(Reply::new().call("a", "subagent", &arguments.to_string()));
    for reply in replies {
        server.script(reply);
    }
    server.script(Reply::text("done"));
    let fixture = AgentFixture::asking(&server.url());
    let running = fixture.framework.open_scope().await.unwrap();
    fixture
        .own_turn(ChannelMessage::new("s", "lab", "the question"))
        .await
        .unwrap();
    let result = shown(&server)
        .into_iter()
        .find(|m| m["role"] == "tool")
        .unwrap();
    let text = result["content"].as_str().unwrap().to_owned();
    drop(running);
    (fixture, server, text)
}

// H-118: a subagent has its own conversation and session and all tools except `subagent`, and leaves nothing behind.
#[tokio::test]
async fn a_subagent_works_on_its_own_and_leaves_nothing_behind() {
    let replies = vec![
        Reply::new().call("x", "bash", r#"{"command": "echo 4"}"#),
        Reply::text("the sum is 4"),
    ];
    let (fixture, server, text) =
        answer_of_subagent(json!({"prompt": "add 2 and 2"}), replies).await;
    assert_eq!(text, "the sum is 4");
    let request = server.requests()[1].json();
    let messages = request["messages"].to_string();
    assert!(
        messages.contains("add 2 and 2") && !messages.contains("the question"),
        "{messages}"
    );
    let names = request["tools"].to_string();
    assert!(
        names.contains("\"bash\"") && !names.contains("\"subagent\""),
        "{names}"
    );
    let running = fixture.framework.open_scope().await.unwrap();
    let tapes = fixture
        .framework
        .tape_store()
        .unwrap()
        .list(TapeListFilter::Sessions)
        .await
        .unwrap();
    assert_eq!(tapes.len(), 1, "only the session's own tape");
    let cost = crate::turn_loop::events(&entries(&fixture, "s").await, "subagent.run");
    assert_eq!(cost.len(), 2, "what it cost stays");
    assert_eq!(cost[0]["usage"]["total_tokens"], 15);
    assert!(
        entries(&fixture, "s")
            .await
            .iter()
            .all(|entry| !entry.payload.contains_key("x"))
    );
    running.close().await.unwrap();
}

// W-34: a prompt that starts with a comma is a prompt, not a command; `allowed_tools` applies.
#[tokio::test]
async fn a_subagent_runs_no_commands() {
    let arguments = json!({"prompt": ",touch pwned", "allowed_tools": ["fs_read"]});
    let replies = vec![
        Reply::new().call("x", "bash", r#"{"command": "touch pwned"}"#),
        Reply::text("no"),
    ];
    let (fixture, server, _) = answer_of_subagent(arguments, replies).await;
    assert!(!fixture.dir.path().join("workspace/pwned").exists());
    assert!(
        server.requests()[1].json()["messages"]
            .to_string()
            .contains(",touch pwned")
    );
    assert_eq!(
        server.requests()[1].json()["tools"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
}

// H-118: an unknown tool is reported before the run; a failure is part of the result.
#[tokio::test]
async fn a_subagent_that_cannot_run_says_why() {
    let (_, _, text) =
        answer_of_subagent(json!({"prompt": "x", "allowed_tools": ["nope"]}), vec![]).await;
    assert!(text.contains("unknown tool name(s): 'nope'"), "{text}");
    let (_, _, text) = answer_of_subagent(json!({"prompt": "x"}), vec![Reply::status(401)]).await;
    assert!(text.starts_with("[Error: "), "{text}");
    let (_, _, text) = answer_of_subagent(json!({"prompt": ""}), vec![]).await;
    assert!(text.contains("must not be empty"), "{text}");
}

// W-38, W-48: a subagent cannot write into the session of another chat, and does not take the steering messages of
// its turn.
#[tokio::test]
async fn a_subagent_stays_out_of_other_sessions() {
    let arguments = json!({"prompt": "hi", "session": "telegram:42"});
    let (fixture, _, text) = answer_of_subagent(arguments, vec![Reply::text("hello")]).await;
    assert_eq!(text, "hello");
    let running = fixture.framework.open_scope().await.unwrap();
    assert_eq!(entries(&fixture, "telegram:42").await.len(), 0);
    assert!(!entries(&fixture, "s/telegram:42").await.is_empty());
    running.close().await.unwrap();
}

// H-118: `inherit` sees the conversation; the answer is in the tool result, not in the conversation.
#[tokio::test]
async fn an_inheriting_subagent_sees_the_conversation() {
    let arguments = json!({"prompt": "look at it again", "session": "inherit"});
    let (_, server, text) = answer_of_subagent(arguments, vec![Reply::text("seen")]).await;
    assert_eq!(text, "seen");
    assert!(
        server.requests()[1].json()["messages"]
            .to_string()
            .contains("the question")
    );
    let last = server.requests().last().unwrap().json()["messages"].to_string();
    assert!(
        !last.contains("look at it again\"}") || last.contains("tool_calls"),
        "{last}"
    );
}

// W-37, L7: a subagent acts for the sender of its turn, under the same policy.
#[tokio::test]
async fn a_subagent_of_a_member_has_the_rights_of_the_member() {
    let server = ModelServer::start();
    let arguments = json!({"prompt": "look around", "session": "inherit"}).to_string();
    server.script(Reply::new().call("a", "subagent", &arguments));
    let calls = Reply::new().call("x", "bash", r#"{"command": "touch pwned"}"#);
    server.script(calls.call("y", "fs_read", r#"{"path": "/etc/passwd"}"#));
    server.script(Reply::text("seen"));
    server.script(Reply::text("done"));
    let rules = json!([{"tools": ["subagent"], "action": "allow"}]).to_string();
    let variables = [("BUB_POLICY_RULES", rules.as_str())];
    let fixture = AgentFixture::asking_so(&server.url(), &variables, |builder| builder);
    let running = fixture.framework.open_scope().await.unwrap();
    let member = Sender {
        role: Role::Member,
        ..Sender::default()
    };
    let message = Inbound::from(ChannelMessage::new("s", "lab", "go")).with_sender(member);
    fixture.turn(message).await.unwrap();
    let seen = server.requests()[2].json()["messages"].to_string();
    assert!(seen.contains("Tool 'bash' denied by policy"), "{seen}");
    assert!(seen.contains("outside the workspace"), "{seen}");
    assert!(!fixture.dir.path().join("workspace/pwned").exists());
    running.close().await.unwrap();
}

// P-45
#[tokio::test]
async fn a_subagent_inherits_model_and_effort_unless_its_call_names_a_model() {
    let server = ModelServer::start();
    let calls = Reply::new().call("a", "subagent", r#"{"prompt": "x"}"#);
    let other = r#"{"prompt": "x", "model": "llamacpp:other"}"#;
    server.script(calls.call("b", "subagent", other));
    for text in ["one", "two", "done"] {
        server.script(Reply::text(text));
    }
    let fixture = AgentFixture::asking_so(&server.url(), &[("BUB_MODEL", "")], |builder| builder);
    let running = fixture.framework.open_scope().await.unwrap();
    for line in [",model llamacpp:mine", ",reasoning_effort high"] {
        let message = ChannelMessage::new("s", "lab", line);
        fixture.own_turn(message).await.unwrap();
    }
    let message = ChannelMessage::new("s", "lab", "go");
    let (turn, outcome) = fixture.framework.process_turn(owned(message)).await;
    assert_eq!(outcome.unwrap().model_output, "done");
    assert!(!turn.report().has_no_model);
    let requests = server.requests();
    let models = requests.iter().map(|request| {
        let body = request.json();
        (body["model"].clone(), body["reasoning_effort"].clone())
    });
    let models: Vec<_> = models.collect();
    let with_effort = |model: &str| (json!(model), json!("high"));
    assert_eq!(models, ["mine", "mine", "other", "mine"].map(with_effort));
    running.close().await.unwrap();
    let fixture = AgentFixture::asking_so(&server.url(), &[("BUB_MODEL", "")], |builder| builder);
    let (turn, _) = fixture
        .framework
        .process_turn(owned(ChannelMessage::new("s", "lab", "go")))
        .await;
    assert!(turn.report().has_no_model);
}
