//! Tests `bub replay`, `bub eval` and `bub demo`, and the hash chain of tapes, as users run them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use bub_testkit::{
    model::{ModelServer, Reply},
    pty::Pty,
};
use serde_json::{Value, json};

use crate::sandbox::{Run, Sandbox, bub, example};

/// A session in which the model writes a file and runs a command.
struct RecordedSession {
    sandbox: Sandbox,
    model: ModelServer,
}

impl RecordedSession {
    fn new() -> Self {
        let (sandbox, model) = (Sandbox::new(), ModelServer::start());
        let session = Self { sandbox, model };
        let write = json!({"path": "note.txt", "content": "Buy milk"}).to_string();
        let command = json!({"command": "echo one >> runs.txt; cat note.txt"}).to_string();
        session
            .model
            .script(Reply::new().call("call_1", "fs_write", &write))
            .script(Reply::new().call("call_2", "bash", &command))
            .script(Reply::text("The note says: Buy milk"));
        let mut run = session.command(&["run", "--session-id", "notes", "Write a note."]);
        let run = Run::from_output(run.output().unwrap());
        assert!(run.ok().contains("The note says: Buy milk"));
        session
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.sandbox.command(&bub());
        command
            .env("BUB_MODEL", "openai:small")
            .env("BUB_API_BASE", format!("{}/v1", self.model.url()))
            .env("BUB_API_KEY", "a-key-of-the-test")
            .env("BUB_SANDBOX_PROFILE", "off")
            .args(args);
        command
    }

    fn replay(&self, args: &[&str]) -> Run {
        let args = [&["replay", "notes"], args].concat();
        Run::from_output(self.command(&args).output().unwrap())
    }

    fn runs(&self) -> usize {
        let file = self.sandbox.workspace().join("runs.txt");
        fs::read_to_string(file).unwrap().lines().count()
    }
}

/// Design section 12: a replay does not touch the tape, and runs no tool unless it is live.
#[test]
fn a_session_is_replayed_from_its_tape() {
    let session = RecordedSession::new();
    let tape = session.sandbox.only_tape();
    let requests = session.model.requests().len();
    let report = session.replay(&[]).ok();
    assert!(report.contains("turn 1: Write a note."), "{report}");
    assert!(report.contains("step 1: same  fs_write"), "{report}");
    assert!(report.ends_with("no difference\n"), "{report}");
    let json: Value = serde_json::from_str(&session.replay(&["--format", "json"]).ok()).unwrap();
    assert_eq!(json["first_divergence"], Value::Null);
    assert_eq!(
        json["turns"][0]["steps"][1]["recorded"]["tool_calls"][0]["name"],
        "bash"
    );
    assert_eq!(session.runs(), 1);
    session.replay(&["--tools", "live"]);
    assert_eq!(session.runs(), 2);
    let dry = session.replay(&["--tools", "dry"]);
    assert_eq!(dry.code, Some(1), "{dry:?}");
    assert!(
        dry.stdout.contains("first difference: turn 1, step 1"),
        "{dry:?}"
    );
    assert_eq!(session.runs(), 2);
    assert_eq!(session.model.requests().len(), requests);
    assert_eq!(session.sandbox.only_tape(), tape);
}

#[test]
fn a_replay_shows_what_another_prompt_or_model_changes() {
    let session = RecordedSession::new();
    fs::write(session.sandbox.workspace().join("prompt.md"), "Be brief.").unwrap();
    let other = session.replay(&["--system", "prompt.md"]);
    assert_eq!(other.code, Some(1), "{other:?}");
    let expected = "request: the system prompt differs: recorded `<general_instruct>";
    assert!(other.stdout.contains(expected), "{other:?}");
    assert!(other.stdout.contains("now `Be brief.`"), "{other:?}");
    session.model.otherwise(Reply::text("I will not."));
    let html = session.sandbox.workspace().join("report.html");
    let args = [
        "--model",
        "openai:other",
        "--format",
        "html",
        "--output",
        "report.html",
    ];
    assert_eq!(session.replay(&args).code, Some(1));
    let page = fs::read_to_string(html).unwrap();
    assert!(
        page.contains("Answers from openai:other. First difference: turn 1, step 1."),
        "{page}"
    );
    assert!(page.contains("I will not."), "{page}");
    assert_eq!(session.runs(), 1);
}

