//! Tests `bub debug request`.

use bub_testkit::model::{ModelServer, Reply};
use serde_json::{Value, json};

use crate::sandbox::{Run, Sandbox, bub};

const MESSAGE: &str = "what did I ask before?";

fn run(sandbox: &Sandbox, server: &ModelServer, args: &[&str]) -> Run {
    let mut command = sandbox.command(&bub());
    command
        .env("BUB_MODEL", "openai:gpt-4o")
        .env("BUB_OPENAI_API_BASE", format!("{}/v1", server.url()))
        .env("BUB_OPENAI_API_KEY", "key-of-a-test");
    Run::from_output(command.args(args).output().unwrap())
}

/// Returns the request body without the dates of messages.
fn without_dates(mut body: Value) -> Value {
    for message in body["messages"].as_array_mut().unwrap() {
        if let Some(text) = message["content"].as_str() {
            let lines = text.lines().filter(|line| !line.starts_with("---Date: "));
            message["content"] = lines.collect::<Vec<_>>().join("\n").into();
        }
    }
    body
}

#[test]
fn the_shown_request_is_the_one_that_is_sent_next() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    server.script(Reply::new().call("call_1", "bash", r#"{"cmd": "echo hi"}"#));
    server.otherwise(Reply::text("ok"));
    run(&sandbox, &server, &["run", "read $gh, please"]).ok();
    let tape = || run(&sandbox, &server, &["tape", "export", "cli:local"]).ok();
    let (before, sent) = (tape(), server.requests().len());
    let args = ["debug", "request", "--json", "--message", MESSAGE];
    let shown: Value = serde_json::from_str(&run(&sandbox, &server, &args).ok()).unwrap();
    assert_eq!((tape(), server.requests().len()), (before, sent));
    run(&sandbox, &server, &["run", MESSAGE]).ok();
    let next = server.requests()[sent].json();
    assert_eq!(without_dates(shown["body"].clone()), without_dates(next));
    assert_eq!(shown["model"], "openai:gpt-4o");
    // The skill of the first message is no longer loaded, so the system prompt is another one.
    assert_eq!(shown["last"]["is_system_same"], false);
    let [kept, added] = ["kept", "added"].map(|key| shown["last"][key]["entries"].clone());
    assert_eq!((kept, added), (json!(3), json!(1)));
}

#[test]
fn the_parts_of_a_request_are_listed_with_their_sizes() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    server.otherwise(Reply::text("ok"));
    run(&sandbox, &server, &["run", "first"]).ok();
    run(&sandbox, &server, &["run", "second"]).ok();
    let shown = run(&sandbox, &server, &["debug", "request"]).ok();
    let has_row = |name: &str| shown.lines().any(|line| line.starts_with(name));
    for name in [
        "system general_instruct ",
        "skill gh ",
        "message user              2 ",
        "message assistant         2 ",
        "message next              1 ",
        "tool bash ",
        "total ",
        "  system prompt: unchanged",
        "  messages: 3 entries (",
    ] {
        assert!(has_row(name), "{name}:\n{shown}");
    }
    let body = run(&sandbox, &server, &["debug", "request", "new", "--body"]).ok();
    assert!(body.starts_with("POST /chat/completions\n{"), "{body}");
    assert!(
        body.ends_with("\nNo request was sent in this session.\n"),
        "{body}"
    );
    assert_eq!(server.requests().len(), 2);
}

#[test]
fn without_a_model_the_reason_is_reported() {
    let sandbox = Sandbox::new();
    let output = sandbox.command(&bub()).args(["debug", "request"]).output();
    let run = Run::from_output(output.unwrap());
    assert_eq!(run.code, Some(2));
    assert!(
        run.stderr.contains("no request to the model: "),
        "{}",
        run.stderr
    );
}

// Every model call repeats these parts. The first request of the Python version has 9,620 characters.
#[test]
fn the_first_request_stays_short() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    let shown = run(&sandbox, &server, &["debug", "request", "--json"]).ok();
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let is_extra = |part: &&Value| {
        let extra = [
            "fs_list",
            "fs_glob",
            "fs_grep",
            "todo",
            "tape_read",
            "memory_search",
        ];
        extra.contains(&part["name"].as_str().unwrap())
    };
    let parts = shown["parts"].as_array().unwrap();
    let sum = |parts: &mut dyn Iterator<Item = &Value>, key: &str| -> u64 {
        parts.map(|part| part[key].as_u64().unwrap()).sum()
    };
    let characters = sum(&mut parts.iter(), "characters");
    assert!(characters < 9_000, "{characters} characters");
    // What bub adds to the tools of the Python version.
    let tokens = sum(&mut parts.iter().filter(is_extra), "tokens");
    assert!(tokens <= 470, "{tokens} tokens");
}
