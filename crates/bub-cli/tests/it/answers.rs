//! Tests the output and exit codes of `bub run` with a model.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    sync::mpsc::{Receiver, channel},
};

use bub_testkit::model::{Finish, ModelServer, Reply};

use crate::sandbox::{Run, Sandbox, bub};

const KEY: &str = "correct-horse-battery";

fn run(sandbox: &Sandbox, variables: &[(&str, &str)], args: &[&str]) -> Run {
    let mut command = sandbox.command(&bub());
    let run = Run::from_output(
        command
            .envs(variables.iter().copied())
            .args(args)
            .output()
            .unwrap(),
    );
    assert!(
        !run.stdout.contains(KEY) && !run.stderr.contains(KEY),
        "{run:?}"
    );
    run
}

/// Runs a turn with a scripted model.
fn ask(reply: Reply, more: &[(&str, &str)]) -> Run {
    let server = ModelServer::start();
    server.otherwise(reply);
    let base = format!("{}/v1", server.url());
    let variables = [
        ("BUB_MODEL", "openai:small"),
        ("BUB_API_BASE", &base),
        ("BUB_API_KEY", KEY),
    ];
    run(
        &Sandbox::new(),
        &[&variables, more].concat(),
        &["run", "hi"],
    )
}

// H-3
#[test]
fn a_whole_answer_is_printed_and_nothing_else() {
    let run = ask(Reply::deltas(["Hel", "lo"]), &[]);
    assert_eq!(run.stderr, "");
    assert_eq!(run.ok(), "Hello\n");
}

// A pipe may end at a terminal (`bub run … | cat`).
#[test]
fn control_sequences_are_shown_in_a_pipe_unless_raw_is_given() {
    let text = "\x1b]0;title\x07\x1b[2J\u{202e}x\u{e0041}\u{e0042} ❤️\n\tend";
    let server = ModelServer::start();
    server.otherwise(Reply::text(text));
    let base = format!("{}/v1", server.url());
    let variables = [
        ("BUB_MODEL", "openai:small"),
        ("BUB_API_BASE", &base),
        ("BUB_API_KEY", KEY),
    ];
    let shown = "␛]0;title␇␛[2J\\u{202e}x\\u{e0041}\\u{e0042} ❤️\n\tend";
    for (args, expected) in [(&["run", "hi"][..], shown), (&["run", "--raw", "hi"], text)] {
        let run = run(&Sandbox::new(), &variables, args);
        assert_eq!(run.ok(), format!("{expected}\n"));
    }
}

// The output of a failed command is shown once and keeps its lines; terminal control characters are shown escaped.
#[test]
fn the_output_of_a_failed_command_is_shown_once_and_keeps_its_lines() {
    let run = run(
        &Sandbox::new(),
        &[],
        &["run", r",seq 3; printf '\033[2J\n'; exit 3"],
    );
    assert_eq!(run.code, Some(1));
    assert_eq!(run.stderr, "error: command exited with code 3\n");
    assert_eq!(run.stdout, "1\n2\n3\n␛[2J\n");
}

// H-120, W-35: each call logs two lines without its output. Truncated arguments and the error are logged only if contents
// are enabled.
#[test]
fn calls_are_logged_without_what_they_printed() {
    let long = "x".repeat(300);
    let line = format!(",printf 'out%s' put # {long}");
    let bare = run(&Sandbox::new(), &[("BUB_VERBOSE", "1")], &["run", &line]);
    assert!(
        bare.stderr.contains("tool.call.start name=bash") && !bare.stderr.contains("printf"),
        "{bare:?}"
    );
    let variables = [("BUB_VERBOSE", "1"), ("BUB_LOG_CONTENTS", "true")];
    let good = run(&Sandbox::new(), &variables, &["run", &line]);
    let start = good
        .stderr
        .lines()
        .find(|line| line.contains("tool.call.arguments name=bash arguments={ command="))
        .unwrap();
    let (own, _) = start.split_once(" session_id=").unwrap();
    assert!(own.len() < 250 && !start.contains(&long), "{start}");
    assert!(
        good.stderr
            .contains("tool.call.success name=bash elapsed_time="),
        "{}",
        good.stderr
    );
    assert!(
        !bare.stderr.contains("output") && bare.stdout.contains("output"),
        "{bare:?}"
    );
    let bad = run(
        &Sandbox::new(),
        &[("BUB_VERBOSE", "1")],
        &["run", ",echo so-it-said; exit 4"],
    );
    let end = bad
        .stderr
        .lines()
        .find(|line| line.contains("tool.call.error name=bash elapsed_time="))
        .unwrap();
    assert!(
        end.contains("error=tool") && !end.contains("so-it-said"),
        "{end}"
    );
}

