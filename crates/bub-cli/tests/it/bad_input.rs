//! Bad input: one clear line on stderr, exit code 2, nothing written.

use std::{ffi::OsString, os::unix::ffi::OsStringExt};

use crate::sandbox::{Run, Sandbox, bub};

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
        "unrecognized subcommand 'frobnicate'; tip: to send it as a message, run `bub run frobnicate`; see `bub --help`",
    );
    check(
        &["single", "words"],
        "unrecognized subcommand 'single'; tip: to send it as a message, run `bub run 'single words'`; see `bub --help`",
    );
    check(
        &["tape", "frobnicate"],
        "unrecognized subcommand 'frobnicate'; see `bub tape --help`",
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

// The error of a subcommand names its own help.
#[test]
fn an_error_names_the_help_of_the_command() {
    check(
        &["tape", "export", "x", "--format", "pdf"],
        "invalid value 'pdf' for '--format <FORMAT>' [possible values: jsonl, markdown]; see `bub tape export --help`",
    );
    check(
        &["outbox", "--name", "main", "retry"],
        "the following required arguments were not provided: <ID>; see `bub outbox retry --help`",
    );
    check(
        &["-w", ".", "plugin", "show"],
        "the following required arguments were not provided: <NAME>; see `bub plugin show --help`",
    );
}

// A group without a subcommand prints one line, whichever group it is.
#[test]
fn a_group_needs_a_subcommand() {
    for group in [
        "config", "debug", "outbox", "plugin", "policy", "skill", "tape",
    ] {
        let run = Sandbox::new().bub([group]);
        let start = format!("error: 'bub {group}' requires a subcommand but one was not provided");
        assert!(run.stderr.starts_with(&start), "{run:?}");
        let end = format!("; see `bub {group} --help`\n");
        assert!(run.stderr.ends_with(&end), "{run:?}");
        assert_eq!(
            (run.code, run.stderr.lines().count()),
            (Some(2), 1),
            "{run:?}"
        );
    }
}

// The table in `docs/cli.md`: an argument that names nothing is invalid, in every command.
#[test]
fn what_is_not_found_is_an_invalid_argument() {
    for args in [
        &["tape", "show", "nope"][..],
        &["tape", "check", "nope"],
        &["tape", "search", "x", "nope"],
        &["skill", "show", "nope"],
        &["skill", "check", "nope"],
        &["plugin", "show", "nope"],
        &["plugin", "remove", "nope"],
        &["plugin", "enable", "nope"],
        &["plugin", "add", "./nope"],
        &["uninstall", "nope"],
        &["outbox", "drop", "nope"],
        &["outbox", "retry", "nope"],
        &["pair", "remove", "telegram:7"],
        &["pair", "ABCDEF"],
        &["config", "get", "nope"],
        &["config", "unset", "nope"],
        &["trust", "remove", "nope"],
        &["policy", "explain", "nope"],
        &["run", "x", "--file", "nope"],
        &["run", "x", "--continue"],
        &["-w", "nope", "run", "x"],
    ] {
        let run = Sandbox::new().bub(args);
        assert_eq!(run.code, Some(2), "{args:?} {run:?}");
        assert!(!run.stderr.trim().is_empty(), "{args:?}");
    }
}

// The arguments of a call are shown, and checked as the call would check them.
#[test]
fn policy_explain_says_what_is_wrong_with_the_arguments() {
    check(
        &["policy", "explain", "bash", "foo=1"],
        "unknown argument `foo`: bash takes command, cwd, timeout_seconds, background",
    );
    check(
        &["policy", "explain", "fs.read", "a.txt", "soon"],
        "invalid value \"soon\" for `offset` of fs.read: expected integer",
    );
    let shown = Sandbox::new()
        .bub(["policy", "explain", "bash", "foo"])
        .ok();
    assert!(shown.contains("\narguments: command=\"foo\"\n"), "{shown}");
}

// A home that cannot be written is one line that says what to do, not the path of a lease.
#[test]
fn an_unwritable_home_is_named() {
    let sandbox = Sandbox::new();
    sandbox.write("a-file", "");
    let home = sandbox.workspace().parent().unwrap().join("a-file/home");
    for args in [
        &["run", "hello"][..],
        &["run", ",help"],
        &["chat"],
        &["gateway"],
        &["onboard", "--yes", "--model", "ollama:x"],
    ] {
        let mut command = sandbox.command(&bub());
        let output = command.env("BUB_HOME", &home).args(args).output();
        let run = Run::from_output(output.unwrap());
        let expected = format!(
            "error: home {} cannot be written: Not a directory (os error 20); set BUB_HOME to a directory of your own\n",
            home.display()
        );
        assert_eq!((run.code, run.stderr), (Some(2), expected), "{args:?}");
    }
    let mut command = sandbox.command(&bub());
    let command = command.env("BUB_HOME", &home);
    let output = command.args(["config", "set", "max_steps", "3"]).output();
    let run = Run::from_output(output.unwrap());
    assert_eq!(run.code, Some(2), "{run:?}");
    // The file system refuses new directories, whatever the permissions say.
    let mut command = sandbox.command(&bub());
    let output = command
        .env("BUB_HOME", "/proc/nohome")
        .args(["run", "hello"])
        .output();
    let run = Run::from_output(output.unwrap());
    assert_eq!(run.code, Some(2), "{run:?}");
    let expected = "error: home /proc/nohome cannot be written: ";
    assert!(run.stderr.starts_with(expected), "{run:?}");
}
