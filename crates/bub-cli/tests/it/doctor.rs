//! Tests every kind of finding of `bub doctor`, with its fix.

use std::{
    os::unix::fs::PermissionsExt,
    path::Path,
    time::{Duration, Instant},
};

use bub_sandbox::{Confinement, SandboxProfile};
use bub_testkit::{
    model::{ModelServer, Reply},
    pty::{Pty, SESSION_LEADER},
};
use serde_json::Value;

use crate::sandbox::{Run, Sandbox, bub, example};

const KEY: &str = "sk-correct-horse-battery";

fn doctor(sandbox: &Sandbox, variables: &[(&str, &str)], args: &[&str]) -> Run {
    let mut command = sandbox.command(&bub());
    Run::from_output(
        command
            .envs(variables.iter().copied())
            .arg("doctor")
            .args(args)
            .output()
            .unwrap(),
    )
}

/// Returns the findings of one check as `state: text; fix`.
fn findings(run: &Run, check: &str) -> Vec<String> {
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    let of_check = report["findings"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|finding| finding["check"] == check);
    of_check
        .map(|finding| {
            let text = |name: &str| finding[name].as_str().unwrap_or("-").to_owned();
            assert!(
                finding["state"] == "ok" || finding["fix"].is_string(),
                "no fix: {finding}"
            );
            format!("{}: {}; {}", text("state"), text("text"), text("fix"))
        })
        .collect()
}

/// Returns all paths below a directory.
fn paths_below(directory: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let is_dir = |path: &&std::path::PathBuf| path.is_dir() && !path.is_symlink();
    let below: Vec<_> = paths.iter().filter(is_dir).cloned().collect();
    paths.extend(below.iter().flat_map(|path| paths_below(path)));
    paths
}

// `doctor` changes nothing: the check of the sandbox needs a directory, and removes it.
#[test]
fn it_leaves_nothing_behind() {
    let sandbox = Sandbox::new();
    sandbox.write("workspace/.git/HEAD", "ref: refs/heads/main\n");
    sandbox.write("temp/file", "");
    let root = sandbox.workspace().parent().unwrap().to_owned();
    let temp = root.join("temp");
    let before = paths_below(&root);
    for profile in ["workspace", "read-only", "off"] {
        let variables = [
            ("BUB_SANDBOX_PROFILE", profile),
            ("TMPDIR", temp.to_str().unwrap()),
        ];
        let run = doctor(&sandbox, &variables, &["--offline"]);
        assert!(run.stdout.contains("sandbox"), "{run:?}");
        assert_eq!(paths_below(&root), before, "{profile}");
    }
}

// L7: without a control group, many small processes together may use more memory than the limit.
#[test]
fn a_limit_that_does_not_hold_is_named() {
    let sandbox = Sandbox::new();
    let variable = |name: &str| (name == "PATH").then(|| "/usr/bin:/bin".into());
    let (profile, workspace) = (SandboxProfile::Workspace, sandbox.workspace());
    let confinement = Confinement::from_environment(profile, &workspace, &workspace, variable);
    let has_group = confinement.unwrap().has_control_group();
    for (limit, is_named) in [("16384", !has_group), ("null", false)] {
        let variables = [("BUB_SANDBOX_MAX_MEMORY_MB", limit)];
        let run = doctor(&sandbox, &variables, &["--offline", "--json"]);
        let found = findings(&run, "sandbox").join("\n");
        let is_available = !found.contains("unavailable");
        let text = "the limit on memory applies to each process";
        assert_eq!(found.contains(text), is_named && is_available, "{found}");
    }
}

// L7: a rule with an unknown name has no effect.
#[test]
fn rules_of_the_policy_that_never_fit_are_found() {
    let sandbox = Sandbox::new();
    let rules = [
        ("tools: [bsh]", Some("unknown tool `bsh`")),
        (
            "tools: [bash], arguments: {line: '*rm*'}",
            Some("has an argument `line`; arguments of `bash`: command, "),
        ),
        (
            "tools: ['fs.*'], arguments: {file: x}",
            Some("no matching tool has an argument `file`"),
        ),
        ("tools: [fs_read, 'tape*'], arguments: {path: x}", None),
        ("tools: [bash], arguments: {cmd: '*rm*'}", None),
        ("channels: [nowhere]", None),
    ];
    let lines = rules.map(|(rule, _)| format!("    - {{{rule}, action: deny}}\n"));
    sandbox.write(
        "home/config.yml",
        &format!("policy:\n  rules:\n{}", lines.concat()),
    );
    let found = findings(&doctor(&sandbox, &[], &["--offline", "--json"]), "config");
    let listed = sandbox.bub(["policy", "list"]).ok();
    let expected: Vec<_> = rules.iter().filter_map(|(_, reason)| *reason).collect();
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(
            found.starts_with("warning: ") && found.contains(expected),
            "{found}"
        );
        assert!(listed.contains(expected), "{listed}");
    }
}

