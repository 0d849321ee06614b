//! Tests `bub replay` and the provider `replay`, as users run them.

use std::{fs, process::Command};

use bub_testkit::model::{ModelServer, Reply};
use serde_json::{Value, json};

use crate::{
    plugin::add_described_plugin,
    sandbox::{Run, Sandbox, bub},
};

/// A session in which the model writes a file and runs a command.
pub(crate) struct RecordedSession {
    pub(crate) sandbox: Sandbox,
    pub(crate) model: ModelServer,
}

impl RecordedSession {
    pub(crate) fn new() -> Self {
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

    pub(crate) fn command(&self, args: &[&str]) -> Command {
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

/// The replay works on an empty copy, but the model is the recorded session.
#[test]
fn a_session_can_be_replayed_with_itself_as_the_model() {
    let session = RecordedSession::new();
    let run = session.replay(&["--model", "replay:notes"]);
    assert_eq!(run.code, Some(0), "{run:?}");
}

/// Each process of a session continues where the previous one stopped, as the tape of the session says.
#[test]
fn the_position_on_a_replayed_tape_is_kept_between_processes() {
    let session = RecordedSession::new();
    let mut more = session.command(&["run", "--session-id", "notes", "Thanks."]);
    session.model.script(Reply::text("You are welcome."));
    Run::from_output(more.output().unwrap()).ok();
    let export = ["tape", "export", "notes", "--output", "notes.jsonl"];
    session.sandbox.bub(export).ok();
    let run = |message: &str| {
        let mut command = session.command(&["run", "--session-id", "again", message]);
        command
            .env("BUB_MODEL", "replay:notes.jsonl")
            .env("BUB_REPLAY_DIVERGENCE", "lenient")
            .env("BUB_LOG", "error");
        Run::from_output(command.output().unwrap())
    };
    let first = run("Write another note.").ok();
    assert!(first.contains("The note says: Buy milk"), "{first}");
    let second = run("Thank you very much.").ok();
    assert!(second.contains("You are welcome."), "{second}");
}

/// Each provider has its own ids of tool calls, and some use an id again.
#[test]
fn ids_of_tool_calls_are_no_difference() {
    let session = RecordedSession::new();
    let write = json!({"path": "note.txt", "content": "Buy milk"}).to_string();
    let command = json!({"command": "echo one >> runs.txt; cat note.txt"}).to_string();
    session
        .model
        .script(Reply::new().call("toolu_0", "fs_write", &write))
        .script(Reply::new().call("toolu_0", "bash", &command))
        .script(Reply::text("The note says: Buy milk"));
    let run = session.replay(&["--model", "openai:other"]);
    assert_eq!(run.code, Some(0), "{run:?}");
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

pub(crate) fn has_strace() -> bool {
    let strace = Command::new("strace")
        .args(["-o", "/dev/null", "true"])
        .output();
    strace.is_ok_and(|output| output.status.success())
}

/// Runs a command under strace. Returns its outcome, and its calls of `execve`, `connect` and `bind`.
pub(crate) fn trace(command: &Command) -> (Run, String) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("calls");
    let mut strace = Command::new("strace");
    strace
        .args(["-f", "-e", "trace=execve,connect,bind", "-o"])
        .arg(&file)
        .arg(command.get_program())
        .args(command.get_args())
        .current_dir(command.get_current_dir().unwrap())
        .env_clear();
    for (name, value) in command.get_envs() {
        strace.env(name, value.unwrap_or_default());
    }
    let run = Run::from_output(strace.output().unwrap());
    (run, fs::read_to_string(file).unwrap())
}

/// Returns the number of programs that were started. A search in `PATH` tries several.
fn started(calls: &str) -> usize {
    let is_start = |line: &&str| line.contains("execve(") && line.ends_with("= 0");
    calls.lines().filter(is_start).count()
}

/// L7: a replay with recorded tools makes no connection and starts no process, also if a plugin is enabled.
#[test]
fn a_replay_of_recorded_tools_has_no_effects_as_its_trace_shows() {
    if !has_strace() {
        return;
    }
    let session = RecordedSession::new();
    let hooks = r#"{"protocol":1,"hooks":["system_prompt","load_state"]}"#;
    add_described_plugin(&session.sandbox, "listener", "", hooks).ok();
    let trace = |args: &[&str]| trace(&session.command(&[&["replay", "notes"], args].concat()));
    for tools in ["recorded", "dry"] {
        let (run, calls) = trace(&["--tools", tools]);
        assert!(run.stdout.contains("turn 1: Write a note."), "{run:?}");
        assert_eq!(started(&calls), 1, "{calls}");
        assert!(
            !calls.contains("connect(") && !calls.contains("bind("),
            "{calls}"
        );
        let expected = "not started: listener; to use a plugin, pass `--plugin NAME`";
        assert!(run.stderr.contains(expected), "{run:?}");
    }
    // The same check sees the process of a plugin that is named, and those of a live replay.
    let (run, calls) = trace(&["--plugin", "listener"]);
    assert!(started(&calls) > 1, "{calls}");
    assert!(!run.stderr.contains("not started"), "{run:?}");
    let (run, live) = trace(&["--tools", "live"]);
    assert!(started(&live) > started(&calls), "{live}");
    assert!(!run.stderr.contains("not started"), "{run:?}");
    let (_, without) = trace(&["--tools", "live", "--plugin", "!listener"]);
    assert!(started(&without) < started(&live), "{without}");
}

/// The plugin changes the system prompt, so a replay without it differs at the first step.
#[test]
fn a_replay_shows_what_a_plugin_changes() {
    let session = RecordedSession::new();
    let plugin = session.sandbox.workspace().join("polite");
    fs::create_dir(&plugin).unwrap();
    fs::write(
        plugin.join("bub-plugin.yml"),
        "name: polite\ncommand: [sh, run.sh]\n",
    )
    .unwrap();
    fs::write(plugin.join("run.sh"), POLITE_PLUGIN).unwrap();
    let bub = |args: &[&str]| Run::from_output(session.command(args).output().unwrap());
    bub(&["plugin", "add", "polite", "--yes"]).ok();
    bub(&["plugin", "disable", "polite"]).ok();
    assert_eq!(session.replay(&[]).code, Some(0));
    let with = session.replay(&["--plugin", "polite"]);
    assert_eq!(with.code, Some(1), "{with:?}");
    assert!(with.stdout.contains("Always say please."), "{with:?}");
    assert!(
        with.stdout.contains("first difference: turn 1, step 1"),
        "{with:?}"
    );
    for name in ["nosuch", "!nosuch"] {
        let unknown = session.replay(&["--plugin", name]);
        assert_eq!(unknown.code, Some(2), "{unknown:?}");
        let expected = format!("unknown plugin `{name}`; run `bub plugin list` to list plugins");
        assert!(unknown.stderr.contains(&expected), "{unknown:?}");
    }
}

/// A plugin that adds a sentence to the system prompt.
const POLITE_PLUGIN: &str = r#"while read -r line; do
  id=$(printf '%s\n' "$line" | sed -n 's/^{"jsonrpc":"2.0","id":\([0-9]*\),.*/\1/p')
  case "$line" in
    *'"initialize"'*) result='{"protocol":1,"hooks":["system_prompt"]}' ;;
    *'"hook/system_prompt"'*) result='{"value":"Always say please."}' ;;
    *) result='{}' ;;
  esac
  [ -z "$id" ] || printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$result"
