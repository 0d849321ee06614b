//! Tests how listings look on terminals of several widths, without color, on a dumb terminal and in a pipe.

use std::{os::unix::fs::PermissionsExt, path::Path};

use bub_tape::{Entry, TapeName, codec};
use bub_testkit::{
    model::{ModelServer, Pace, Reply},
    pty::{Pty, SESSION_LEADER},
};
use serde_json::{Value, json};

use crate::{
    plugin::write_loud_plugin,
    sandbox::{Run, Sandbox, bub},
};

const DATE: &str = "2026-01-02T03:04:05Z";
const SESSION: &str = "cli:a-session-with-a-long-name";

/// Returns a home with settings and a session.
fn fixture() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.write(
        "home/config.yml",
        "model: lab:small\nmax_steps: 7\nfallback_models: [lab:other]\nproviders:\n  lab: {base_url: 'http://127.0.0.1:1/v1', prices: {input: 1, output: 2}}\npolicy:\n  rules: [{tools: [bash], action: ask, reason: 'commands can change files outside of the workspace'}]\n",
    );
    for path in ["", "config.yml"] {
        let mode = if path.is_empty() { 0o700 } else { 0o600 };
        std::fs::set_permissions(sandbox.home().join(path), PermissionsExt::from_mode(mode))
            .unwrap();
    }
    let meta = json!({"session_id": SESSION, "workspace": "/srv/a/workspace", "channel": "cli"});
    let call = json!({"id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{\"command\": \"ls -l\"}"}});
    let prompt = "sender_id=human|channel=$cli|chat_id=local\n---Date: 2026-01-02T03:04:05+00:00---\nWhich files are in this directory, and which of them are large?";
    let usage = json!({"status": "ok", "model": "lab:small", "usage": {"prompt_tokens": 184_203, "completion_tokens": 9120}});
    let output: Vec<String> = (1..=20)
        .map(|number| format!("file-{number}.txt"))
        .collect();
    let mut first = Entry::anchor("session/start", Some(json!({"owner": "human"})));
    first.meta.clone_from(meta.as_object().unwrap());
    let entries = [
        first,
        Entry::message("user", prompt),
        Entry::tool_call(vec![call]),
        Entry::tool_result(vec![output.join("\n").into()]),
        Entry::message(
            "assistant",
            "There are **20** files. None of them is large.",
        ),
        Entry::event("run", Some(usage)),
        Entry::anchor(
            "phase/two",
            Some(json!({"summary": "The files were listed."})),
        ),
        Entry::event(
            "command",
            Some(json!({"raw": "tape.info", "output": "entries: 7"})),
        ),
    ];
    let name = TapeName::for_session(&sandbox.workspace().to_string_lossy(), SESSION);
    let lines = entries.into_iter().enumerate().map(|(index, entry)| {
        let mut entry = entry.with_date(DATE);
        entry.id = bub_tape::EntryId::new(i64::try_from(index).unwrap() + 1);
        codec::encode(&entry)
    });
    let file = format!("home/tapes/{}.jsonl", name.as_str());
    sandbox.write(&file, &lines.collect::<String>());
    sandbox
}

/// Runs a command on a terminal of this width.
fn on_terminal(sandbox: &Sandbox, args: &str, width: u16, variables: &[(&str, &str)]) -> String {
    let mut command = sandbox.command(Path::new(SESSION_LEADER[0]));
    command
        .args(&SESSION_LEADER[1..])
        .arg(bub())
        .args(args.split(' '))
        .env("TERM", "xterm")
        .env("PAGER", "cat")
        .env("TZ", "UTC")
        .envs(variables.iter().copied());
    Pty::spawn_sized(command, 60, width).finish().1
}

/// Returns the rows of the screen after the output.
fn screen(sandbox: &Sandbox, shown: &str, width: u16) -> String {
    let mut parser = vt100::Parser::new(100, width, 0);
    parser.process(shown.as_bytes());
    let rows = parser.screen().rows(0, width);
    let rows: Vec<_> = rows.map(|row| row.trim_end().to_owned()).collect();
    let root = sandbox.home().parent().unwrap().display().to_string();
    rows.join("\n").trim_end().replace(&root, "~")
}