// A rule that gives others what only owners may do is reported.
#[test]
fn dangerous_policy_rules_are_reported() {
    let sandbox = Sandbox::new();
    let rules = "policy:\n  rules:\n    - {roles: [member], tools: [bash], action: allow}\n    - {action: allow}\n    - {roles: [owner], tools: [bash], action: ask}\n";
    sandbox.write("home/config.yml", rules);
    let found = findings(&doctor(&sandbox, &[], &["--offline", "--json"]), "config");
    let listed = sandbox.bub(["policy", "list"]).ok();
    let risks = [
        "lets every member use `bash` with any arguments",
        "lets every guest use every tool",
    ];
    assert_eq!(found.len(), risks.len(), "{found:?}");
    for (found, risk) in found.iter().zip(risks) {
        assert!(
            found.starts_with("warning: ") && found.contains(risk),
            "{found}"
        );
        assert!(listed.contains(&format!("   danger: {risk}\n")), "{listed}");
    }
}

// `bub policy explain` reported a guest for a member of the channel's settings.
#[test]
fn policy_explain_uses_the_role_that_the_channel_gives() {
    let sandbox = Sandbox::new();
    let config = "telegram: {token: '1:a', allow_users: ['7']}\nwebhook: {role: owner}\n";
    sandbox.write("home/config.yml", config);
    for (channel, sender, role) in [
        ("telegram", "7", "member"),
        ("telegram", "8", "guest"),
        ("webhook", "any", "owner"),
    ] {
        let run = sandbox.bub([
            "policy",
            "explain",
            "--channel",
            channel,
            "--sender",
            sender,
            "help",
        ]);
        let text = run.stdout;
        assert!(
            text.contains(&format!(" for {role} ({channel}:{sender})")),
            "{text}"
        );
    }
    // In a listed chat everyone is a guest; elsewhere, the channel does not accept the message.
    sandbox.write(
        "home/config.yml",
        "telegram: {token: '1:a', allow_chats: ['-5']}\n",
    );
    for (chat, reason) in [
        ("-5", "guests may not use tools"),
        ("-6", "the chat is not in `telegram.allow_chats`"),
    ] {
        let sender = ["--channel", "telegram", "--sender", "8", "--chat", chat];
        let run = sandbox.bub(
            ["policy", "explain"]
                .into_iter()
                .chain(sender)
                .chain(["bash"]),
        );
        assert_eq!(run.code, Some(4), "{run:?}");
        assert!(run.stdout.contains(reason), "{}", run.stdout);
    }
}

#[test]
fn an_empty_home_is_not_broken_and_the_report_takes_a_moment() {
    let sandbox = Sandbox::new();
    let run = doctor(&sandbox, &[], &[]);
    let text = run.ok();
    for line in [
        "home      ok ",
        "model     warning  no model",
        "fix: run `bub onboard`",
        "tapes     ok ",
        "disk ",
        "clock ",
    ] {
        assert!(text.contains(line), "{line} is missing in {text}");
    }
    assert!(text.ends_with("\nno errors found, 1 warning\n"), "{text}");
    assert!(!sandbox.home().exists(), "nothing is made");
    // 200 ms on an idle machine. On a busy one, at least one of the runs takes a moment only.
    let is_quick = (0..20).any(|_| {
        let start = Instant::now();
        doctor(&sandbox, &[], &["--offline"]).ok();
        start.elapsed() < Duration::from_secs(1)
    });
    assert!(is_quick);
}

#[test]
fn each_effective_value_has_its_source_and_secrets_are_redacted() {
    let sandbox = Sandbox::new();
    sandbox.write(
        "home/config.yml",
        "max_steps: 7\napi_key: {openai: sk-correct-horse-battery}\n",
    );
    sandbox.write("workspace/.env", "BUB_MAX_TOKENS=99\n");
    sandbox.trust();
    let variables = [("BUB_TELEGRAM_TOKEN", KEY), ("BUB_LOG", "trace")];
    for args in [&["--offline"][..], &["--offline", "--json"]] {
        let run = doctor(&sandbox, &variables, args);
        assert!(
            !run.stdout.contains(KEY) && !run.stderr.contains(KEY),
            "{run:?}"
        );
        for part in [
            "max_steps",
            "config.yml:1",
            "max_tokens",
            "99",
            ".env:1",
            "environment variable BUB_LOG",
            "***",
        ] {
            assert!(
                run.stdout.contains(part),
                "{part} is missing in {}",
                run.stdout
            );
        }
    }
    let config = findings(&doctor(&sandbox, &[], &["--offline", "--json"]), "config");
    assert!(
        config
            .iter()
            .any(|line| line.starts_with("warning: ") && line.contains("contains secrets")),
        "{config:?}"
    );
    assert!(
        config.iter().any(|line| line.contains("chmod 600 ")),
        "{config:?}"
    );
}

