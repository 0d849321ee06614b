//! Kills `bub run` in the middle of a tool call: finished calls stay finished, no process is left, and the session
//! continues.

use std::process::Command;

use bub_testkit::model::{ModelServer, Reply};
use serde_json::Value;

use crate::sandbox::{Run, Sandbox, bub, signal, wait_until};

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
    assert_eq!(run.ok(), "I see\n");
    let request = server.requests().last().unwrap().json();
    let results: Vec<&Value> = request["messages"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|message| message["role"] == "tool")
        .collect();
    assert_eq!(results[0]["content"], "one");
    assert_eq!(
        results[1]["content"],
        "[interrupted, may have taken effect]"
    );
    assert_eq!(
        std::fs::read_to_string(sandbox.workspace().join("log")).unwrap(),
        "one\ntwo\n"
    );
}
