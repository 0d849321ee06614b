//! Tests `bub models` without a network.

use std::path::Path;

use bub_testkit::{
    model::{ModelServer, Reply},
    pty::{Pty, SESSION_LEADER},
};
use serde_json::Value;

use crate::sandbox::{Run, Sandbox, bub};

fn run_with(sandbox: &Sandbox, variables: &[(&str, &str)], args: &[&str]) -> Run {
    let mut command = sandbox.command(&bub());
    Run::from_output(
        command
            .envs(variables.iter().copied())
            .args(args)
            .output()
            .unwrap(),
    )
}

#[test]
fn without_anything_it_says_what_to_do() {
    let text = Sandbox::new().bub(["models", "--all"]).ok();
    assert!(
        text.starts_with("no model configured: no API key set"),
        "{text}"
    );
    assert!(!text.contains("\navailable:"), "{text}");
    assert!(
        text.contains("\n  openai          set OPENAI_API_KEY, or run `bub login openai`\n"),
        "{text}"
    );
    assert!(
        text.contains("\n  ollama          not checked, because `local_models` is off\n"),
        "{text}"
    );
}

// H-23, design §6
#[test]
fn a_key_is_enough_and_is_never_shown() {
    let key = "sk-or-correct-horse";
    for args in [["models"].as_slice(), &["models", "--json"]] {
        let run = run_with(
            &Sandbox::new(),
            &[("OPENROUTER_API_KEY", key), ("BUB_VERBOSE", "2")],
            args,
        );
        assert!(
            !run.stderr.contains(key) && !run.stdout.contains(key),
            "{run:?}"
        );
        let text = run.ok();
        assert!(text.contains("openrouter:openrouter/free"), "{text}");
        assert!(
            text.contains("environment variable OPENROUTER_API_KEY"),
            "{text}"
        );
    }
    let text = run_with(&Sandbox::new(), &[("OPENROUTER_API_KEY", key)], &["models"]).ok();
    assert!(
        text.contains("\navailable:\n  openrouter  key *** from environment variable OPENROUTER_API_KEY\n\n45 more providers "),
        "{text}"
    );
}

// W-46
#[test]
fn what_is_configured_and_broken_is_reported_with_a_fix() {
    let sandbox = Sandbox::new();
    sandbox.write(
        "home/config.yml",
        "model: opnai:gpt-5\nfallback_models: [groq:x]\n",
    );
    let text = sandbox.bub(["models"]).ok();
    assert!(
        text.contains("unknown provider `opnai`, did you mean `openai`?"),
        "{text}"
    );
    assert!(
        text.contains("fallback: groq:x is unavailable: no API key for `groq`: set GROQ_API_KEY"),
        "{text}"
    );
}

/// Returns variables with which bub finds only the model server at `address`.
fn only_server(address: &str) -> [(&str, &str); 7] {
    // Redirect the other local servers to a closed port, so that servers of this machine do not matter.
    let closed_port = "http://127.0.0.1:1/v1";
    [
        ("BUB_LOCAL_MODELS", "true"),
        ("OLLAMA_HOST", address),
        ("BUB_LMSTUDIO_API_BASE", closed_port),
        ("BUB_LLAMACPP_API_BASE", closed_port),
        ("BUB_LLAMAFILE_API_BASE", closed_port),
        ("BUB_VLLM_API_BASE", closed_port),
        // A proxy must not receive requests to localhost.
        ("HTTP_PROXY", "http://127.0.0.1:1"),
    ]
}

fn model_server() -> (ModelServer, String) {
    let server = ModelServer::start();
    server.models(["qwen3:8b"]);
    server.otherwise(Reply::text("from here"));
    let address = server.address().to_string();
    (server, address)
}

#[test]
fn a_server_on_this_computer_is_found_and_not_adopted() {
    let (_server, address) = model_server();
    let (sandbox, variables) = (Sandbox::new(), only_server(&address));
    let json = run_with(&sandbox, &variables, &["models", "--json"]).ok();
    let report: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(report["model"]["id"], Value::Null);
    assert_eq!(report["local_servers"][0]["models"][0], "qwen3:8b");
    let usable: Vec<_> = report["providers"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|row| row["usable"] == true)
        .collect();
    assert_eq!(usable.len(), 1, "{usable:?}");
    let text = run_with(&sandbox, &variables, &["models"]).ok();
    let adopt = "to use it, run `bub config set model ollama:qwen3:8b`";
    let first =
        format!("no model configured: found `ollama:qwen3:8b` at http://{address}/v1; {adopt}\n");
    assert!(text.starts_with(&first), "{text}");
    let found = format!("server at http://{address}/v1: qwen3:8b (not adopted)\n");
    assert!(text.contains(&found), "{text}");
}