#[test]
fn what_is_wrong_with_the_configuration_is_listed_and_not_only_the_first() {
    let sandbox = Sandbox::new();
    sandbox.write(
        "home/config.yml",
        "max_steps: many\nmax_tokens: few\nmodle: x\nproviders: {lab: {}}\n",
    );
    let run = doctor(&sandbox, &[], &["--offline", "--json"]);
    assert_eq!(run.code, Some(1));
    let config = findings(&run, "config").join("\n");
    for part in [
        "error: ",
        ":1: `max_steps` is `many`",
        ":2: `max_tokens`",
        "warning: ",
        "did you mean `model`?",
        "providers.lab",
    ] {
        assert!(config.contains(part), "{part} is missing in {config}");
    }
    sandbox.write("home/config.yml", "model: [\n");
    assert!(
        findings(&doctor(&sandbox, &[], &["--offline", "--json"]), "config")[0]
            .contains("not valid YAML")
    );
}

#[test]
fn the_model_is_tested_unless_offline() {
    let sandbox = Sandbox::new();
    let server = ModelServer::start();
    server.otherwise(Reply::text("ok"));
    let base = format!("{}/v1", server.url());
    let variables = [
        ("BUB_MODEL", "openai:small"),
        ("BUB_API_BASE", base.as_str()),
        ("BUB_API_KEY", KEY),
    ];
    let run = doctor(&sandbox, &variables, &["--json"]);
    assert!(
        findings(&run, "model")[0]
            .starts_with("ok: openai:small answers (configured in environment"),
        "{run:?}"
    );
    assert!(
        findings(
            &doctor(&sandbox, &variables, &["--json", "--offline"]),
            "model"
        )[0]
        .contains("not tested")
    );
    assert_eq!(server.requests().len(), 1);

    server.otherwise(Reply::status(401).message(&format!("wrong key {KEY}")));
    let run = doctor(&sandbox, &variables, &["--json"]);
    assert_eq!(run.code, Some(1));
    assert!(
        findings(&run, "model")[0].starts_with("error: openai:small"),
        "{run:?}"
    );
    assert!(!run.stdout.contains(KEY), "{run:?}");
    let unreachable = [
        ("BUB_MODEL", "openai:small"),
        ("BUB_API_BASE", "http://127.0.0.1:1/v1"),
        ("BUB_API_KEY", KEY),
    ];
    assert!(
        findings(&doctor(&sandbox, &unreachable, &["--json"]), "model")[0].starts_with("error: ")
    );
    let unknown = doctor(&sandbox, &[("BUB_MODEL", "opnai:x")], &["--json"]);
    assert!(
        findings(&unknown, "model")[0].contains("did you mean `openai`?"),
        "{unknown:?}"
    );
}