// Finish reasons are reported: a truncated answer is not a success, and its text is not lost.
#[test]
fn an_answer_that_is_not_complete_fails_in_one_line() {
    for (reply, stdout, reason) in [
        (
            Reply::text("Hel").finish(Finish::Length),
            "Hel\n",
            "it reached the `max_tokens` limit; raise the setting",
        ),
        (
            Reply::new().finish(Finish::Length),
            "",
            "it reached the `max_tokens` limit; raise the setting",
        ),
        (
            Reply::new().finish(Finish::Filter),
            "",
            "the provider's content filter stopped it; rephrase the request",
        ),
    ] {
        let run = ask(reply, &[]);
        assert_eq!(
            (run.code, run.stdout.as_str()),
            (Some(1), stdout),
            "{run:?}"
        );
        assert_eq!(
            run.stderr,
            format!("error: the answer is incomplete: {reason}\n")
        );
    }
}

// Documented exit codes: 2 for the configuration, 1 for errors of a provider; both in one readable line.
#[test]
fn a_failed_turn_is_one_line_and_its_exit_code_says_whose_fault_it_is() {
    let run = ask(Reply::status(400).message("no such thing"), &[]);
    assert_eq!(
        (run.code, run.stderr.lines().count()),
        (Some(1), 1),
        "{run:?}"
    );
    assert!(
        run.stderr
            .starts_with("error: openai:small: no such thing (HTTP 400"),
        "{run:?}"
    );

    for (variables, expected) in [
        (
            &[("BUB_MODEL", "opnai:x")][..],
            "error: environment variable BUB_MODEL: unknown provider `opnai`, did you mean `openai`?; ",
        ),
        (
            &[("BUB_MODEL", "small")],
            "error: environment variable BUB_MODEL: `model` is `small`, expected a model, as `provider:model`, or null",
        ),
        (
            &[("BUB_MODEL", "openai:x")],
            "error: openai:x: no API key for `openai`: set OPENAI_API_KEY",
        ),
        (
            &[("BUB_MODEL", "azure:x")],
            "error: azure:x: no base URL for `azure`: set AZURE_OPENAI_ENDPOINT",
        ),
        (
            &[
                ("BUB_MODEL", "groq:x"),
                ("BUB_API_KEY_COMMAND", "pass 'show"),
            ],
            "error: groq:x: `api_key_command` of `groq`: unclosed quote; add the missing quote",
        ),
        (
            &[
                ("BUB_MODEL", "groq:x"),
                ("GROQ_API_KEY", "correct-horse-battery\nstaple"),
            ],
            "error: groq:x: invalid API key for `groq` from environment variable GROQ_API_KEY: it contains spaces",
        ),
    ] {
        let run = self::run(&Sandbox::new(), variables, &["run", "hi"]);
        assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""), "{run:?}");
        assert!(
            run.stderr.starts_with(expected) && run.stderr.lines().count() == 1,
            "{run:?}"
        );
        assert!(!run.stderr.contains("(hook "), "{run:?}");
    }
}

#[test]
fn the_log_has_the_failure_too_when_more_was_asked_for() {
    let run = ask(
        Reply::status(400).message("no such thing"),
        &[("BUB_VERBOSE", "1")],
    );
    let failed = run
        .stderr
        .lines()
        .filter(|line| line.contains(" ERROR turn.failed error="))
        .count();
    assert_eq!(failed, 1, "{run:?}");
    assert!(
        run.stderr
            .lines()
            .last()
            .unwrap()
            .starts_with("error: openai:small: no such thing"),
        "{run:?}"
    );
}

