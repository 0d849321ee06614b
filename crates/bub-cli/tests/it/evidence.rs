//! Tests `bub tape verify` and the hash chain of tapes, as users run them.

use std::{fs, path::PathBuf};

use bub_testkit::model::{ModelServer, Reply};

use crate::sandbox::{Run, Sandbox, bub, signal, wait_until};

/// Runs bub with the hash chain.
fn chained(sandbox: &Sandbox, args: &[&str]) -> Run {
    let mut command = sandbox.command(&bub());
    command.args(args).env("BUB_TAPE_INTEGRITY", "chain");
    Run::from_output(command.output().unwrap())
}

/// Returns the only tape.
fn tape_file(sandbox: &Sandbox) -> PathBuf {
    let files = fs::read_dir(sandbox.home().join("tapes")).unwrap();
    let mut paths = files.map(|file| file.unwrap().path());
    paths
        .find(|path| path.extension().is_some_and(|end| end == "jsonl"))
        .unwrap()
}

#[test]
fn a_chained_tape_is_verified_and_its_export_too() {
    let sandbox = Sandbox::new();
    chained(&sandbox, &["run", ",echo one"]).ok();
    chained(&sandbox, &["run", ",echo two"]).ok();
    let verified = sandbox.bub(["tape", "verify"]).ok();
    assert!(verified.starts_with("cli:local: ok ("), "{verified}");
    let head = verified
        .lines()
        .nth(1)
        .unwrap()
        .trim()
        .strip_prefix("head: ")
        .unwrap()
        .to_owned();
    sandbox
        .bub(["tape", "verify", "cli:local", "--head", &head])
        .ok();
    sandbox.bub(["tape", "export", "cli:local", "--output", "export.jsonl"]);
    let export = ["tape", "verify", "--file", "export.jsonl"];
    let shown = sandbox.bub(export).ok();
    assert_eq!(shown, verified.replace("cli:local", "export.jsonl"));
    let with_head = sandbox.bub([&export[..], &["--head", &head]].concat()).ok();
    assert!(
        with_head.contains("0 chained entries after it"),
        "{with_head}"
    );
    // A head that was kept still proves what was recorded until then.
    chained(&sandbox, &["run", ",echo three"]).ok();
    let later = sandbox
        .bub(["tape", "verify", "cli:local", "--head", &head])
        .ok();
    assert!(
        later.contains("the given head is that of entry "),
        "{later}"
    );
    assert!(!later.contains("; 0 chained entries after it"), "{later}");
    let other = sandbox.bub([
        "tape",
        "verify",
        "--file",
        "export.jsonl",
        "--head",
        &"0".repeat(64),
    ]);
    assert_eq!(other.code, Some(1), "{other:?}");
    for (args, expected) in [
        (
            ["cli:local", "--head", "zz"],
            "expected 64 hexadecimal digits",
        ),
        (["--head", &head, "--"], "`--head` belongs to one tape"),
    ] {
        let run = sandbox.bub([&["tape", "verify"], &args[..]].concat());
        assert_eq!(run.code, Some(2), "{run:?}");
        assert!(run.stderr.contains(expected), "{run:?}");
    }
    let tape = tape_file(&sandbox);
    let content = fs::read_to_string(&tape).unwrap();
    let forged = content.replacen("echo one", "echo 111", 1);
    assert_ne!(content, forged);
    fs::write(&tape, forged).unwrap();
    let broken = sandbox.bub(["tape", "verify"]);
    assert_eq!(broken.code, Some(1), "{broken:?}");
    assert!(
        broken.stdout.contains("was altered, removed or reordered"),
        "{broken:?}"
    );
}

#[test]
fn a_truncated_export_is_not_proven() {
    let sandbox = Sandbox::new();
    chained(&sandbox, &["run", ",echo one"]).ok();
    chained(&sandbox, &["run", ",echo two"]).ok();
    sandbox
        .bub(["tape", "export", "cli:local", "--output", "export.jsonl"])
        .ok();
    let path = sandbox.workspace().join("export.jsonl");
    let content = fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = content.split_inclusive('\n').collect();
    for count in [lines.len() - 1, lines.len() - 3] {
        fs::write(&path, lines[..count].concat()).unwrap();
        let run = sandbox.bub(["tape", "verify", "--file", "export.jsonl"]);
        assert_eq!(run.code, Some(1), "{run:?}");
        assert!(
            run.stdout.starts_with("export.jsonl: not proven ("),
            "{run:?}"
        );
        assert!(
            run.stdout.contains("entries may be missing at the end"),
            "{run:?}"
        );
        assert!(run.stdout.contains("pass `--head HASH`"), "{run:?}");
    }
    // The complete export of a tape without a chain has no end mark.
    let plain = Sandbox::new();
    plain.bub(["run", ",echo plain"]).ok();
    let export = plain.bub(["tape", "export", "cli:local"]).ok();
    assert!(!export.contains("tape.export"), "{export}");
    assert_eq!(export, plain.only_tape());
}