#[test]
fn wrong_arguments_of_a_replay_are_named() {
    let session = RecordedSession::new();
    let unknown = session.sandbox.bub(["replay", "nowhere"]);
    assert_eq!(unknown.code, Some(2));
    assert!(
        unknown.stderr.contains("unknown session `nowhere`"),
        "{unknown:?}"
    );
    let from = session.replay(&["--from", "nothing"]);
    assert_eq!(from.code, Some(2));
    assert!(
        from.stderr.contains("unknown anchor or entry `nothing`"),
        "{from:?}"
    );
    assert_eq!(session.replay(&["--from", "session/start"]).code, Some(0));
}

fn has_strace() -> bool {
    let strace = Command::new("strace")
        .args(["-o", "/dev/null", "true"])
        .output();
    strace.is_ok_and(|output| output.status.success())
}

/// L7: a replay with recorded tools makes no connection and starts no process.
#[test]
fn a_replay_of_recorded_tools_has_no_effects_as_its_trace_shows() {
    if !has_strace() {
        return;
    }
    let session = RecordedSession::new();
    let traces = tempfile::tempdir().unwrap();
    let trace = |tools: &str| {
        let file = traces.path().join(tools);
        let mut command = session.command(&[]);
        let mut strace = Command::new("strace");
        strace
            .args(["-f", "-e", "trace=execve,connect,bind", "-o"])
            .arg(&file)
            .arg(bub())
            .args(["replay", "notes", "--tools", tools])
            .current_dir(session.sandbox.workspace())
            .env_clear();
        for (name, value) in command.args([""]).get_envs() {
            strace.env(name, value.unwrap_or_default());
        }
        let run = Run::from_output(strace.output().unwrap());
        (run, fs::read_to_string(file).unwrap())
    };
    let (run, calls) = trace("recorded");
    assert_eq!(run.code, Some(0), "{run:?}");
    assert_eq!(calls.matches("execve(").count(), 1, "{calls}");
    assert!(
        !calls.contains("connect(") && !calls.contains("bind("),
        "{calls}"
    );
    // The same check sees the processes of a live replay.
    let (_, calls) = trace("live");
    assert!(calls.matches("execve(").count() > 1, "{calls}");
}

/// Returns a demo whose temporary directories are in the workspace of a sandbox.
fn demo(sandbox: &Sandbox, args: &[&str]) -> Command {
    demo_of(sandbox, sandbox.command(&bub()), args)
}

/// Returns a demo for a pseudo-terminal, at which it asks.
fn demo_in_terminal(sandbox: &Sandbox, args: &[&str]) -> Command {
    let mut command = sandbox.command(&example("in_terminal"));
    command.arg(bub());
    demo_of(sandbox, command, args)
}

fn demo_of(sandbox: &Sandbox, mut command: Command, args: &[&str]) -> Command {
    let temporary = sandbox.workspace().join("tmp");
    fs::create_dir_all(&temporary).unwrap();
    command.arg("demo").args(args).env("TMPDIR", temporary);
    command.env("TERM", "xterm");
    command
}

fn has_left_nothing(sandbox: &Sandbox) -> bool {
    let temporary = sandbox.workspace().join("tmp");
    fs::read_dir(temporary).unwrap().next().is_none() && !sandbox.home().join("tapes").exists()
}

