//! Tests `bub eval`, as users run it.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Instant,
};

use bub_testkit::{model::Reply, pty::Pty};
use serde_json::{Value, json};

use crate::{
    replay::RecordedSession,
    sandbox::{Run, Sandbox, bub, example, signal, wait_until},
};

/// Writes a tape whose model answers each first message with a text.
fn write_answer_tape(path: &Path, text: &str) {
    let entries = [
        json!({"id": 1, "kind": "message", "payload": {"role": "assistant", "content": text}, "meta": {"run_id": "r"}, "date": "2026-11-18T08:00:00+00:00"}),
        json!({"id": 2, "kind": "event", "payload": {"name": "run", "data": {"status": "ok", "model": "openai:gpt-6-luna", "usage": {"prompt_tokens": 1000, "completion_tokens": 20, "total_tokens": 1020}}}, "meta": {"run_id": "r"}, "date": "2026-11-18T08:00:00+00:00"}),
    ];
    let lines = entries.map(|entry| entry.to_string() + "\n").concat();
    fs::write(path, lines).unwrap();
}

fn write_cases(directory: &Path, count: usize, pace: &str) {
    fs::create_dir_all(directory.join("tapes")).unwrap();
    write_answer_tape(
        &directory.join("tapes/answer.jsonl"),
        r#"{"total": 42, "unit": "kg"}"#,
    );
    for number in 0..count {
        let case = json!({
            "messages": [format!("question {number}")],
            "model": "replay:tapes/answer.jsonl",
            "env": {"BUB_REPLAY_DIVERGENCE": "lenient", "BUB_REPLAY_PACE": pace, "BUB_LOG": "error"},
            "expect": {
                "text": ["42"], "not_text": ["sorry"], "not_tools": ["bash"], "max_steps": 1, "max_tokens": 2000,
                "files": {"gone.txt": null},
                "schema": {"type": "object", "required": ["total"], "properties": {"total": {"type": "integer"}}},
            },
        });
        fs::write(
            directory.join(format!("case{number:02}.yml")),
            case.to_string(),
        )
        .unwrap();
    }
}

fn eval(sandbox: &Sandbox, args: &[&str]) -> Run {
    let mut command = sandbox.command(&bub());
    command.arg("eval").args(args);
    Run::from_output(command.output().unwrap())
}

#[test]
fn forty_cases_run_in_parallel_with_stable_results() {
    let sandbox = Sandbox::new();
    let cases = sandbox.workspace().join("cases");
    // 27 characters at 60 per second: each case waits for 450 ms.
    write_cases(&cases, 40, "60");
    let timed = |jobs: &str| {
        let started = Instant::now();
        let results = eval(&sandbox, &["cases", "--json", "--jobs", jobs]).ok();
        let names: Vec<Value> = results
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap())
            .collect();
        let names: Vec<String> = names
            .iter()
            .map(|line| format!("{} {}", line["case"], line["failures"]))
            .collect();
        (started.elapsed(), names)
    };
    let (parallel, results) = timed("20");
    let (sequential, same) = timed("1");
    assert_eq!(results.len(), 40);
    assert_eq!(results, same);
    let speed_up = sequential.as_secs_f64() / parallel.as_secs_f64();
    println!(
        "40 cases: {sequential:?} with 1 job, {parallel:?} with 20 jobs: {speed_up:.1} times as fast"
    );
    assert!(
        speed_up >= 3.0,
        "{sequential:?} and {parallel:?}: {speed_up:.1}"
    );
}