done
"#;

/// A session is a model: in its own workspace by its id, and elsewhere as a file. The run is strict, in another session,
/// another workspace and another home than the recorded one, and no model server is used.
#[test]
fn a_recorded_session_is_a_model_also_in_another_workspace_session_and_home() {
    let session = RecordedSession::new();
    let requests = session.model.requests().len();
    let run = |command: &mut Command, tape: &str, id: &str| {
        let args = ["run", "--session-id", id, "--model", tape, "Write a note."];
        Run::from_output(command.args(args).output().unwrap())
    };
    let same = run(&mut session.command(&[]), "replay:notes", "again");
    assert!(same.stdout.contains("The note says: Buy milk"), "{same:?}");
    assert_eq!(session.runs(), 2);
    let export = ["tape", "export", "notes", "--output", "notes.jsonl"];
    session.sandbox.bub(export).ok();
    let other = Sandbox::new();
    let tape = session.sandbox.workspace().join("notes.jsonl");
    fs::copy(tape, other.workspace().join("notes.jsonl")).unwrap();
    let mut command = other.command(&bub());
    command.env("BUB_SANDBOX_PROFILE", "off");
    let there = run(&mut command, "replay:notes.jsonl", "elsewhere");
    assert!(
        there.stdout.contains("The note says: Buy milk"),
        "{there:?}"
    );
    let note = fs::read_to_string(other.workspace().join("note.txt")).unwrap();
    assert_eq!(note, "Buy milk");
    assert_eq!(session.model.requests().len(), requests);
    let mut command = other.command(&bub());
    let args = ["run", "--model", "replay:notes.jsonl", "Write a letter."];
    let different = Run::from_output(command.args(args).output().unwrap());
    assert_ne!(different.code, Some(0));
    let expected = "message 1 (user) differs: recorded `Write a note.`, now `Write a letter.`";
    assert!(different.stderr.contains(expected), "{different:?}");
}