#[test]
fn the_demo_runs_without_a_person_and_leaves_nothing_behind() {
    for (lang, texts) in [
        (
            ["--lang", "en"],
            [
                "ok: the total is 42",
                "FAIL: expected 42, got 6`. I found this",
                "would have cost about $",
                "Next steps",
            ],
        ),
        (
            ["--lang", "zh"],
            [
                "ok: the total is 42",
                "FAIL: expected 42, got 6`。这是我在磁带上找到的",
                "大约需要 $",
                "下一步",
            ],
        ),
    ] {
        let sandbox = Sandbox::new();
        let started = Instant::now();
        let mut command = demo(&sandbox, &["--yes"]);
        let run = Run::from_output(command.args(lang).output().unwrap());
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "{:?}",
            started.elapsed()
        );
        let stdout = run.ok();
        for text in texts {
            assert!(stdout.contains(text), "{text}: {stdout}");
        }
        assert!(has_left_nothing(&sandbox));
    }
}

#[test]
fn the_demo_asks_at_a_terminal_and_uses_the_language_of_the_locale() {
    let sandbox = Sandbox::new();
    let mut command = demo_in_terminal(&sandbox, &[]);
    command.env("LANG", "zh_CN.UTF-8");
    let mut terminal = Pty::spawn_sized(command, 50, 120);
    terminal.expect("allow fs.edit?");
    terminal.expect("or `n REASON`: ");
    terminal.send("y\r");
    let shown = terminal.expect("下一步");
    assert!(shown.contains("ok: the total is 42"), "{shown}");
    let (code, _) = terminal.finish();
    assert_eq!(code, Some(0));
    assert!(has_left_nothing(&sandbox));
}

#[test]
fn a_denied_edit_is_admitted() {
    let sandbox = Sandbox::new();
    let mut terminal = Pty::spawn_sized(
        demo_in_terminal(&sandbox, &["--lang", "en", "--pace", "0"]),
        50,
        120,
    );
    terminal.expect("or `n REASON`: ");
    terminal.send("n\r");
    terminal.expect("The check still fails, because the edit was not approved.");
    let (code, _) = terminal.finish();
    assert_eq!(code, Some(0));
}

#[test]
fn an_interrupted_demo_leaves_nothing_behind() {
    let sandbox = Sandbox::new();
    let mut terminal = Pty::spawn_sized(demo_in_terminal(&sandbox, &["--lang", "en"]), 50, 120);
    terminal.expect("or `n REASON`: ");
    terminal.send("\u{3}");
    let (code, _) = terminal.finish();
    assert_eq!(code, Some(130));
    assert!(has_left_nothing(&sandbox));
    let without_terminal = Run::from_output(demo(&sandbox, &[]).output().unwrap());
    assert_eq!(without_terminal.code, Some(2));
    assert!(
        without_terminal.stderr.contains("pass `--yes`"),
        "{without_terminal:?}"
    );
}

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
        "the field `unit` is not one of the allowed values: `\"kg\"`",
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

#[test]
fn a_chained_tape_is_verified_and_its_export_too() {
    let sandbox = Sandbox::new();
    let run = |text: &str| {
        let mut command = sandbox.command(&bub());
        command
            .args(["run", text])
            .env("BUB_TAPE_INTEGRITY", "chain");
        Run::from_output(command.output().unwrap()).ok()
    };
    run(",echo one");
    run(",echo two");
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
    let export = sandbox
        .bub(["tape", "verify", "--file", "export.jsonl", "--head", &head])
        .ok();
    assert!(export.starts_with("export.jsonl: ok ("), "{export}");
    let other = sandbox.bub([
        "tape",
        "verify",
        "--file",
        "export.jsonl",
        "--head",
        &"0".repeat(64),
    ]);
    assert_eq!(other.code, Some(1), "{other:?}");
    let tapes = fs::read_dir(sandbox.home().join("tapes"))
        .unwrap()
        .flatten();
    let tape = tapes
        .map(|file| file.path())
        .find(|path| path.extension().is_some_and(|end| end == "jsonl"));
    let tape = tape.unwrap();
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
