//! Tests `bub models` without a network.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpListener,
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

/// Starts a loopback server for one request and returns its address.
fn start_server(body: &'static str) -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let head: Vec<_> = lines
            .map(Result::unwrap)
            .take_while(|line| !line.is_empty())
            .collect();
        assert_eq!(head[0], "GET /v1/models HTTP/1.1");
        write!(
            stream,
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
    });
    address
}

#[test]
fn without_anything_it_says_what_to_do() {
    let text = Sandbox::new().bub(["models"]).ok();
    assert!(
        text.starts_with("no model configured: no API key set"),
        "{text}"
    );
    assert!(!text.contains("\navailable:"), "{text}");
    assert!(
        text.contains("\n  openai       set OPENAI_API_KEY, or run `bub login openai`\n"),
        "{text}"
    );
    assert!(
        text.contains("\n  ollama       not checked, because `local_models` is off\n"),
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
        text.contains("  openrouter   key *** from environment variable OPENROUTER_API_KEY\n"),
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

#[test]
fn a_server_on_this_computer_is_found() {
    let address = start_server(r#"{"object": "list", "data": [{"id": "qwen3:8b"}]}"#);
    // Redirect the other local servers to a closed port, so that servers of this machine do not matter.
    let closed_port = "http://127.0.0.1:1/v1";
    let variables = [
        ("BUB_LOCAL_MODELS", "true"),
        ("OLLAMA_HOST", address.as_str()),
        ("BUB_LMSTUDIO_API_BASE", closed_port),
        ("BUB_LLAMACPP_API_BASE", closed_port),
        ("BUB_LLAMAFILE_API_BASE", closed_port),
        ("BUB_VLLM_API_BASE", closed_port),
        // A proxy must not receive requests to localhost.
        ("HTTP_PROXY", "http://127.0.0.1:1"),
    ];
    let json = run_with(&Sandbox::new(), &variables, &["models", "--json"]).ok();
    let report: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(report["model"]["id"], "ollama:qwen3:8b");
    assert_eq!(report["local_servers"][0]["models"][0], "qwen3:8b");
    let usable: Vec<_> = report["providers"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|row| row["usable"] == true)
        .collect();
    assert_eq!(usable.len(), 1, "{usable:?}");
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
    assert!(
        run.stderr
            .contains("`api_base` is ignored: this workspace is not trusted"),
        "{}",
        run.stderr
    );
    assert!(!run.ok().contains("evil.example"));
}
