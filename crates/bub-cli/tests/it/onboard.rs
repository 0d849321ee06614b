//! Tests `bub onboard` at a terminal.

use std::{
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Stdio,
};

use bub_testkit::{
    model::{ModelServer, Reply},
    pty::{Pty, SESSION_LEADER},
    telegram::{BotServer, TOKEN},
};

use crate::{
    chat::terminal::TerminalOptions,
    sandbox::{Run, Sandbox, bub, ending_signals, example},
};

const KEY: &str = "sk-correct-horse-battery";
/// A config file that exists before the setup.
const BEFORE: &str = "# my settings\nmodel: lab:small # cheap\nmax_steps: 9\nproviders:\n  lab: {base_url: 'BASE', needs_key: true}\napi_key:\n  lab: KEY # from the safe\nmine: {kept: yes}\n";

fn terminal(sandbox: &Sandbox, program: PathBuf, args: &[&str]) -> Pty {
    let mut command = sandbox.command(Path::new(SESSION_LEADER[0]));
    command
        .args(&SESSION_LEADER[1..])
        .arg(program)
        .args(args)
        .env("TERM", "dumb");
    Pty::spawn(command)
}

fn config(sandbox: &Sandbox) -> String {
    std::fs::read_to_string(sandbox.home().join("config.yml")).unwrap()
}

/// Returns the terminal output without parts that differ between runs and releases.
fn transcript(sandbox: &Sandbox, shown: &str, base: &str) -> String {
    let root = sandbox.workspace().parent().unwrap().display().to_string();
    let shown = shown
        .replace("\r\n", "\n")
        .replace(&root, "~")
        .replace(base, "BASE");
    let shown = shown.replace(&format!("bub v{}", env!("CARGO_PKG_VERSION")), "bub vX");
    let starts = ["providers: ", "channels to set up ("];
    // Long lists continue in indented lines.
    shown
        .lines()
        .filter(|line| !line.starts_with("  "))
        .fold(String::new(), |text, line| {
            match starts.iter().find(|start| line.starts_with(**start)) {
                Some(start) => text + start + "…\n",
                None => text + line + "\n",
            }
        })
}

fn server() -> (ModelServer, String) {
    let server = ModelServer::start();
    server.otherwise(Reply::text("the first answer"));
    let base = format!("{}/v1", server.url());
    (server, base)
}

/// Returns a home with a working configuration.
fn configured(base: &str) -> (Sandbox, String) {
    let sandbox = Sandbox::new();
    let text = BEFORE.replace("BASE", base).replace("KEY", KEY);
    sandbox.write("home/config.yml", &text);
    (sandbox, text)
}

// W-56: a custom provider works
#[test]
fn from_an_empty_home_to_the_first_answer() {
    let (server, base) = server();
    server.models(["tiny", "small"]);
    let sandbox = Sandbox::new();
    let mut user = terminal(&sandbox, bub(), &[]);
    user.expect("No model is configured yet. Set one up now? [Y/n] ");
    user.send("\r");
    user.expect("provider [");
    user.send("lab\r");
    user.expect("Add `lab` as a custom provider? [y/N] ");
    user.send("y\r");
    user.expect("base URL of lab: ");
    user.send("\r");
    user.expect("not a base URL: expected a URL such as `https://host/v1`");
    user.expect("base URL of lab: ");
    user.send(&format!("{base}\r"));
    user.expect("model [tiny]: ");
    user.send("small\r");
    user.expect("testing lab:small … ok");
    user.expect("preset [standard]: ");
    user.send("carefull\r");
    user.expect("unknown preset `carefull`");
    user.expect("preset [standard]: ");
    user.send("careful\r");
    user.expect("channels to set up (");
    user.send("\r");
    user.expect("Saved config to ");
    let (code, shown) = user.finish();
    assert_eq!(code, Some(0), "{shown}");
    assert_eq!(
        transcript(&sandbox, &shown, &base),
        "No model is configured yet. Set one up now? [Y/n] \n\
         bub vX: set up your agent.\n\
         Press Enter to accept the value in brackets.\n\
         Press Ctrl-C to quit without saving.\n\
         \n\
         providers: …\n\
         provider [openrouter]: lab\n\
         unknown provider `lab`\n\
         Add `lab` as a custom provider? [y/N] y\n\
         base URL of lab: \n\
         not a base URL: expected a URL such as `https://host/v1`, without user, query and fragment\n\
         base URL of lab: BASE\n\
         models: tiny, small\n\
         model [tiny]: small\n\
         testing lab:small … ok\n\
         \n\
         Commands of the agent run in a sandbox: they write only in the workspace and\n\
         in a private /tmp, and cannot read your keys. Before a tool call that the\n\
         policy asks about, bub shows the call and waits for your approval.\n\
         To try the sandbox, run `bub sandbox -- CMD`. `bub policy list` shows the rules,\n\
         and `bub config set` changes them.\n\
         \n\
         preset [standard]: carefull\n\
         unknown preset `carefull`; available presets: careful, standard, free\n\
         preset [standard]: careful\n\
         channels to set up (…\n\
         \n\
         Saved config to ~/home/config.yml\n\
         Next: bub chat\n"
    );
    let saved = format!(
        "providers:\n  lab:\n    base_url: {base}\nmodel: lab:small\nsandbox:\n  network: 'off'\npolicy:\n  ask: bash, fs.write, fs.edit, web.fetch\n"
    );
    assert_eq!(config(&sandbox), saved);
    let mode = |path: PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(
        (
            mode(sandbox.home()),
            mode(sandbox.home().join("config.yml"))
        ),
        (0o700, 0o600)
    );
    assert_eq!(sandbox.bub(["run", "hello"]).ok(), "the first answer\n");
    let calls = server.requests().into_iter();
    let calls = calls.filter(|request| request.method == "POST");
    assert_eq!(calls.count(), 2);
    // Now the setup is not offered.
    let (code, shown) = terminal(&sandbox, bub(), &[]).finish();
    assert!(
        code == Some(0) && shown.contains("Get started:") && !shown.contains("[Y/n]"),
        "{shown}"
    );
}

