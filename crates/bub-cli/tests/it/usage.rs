//! Tests `bub usage` with recorded model calls.

use bub_testkit::model::{ModelServer, Reply, ReplyUsage};
use serde_json::Value;

use crate::sandbox::{Run, Sandbox, bub};

fn run(sandbox: &Sandbox, server: &ModelServer, variables: &[(&str, &str)], args: &[&str]) -> Run {
    let mut command = sandbox.command(&bub());
    command
        .env("BUB_OPENAI_API_BASE", format!("{}/v1", server.url()))
        .env("BUB_OPENAI_API_KEY", "key-of-a-test");
    command.env("TZ", "UTC").envs(variables.iter().copied());
    Run::from_output(command.args(args).output().unwrap())
}

#[test]
fn tokens_and_cost_are_shown_by_model_session_and_day() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    server.otherwise(Reply::text("ok").usage(ReplyUsage {
        input: 1000,
        output: 100,
        cached: 400,
        reasoning: 0,
    }));
    for (model, session) in [
        ("openai:gpt-4o", "one"),
        ("openai:gpt-4o", "two"),
        ("openai:mystery", "two"),
    ] {
        run(
            &sandbox,
            &server,
            &[("BUB_MODEL", model)],
            &["run", "hi", "--session-id", session],
        )
        .ok();
    }
    let shown = |args: &[&str]| run(&sandbox, &server, &[], &[&["usage"], args].concat()).ok();
    // A call: 600 * $2.50 + 400 * $1.25 + 100 * $10 per million.
    assert_eq!(
        shown(&["--by", "model"]),
        "MODEL           CALLS  INPUT  CACHED  OUTPUT  COST\n\
         openai:gpt-4o       2   2000     800     200  $0.0060\n\
         openai:mystery      1   1000     400     100  unknown\n\
         total               3   3000    1200     300  $0.0060 and 1 call of unknown price\n"
    );
    let sessions = shown(&["--by", "session"]);
    assert!(
        sessions.contains("one          1   1000     400     100  $0.0030\n"),
        "{sessions}"
    );
    assert!(
        sessions.contains(
            "two          2   2000     800     200  $0.0030 and 1 call of unknown price\n"
        ),
        "{sessions}"
    );
    let days = shown(&[]);
    assert_eq!(days.lines().count(), 3, "{days}");
    let row: Value =
        serde_json::from_str(shown(&["--by", "model", "--json"]).lines().nth(1).unwrap()).unwrap();
    assert_eq!(
        (&row["model"], &row["cost"], &row["calls_of_unknown_price"]),
        (&"openai:mystery".into(), &Value::Null, &1.into())
    );
    let all = shown(&[]);
    for since in [
        "12h",
        "7d",
        "4w",
        "yesterday",
        "2026-01-31",
        "2026-01-31T12:00:00Z",
        "2026-01-31T12:00",
    ] {
        assert_eq!(shown(&["--since", since]), all, "{since}");
        sandbox.bub(["tape", "search", "x", "--since", since]).ok();
    }
    for since in ["9999-01-01", "9999-01-01T12:00:00Z", "0h"] {
        assert_eq!(shown(&["--since", since]), "(no calls)\n", "{since}");
    }
    // Configured prices override the table, also for earlier calls.
    let priced = [(
        "BUB_PROVIDERS",
        r#"{"openai": {"prices": {"mystery": {"input": 1, "output": 1}}}}"#,
    )];
    let text = run(&sandbox, &server, &priced, &["usage", "--by", "model"]).ok();
    assert!(
        text.contains("openai:mystery      1   1000     400     100  $0.0011\n"),
        "{text}"
    );
}

// `,undo` copies the entries before the last turn into a new session.
#[test]
fn a_call_that_a_fork_copied_counts_once() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    server.otherwise(Reply::text("ok").usage(ReplyUsage {
        input: 10,
        output: 1,
        ..ReplyUsage::default()
    }));
    let model = [("BUB_MODEL", "openai:gpt-4o")];
    for message in ["one", "two", ",undo", "three", ",undo", "four"] {
        let args = ["run", message, "--session-id", "s"];
        run(&sandbox, &server, &model, &args).ok();
    }
    let shown = run(
        &sandbox,
        &server,
        &[],
        &["usage", "--by", "session", "--json"],
    )
    .ok();
    let rows: Vec<Value> = shown
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let calls = |session: &Value| session["calls"].as_u64().unwrap();
    assert_eq!(rows.iter().map(calls).sum::<u64>(), 4, "{shown}");
    let first = rows.iter().find(|row| row["session"] == "s").unwrap();
    assert_eq!(calls(first), 2, "{shown}");
}

#[test]
fn the_cap_of_a_day_outlives_the_process() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    server.otherwise(Reply::text("ok").usage(ReplyUsage {
        input: 900,
        output: 100,
        ..ReplyUsage::default()
    }));
    let capped = [
        ("BUB_MODEL", "openai:gpt-4o"),
        ("BUB_USAGE_DAILY_TOKENS", "1500"),
    ];
    // Usage before the limit was set counts, too.
    run(
        &sandbox,
        &server,
        &[("BUB_MODEL", "openai:gpt-4o")],
        &["run", "hi"],
    )
    .ok();
    // `bub doctor` checks the limit first, and must not make bub forget that usage.
    run(&sandbox, &server, &capped, &["doctor", "--offline"]);
    run(&sandbox, &server, &capped, &["run", "hi"]).ok();
    let refused = run(&sandbox, &server, &capped, &["run", "hi"]);
    assert_ne!(refused.code, Some(0));
    assert!(
        refused
            .stderr
            .contains("2000 of 1500 tokens (`usage.daily_tokens`)"),
        "{refused:?}"
    );
    assert_eq!(server.requests().len(), 2);
}