#[test]
fn a_removed_tape_is_reported() {
    let sandbox = Sandbox::new();
    chained(&sandbox, &["run", ",echo one"]).ok();
    let tape = tape_file(&sandbox);
    fs::remove_file(&tape).unwrap();
    let run = sandbox.bub(["tape", "verify"]);
    assert_eq!(run.code, Some(1), "{run:?}");
    let name = tape.file_stem().unwrap().to_string_lossy();
    assert!(
        run.stdout.contains(&format!("{name}: missing\n")),
        "{run:?}"
    );
}

#[test]
fn a_removed_tape_is_not_replaced_by_one_whose_name_it_begins() {
    let sandbox = Sandbox::new();
    chained(&sandbox, &["run", "--session-id", "work", ",echo one"]).ok();
    let tape = tape_file(&sandbox);
    chained(&sandbox, &["run", "--session-id", "work~copy", ",echo two"]).ok();
    fs::remove_file(&tape).unwrap();
    let name = tape.file_stem().unwrap().to_string_lossy().into_owned();
    for requested in ["work", &name] {
        let run = sandbox.bub(["tape", "verify", requested]);
        assert_eq!(run.code, Some(1), "{run:?}");
        let expected =
            format!("{requested}: missing\n  the tape had entries, and its file was removed\n");
        assert_eq!(run.stdout, expected);
    }
    let both = sandbox.bub(["tape", "verify", "work~copy", "work"]);
    assert_eq!(both.code, Some(1), "{both:?}");
    assert!(both.stdout.starts_with("work~copy: ok"), "{both:?}");
    assert!(both.stdout.contains("work: missing\n"), "{both:?}");
    for command in ["show", "export", "info", "anchors", "check", "reindex"] {
        let run = sandbox.bub(["tape", command, "work"]);
        assert_eq!(run.code, Some(2), "{command}: {run:?}");
        assert!(
            run.stderr.contains("the tape of `work` is missing"),
            "{command}: {run:?}"
        );
    }
    let run = sandbox.bub(["tape", "fork", "work", "--session-id", "new"]);
    assert_eq!(run.code, Some(2), "{run:?}");
    // A session of another workspace, too.
    let elsewhere = tempfile::tempdir().unwrap();
    let mut command = sandbox.command(&bub());
    command.args(["tape", "verify", "work"]);
    let run = Run::from_output(command.current_dir(elsewhere.path()).output().unwrap());
    assert_eq!(run.code, Some(1), "{run:?}");
    assert!(run.stdout.starts_with("work: missing\n"), "{run:?}");
    // A prefix that is not the id of a session still finds the only tape.
    sandbox.bub(["tape", "verify", "wor"]).ok();
}

#[test]
fn a_removed_sidecar_is_reported_with_its_tape() {
    let sandbox = Sandbox::new();
    count(&sandbox, 60_000);
    sandbox.bub(["tape", "verify", "cli:local"]).ok();
    remove_spill_file(&sandbox, "tapes", "__sidecar__spill.jsonl");
    let run = sandbox.bub(["tape", "verify", "cli:local"]);
    assert_eq!(run.code, Some(1), "{run:?}");
    assert!(
        run.stdout.contains("__sidecar__spill: missing\n"),
        "{run:?}"
    );
    // Without the lock record, too: an entry of the tape refers to the sidecar.
    remove_spill_file(&sandbox, "tapes/.bub/locks", "__sidecar__spill.lock");
    for args in [&["cli:local"][..], &[]] {
        let run = sandbox.bub([&["tape", "verify"], args].concat());
        assert_eq!(run.code, Some(1), "{run:?}");
        assert!(
            run.stdout.contains("__sidecar__spill: missing\n  entry "),
            "{run:?}"
        );
    }
    // The next output makes a new sidecar with a valid chain, which lacks the removed output.
    count(&sandbox, 50_000);
    for args in [&["cli:local"][..], &[]] {
        let run = sandbox.bub([&["tape", "verify"], args].concat());
        assert_eq!(run.code, Some(1), "{run:?}");
        assert!(run.stdout.contains("(sidecar spill): broken ("), "{run:?}");
        let text = " of its tape refers to output that was removed from it\n";
        assert!(run.stdout.contains(text), "{run:?}");
    }
    // A fork copies the reference, and lacks the output, too.
    let fork = ["tape", "fork", "cli:local", "--session-id", "copy"];
    chained(&sandbox, &fork).ok();
    let copy = sandbox.bub(["tape", "verify", "copy"]);
    assert_eq!(copy.code, Some(1), "{copy:?}");
    // A reset clears both. The same output again is the same reference.
    chained(&sandbox, &["run", ",tape.reset"]).ok();
    sandbox.bub(["tape", "verify", "cli:local"]).ok();
    count(&sandbox, 60_000);
    count(&sandbox, 60_000);
    sandbox.bub(["tape", "verify", "cli:local"]).ok();
}