// W-13
#[test]
fn what_is_there_is_offered_and_nothing_is_lost() {
    let (_server, base) = server();
    let (sandbox, before) = configured(&base);
    let mut user = terminal(&sandbox, bub(), &["onboard"]);
    user.expect("provider [lab]: ");
    user.send("\r");
    user.expect("model [small]: ");
    user.send("\r");
    user.expect("… ok");
    user.expect("channels to set up (");
    user.send("\r");
    user.expect("No changes to ");
    let (code, shown) = user.finish();
    assert_eq!((code, config(&sandbox)), (Some(0), before.clone()));
    assert!(!shown.contains(KEY), "{shown}");

    let mut user = terminal(&sandbox, bub(), &["onboard"]);
    user.expect("provider [lab]: ");
    user.send("\r");
    user.expect("model [small]: ");
    user.send("large\r");
    user.expect("channels to set up (");
    user.send("webhook\r");
    user.expect("webhook.token (hidden");
    user.send("a-token-of-some-length\r");
    user.expect("testing webhook … ok");
    user.expect("Saved config to ");
    let (code, shown) = user.finish();
    assert_eq!(code, Some(0));
    assert!(
        !shown.contains("a-token-of-some-length") && !shown.contains(KEY),
        "{shown}"
    );
    let after =
        before.replace("lab:small", "lab:large") + "webhook:\n  token: a-token-of-some-length\n";
    assert_eq!(config(&sandbox), after);
}

/// Questions in a home with a configuration, in order, each with the answer that continues.
const QUESTIONS: &[(&str, &str)] = &[
    ("provider [lab]: ", "other\r"),
    ("Add `other` as a custom provider? [y/N] ", "y\r"),
    ("base URL of other: ", "BASE\r"),
    ("model: ", "large\r"),
    ("channels to set up (", "webhook\r"),
    (
        "webhook.token (hidden; press Enter to skip webhook): ",
        "a-token-of-some-length\r",
    ),
    ("word to greet with [Hello]: ", "Ahoy\r"),
];

// H-6, W-13: also at the question of a plugin
#[test]
fn leaving_at_any_question_leaves_the_file_as_it_was() {
    let (_server, base) = server();
    for leave in ["\u{3}", "\u{4}"] {
        for last in 0..QUESTIONS.len() {
            let (sandbox, before) = configured(&base);
            let mut user = terminal(&sandbox, example("custom_binary"), &["onboard"]);
            for (question, answer) in &QUESTIONS[..last] {
                user.expect(question);
                user.send(&answer.replace("BASE", &base));
            }
            user.expect(QUESTIONS[last].0);
            // A plugin may continue without an answer after the end of input.
            if leave == "\u{4}" && last + 1 == QUESTIONS.len() {
                continue;
            }
            user.send(leave);
            let (code, shown) = user.finish();
            assert_eq!(
                (code, config(&sandbox)),
                (Some(1), before),
                "left at {:?}: {shown}",
                QUESTIONS[last].0
            );
            // Ctrl-C makes the terminal discard pending output.
            let is_reported = shown.contains("Stopped; nothing was written.");
            assert!(is_reported || leave == "\u{3}", "{shown}");
            assert_eq!(
                std::fs::read_dir(sandbox.home()).unwrap().count(),
                1,
                "nothing is left behind"
            );
        }
    }
}

/// Sends a signal to a program at a terminal.
fn send_signal(user: &Pty, name: &str) {
    assert!(
        std::process::Command::new("kill")
            .args(["-s", name, &user.id().to_string()])
            .status()
            .unwrap()
            .success()
    );
}

// W-13: a signal at the prompt for a secret restores the echo of the terminal
#[test]
fn a_signal_at_a_hidden_question_gives_the_terminal_back() {
    let (_server, base) = server();
    for (signal, code) in ending_signals().into_iter().chain([("INT", 1)]) {
        let (sandbox, before) = configured(&base);
        let mut user = terminal(&sandbox, bub(), &["onboard"]);
        for (question, answer) in &QUESTIONS[..5] {
            user.expect(question);
            user.send(&answer.replace("BASE", &base));
        }
        user.expect(QUESTIONS[5].0);
        assert!(!user.is_echoing());
        send_signal(&user, signal);
        assert_eq!(
            (user.end(), user.is_echoing(), config(&sandbox)),
            (Some(code), true, before),
            "{signal}"
        );
    }
}

