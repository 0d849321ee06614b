//! Tests `bub tape` check, repair, reindex and prune.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Stdio},
    time::{Duration, SystemTime},
};

use super::{add, file_of, fixture, tape, tapes};
use crate::sandbox::{Sandbox, example};

const DAY: Duration = Duration::from_hours(24);

#[test]
fn check_finds_damage_and_repair_keeps_what_it_removes() {
    let sandbox = fixture();
    assert_eq!(
        tape(&sandbox, &["check", "cli:local"]).ok(),
        "cli:local: ok (10 entries)\n"
    );
    let path = file_of(&sandbox, "cli:local");
    let whole = fs::read_to_string(&path).unwrap();
    let split = whole.find('\n').unwrap() + 1;
    fs::write(
        &path,
        [
            &whole[..split],
            "garbage\n",
            &whole[split..],
            "{\"id\": 11, \"k",
        ]
        .concat(),
    )
    .unwrap();

    let found = tape(&sandbox, &["check"]);
    assert_eq!(found.code, Some(1));
    for part in [
        "cli:local: damaged (10 entries)\n",
        "  line 2 (byte ",
        "  torn tail: the last 13 bytes",
        "lab:7: ok (6 entries)\n",
    ] {
        assert!(
            found.stdout.contains(part),
            "{part} is missing in {}",
            found.stdout
        );
    }
    assert_eq!(
        found.stderr,
        "1 tape is damaged; run `bub tape check --repair`\n"
    );

    let repaired = tape(&sandbox, &["check", "--repair", "cli:local"]).ok();
    let kept: Vec<_> = repaired
        .lines()
        .filter_map(|line| line.strip_prefix("  removed data is kept in: "))
        .collect();
    let kept: Vec<_> = kept
        .iter()
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    assert_eq!(kept, ["{\"id\": 11, \"k", "garbage\n"], "{repaired}");
    assert!(fs::read_to_string(&path).unwrap().starts_with(&whole));
    assert_eq!(
        tape(&sandbox, &["check", "cli:local"]).ok(),
        "cli:local: ok (12 entries)\n"
    );
    sandbox.example("echo_model", ["run", "still here"]).ok();
}

