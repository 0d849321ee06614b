//! Tests that a home and the variables of the Python version 0.5.1 work without changes (L6), and `bub migrate`.

use std::{
    collections::BTreeMap,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use bub_tape::TapeName;
use bub_testkit::{
    gateway::GatewayProcess,
    model::{ModelServer, Reply},
    pty::{Pty, SESSION_LEADER},
    telegram::{BotServer, TOKEN},
};
use serde_json::{Value, json};

use crate::sandbox::{Run, Sandbox, bub, root, wait_until};

/// A user of the bot.
const USER: i64 = 42;

/// The configuration of P-131: every key of the Python version. `@MODEL@` is the address of a model server.
const EVERY_KEY: &str = r#"model: lab:alpha            # prefix = a key of providers, or a provider name
fallback_models: [openrouter:openrouter/free]
command_prefix: ","
api_key: {openai: k1}       # or one text for all
api_base: {openai: "http://host/v1"}
providers:
  lab: {type: openai, api_base: "@MODEL@/v1", api_key: k2}
max_steps: 50
max_tokens: 16384
model_timeout_seconds: 60
client_args: {}
completion_args: {}
verbose: 0
enabled_channels: telegram,!cli
debounce_seconds: 1.0
max_wait_seconds: 10.0
active_time_window: 60.0
stream_output: false
telegram: {token: "", allow_users: "1,ada", allow_chats: null, proxy: null}
spill: {threshold: 4096}
mcp: {deferred_tools: true} # sections of plugins by their name
"#;

/// Returns the program with a model.
fn with_model(sandbox: &Sandbox, model: &ModelServer, args: &[&str]) -> Command {
    let mut command = sandbox.command(&bub());
    command
        .args(args)
        .env("BUB_MODEL", "openai:small")
        .env("BUB_API_BASE", format!("{}/v1", model.url()))
        .env("BUB_API_KEY", "a-key-of-the-test");
    command
}

fn output(mut command: Command) -> Run {
    Run::from_output(command.output().unwrap())
}

/// Returns the value of a setting with these variables.
fn setting(sandbox: &Sandbox, key: &str, variables: &[(&str, &str)]) -> Value {
    let mut command = sandbox.command(&bub());
    command.args(["config", "get", key, "--json"]);
    command.envs(variables.iter().copied());
    let value: Value = serde_json::from_str(&output(command).ok()).unwrap();
    value["value"].clone()
}

// P-131, P-12, P-11, P-37: a configuration with every key of the Python version starts without a warning and has its effect.
#[test]
fn every_key_of_a_configuration_is_read() {
    let (sandbox, model) = (Sandbox::new(), ModelServer::start());
    model.otherwise(Reply::text("hello"));
    let config = EVERY_KEY.replace("@MODEL@", &model.url());
    sandbox.write("home/config.yml", &config);
    let run = sandbox.bub(["run", "hi"]);
    assert_eq!(run.stderr, "");
    assert_eq!(run.ok(), "hello\n");
    let request = &model.requests()[0];
    assert_eq!(request.json()["model"], "alpha");
    assert!(!request.json().to_string().contains("<available_tools>"));
    assert_eq!(request.json()["max_completion_tokens"], 16384);
    assert_eq!(request.header("authorization"), Some("Bearer k2"));
    for (key, value) in [
        ("model", json!("lab:alpha")),
        ("fallback_models", json!(["openrouter:openrouter/free"])),
        ("command_prefix", json!(",")),
        ("api_base.openai", json!("http://host/v1")),
        ("max_steps", json!(50)),
        ("model_timeout_seconds", json!(60.0)),
        ("verbose", json!(0)),
        ("enabled_channels", json!(["telegram", "!cli"])),
        ("active_time_window", json!(60.0)),
        ("stream_output", json!(false)),
        ("telegram.allow_users", json!(["1", "ada"])),
        ("telegram.allow_chats", json!(null)),
        ("telegram.proxy", json!(null)),
        ("spill.threshold", json!(4096)),
    ] {
        assert_eq!(setting(&sandbox, key, &[]), value, "{key}");
    }
    // The file is unchanged, and the Python version reads it.
    let file = fs::read_to_string(sandbox.home().join("config.yml")).unwrap();
    assert_eq!(file, config);
}

// P-16: each variable of the Python version sets its setting.
#[test]
#[expect(clippy::too_many_lines, reason = "one row per variable")]
fn every_variable_sets_its_setting() {
    let sandbox = Sandbox::new();
    let provider = json!({"lab": {"type": "openai", "api_base": "http://127.0.0.1:9/v1"}});
    for (variable, text, key, value) in [
        ("BUB_MODEL", "openai:a:b", "model", json!("openai:a:b")),
        ("BUB_COMMAND_PREFIX", "::", "command_prefix", json!("::")),
        (
            "BUB_FALLBACK_MODELS",
            r#"["openai:a", "openai:b"]"#,
            "fallback_models",
            json!(["openai:a", "openai:b"]),
        ),
        ("BUB_API_KEY", "secret-key", "api_key", json!("***")),
        (
            "BUB_API_KEY",
            r#"{"openai": "secret-key"}"#,
            "api_key.openai",
            json!("***"),
        ),
        ("BUB_LAB_API_KEY", "secret-key", "api_key.lab", json!("***")),
        (
            "BUB_API_BASE",
            "http://h/v1",
            "api_base",
            json!("http://h/v1"),
        ),
        (
            "BUB_API_BASE",
            r#"{"openai": "http://h/v1"}"#,
            "api_base.openai",
            json!("http://h/v1"),
        ),
        (
            "BUB_LAB_API_BASE",
            "http://h/v1",
            "api_base.lab",
            json!("http://h/v1"),
        ),
        (
            "BUB_PROVIDERS",
            &provider.to_string(),
            "providers",
            provider.clone(),
        ),
        ("BUB_MAX_STEPS", "7", "max_steps", json!(7)),
        ("BUB_MAX_TOKENS", "512", "max_tokens", json!(512)),
        (
            "BUB_MODEL_TIMEOUT_SECONDS",
            "2.5",
            "model_timeout_seconds",
            json!(2.5),
        ),
        (
            "BUB_CLIENT_ARGS",
            r#"{"a": 1}"#,
            "client_args",
            json!({"a": 1}),
        ),
        (
            "BUB_COMPLETION_ARGS",
            r#"{"temperature": 0}"#,
            "completion_args",
            json!({"temperature": 0}),
        ),
        ("BUB_VERBOSE", "2", "verbose", json!(2)),
        (
            "BUB_ENABLED_CHANNELS",
            "telegram,!cli",
            "enabled_channels",
            json!(["telegram", "!cli"]),
        ),
        (
            "BUB_DEBOUNCE_SECONDS",
            "0.5",
            "debounce_seconds",
            json!(0.5),
        ),
        ("BUB_MAX_WAIT_SECONDS", "5", "max_wait_seconds", json!(5.0)),
        (
            "BUB_ACTIVE_TIME_WINDOW",
            "30",
            "active_time_window",
            json!(30.0),
        ),
        ("BUB_STREAM_OUTPUT", "yes", "stream_output", json!(true)),
        ("BUB_TELEGRAM_TOKEN", TOKEN, "telegram.token", json!("***")),
        (
            "BUB_TELEGRAM_ALLOW_USERS",
            " 1 , @ada",
            "telegram.allow_users",
            json!(["1", "@ada"]),
        ),
        (
            "BUB_TELEGRAM_ALLOW_CHATS",
            "-100",
            "telegram.allow_chats",
            json!(["-100"]),
        ),
        (
            "BUB_TELEGRAM_PROXY",
            "socks5://127.0.0.1:1080",
            "telegram.proxy",
            json!("socks5://127.0.0.1:1080"),
        ),
        ("BUB_SPILL_THRESHOLD", "100", "spill.threshold", json!(100)),
        ("BUB_HOME", "/nonexistent", "home", json!("/nonexistent")),
        (
            "BUB_PROJECT",
            "/srv/project",
            "project",
            json!("/srv/project"),
        ),
        (
            "CODEX_HOME",
            "/srv/codex",
            "codex_home",
            json!("/srv/codex"),
        ),
    ] {
        assert_eq!(
            setting(&sandbox, key, &[(variable, text)]),
            value,
            "{variable}={text}"
        );
    }
}

// P-11, P-50: the prefix holds for commands, help, and the chat. With another prefix, a comma is text.
#[test]
fn another_prefix_replaces_the_comma() {
    for prefix in ["!", "::", "/", "ü"] {
        let (sandbox, model) = (Sandbox::new(), ModelServer::start());
        model.otherwise(Reply::text("an answer"));
        let run = |text: &str| {
            let mut command = with_model(&sandbox, &model, &["run", text]);
            command.env("BUB_COMMAND_PREFIX", prefix);
            output(command)
        };
        let help = run(&format!(" {prefix}help")).ok();
        assert!(help.contains(&format!("  {prefix}tape.info")), "{help}");
        assert!(!help.contains(",tape"), "{help}");
        assert!(run(&format!("{prefix} tape.info")).ok().contains("entries"));
        let mistyped = run(&format!("{prefix}hlep")).stderr;
        let hint = format!("did you mean `{prefix}help`?");
        assert!(mistyped.contains(&hint), "{mistyped}");
        assert_eq!(model.requests().len(), 0);
        assert_eq!(run(",tape.info").ok(), "an answer\n");
        assert!(
            model.requests()[0]
                .json()
                .to_string()
                .contains(",tape.info")
        );
        let mut chat = with_model(&sandbox, &model, &["chat"]);
        chat.env("BUB_COMMAND_PREFIX", prefix);
        let chat = chat.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut chat = chat.spawn().unwrap();
        let lines = format!("{prefix}tape.info\n{prefix}quit\nnot sent\n");
        let input = chat.stdin.take().unwrap().write_all(lines.as_bytes());
        let shown = Run::from_output(chat.wait_with_output().unwrap());
        input.unwrap();
        assert!(shown.ok().contains("entries"));
        assert_eq!(model.requests().len(), 1);
    }
    let sandbox = Sandbox::new();
    for prefix in ["'a b'", "[1]"] {
        sandbox.write("home/config.yml", &format!("command_prefix: {prefix}\n"));
        let refused = sandbox.bub(["run", "hi"]);
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.stderr.contains("command_prefix"), "{refused:?}");
    }
}