// W-13: also while a silent model is tested
#[test]
fn a_signal_during_the_trial_ends_it_at_once() {
    for (signal, code) in ending_signals().into_iter().chain([("INT", 130)]) {
        let (server, base) = server();
        server.otherwise(Reply::text("never").hang_after(0));
        let (sandbox, before) = configured(&base);
        let mut user = terminal(&sandbox, bub(), &["onboard"]);
        for question in ["provider [lab]: ", "model [small]: "] {
            user.expect(question);
            user.send("\r");
        }
        user.expect("testing lab:small … ");
        let sent = std::time::Instant::now();
        send_signal(&user, signal);
        assert_eq!(
            (user.end(), config(&sandbox)),
            (Some(code), before),
            "{signal}"
        );
        // A test times out after 15 seconds.
        assert!(
            sent.elapsed() < std::time::Duration::from_secs(10),
            "{signal}"
        );
    }
}

// S-52, H-25
#[test]
fn a_plugin_asks_for_its_own_part() {
    let (_server, base) = server();
    let (sandbox, before) = configured(&base);
    let mut user = terminal(&sandbox, example("custom_binary"), &["onboard"]);
    for (question, answer) in QUESTIONS {
        user.expect(question);
        user.send(&answer.replace("BASE", &base));
    }
    user.expect("Saved config to ");
    assert_eq!(user.finish().0, Some(0));
    let changed = before.replace("model: lab:small", "model: other:large");
    let provider = format!("needs_key: true}}\n  other:\n    base_url: {base}\n");
    let changed = changed.replace("needs_key: true}\n", &provider);
    assert_eq!(
        config(&sandbox),
        changed + "webhook:\n  token: a-token-of-some-length\ngreeter:\n  word: Ahoy\n"
    );
    assert_eq!(
        sandbox.example("custom_binary", ["greet"]).ok(),
        "Ahoy, world!\n"
    );
}

