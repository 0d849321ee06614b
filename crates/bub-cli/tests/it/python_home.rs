//! L6: a home of the Python version works: its tapes are read, and its sessions continue.
//!
//! `crates/bub-tape/tests/data/python-home` has tapes in the format of the Python version; `make.py` there describes the
//! cases. `BUB_FIXTURES` has tapes that the Python version recorded.

use std::{
    fs,
    path::{Path, PathBuf},
};

use bub_tape::TapeName;
use bub_testkit::model::{ModelServer, Reply};
use serde_json::Value;

use crate::sandbox::{Run, Sandbox, bub, root};

fn bundled() -> PathBuf {
    root().join("crates/bub-tape/tests/data/python-home")
}

fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn tape(sandbox: &Sandbox, args: &[&str]) -> Run {
    sandbox.bub([&["tape"], args].concat())
}

fn json(run: Run) -> Vec<Value> {
    run.ok()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Compares the output of `bub tape` with the results of the Python version.
fn check_tapes(python_tapes: &Path, answers: &Value) {
    let sandbox = Sandbox::new();
    let tapes = sandbox.home().join("tapes");
    fs::create_dir_all(&tapes).unwrap();
    for file in fs::read_dir(python_tapes).unwrap().map(Result::unwrap) {
        fs::write(tapes.join(file.file_name()), fs::read(file.path()).unwrap()).unwrap();
    }
    let sessions = answers["sessions"].as_object().unwrap();
    let listed = json(tape(&sandbox, &["list", "--all-workspaces", "--json"]));
    assert!(listed.len() >= sessions.len());
    for (session, answer) in sessions {
        let name = answer["tape"].as_str().unwrap();
        let info = &json(tape(&sandbox, &["info", name, "--json"]))[0];
        for key in [
            "entries",
            "anchors",
            "last_anchor",
            "entries_since_last_anchor",
            "last_token_usage",
        ] {
            assert_eq!(info[key], answer[key], "{session} {key}");
        }
        let anchors = json(tape(&sandbox, &["anchors", name, "--json"]));
        let names: Vec<_> = anchors
            .iter()
            .map(|anchor| anchor["payload"]["name"].clone())
            .collect();
        let expected: Vec<_> = answer["anchor_list"]
            .as_array()
            .unwrap()
            .iter()
            .map(|anchor| anchor["name"].clone())
            .collect();
        assert_eq!(names, expected, "{session}");
        let shown = tape(&sandbox, &["show", name, "--raw"]).ok();
        assert_eq!(
            shown.lines().filter(|line| line.starts_with('#')).count() as u64,
            answer["entries"].as_u64().unwrap()
        );
        let original = fs::read_to_string(python_tapes.join(format!("{name}.jsonl"))).unwrap();
        assert_eq!(
            tape(&sandbox, &["export", name]).ok(),
            original,
            "{session}"
        );
        tape(&sandbox, &["export", name, "--format", "markdown"]).ok();
    }
}

#[test]
fn the_tapes_of_the_python_version_are_read() {
    let home = bundled();
    check_tapes(&home.join("tapes"), &read_json(&home.join("answers.json")));
}

#[bub_testkit::needs_fixtures]
#[test]
fn the_recorded_tapes_of_the_python_version_are_read() {
    let tapes = bub_testkit::fixtures("tapes");
    check_tapes(&tapes, &read_json(&tapes.join("answers.json")));
}

/// The model sees the conversation as the Python version would show it, and the tape only grows.
#[test]
fn a_session_of_the_python_version_continues() {
    let answers = read_json(&bundled().join("answers.json"));
    for (session, answer) in answers["sessions"].as_object().unwrap() {
        let (sandbox, model) = (Sandbox::new(), ModelServer::start());
        model.otherwise(Reply::text("welcome back"));
        let workspace = sandbox.workspace().canonicalize().unwrap();
        let name = TapeName::for_session(workspace.to_str().unwrap(), "cli:local");
        let tapes = sandbox.home().join("tapes");
        fs::create_dir_all(&tapes).unwrap();
        let source = bundled()
            .join("tapes")
            .join(answer["tape"].as_str().unwrap());
        let before = fs::read_to_string(source.with_extension("jsonl")).unwrap();
        let file = tapes.join(format!("{name}.jsonl"));
        fs::write(&file, &before).unwrap();
        let run = sandbox
            .command(&bub())
            .args(["run", "what now?"])
            .env("BUB_MODEL", "openai:small")
            .env("BUB_API_BASE", format!("{}/v1", model.url()))
            .env("BUB_API_KEY", "sk-none-at-all")
            .output()
            .unwrap();
        assert_eq!(Run::from_output(run).ok(), "welcome back\n");

        let request = model.requests()[0].json();
        // `,model` in the Python version holds for the rest of the session.
        let expected = if session == "model" { "large" } else { "small" };
        assert_eq!(request["model"], expected, "{session}");
        let sent = request["messages"].as_array().unwrap();
        let shown = sent.iter().map(|message| message["content"].clone());
        let shown: Vec<Value> = shown.collect();
        let expected = answer["messages_after_last_anchor"].as_array().unwrap();
        let expected: Vec<Value> = expected
            .iter()
            .map(|message| message["content"].clone())
            .collect();
        let start = shown.len() - 1 - expected.len();
        assert_eq!(shown[start..shown.len() - 1], expected, "{session}");
        let question = shown.last().unwrap().as_str().unwrap();
        assert!(question.ends_with("what now?"), "{session}: {question}");

        let after = fs::read_to_string(&file).unwrap();
        assert!(after.starts_with(&before), "{session}");
        assert!(after.contains("welcome back"), "{session}");
        tape(&sandbox, &["check"]).ok();
    }
}
