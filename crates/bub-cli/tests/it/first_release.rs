//! Tests that a home of the first release still works: journal, tapes, policy, plugin pins, pairings (L6).
//!
//! The first release wrote `tests/data/first-release` and was killed in a turn. `@ROOT@` is a placeholder for the
//! directory, and the tapes are named after their sessions.

use std::{fs, path::Path};

use bub_tape::TapeName;
use bub_testkit::model::{ModelServer, Reply};
use serde_json::Value;

use crate::{
    gateway_client::start_gateway,
    sandbox::{Sandbox, root},
};

const TAPES: [(&str, &str); 3] = [
    ("cli-local", "cli:local"),
    ("webhook-a", "webhook:a"),
    ("webhook-b", "webhook:b"),
];

/// Returns a sandbox with the home of the first release and its plugin.
fn first_release() -> Sandbox {
    let sandbox = Sandbox::new();
    let data = root().join("crates/bub-cli/tests/data/first-release");
    let target = sandbox.home().parent().unwrap().canonicalize().unwrap();
    copy(&data, &target, &target);
    let workspace = sandbox.workspace().canonicalize().unwrap();
    let tapes = sandbox.home().join("tapes");
    for (file, session) in TAPES {
        let name = TapeName::for_session(workspace.to_str().unwrap(), session);
        let from = tapes.join(format!("{file}.jsonl"));
        fs::rename(from, tapes.join(format!("{name}.jsonl"))).unwrap();
    }
    sandbox
}

fn copy(from: &Path, to: &Path, root: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy(&from, &to, root);
        } else {
            // Keeps the permissions; the placeholder is replaced afterwards.
            fs::copy(&from, &to).unwrap();
            let text = fs::read_to_string(&from).unwrap();
            if text.contains("@ROOT@") {
                fs::write(&to, text.replace("@ROOT@", root.to_str().unwrap())).unwrap();
            }
        }
    }
}

fn entries(sandbox: &Sandbox, session: &str) -> Vec<Value> {
    let lines = sandbox.bub(["tape", "export", session]).ok();
    lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn messages(entries: &[Value], role: &str) -> Vec<String> {
    let of_role = |entry: &&Value| entry["kind"] == "message" && entry["payload"]["role"] == role;
    entries
        .iter()
        .filter(of_role)
        .map(|entry| entry["payload"]["content"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn what_the_first_release_left_unfinished_is_finished_once() {
    let sandbox = first_release();
    let model = ModelServer::start();
    model.otherwise(Reply::text("answered by this release"));
    // After SIGTERM, running turns finish.
    start_gateway(&sandbox, &model).stop();
    assert_eq!(model.requests().len(), 1, "one message was unfinished");

    let unfinished = entries(&sandbox, "webhook:b");
    let asked = messages(&unfinished, "user");
    assert_eq!(asked.len(), 1, "{asked:?}");
    assert!(asked[0].ends_with("slow question, unanswered"), "{asked:?}");
    assert_eq!(
        messages(&unfinished, "assistant"),
        ["answered by this release"]
    );
    let answered = messages(&entries(&sandbox, "webhook:a"), "assistant");
    assert_eq!(answered.len(), 1, "{answered:?}");

    // No work remains for the next start.
    start_gateway(&sandbox, &model).stop();
    assert_eq!(model.requests().len(), 1);
    sandbox.bub(["tape", "check"]).ok();
}

#[test]
fn sessions_policy_pins_and_pairings_of_the_first_release_hold() {
    let sandbox = first_release();
    let model = ModelServer::start();
    model.otherwise(Reply::text("welcome back"));
    let run = sandbox
        .command(&crate::sandbox::bub())
        .args(["run", "and now the next release"])
        .env("BUB_MODEL", "openai:small")
        .env("BUB_API_BASE", format!("{}/v1", model.url()))
        .env("BUB_API_KEY", "sk-none-at-all")
        .output()
        .unwrap();
    assert_eq!(run.status.code(), Some(0), "{run:?}");
    let request = model.requests()[0].json().to_string();
    assert!(
        request.contains("first message of the first release"),
        "the session continues: {request}"
    );
    assert!(
        request.contains("The plugin demo says hello."),
        "the pinned plugin runs: {request}"
    );

    let denied = sandbox.bub(["policy", "explain", "bash"]);
    assert_eq!(denied.code, Some(4), "{denied:?}");
    let paired = sandbox.bub(["pair", "list"]).ok();
    assert!(
        paired.contains("telegram:42") && paired.contains("telegram:43"),
        "{paired}"
    );

    for (sender, role) in [("42", "owner"), ("43", "member"), ("7", "guest")] {
        let explain = [
            "policy",
            "explain",
            "--channel",
            "telegram",
            "--sender",
            sender,
        ];
        let explained = sandbox.bub([&explain[..], &["fs.read", "path=x"]].concat());
        let expected = format!(" for {role} (telegram:{sender})");
        assert!(explained.stdout.contains(&expected), "{explained:?}");
    }

    let report = sandbox.bub(["migrate"]).ok();
    for row in [
        "gateway   used     journal: ",
        "gateway   used     2 paired users",
        "policy    used     ",
        "plugins   used     1 plugin installed",
        "chat      differs  session `cli:local`: `bub chat --session cli:local` continues it",
    ] {
        assert!(report.contains(row), "{row}: {report}");
    }

    // A pin still detects a change.
    let plugin = sandbox.home().parent().unwrap().join("plugin/plugin.sh");
    let text = fs::read_to_string(&plugin).unwrap();
    fs::write(&plugin, text + "# changed\n").unwrap();
    let list = sandbox.bub(["plugin", "list"]);
    assert!(!list.stdout.contains("enabled"), "{list:?}");
}