// P-11, P-120: the prefix holds for messages and buttons of the bot, too.
#[test]
fn another_prefix_holds_for_the_bot() {
    let (sandbox, server, model) = (Sandbox::new(), BotServer::start(), ModelServer::start());
    model.otherwise(Reply::text("an answer"));
    let mut command = telegram_command(&sandbox, &server, &model);
    command.env("BUB_COMMAND_PREFIX", "!");
    command.env("BUB_OWNERS", format!("telegram:{USER}"));
    let gateway = GatewayProcess::start(command);
    server.send_private(USER, "!tape.info");
    wait_until("the output", || {
        server
            .texts(USER)
            .iter()
            .any(|text| text.contains("entries"))
    });
    assert_eq!(model.requests().len(), 0);
    server.send_private(USER, ",tape.info");
    wait_until("the answer", || {
        server.texts(USER).iter().any(|text| text == "an answer")
    });
    gateway.stop();
}

fn telegram_command(sandbox: &Sandbox, server: &BotServer, model: &ModelServer) -> Command {
    let mut command = with_model(sandbox, model, &["gateway"]);
    command
        .env("BUB_TELEGRAM_TOKEN", TOKEN)
        .env("BUB_TELEGRAM_API_BASE", server.url())
        .env("BUB_DEBOUNCE_SECONDS", "0.02");
    command
}

