//! Tests `bub tape` on tapes of real turns and damaged tapes.

mod input;
mod maintenance;

use std::{fs, io::Write as _, path::PathBuf};

use serde_json::Value;

use crate::sandbox::{Run, Sandbox};

/// Returns a home with three sessions: `cli:local` with two turns, `lab:7` and `lab:8` with one.
fn fixture() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.example("echo_model", ["run", "hello there"]).ok();
    sandbox.example("echo_model", ["run", "你好 世界"]).ok();
    for session in ["lab:7", "lab:8"] {
        sandbox
            .example(
                "echo_model",
                [
                    "run",
                    "measure",
                    "--channel",
                    "lab",
                    "--session-id",
                    session,
                ],
            )
            .ok();
    }
    sandbox
}

fn tapes(sandbox: &Sandbox) -> PathBuf {
    sandbox.home().join("tapes")
}

fn tape(sandbox: &Sandbox, args: &[&str]) -> Run {
    sandbox.bub([&["tape"], args].concat())
}

fn json(run: Run) -> Vec<Value> {
    run.ok()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn file_of(sandbox: &Sandbox, session: &str) -> PathBuf {
    let info = json(tape(sandbox, &["info", session, "--json"]));
    tapes(sandbox).join(format!("{}.jsonl", info[0]["name"].as_str().unwrap()))
}

fn add(path: &PathBuf, bytes: &[u8]) {
    fs::OpenOptions::new()
        .append(true)
        .open(path)
        .unwrap()
        .write_all(bytes)
        .unwrap();
}

/// Checks that a command fails with code 2 and one line that names the problem and the fix.
fn refused(run: &Run, parts: &[&str]) {
    assert_eq!(run.code, Some(2), "{run:?}");
    assert_eq!(run.stdout, "");
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
    for part in parts {
        assert!(
            run.stderr.contains(part),
            "{part} is missing in {}",
            run.stderr
        );
    }
}

// W-71: sessions have names, titles and dates.
#[test]
fn list_shows_the_sessions_of_this_workspace_latest_first() {
    let sandbox = fixture();
    let list = tape(&sandbox, &["list"]).ok();
    let rows: Vec<Vec<&str>> = list
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let sessions: Vec<_> = rows.iter().map(|row| row[0]).collect();
    assert_eq!(sessions, ["SESSION", "lab:8", "lab:7", "cli:local"]);
    assert_eq!(
        [rows[1][1], rows[1][2], rows[1].last().unwrap()],
        ["lab", "6", "measure"]
    );
    assert!(list.contains("hello there"), "{list}");

    let listed = json(tape(&sandbox, &["list", "--json"]));
    assert_eq!(listed[2]["session_id"], "cli:local");
    assert_eq!(listed[2]["entries"], 10);
}

#[test]
fn list_of_another_workspace_is_another_list() {
    let sandbox = fixture();
    sandbox.write("elsewhere/x", "");
    assert_eq!(
        sandbox.bub(["-w", "../elsewhere", "tape", "list"]).ok(),
        "(no sessions in this workspace)\n"
    );
    let all = sandbox
        .bub(["-w", "../elsewhere", "tape", "list", "--all-workspaces"])
        .ok();
    assert!(
        all.contains("WORKSPACE") && all.contains("cli:local"),
        "{all}"
    );
    // Sessions of other workspaces are found, too.
    assert!(
        sandbox
            .bub(["-w", "../elsewhere", "tape", "info", "cli:local"])
            .ok()
            .contains("entries: 10")
    );
}

#[test]
fn show_prints_every_entry_with_its_id() {
    let sandbox = fixture();
    let shown = tape(&sandbox, &["show", "cli:local", "--raw"]).ok();
    for part in [
        "#1 anchor session/start",
        "#3 event turn.start",
        "#4 message user",
        "  hello there\n",
        "#9 message assistant",
        "  cli:local said: 你好 世界\n",
    ] {
        assert!(shown.contains(part), "{part} is missing in\n{shown}");
    }
    assert!(!shown.contains('\x1b'), "colors without a terminal");
    let entries = json(tape(&sandbox, &["show", "cli:local", "--json"]));
    assert_eq!(entries.len(), 10);
    assert_eq!(
        entries[4]["payload"]["content"],
        "cli:local said: hello there"
    );
}

#[test]
fn show_takes_parts_of_a_tape() {
    let sandbox = fixture();
    let ids = |args: &[&str]| -> Vec<i64> {
        let run = tape(&sandbox, &[&["show", "cli:local", "--json"], args].concat());
        json(run)
            .iter()
            .map(|entry| entry["id"].as_i64().unwrap())
            .collect()
    };
    assert_eq!(ids(&["--last", "3"]), [8, 9, 10]);
    assert_eq!(ids(&["--kinds", "message"]), [4, 5, 8, 9]);
    assert_eq!(ids(&["--kinds", "anchor,message", "--last", "2"]), [8, 9]);
    assert_eq!(
        ids(&["--after-anchor", "session/start"]),
        [2, 3, 4, 5, 6, 7, 8, 9, 10]
    );
    assert!(ids(&["--kinds", "telepathy"]).is_empty());
}

// H-59, H-116
#[test]
fn info_has_the_seven_figures_first() {
    let sandbox = fixture();
    let info = tape(&sandbox, &["info", "cli:local"]).ok();
    let lines: Vec<_> = info.lines().skip(1).take(6).collect();
    let expected = [
        "entries: 10",
        "anchors: 1",
        "last_anchor: session/start",
        "entries_since_last_anchor: 9",
        "last_token_usage: None",
        "last_token_cache_hit_rate: None",
    ];
    assert_eq!(lines, expected);
    let usage = r#"{"id": 11, "kind": "event", "payload": {"name": "run", "data": {"usage": {"total_tokens": 15, "prompt_tokens": 8, "prompt_tokens_details": {"cached_tokens": 3}}}}, "meta": {}, "date": "2026-11-15T18:09:55+00:00"}"#;
    add(
        &file_of(&sandbox, "cli:local"),
        format!("{usage}\n").as_bytes(),
    );
    let info = tape(&sandbox, &["info", "cli:local"]).ok();
    assert!(
        info.contains("last_token_usage: 15\nlast_token_cache_hit_rate: 37.50%\n"),
        "{info}"
    );
}

#[test]
fn anchors_are_listed_with_their_ids() {
    let sandbox = fixture();
    let anchors = tape(&sandbox, &["anchors", "cli:local"]).ok();
    let last = anchors.lines().last().unwrap();
    assert!(
        last.starts_with(" 1 ") && last.ends_with(r#"session/start  {"owner": "human"}"#),
        "{anchors}"
    );
}

// W-20: every writing system, one open end, newest first.
#[test]
fn search_finds_in_one_session_and_in_all() {
    let sandbox = fixture();
    let ids = |args: &[&str]| -> Vec<(String, i64)> {
        let found = json(tape(&sandbox, &[&["search", "--json"], args].concat()));
        let pair = |hit: &Value| {
            (
                hit["session_id"].as_str().unwrap().to_owned(),
                hit["id"].as_i64().unwrap(),
            )
        };
        found.iter().map(pair).collect()
    };
    let local = |id| ("cli:local".to_owned(), id);
    // The answer repeats the message, and is longer.
    assert_eq!(ids(&["世界"]), [local(8), local(9)]);
    let everywhere: Vec<_> = ids(&["measure"])
        .into_iter()
        .map(|(session, _)| session)
        .collect();
    assert_eq!(everywhere, ["lab:8", "lab:8", "lab:7", "lab:7"]);
    assert_eq!(ids(&["measure", "cli:local"]), []);
    assert_eq!(ids(&["measure", "--limit", "1"]).len(), 1);
    assert_eq!(
        ids(&["hello", "--since", "2020-01-01"]),
        [local(4), local(5)]
    );
    assert_eq!(ids(&["hello", "--until", "2020-01-01"]), []);
    assert_eq!(ids(&["session/start", "--kinds", "anchor"]).len(), 3);
    let shown = tape(&sandbox, &["search", "hello there"]).ok();
    assert!(
        shown.contains("cli:local #5 message assistant")
            && shown.contains("  cli:local said: hello there\n"),
        "{shown}"
    );
    let none = tape(&sandbox, &["search", "xyzzy"]);
    assert_eq!(
        (none.code, none.stdout.as_str(), none.stderr.as_str()),
        (Some(0), "", "no matches\n")
    );
}

#[test]
fn a_fork_begins_with_what_the_other_session_has_seen() {
    let sandbox = fixture();
    let before = fs::read(file_of(&sandbox, "cli:local")).unwrap();
    let snippets = tape(
        &sandbox,
        &[
            "fork",
            "cli:local",
            "--session-id",
            "second try",
            "--at",
            "4",
        ],
    )
    .ok();
    assert_eq!(
        snippets,
        "forked 4 entries of cli:local into session second try\n"
    );
    let (old, new) = (
        json(tape(&sandbox, &["show", "cli:local", "--json"])),
        json(tape(&sandbox, &["show", "second try", "--json"])),
    );
    assert_eq!(new[..4], old[..4]);
    assert_eq!(new.len(), 5);
    assert_eq!(new[4]["payload"]["data"]["forked_from"]["id"], 4);
    assert_eq!(
        fs::read(file_of(&sandbox, "cli:local")).unwrap(),
        before,
        "the source was touched"
    );
    // The fork is a normal session.
    sandbox
        .example("echo_model", ["run", "go on", "--session-id", "second try"])
        .ok();
    let listed = json(tape(&sandbox, &["list", "--json"]));
    assert_eq!(
        (&listed[0]["session_id"], &listed[0]["entries"]),
        (&"second try".into(), &9.into())
    );

    tape(
        &sandbox,
        &[
            "fork",
            "cli:local",
            "--session-id",
            "third",
            "--at-anchor",
            "session/start",
        ],
    )
    .ok();
    assert_eq!(json(tape(&sandbox, &["show", "third", "--json"])).len(), 2);
}

#[test]
fn a_fork_replaces_nothing() {
    let sandbox = fixture();
    refused(
        &tape(&sandbox, &["fork", "cli", "--session-id", "lab:7"]),
        &["`lab:7` already exists"],
    );
    refused(
        &tape(&sandbox, &["fork", "cli", "--session-id", " "]),
        &["empty session id"],
    );
    refused(
        &tape(
            &sandbox,
            &["fork", "cli", "--session-id", "new", "--at", "99"],
        ),
        &["entry 99 not found;", "bub tape show"],
    );
    refused(
        &tape(
            &sandbox,
            &["fork", "cli", "--session-id", "new", "--at-anchor", "x"],
        ),
        &["anchor `x` not found; see `bub tape anchors cli:local`"],
    );
    assert_eq!(json(tape(&sandbox, &["list", "--json"])).len(), 3);
}

#[test]
fn an_export_is_the_tape_or_a_document() {
    let sandbox = fixture();
    let lines = tape(&sandbox, &["export", "cli:local"]).ok();
    assert_eq!(
        lines,
        fs::read_to_string(file_of(&sandbox, "cli:local")).unwrap()
    );
    let document = tape(&sandbox, &["export", "cli:local", "--format", "markdown"]).ok();
    assert!(
        document.starts_with("# hello there\n\n- session: `cli:local`\n"),
        "{document}"
    );
    assert!(
        document.contains("\n\n### User (2") && document.contains("\n\n### Assistant (2"),
        "{document}"
    );

    let run = tape(&sandbox, &["export", "cli:local", "--output", "out.jsonl"]);
    assert_eq!(run.stderr, "wrote 10 entries of cli:local to out.jsonl\n");
    assert_eq!(run.ok(), "");
    let path = sandbox.workspace().join("out.jsonl");
    assert_eq!(fs::read_to_string(&path).unwrap(), lines);
    refused(
        &tape(&sandbox, &["export", "cli:local", "--output", "out.jsonl"]),
        &["`out.jsonl` already exists"],
    );
    let nowhere = tape(
        &sandbox,
        &["export", "cli:local", "--output", "no/such/place"],
    );
    assert_eq!(nowhere.code, Some(1), "{nowhere:?}");
}

#[test]
fn the_extension_of_an_exported_file_selects_its_format() {
    let sandbox = fixture();
    let export = |arguments: &[&str], file: &str| {
        let arguments = [&["export", "cli:local", "-o", file], arguments].concat();
        tape(&sandbox, &arguments).ok();
        fs::read_to_string(sandbox.workspace().join(file)).unwrap()
    };
    for file in ["chat.md", "chat.MARKDOWN"] {
        let text = export(&[], file);
        assert!(text.starts_with("# hello there\n"), "{text}");
    }
    for (arguments, file) in [
        (&[][..], "chat.txt"),
        (&["--format", "jsonl"], "entries.md"),
    ] {
        let text = export(arguments, file);
        assert!(text.starts_with('{'), "{text}");
    }
}