#[test]
fn a_failed_case_explains_itself() {
    let sandbox = Sandbox::new();
    let cases = sandbox.workspace().join("cases");
    write_cases(&cases, 2, "0");
    let case = json!({
        "messages": ["how much?"], "model": "replay:tapes/answer.jsonl",
        "env": {"BUB_REPLAY_DIVERGENCE": "lenient", "BUB_LOG": "error"},
        "expect": {"text": ["43"], "tools": ["fs.read"], "files": {"note.txt": "x"}, "max_tokens": 10,
                   "schema": {"properties": {"unit": {"enum": ["g"]}}}},
    });
    fs::write(cases.join("wrong.yml"), case.to_string()).unwrap();
    let junit = sandbox.workspace().join("junit.xml");
    let run = eval(
        &sandbox,
        &["cases", "--repeat", "2", "--junit", "junit.xml"],
    );
    assert_eq!(run.code, Some(1), "{run:?}");
    for text in [
        "ok   case00 2/2",
        "FAIL wrong 0/2",
        "the tool `fs.read` is not called in the expected order; called: none",
        "the answer does not contain `43`: `{\"total\": 42, \"unit\": \"kg\"}`",
        "the file `note.txt` cannot be read",
        "1020 tokens are used, more than 10",
        "the field `unit` does not match `enum: [\"g\"]`: `\"kg\"`",
        "4 of 6 passed",
    ] {
        assert!(run.stdout.contains(text), "{text}: {run:?}");
    }
    let junit = fs::read_to_string(junit).unwrap();
    assert!(junit.contains("tests=\"6\" failures=\"2\""), "{junit}");
    assert!(junit.contains("<testcase name=\"wrong #1\""), "{junit}");
    fs::write(cases.join("invalid.yml"), "expect: {}").unwrap();
    let invalid = eval(&sandbox, &["cases"]);
    assert_eq!(invalid.code, Some(2), "{invalid:?}");
    assert!(
        invalid.stderr.contains("a case needs `messages`"),
        "{invalid:?}"
    );
}

#[test]
fn models_and_programs_are_compared() {
    let sandbox = Sandbox::new();
    let cases = sandbox.workspace().join("cases");
    write_cases(&cases, 3, "0");
    let other = sandbox.workspace().join("other.jsonl");
    write_answer_tape(&other, "I am sorry.");
    let program = bub();
    let models = [cases.join("tapes/answer.jsonl"), other]
        .map(|path: PathBuf| format!("replay:{}", path.display()));
    let args = [
        "cases",
        "--model",
        &models[0],
        "--model",
        &models[1],
        "--program",
        program.to_str().unwrap(),
    ];
    let run = eval(&sandbox, &args);
    assert_eq!(run.code, Some(1), "{run:?}");
    let passed = |count: usize, label: &str| format!("{count} of 3 passed [{label}]");
    assert!(run.stdout.contains(&passed(3, &models[0])), "{run:?}");
    assert!(run.stdout.contains(&passed(0, &models[1])), "{run:?}");
    let both = format!("{} {}", models[0], program.display());
    assert!(run.stdout.contains(&passed(3, &both)), "{run:?}");
}

#[test]
fn a_session_becomes_a_case() {
    let session = RecordedSession::new();
    let mut record = session.command(&["eval", "record", "notes", "--output", "cases/note"]);
    fs::create_dir(session.sandbox.workspace().join("cases")).unwrap();
    let run = Run::from_output(record.output().unwrap());
    assert_eq!(run.code, Some(0), "{run:?}");
    let mut eval = session.command(&["eval", "cases"]);
    let run = Run::from_output(eval.output().unwrap());
    assert!(run.stdout.contains("ok   note"), "{run:?}");
    assert!(run.stdout.contains("1 of 1 passed"), "{run:?}");
}

