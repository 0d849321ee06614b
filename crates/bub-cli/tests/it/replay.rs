//! Tests `bub replay` and the provider `replay`, as users run them.

use std::{fs, os::unix::fs::PermissionsExt as _, process::Command};

use bub_testkit::model::{ModelServer, Reply};
use serde_json::{Value, json};

use crate::{
    agent_kill::drafts,
    plugin::add_described_plugin,
    sandbox::{Run, Sandbox, bub, signal, wait_until},
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
    assert_eq!(run.code, Some(0), "{run:?}");
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

/// L8 isolates the failures of a plugin, but a replay in which a plugin failed proves nothing about it. The plugin does
/// not start, dies in the middle, or answers a hook with an error.
#[test]
fn a_plugin_that_fails_makes_a_replay_an_error() {
    let session = RecordedSession::new();
    let hook = |hooks: &str, body: &str| {
        format!(
            r#"while read -r line; do
  id=$(printf '%s\n' "$line" | sed -n 's/^{{"jsonrpc":"2.0","id":\([0-9]*\),.*/\1/p')
  case "$line" in
    *'"initialize"'*) answer='"result":{{"protocol":1,"hooks":[{hooks}]}}' ;;
    *'"hook/'*) {body} ;;
    *) answer='"result":{{}}' ;;
  esac
  [ -z "$id" ] || printf '{{"jsonrpc":"2.0","id":%s,%s}}\n' "$id" "$answer"
done
"#
        )
    };
    let error = r#"answer='"error":{"code":1,"message":"out of order"}'"#;
    let once = r#"count=$((count + 1)); [ $count -lt 2 ] || exit 3; answer='"result":{}'"#;
    let plugins = [
        ("absent", r#""system_prompt""#, "exit 7", "the process "),
        ("mortal", r#""after_llm_call""#, once, "the process "),
        ("rude", r#""after_llm_call""#, error, "out of order"),
        ("strict", r#""load_state""#, error, "out of order"),
    ];
    for (name, hooks, body, reason) in plugins {
        let manifest = format!("name: {name}\ncommand: [sh, plugin.sh]\n");
        session
            .sandbox
            .write(&format!("workspace/{name}/bub-plugin.yml"), &manifest);
        let script = format!("workspace/{name}/plugin.sh");
        session.sandbox.write(&script, &hook(hooks, body));
        session.sandbox.bub(["plugin", "add", name, "--yes"]).ok();
        session.sandbox.bub(["plugin", "disable", name]).ok();
        if name == "absent" {
            // It no longer starts, because its files are not those that were added.
            session.sandbox.write(&script, "exit 1");
        }
        let replay = |args: &[&str]| session.replay(&[&["--plugin", name], args].concat());
        let text = replay(&[]);
        assert_eq!(text.code, Some(1), "{text:?}");
        assert!(!text.stdout.contains("no difference"), "{text:?}");
        let failed = format!("error: plugin `{name}` failed: ");
        let line = text.stdout.lines().find(|line| line.starts_with(&failed));
        let line = line.unwrap_or_else(|| panic!("{text:?}"));
        assert!(
            line.contains(&format!("see `bub plugin show {name}`")),
            "{line}"
        );
        if name != "absent" {
            assert!(line.contains(reason), "{line}");
        }
        let json = replay(&["--format", "json"]);
        assert_eq!(json.code, Some(1), "{json:?}");
        assert!(json.stderr.contains(&failed), "{json:?}");
        let report: Value = serde_json::from_str(&json.stdout).unwrap();
        assert_eq!(report["plugin_failures"][0]["plugin"], name);
        assert!(
            report["plugin_failures"][0]["error"].is_string(),
            "{report}"
        );
        let file = format!("{name}.html");
        let html = replay(&["--format", "html", "--output", &file]);
        assert_eq!(html.code, Some(1), "{html:?}");
        assert!(html.stderr.contains(&failed), "{html:?}");
        let page = fs::read_to_string(session.sandbox.workspace().join(file)).unwrap();
        assert!(
            page.contains(&format!("Error: plugin `{name}` failed: ")),
            "{page}"
        );
        assert!(!page.contains("No difference"), "{page}");
    }
    // Without the plugin, nothing is reported.
    assert_eq!(session.replay(&[]).code, Some(0));
}

/// A session whose last turn is killed when `is_reached`, and then gets one more turn, if `is_continued`.
fn killed_session(
    replies: &[Reply],
    is_reached: impl Fn(&RecordedSession) -> bool,
    is_continued: bool,
) -> RecordedSession {
    let session = RecordedSession::new();
    for reply in replies {
        session.model.script(reply.clone());
    }
    let mut command = session.command(&["run", "--session-id", "notes", "Tell a story."]);
    let mut child = command.spawn().unwrap();
    wait_until("the turn is in the middle", || is_reached(&session));
    signal(&child, "KILL");
    child.wait().unwrap();
    if is_continued {
        session.model.script(Reply::text("As you say."));
        let mut next = session.command(&["run", "--session-id", "notes", "Stop it."]);
        Run::from_output(next.output().unwrap()).ok();
    }
    session
}

/// What the killed process did not do is no difference. The turn is compared up to the kill, in the model call or in a
/// tool, with and without the entries that the next turn adds to complete its record.
#[test]
fn a_killed_turn_is_compared_up_to_the_kill() {
    let partial = || Reply::deltas(["Once upon ", "a time", " there"]).hang_after(3);
    let tool = || {
        let wait = json!({"command": "touch started; exec sleep 600"}).to_string();
        let read = json!({"path": "note.txt"}).to_string();
        let calls = Reply::new().call("call_7", "fs_read", &read);
        [
            Reply::new().call("call_6", "fs_read", &read),
            calls.call("call_8", "bash", &wait),
        ]
    };
    for is_continued in [false, true] {
        let in_call = killed_session(
            &[partial()],
            |session| drafts(&session.sandbox).contains("Once upon "),
            is_continued,
        );
        let in_tool = killed_session(
            &tool(),
            |session| {
                let is_started = session.sandbox.workspace().join("started").exists();
                is_started && session.sandbox.only_tape().contains("tool.done")
            },
            is_continued,
        );
        for (session, place, step) in [
            (in_call, "in the model call of step 1", 1),
            (in_tool, "in the tools of step 2", 2),
        ] {
            let tape = session.sandbox.only_tape();
            let report = session.replay(&[]).ok();
            let note = format!("  interrupted: its process ended {place}; compared up to there\n");
            assert!(report.contains(&note), "{report}");
            assert!(report.ends_with("no difference\n"), "{report}");
            let last = format!("turn {}: ", if is_continued { 3 } else { 2 });
            assert!(report.contains(&last), "{report}");
            let json = session.replay(&["--format", "json"]).ok();
            let json: Value = serde_json::from_str(&json).unwrap();
            let interrupted = json["turns"][1]["interrupted"].as_str().unwrap();
            assert!(interrupted.contains(place), "{json}");
            assert_eq!(json["turns"][0]["interrupted"], Value::Null);
            let html = session.replay(&["--format", "html"]).ok();
            assert!(
                html.contains("<p>Interrupted: its process ended "),
                "{html}"
            );
            // A real difference in the interrupted turn is found, also in the request that has no answer.
            fs::write(session.sandbox.workspace().join("prompt.md"), "Be brief.").unwrap();
            let first = &json["turns"][1]["steps"];
            assert_eq!(first.as_array().unwrap().len(), step, "{json}");
            let other = session.replay(&["--system", "prompt.md", "--format", "json"]);
            let other: Value = serde_json::from_str(&other.stdout).unwrap();
            let differences = &other["turns"][1]["steps"][step - 1]["differences"];
            assert!(
                differences[0]
                    .as_str()
                    .unwrap()
                    .contains("the system prompt differs")
            );
            assert_eq!(session.sandbox.only_tape(), tape);
        }
    }
}

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
        (["--model", "nosuch:x"], "unknown provider `nosuch`; "),
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

/// A report has what is on the tape. It replaces no file, and a failed replay leaves none.
#[test]
fn a_report_is_a_new_file_that_only_the_user_can_read() {
    use std::os::unix::fs::PermissionsExt as _;
    let session = RecordedSession::new();
    let path = session.sandbox.workspace().join("report.txt");
    let failed = session.replay(&["--from", "nothing", "--output", "report.txt"]);
    assert_eq!(failed.code, Some(2), "{failed:?}");
    assert!(!path.exists());
    session.replay(&["--output", "report.txt"]).ok();
    let report = fs::read_to_string(&path).unwrap();
    assert!(report.ends_with("no difference\n"), "{report}");
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let again = session.replay(&["--output", "report.txt", "--format", "json"]);
    assert_eq!(again.code, Some(2), "{again:?}");
    assert!(
        again
            .stderr
            .contains("file `report.txt` already exists; choose another file"),
        "{again:?}"
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), report);
}

/// Adds a plugin with one hook. `action` runs in it and sets `result`.
fn add_hook_plugin(session: &RecordedSession, name: &str, hook: &str, action: &str) {
    let script = format!(
        r#"while read -r line; do
  id=$(printf '%s\n' "$line" | sed -n 's/^{{"jsonrpc":"2.0","id":\([0-9]*\),.*/\1/p')
  case "$line" in
    *'"initialize"'*) result='{{"protocol":1,"hooks":["{hook}"]}}' ;;
    *'"hook/{hook}"'*) {action} ;;
    *) result='{{}}' ;;
  esac
  [ -z "$id" ] || printf '{{"jsonrpc":"2.0","id":%s,"result":%s}}\n' "$id" "$result"
done
"#
    );
    let manifest = format!("name: {name}\ncommand: [sh, plugin.sh]\n");
    let sandbox = &session.sandbox;
    sandbox.write(&format!("workspace/{name}/bub-plugin.yml"), &manifest);
    sandbox.write(&format!("workspace/{name}/plugin.sh"), &script);
    sandbox.bub(["plugin", "add", name, "--yes"]).ok();
}

