//! Tests `bub tape verify` and the hash chain of tapes, as users run them.

use std::{fs, path::PathBuf};

use bub_testkit::model::{ModelServer, Reply};

use crate::sandbox::{Run, Sandbox, bub};

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
fn a_removed_sidecar_is_reported_with_its_tape() {
    let sandbox = Sandbox::new();
    let server = ModelServer::start();
    server.script(Reply::new().call("c1", "bash", r#"{"command":"seq 1 60000"}"#));
    server.script(Reply::text("done"));
    let mut command = sandbox.command(&bub());
    command
        .args(["run", "count"])
        .env("BUB_TAPE_INTEGRITY", "chain")
        .env("BUB_MODEL", "openai:small")
        .env("BUB_API_BASE", format!("{}/v1", server.url()))
        .env("BUB_API_KEY", "unused");
    Run::from_output(command.output().unwrap()).ok();
    sandbox.bub(["tape", "verify", "cli:local"]).ok();
    let directory = fs::read_dir(sandbox.home().join("tapes")).unwrap();
    let mut files = directory.map(|file| file.unwrap().path());
    let is_sidecar = |path: &PathBuf| path.to_string_lossy().ends_with("__sidecar__spill.jsonl");
    fs::remove_file(files.find(is_sidecar).unwrap()).unwrap();
    let run = sandbox.bub(["tape", "verify", "cli:local"]);
    assert_eq!(run.code, Some(1), "{run:?}");
    assert!(
        run.stdout.contains("__sidecar__spill: missing\n"),
        "{run:?}"
    );
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
