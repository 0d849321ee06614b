//! Tests what is logged, where, and what is not logged.

use std::{os::unix::fs::PermissionsExt, path::Path};

use bub_testkit::{
    model::{ModelServer, Reply},
    pty::{Pty, SESSION_LEADER},
};
use serde_json::Value;

use crate::sandbox::{Run, Sandbox, bub};

const MESSAGE_TEXT: &str = "the-word-that-was-said";
const JSON: (&str, &str) = ("BUB_LOG_FORMAT", "json");

fn run_with(sandbox: &Sandbox, variables: &[(&str, &str)], args: &[&str]) -> Run {
    Run::from_output(
        sandbox
            .command(&bub())
            .envs(variables.iter().copied())
            .args(args)
            .output()
            .unwrap(),
    )
}

/// Runs a turn with a model that always gives the same answer.
fn ask(sandbox: &Sandbox, variables: &[(&str, &str)], args: &[&str]) -> Run {
    let server = ModelServer::start();
    server.otherwise(Reply::text(MESSAGE_TEXT));
    let base = format!("{}/v1", server.url());
    let model = [
        ("BUB_MODEL", "openai:small"),
        ("BUB_API_BASE", &base),
        ("BUB_API_KEY", "sk-correct-horse"),
    ];
    run_with(
        sandbox,
        &[&model, variables].concat(),
        &[&["run", MESSAGE_TEXT], args].concat(),
    )
}

fn lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}")))
        .collect()
}

// H-11
#[test]
fn without_a_terminal_lines_are_text_with_the_fields_of_the_spans() {
    let sandbox = Sandbox::new();
    let run = ask(&sandbox, &[], &["-vv"]);
    let call = run
        .stderr
        .lines()
        .find(|line| line.contains(" model.call "))
        .unwrap_or_else(|| panic!("{run:?}"));
    let (time, rest) = call.split_once(' ').unwrap();
    assert!(
        time.len() == "2026-11-17T11:46:19.123Z".len() && time.ends_with('Z'),
        "{call}"
    );
    let names: Vec<_> = rest
        .split(' ')
        .filter_map(|part| Some(part.split_once('=')?.0))
        .collect();
    let spans = [
        "session_id",
        "channel",
        "inbound_id",
        "run_id",
        "number",
        "model",
        "attempt",
    ];
    assert_eq!(names, spans, "outermost first, each once: {call}");
    assert!(
        rest.starts_with("DEBUG model.call session_id=cli:local channel=")
            && rest.ends_with(" number=1 model=openai:small attempt=1"),
        "{call}"
    );
    assert!(!run.stderr.contains('\u{1b}') && !run.stderr.contains("{\""));
    assert_eq!(
        ask(&sandbox, &[], &[]).stderr,
        "",
        "and nothing without being asked"
    );
}

#[test]
fn with_the_format_json_every_line_is_an_object() {
    let sandbox = Sandbox::new();
    let run = ask(&sandbox, &[JSON], &["-vv"]);
    let log = lines(&run.stderr);
    let call = log
        .iter()
        .find(|line| line["message"] == "model.call")
        .unwrap();
    assert_eq!(
        (call["level"].as_str(), call["attempt"].as_u64()),
        (Some("debug"), Some(1)),
        "{call}"
    );
    assert_eq!(call["session_id"], "cli:local");
    assert!(call["time"].as_str().unwrap().ends_with('Z') && call["target"].is_string());
    let wrong = ask(&sandbox, &[("BUB_LOG_FORMAT", "yaml")], &[]);
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
}

// A filter that hides the targets of the spans does not hide their fields.
#[test]
fn fields_of_spans_are_on_lines_of_every_level_and_target() {
    let sandbox = Sandbox::new();
    let run = ask(&sandbox, &[("BUB_LOG", "off,bub_model=debug")], &[]);
    let call = run
        .stderr
        .lines()
        .find(|line| line.contains(" model.call "))
        .unwrap();
    assert!(call.contains(" session_id=cli:local "), "{call}");
    let warned = run_with(
        &sandbox,
        &[("BUB_MODEL", "openai:small"), ("BUB_LOG", "error")],
        &["run", "hello"],
    );
    assert!(
        warned
            .stderr
            .lines()
            .filter(|line| line.contains(" turn.failed "))
            .all(|line| line.contains(" session_id=cli:local ") && line.contains(" run_id=")),
        "{warned:?}"
    );
}

// H-11: the Python version colors its log even in a file
#[test]
fn on_a_terminal_lines_are_human_readable() {
    let sandbox = Sandbox::new();
    sandbox.write("home/config.yml", "modle: x\n");
    for (variable, value, is_colored) in [
        ("TERM", "xterm", true),
        ("NO_COLOR", "1", false),
        ("TERM", "dumb", false),
    ] {
        let mut command = sandbox.command(Path::new(SESSION_LEADER[0]));
        command
            .args(&SESSION_LEADER[1..])
            .arg(bub())
            .arg("--version")
            .env(variable, value);
        let (code, shown) = Pty::spawn(command).finish();
        assert_eq!(code, Some(0));
        assert!(
            shown.contains("WARN") && shown.contains("did you mean `model`?"),
            "{shown}"
        );
        assert_eq!(shown.contains('\u{1b}'), is_colored, "{shown:?}");
    }
}