// H-141: names that this program does not know do not prevent the others from running.
#[test]
fn the_channels_of_the_python_version_are_accepted() {
    let (sandbox, server, model) = (Sandbox::new(), BotServer::start(), ModelServer::start());
    let polls = || server.calls_to("getUpdates").len();
    for (channels, note) in [
        ("telegram,!cli", ""),
        ("telegram,cli", "run `bub chat` in another terminal"),
        ("telegram,feishu", "unknown channel `feishu`"),
    ] {
        let mut command = telegram_command(&sandbox, &server, &model);
        command.env("BUB_ENABLED_CHANNELS", channels);
        let before = polls();
        let gateway = GatewayProcess::start(command);
        wait_until("the bot", || polls() > before);
        let log = gateway.stop();
        assert!(log.contains(note), "{channels}: {log}");
    }
    for (channels, code) in [("cli", 1), ("nosuch", 2)] {
        let mut command = sandbox.command(&bub());
        command.args(["gateway", "--enable-channel", channels]);
        assert_eq!(output(command).code, Some(code), "{channels}");
    }
}

/// Returns the rows of `bub migrate` as `topic state: text`, and the commands.
fn migrate(sandbox: &Sandbox) -> (Vec<String>, Vec<Vec<String>>) {
    let report: Value = serde_json::from_str(&sandbox.bub(["migrate", "--json"]).ok()).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let text = |row: &Value| {
        let part = |name: &str| row[name].as_str().unwrap().to_owned();
        format!("{} {}: {}", part("topic"), part("state"), part("text"))
    };
    let commands = rows.iter().filter(|row| !row["command"].is_null());
    let commands = commands.map(|row| serde_json::from_value(row["command"].clone()).unwrap());
    let to_do = rows.iter().filter(|row| row["state"] == "to do").count();
    assert_eq!(report["steps"], to_do);
    (rows.iter().map(text).collect(), commands.collect())
}