/// A process that dies before the agent starts leaves the message on the tape, and nothing else.
#[test]
fn a_turn_that_was_killed_before_the_model_stage_is_listed() {
    let session = RecordedSession::new();
    let started = session.sandbox.workspace().join("started");
    let action = format!("touch '{}'; sleep 600", started.display());
    for hook in ["system_prompt", "load_state"] {
        add_hook_plugin(&session, &hook.replace('_', "-"), hook, &action);
        for id in ["notes", "other"] {
            let _ = fs::remove_file(&started);
            let mut run = session.command(&["run", "--session-id", id, "Are you there?"]);
            let mut child = run.spawn().unwrap();
            wait_until("the hook runs", || started.exists());
            signal(&child, "KILL");
            child.wait().unwrap();
        }
        session
            .sandbox
            .bub(["plugin", "disable", &hook.replace('_', "-")])
            .ok();
    }
    session.model.script(Reply::text("Yes."));
    let mut next = session.command(&["run", "--session-id", "notes", "And now?"]);
    Run::from_output(next.output().unwrap()).ok();
    let report = session.replay(&[]).ok();
    for number in [2, 3] {
        let expected = format!(
            "turn {number}: Are you there?\n  interrupted: its process ended before the model stage; not replayed\n"
        );
        assert!(report.contains(&expected), "{report}");
    }
    assert!(
        report.contains("turn 4: And now?\n  step 1: same"),
        "{report}"
    );
    assert!(report.ends_with("no difference\n"), "{report}");
    // A session in which nothing else happened.
    let only = session.command(&["replay", "other"]).output().unwrap();
    let only = Run::from_output(only);
    assert_eq!(only.code, Some(2), "{only:?}");
    let expected = "has no turn of the agent; turn 1: its process ended before the model stage";
    assert!(only.stderr.contains(expected), "{only:?}");
}