const COMMANDS: [&str; 9] = [
    "config list --changed",
    "models",
    "usage",
    "usage --by session",
    "tape list",
    "tape show cli:a",
    "tape anchors cli:a",
    "policy list",
    "status",
];

#[test]
fn listings_fit_into_the_terminal() {
    // Sandboxes have paths of the same length.
    let sandbox = fixture();
    for width in [40, 80, 200] {
        let mut shown = String::new();
        for command in COMMANDS {
            let output = on_terminal(&sandbox, command, width, &[]);
            let rows = screen(&sandbox, &output, width);
            shown.extend(["$ bub ", command, "\n", &rows, "\n\n"]);
        }
        insta::assert_snapshot!(format!("listings_at_{width}_columns"), shown);
    }
}

#[test]
fn colors_are_only_on_terminals_that_have_them() {
    let sandbox = fixture();
    for command in COMMANDS {
        let colored = on_terminal(&sandbox, command, 80, &[]);
        let plain = on_terminal(&sandbox, command, 80, &[("NO_COLOR", "1")]);
        let dumb = on_terminal(&sandbox, command, 80, &[("TERM", "dumb")]);
        assert!(!plain.contains('\x1b'), "{command}: {plain:?}");
        assert_eq!(plain, dumb, "{command}");
        assert_eq!(
            screen(&sandbox, &colored, 80),
            screen(&sandbox, &plain, 80),
            "{command}"
        );
        let has_color = colored.contains("\x1b[");
        let is_plain = ["status", "policy list"].contains(&command);
        assert!(has_color || is_plain, "{command}: {colored:?}");
    }
}

// A program that reads the rows gets one line per row, without colors.
#[test]
fn in_a_pipe_a_row_is_one_line() {
    let sandbox = fixture();
    let rows = sandbox.bub(["config", "list", "--changed"]).ok();
    assert!(
        rows.lines().all(|row| row.split("  ").count() >= 3),
        "{rows}"
    );
    assert!(!rows.contains('\x1b'));
    let list = sandbox.bub(["tape", "list"]).ok();
    assert_eq!(list.lines().count(), 2, "{list}");
}

#[test]
fn doctor_is_readable_on_a_narrow_terminal() {
    let sandbox = fixture();
    let shown = on_terminal(&sandbox, "doctor --offline", 40, &[]);
    let rows = screen(&sandbox, &shown, 40);
    // Words are not split.
    for words in ["fix:", "unavailable", "workspace", "warning"] {
        assert!(rows.contains(words) || rows.contains("ok"), "{rows}");
    }
    assert!(rows.lines().all(|row| row.chars().count() <= 40), "{rows}");
    assert!(shown.contains("\x1b[32mok\x1b[0m"), "{shown:?}");
}

// `--raw` shows every entry with its id, as before.
#[test]
fn a_tape_is_shown_as_a_conversation_or_as_entries() {
    let sandbox = fixture();
    let shown = sandbox.bub(["tape", "show", SESSION]).ok();
    assert!(
        !shown.contains("event") && !shown.contains("---Date"),
        "{shown}"
    );
    assert!(shown.contains("… 8 lines more; see `--raw`"), "{shown}");
    let raw = sandbox.bub(["tape", "show", SESSION, "--raw"]).ok();
    for part in ["#1 anchor session/start", "#6 event run", "file-20.txt"] {
        assert!(raw.contains(part), "{raw}");
    }
    let last = sandbox.bub(["tape", "show", SESSION, "--last", "1"]).ok();
    assert_eq!(
        last,
        "command ,tape.info  2026-01-02 03:04:05\n  entries: 7\n\n"
    );
    let export = sandbox
        .bub(["tape", "export", SESSION, "--format", "markdown"])
        .ok();
    assert!(
        export.contains("### User (2026-01-02 03:04:05)\n\nWhich files"),
        "{export}"
    );
    assert!(export.contains("file-20.txt\n```\n"), "{export}");
    assert!(!export.contains("run ("), "{export}");
}