// L7: an external plugin sees its own section of the configuration and no other.
#[test]
fn a_plugin_that_was_added_sets_only_its_own_part() {
    let (_server, base) = server();
    let (sandbox, before) = configured(&base);
    let code = "from bub_sdk import hookimpl, serve\n\n@hookimpl\ndef onboard_config(current_config):\n    \
                assert list(current_config) == ['model'], 'it sees more than it should'\n    \
                return {**current_config, 'weather': {'units': 'metric'}, 'owners': ['lab:eve'], 'max_steps': 900}\n\nserve()\n";
    if !crate::plugin::write_python_plugin(&sandbox, "weather", code) {
        return;
    }
    let mut user = terminal(&sandbox, bub(), &["onboard"]);
    for question in [
        "provider [lab]: ",
        "model [small]: ",
        "channels to set up (",
    ] {
        user.expect(question);
        user.send("\r");
    }
    user.expect(r#"plugin.config_ignored plugin=weather keys=["owners", "max_steps"]"#);
    user.expect("Saved config to ");
    assert_eq!(user.finish().0, Some(0));
    assert_eq!(config(&sandbox), before + "weather:\n  units: metric\n");
}

// W-13: a key is tested before it is saved
#[test]
fn what_does_not_work_is_asked_again() {
    let (server, base) = server();
    server.script(Reply::status(401).message("no such key"));
    let (sandbox, before) = configured(&base);
    let before = before.replace(&format!("api_key:\n  lab: {KEY} # from the safe\n"), "");
    sandbox.write("home/config.yml", &before);
    let mut user = terminal(&sandbox, bub(), &["onboard"]);
    user.expect("provider [lab]: ");
    user.send("\r");
    user.expect("API key for lab");
    user.send("sk-not-the-right-one\r");
    user.expect("model [small]: ");
    user.send("\r");
    let shown = user.expect("Try again with other values? [Y/n] ");
    assert!(
        shown.contains("test failed: ") && shown.contains("no such key"),
        "{shown}"
    );
    user.send("\r");
    user.expect("provider [lab]: ");
    user.send("\r");
    user.expect("API key for lab");
    user.send(&format!("{KEY}\r"));
    user.expect("model [small]: ");
    user.send("tiny\r");
    user.expect("… ok");
    user.expect("channels to set up (");
    user.send("\r");
    user.expect("Saved config to ");
    assert_eq!(user.finish().0, Some(0));
    assert_eq!(
        config(&sandbox),
        before.replace("lab:small", "lab:tiny") + &format!("api_key:\n  lab: {KEY}\n")
    );
}

#[test]
fn without_a_terminal_flags_are_enough() {
    let (server, base) = server();
    let sandbox = Sandbox::new();
    let run = sandbox.bub(["onboard"]);
    assert_eq!(run.code, Some(2));
    assert!(
        run.stderr
            .contains("Onboarding failed: cannot prompt: stdin is not a terminal"),
        "{run:?}"
    );
    let onboard = |key: &str, args: &[&str]| {
        let mut command = sandbox.command(&bub());
        command
            .args([
                "onboard",
                "--yes",
                "--api-key-stdin",
                "--api-base",
                &base,
                "--model",
            ])
            .args(args);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), key.as_bytes()).unwrap();
        Run::from_output(child.wait_with_output().unwrap())
    };
    for args in [
        &["onboard", "--yes", "--model", "nope:x"][..],
        &["onboard", "--yes"],
    ] {
        let run = sandbox.bub(args);
        assert_eq!(run.code, Some(2), "{run:?}");
    }
    server.script(Reply::status(401).message(&format!("wrong: {KEY}")));
    let refused = onboard(KEY, &["openai:small"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(
        refused.stderr.starts_with("Onboarding failed: ") && !refused.stderr.contains(KEY),
        "{refused:?}"
    );
    let named = refused.stderr.contains("rejected the key from stdin; ");
    assert!(
        named && !refused.stderr.contains("config.yml"),
        "{refused:?}"
    );
    assert!(!sandbox.home().join("config.yml").exists());

    let run = onboard(&format!("{KEY}\n"), &["openai:small"]);
    let path = sandbox.home().join("config.yml");
    assert!(
        run.ok()
            .starts_with(&format!("Saved config to {}\n", path.display()))
    );
    assert_eq!(
        config(&sandbox),
        format!("api_base:\n  openai: {base}\nmodel: openai:small\napi_key:\n  openai: {KEY}\n")
    );
    let authorization = server
        .requests()
        .last()
        .unwrap()
        .header("authorization")
        .map(str::to_owned);
    assert_eq!(
        authorization,
        Some(format!("Bearer {KEY}")),
        "the key was tried"
    );
    assert_eq!(
        std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
    // Again, without changes. A file that others could read becomes private.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let mut command = sandbox.command(&bub());
    let again = Run::from_output(
        command
            .args(["onboard", "--yes", "--no-test"])
            .output()
            .unwrap(),
    );
    assert!(again.ok().starts_with("No changes to "));
    assert_eq!(
        std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
}

// W-13: an unscoped key stays with the previous model
#[test]
fn a_second_provider_does_not_cost_the_key_of_the_first() {
    let sandbox = Sandbox::new();
    sandbox.write(
        "home/config.yml",
        "model: groq:small\napi_key: the-key-of-groq # mine\n",
    );
    let mut command = sandbox.command(&bub());
    command.args([
        "onboard",
        "--yes",
        "--no-test",
        "--api-key-stdin",
        "--model",
        "mistral:large",
    ]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), KEY.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    let after = format!(
        "model: mistral:large\napi_key: {{groq: the-key-of-groq, mistral: {KEY}}} # mine\n"
    );
    assert_eq!(config(&sandbox), after);
}

/// Runs `bub onboard --yes` with a key from a pipe.
fn onboard_piped(sandbox: &Sandbox, key: &str, args: &[&str]) -> Run {
    let mut command = sandbox.command(&bub());
    command
        .args(["onboard", "--yes", "--api-key-stdin"])
        .args(args);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), key.as_bytes()).unwrap();
    Run::from_output(child.wait_with_output().unwrap())
}

// W-13: an empty key is rejected, too
#[test]
fn a_provider_of_ones_own_does_not_cost_the_key_of_the_first() {
    let sandbox = Sandbox::new();
    sandbox.write(
        "home/config.yml",
        "model: openai:x\napi_key: the-key-of-openai\n",
    );
    let args = [
        "--no-test",
        "--model",
        "lab:m",
        "--api-base",
        "http://127.0.0.1:1/v1",
    ];
    onboard_piped(&sandbox, KEY, &args).ok();
    let after = config(&sandbox);
    let keys = format!("api_key: {{openai: the-key-of-openai, lab: {KEY}}}\n");
    assert!(
        after.contains("model: lab:m\n") && after.contains(&keys),
        "{after}"
    );
    // An invalid key is reported as a value from stdin, not from the file, which does not contain it.
    for key in ["not the key", "schlüssel"] {
        let run = onboard_piped(&sandbox, key, &args);
        let error = "`api_key.lab` is a value that is not shown, expected a key of letters, digits and signs";
        assert!(run.code == Some(2) && run.stderr.contains(error), "{run:?}");
        assert!(
            !run.stderr.contains(key) && config(&sandbox) == after,
            "{run:?}"
        );
    }
    // An empty pipe.
    let run = onboard_piped(&sandbox, "", &args);
    assert!(
        run.code != Some(0) && run.stderr.contains("`api_key.lab` is empty"),
        "{run:?}"
    );
    assert_eq!(config(&sandbox), after);
}

// W-35: key and base URL of one provider are never used for another
#[test]
fn a_new_provider_gets_nothing_of_the_one_before() {
    let ((old, old_base), (new, new_base)) = (server(), server());
    let sandbox = Sandbox::new();
    let before = format!("model: openai:x\napi_key: the-key-of-openai\napi_base: {old_base}\n");
    sandbox.write("home/config.yml", &before);
    let mut command = sandbox.command(&bub());
    let run = Run::from_output(
        command
            .args(["onboard", "--yes", "--model", "azure-lab:m"])
            .output()
            .unwrap(),
    );
    assert_ne!(run.code, Some(0), "it has no address: {run:?}");
    assert_eq!(config(&sandbox), before);

    let mut user = terminal(&sandbox, bub(), &["onboard"]);
    for (question, answer) in [
        ("provider [openai]: ", "lab"),
        ("Add `lab` as a custom provider? [y/N] ", "y"),
        ("base URL of lab: ", &new_base),
        ("model: ", "m"),
        ("channels to set up (", ""),
    ] {
        user.expect(question);
        user.send(&format!("{answer}\r"));
    }
    assert_eq!(user.finish().0, Some(0));
    assert_eq!((old.requests().len(), new.requests().len()), (0, 2));
    for request in new.requests() {
        assert_eq!(request.header("authorization"), None);
    }
    let after = config(&sandbox);
    for line in [
        "api_key: {openai: the-key-of-openai}\n",
        &format!("api_base: {{openai: '{old_base}'}}\n"),
    ] {
        assert!(
            after.replace('\'', "").contains(&line.replace('\'', "")),
            "{after}"
        );
    }
}

// W-35: the owner of an unscoped key does not change with the provider
#[test]
fn a_plain_key_is_held_back_from_a_provider_it_does_not_belong_to() {
    let (server, base) = server();
    let lab = ["--model", "lab:x", "--api-base", &base];
    let openai = ["--model", "openai:x", "--api-base", &base];
    let map = "model: openai:m\napi_key:\n  openai: the-key-of-openai\n";
    for (file, key, args, owner) in [
        ("", "sk-or-held-back-key", lab, "openrouter"),
        ("", "sk-ant-held-back-key", openai, "anthropic"),
        ("", "held-back-unscoped-key", lab, "openrouter"),
        (map, "held-back-key-in-variable", lab, "openai"),
        (
            "api_key: {'*': sk-ant-held-back-key}\n",
            "",
            lab,
            "anthropic",
        ),
    ] {
        for no_test in [&[][..], &["--no-test"]] {
            let sandbox = Sandbox::new();
            sandbox.write("home/config.yml", file);
            let mut command = sandbox.command(&bub());
            command.args(["onboard", "--yes"]).args(args).args(no_test);
            // An empty variable would mean that no key exists.
            command.envs((!key.is_empty()).then_some(("BUB_API_KEY", key)));
            let run = Run::from_output(command.output().unwrap());
            assert_eq!(
                (run.code, config(&sandbox).as_str()),
                (Some(2), file),
                "{run:?}"
            );
            assert!(
                run.stderr.contains(&format!("belongs to `{owner}`")),
                "{run:?}"
            );
            assert!(!run.stderr.contains("held-back"), "{run:?}");
        }
    }
    assert_eq!(server.requests().len(), 0);

    // The key in the file stays with its owner, and the call is made without a key.
    let sandbox = Sandbox::new();
    sandbox.write("home/config.yml", "api_key: sk-ant-held-back-key\n");
    let run = Run::from_output(
        sandbox
            .command(&bub())
            .args(["onboard", "--yes"])
            .args(lab)
            .output()
            .unwrap(),
    );
    run.ok();
    assert!(config(&sandbox).starts_with("api_key: {anthropic: sk-ant-held-back-key}\n"));
    assert_eq!(server.requests()[0].header("authorization"), None);

    // A variable overrides every key that the user could enter.
    let sandbox = Sandbox::new();
    let mut command = sandbox.command(Path::new(SESSION_LEADER[0]));
    command
        .args(&SESSION_LEADER[1..])
        .arg(bub())
        .arg("onboard")
        .env("BUB_API_KEY", "sk-ant-held-back-key");
    let mut user = Pty::spawn(command);
    for (question, answer) in [
        ("provider [anthropic]: ", "lab"),
        ("Add `lab` as a custom provider? [y/N] ", "y"),
        ("base URL of lab: ", &base),
        ("belongs to `anthropic` and is not sent to `lab`", ""),
    ] {
        user.expect(question);
        user.send(&format!("{answer}\r"));
    }
    user.expect("provider [lab]: ");
    user.send("\x03");
    assert_eq!(user.finish().0, Some(1));
    assert_eq!(server.requests().len(), 1);
    assert!(!sandbox.home().join("config.yml").exists());
}

// W-35: a key is used if it is set with its model or has the format of its provider
#[test]
fn a_plain_key_is_tried_with_the_provider_it_belongs_to() {
    for (variables, args) in [
        (
            [("BUB_MODEL", "lab:x"), ("BUB_API_KEY", KEY)],
            &["--model", "lab:x"],
        ),
        (
            [
                ("BUB_MODEL", ""),
                ("BUB_API_KEY", "sk-ant-key-of-anthropic"),
            ],
            &["--model", "anthropic:x"],
        ),
        (
            [
                ("BUB_MODEL", ""),
                ("BUB_API_KEY", "sk-or-key-of-openrouter"),
            ],
            &["--model", "openrouter:x"],
        ),
    ] {
        let (server, base) = server();
        let sandbox = Sandbox::new();
        let mut command = sandbox.command(&bub());
        command
            .args(["onboard", "--yes", "--api-base", &base])
            .args(args)
            .envs(variables);
        let run = Run::from_output(command.output().unwrap());
        let requests = server.requests();
        let header = |name| {
            requests
                .first()
                .and_then(|one| one.header(name))
                .unwrap_or_default()
        };
        let sent = [header("authorization"), header("x-api-key")].concat();
        assert!(sent.ends_with(variables[1].1), "{run:?}");
    }
}

// W-13: detectable errors are reported without a test, and an overriding variable is named
#[test]
fn what_is_saved_without_a_test_is_checked() {
    for (args, error) in [
        (&["--model", "opnai:x"][..], "did you mean `openai`?"),
        (
            &["--model", "lab:x", "--api-base", "nonsense"],
            "providers.lab.base_url",
        ),
        (
            &[
                "--model",
                "openai:x",
                "--api-base",
                "https://me:hush-hush@openai.example",
            ],
            "openai",
        ),
    ] {
        let sandbox = Sandbox::new();
        let run = sandbox.bub(["onboard", "--yes", "--no-test"].iter().chain(args));
        assert!(run.code == Some(2) && run.stderr.contains(error), "{run:?}");
        assert!(
            !run.stderr.contains("hush-hush") && !sandbox.home().join("config.yml").exists(),
            "{run:?}"
        );
    }
    // In each source of the model.
    for model in ["opnai:x", "unknown:x"] {
        let sandbox = Sandbox::new();
        let mut command = sandbox.command(&bub());
        command
            .args(["onboard", "--yes", "--no-test"])
            .env("BUB_MODEL", model);
        let run = Run::from_output(command.output().unwrap());
        let error = format!("unknown provider `{}`", model.replace(":x", ""));
        assert!(
            run.code == Some(2) && run.stderr.contains(&error),
            "{run:?}"
        );
        assert!(!sandbox.home().join("config.yml").exists());
    }
    let sandbox = Sandbox::new();
    let mut command = sandbox.command(&bub());
    command
        .args(["onboard", "--yes", "--no-test", "--model", "openai:x"])
        .env("BUB_MODEL", "groq:y");
    let run = Run::from_output(command.output().unwrap());
    assert!(
        run.stderr
            .contains("note: environment variable BUB_MODEL overrides `model`"),
        "{run:?}"
    );
    run.ok();
}

// W-13: a wrong key is asked for again, and the other answers are offered as defaults
#[test]
fn a_wrong_key_can_be_corrected() {
    let (server, base) = server();
    server.script(Reply::status(401).message("no such key"));
    server.script(Reply::status(401).message("no such key"));
    let (sandbox, before) = configured(&base);
    let mut user = terminal(&sandbox, bub(), &["onboard"]);
    for (question, answer) in [
        ("provider [lab]: ", ""),
        ("model [small]: ", "large"),
        ("Try again with other values? [Y/n] ", ""),
        ("provider [lab]: ", ""),
        (
            "API key for lab (hidden; press Enter to use the same key again): ",
            "the-other-key",
        ),
        ("model [large]: ", ""),
        ("Try again with other values? [Y/n] ", ""),
        ("provider [lab]: ", ""),
        (
            "API key for lab (hidden; press Enter to use the same key again): ",
            "",
        ),
        ("model [large]: ", ""),
        ("channels to set up (", ""),
    ] {
        user.expect(question);
        user.send(&format!("{answer}\r"));
    }
    assert_eq!(user.finish().0, Some(0));
    assert_eq!(
        config(&sandbox),
        before
            .replace("lab:small", "lab:large")
            .replace(KEY, "the-other-key")
    );
}

// H-1: without a terminal, `bub` without a command does not prompt
#[test]
fn alone_and_without_a_terminal_it_says_what_to_do_next() {
    let text = Sandbox::new().bub([""; 0]).ok();
    assert!(
        text.contains("bub onboard") && text.contains("bub doctor"),
        "{text}"
    );
}

// H-24: the bot token is tested before it is saved, and the allowed users are asked for
#[test]
fn a_bot_is_asked_who_it_is_before_its_token_is_saved() {
    let ((_server, base), bots) = (server(), BotServer::start());
    let (sandbox, before) = configured(&base);
    let before = format!("{before}telegram:\n  api_base: {}\n", bots.url());
    sandbox.write("home/config.yml", &before);
    let mut user = terminal(&sandbox, bub(), &["onboard"]);
    for question in ["provider [lab]: ", "model [small]: "] {
        user.expect(question);
        user.send("\r");
    }
    user.expect("channels to set up (");
    user.send("telegram\r");
    for (question, answer) in [
        (
            "telegram.token (hidden; press Enter to skip telegram): ",
            "1:not-the-token-of-a-bot-but-as-long",
        ),
        (
            "telegram.allow_users, separated by commas (press Enter to skip): ",
            "42, ada",
        ),
        ("Try again? [Y/n] ", ""),
        (
            "telegram.token (hidden; press Enter to use the same value again): ",
            TOKEN,
        ),
        (
            "telegram.allow_users, separated by commas (press Enter to skip) [42, ada]: ",
            "",
        ),
    ] {
        user.expect(question);
        user.send(&format!("{answer}\r"));
    }
    user.expect("testing telegram … @helpful_bot");
    user.expect("Saved config to ");
    let (code, shown) = user.finish();
    assert_eq!(code, Some(0));
    assert!(
        !shown.contains("not-the-token-of-a-bot-but-as-long") && !shown.contains(TOKEN),
        "{shown}"
    );
    assert_eq!(
        config(&sandbox),
        format!("{before}  token: '{TOKEN}'\n  allow_users: '42, ada'\n")
    );
    let text = sandbox.bub(["doctor"]).ok();
    assert!(
        text.contains("channels  ok       telegram: @helpful_bot"),
        "{text}"
    );
    bots.revoke_token();
    let run = sandbox.bub(["doctor", "--json"]);
    assert!(
        run.code == Some(1) && run.stdout.contains("rejected the bot token"),
        "{run:?}"
    );
}

// The correction is offered before a new provider.
#[test]
fn a_typing_error_in_the_provider_is_corrected_first() {
    let sandbox = Sandbox::new();
    let mut user = terminal(&sandbox, bub(), &["onboard", "--no-test"]);
    user.expect("provider [");
    user.send("antropic\r");
    user.expect("unknown provider `antropic`");
    user.expect("Did you mean `anthropic`? [Y/n] ");
    user.send("\r");
    user.expect("create an API key at https://");
    user.expect("API key for anthropic (hidden; press Enter to skip): ");
    user.send("\x03");
    assert_eq!(user.finish().0, Some(1));
}

// A server on this machine needs no scheme in its address.
#[test]
fn the_address_of_a_local_server_is_asked_for_unless_it_is_found() {
    let (server, base) = server();
    server.models(["alpha"]);
    let sandbox = Sandbox::new();
    let mut user = terminal(&sandbox, bub(), &["onboard"]);
    user.expect("provider [");
    user.send("llamacpp\r");
    user.expect("base URL of llamacpp [http://127.0.0.1:8080/v1]: ");
    user.send("127.0.0.1:1\r");
    user.expect("cannot list the models of llamacpp: ");
    user.expect("model: ");
    user.send("alpha\r");
    user.expect("refused the connection");
    user.expect("Try again with other values? [Y/n] ");
    user.send("\r");
    user.expect("provider [llamacpp]: ");
    user.send("\r");
    user.expect("base URL of llamacpp [http://127.0.0.1:1]: ");
    let address = base.strip_prefix("http://").unwrap();
    user.send(&format!("{address}\r"));
    user.expect("API key for llamacpp (hidden; press Enter to skip): ");
    user.send("\r");
    user.expect("model [alpha]: ");
    user.send("\r");
    user.expect("testing llamacpp:alpha … ok");
    user.expect("preset [standard]: ");
    user.send("\r");
    user.expect("channels to set up (");
    user.send("\r");
    user.expect("Saved config to ");
    let (code, shown) = user.finish();
    assert_eq!(code, Some(0), "{shown}");
    let saved = config(&sandbox);
    assert!(saved.contains(&format!("llamacpp: {base}")), "{saved}");
}

// On a terminal that can redraw its lines, providers and models are picked from a list with a search.
#[test]
fn a_provider_and_a_model_are_picked_from_a_list() {
    let (server, base) = server();
    server.models(["alpha", "beta", "gamma"]);
    for columns in [40, 80, 200] {
        let sandbox = Sandbox::new();
        sandbox.write(
            "home/config.yml",
            &format!("providers:\n  lab: {{base_url: '{base}'}}\n"),
        );
        let mut command = sandbox.command(Path::new(SESSION_LEADER[0]));
        command
            .args(&SESSION_LEADER[1..])
            .arg(bub())
            .arg("onboard")
            .env("TERM", "xterm")
            .env("NO_COLOR", "1");
        let mut user = Pty::spawn_sized(command, 24, columns);
        user.expect("provider: ");
        user.expect("type to search");
        user.send("la");
        user.expect("provider: la");
        user.expect("› lab");
        user.send("b\r");
        user.expect("provider: lab\r\n");
        user.expect("› alpha");
        user.send("\x1b[B");
        user.expect("› beta");
        user.send("\r");
        user.expect("testing lab:beta … ok");
        user.expect("› standard");
        user.send("\r");
        user.expect("preset: standard");
        user.expect("channels to set up (");
        user.send("\r");
        user.expect("Saved config to ");
        let (code, shown) = user.finish();
        assert_eq!(code, Some(0), "{shown}");
        let saved = config(&sandbox);
        assert!(saved.ends_with("\nmodel: lab:beta\n"), "{saved}");
        // No line is wider than the terminal.
        let mut parser = vt100::Parser::new(200, columns, 0);
        parser.process(shown.as_bytes());
        let screen = parser.screen().contents();
        assert!(!screen.contains("type to search"), "{screen}");
    }
}

#[test]
fn a_second_attempt_offers_the_custom_provider_of_the_first() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.command(Path::new(SESSION_LEADER[0]));
    command
        .args(&SESSION_LEADER[1..])
        .arg(bub())
        .arg("onboard")
        .env("TERM", "xterm")
        .env("NO_COLOR", "1");
    let mut user = Pty::spawn_sized(command, 24, 80);
    for (question, answer) in [
        ("type to search", "my-lab"),
        ("add as a custom provider", "\r"),
        ("base URL of my-lab: ", "127.0.0.1:1\r"),
        ("cannot list the models of my-lab: ", ""),
        ("model: ", "small\r"),
        ("Try again with other values? [Y/n] ", "\r"),
        ("› my-lab", "\r"),
        ("base URL of my-lab [http://127.0.0.1:1]: ", "\x03"),
    ] {
        user.expect(question);
        user.send(answer);
    }
    user.finish();
}

