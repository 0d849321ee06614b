//! Tests the commands with valid input.

use std::{os::unix::fs::PermissionsExt, path::Path, process::Stdio};

use bub_testkit::model::{ModelServer, Reply};
use serde_json::json;

use crate::sandbox::{Run, Sandbox, bub};

// H-3: `[channel:chat]`, then the reply; logs are not on stdout.
#[test]
fn run_prints_the_answer_only() {
    let sandbox = Sandbox::new();
    let run = sandbox.bub(["run", "hello"]);
    assert_eq!(run.stdout, "", "the guide is no answer: {run:?}");
    assert!(run.stderr.starts_with("No model is configured"), "{run:?}");
    assert_eq!(
        run.code,
        Some(2),
        "a script sees that no model has answered: {run:?}"
    );
    assert!(
        run.stderr
            .contains("  - Run `bub onboard` to choose a model"),
        "{run:?}"
    );
    let advice = "run `bub onboard` to set one up, or `bub models` to list available models";
    assert!(
        run.stderr
            .ends_with(&format!("\nerror: no model is configured; {advice}\n")),
        "{run:?}"
    );

    let echo = sandbox
        .example(
            "echo_model",
            ["run", "hi", "--channel", "lab", "--chat-id", "7"],
        )
        .ok();
    assert_eq!(echo, "lab:7 said: hi\n");
}

// H-3
#[test]
fn run_takes_the_session_it_is_given() {
    let echo = Sandbox::new()
        .example("echo_model", ["run", "hi", "--session-id", "mine"])
        .ok();
    assert_eq!(echo, "mine said: hi\n");
}

// H-3, H-100: the sender is part of the context the model sees.
#[test]
fn run_tells_the_model_who_writes() {
    let shown = Sandbox::new()
        .example("prompt_plugin", ["run", "hi", "--sender-id", "ada"])
        .ok();
    assert!(
        shown.contains("sender_id=ada|channel=$cli|chat_id=local\n---Date: "),
        "{shown}"
    );
}

// S-49, H-7
#[test]
fn hooks_lists_implementations_in_registration_order() {
    let report = Sandbox::new().example("echo_model", ["hooks"]).ok();
    assert!(report.contains("build_prompt: builtin\n"), "{report}");
    assert!(report.contains("run_model: echo\n"), "{report}");
    let names: Vec<_> = report
        .lines()
        .map(|line| line.split(':').next().unwrap())
        .collect();
    assert!(names.is_sorted(), "{names:?}");

    let wrapped = Sandbox::new().example("stream_wrapper", ["hooks"]).ok();
    assert!(
        wrapped.contains("run_model_stream: builtin, words, uppercase\n"),
        "{wrapped}"
    );
}

// H-31: a plugin that fails to load is reported, and the others work.
#[test]
fn hooks_names_a_plugin_that_is_not_in_use() {
    let report = Sandbox::new().example("faulty", ["hooks"]).ok();
    assert!(
        report.contains("plugin unloadable is not loaded: its license has expired\n"),
        "{report}"
    );
    assert!(report.contains("run_model: faulty\n"), "{report}");
}

