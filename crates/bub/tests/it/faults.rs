//! Plugins that misbehave, and signals.

use std::{
    io::{BufRead, BufReader},
    process::Stdio,
};

use crate::sandbox::{Run, Sandbox, example, signal};

const SECRET: &str = "correct-horse-battery";

fn faulty(message: &str) -> Run {
    let sandbox = Sandbox::new();
    let output = sandbox
        .command(&example("faulty"))
        .args(["run", message])
        .env("BUB_API_KEY", SECRET)
        .env("BUB_VERBOSE", "2")
        .output()
        .unwrap();
    Run::of(output)
}

// S-23: the failure of a stage is the failure of the command.
#[test]
fn a_failing_plugin_is_named_with_its_hook() {
    let run = faulty("fail");
    assert_eq!(run.code, Some(1));
    assert_eq!(run.stdout, "");
    let last = run.stderr.lines().last().unwrap();
    assert_eq!(last, "error: [invalid_input] refused for *** (hook run_model of plugin faulty)");
}

#[test]
fn a_panicking_plugin_does_not_take_the_program_down() {
    let run = faulty("panic");
    assert_eq!(run.code, Some(1));
    let last = run.stderr.lines().last().unwrap();
    assert!(last.starts_with("error: [unknown] plugin code panicked: on purpose"), "{last}");
}

// L7: secrets cannot be printed or logged, however they got into the text.
#[test]
fn secrets_never_reach_the_terminal() {
    for message in ["fail", "panic", "log"] {
        let run = faulty(message);
        assert!(!run.stderr.contains(SECRET) && !run.stdout.contains(SECRET), "{message}: {run:?}");
        assert!(run.stderr.contains("***"), "{message} said nothing: {run:?}");
    }
}

// H-1, W-1: both signals end the turn in order, with the usual exit codes.
#[test]
fn a_signal_ends_the_turn_and_is_the_exit_code() {
    for (name, code) in [("INT", 130), ("TERM", 143)] {
        let sandbox = Sandbox::new();
        let mut child =
            sandbox.command(&example("faulty")).args(["run", "hang"]).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while line.trim() != "hanging" {
            line.clear();
            assert_ne!(stderr.read_line(&mut line).unwrap(), 0, "it ended without hanging");
        }
        signal(&child, name);
        assert_eq!(child.wait().unwrap().code(), Some(code), "{name}");
    }
}
