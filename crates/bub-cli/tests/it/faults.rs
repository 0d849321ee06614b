//! Tests misbehaving plugins and signals.

use std::{
    io::{BufRead, BufReader},
    process::{Child, ChildStderr, Stdio},
};

use crate::sandbox::{Run, Sandbox, ending_signals, example, signal};

const SECRET: &str = "correct-horse-battery";

fn run_faulty(message: &str) -> Run {
    let sandbox = Sandbox::new();
    let output = sandbox
        .command(&example("faulty"))
        .args(["run", message])
        .env("BUB_API_KEY", SECRET)
        .env("BUB_VERBOSE", "2")
        .output()
        .unwrap();
    Run::from_output(output)
}

// S-23: if a stage fails, the command fails.
#[test]
fn a_failing_plugin_is_named_with_its_hook() {
    let run = run_faulty("fail");
    assert_eq!(run.code, Some(1));
    assert_eq!(run.stdout, "");
    let last = run.stderr.lines().last().unwrap();
    assert_eq!(
        last,
        "error: [invalid_input] refused for *** (hook run_model of plugin faulty)"
    );
}

#[test]
fn a_panicking_plugin_does_not_take_the_program_down() {
    let run = run_faulty("panic");
    assert_eq!(run.code, Some(1));
    let last = run.stderr.lines().last().unwrap();
    assert!(
        last.starts_with("error: [unknown] plugin code panicked: on purpose"),
        "{last}"
    );
}

// L7: secrets are never printed or logged, independently of their way into the text.
#[test]
fn secrets_never_reach_the_terminal() {
    for message in ["fail", "panic", "log"] {
        let run = run_faulty(message);
        assert!(
            !run.stderr.contains(SECRET) && !run.stdout.contains(SECRET),
            "{message}: {run:?}"
        );
        assert!(
            run.stderr.contains("***"),
            "{message} said nothing: {run:?}"
        );
    }
}

/// Starts a turn and waits until it prints `line` to stderr.
fn start_until(
    sandbox: &Sandbox,
    message: &str,
    expected: &str,
) -> (Child, BufReader<ChildStderr>) {
    let mut child = sandbox
        .command(&example("faulty"))
        .args(["run", message])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains(expected) {
        line.clear();
        assert_ne!(
            stderr.read_line(&mut line).unwrap(),
            0,
            "it ended without saying {expected}"
        );
    }
    (child, stderr)
}

// H-1, W-1: both signals end the turn cleanly with the usual exit codes, and the turn is on the tape.
#[test]
fn a_signal_ends_the_turn_and_is_the_exit_code() {
    for (name, code) in std::iter::once(("INT", 130)).chain(ending_signals()) {
        let sandbox = Sandbox::new();
        let (mut child, _stderr) = start_until(&sandbox, "hang", "hanging");
        signal(&child, name);
        assert_eq!(child.wait().unwrap().code(), Some(code), "{name}");
        let tape = sandbox.only_tape();
        assert!(
            tape.contains("hang") && tape.contains("the turn was cancelled"),
            "{tape}"
        );
    }
}

// L8: a blocking plugin cannot be stopped cleanly, so the second signal ends the program.
#[test]
fn a_second_signal_ends_a_blocked_program() {
    let sandbox = Sandbox::new();
    let (mut child, _stderr) = start_until(&sandbox, "block", "blocking");
    signal(&child, "INT");
    signal(&child, "TERM");
    let code = child.wait().unwrap().code();
    assert!(matches!(code, Some(130 | 143)), "{code:?}");
}

// L1, W-1: the message is on the tape before the model stage, also if a plugin implements it.
#[test]
fn a_killed_turn_leaves_the_message() {
    let sandbox = Sandbox::new();
    let (mut child, _stderr) = start_until(&sandbox, "hang", "hanging");
    child.kill().unwrap();
    child.wait().unwrap();
    let tape = sandbox.only_tape();
    assert!(
        tape.contains("\"role\": \"user\"") && tape.contains("hang"),
        "{tape}"
    );
}

// L4: a session runs one turn at a time, across processes; a dead process holds no lease.
#[test]
fn a_second_turn_of_a_session_waits_and_says_so() {
    let sandbox = Sandbox::new();
    let (mut first, _first_stderr) = start_until(&sandbox, "hang", "hanging");
    let (second, _second_stderr) =
        start_until(&sandbox, "hello", "session.lease_wait session_id=cli:local");
    first.kill().unwrap();
    first.wait().unwrap();
    let run = Run::from_output(second.wait_with_output().unwrap());
    assert_eq!(run.ok(), "hello\n");
}
