//! Tests arguments, unreadable tapes, and text that must not reach the terminal.

use std::{fs, os::unix::fs::PermissionsExt as _, process::Stdio};

use super::{add, file_of, fixture, json, refused, tape, tapes};
use crate::sandbox::{Run, Sandbox, bub};

#[test]
fn looking_makes_no_files() {
    let sandbox = Sandbox::new();
    for args in [
        &["list"][..],
        &["search", "x"],
        &["check"],
        &["reindex"],
        &["prune"],
    ] {
        tape(&sandbox, args).ok();
    }
    refused(
        &tape(&sandbox, &["show", "cli:local"]),
        &["cli:local", "bub tape list"],
    );
    assert!(!sandbox.home().exists());
}

#[test]
fn control_sequences_on_a_tape_are_not_obeyed() {
    let sandbox = Sandbox::new();
    sandbox
        .example("echo_model", ["run", "red \x1b[31m bell \x07 csi \u{9b}2J"])
        .ok();
    for args in [
        &["show", "cli:local"][..],
        &["list"],
        &["search", "red"],
        &["export", "cli:local", "--format", "markdown"],
    ] {
        let shown = tape(&sandbox, args).ok();
        assert!(shown.contains("red ␛[31m bell ␇ csi \\u{9b}2J"), "{shown}");
    }
    let json = tape(&sandbox, &["show", "cli:local", "--json"]).ok();
    assert!(
        json.contains(r"\u001b[31m") && json.contains(r"\u009b2J"),
        "{json}"
    );
}

#[test]
fn a_tape_is_named_by_session_tape_name_or_a_beginning() {
    let sandbox = fixture();
    let name = json(tape(&sandbox, &["info", "cli:local", "--json"]))[0]["name"]
        .as_str()
        .unwrap()
        .to_owned();
    for given in ["cli:local", "cli", "cl", &name, &name[..22]] {
        let info = tape(&sandbox, &["info", given]).ok();
        assert!(
            info.starts_with(&format!("name: {name}\n")),
            "{given}: {info}"
        );
    }
    refused(
        &tape(&sandbox, &["info", "lab"]),
        &["ambiguous tape `lab`: 2 tapes match", "lab:7", "lab:8"],
    );
    // The common prefix of all tape names of a workspace.
    refused(&tape(&sandbox, &["info", &name[..8]]), &["3 tapes"]);
    refused(&tape(&sandbox, &["info", ""]), &["session or tape"]);
}

#[test]
fn secrets_are_not_printed() {
    let sandbox = fixture();
    let secret = "correct-horse-battery";
    let line = format!(
        r#"{{"id": 9, "kind": "message", "payload": {{"role": "user", "content": "my key is {secret}"}}, "meta": {{}}, "date": "2026-11-15T18:09:55+00:00"}}"#
    );
    add(
        &file_of(&sandbox, "cli:local"),
        format!("{line}\n").as_bytes(),
    );
    for args in [
        &["show", "cli:local"][..],
        &["search", "my key"],
        &["export", "cli:local"],
        &["show", "cli", "--json"],
    ] {
        let output = sandbox
            .command(&bub())
            .arg("tape")
            .args(args)
            .env("BUB_API_KEY", secret)
            .output()
            .unwrap();
        let shown = Run::from_output(output).ok();
        assert!(
            shown.contains("my key is ***") && !shown.contains(secret),
            "{shown}"
        );
    }
}