// Work over a second has a bar on the terminal, which disappears.
#[test]
fn a_long_check_has_a_progress_bar() {
    let (sandbox, model, pace) = (Sandbox::new(), ModelServer::start(), Pace::stopped());
    model.otherwise(Reply::text("ok").paced(&pace));
    let base = format!("{}/v1", model.url());
    let run = |term: &str| {
        let mut command = sandbox.command(Path::new(SESSION_LEADER[0]));
        command
            .args(&SESSION_LEADER[1..])
            .arg(bub())
            .arg("doctor")
            .envs([("BUB_MODEL", "openai:small"), ("BUB_API_BASE", &base)])
            .envs([("BUB_API_KEY", "a-key"), ("TERM", term)]);
        Pty::spawn_sized(command, 60, 120)
    };
    let mut user = run("xterm");
    user.expect("checking [##################..] 10 of 11: ");
    pace.release();
    let (code, shown) = user.finish();
    assert_eq!(code, Some(0), "{shown}");
    let rows = screen(&sandbox, &shown, 120);
    assert!(
        rows.starts_with("home") && !rows.contains("checking ["),
        "{rows}"
    );
}

/// Commands with `--json`, and the page that documents their fields.
const PAGE: &str = include_str!("../../../../docs/json-output.md");

/// Returns the documented fields of a command: rows of the table below its heading.
fn documented(command: &str) -> Vec<String> {
    documented_rows(&format!("{command} --json"))
}

/// Returns the first words of the rows of the table below a heading.
fn documented_rows(command: &str) -> Vec<String> {
    let heading = format!("\n## `bub {command}`\n");
    let start = PAGE
        .find(&heading)
        .unwrap_or_else(|| panic!("no heading for {command}"));
    let section = &PAGE[start + heading.len()..];
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let mut fields: Vec<_> = rows
        .map(|row| row.split('`').next().unwrap().to_owned())
        .collect();
    fields.sort();
    fields
}

// The fields of each line or object are exactly those that the page documents.
#[test]
fn json_has_the_documented_fields() {
    let sandbox = fixture();
    sandbox.write("workspace/AGENTS.md", "Be kind.");
    sandbox.bub(["trust"]).ok();
    let pairings = json!({
        "people": [{"channel": "telegram", "id": "1", "name": "ada", "owner": true, "since": 0}],
        "requests": [],
    });
    sandbox.write("home/pairings.json", &pairings.to_string());
    write_loud_plugin(&sandbox, "");
    let add = ["plugin", "add", "loud", "--yes", "--unpinned"];
    sandbox.bub(add).ok();
    // Otherwise it answers instead of a model, and `debug request` has none to show.
    sandbox.bub(["plugin", "disable", "loud"]).ok();
    // The fields of `bub eval` belong to the tests of its plugin.
    let mut documented_commands = vec!["eval".to_owned()];
    for command in [
        "config list",
        "config get model",
        "debug request",
        "doctor --offline",
        "hooks",
        "migrate",
        "models",
        "outbox list",
        "pair list",
        "plugin list",
        "plugin show loud",
        "policy list",
        "skill list",
        "status",
        "tape list",
        "tape show cli:a",
        "tape anchors cli:a",
        "tape info cli:a",
        "tape search files",
        "trust list",
        "usage",
    ] {
        let args = command.split(' ').chain(["--json"]);
        let output = sandbox.command(&bub()).args(args).output().unwrap();
        let run = Run::from_output(output);
        let mut values = serde_json::Deserializer::from_str(&run.stdout).into_iter::<Value>();
        let first = values
            .next()
            .unwrap_or_else(|| panic!("{command}: {run:?}"))
            .unwrap();
        let first = first
            .as_array()
            .map_or(first.clone(), |list| list[0].clone());
        let mut fields: Vec<_> = first.as_object().unwrap().keys().cloned().collect();
        fields.sort();
        let words: Vec<_> = command.split(' ').collect();
        let is_name = |word: &&&str| {
            !word.contains([':', '-']) && !["model", "files", "loud"].contains(*word)
        };
        let name: Vec<_> = words.iter().filter(is_name).copied().collect();
        assert_eq!(fields, documented(&name.join(" ")), "{command}");
        assert!(values.all(|value| value.is_ok()), "{command}: {run:?}");
        documented_commands.push(name.join(" "));
    }
    let mut with_json: Vec<_> = commands(&sandbox, &[])
        .into_iter()
        .filter(|(_, help)| help.contains("--json"))
        .map(|(name, _)| name)
        .collect();
    with_json.sort();
    documented_commands.sort();
    assert_eq!(with_json, documented_commands);
    assert!(!documented("eval").is_empty());
}