#[test]
fn a_replay_starts_at_an_anchor_or_an_entry_and_sums_up_only_what_it_runs() {
    let session = RecordedSession::new();
    session.model.otherwise(Reply::text("Noted."));
    let bub = |args: &[&str]| Run::from_output(session.command(args).output().unwrap()).ok();
    bub(&["run", "--session-id", "notes", ",tape.handoff name=phase-2"]);
    bub(&["run", "--session-id", "notes", "And a second one."]);
    let tape = session.sandbox.only_tape();
    let entries = tape
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut anchors = entries.rev().filter(|entry| entry["kind"] == "anchor");
    let anchor = anchors.next().unwrap();
    assert_eq!(anchor["payload"]["name"], "phase-2");
    for from in ["phase-2", &anchor["id"].to_string()] {
        let report = session.replay(&["--from", from]).ok();
        assert!(report.contains("turn 2: And a second one."), "{report}");
        assert!(!report.contains("turn 1:"), "{report}");
        assert!(report.ends_with("no difference\n"), "{report}");
    }
    let totals = |args: &[&str]| -> Value {
        let args = [&["--format", "json"], args].concat();
        serde_json::from_str(&session.replay(&args).ok()).unwrap()
    };
    let (all, part) = (totals(&[]), totals(&["--from", "phase-2"]));
    for side in ["recorded", "replayed"] {
        let tokens = |report: &Value| report[side]["input_tokens"].as_u64().unwrap();
        assert!(tokens(&all) > tokens(&part), "{all} {part}");
        assert!(all[side]["cost"].is_number(), "{all}");
        assert!(all[side]["elapsed_ms"].is_number(), "{all}");
    }
}

#[test]
fn an_invalid_model_or_file_of_a_replay_is_named() {
    let session = RecordedSession::new();
    for (args, expected) in [
        (
            ["--model", "foo"],
            "invalid model `foo`: expected `provider:model`",
        ),
        (["--system", "no-file.md"], "cannot read no-file.md: "),
        (
            ["--output", "no-directory/report"],
            "cannot write no-directory/report: ",
        ),
    ] {
        let run = session.replay(&args);
        assert_eq!(run.code, Some(2), "{run:?}");
        assert!(run.stderr.contains(expected), "{run:?}");
    }
}
