//! Tests two gateways and `bub run` in one home, with the same sessions.

use std::collections::{HashMap, HashSet};

use bub_testkit::model::ModelServer;
use serde_json::Value;

use crate::{
    gateway_client::{CallbackServer, GatewayClient, post, start_gateway_with},
    gateway_kill::writing_model,
    sandbox::{Run, Sandbox, bub},
};

const SESSIONS: u64 = 3;

// L4: turns of one session never overlap, across processes, and no message is answered twice.
#[test]
fn two_gateways_and_a_run_share_the_sessions_of_a_home() {
    let (sandbox, model) = (Sandbox::new(), ModelServer::start());
    model
        .forget_requests()
        .answer_with(|request| writing_model(request, |_| ()));
    let settings = [
        ("BUB_WEBHOOK_ROLE", "owner"),
        ("BUB_POLICY_UNTRUSTED_CONTENT", "allow"),
    ];
    let gateways = ["one", "two"]
        .map(|name| start_gateway_with(&sandbox, &model, &["--name", name], &settings));
    let delivered = CallbackServer::default();
    let callback = delivered.listen(|| 200);
    let run = |key: u64| {
        let mut command = sandbox.command(&bub());
        command
            .env("BUB_MODEL", "openai:small")
            .env("BUB_API_KEY", "sk-none-at-all")
            .env("BUB_POLICY_UNTRUSTED_CONTENT", "allow");
        command
            .env("BUB_API_BASE", format!("{}/v1", model.url()))
            .args(["run", "--session-id"]);
        command
            .arg(format!("webhook:chat{}", key % SESSIONS))
            .arg(format!("message {key}"));
        command
    };
    let mut accepted = HashMap::new();
    let mut runs = Vec::new();
    for key in 0..40 {
        if key % 8 == 7 {
            let piped = std::process::Stdio::piped;
            runs.push(run(key).stdout(piped()).stderr(piped()).spawn().unwrap());
            continue;
        }
        let gateway = &gateways[usize::from(key % 2 == 0)];
        accepted.insert(
            key,
            post(&gateway.address, key, key % SESSIONS, &callback).unwrap(),
        );
    }
    for run in runs {
        let run = Run::from_output(run.wait_with_output().unwrap());
        assert!(run.ok().ends_with("written down\n"));
    }
    assert_eq!(delivered.missing(&accepted.values()), 0);
    gateways.into_iter().for_each(GatewayClient::stop);
    for (id, replies) in delivered.all() {
        let texts: Vec<_> = replies.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(texts, ["written down"], "{id}");
    }
    let mut written: Vec<u64> = std::fs::read_to_string(sandbox.workspace().join("log"))
        .unwrap()
        .lines()
        .map(|line| line.parse().unwrap())
        .collect();
    written.sort_unstable();
    assert_eq!(written, (0..40).collect::<Vec<_>>(), "each tool ran once");
    for name in ["one", "two"] {
        assert_eq!(
            sandbox.bub(["outbox", "list", "--name", name]).ok(),
            "no undelivered replies\n"
        );
    }
    sandbox.bub(["tape", "check"]).ok();
    assert_eq!(turns_one_after_the_other(&sandbox), 40);
}

/// Returns the number of turns on all tapes. Fails if the entries of two turns are interleaved.
fn turns_one_after_the_other(sandbox: &Sandbox) -> usize {
    let mut runs = HashSet::new();
    for file in std::fs::read_dir(sandbox.home().join("tapes")).unwrap() {
        let path = file.unwrap().path();
        if path
            .extension()
            .is_none_or(|extension| extension != "jsonl")
        {
            continue;
        }
        let mut last = Value::Null;
        for line in std::fs::read_to_string(&path).unwrap().lines() {
            let entry: Value = serde_json::from_str(line).unwrap();
            let run = entry["meta"]["run_id"].clone();
            if !run.is_null() && run != last {
                let is_new = runs.insert((path.clone(), run.to_string()));
                assert!(
                    is_new,
                    "{run} continues after another turn in {}",
                    path.display()
                );
                last = run;
            }
        }
    }
    runs.len()
}

#[test]
fn a_second_gateway_of_the_same_name_is_refused_with_one_line() {
    let (sandbox, model) = (Sandbox::new(), ModelServer::start());
    let gateway = start_gateway_with(&sandbox, &model, &["--name", "lab"], &[]);
    let mut second = sandbox.command(&bub());
    second
        .args(["gateway", "--name", "lab"])
        .env("BUB_WEBHOOK_TOKEN", "another-token-for-it");
    let second = Run::from_output(
        second
            .env("BUB_WEBHOOK_LISTEN", "127.0.0.1:0")
            .output()
            .unwrap(),
    );
    assert_eq!(second.code, Some(2), "{second:?}");
    assert_eq!(second.stderr.lines().count(), 1, "{second:?}");
    assert!(
        second.stderr.contains("another gateway runs there") && second.stderr.contains("--name"),
        "{second:?}"
    );
    gateway.stop();
}