/// Its process is alive and will go on.
#[test]
fn a_running_turn_is_compared_up_to_where_it_is() {
    let session = RecordedSession::new();
    session
        .model
        .script(Reply::deltas(["Once upon ", "a time"]).hang_after(2));
    let mut run = session.command(&["run", "--session-id", "notes", "Tell a story."]);
    let mut child = run.spawn().unwrap();
    wait_until("the answer has begun", || {
        drafts(&session.sandbox).contains("Once upon ")
    });
    let report = session.replay(&[]);
    let json = session.replay(&["--format", "json"]);
    signal(&child, "KILL");
    child.wait().unwrap();
    let report = report.ok();
    let expected = "  it is still running, in the model call of step 1; compared up to there\n";
    assert!(report.contains(expected), "{report}");
    assert!(!report.contains("interrupted"), "{report}");
    assert!(report.ends_with("no difference\n"), "{report}");
    let json: Value = serde_json::from_str(&json.ok()).unwrap();
    assert_eq!(json["turns"][1]["is_running"], true);
    let killed = session.replay(&[]).ok();
    assert!(
        killed.contains("interrupted: its process ended in the model call of step 1"),
        "{killed}"
    );
}

/// The agent does not see such a turn, and its answer is part of later requests.
#[test]
fn a_turn_that_a_plugin_answered_is_copied() {
    let session = RecordedSession::new();
    let action = r#"result='{"value":"I am a plugin."}'"#;
    add_hook_plugin(&session, "answerer", "run_model", action);
    let run = |text: &str| {
        let mut run = session.command(&["run", "--session-id", "notes", text]);
        Run::from_output(run.output().unwrap()).ok()
    };
    assert!(run("Who are you?").contains("I am a plugin."));
    session.sandbox.bub(["plugin", "disable", "answerer"]).ok();
    session.model.script(Reply::text("I am a model."));
    assert!(run("And now?").contains("I am a model."));
    let report = session.replay(&[]).ok();
    let expected = "turn 2: Who are you?\n  answered by a plugin, not replayed\nturn 3: And now?\n  step 1: same";
    assert!(report.contains(expected), "{report}");
    assert!(report.ends_with("no difference\n"), "{report}");
    let json = session.replay(&["--format", "json"]).ok();
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["turns"][1]["not_replayed"], "answered by a plugin");
    assert_eq!(json["turns"][2]["not_replayed"], Value::Null);
    let html = session.replay(&["--format", "html"]).ok();
    assert!(
        html.contains("<p>Answered by a plugin, not replayed.</p>"),
        "{html}"
    );
}