// The result and the events of a run are those that the page documents.
#[test]
fn the_output_of_a_run_has_the_documented_fields() {
    let (sandbox, model) = (Sandbox::new(), ModelServer::start());
    model.script(Reply::text("looking").call("c1", "bash", r#"{"command": "echo hi"}"#));
    model.otherwise(Reply::text("fine"));
    let mut command = sandbox.command(&bub());
    command
        .args(["run", "hi", "--output", "stream-json"])
        .envs([("BUB_MODEL", "openai:small"), ("BUB_API_KEY", "a-key")])
        .env("BUB_API_BASE", format!("{}/v1", model.url()));
    let lines = Run::from_output(command.output().unwrap()).ok();
    let lines = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    let lines: Vec<Value> = lines.collect();
    let kinds = documented_rows("run --output stream-json");
    let start = PAGE.find("## `bub run --output stream-json`").unwrap();
    for line in &lines {
        let kind = line["kind"].as_str().unwrap();
        assert!(kinds.contains(&kind.to_owned()), "{line}");
        let row = PAGE[start..]
            .lines()
            .find(|row| row.starts_with(&format!("| `{kind}`")));
        let is_open = matches!(kind, "usage" | "result");
        for field in line["data"]
            .as_object()
            .unwrap()
            .keys()
            .filter(|_| !is_open)
        {
            assert!(row.unwrap().contains(&format!("`{field}`")), "{line}");
        }
    }
    for kind in ["text", "tool_call", "tool_result", "final"] {
        assert!(lines.iter().any(|line| line["kind"] == kind), "{kind}");
    }
    let result = &lines.last().unwrap()["data"];
    let mut fields: Vec<_> = result.as_object().unwrap().keys().cloned().collect();
    fields.sort();
    assert_eq!(fields, documented_rows("run --output json"));
}

/// Returns all commands below `path` with their help.
fn commands(sandbox: &Sandbox, path: &[&str]) -> Vec<(String, String)> {
    let help = sandbox.bub(path.iter().chain(&["--help"])).ok();
    let mut found = vec![(path.join(" "), help.clone())];
    let (_, listed) = help.split_once("\nCommands:\n").unwrap_or_default();
    let rows = listed.lines().take_while(|row| !row.is_empty());
    for row in rows.filter(|row| !row.starts_with("   ")) {
        let name = row.split_whitespace().next().unwrap().trim_end_matches(',');
        if name != "help" {
            found.extend(commands(sandbox, &[path, &[name]].concat()));
        }
    }
    found
}

#[test]
fn every_command_that_lists_has_json() {
    let sandbox = Sandbox::new();
    let all = commands(&sandbox, &[]);
    let is_listing = |(_, help): &&(String, String)| {
        // A group is described by its commands.
        let is_group = help.contains("\nCommands:\n");
        !is_group
            && ["List ", "Show ", "Search "]
                .iter()
                .any(|verb| help.starts_with(verb))
    };
    let without: Vec<_> = all
        .iter()
        .filter(is_listing)
        .filter(|(_, help)| !help.contains("--json"))
        .map(|(name, _)| name.as_str())
        .collect();
    // They list nothing: one decision, and a tour.
    assert_eq!(without, ["policy explain", "demo"]);
    assert!(all.iter().filter(is_listing).count() > 15);
}