// Without a terminal, bub says what it found, and sends nothing.
#[test]
fn a_server_gets_no_message_before_it_is_adopted() {
    let (server, address) = model_server();
    let (sandbox, variables) = (Sandbox::new(), only_server(&address));
    let run = run_with(&sandbox, &variables, &["run", "hello"]);
    assert_eq!(run.code, Some(2), "{run:?}");
    let adopt = "bub config set model ollama:qwen3:8b";
    assert!(run.stderr.contains(adopt), "{run:?}");
    assert!(
        server
            .requests()
            .iter()
            .all(|request| request.path == "/v1/models")
    );
    run_with(
        &sandbox,
        &variables,
        &["config", "set", "model", "ollama:qwen3:8b"],
    )
    .ok();
    let answer = run_with(&sandbox, &variables, &["run", "hello"]).ok();
    assert_eq!(answer, "from here\n");
    let text = run_with(&sandbox, &variables, &["models"]).ok();
    assert!(!text.contains("not adopted"), "{text}");
}

// At a terminal, bub asks.
#[test]
fn a_server_is_adopted_after_a_question() {
    let (server, address) = model_server();
    let sandbox = Sandbox::new();
    let terminal = || {
        let mut command = sandbox.command(Path::new(SESSION_LEADER[0]));
        command
            .args(&SESSION_LEADER[1..])
            .arg(bub())
            .args(["run", "hello"]);
        command.env("TERM", "dumb").envs(only_server(&address));
        Pty::spawn(command)
    };
    let question = format!(
        "No model is configured. Use `ollama:qwen3:8b` of the server at http://{address}/v1? [y/N] "
    );
    let mut user = terminal();
    user.expect(&question);
    user.send("\r");
    let (code, shown) = user.finish();
    assert!(
        code == Some(2) && shown.contains("`local_models: false`"),
        "{shown}"
    );
    assert!(
        server
            .requests()
            .iter()
            .all(|request| request.path == "/v1/models")
    );

    let mut user = terminal();
    user.expect(&question);
    user.send("y\r");
    let (code, shown) = user.finish();
    assert!(code == Some(0) && shown.contains("from here"), "{shown}");
    let config = std::fs::read_to_string(sandbox.home().join("config.yml")).unwrap();
    assert_eq!(config, "model: ollama:qwen3:8b\n");
    // The next run asks nothing.
    let (code, shown) = terminal().finish();
    assert!(code == Some(0) && !shown.contains("[y/N]"), "{shown}");
}

// A setting with a custom type is validated like all others, before any command runs.
#[test]
fn a_wrong_provider_stops_commands_with_file_and_line() {
    let sandbox = Sandbox::new();
    sandbox.write(
        "home/config.yml",
        "providers:\n  lab:\n    base_url: lab.example\n",
    );
    for args in [["models"].as_slice(), &["run", "hi"]] {
        let run = sandbox.bub(args);
        assert_eq!(run.code, Some(2), "{run:?}");
        assert!(
            run.stderr
                .contains("config.yml:3: `providers.lab.base_url` is `lab.example`"),
            "{}",
            run.stderr
        );
    }
    sandbox.bub(["--help"]).ok();
}

// L7: a cloned repository cannot add a provider or decide where keys are sent.
#[test]
fn the_env_file_of_a_workspace_moves_no_address() {
    let sandbox = Sandbox::new();
    sandbox.write(
        "workspace/.env",
        "BUB_OPENAI_API_BASE=https://evil.example/v1\nOPENAI_BASE_URL=https://evil.example\n",
    );
    let run = run_with(
        &sandbox,
        &[("OPENAI_API_KEY", "correct-horse")],
        &["models", "--json"],
    );
    assert!(run.stderr.contains("ignored=.env"), "{}", run.stderr);
    assert!(!run.ok().contains("evil.example"));
}