#[test]
fn a_filter_by_words_names_levels_and_targets() {
    let sandbox = Sandbox::new();
    let messages = |filter: &str| {
        let log = lines(&ask(&sandbox, &[("BUB_LOG", filter), JSON], &[]).stderr);
        log.iter()
            .map(|line| line["target"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert!(
        messages("warn,bub_model=debug")
            .iter()
            .all(|target| target.starts_with("bub_model"))
    );
    assert!(!messages("bub_model=debug").is_empty());
    assert_eq!(messages("off"), [""; 0]);
    let run = ask(&sandbox, &[("BUB_LOG", "loud")], &[]);
    assert!(
        run.code == Some(2)
            && run
                .stderr
                .contains("`log.filter` is `loud`, expected a log level (error, warn"),
        "{run:?}"
    );
    assert_eq!(
        ask(&sandbox, &[("BUB_LOG", "trace")], &["-v"])
            .stderr
            .matches(" DEBUG ")
            .count(),
        0,
        "-v wins"
    );
}

// W-35
#[test]
fn messages_are_logged_only_when_asked_for() {
    let sandbox = Sandbox::new();
    let quiet = ask(&sandbox, &[("BUB_LOG", "trace")], &[]);
    assert!(!quiet.stderr.contains(MESSAGE_TEXT), "{}", quiet.stderr);
    let with_contents = ask(
        &sandbox,
        &[("BUB_LOG", "info"), ("BUB_LOG_CONTENTS", "true")],
        &[],
    );
    assert_eq!(
        with_contents.stderr.matches(MESSAGE_TEXT).count(),
        2,
        "question and answer: {}",
        with_contents.stderr
    );
    sandbox.write(
        "workspace/.env",
        "BUB_LOG_CONTENTS=true\nBUB_LOG_FILE=stolen.log\n",
    );
    let stolen = ask(&sandbox, &[("BUB_LOG", "info")], &[]);
    assert!(
        !stolen.stderr.contains(MESSAGE_TEXT) && !sandbox.workspace().join("stolen.log").exists(),
        "{stolen:?}"
    );
}

#[test]
fn a_file_gets_every_line_also_those_that_are_printed() {
    let sandbox = Sandbox::new();
    let file = sandbox.home().join("logs/bub.log");
    let run = run_with(
        &sandbox,
        &[("BUB_LOG_FILE", file.to_str().unwrap()), JSON],
        &["run", ",quack"],
    );
    assert_ne!(run.code, Some(0));
    let logged = lines(&std::fs::read_to_string(&file).unwrap());
    assert!(!run.stderr.contains("turn.failed"), "{run:?}");
    assert!(
        logged
            .iter()
            .any(|line| line["message"] == "turn.failed" && line["session_id"] == "cli:local"),
        "{logged:?}"
    );
    std::fs::remove_file(&file).unwrap();
    run_with(
        &sandbox,
        &[("BUB_LOG_FILE", file.to_str().unwrap())],
        &["run", ",quack"],
    );
    let logged = std::fs::read_to_string(file).unwrap();
    assert!(
        logged
            .lines()
            .any(|line| line.contains(" ERROR turn.failed error=")),
        "{logged}"
    );
}

#[test]
fn a_file_that_cannot_be_the_log_is_named_once_and_stops_nothing() {
    let sandbox = Sandbox::new();
    sandbox.write("home/config.yml", "max_steps: 9\n");
    let pipe = sandbox.workspace().join("pipe");
    assert!(
        std::process::Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    let config = sandbox.home().join("config.yml");
    let below = config.join("bub.log");
    for (file, reason) in [
        (sandbox.home(), "it is not a regular file"),
        (pipe, "it is not a regular file"),
        (config, "it is the config file"),
        (below, "Not a directory"),
    ] {
        let variables = [("BUB_LOG_FILE", file.to_str().unwrap())];
        let run = run_with(&sandbox, &variables, &["config", "get", "max_steps"]);
        assert_eq!(
            (run.stdout.as_str(), run.stderr.lines().count()),
            ("9\n", 1),
            "{run:?}"
        );
        assert!(
            run.stderr.contains("cannot be used: ") && run.stderr.contains(reason),
            "{run:?}"
        );
        let doctor = run_with(&sandbox, &variables, &["doctor", "--offline"]);
        let line = doctor
            .stdout
            .lines()
            .find(|line| line.contains("log file `"))
            .unwrap();
        assert!(
            doctor.code == Some(1) && line.starts_with("config    error "),
            "{doctor:?}"
        );
    }
}

// W-35
#[test]
fn a_file_that_others_could_read_is_made_private() {
    let sandbox = Sandbox::new();
    sandbox.write("home/bub.log", "before\n");
    let file = sandbox.home().join("bub.log");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    run_with(
        &sandbox,
        &[("BUB_LOG_FILE", file.to_str().unwrap())],
        &["run", ",quack"],
    );
    assert_eq!(
        std::fs::metadata(&file).unwrap().permissions().mode() & 0o777,
        0o600
    );
    assert!(
        std::fs::read_to_string(&file)
            .unwrap()
            .starts_with("before\n20")
    );
}
