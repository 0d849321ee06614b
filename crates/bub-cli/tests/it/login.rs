//! Tests `bub login` with a local token server.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    process::Stdio,
    sync::mpsc::{Receiver, channel},
};

use crate::sandbox::{Run, Sandbox, bub};

const TOKENS: &str = r#"{"access_token": "top-secret-access", "refresh_token": "top-secret-refresh", "expires_in": 3600}"#;

/// Starts a server that answers one request and returns its body.
fn issuer(status: &'static str, answer: &'static str) -> (String, Receiver<String>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        write!(
            stream,
            "HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{answer}",
            answer.len()
        )
        .unwrap();
        sender.send(String::from_utf8(body).unwrap()).unwrap();
    });
    (url, receiver)
}

/// Runs a manual login. `pasted` converts the sign-in URL into the pasted text.
fn login(sandbox: &Sandbox, issuer: &str, pasted: impl FnOnce(&str) -> String) -> Run {
    let mut child = sandbox
        .command(&bub())
        .args(["login", "openai", "--manual", "--issuer", issuer])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut page = String::new();
    while !page.starts_with("  http") {
        page.clear();
        assert_ne!(
            stderr.read_line(&mut page).unwrap(),
            0,
            "it ended without showing an address"
        );
    }
    let mut stdin = child.stdin.take().unwrap();
    writeln!(stdin, "{}", pasted(page.trim())).unwrap();
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    let mut run = Run::from_output(child.wait_with_output().unwrap());
    run.stderr = rest;
    run
}

fn state(page: &str) -> &str {
    page.split("state=")
        .nth(1)
        .unwrap()
        .split('&')
        .next()
        .unwrap()
}

// H-99: the lines match the Python version; tokens are only in the file
#[test]
fn a_login_by_hand_is_kept_and_used() {
    let sandbox = Sandbox::new();
    let (url, asked) = issuer("200 OK", TOKENS);
    let callback = |page: &str| {
        format!(
            "http://localhost:1455/auth/callback?code=the-code&state={}",
            state(page)
        )
    };
    let run = login(&sandbox, &url, callback);
    assert!(
        !run.stdout.contains("top-secret") && !run.stderr.contains("top-secret"),
        "{run:?}"
    );
    let text = run.ok();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[..2], ["login: ok", "account_id: -"]);
    assert!(
        lines[2].starts_with("auth_file: ") && lines[2].ends_with("/.codex/auth.json"),
        "{text}"
    );
    assert_eq!(
        lines[3],
        "usage: BUB_MODEL=openai:gpt-6-sol bub run \"hello\""
    );
    assert!(
        asked
            .recv()
            .unwrap()
            .contains("grant_type=authorization_code&code=the-code&")
    );

    let models = sandbox.bub(["models"]).ok();
    assert!(
        models.starts_with("model: openai:gpt-6-sol (`model` is not set; login in "),
        "{models}"
    );
    assert!(!models.contains("top-secret"), "{models}");
}

// W-40
#[test]
fn an_answer_of_another_attempt_is_refused() {
    let sandbox = Sandbox::new();
    let run = login(&sandbox, "http://127.0.0.1:1", |_| {
        "?code=the-code&state=other".to_owned()
    });
    assert_eq!(run.code, Some(1));
    assert!(
        run.stderr
            .ends_with("run the command again and use the new URL\n"),
        "{}",
        run.stderr
    );
    assert!(!sandbox.home().parent().unwrap().join(".codex").exists());
}

// H-99: exit code 1, one line; W-40: the error of the server is not a traceback
#[test]
fn a_refusal_of_the_server_is_one_line() {
    let (url, _asked) = issuer(
        "403 Forbidden",
        r#"{"error": "invalid_grant", "error_description": "code was used"}"#,
    );
    let run = login(&Sandbox::new(), &url, |_| "bare-code".to_owned());
    assert_eq!(run.code, Some(1));
    let last = run.stderr.lines().last().unwrap();
    assert!(
        last.ends_with(
            "error: Codex login failed: the token endpoint rejected the request (HTTP 403): code was used; run the command again"
        ),
        "{last}"
    );
}

// H-10
#[test]
fn a_login_needs_a_provider_that_has_one() {
    for args in [
        ["login"].as_slice(),
        &["login", "unknown"],
        &["login", "openai", "--timeout", "0"],
    ] {
        let run = Sandbox::new().bub(args);
        assert_eq!(
            (run.code, run.stderr.lines().count()),
            (Some(2), 1),
            "{run:?}"
        );
    }
}