/// A tape can have control sequences, which must not reach a terminal that shows the page.
#[test]
fn a_page_has_no_control_characters() {
    let session = RecordedSession::new();
    session
        .model
        .script(Reply::text("red \u{1b}[31malert\u{7}"));
    let mut run = session.command(&["run", "--session-id", "notes", "Be loud."]);
    Run::from_output(run.output().unwrap()).ok();
    let html = session.replay(&["--format", "html"]).ok();
    assert!(html.contains("alert"), "{html}");
    assert!(!html.contains(['\u{1b}', '\u{7}']), "{html}");
}

/// A reset by another model removes the earlier turns from the copy of the tape, but not from the report.
#[test]
fn a_reset_by_another_model_is_compared_with_the_right_turns() {
    let session = RecordedSession::new();
    for (message, answer) in [("And now?", "Fine."), ("Bye.", "Bye.")] {
        session.model.script(Reply::text(answer));
        let mut run = session.command(&["run", "--session-id", "notes", message]);
        Run::from_output(run.output().unwrap()).ok();
    }
    let tape = session.sandbox.only_tape();
    session
        .model
        .script(Reply::text("One."))
        .script(Reply::new().call("call_9", "tape_reset", "{}"))
        .script(Reply::text("Cleared."))
        .script(Reply::text("Three."));
    let run = session.replay(&["--model", "openai:other", "--format", "json"]);
    assert_eq!(run.code, Some(1), "{run:?}");
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    let turns = report["turns"].as_array().unwrap();
    assert_eq!(turns.len(), 3, "{report}");
    let replayed = |turn: usize, step: usize| &turns[turn]["steps"][step]["replayed"];
    assert_eq!(replayed(0, 0)["text"], "One.", "{report}");
    let call = &replayed(1, 0)["tool_calls"][0];
    assert_eq!(call["name"], "tape_reset", "{report}");
    let result = "the tape will be reset at the end of this step";
    assert_eq!(call["result"], result, "{report}");
    assert_eq!(replayed(1, 1)["text"], "Cleared.", "{report}");
    assert_eq!(replayed(1, 1)["tool_calls"], json!([]), "{report}");
    assert_eq!(replayed(2, 0)["text"], "Three.", "{report}");
    // The next request shows the effect of the reset.
    let request = turns[2]["steps"][0]["differences"][0].as_str().unwrap();
    assert!(request.starts_with("request: "), "{report}");
    assert_eq!(session.sandbox.only_tape(), tape);
}