#[test]
fn channels_plugins_skills_and_tapes_that_do_not_work_are_named() {
    let sandbox = Sandbox::new();
    let run = doctor(
        &sandbox,
        &[("BUB_ENABLED_CHANNELS", "pigeon")],
        &["--json", "--offline"],
    );
    assert_eq!(run.code, Some(1));
    assert!(
        findings(&run, "channels")[0].contains("unknown channel `pigeon`"),
        "{run:?}"
    );
    let token = [("BUB_WEBHOOK_TOKEN", "a-token-of-some-length")];
    let channels = findings(
        &doctor(&sandbox, &token, &["--json", "--offline"]),
        "channels",
    );
    assert!(channels[0].starts_with("ok: webhook"), "{channels:?}");
    // Settings that the gateway rejects.
    let wrong = [token[0], ("BUB_WEBHOOK_LISTEN", "foo"), ("BUB_LOG", "loud")];
    let run = doctor(&sandbox, &wrong, &["--json", "--offline"]);
    let config = findings(&run, "config");
    assert_eq!(config.len(), 2, "{run:?}");
    for wrong in ["`webhook.listen` is `foo`", "`log.filter` is `loud`"] {
        let is_named = |line: &String| line.starts_with("error: ") && line.contains(wrong);
        assert!(config.iter().any(is_named), "{run:?}");
    }

    let mut faulty = sandbox.command(&example("faulty"));
    let run = Run::from_output(
        faulty
            .args(["doctor", "--json", "--offline"])
            .output()
            .unwrap(),
    );
    assert_eq!(run.code, Some(1));
    assert!(
        findings(&run, "plugins")
            .join("\n")
            .contains("unloadable: its license has expired"),
        "{run:?}"
    );

    sandbox.write("workspace/.agents/skills/odd/SKILL.md", "no frontmatter\n");
    sandbox.trust();
    sandbox.example("echo_model", ["run", "hi"]).ok();
    let tape = std::fs::read_dir(sandbox.home().join("tapes"))
        .unwrap()
        .map(|file| file.unwrap().path());
    let tape = tape
        .into_iter()
        .find(|path| path.extension().is_some_and(|ext| ext == "jsonl"))
        .unwrap();
    let mut text = std::fs::read_to_string(&tape).unwrap();
    text.insert_str(0, "no entry\n");
    std::fs::write(&tape, text).unwrap();
    let run = doctor(&sandbox, &[], &["--json", "--offline"]);
    assert!(
        findings(&run, "skills")
            .iter()
            .any(|line| line.starts_with("warning: ") && line.contains("SKILL.md")),
        "{run:?}"
    );
    let tapes = findings(&run, "tapes");
    assert!(tapes[0].contains("checked 1 of 1 sessions"), "{tapes:?}");
    assert!(
        tapes[1].starts_with("error: ") && tapes[1].contains("bub tape check --repair"),
        "{tapes:?}"
    );
}