/// A failed turn cannot pass again, so it is not part of the case. The reason is given for each turn.
#[test]
fn a_case_is_recorded_without_turns_that_did_not_succeed() {
    let session = RecordedSession::new();
    let bub = |args: &[&str]| Run::from_output(session.command(args).output().unwrap());
    let run = |id: &str, message: &str| bub(&["run", "--session-id", id, message]);
    session.model.script(Reply::status(400));
    assert_eq!(run("notes", "Fail, please.").code, Some(1));
    session.model.script(Reply::text("All is well."));
    run("notes", "And now?").ok();
    fs::create_dir(session.sandbox.workspace().join("cases")).unwrap();
    let recorded = bub(&["eval", "record", "notes", "--output", "cases/note"]);
    assert_eq!(recorded.code, Some(0), "{recorded:?}");
    let skipped = "skipped turn 2: openai:small: scripted error 400";
    assert!(recorded.stderr.contains(skipped), "{recorded:?}");
    let case = fs::read_to_string(session.sandbox.workspace().join("cases/note/case.yml")).unwrap();
    let case: Value = serde_json::from_str(&case).unwrap();
    assert_eq!(case["messages"], json!(["Write a note.", "And now?"]));
    assert_eq!(case["expect"]["text"], json!(["All is well."]));
    let passed = bub(&["eval", "cases"]).ok();
    assert!(passed.contains("1 of 1 passed"), "{passed}");
    // The complete tape cannot be a case, and a session without a success neither.
    let export = ["tape", "export", "notes", "--output", "cases/tape.jsonl"];
    session.sandbox.bub(export).ok();
    let refused = bub(&["eval", "cases"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    let reason =
        "tape.jsonl: turn 2 did not succeed when it was recorded, so the case cannot pass: ";
    assert!(refused.stderr.contains(reason), "{refused:?}");
    session.model.script(Reply::status(400));
    assert_eq!(run("broken", "Fail, please.").code, Some(1));
    let refused = bub(&["eval", "record", "broken", "--output", "cases/broken"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    let reason = "no case can be made of session `broken`, because no turn succeeded: turn 1: ";
    assert!(refused.stderr.contains(reason), "{refused:?}");
    assert!(!session.sandbox.workspace().join("cases/broken").exists());
}

#[test]
fn a_recorded_case_has_the_complete_messages() {
    let session = RecordedSession::new();
    session.model.otherwise(Reply::text("Noted."));
    let message = "A title\n---\nA text\n---Date: today---\nThe end";
    let run = session
        .command(&["run", "--session-id", "notes", message])
        .output();
    assert!(run.unwrap().status.success());
    let record = ["eval", "record", "notes", "--output", "case"];
    let run = Run::from_output(session.command(&record).output().unwrap());
    assert_eq!(run.code, Some(0), "{run:?}");
    let case = fs::read_to_string(session.sandbox.workspace().join("case/case.yml")).unwrap();
    let case: Value = serde_json::from_str(&case).unwrap();
    assert_eq!(case["messages"], json!(["Write a note.", message]));
}

/// Writes a case with an expectation, and returns what `bub eval` says about it.
fn eval_expecting(sandbox: &Sandbox, expect: &Value) -> Run {
    let cases = sandbox.workspace().join("cases");
    write_cases(&cases, 0, "0");
    let case = json!({
        "messages": ["how much?"], "model": "replay:tapes/answer.jsonl",
        "env": {"BUB_REPLAY_DIVERGENCE": "lenient", "BUB_LOG": "error"}, "expect": expect,
    });
    fs::write(cases.join("one.yml"), case.to_string()).unwrap();
    eval(sandbox, &["cases"])
}

#[test]
fn a_tape_is_a_case_and_another_file_is_not() {
    let session = RecordedSession::new();
    let cases = session.sandbox.workspace().join("cases");
    fs::create_dir(&cases).unwrap();
    let export = ["tape", "export", "notes", "--output", "cases/note.jsonl"];
    session.sandbox.bub(export).ok();
    let eval = || Run::from_output(session.command(&["eval", "cases"]).output().unwrap());
    assert!(eval().ok().contains("1 of 1 passed"));
    let tape = fs::read_to_string(cases.join("note.jsonl")).unwrap();
    for (content, expected) in [
        (
            "Buy milk\n".to_owned(),
            "cases/note.jsonl: line 1 is not an entry of a tape",
        ),
        (format!("{tape}{{\"id\": "), "is not an entry of a tape"),
        (String::new(), "cases/note.jsonl: the tape has no entries"),
        (
            tape.lines().next().unwrap().to_owned(),
            "cases/note.jsonl: the tape has no turn of the agent",
        ),
    ] {
        fs::write(cases.join("note.jsonl"), content).unwrap();
        let run = eval();
        assert_eq!(run.code, Some(2), "{run:?}");
        assert!(run.stderr.contains(expected), "{run:?}");
    }
}

#[test]
fn a_maximum_cost_needs_a_known_price() {
    let sandbox = Sandbox::new();
    // The tape was recorded with a model of known price.
    let known = eval_expecting(&sandbox, &json!({"max_cost": 1.0}));
    assert_eq!(known.code, Some(0), "{known:?}");
    let exceeded = eval_expecting(&sandbox, &json!({"max_cost": 0.00001}));
    assert!(exceeded.stdout.contains("the cost is $"), "{exceeded:?}");
    let tape = sandbox.workspace().join("cases/tapes/answer.jsonl");
    let other = fs::read_to_string(&tape)
        .unwrap()
        .replace("openai:gpt-6-luna", "acme:new");
    let case = json!({
        "messages": ["how much?"], "model": "replay:tapes/other.jsonl",
        "env": {"BUB_REPLAY_DIVERGENCE": "lenient", "BUB_LOG": "error"}, "expect": {"max_cost": 1.0},
    });
    fs::write(tape.with_file_name("other.jsonl"), other).unwrap();
    fs::write(sandbox.workspace().join("cases/one.yml"), case.to_string()).unwrap();
    let unknown = eval(&sandbox, &["cases"]);
    assert_eq!(unknown.code, Some(1), "{unknown:?}");
    let expected =
        "the cost is unknown, so `max_cost` cannot be checked: unknown price of acme:new";
    assert!(unknown.stdout.contains(expected), "{unknown:?}");
    let last = unknown.stdout.lines().last().unwrap();
    assert!(last.ends_with("tokens, cost unknown"), "{last}");
}

#[test]
fn a_schema_is_checked_or_refused() {
    let sandbox = Sandbox::new();
    // The answer is {"total": 42, "unit": "kg"}.
    for (schema, expected) in [
        (
            json!({"type": ["object", "null"], "minProperties": 1}),
            "`expect.schema` has the unsupported keyword `minProperties`; supported: type, ",
        ),
        (
            json!({"properties": {"total": {"pattern": "4"}}}),
            "`expect.schema`.properties.total has the unsupported keyword `pattern`",
        ),
        (
            json!({"type": "text"}),
            "`expect.schema`.type is unknown: `\"text\"`",
        ),
        (
            json!([]),
            "`expect.schema` is neither a map nor true or false",
        ),
    ] {
        let run = eval_expecting(&sandbox, &json!({"schema": schema}));
        assert_eq!(run.code, Some(2), "{run:?}");
        assert!(run.stderr.contains("cases/one.yml: "), "{run:?}");
        assert!(run.stderr.contains(expected), "{run:?}");
    }
    for (schema, expected) in [
        (
            json!({"properties": {"total": {"maximum": 41}}}),
            "the field `total` does not match `maximum: 41`: `42`",
        ),
        (
            json!({"properties": {"unit": {"minLength": 3}}}),
            "the field `unit` does not match `minLength: 3`",
        ),
        (
            json!({"properties": {"total": {}}, "additionalProperties": false}),
            "the field `unit` is not allowed",
        ),
        (
            json!({"anyOf": [{"type": "array"}, {"required": ["sum"]}]}),
            "the answer does not match `anyOf: ",
        ),
        (
            json!({"allOf": [{"required": ["sum"]}]}),
            "the answer has no field `sum`",
        ),
        (
            json!({"properties": {"total": {"type": "number", "const": 43}}}),
            "the field `total` does not match `const: 43`",
        ),
    ] {
        let run = eval_expecting(&sandbox, &json!({"schema": schema}));
        assert_eq!(run.code, Some(1), "{run:?}");
        assert!(run.stdout.contains(expected), "{expected}: {run:?}");
    }
    let schema = json!({"$schema": "x", "title": "Total", "type": "object", "required": ["total"],
        "properties": {"total": {"type": "integer", "minimum": 42, "exclusiveMaximum": 43}, "unit": {"enum": ["kg", "g"]}},
        "additionalProperties": {"type": "string", "maxLength": 2}});
    let run = eval_expecting(&sandbox, &json!({"schema": schema}));
    assert_eq!(run.code, Some(0), "{run:?}");
}

#[test]
fn expected_files_are_in_the_workspace() {
    let sandbox = Sandbox::new();
    for path in ["/etc/hostname", "../outside.txt", "a/../../outside.txt"] {
        let run = eval_expecting(&sandbox, &json!({"files": {path: null}}));
        assert_eq!(run.code, Some(2), "{run:?}");
        let expected =
            format!("`expect.files` has the path `{path}`, which is outside of the workspace");
        assert!(run.stderr.contains(&expected), "{run:?}");
    }
    // A link does not lead out of it either.
    let cases = sandbox.workspace().join("cases");
    fs::create_dir(cases.join("project")).unwrap();
    let outside = sandbox.workspace().join("outside.txt");
    fs::write(&outside, "secret").unwrap();
    let case = json!({
        "messages": [format!(",ln -s {} link.txt", outside.display())],
        "env": {"BUB_SANDBOX_PROFILE": "off"},
        "expect": {"files": {"link.txt": "secret"}},
    });
    fs::write(cases.join("one.yml"), case.to_string()).unwrap();
    let run = eval(&sandbox, &["cases"]);
    assert_eq!(run.code, Some(1), "{run:?}");
    let expected = "the file `link.txt` cannot be read: it is outside of the workspace";
    assert!(run.stdout.contains(expected), "{run:?}");
}

/// A pipe has no content until another process writes to it.
#[test]
fn a_pipe_in_the_workspace_fails_the_case_and_does_not_block_it() {
    let sandbox = Sandbox::new();
    let (cases, temp) = (
        sandbox.workspace().join("cases"),
        sandbox.workspace().join("temp"),
    );
    fs::create_dir(&cases).unwrap();
    fs::create_dir(&temp).unwrap();
    let case = json!({
        "messages": [",mkfifo p"],
        "env": {"BUB_SANDBOX_PROFILE": "off"},
        "expect": {"files": {"p": "text"}},
    });
    fs::write(cases.join("one.yml"), case.to_string()).unwrap();
    let mut command = sandbox.command(&bub());
    command
        .args(["eval", "cases", "--timeout", "60"])
        .env("TMPDIR", &temp);
    let run = Run::from_output(command.output().unwrap());
    assert_eq!(run.code, Some(1), "{run:?}");
    let expected = "the file `p` cannot be read: it is not a regular file";
    assert!(run.stdout.contains(expected), "{run:?}");
    assert_eq!(fs::read_dir(&temp).unwrap().count(), 0);
}

/// Without its own home and tape, a case could not fail.
#[test]
fn a_case_cannot_leave_its_home_its_tape_and_its_directory() {
    let sandbox = Sandbox::new();
    let cases = sandbox.workspace().join("cases");
    fs::create_dir(&cases).unwrap();
    fs::create_dir(sandbox.workspace().join("outside")).unwrap();
    std::os::unix::fs::symlink("../outside", cases.join("link")).unwrap();
    let outside = "which is outside of the directory of the case";
    for (key, value, code, expected) in [
        (
            "env",
            json!({"BUB_HOME": "/tmp/x"}),
            2,
            "`env` has `BUB_HOME`",
        ),
        (
            "env",
            json!({"bub_home": "/tmp/x"}),
            2,
            "`env` has `bub_home`",
        ),
        (
            "env",
            json!({"BUB_TAPE_STORAGE": "memory"}),
            2,
            "`env` has `BUB_TAPE_STORAGE`",
        ),
        ("files", json!("../outside"), 2, outside),
        ("files", json!("/etc"), 2, outside),
        (
            "files",
            json!("link"),
            2,
            "`files` is outside of the directory of the case",
        ),
    ] {
        let case = json!({"messages": [",echo hi"], key: value});
        fs::write(cases.join("one.yml"), case.to_string()).unwrap();
        let run = eval(&sandbox, &["cases"]);
        assert_eq!(run.code, Some(code), "{run:?}");
        let text = format!("{}{}", run.stdout, run.stderr);
        assert!(text.contains(expected), "{run:?}");
    }
    // The setting of the user applies to cases, too.
    let case = json!({"messages": [",echo hi"], "expect": {"not_tools": ["bash"]}});
    fs::write(cases.join("one.yml"), case.to_string()).unwrap();
    let mut command = sandbox.command(&bub());
    command
        .args(["eval", "cases"])
        .env("BUB_TAPE_STORAGE", "memory");
    let run = Run::from_output(command.output().unwrap());
    assert_eq!(run.code, Some(1), "{run:?}");
    let expected = "the case has no tape, so nothing can be checked";
    assert!(run.stdout.contains(expected), "{run:?}");
}

#[test]
fn invalid_arguments_and_files_of_an_evaluation_are_named() {
    let sandbox = Sandbox::new();
    write_cases(&sandbox.workspace().join("cases"), 1, "0");
    for (args, expected) in [
        (
            ["cases", "--repeat", "0"],
            "invalid value '0' for '--repeat <N>'",
        ),
        (
            ["cases", "--jobs", "0"],
            "invalid value '0' for '--jobs <N>'",
        ),
        (
            ["cases", "--timeout", "0"],
            "invalid value '0' for '--timeout <SECONDS>'",
        ),
        (
            ["cases", "--model", "foo"],
            "invalid model `foo`: expected `provider:model`",
        ),
        (
            ["cases", "--model", "nosuch:x"],
            "unknown provider `nosuch`; ",
        ),
        (
            ["cases", "--program", "no-program"],
            "cannot run no-program: ",
        ),
        (
            ["cases", "--program", "cases/case00.yml"],
            "case00.yml: it is not a program",
        ),
        (
            ["record", "notes", "--output=cases"],
            "unknown session `notes`",
        ),
        (
            ["cases", "--junit", "no-directory/x.xml"],
            "cannot write no-directory/x.xml: ",
        ),
    ] {
        let run = eval(&sandbox, &args);
        assert_eq!(run.code, Some(2), "{run:?}");
        assert!(run.stderr.contains(expected), "{expected}: {run:?}");
    }
    fs::write(sandbox.workspace().join("cases/empty.yml"), "\n").unwrap();
    let empty = eval(&sandbox, &["cases"]);
    assert_eq!(empty.code, Some(2), "{empty:?}");
    let expected = "cases/empty.yml: the case is empty; add `messages`";
    assert!(empty.stderr.contains(expected), "{empty:?}");
    let missing = eval(&sandbox, &["nowhere"]);
    assert!(
        missing.stderr.contains("cannot read nowhere: "),
        "{missing:?}"
    );
}

/// XML 1.0 has no way to write these characters, not even as references.
#[test]
fn the_junit_file_has_only_characters_of_xml() {
    let sandbox = Sandbox::new();
    let text = "\u{1}\u{8}\u{b}\u{1f}\u{fffe}\u{ffff}\u{1b}<&>\"\u{7f}\u{1f600}";
    let cases = sandbox.workspace().join("cases");
    let run = eval_expecting(&sandbox, &json!({"text": ["42 kg"]}));
    assert_eq!(run.code, Some(1), "{run:?}");
    write_answer_tape(&cases.join("tapes/answer.jsonl"), text);
    fs::rename(cases.join("one.yml"), cases.join("a\u{2}\u{ffff}.yml")).unwrap();
    eval(&sandbox, &["cases", "--junit", "junit.xml"]);
    let junit = fs::read_to_string(sandbox.workspace().join("junit.xml")).unwrap();
    let is_allowed = |letter: char| matches!(letter, '\t' | '\n' | '\r' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..);
    assert!(junit.chars().all(is_allowed), "{junit:?}");
    assert!(junit.contains("&lt;&amp;&gt;&quot;"), "{junit}");
    assert!(junit.contains("\u{1f600}"), "{junit}");
    assert!(junit.contains("name=\"a\u{fffd}\u{fffd} #1\""), "{junit}");
}

#[test]
fn a_progress_bar_is_shown_at_a_terminal() {
    let sandbox = Sandbox::new();
    write_cases(&sandbox.workspace().join("cases"), 3, "0");
    let mut command = sandbox.command(&example("in_terminal"));
    command.arg(bub()).args(["eval", "cases", "--jobs", "1"]);
    let (code, shown) = Pty::spawn_sized(command, 24, 100).finish();
    assert_eq!(code, Some(0), "{shown}");
    for bar in [
        "[------------------------------] 0/3",
        "[##########--------------------] 1/3",
        "[####################----------] 2/3",
    ] {
        assert!(shown.contains(bar), "{bar}: {shown:?}");
    }
    assert!(shown.contains("3 of 3 passed"), "{shown}");
    // Without a terminal, the output has no bar.
    let plain = eval(&sandbox, &["cases"]);
    assert!(!plain.stderr.contains("[--"), "{plain:?}");
}

/// A case is from elsewhere, such as a repository. What it copies is in it.
#[test]
fn a_link_in_the_files_of_a_case_leads_to_its_files_only() {
    let sandbox = Sandbox::new();
    let files = sandbox.workspace().join("cases/one/files");
    fs::create_dir_all(files.join("inner")).unwrap();
    fs::write(files.join("inner/real.txt"), "inside").unwrap();
    std::os::unix::fs::symlink("inner/real.txt", files.join("link.txt")).unwrap();
    let case = json!({"messages": [",cat link.txt"], "files": "files", "expect": {"files": {"link.txt": "inside"}}});
    fs::write(
        sandbox.workspace().join("cases/one/case.yml"),
        case.to_string(),
    )
    .unwrap();
    eval(&sandbox, &["cases"]).ok();
    for target in ["/etc/passwd", "../../case.yml", "/etc"] {
        let link = files.join("inner/outside");
        std::os::unix::fs::symlink(target, &link).unwrap();
        let run = eval(&sandbox, &["cases"]);
        assert_eq!(run.code, Some(2), "{run:?}");
        assert!(
            run.stderr
                .contains("inner/outside leads out of `files`, to "),
            "{run:?}"
        );
        fs::remove_file(&link).unwrap();
    }
    fs::remove_dir_all(&files).unwrap();
    std::os::unix::fs::symlink("/etc", &files).unwrap();
    let run = eval(&sandbox, &["cases"]);
    assert_eq!(run.code, Some(2), "{run:?}");
    let expected = "case.yml: `files` is outside of the directory of the case: /etc";
    assert!(run.stderr.contains(expected), "{run:?}");
}

/// A link to a directory stays a link, also to a directory that contains it.
#[test]
fn a_link_to_a_directory_of_a_case_is_a_link_in_its_workspace() {
    let sandbox = Sandbox::new();
    let files = sandbox.workspace().join("cases/one/files");
    fs::create_dir_all(files.join("inner/deep")).unwrap();
    fs::write(files.join("inner/real.txt"), "inside").unwrap();
    for (target, link) in [
        ("inner", "near"),
        ("..", "inner/deep/up"),
        ("../..", "inner/deep/top"),
        (files.join("inner").to_str().unwrap(), "inner/deep/absolute"),
    ] {
        std::os::unix::fs::symlink(target, files.join(link)).unwrap();
    }
    let messages = [
        ",cat near/real.txt inner/deep/up/real.txt inner/deep/top/inner/real.txt inner/deep/absolute/real.txt",
        ",echo changed > near/real.txt",
    ];
    let expected = json!({"inner/real.txt": "changed", "near/deep/top/near/real.txt": "changed"});
    let case = json!({"messages": messages, "files": "files", "expect": {"files": expected}});
    let path = sandbox.workspace().join("cases/one/case.yml");
    fs::write(path, case.to_string()).unwrap();
    eval(&sandbox, &["cases"]).ok();
    let original = fs::read_to_string(files.join("inner/real.txt")).unwrap();
    assert_eq!(original, "inside");
}

/// A cancelled turn has no answer, also if its last model call succeeded.
#[test]
fn a_case_is_recorded_without_cancelled_turns() {
    let session = RecordedSession::new();
    let wait = json!({"command": "touch started; exec sleep 600"}).to_string();
    session
        .model
        .script(Reply::new().call("call_8", "bash", &wait));
    let mut child = session
        .command(&["run", "--session-id", "notes", "Wait."])
        .spawn()
        .unwrap();
    let started = session.sandbox.workspace().join("started");
    wait_until("the tool runs", || started.exists());
    signal(&child, "INT");
    child.wait().unwrap();
    session.model.script(Reply::text("All is well."));
    let bub = |args: &[&str]| Run::from_output(session.command(args).output().unwrap());
    bub(&["run", "--session-id", "notes", "And now?"]).ok();
    fs::create_dir(session.sandbox.workspace().join("cases")).unwrap();
    let recorded = bub(&["eval", "record", "notes", "--output", "cases/note"]);
    assert_eq!(recorded.code, Some(0), "{recorded:?}");
    assert!(recorded.stderr.contains("skipped turn 2: "), "{recorded:?}");
    let case = fs::read_to_string(session.sandbox.workspace().join("cases/note/case.yml")).unwrap();
    let case: Value = serde_json::from_str(&case).unwrap();
    assert_eq!(case["messages"], json!(["Write a note.", "And now?"]));
    let passed = bub(&["eval", "cases"]).ok();
    assert!(passed.contains("1 of 1 passed"), "{passed}");
}

/// The directories for confined commands are in the temporary home of a case.
#[test]
fn a_case_leaves_nothing_in_the_home_of_the_user() {
    let session = RecordedSession::new();
    fs::create_dir(session.sandbox.workspace().join("cases")).unwrap();
    let mut record = session.command(&["eval", "record", "notes", "--output", "cases/note"]);
    Run::from_output(record.output().unwrap()).ok();
    // As after commands of the user.
    let directory = session.sandbox.home().join("sandbox");
    fs::create_dir_all(&directory).unwrap();
    let mut eval = session.command(&["eval", "cases"]);
    let eval = eval.env_remove("BUB_SANDBOX_PROFILE");
    Run::from_output(eval.output().unwrap()).ok();
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
}

#[test]
fn a_key_that_a_case_has_twice_is_named_with_its_line() {
    let sandbox = Sandbox::new();
    let cases = sandbox.workspace().join("cases");
    fs::create_dir(&cases).unwrap();
    let case = "messages: [hello]\nexpect:\n  text: [one]\nexpect:\n  text: [two]\n";
    fs::write(cases.join("twice.yml"), case).unwrap();
    let run = eval(&sandbox, &["cases"]);
    assert_eq!(run.code, Some(2), "{run:?}");
    assert!(run.stderr.contains("twice.yml: line 4, "), "{run:?}");
    assert!(
        run.stderr.contains("the key `expect` is there twice"),
        "{run:?}"
    );
}

#[test]
fn cases_with_the_same_name_are_refused() {
    for other in ["a.yaml", "a/case.yml"] {
        let sandbox = Sandbox::new();
        let cases = sandbox.workspace().join("cases");
        fs::create_dir_all(cases.join("a")).unwrap();
        let case = json!({"messages": [",echo hello"]}).to_string();
        fs::write(cases.join("a.yml"), &case).unwrap();
        eval(&sandbox, &["cases"]).ok();
        fs::write(cases.join(other), &case).unwrap();
        let run = eval(&sandbox, &["cases"]);
        assert_eq!(run.code, Some(2), "{run:?}");
        assert!(run.stderr.contains("are both the case `a`"), "{run:?}");
        let other = other.split('/').next().unwrap();
        for name in ["a.yml", other] {
            assert!(run.stderr.contains(&format!("cases/{name} ")), "{run:?}");
        }
    }
}

/// Programs such as `timeout` send a signal twice. The first one removes everything, and the second one must not prevent it.
#[test]
fn an_interrupted_evaluation_leaves_no_directory_and_no_report() {
    let sandbox = Sandbox::new();
    let temporary = sandbox.workspace().join("tmp");
    fs::create_dir(&temporary).unwrap();
    write_cases(&sandbox.workspace().join("cases"), 4, "1");
    let old = sandbox.workspace().join("old.xml");
    fs::write(&old, "an earlier report").unwrap();
    for junit in ["new.xml", "old.xml"] {
        let mut command = sandbox.command(&bub());
        command.args(["eval", "cases", "--junit", junit]);
        let mut child = command.env("TMPDIR", &temporary).spawn().unwrap();
        let directories = || fs::read_dir(&temporary).unwrap().flatten();
        wait_until("the cases run", || {
            let mut directories = directories();
            directories.any(|directory| directory.path().join("home/tapes").exists())
        });
        for directory in directories() {
            let mode = directory.metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700, "{mode:o}");
        }
        signal(&child, "TERM");
        signal(&child, "TERM");
        signal(&child, "INT");
        assert_eq!(child.wait().unwrap().code(), Some(143));
        assert_eq!(directories().count(), 0);
    }
    assert!(!sandbox.workspace().join("new.xml").exists());
    assert_eq!(fs::read_to_string(old).unwrap(), "an earlier report");
}