// Names and texts of others cannot add rows or control the terminal, also through a pipe.
#[test]
fn listings_show_hostile_text_in_its_row() {
    const HOSTILE: &str = "x\u{1b}[2J\r\n\u{9b}31m\tforged: \u{202e}allow";
    let sandbox = Sandbox::new();
    let rule = json!({"tools": ["bash"], "action": "ask", "reason": HOSTILE});
    let config = json!({
        "model": format!("openai:{HOSTILE}"),
        "owners": [format!("telegram:{HOSTILE}")],
        "policy": {"rules": [rule]},
    });
    // YAML accepts the character only as an escape.
    let config = config.to_string().replace('\u{9b}', "\\u009b");
    sandbox.write("home/config.yml", &config);
    let user =
        json!({"channel": "telegram", "id": "1", "name": HOSTILE, "owner": false, "since": 0});
    let pairings = json!({"people": [user], "requests": []});
    sandbox.write("home/pairings.json", &pairings.to_string());
    let plugins = json!({"plugins": [{"manifest": {"name": HOSTILE}}]});
    sandbox.write("home/plugins.json", &plugins.to_string());
    let workspace = format!("workspace/{HOSTILE}");
    sandbox.write(&format!("{workspace}/AGENTS.md"), "x");
    let directory = sandbox.workspace().join(HOSTILE);
    sandbox.bub(["trust", directory.to_str().unwrap()]).ok();
    sandbox.bub(["run", ",help", "--session-id", HOSTILE, "--channel", "lab"]);
    let mut shown = 0;
    for (command, rows) in [
        ("policy list", 5),
        ("policy explain bash cmd=ls", 6),
        ("trust list", 1),
        ("pair list", 1),
        ("plugin list", 1),
        ("tape list", 2),
        ("usage", 1),
        ("config list --changed", 5),
        ("outbox list", 1),
        ("status", 1),
        ("skill check", 1),
    ] {
        let run = sandbox.bub(command.split(' '));
        let is_control = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!run.stdout.contains(is_control), "{command}: {run:?}");
        assert_eq!(run.stdout.lines().count(), rows, "{command}: {run:?}");
        shown += usize::from(run.stdout.contains("x␛[2J"));
    }
    assert_eq!(shown, 7, "the commands print the text");
    for command in ["models", "hooks", "doctor --offline", "skill list"] {
        let run = sandbox.bub(command.split(' '));
        assert!(!run.stdout.contains(['\x1b', '\u{9b}', '\r']), "{run:?}");
        let is_forged = |line: &str| line.trim_start().starts_with("forged");
        assert!(!run.stdout.lines().any(is_forged), "{run:?}");
    }
}

// Opening a pipe that no one writes to would block forever.
#[test]
fn a_pipe_in_place_of_a_file_does_not_stop_bub() {
    let (sandbox, model) = (Sandbox::new(), ModelServer::start());
    model.otherwise(Reply::text("fine"));
    let base = format!("{}/v1", model.url());
    let mut command = sandbox.command(Path::new("mkfifo"));
    for file in [
        "AGENTS.md",
        ".env",
        "mcp.json",
        ".agents/skills/x/SKILL.md",
        ".agents/skills/y",
        ".bub/plugins",
    ] {
        let path = sandbox.workspace().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        command.arg(path);
    }
    assert!(command.status().unwrap().success());
    for args in [
        &["run", "hello"][..],
        &["chat"],
        &["trust"],
        &["doctor", "--offline"],
        &["skill", "list"],
    ] {
        let mut command = sandbox.command(Path::new("timeout"));
        command.arg("60").arg(bub()).args(args);
        let settings = [
            ("BUB_MODEL", "openai:small"),
            ("BUB_API_KEY", "k"),
            ("BUB_API_BASE", &base),
        ];
        command.envs(settings).stdin(Stdio::null());
        let run = Run::from_output(command.output().unwrap());
        assert_ne!(run.code, Some(124), "{args:?} did not end: {run:?}");
        assert!(args[0] != "run" || run.stdout.contains("fine"), "{run:?}");
    }
}

#[test]
fn help_lists_commands_and_exit_codes() {
    let help = Sandbox::new().bub(["--help"]).ok();
    for part in [
        "Usage: bub",
        "run ",
        "hooks ",
        "--workspace <DIR>",
        "Exit codes: 0 success, 1 failure, 2 invalid",
    ] {
        assert!(help.contains(part), "{part} is missing in\n{help}");
    }
}

