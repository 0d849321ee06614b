//! Bad input: one clear line on stderr, exit code 2, nothing written.

use std::{ffi::OsString, os::unix::ffi::OsStringExt};

use crate::sandbox::Sandbox;

fn check(args: &[&str], expected: &str) {
    check_raw(
        &args.iter().map(OsString::from).collect::<Vec<_>>(),
        expected,
    );
}

fn check_raw(args: &[OsString], expected: &str) {
    let sandbox = Sandbox::new();
    let run = sandbox.bub(args);
    assert_eq!(run.code, Some(2), "{args:?} {run:?}");
    assert_eq!(run.stdout, "", "{args:?}");
    assert_eq!(run.stderr, format!("error: {expected}\n"), "{args:?}");
    assert!(!sandbox.home().exists(), "{args:?} wrote to the home");
    assert_eq!(
        std::fs::read_dir(sandbox.workspace()).unwrap().count(),
        0,
        "{args:?} wrote to the workspace"
    );
}

// H-1
#[test]
fn an_unknown_command_is_refused() {
    check(
        &["frobnicate"],
        "unrecognized subcommand 'frobnicate'; see `bub --help`",
    );
}

#[test]
fn a_misspelled_command_is_recognised() {
    check(
        &["hook"],
        "unrecognized subcommand 'hook'; tip: a similar subcommand exists: 'hooks'; see `bub --help`",
    );
}

// H-1
#[test]
fn a_missing_argument_is_named() {
    check(
        &["run"],
        "the following required arguments were not provided: <MESSAGE>; see `bub run --help`",
    );
}

#[test]
fn an_unknown_option_is_named() {
    check(
        &["run", "hi", "--shade"],
        "unexpected argument '--shade' found; tip: to pass '--shade' as a value, use '-- --shade'; see `bub run --help`",
    );
}

#[test]
fn an_option_without_its_value_is_named() {
    check(
        &["run", "hi", "--chat-id"],
        "a value is required for '--chat-id <ID>' but none was supplied; see `bub run --help`",
    );
}

#[test]
fn a_workspace_that_does_not_exist_is_refused() {
    check(
        &["--workspace", "no/such/place", "run", "hi"],
        "workspace `no/such/place` does not exist; create it or use another directory",
    );
    check(
        &["-wnope", "run", "hi"],
        "workspace `nope` does not exist; create it or use another directory",
    );
}

// Global options are also accepted after the command.
#[test]
fn a_workspace_may_stand_after_the_command() {
    for args in [
        ["run", "hi", "-w", "nope"].as_slice(),
        &["run", "hi", "--workspace=nope"],
        &["tape", "list", "-wnope"],
    ] {
        check(
            args,
            "workspace `nope` does not exist; create it or use another directory",
        );
    }
    let sandbox = Sandbox::new();
    sandbox.write("elsewhere/AGENTS.md", "Be brief.");
    let trusted = sandbox.bub(["trust", "-w", "../elsewhere"]).ok();
    assert!(trusted.contains("/elsewhere\n"), "{trusted}");
    let run = sandbox.example("echo_model", ["run", "--", "-w"]);
    assert_eq!(
        run.ok(),
        "cli:local said: -w\n",
        "what follows `--` is the message"
    );
}

#[test]
fn a_workspace_that_is_a_file_is_refused() {
    check(
        &["--workspace=/dev/null", "run", "hi"],
        "workspace `/dev/null` is not a directory; use another directory",
    );
}

#[test]
fn a_workspace_that_is_not_utf8_is_not_mistaken_for_the_current_directory() {
    for start in [&b"--workspace=/no/such/"[..], b"-w/no/such/"] {
        let workspace = OsString::from_vec([start, b"\xff"].concat());
        check_raw(
            &[workspace, "run".into(), "hi".into()],
            "workspace `/no/such/\u{fffd}` does not exist; create it or use another directory",
        );
    }
}

#[test]
fn an_empty_message_is_refused() {
    check(
        &["run", " "],
        "invalid value ' ' for '<MESSAGE>': the value must not be empty; see `bub run --help`",
    );
}

#[test]
fn a_message_that_is_not_utf8_is_refused() {
    let message = OsString::from_vec(vec![b'h', 0xff]);
    check_raw(
        &["run".into(), message],
        "invalid argument: an argument is not valid UTF-8; pass text in UTF-8",
    );
}

// Invalid stdin is reported like other invalid input.
#[test]
fn standard_input_without_a_message_is_refused() {
    check(
        &["run", "-"],
        "no message: stdin is empty; pipe the message to `bub run -`",
    );
}