/// Returns the content of every file below a directory.
fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else {
                all.insert(path.clone(), fs::read(path).unwrap());
            }
        }
    }
    all
}

/// Puts a home of the Python version into a sandbox: configuration, plugins, skills, the bot, and the tapes in a
/// directory. Returns the sessions.
fn python_home(
    sandbox: &Sandbox,
    model: &ModelServer,
    tapes: &Path,
    answers: &Path,
) -> Vec<String> {
    let config = EVERY_KEY.replace("@MODEL@", &model.url());
    let config = config.replace("http://host", &model.url());
    let config = config.replace(r#"token: """#, &format!("token: \"{TOKEN}\""));
    let config = config.replace(r#""1,ada""#, &format!("\"{USER}\""));
    sandbox.write("home/config.yml", &config);
    sandbox.write(
        "home/bub-project/pyproject.toml",
        "[project]\nname = \"bub-project\"\nversion = \"0.1.0\"\ndependencies = [\n    \"bub\",\n    \"bub-mcp==0.3.1\",\n]\n",
    );
    let skill = "---\nname: greet\ndescription: Greets users.\n---\nSay hello.\n";
    sandbox.write(".agents/skills/greet/SKILL.md", skill);
    sandbox.write(
        "workspace/.agents/skills/local/SKILL.md",
        &skill.replace("greet", "local"),
    );
    let answers: Value = serde_json::from_slice(&fs::read(answers).unwrap()).unwrap();
    let workspace = sandbox.workspace().canonicalize().unwrap();
    let mut sessions = Vec::new();
    fs::create_dir_all(sandbox.home().join("tapes")).unwrap();
    for (kind, answer) in answers["sessions"].as_object().unwrap() {
        let session = match kind.as_str() {
            "plain" => "cli_session".to_owned(),
            kind => format!("cli:{kind}"),
        };
        let name = TapeName::for_session(workspace.to_str().unwrap(), &session);
        let recorded = answer["tape"].as_str().unwrap();
        for file in fs::read_dir(tapes).unwrap() {
            let path = file.unwrap().path();
            let file_name = path.file_name().unwrap().to_str().unwrap();
            if let Some(rest) = file_name.strip_prefix(recorded) {
                let target = sandbox.home().join("tapes").join(format!("{name}{rest}"));
                fs::copy(&path, target).unwrap();
            }
        }
        sessions.push(session);
    }
    sessions
}

/// Checks that the Python version can read a tape (C.1, C.2), and that nothing before the new entries has changed.
fn check_format(before: &str, after: &str) {
    assert!(after.starts_with(before), "{after}");
    let mut last = 0;
    for line in after.lines() {
        let entry: Value = serde_json::from_str(line).unwrap();
        let keys: Vec<_> = entry.as_object().unwrap().keys().collect();
        assert_eq!(
            keys[..5],
            ["id", "kind", "payload", "meta", "date"],
            "{line}"
        );
        assert!(
            entry["payload"].is_object() && entry["meta"].is_object(),
            "{line}"
        );
        assert!(
            entry["date"].as_str().unwrap().ends_with("+00:00"),
            "{line}"
        );
        let id = entry["id"].as_u64().unwrap();
        assert!(id > last, "{line}");
        last = id;
    }
}

/// Appends a turn as the Python version writes it.
fn append_python_turn(tape: &Path, text: &str) {
    let content = fs::read_to_string(tape).unwrap();
    let last: Value = serde_json::from_str(content.lines().last().unwrap()).unwrap();
    let id = last["id"].as_u64().unwrap();
    let meta = r#"{"run_id": "run-20261118T120000000000Z"}"#;
    let date = "2026-11-18T12:00:00.000001+00:00";
    let lines = [
        (
            "user",
            format!("channel=$cli|chat_id=local\\n---Date: {date}---\\n{text}"),
        ),
        ("assistant", format!("back: {text}")),
    ];
    let lines = lines.into_iter().zip(id + 1..).map(|((role, text), id)| {
        format!(
            "{{\"id\": {id}, \"kind\": \"message\", \"payload\": {{\"role\": \"{role}\", \"content\": \"{text}\"}}, \"meta\": {meta}, \"date\": \"{date}\"}}\n"
        )
    });
    fs::write(tape, content + &lines.collect::<String>()).unwrap();
}

fn switch_three_times(tapes: &Path, answers: &Path) {
    let (sandbox, server, model) = (Sandbox::new(), BotServer::start(), ModelServer::start());
    model.otherwise(Reply::text("an answer"));
    let sessions = python_home(&sandbox, &model, tapes, answers);
    let before = files(&sandbox.home());
    let (rows, commands) = migrate(&sandbox);
    // The report changes nothing but the lock files of tapes.
    let unchanged = files(&sandbox.home());
    assert!(before.iter().all(|(path, bytes)| unchanged[path] == *bytes));
    for row in [
        "config used: ",
        "skills used: ",
        "workspace to do: ignored until you trust the workspace: ",
        &format!("tapes used: {} sessions; ", sessions.len()),
        "chat used: session `cli_session`: `bub chat` continues it",
        "channels differs: telegram: ",
        "channels to do: telegram: no user is an owner, ",
        "plugins to do: bub-mcp: ",
    ] {
        assert!(
            rows.iter().any(|text| text.starts_with(row)),
            "{row}: {rows:#?}"
        );
    }
    let owner = format!("telegram:{USER}");
    let steps = [
        vec!["install", "bub-mcp==0.3.1"],
        vec!["trust"],
        vec!["config", "set", "owners", &owner],
    ];
    assert_eq!(commands, steps);
    // The steps, without the one that needs the network.
    for step in &steps[1..] {
        sandbox.bub(step).ok();
    }
    assert_eq!(migrate(&sandbox).1, steps[..1]);
    let config = fs::read(sandbox.home().join("config.yml")).unwrap();
    let workspace = sandbox.workspace().canonicalize().unwrap();
    let tape = |session: &str| {
        let name = TapeName::for_session(workspace.to_str().unwrap(), session);
        sandbox.home().join("tapes").join(format!("{name}.jsonl"))
    };
    for round in 1..=3 {
        for session in &sessions {
            let before = fs::read_to_string(tape(session)).unwrap();
            let question = format!("round {round}");
            let run = sandbox.bub(["run", "--session-id", session, &question]);
            assert_eq!(run.ok(), "an answer\n", "{session}");
            let request = model.requests().last().unwrap().json().to_string();
            if round > 1 {
                let previous = format!("back: python {}", round - 1);
                assert!(request.contains(&previous), "{session}: {request}");
            }
            check_format(&before, &fs::read_to_string(tape(session)).unwrap());
            // The Python version continues.
            append_python_turn(&tape(session), &format!("python {round}"));
        }
        let mut command = sandbox.command(&bub());
        command
            .arg("gateway")
            .env("BUB_TELEGRAM_API_BASE", server.url())
            .env("BUB_DEBOUNCE_SECONDS", "0.02");
        let gateway = GatewayProcess::start(command);
        server.send_private(USER, &format!("hello {round}"));
        server.send_private(USER, ",tape.info");
        let texts = || server.texts(USER);
        wait_until("the replies", || texts().len() == 2 * round);
        assert!(texts().iter().any(|text| text.contains("entries")));
        gateway.stop();
        sandbox.bub(["tape", "check"]).ok();
        assert_eq!(migrate(&sandbox).1, steps[..1]);
    }
    assert_eq!(fs::read(sandbox.home().join("config.yml")).unwrap(), config);
}

// L6, C.1, C.2: a home of the Python version is switched over and back three times.
#[test]
fn a_home_is_switched_over_and_back_three_times() {
    let home = root().join("crates/bub-tape/tests/data/python-home");
    switch_three_times(&home.join("tapes"), &home.join("answers.json"));
}

#[bub_testkit::needs_fixtures]
#[test]
fn a_recorded_home_is_switched_over_and_back_three_times() {
    let tapes = bub_testkit::fixtures("tapes");
    switch_three_times(&tapes, &tapes.join("answers.json"));
}

/// Runs `bub migrate --apply` without a terminal.
fn apply_without_terminal(sandbox: &Sandbox, args: &[&str]) -> Run {
    let mut command = sandbox.command(Path::new("setsid"));
    command
        .arg("--wait")
        .arg(bub())
        .args(["migrate", "--apply"]);
    command.args(args);
    output(command)
}

fn apply_at_terminal(sandbox: &Sandbox) -> Pty {
    let mut command = sandbox.command(Path::new(SESSION_LEADER[0]));
    command.args(&SESSION_LEADER[1..]).arg(bub());
    command.args(["migrate", "--apply"]).env("TERM", "dumb");
    Pty::spawn(command)
}

/// Puts two steps into a sandbox: to trust a `.env`, and to make the only user of the bot an owner.
fn two_steps(sandbox: &Sandbox) {
    let config = format!("telegram:\n  token: \"{TOKEN}\"\n  allow_users: [\"{USER}\"]\n");
    sandbox.write("home/config.yml", &config);
    sandbox.write("workspace/.env", "BUB_MAX_STEPS=7\n");
    assert_eq!(migrate(sandbox).1.len(), 2);
}

fn is_trusted(sandbox: &Sandbox) -> bool {
    let listed = sandbox.bub(["trust", "list", "--json"]).ok();
    listed.contains("\"trusted\"")
}

// No step is done without a question or an explicit option, and trust has its own.
#[test]
fn without_a_terminal_steps_need_options_and_trust_its_own() {
    let sandbox = Sandbox::new();
    two_steps(&sandbox);
    let before = files(&sandbox.home());
    for (args, advice) in [
        (&[][..], "add `--yes`"),
        (&["--trust"], "add `--yes`"),
        (&["--yes"], "add `--trust`"),
    ] {
        let run = apply_without_terminal(&sandbox, args);
        assert_eq!(run.code, Some(2), "{run:?}");
        assert!(run.stderr.contains(advice), "{args:?}: {run:?}");
        assert!(!is_trusted(&sandbox), "{args:?}");
        let after = files(&sandbox.home());
        assert!(before.iter().all(|(path, bytes)| after[path] == *bytes));
    }
    let run = apply_without_terminal(&sandbox, &["--yes", "--trust"]);
    // What is trusted is shown.
    assert!(run.stderr.contains("BUB_MAX_STEPS"), "{run:?}");
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(is_trusted(&sandbox));
    assert_eq!(migrate(&sandbox).1, Vec::<Vec<String>>::new());
    for option in ["--yes", "--trust"] {
        assert_eq!(sandbox.bub(["migrate", option]).code, Some(2), "{option}");
    }
}

// Each step is shown and asked about, and a step that is declined does not prevent the others.
#[test]
fn at_a_terminal_each_step_is_asked_about() {
    let sandbox = Sandbox::new();
    two_steps(&sandbox);
    let mut user = apply_at_terminal(&sandbox);
    let question = user.expect("Trust these files? [y/N] ");
    assert!(
        question.contains("settings and keys: BUB_MAX_STEPS"),
        "{question}"
    );
    user.send("\r");
    let question = user.expect("Run this command? [y/N] ");
    assert!(question.contains("skipped"), "{question}");
    let command = format!("bub config set owners telegram:{USER}");
    assert!(question.contains(&command), "{question}");
    user.send("y\r");
    user.expect("1 step remains");
    assert_eq!(user.end(), Some(0));
    assert!(!is_trusted(&sandbox));
    assert_eq!(migrate(&sandbox).1, [["trust"]]);

    let mut user = apply_at_terminal(&sandbox);
    user.expect("Trust these files? [y/N] ");
    // What is trusted is what was shown.
    sandbox.write("workspace/.env", "BUB_MAX_STEPS=8\n");
    user.send("y\r");
    user.expect("trusted ");
    assert_eq!(user.end(), Some(0));
    assert_eq!(migrate(&sandbox).1, [["trust"]]);
    let mut user = apply_at_terminal(&sandbox);
    user.expect("Trust these files? [y/N] ");
    user.send("y\r");
    assert_eq!(user.end(), Some(0));
    assert!(migrate(&sandbox).1.is_empty());
}

#[test]
fn a_user_who_stops_is_told_which_steps_are_done() {
    let sandbox = Sandbox::new();
    two_steps(&sandbox);
    let mut user = apply_at_terminal(&sandbox);
    user.expect("Trust these files? [y/N] ");
    user.send("y\r");
    user.expect("Run this command? [y/N] ");
    user.send("\x03");
    user.expect("Stopped; 1 step is done, 1 to do; see `bub migrate`.");
    assert_eq!(user.end(), Some(130));
    assert!(is_trusted(&sandbox));
}

// The report has no step that cannot be done.
#[test]
fn the_chat_among_the_channels_is_no_step() {
    let sandbox = Sandbox::new();
    for (channels, telegram) in [("cli,telegram", true), ("cli", false)] {
        let config = format!(
            "enabled_channels: {channels}\ntelegram:\n  token: \"{TOKEN}\"\nowners: [\"telegram:{USER}\"]\n"
        );
        sandbox.write("home/config.yml", &config);
        let (rows, _) = migrate(&sandbox);
        let row = "channels differs: `cli` has no effect in `enabled_channels`";
        assert!(rows.iter().any(|text| text.starts_with(row)), "{rows:?}");
        let bot = rows.iter().any(|text| text.contains("telegram: 1 owner, "));
        assert_eq!(bot, telegram, "{rows:?}");
        let report = sandbox.bub(["migrate"]).ok();
        assert!(report.ends_with("nothing to do\n"), "{report}");
    }
    sandbox.write("home/config.yml", "enabled_channels: feishu\n");
    let report = sandbox.bub(["migrate"]).ok();
    assert!(report.ends_with("\n1 step\n"), "{report}");
}

// A command can be copied from the report into a shell.
#[test]
fn the_commands_of_the_report_are_quoted() {
    let sandbox = Sandbox::new();
    sandbox.write(
        "home/bub-project/pyproject.toml",
        "[project]\nname = \"bub-project\"\ndependencies = [\n    \"bub-mcp>=0.3\",\n    \"--yes\",\n]\n",
    );
    let report = sandbox.bub(["migrate"]).ok();
    assert!(
        report.contains("run: bub install 'bub-mcp>=0.3'\n"),
        "{report}"
    );
    assert!(!report.contains("--yes"), "{report}");
}

// What the report says about the home is true.
#[test]
fn the_report_says_if_the_home_cannot_be_used() {
    let sandbox = Sandbox::new();
    fs::create_dir_all(sandbox.home()).unwrap();
    sandbox.write("home/config.yml", "model: [a\n b: {\n");
    let (rows, commands) = migrate(&sandbox);
    assert!(commands.is_empty());
    let config: Vec<_> = rows
        .iter()
        .filter(|row| row.contains("config.yml"))
        .collect();
    assert!(
        matches!(&config[..], [row] if row.starts_with("config to do: ") && row.contains("not valid YAML")),
        "{rows:#?}"
    );
    // No command does it, so `--apply` is not offered.
    let report = sandbox.bub(["migrate"]).ok();
    assert!(report.ends_with("\n1 step\n"), "{report}");

    let run_at = |home: &Path| {
        let mut command = sandbox.command(&bub());
        command.arg("migrate").env("BUB_HOME", home);
        output(command)
    };
    let missing = sandbox.home().join("missing");
    let report = run_at(&missing).ok();
    let row = format!("home    to do    {}: does not exist; ", missing.display());
    assert!(report.contains(&row), "{report}");
    assert!(!missing.exists());
    let file = sandbox.home().join("config.yml");
    let run = run_at(&file);
    assert_eq!(run.code, Some(2), "{run:?}");
    let error = format!("home {} cannot be read: ", file.display());
    assert!(run.stderr.contains(&error), "{run:?}");

    // Only root can give a directory away; other users find one of root.
    let mut foreign = sandbox.home().join("foreign");
    fs::create_dir(&foreign).unwrap();
    if std::os::unix::fs::chown(&foreign, Some(65534), None).is_err() {
        foreign = PathBuf::from("/usr");
    }
    let report = run_at(&foreign).ok();
    assert!(report.contains("belongs to another user (id "), "{report}");
}

/// Returns the rows of `docs/differences.md`: topic, the Python version, this version, reason.
fn differences() -> Vec<[String; 4]> {
    let page = fs::read_to_string(root().join("docs/differences.md")).unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| "));
    let rows = rows.filter(|line| !line.starts_with("| Topic |"));
    let cells = |row: &str| {
        let row = row.replace("\\|", "\u{1}");
        let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        let cells: [&str; 4] = cells.try_into().unwrap_or_else(|_| panic!("{row}"));
        assert!(cells.iter().all(|cell| !cell.is_empty()), "{row}");
        cells.map(|cell| cell.replace('\u{1}', "|"))
    };
    rows.map(cells).collect()
}

/// Returns the texts in backticks.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

// Commands, options, settings, tools, hooks and variables that the page names for this version exist.
#[test]
fn the_page_of_differences_names_what_exists() {
    let sandbox = Sandbox::new();
    let listed = sandbox.bub(["config", "list", "--json"]).ok();
    let settings: Vec<Value> = listed
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let find = |key: &str| settings.iter().find(|setting| setting["key"] == key);
    let help = sandbox.bub(["run", ",help"]).ok();
    let hooks = sandbox.bub(["hooks", "--all"]).ok();
    let sections: Vec<&str> = settings
        .iter()
        .filter_map(|setting| {
            setting["key"]
                .as_str()?
                .split_once('.')
                .map(|(name, _)| name)
        })
        .collect();
    let mut count = 0;
    for [topic, _, here, _] in differences() {
        for text in code(&here) {
            let words: Vec<&str> = text.split_whitespace().collect();
            let is_name = |text: &str| {
                let is_part = |c: char| c.is_ascii_lowercase() || matches!(c, '_' | '.');
                text.chars().all(is_part)
            };
            let (key, value) = text.split_once(": ").unwrap_or((text, ""));
            if let ["bub", command, rest @ ..] = words.as_slice() {
                let group: Vec<&str> = rest.iter().copied().filter(|word| is_name(word)).collect();
                let args = [&[*command], group.as_slice(), &["--help"]].concat();
                let help = sandbox.bub(args).ok();
                for option in rest.iter().filter(|word| word.starts_with("--")) {
                    assert!(help.contains(option), "{topic}: {text}");
                }
            } else if let Some(name) = text.strip_prefix(',').filter(|name| *name != "name") {
                let name = name.split(' ').next().unwrap();
                assert!(help.contains(&format!("  ,{name}")), "{topic}: {text}");
            } else if text.starts_with("BUB_") {
                let is_variable = |setting: &Value| setting["variable"] == text;
                assert!(settings.iter().any(is_variable), "{topic}: {text}");
            } else if let Some((section, _)) = key
                .split_once('.')
                .filter(|(section, _)| !section.is_empty() && is_name(key))
            {
                let is_tool = help.contains(&format!("  ,{key}"));
                let is_event = ["loop", "turn", "command", "meta", "metadata"].contains(&section);
                if is_tool || is_event {
                    continue;
                }
                assert!(sections.contains(&section), "{topic}: {text}");
                let setting = find(key).unwrap_or_else(|| panic!("{topic}: {text}"));
                if !value.is_empty() {
                    let variable = setting["variable"].as_str().unwrap();
                    self::setting(&sandbox, key, &[(variable, value)]);
                }
            } else if ["provide_", "before_", "after_", "build_", "register_"]
                .iter()
                .any(|start| text.starts_with(start))
            {
                assert!(hooks.contains(text), "{topic}: {text}");
            } else {
                continue;
            }
            count += 1;
        }
    }
    assert!(count > 25, "only {count} claims found");
}

// P-16, P-18: values that the page states.
#[test]
fn the_page_of_differences_states_values_that_are_true() {
    let sandbox = Sandbox::new();
    let rows = differences();
    let row = |topic: &str| rows.iter().find(|row| row[0] == topic).unwrap();
    let steps = setting(&sandbox, "max_steps", &[]).to_string();
    assert!(row("`max_steps`")[2].starts_with(&steps));
    assert!(row("Steps")[2].starts_with(&steps));
    let unsupported = rows
        .iter()
        .find(|row| row[0].starts_with("`bedrock`"))
        .unwrap();
    let mut count = 0;
    for name in code(&unsupported[0]) {
        let providers = json!({"lab": {"type": name}}).to_string();
        let mut command = sandbox.command(&bub());
        command
            .args(["run", ",help"])
            .env("BUB_PROVIDERS", providers);
        let run = output(command);
        assert!(
            run.stderr.contains("model.provider_omitted"),
            "{name}: {run:?}"
        );
        run.ok();
        count += 1;
    }
    assert_eq!(count, 7);
}