// H-80: an invalid `model` is reported and does not hide a working fallback; fallbacks alone are models, too.
#[test]
fn fallbacks_answer_when_the_model_is_wrong_or_missing() {
    let server = ModelServer::start();
    server.otherwise(Reply::text("fallback"));
    let base = format!("{}/v1", server.url());
    let fallbacks = [
        ("BUB_FALLBACK_MODELS", "unknown:x,vllm:small"),
        ("BUB_VLLM_API_BASE", &base),
    ];

    let wrong = run(
        &Sandbox::new(),
        &[&fallbacks[..], &[("BUB_MODEL", "opnai:x")]].concat(),
        &["run", "hi"],
    );
    assert!(
        wrong.stderr.contains("model.invalid error=environment variable BUB_MODEL: unknown provider `opnai`, did you mean `openai`?"),
        "{wrong:?}"
    );
    assert!(wrong.stderr.contains(" fallback=vllm:small"), "{wrong:?}");
    assert_eq!(wrong.ok(), "fallback\n");

    let alone = run(&Sandbox::new(), &fallbacks, &["run", "hi"]);
    assert_eq!(alone.ok(), "fallback\n");

    let report = run(&Sandbox::new(), &fallbacks, &["models"]).ok();
    assert!(
        report.starts_with("model: vllm:small (`model` is not set; from `fallback_models`)\n"),
        "{report}"
    );
}

/// Starts a proxy that answers one request and returns its first line.
fn proxy() -> (String, Receiver<String>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let (mut first, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line == "\r\n" {
                break;
            }
            first = if first.is_empty() {
                line.trim().to_owned()
            } else {
                first
            };
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let answer =
            r#"{"choices": [{"message": {"content": "from the proxy"}, "finish_reason": "stop"}]}"#;
        let head = "content-type: application/json\r\nconnection: close";
        let status = if first.starts_with("CONNECT") {
            "403 Forbidden"
        } else {
            "200 OK"
        };
        write!(
            stream,
            "HTTP/1.1 {status}\r\n{head}\r\ncontent-length: {}\r\n\r\n{answer}",
            answer.len()
        )
        .unwrap();
        sender.send(first).unwrap();
    });
    (url, receiver)
}

// Proxies come from the environment: one variable per URL scheme, and a general one.
#[test]
fn requests_go_through_the_proxy_of_the_environment() {
    let plain = "http://model.invalid/v1";
    let secure = "https://model.invalid/v1";
    for (variable, base, expected) in [
        (
            "HTTP_PROXY",
            plain,
            "POST http://model.invalid/v1/chat/completions HTTP/1.1",
        ),
        (
            "all_proxy",
            plain,
            "POST http://model.invalid/v1/chat/completions HTTP/1.1",
        ),
        ("HTTPS_PROXY", secure, "CONNECT model.invalid:443 HTTP/1.1"),
        ("ALL_PROXY", secure, "CONNECT model.invalid:443 HTTP/1.1"),
    ] {
        let (url, asked) = proxy();
        let variables = [
            ("BUB_MODEL", "vllm:small"),
            ("BUB_API_BASE", base),
            (variable, &url),
        ];
        let run = self::run(&Sandbox::new(), &variables, &["run", "hi"]);
        assert_eq!(asked.recv().unwrap(), expected, "{variable} {run:?}");
        if base == plain {
            assert_eq!(run.ok(), "from the proxy\n");
        } else {
            assert_eq!(
                (run.code, run.stderr.lines().count() > 0),
                (Some(1), true),
                "{run:?}"
            );
        }
    }
}

// NO_PROXY and localhost are never proxied.
#[test]
fn some_hosts_are_reached_without_the_proxy() {
    let closed_port = "http://127.0.0.1:1";
    let run = ask(
        Reply::text("direct"),
        &[("HTTP_PROXY", closed_port), ("ALL_PROXY", closed_port)],
    );
    assert_eq!(run.ok(), "direct\n");

    let (url, asked) = proxy();
    let variables = [
        ("BUB_MODEL", "vllm:small"),
        ("BUB_API_BASE", "http://model.invalid/v1"),
        ("HTTP_PROXY", &url),
        ("NO_PROXY", "other.invalid,.invalid"),
    ];
    let run = self::run(&Sandbox::new(), &variables, &["run", "hi"]);
    assert_eq!(run.code, Some(1), "{run:?}");
    assert!(asked.try_recv().is_err(), "the proxy was asked");
}