// The list with a search at several widths and without color, and the plain question on a dumb terminal.
#[test]
fn the_list_of_providers_fits_every_terminal() {
    for (name, columns, variable) in [
        ("40_columns", 40, ("TERM", "xterm-256color")),
        ("80_columns", 80, ("TERM", "xterm-256color")),
        ("200_columns", 200, ("TERM", "xterm-256color")),
        ("no_color", 80, ("NO_COLOR", "1")),
        ("dumb", 80, ("TERM", "dumb")),
    ] {
        let sandbox = Sandbox::new();
        let mut user = TerminalOptions::new(&sandbox)
            .without_model()
            .command(&["onboard", "--no-test"])
            .size(columns, 40)
            .set("TERM", "xterm-256color")
            .set(variable.0, variable.1)
            .start();
        let is_dumb = variable.1 == "dumb";
        let first = user.wait_for(if is_dumb {
            "provider ["
        } else {
            "type to search"
        });
        let screen = if is_dumb {
            first
        } else {
            user.send("deep");
            user.wait_until(|screen| screen.contains("› deepseek") && !screen.contains("openai"))
        };
        let root = sandbox.workspace().parent().unwrap().display().to_string();
        let start = screen.find("provider").unwrap();
        insta::assert_snapshot!(
            format!("picker_{name}"),
            screen[start..].replace(&root, "~")
        );
        let bytes = String::from_utf8_lossy(&user.bytes()).into_owned();
        let is_colored = bytes.contains("\x1b[1;36m") || bytes.contains("\x1b[36m");
        assert_eq!(is_colored, name.ends_with("columns"), "{bytes:?}");
        assert_eq!(bytes.contains('\x1b'), !is_dumb, "{bytes:?}");
        user.send("\x03");
        assert_eq!(user.wait_end().0, Some(1));
    }
}