// H-52
#[test]
fn bad_input_is_one_clear_line() {
    let sandbox = fixture();
    let check = |args: &[&str], parts: &[&str]| refused(&tape(&sandbox, args), parts);
    check(
        &[],
        &["'bub tape' requires a subcommand", "bub tape --help"],
    );
    check(
        &["show", "nope"],
        &["session or tape `nope` not found", "bub tape list"],
    );
    check(
        &["show", "../../etc/passwd"],
        &["invalid tape name", "path separator"],
    );
    check(&["check", "a/b"], &["invalid tape name", "path separator"]);
    check(
        &["show", "cli", "--after-anchor", "x"],
        &["anchor `x` not found; see `bub tape anchors cli:local`"],
    );
    check(
        &["show", "cli", "--last", "some"],
        &["invalid value 'some' for '--last <N>'"],
    );
    check(
        &["search", "x", "--since", "soon"],
        &["invalid value 'soon' for '--since <DATE>': expected a date such as 2026-01-31"],
    );
    check(
        &[
            "search",
            "x",
            "--since",
            "2026-02-01",
            "--until",
            "2026-01-01",
        ],
        &["the start date is after the end date; swap them"],
    );
    check(&["search", " "], &["empty search text"]);
    check(
        &["search", "x", "cli", "--all-workspaces"],
        &["cannot be used with"],
    );
    check(&["fork", "cli"], &["--session-id <NEW>"]);
    check(
        &[
            "fork",
            "cli",
            "--session-id",
            "x",
            "--at",
            "1",
            "--at-anchor",
            "y",
        ],
        &["cannot be used with"],
    );
    check(
        &["export", "cli", "--format", "xml"],
        &["invalid value 'xml'", "jsonl, markdown"],
    );
    check(
        &["prune", "--older-than", "soon"],
        &["invalid value 'soon'", "for example 30d"],
    );
    check(&["reindex", "\x1b[2Jx"], &["␛[2Jx"]);
}

#[test]
fn a_wrong_date_is_refused_also_where_nothing_is_searched() {
    refused(
        &tape(&Sandbox::new(), &["search", "x", "--until", "31.1.2026"]),
        &["invalid value '31.1.2026' for '--until <DATE>': expected a date"],
    );
}

#[test]
fn a_directory_that_cannot_be_read_is_a_failure() {
    let sandbox = Sandbox::new();
    sandbox.write("home/tapes", "a file where the directory should be");
    for args in [
        &["list"][..],
        &["show", "x"],
        &["search", "x"],
        &["check"],
        &["reindex"],
        &["prune"],
    ] {
        let run = tape(&sandbox, args);
        assert_eq!(run.code, Some(1), "{args:?} {run:?}");
        assert!(
            run.stderr.starts_with("error: cannot list `"),
            "{args:?} {run:?}"
        );
    }
}

#[test]
fn a_directory_without_permission_is_named() {
    let sandbox = fixture();
    let home = tapes(&sandbox);
    fs::set_permissions(&home, fs::Permissions::from_mode(0o000)).unwrap();
    // Root can read everything.
    if fs::read_dir(&home).is_err() {
        for args in [&["list"][..], &["show", "cli"], &["check"], &["prune"]] {
            let run = tape(&sandbox, args);
            assert_eq!(run.code, Some(1), "{args:?} {run:?}");
            assert!(
                run.stderr.starts_with("error: cannot access `"),
                "{args:?} {run:?}"
            );
        }
    }
    fs::set_permissions(&home, fs::Permissions::from_mode(0o700)).unwrap();
}

// An unreadable tape does not hide the others.
#[test]
fn an_unreadable_tape_is_reported_and_the_others_are_read() {
    let sandbox = fixture();
    fs::create_dir(tapes(&sandbox).join("a__b.jsonl")).unwrap();
    let list = tape(&sandbox, &["list"]);
    assert!(
        list.stderr.starts_with("skipped: ") && list.stderr.contains("a__b.jsonl"),
        "{list:?}"
    );
    assert_eq!(list.ok().lines().count(), 4);
    let check = tape(&sandbox, &["check"]);
    assert_eq!(
        (check.code, check.stderr.as_str()),
        (Some(1), "1 tape could not be checked\n"),
        "{check:?}"
    );
    assert!(
        check.stdout.contains("a__b: not checked: ") && check.stdout.contains("cli:local: ok"),
        "{check:?}"
    );
    assert_eq!(tape(&sandbox, &["reindex"]).code, Some(1));
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let sandbox = fixture();
    let path = file_of(&sandbox, "cli:local");
    let last = fs::read_to_string(&path)
        .unwrap()
        .lines()
        .last()
        .unwrap()
        .to_owned()
        + "\n";
    add(&path, last.repeat(2000).as_bytes());
    for args in [
        &["show", "cli:local"][..],
        &["export", "cli:local"],
        &["show", "cli:local", "--json"],
    ] {
        let mut child = sandbox
            .command(&bub())
            .arg("tape")
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        assert_eq!(child.wait().unwrap().code(), Some(0), "{args:?}");
    }
}