#[test]
fn check_reports_ids_calls_blobs_and_a_wrong_index() {
    let sandbox = Sandbox::new();
    let entry = |id: u32, kind: &str, payload: &str, meta: &str| {
        format!(
            r#"{{"id": {id}, "kind": "{kind}", "payload": {payload}, "meta": {meta}, "date": "2026-11-15T18:09:55+00:00"}}"#
        ) + "\n"
    };
    let blob = "0".repeat(64);
    let media =
        format!(r#"{{"media": [{{"index": 0, "type": "image_url", "blob": "sha256:{blob}"}}]}}"#);
    let tape_text = [
        entry(1, "message", r#"{"role": "user", "content": []}"#, &media),
        entry(1, "tool_result", r#"{"results": []}"#, "{}"),
    ];
    sandbox.write("home/tapes/a__b.jsonl", &tape_text.concat());
    sandbox.write("home/tapes/.bub/index/a__b.idx", "{}");
    let found = tape(&sandbox, &["check"]);
    assert_eq!(found.code, Some(1));
    let expected = [
        "a__b: damaged (2 entries)".to_owned(),
        format!("  entry 1: blob sha256:{blob} is missing"),
        "  line 2: duplicate id 1".to_owned(),
        "  entry 1: tool results without calls".to_owned(),
        "  the index does not match the tape".to_owned(),
    ];
    assert_eq!(found.stdout.lines().collect::<Vec<_>>(), expected);

    // Lost data stays reported, and the exit code is 1.
    let repaired = tape(&sandbox, &["check", "--repair"]);
    assert_eq!(repaired.code, Some(1), "{repaired:?}");
    assert!(
        repaired
            .stderr
            .contains("missing data can only be restored from a backup"),
        "{repaired:?}"
    );
    let left = tape(&sandbox, &["check"]).stdout;
    assert_eq!(left.lines().count(), 2, "{left}");
    assert!(
        fs::read_to_string(tapes(&sandbox).join("a__b.jsonl"))
            .unwrap()
            .starts_with(&tape_text.concat())
    );
}

#[test]
fn reindex_makes_the_same_index_again() {
    let sandbox = fixture();
    let before = tape(&sandbox, &["info", "cli:local"]).ok();
    fs::remove_dir_all(tapes(&sandbox).join(".bub/index")).ok();
    let output = tape(&sandbox, &["reindex"]).ok();
    assert!(
        output.contains("cli:local: 10 entries, 1 anchor\n"),
        "{output}"
    );
    assert_eq!(output.lines().count(), 3);
    assert_eq!(tape(&sandbox, &["info", "cli:local"]).ok(), before);
    assert_eq!(
        tape(&sandbox, &["reindex", "cli:local"])
            .ok()
            .lines()
            .count(),
        1
    );
}

#[test]
fn prune_lists_then_asks_and_never_touches_tapes() {
    let sandbox = fixture();
    let live: Vec<_> = listing(&sandbox);
    sandbox.write("home/tapes/a__b.jsonl.20200101T000000Z.bak", "old");
    sandbox.write("home/tapes/a__b.jsonl.20990101T000000Z.bak", "young");
    let blob = format!("home/tapes/.bub/blobs/ab/{}", "ab".repeat(32));
    sandbox.write(&blob, "picture");
    let blob = sandbox.home().join(blob.strip_prefix("home/").unwrap());
    fs::File::options()
        .write(true)
        .open(&blob)
        .unwrap()
        .set_modified(SystemTime::now() - 40 * DAY)
        .unwrap();

    let dry = tape(&sandbox, &["prune", "--dry-run"]).ok();
    for part in [
        "archive",
        "a__b.jsonl.20200101T000000Z.bak",
        "blob",
        "40 days old",
        "2 files, 10 bytes in ",
    ] {
        assert!(dry.contains(part), "{part} is missing in {dry}");
    }
    assert!(!dry.contains("20990101"), "{dry}");
    let asked = tape(&sandbox, &["prune"]);
    assert_eq!(asked.code, Some(2));
    assert!(
        asked
            .stderr
            .contains("cannot prompt: stdin is not a terminal")
            && asked.stderr.contains("--yes"),
        "{asked:?}"
    );
    assert!(blob.exists());
    let short = tape(&sandbox, &["prune", "--older-than", "50d", "--yes"]);
    assert_eq!(short.stderr, "deleted 1 file (3 bytes)\n");
    let rest = tape(&sandbox, &["prune", "--yes"]);
    assert_eq!(
        (rest.code, rest.stderr.as_str()),
        (Some(0), "deleted 1 file (7 bytes)\n")
    );
    assert_eq!(
        tape(&sandbox, &["prune", "--yes"]).ok(),
        "(nothing to delete)\n"
    );
    fs::remove_file(tapes(&sandbox).join("a__b.jsonl.20990101T000000Z.bak")).unwrap();
    assert_eq!(listing(&sandbox), live);
}

fn listing(sandbox: &Sandbox) -> Vec<(PathBuf, Vec<u8>)> {
    let files = fs::read_dir(tapes(sandbox))
        .unwrap()
        .map(|file| file.unwrap().path());
    let mut files: Vec<_> = files.filter(|path| path.is_file()).collect();
    files.sort();
    files
        .into_iter()
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect()
}

// W-3, W-12, W-16: while another process is in the middle of a turn.
#[test]
fn a_running_turn_is_checked_and_not_repaired() {
    let sandbox = fixture();
    let turn = HangingTurn::start(&sandbox);
    let fork = tape(&sandbox, &["fork", "lab:7", "--session-id", "cli:local"]);
    assert_eq!(fork.code, Some(1), "{fork:?}");
    assert!(fork.stderr.contains("is in use by process "), "{fork:?}");
    add(&file_of(&sandbox, "cli:local"), b"garbage\n");
    let checked = tape(&sandbox, &["check", "--repair", "cli:local"]);
    assert_eq!(checked.code, Some(1), "{checked:?}");
    assert!(
        checked.stdout.contains("not repaired: tape "),
        "{checked:?}"
    );
    drop(turn);
    tape(&sandbox, &["check", "--repair", "cli:local"]).ok();
}

/// A running turn of `cli:local` in another process. Killed on drop.
struct HangingTurn(Child);

impl HangingTurn {
    fn start(sandbox: &Sandbox) -> Self {
        let mut command = sandbox.command(&example("faulty"));
        let child = command
            .args(["run", "hang"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut turn = Self(child);
        let output = BufReader::new(turn.0.stderr.take().unwrap()).lines();
        assert!(
            output.map_while(Result::ok).any(|line| line == "hanging"),
            "the turn did not begin"
        );
        turn
    }
}

impl Drop for HangingTurn {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}