/// A reset leaves only a part of its turn on the tape.
#[test]
fn a_turn_in_which_the_tape_was_reset_is_named() {
    let session = RecordedSession::new();
    session
        .model
        .script(Reply::new().call("call_9", "tape_reset", "{}"))
        .script(Reply::text("Cleared."))
        .script(Reply::text("Fine."));
    for message in ["Clear it.", "And now?"] {
        let mut run = session.command(&["run", "--session-id", "notes", message]);
        Run::from_output(run.output().unwrap()).ok();
    }
    let report = session.replay(&[]).ok();
    let reason = "the tape was reset in this turn, so the start of the turn is missing";
    assert!(
        report.contains(&format!("{reason}, not replayed\n")),
        "{report}"
    );
    assert!(!report.contains("plugin"), "{report}");
    assert!(report.ends_with("no difference\n"), "{report}");
    let record = ["eval", "record", "notes", "--output", "case"];
    let recorded = Run::from_output(session.command(&record).output().unwrap());
    assert!(
        recorded
            .stderr
            .contains(&format!("skipped turn 1: {reason}; ")),
        "{recorded:?}"
    );
    let case = fs::read_to_string(session.sandbox.workspace().join("case/case.yml")).unwrap();
    let case: Value = serde_json::from_str(&case).unwrap();
    assert_eq!(case["messages"], json!(["And now?"]));
}

#[test]
fn an_interrupted_replay_leaves_no_report() {
    let session = RecordedSession::new();
    session
        .model
        .script(Reply::deltas(["Once upon"]).hang_after(1));
    let requests = session.model.requests().len();
    let args = [
        "replay",
        "notes",
        "--model",
        "openai:other",
        "--output",
        "report.txt",
    ];
    let mut child = session.command(&args).spawn().unwrap();
    wait_until("the model is asked", || {
        session.model.requests().len() > requests
    });
    let report = session.sandbox.workspace().join("report.txt");
    assert!(report.exists());
    signal(&child, "INT");
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!report.exists());
}

/// A tape that does not exist is an error in the configuration, wherever the model is named.
#[test]
fn an_unknown_tape_as_a_model_is_a_configuration_error() {
    let session = RecordedSession::new();
    fs::write(session.sandbox.workspace().join("bad.jsonl"), "no entry\n").unwrap();
    for (model, text) in [
        ("replay:nosuch", "unknown tape `nosuch`: "),
        ("replay:nosuch.jsonl", "unknown tape `nosuch.jsonl`: "),
        (
            "replay:bad.jsonl",
            "bad.jsonl: line 1 is not an entry of a tape",
        ),
    ] {
        for args in [
            &["run", "Hi."][..],
            &["run", "Hi.", "--output", "json"],
            &["replay", "notes"],
        ] {
            let mut command = session.command(args);
            if args[0] == "replay" {
                command.args(["--model", model]);
            }
            let run = Run::from_output(command.env("BUB_MODEL", model).output().unwrap());
            assert_eq!(run.code, Some(2), "{args:?}: {run:?}");
            let output = format!("{}{}", run.stdout, run.stderr);
            assert!(output.contains(text), "{args:?}: {run:?}");
        }
    }
}