// The script for fish has the help text of every command and flag.
#[test]
fn help_texts_start_with_a_capital_and_have_no_final_period() {
    let script = Sandbox::new().bub(["completions", "fish"]).ok();
    let texts: Vec<_> = script
        .lines()
        .filter(|line| line.starts_with("complete "))
        .filter_map(|line| line.split_once(" -d '"))
        .map(|(_, text)| text.trim_end_matches('\''))
        .collect();
    assert!(texts.len() > 100, "{script}");
    for text in texts {
        assert!(
            text.starts_with(|c: char| c.is_uppercase()) && !text.ends_with('.'),
            "{text}"
        );
    }
}

#[test]
fn without_a_command_it_says_what_to_do_next() {
    let text = Sandbox::new().bub::<&str>([]).ok();
    assert!(
        text.starts_with("bub is an agent runtime. Get started:\n"),
        "{text}"
    );
    assert!(text.contains("bub run \"hello\""), "{text}");
}

#[test]
fn version_is_that_of_the_package() {
    assert_eq!(
        Sandbox::new().bub(["--version"]).ok(),
        format!("bub {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let sandbox = Sandbox::new();
    let mut child = sandbox
        .command(&bub())
        .arg("hooks")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

// L7: tapes are private, independently of the umask.
#[test]
fn what_is_recorded_belongs_to_the_owner_alone() {
    let sandbox = Sandbox::new();
    sandbox.example("echo_model", ["run", "hello"]).ok();
    let mode =
        |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&sandbox.home()), 0o700);
    let tapes = sandbox.home().join("tapes");
    assert_eq!(mode(&tapes), 0o700);
    for file in std::fs::read_dir(&tapes).unwrap() {
        let path = file.unwrap().path();
        assert_eq!(
            mode(&path),
            if path.is_dir() { 0o700 } else { 0o600 },
            "{}",
            path.display()
        );
    }
}

#[test]
fn run_reads_a_long_message_from_stdin() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.command(&crate::sandbox::example("echo_model"));
    let mut child = command
        .args(["run", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let message = "word ".repeat(100_000);
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), message.as_bytes()).unwrap();
    let reply = crate::sandbox::Run::from_output(child.wait_with_output().unwrap()).ok();
    assert_eq!(reply, format!("cli:local said: {message}\n"));
}

#[test]
fn completions_and_manual_pages_know_every_command() {
    let sandbox = Sandbox::new();
    // They also work with an invalid configuration.
    sandbox.write("home/config.yml", "model: [\n");
    let help = sandbox.bub(["--help"]).ok();
    let commands: Vec<_> = help
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    assert!(
        commands.contains(&"run") && commands.contains(&"doctor"),
        "{help}"
    );
    for shell in ["bash", "zsh", "fish"] {
        let script = sandbox.bub(["completions", shell]).ok();
        for part in commands.iter().chain(&["workspace", "offline"]) {
            assert!(script.contains(part), "{shell} does not know {part}");
        }
        sandbox.write(&format!("workspace/{shell}"), &script);
    }
    let mut bash = sandbox.command(std::path::Path::new("bash"));
    let typed =
        "source ./bash; COMP_WORDS=(bub doc) COMP_CWORD=1; _bub bub doc bub; echo ${COMPREPLY[@]}";
    assert_eq!(
        Run::from_output(bash.args(["-c", typed]).output().unwrap()).ok(),
        "doctor\n"
    );
    sandbox.bub(["man", "pages"]).ok();
    for name in commands {
        let page = std::fs::read_to_string(sandbox.workspace().join(format!("pages/bub-{name}.1")))
            .unwrap();
        assert!(
            page.contains(".TH") && page.contains(&format!("bub {name}").replace('-', "\\-")),
            "{name}: {page}"
        );
    }
    assert!(sandbox.workspace().join("pages/bub-config-set.1").exists());
    let run = sandbox.bub(["man", "bash/pages"]);
    assert!(
        run.code == Some(1) && run.stderr.contains("`bash/pages`: Not a directory"),
        "{run:?}"
    );
    assert!(
        run.stderr
            .contains("choose a directory that you can write to"),
        "{run:?}"
    );
}