#[test]
fn permissions_of_the_home_are_checked() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.home()).unwrap();
    std::fs::set_permissions(sandbox.home(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let home = findings(&doctor(&sandbox, &[], &["--json", "--offline"]), "home");
    assert!(
        home[0].contains("is readable by other users (mode 755)") && home[0].contains("chmod 700"),
        "{home:?}"
    );
    std::fs::set_permissions(sandbox.home(), std::fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(
        findings(&doctor(&sandbox, &[], &["--json", "--offline"]), "home").len(),
        1
    );
    std::fs::remove_dir(sandbox.home()).unwrap();
    sandbox.write("home", "a file");
    let run = doctor(&sandbox, &[], &["--json", "--offline"]);
    assert!(
        findings(&run, "home")[0].contains("is not a directory"),
        "{run:?}"
    );
    assert_eq!(run.code, Some(1));
}

#[test]
fn a_home_that_cannot_be_made_is_broken() {
    let sandbox = Sandbox::new();
    // No user can create files there.
    let run = doctor(
        &sandbox,
        &[("BUB_HOME", "/proc/self/no/home")],
        &["--json", "--offline"],
    );
    let home = findings(&run, "home");
    assert!(
        run.code == Some(1)
            && home[0].starts_with("error: ")
            && home[0].contains("cannot be created"),
        "{home:?}"
    );
}

// A plugin that cannot be started is an error.
#[test]
fn plugins_that_changed_or_are_gone_are_broken() {
    let sandbox = Sandbox::new();
    let directory = sandbox.workspace().join("fixed");
    let plugins =
        || findings(&doctor(&sandbox, &[], &["--json", "--offline"]), "plugins").join("\n");
    sandbox.bub(["plugin", "new", "fixed"]).ok();
    sandbox.bub(["plugin", "add", "fixed", "--yes"]).ok();
    assert_eq!(
        plugins(),
        "ok: builtin, fetch, telegram, replay, http, cli, fixed; -"
    );
    std::fs::write(directory.join("more.txt"), "new").unwrap();
    let found = plugins();
    assert!(
        found.contains("error: fixed: the plugin's files changed"),
        "{found}"
    );
    assert!(found.contains("bub plugin remove fixed"), "{found}");
    std::fs::remove_dir_all(&directory).unwrap();
    assert!(plugins().contains("error: fixed: files not found"));
    sandbox.write("home/plugins.json", "{");
    assert!(
        plugins().contains("error: ") && plugins().contains("plugins.json: "),
        "{}",
        plugins()
    );
}

// A snapshot of the report.
#[test]
fn at_a_terminal_the_report_is_readable() {
    let sandbox = Sandbox::new();
    sandbox.write("home/config.yml", "max_steps: many\n");
    std::fs::set_permissions(sandbox.home(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let mut command = sandbox.command(Path::new(SESSION_LEADER[0]));
    command
        .args(&SESSION_LEADER[1..])
        .arg(bub())
        .args(["doctor", "--offline"])
        .env("TERM", "xterm")
        .env("NO_COLOR", "1");
    let (code, shown) = Pty::spawn_sized(command, 40, 200).finish();
    assert_eq!(code, Some(1));
    let root = sandbox.home().parent().unwrap().display().to_string();
    let shown = shown.replace(&root, "~").replace("\r\n", "\n");
    // Lines that depend on the machine and on the bundled plugins.
    let varies = |line: &&str| {
        let limit = "sandbox   ok       the limit on";
        ["disk", "clock", "channels", "skills", limit]
            .iter()
            .any(|check| line.starts_with(check))
    };
    let narrow = |line: &str| match line.strip_prefix("  ") {
        Some(line) => format!(
            "  {}",
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        ),
        None => line.to_owned(),
    };
    let fixed: Vec<_> = shown
        .lines()
        .filter(|line| !varies(line))
        .map(narrow)
        .collect();
    assert_eq!(
        fixed.join("\n"),
        "home      ok       ~/home\n\
         config    error    ~/home/config.yml:1: `max_steps` is `many`, expected a whole number of at least 1, or null\n\
         \x20 fix: run `bub config set max_steps VALUE` or `bub config unset max_steps`\n\
         trust     ok       nothing in the workspace needs trust\n\
         model     warning  no model configured: no API key set and no local server found\n\
         \x20 fix: run `bub onboard` to set one up, or `bub models` to list models\n\
         plugins   ok       builtin, fetch, telegram, replay, http, cli\n\
         sandbox   ok       workspace, with network at the terminal\n\
         tapes     ok       checked 0 of 0 sessions\n\
         \n\
         non-default settings:\n\
         \x20 home ~/home environment variable BUB_HOME\n\
         \x20 local_models false environment variable BUB_LOCAL_MODELS\n\
         \n\
         1 error, 1 warning"
    );
}

#[test]
fn what_no_turn_and_no_gateway_would_run_with_is_broken() {
    for (config, found) in [
        ("usage: {daily_cost: 1}\n", "the price of lab:x is unknown"),
        (
            "usage: {daily_tokens: 0}\n",
            "0 of 0 tokens (`usage.daily_tokens`)",
        ),
        (
            "enabled_channels: telegram\n",
            "no channel in `enabled_channels` (telegram) is set up",
        ),
    ] {
        let sandbox = Sandbox::new();
        sandbox.write("home/config.yml", &format!("model: lab:x\nproviders: {{lab: {{base_url: 'https://lab.example/v1', needs_key: false}}}}\n{config}"));
        let run = sandbox.bub(["doctor", "--offline"]);
        assert_eq!(run.code, Some(1), "{config}: {run:?}");
        assert!(run.stdout.contains(found), "{run:?}");
    }
}

// One finding per check, and advice that works.
#[test]
fn a_home_that_others_can_read_has_one_finding() {
    let sandbox = Sandbox::new();
    sandbox.write("home/config.yml", "max_steps: 7\n");
    let mode = |mode| std::fs::set_permissions(sandbox.home(), PermissionsExt::from_mode(mode));
    mode(0o755).unwrap();
    let run = doctor(&sandbox, &[], &["--offline", "--json"]);
    let home = sandbox.home().display().to_string();
    assert_eq!(
        findings(&run, "home"),
        [format!(
            "warning: {home} is readable by other users (mode 755); chmod 700 {home}"
        )]
    );
    mode(0o700).unwrap();
    let run = doctor(&sandbox, &[], &["--offline", "--json"]);
    assert_eq!(findings(&run, "home"), [format!("ok: {home}; -")]);
}

#[test]
fn the_advice_about_a_setting_fits_its_source() {
    let sandbox = Sandbox::new();
    sandbox.write("home/config.yml", "max_steps: many\n");
    let fix = |variables: &[(&str, &str)]| {
        let run = doctor(&sandbox, variables, &["--offline", "--json"]);
        let all = findings(&run, "config");
        let first = all.first().cloned().unwrap_or_default();
        first.rsplit("; ").next().unwrap_or_default().to_owned()
    };
    assert_eq!(
        fix(&[]),
        "run `bub config set max_steps VALUE` or `bub config unset max_steps`"
    );
    sandbox.bub(["config", "unset", "max_steps"]).ok();
    assert_eq!(
        fix(&[("BUB_MAX_STEPS", "many")]),
        "correct or unset the variable BUB_MAX_STEPS"
    );
    // `bub config set` refuses a file that is not YAML.
    sandbox.write("home/config.yml", "max_steps: [1\n");
    assert_eq!(fix(&[]), "correct the line with `bub config edit`");
    let run = sandbox.bub(["config", "set", "max_steps", "3"]);
    assert_eq!(run.code, Some(2), "{run:?}");
}