/// Runs a turn with a tool whose output is spilled.
fn count(sandbox: &Sandbox, last: u32) {
    let server = ModelServer::start();
    let arguments = serde_json::json!({"command": format!("seq 1 {last}")});
    server.script(Reply::new().call("c1", "bash", &arguments.to_string()));
    server.script(Reply::text("done"));
    let mut command = sandbox.command(&bub());
    command
        .args(["run", "count"])
        .env("BUB_TAPE_INTEGRITY", "chain")
        .env("BUB_MODEL", "openai:small")
        .env("BUB_API_BASE", format!("{}/v1", server.url()))
        .env("BUB_API_KEY", "unused");
    Run::from_output(command.output().unwrap()).ok();
}

/// Removes the only file in a directory of the home whose name ends like this.
fn remove_spill_file(sandbox: &Sandbox, directory: &str, ending: &str) {
    let files = fs::read_dir(sandbox.home().join(directory)).unwrap();
    let mut files = files.map(|file| file.unwrap().path());
    let is_found = |path: &PathBuf| path.to_string_lossy().ends_with(ending);
    fs::remove_file(files.find(is_found).unwrap()).unwrap();
}

/// The lock record says that the tape was chained. Its fork and its export say so, too, with and without a new chain.
#[test]
fn a_fork_and_an_export_of_a_tape_without_its_hashes_are_broken() {
    let sandbox = Sandbox::new();
    chained(&sandbox, &["run", ",echo one"]).ok();
    let tape = tape_file(&sandbox);
    let content = fs::read_to_string(&tape).unwrap();
    let lines = content.lines().map(|line| {
        let (entry, _) = line.split_once(", \"chain\": ").unwrap();
        format!("{entry}}}\n")
    });
    fs::write(&tape, lines.collect::<String>()).unwrap();
    let export = sandbox.bub(["tape", "export", "cli:local", "-o", "x.jsonl"]);
    assert_eq!(export.code, Some(0), "{export:?}");
    let forks = [("plain", ""), ("chained", "chain")].map(|(id, integrity)| {
        let mut command = sandbox.command(&bub());
        command.args(["tape", "fork", "cli:local", "--session-id", id, "--at", "2"]);
        if !integrity.is_empty() {
            command.env("BUB_TAPE_INTEGRITY", integrity);
        }
        Run::from_output(command.output().unwrap())
    });
    for run in [&export].into_iter().chain(&forks) {
        assert_eq!(run.code, Some(0), "{run:?}");
        assert!(run.stderr.contains(" stays `broken` for "), "{run:?}");
    }
    let text = "the tape was chained, and the hashes of all entries were removed";
    for args in [
        &["cli:local"][..],
        &["plain"],
        &["chained"],
        &["--file", "x.jsonl"],
    ] {
        let run = sandbox.bub([&["tape", "verify"], args].concat());
        assert_eq!(run.code, Some(1), "{run:?}");
        assert!(run.stdout.contains(": broken ("), "{run:?}");
        assert!(run.stdout.contains(text), "{run:?}");
        assert!(!run.stdout.contains("head: "), "{run:?}");
    }
}