/// What the user showed to the model is part of later requests, also in a replay and in a case.
#[test]
fn a_command_that_is_shown_to_the_model_is_copied() {
    let session = RecordedSession::new();
    let bub = |args: &[&str]| Run::from_output(session.command(args).output().unwrap());
    bub(&["run", "--session-id", "notes", ",!echo shown-to-the-model"]).ok();
    session.model.script(Reply::text("I saw it."));
    bub(&["run", "--session-id", "notes", "What did I run?"]).ok();
    let request = session.model.requests().last().unwrap().json().to_string();
    assert!(request.contains("[I ran the command"), "{request}");
    let report = session.replay(&[]).ok();
    assert!(!report.contains("interrupted"), "{report}");
    assert!(report.contains("turn 2: What did I run?"), "{report}");
    assert!(report.ends_with("no difference\n"), "{report}");
    let recorded = bub(&["eval", "record", "notes", "--output", "case"]);
    assert_eq!(recorded.code, Some(0), "{recorded:?}");
    assert!(!recorded.stderr.contains("skipped"), "{recorded:?}");
    let read = |name: &str| fs::read_to_string(session.sandbox.workspace().join(name)).unwrap();
    let case: Value = serde_json::from_str(&read("case/case.yml")).unwrap();
    assert_eq!(
        case["messages"],
        json!(["Write a note.", "What did I run?"])
    );
    assert!(read("case/tape.jsonl").contains("[I ran the command `"));
}

#[test]
fn a_replay_without_the_recorded_media_is_not_compared() {
    let session = RecordedSession::new();
    let image = session.sandbox.workspace().join("dot.png");
    fs::write(&image, bub_testkit::TINY_PNG).unwrap();
    session.model.script(Reply::text("A dot."));
    let args = [
        "run",
        "--session-id",
        "notes",
        "--image",
        "dot.png",
        "What is it?",
    ];
    Run::from_output(session.command(&args).output().unwrap()).ok();
    assert!(session.replay(&[]).ok().ends_with("no difference\n"));
    let blobs = session.sandbox.home().join("tapes/.bub/blobs");
    let away = session.sandbox.home().join("away");
    fs::rename(&blobs, &away).unwrap();
    let run = session.replay(&[]);
    assert_eq!(run.code, Some(1), "{run:?}");
    let expected = "not compared: recorded media are missing or damaged\n";
    assert!(run.stdout.ends_with(expected), "{run:?}");
    assert!(run.stdout.contains("error: media of entry "), "{run:?}");
    let run = session.replay(&["--format", "json"]);
    assert_eq!(run.code, Some(1), "{run:?}");
    assert!(run.stderr.contains("media of entry "), "{run:?}");
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(report["incomplete_messages"].as_array().unwrap().len(), 1);
    fs::rename(&away, &blobs).unwrap();
    assert!(session.replay(&[]).ok().ends_with("no difference\n"));
    let mut directories = vec![blobs];
    while let Some(directory) = directories.pop() {
        for file in fs::read_dir(directory).unwrap() {
            let path = file.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else {
                fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
                fs::write(path, "damaged").unwrap();
            }
        }
    }
    let run = session.replay(&[]);
    assert_eq!(run.code, Some(1), "{run:?}");
    assert!(run.stdout.ends_with(expected), "{run:?}");
}

#[test]
fn a_failure_that_was_recorded_is_not_logged_as_an_error() {
    let session = RecordedSession::new();
    session.model.script(Reply::status(400));
    let args = ["run", "--session-id", "notes", "Fail, please."];
    let run = Run::from_output(session.command(&args).output().unwrap());
    assert_eq!(run.code, Some(1), "{run:?}");
    let run = session.replay(&[]);
    assert!(run.stdout.ends_with("no difference\n"), "{run:?}");
    assert!(!run.stderr.contains("turn.failed"), "{run:?}");
}
