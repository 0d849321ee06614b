//! Kills `bub run` in the middle of a tool call: finished calls stay finished, no process is left, and the session
//! continues.

use std::{process::Command, time::Duration};

use bub_testkit::model::{ModelServer, Reply};
use serde_json::Value;

use crate::sandbox::{Run, Sandbox, bub, signal};

fn program(sandbox: &Sandbox, server: &ModelServer, text: &str) -> Command {
    let mut command = sandbox.command(&bub());
    let base = format!("{}/v1", server.url());
    command
        .env("BUB_MODEL", "llamacpp:test")
        .env("BUB_LLAMACPP_API_BASE", base)
        .args(["run", text]);
    command
}

/// Waits for an effect of another process, without a fixed duration.
fn wait_until(mut happened: impl FnMut() -> bool) {
    for _ in 0..3000 {
        if happened() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("it did not happen within 30 s");
}

// L1, L3, design §5: kill -9 in the middle of a tool. The next run shows the finished call as done and the open one as
// interrupted; neither runs again, and no process is left.
#[test]
fn a_program_killed_in_the_middle_of_a_tool_resumes() {
    let server = ModelServer::start();
    server.script(
        Reply::text("working")
            .call("one", "bash", r#"{"cmd": "echo one | tee -a log"}"#)
            .call(
                "two",
                "bash",
                r#"{"cmd": "echo two >> log; echo $$ > pid; sleep 300"}"#,
            ),
    );
    server.script(Reply::text("I see"));
    let sandbox = Sandbox::new();
    let mut child = program(&sandbox, &server, "go").spawn().unwrap();
    let pid = sandbox.workspace().join("pid");
    wait_until(|| std::fs::read_to_string(&pid).is_ok_and(|text| text.ends_with('\n')));
    signal(&child, "KILL");
    child.wait().unwrap();
    let stat = format!(
        "/proc/{}/stat",
        std::fs::read_to_string(&pid).unwrap().trim()
    );
    wait_until(|| !std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")));

    assert_eq!(sandbox.bub(["tape", "check"]).code, Some(0));
    let run = Run::from_output(
        program(&sandbox, &server, "what happened?")
            .output()
            .unwrap(),
    );
    assert_eq!(run.ok(), "[cli:local]\nI see\n");
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