#[test]
fn a_repair_is_valid_only_if_it_removes_nothing_of_the_chain() {
    let sandbox = Sandbox::new();
    chained(&sandbox, &["run", ",echo one"]).ok();
    let tape = tape_file(&sandbox);
    let content = fs::read_to_string(&tape).unwrap();
    fs::write(&tape, content + "not an entry\n").unwrap();
    chained(&sandbox, &["run", ",echo two"]).ok();
    sandbox.bub(["tape", "verify"]).ok();
    let repaired = chained(&sandbox, &["tape", "check", "--repair"]).ok();
    assert!(repaired.contains("removed 1 invalid line"), "{repaired}");
    let verified = sandbox.bub(["tape", "verify"]).ok();
    assert!(verified.contains(": ok ("), "{verified}");
    // A chained entry that became invalid is missing after the repair.
    let content = fs::read_to_string(&tape).unwrap();
    fs::write(&tape, content.replacen("{\"id\": 2,", "{\"id\" 2,,", 1)).unwrap();
    chained(&sandbox, &["tape", "check", "--repair"]).ok();
    let run = sandbox.bub(["tape", "verify"]);
    assert_eq!(run.code, Some(1), "{run:?}");
    let text = "entries are missing or altered at line 2: a repair removed lines there, kept in ";
    assert!(run.stdout.contains(text), "{run:?}");
}

/// What is wrong with a chain stays visible: after later entries, and in a fork.
#[test]
fn a_removed_end_and_a_broken_source_stay_noticed() {
    let sandbox = Sandbox::new();
    for text in ["one", "two", "three"] {
        chained(&sandbox, &["run", &format!(",echo {text}")]).ok();
    }
    let verify = |args: &[&str]| sandbox.bub([&["tape", "verify"], args].concat());
    let tape = tape_file(&sandbox);
    let original = fs::read_to_string(&tape).unwrap();
    // An entry is altered: the fork has a valid chain, but not of a valid tape.
    fs::write(&tape, original.replacen("one", "eno", 1)).unwrap();
    let fork = ["tape", "fork", "cli:local", "--session-id", "copy"];
    let forked = chained(&sandbox, &fork);
    assert_eq!(forked.code, Some(0), "{forked:?}");
    assert!(
        forked.stderr.contains("the copy stays `broken`"),
        "{forked:?}"
    );
    let copy = verify(&["copy"]);
    assert_eq!(copy.code, Some(1), "{copy:?}");
    assert!(copy.stdout.starts_with("copy: broken ("), "{copy:?}");
    assert!(
        copy.stdout
            .contains("were copied from a tape whose chain was broken: entry "),
        "{copy:?}"
    );
    // The end and the lock record are removed, and bub continues.
    let lines: Vec<&str> = original.lines().collect();
    let kept = &lines[..lines.len() - 2];
    fs::write(&tape, kept.join("\n") + "\n").unwrap();
    fs::remove_dir_all(sandbox.home().join("tapes/.bub/locks")).unwrap();
    chained(&sandbox, &["run", ",echo four"]).ok();
    let unproven = verify(&["cli:local"]);
    assert_eq!(unproven.code, Some(1), "{unproven:?}");
    assert!(
        unproven.stdout.starts_with("cli:local: not proven ("),
        "{unproven:?}"
    );
    let id = kept.len() + 1;
    let expected = format!("entries may be missing before entry {id} (line {id}): ");
    assert!(unproven.stdout.contains(&expected), "{unproven:?}");
    let head = kept.last().unwrap().rsplit('"').nth(1).unwrap();
    let proven = verify(&["cli:local", "--head", head]).ok();
    assert!(proven.starts_with("cli:local: ok ("), "{proven}");
    // A file that cannot be read is not a broken chain.
    let missing = verify(&["--file", "nowhere.jsonl"]);
    assert_eq!(missing.code, Some(2), "{missing:?}");
}