// P-4
#[test]
fn one_plugin_can_be_set_up() {
    let ((_server, base), bots) = (server(), BotServer::start());
    let (sandbox, before) = configured(&base);
    let before = format!("{before}telegram:\n  api_base: {}\n", bots.url());
    sandbox.write("home/config.yml", &before);
    let mut user = terminal(&sandbox, bub(), &["onboard", "telegram"]);
    for (question, answer) in [
        (
            "telegram.token (hidden; press Enter to skip telegram): ",
            "no-token",
        ),
        (
            "invalid `telegram.token`: expected a token from @BotFather",
            "",
        ),
    ] {
        user.expect(question);
        if !answer.is_empty() {
            user.send(&format!("{answer}\r"));
        }
    }
    user.expect("telegram.token (hidden; press Enter to skip telegram): ");
    user.send(&format!("{TOKEN}\r"));
    user.expect("telegram.allow_users, separated by commas");
    user.send("\r");
    user.expect("testing telegram … @helpful_bot");
    user.expect("Saved config to ");
    assert_eq!(user.finish().0, Some(0));
    assert_eq!(config(&sandbox), format!("{before}  token: '{TOKEN}'\n"));
    let (code, shown) = terminal(&sandbox, bub(), &["onboard", "nope"]).finish();
    assert_eq!(code, Some(2));
    assert!(
        shown.contains("Onboarding failed: No onboard_config hook found for plugin 'nope'. Available plugins: builtin, "),
        "{shown}"
    );
}

// `bub chat` without a model offers the setup, and starts after it.
#[test]
fn a_chat_without_a_model_offers_the_setup() {
    let (_server, base) = server();
    let sandbox = Sandbox::new();
    let mut user = terminal(&sandbox, bub(), &["chat", "--plain"]);
    user.expect("No model is configured yet. Set one up now? [Y/n] ");
    user.send("\r");
    for (question, answer) in [
        ("provider [", "lab"),
        ("Add `lab` as a custom provider? [y/N] ", "y"),
        ("base URL of lab: ", base.as_str()),
        ("model: ", "small"),
        ("preset [standard]: ", ""),
        ("channels to set up (", ""),
    ] {
        user.expect(question);
        user.send(&format!("{answer}\r"));
    }
    user.expect("model: lab:small");
    user.expect("session: cli_session");
    user.send("hello\r");
    user.expect("the first answer");
    user.send("\x04");
    assert_eq!(user.finish().0, Some(0));
}