/// What is wrong with a tape is in its exports and forks, too, and bub says so.
#[test]
fn exports_and_forks_of_an_unproven_tape_are_not_proven() {
    let verify =
        |sandbox: &Sandbox, args: &[&str]| sandbox.bub([&["tape", "verify"], args].concat());
    for (has_lock, status) in [(true, "broken"), (false, "not proven")] {
        let sandbox = Sandbox::new();
        for text in ["one", "two", "three"] {
            chained(&sandbox, &["run", &format!(",echo {text}")]).ok();
        }
        let tape = tape_file(&sandbox);
        let content = fs::read_to_string(&tape).unwrap();
        let lines: Vec<&str> = content.split_inclusive('\n').collect();
        fs::write(&tape, lines[..lines.len() - 1].concat()).unwrap();
        if !has_lock {
            fs::remove_dir_all(sandbox.home().join("tapes/.bub/locks")).unwrap();
        }
        let export = sandbox.bub(["tape", "export", "cli:local", "-o", "x.jsonl"]);
        assert_eq!(export.code, Some(0), "{export:?}");
        let warning = format!("warning: the export stays `{status}` for `bub tape verify`: ");
        assert!(export.stderr.contains(&warning), "{export:?}");
        let verified = verify(&sandbox, &["--file", "x.jsonl"]);
        assert_eq!(verified.code, Some(1), "{verified:?}");
        let expected = format!("x.jsonl: {status} (");
        assert!(verified.stdout.starts_with(&expected), "{verified:?}");
        // The head of such an export does not prove what was before.
        let heads = verified.stdout.lines();
        let mut heads = heads.filter(|line| line.starts_with("  head: "));
        assert_eq!(
            heads.clone().count(),
            usize::from(!has_lock),
            "{verified:?}"
        );
        assert!(
            heads.all(
                |line| line.ends_with(" (it does not prove that nothing is missing before it)")
            ),
            "{verified:?}"
        );
        let last = (lines.len() - 1).to_string();
        let at_end = ["--session-id", "end", "--at", &last];
        for args in [
            &["--session-id", "all"][..],
            &at_end,
            &["--session-id", "part", "--at", "3"],
        ] {
            let fork = chained(&sandbox, &[&["tape", "fork", "cli:local"], args].concat());
            assert_eq!(fork.code, Some(0), "{fork:?}");
            // The removed end is not part of the fork, but without a lock record it is not known what was removed.
            let is_ok = has_lock && args[1] == "part";
            let copy = verify(&sandbox, &[args[1]]);
            assert_eq!(copy.code, Some(i32::from(!is_ok)), "{copy:?}");
            let status = if is_ok { "ok" } else { status };
            assert!(
                copy.stdout.starts_with(&format!("{}: {status} (", args[1])),
                "{copy:?}"
            );
            assert_eq!(
                fork.stderr.contains("warning: the copy stays"),
                !is_ok,
                "{fork:?}"
            );
        }
    }
}

/// A head proves the entries up to it, not that the tape has all later ones.
#[test]
fn an_old_head_does_not_prove_the_end() {
    let sandbox = Sandbox::new();
    for text in ["one", "two"] {
        chained(&sandbox, &["run", &format!(",echo {text}")]).ok();
    }
    let tape = tape_file(&sandbox);
    let content = fs::read_to_string(&tape).unwrap();
    let lines: Vec<&str> = content.split_inclusive('\n').collect();
    let head = |line: usize| lines[line - 1].rsplit('"').nth(1).unwrap().to_owned();
    fs::write(&tape, lines[..lines.len() - 1].concat()).unwrap();
    fs::remove_dir_all(sandbox.home().join("tapes/.bub/locks")).unwrap();
    let verify = |head: &str| sandbox.bub(["tape", "verify", "cli:local", "--head", head]);
    let old = verify(&head(3));
    assert_eq!(old.code, Some(1), "{old:?}");
    assert!(old.stdout.starts_with("cli:local: not proven ("), "{old:?}");
    assert!(
        old.stdout
            .contains("the given head is that of entry 3 (line 3)"),
        "{old:?}"
    );
    assert!(
        old.stdout
            .contains("proven up to that entry, but the end is not proven"),
        "{old:?}"
    );
    // The head of the last entry proves all of them.
    assert!(
        verify(&head(lines.len() - 1))
            .ok()
            .starts_with("cli:local: ok (")
    );
}

/// Ctrl-C in the middle of an export.
#[test]
fn an_interrupted_export_leaves_no_file() {
    let sandbox = Sandbox::new();
    chained(&sandbox, &["run", ",echo one"]).ok();
    let tape = tape_file(&sandbox);
    let content = fs::read_to_string(&tape).unwrap();
    let line =
        r#"{"id": 99, "kind": "event", "payload": {"name": "filler"}, "meta": {}, "date": ""}"#;
    fs::write(&tape, content + &format!("{line}\n").repeat(400_000)).unwrap();
    let mut command = sandbox.command(&bub());
    command.args(["tape", "export", "cli:local", "-o", "x.jsonl"]);
    let mut child = command.spawn().unwrap();
    let path = sandbox.workspace().join("x.jsonl");
    wait_until("the export begins", || path.exists());
    signal(&child, "INT");
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!path.exists());
}
