//! Tests `bub config` from a terminal and from scripts.

use std::os::unix::fs::PermissionsExt;

use bub_testkit::pty::{Pty, SESSION_LEADER};
use serde_json::{Value, json};

use crate::sandbox::{Run, Sandbox, bub};

const KEY: &str = "sk-correct-horse-battery";

fn config(sandbox: &Sandbox) -> String {
    std::fs::read_to_string(sandbox.home().join("config.yml")).unwrap()
}

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

#[test]
fn a_value_is_set_shown_with_its_source_and_taken_out() {
    let sandbox = Sandbox::new();
    sandbox.write(
        "home/config.yml",
        "# mine\nmodel: a:b # why\nplugin: {x: 1}\n",
    );
    let path = sandbox.home().join("config.yml");
    assert_eq!(
        sandbox.bub(["config", "path"]).ok(),
        format!("{}\n", path.display())
    );
    assert_eq!(
        sandbox.bub(["config", "set", "max_steps", "7"]).ok(),
        format!("set max_steps in {}\n", path.display())
    );
    assert_eq!(
        config(&sandbox),
        "# mine\nmodel: a:b # why\nplugin: {x: 1}\nmax_steps: 7\n"
    );
    assert_eq!(sandbox.bub(["config", "get", "max_steps"]).ok(), "7\n");
    let found: Value =
        serde_json::from_str(&sandbox.bub(["config", "get", "max_steps", "--json"]).ok()).unwrap();
    assert_eq!(
        found,
        json!({"key": "max_steps", "value": 7, "source": format!("{}:4", path.display())})
    );
    let list = run_with(
        &sandbox,
        &[("BUB_MODEL", "c:d")],
        &["config", "list", "--changed"],
    )
    .ok();
    assert!(
        list.contains("model")
            && list.contains("c:d")
            && list.contains("environment variable BUB_MODEL"),
        "{list}"
    );
    assert!(!list.contains("max_tokens"), "{list}");
    let json = sandbox.bub(["config", "list", "--json"]).ok();
    assert!(
        json.lines()
            .all(|line| serde_json::from_str::<Value>(line).unwrap()["source"].is_string())
    );
    sandbox.bub(["config", "unset", "max_steps"]).ok();
    assert_eq!(
        config(&sandbox),
        "# mine\nmodel: a:b # why\nplugin: {x: 1}\n"
    );
}

#[test]
fn a_mistake_is_refused_in_one_line_and_changes_nothing() {
    let sandbox = Sandbox::new();
    let before = "model: a:b\n";
    sandbox.write("home/config.yml", before);
    for (args, error) in [
        (
            &["set", "max_steps", "many"][..],
            "`max_steps` is `many`, expected a whole number of at least 1, or null",
        ),
        (
            &["set", "modle", "a:b"],
            "unknown setting `modle`, did you mean `model`?",
        ),
        (
            &["get", "max_step"],
            "unknown setting `max_step`, did you mean `max_steps`?",
        ),
        (
            &["set", "home", "/x"],
            "`home` cannot be set in the config file; set the variable BUB_HOME",
        ),
        (
            &["set", "providers.lab.wire", "nonsense"],
            "config.yml:4: `providers.lab.wire` is `nonsense`",
        ),
        (
            &["set", "policy.rules", "[{\"action\": \"maybe\"}]"],
            "`action` must be one of allow, ask, deny",
        ),
        // Meaningless values are rejected when they are set.
        (
            &["set", "model", "foo"],
            "`model` is `foo`, expected a model, as `provider:model`",
        ),
        (
            &["set", "api_base", "ftp://lab.example"],
            "`api_base` is `ftp://lab.example`, expected a URL such as",
        ),
        (
            &["set", "api_base.lab", "ftp://x"],
            "`api_base.lab` is `ftp://x`, expected a URL such as",
        ),
        (
            &["set", "telegram.proxy", "junk"],
            "`telegram.proxy` is `junk`, expected the URL of an HTTP or SOCKS",
        ),
        (
            &["set", "webhook.listen", "foo"],
            "`webhook.listen` is `foo`, expected an address and a port",
        ),
        (
            &["set", "gateway.max_turns", "0"],
            "`gateway.max_turns` is `0`, expected a whole number of at least 1",
        ),
        (
            &["set", "log.filter", "loud"],
            "`log.filter` is `loud`, expected a log level (error, warn",
        ),
        (&["unset", "max_steps"], "does not set `max_steps`"),
        (&["unset", "modle"], "did you mean `model`?"),
    ] {
        let run = sandbox.bub(["config"].iter().chain(args));
        assert_eq!(run.code, Some(2), "{run:?}");
        assert!(
            run.stderr.starts_with("error: ") && run.stderr.contains(error),
            "{run:?}"
        );
        assert_eq!(
            (config(&sandbox).as_str(), run.stderr.lines().count()),
            (before, 1),
            "{run:?}"
        );
    }
}

// W-13, W-35
#[test]
fn a_secret_comes_by_pipe_and_is_masked_in_a_private_file() {
    let sandbox = Sandbox::new();
    sandbox.write("home/config.yml", "model: a:b\n");
    let file = sandbox.home().join("config.yml");
    let mode = || std::fs::metadata(&file).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(), 0o644);
    let mut command = sandbox.command(std::path::Path::new("sh"));
    command.args([
        "-c",
        &format!("echo {KEY} | {} config set api_key.lab", bub().display()),
    ]);
    Run::from_output(command.output().unwrap()).ok();
    assert_eq!(
        config(&sandbox),
        format!("model: a:b\napi_key:\n  lab: {KEY}\n")
    );
    assert_eq!(mode(), 0o600);
    for args in [
        &["list"][..],
        &["list", "--json"],
        &["get", "api_key.lab"],
        &["get", "api_key", "--json"],
    ] {
        let run = run_with(
            &sandbox,
            &[("BUB_VERBOSE", "2")],
            &[&["config"], args].concat(),
        );
        assert!(
            !run.stdout.contains(KEY) && !run.stderr.contains(KEY) && run.stdout.contains("***"),
            "{run:?}"
        );
    }
}

#[test]
fn the_file_that_was_read_is_written_and_a_stronger_source_is_named() {
    let sandbox = Sandbox::new();
    sandbox.write(".bub/config.yml", "model: a:b\n");
    let run = run_with(
        &sandbox,
        &[("BUB_MODEL", "x:y")],
        &["config", "set", "model", "c:d"],
    );
    assert_eq!(
        run.stderr,
        "note: environment variable BUB_MODEL overrides `model` in the config file\n"
    );
    run.ok();
    assert!(!sandbox.home().join("config.yml").exists());
    assert_eq!(
        std::fs::read_to_string(sandbox.workspace().join("../.bub/config.yml")).unwrap(),
        "model: c:d\n"
    );
}

#[test]
fn a_broken_file_can_be_explained_and_repaired() {
    let sandbox = Sandbox::new();
    sandbox.write("home/config.yml", "max_steps: many\n");
    for args in [&["config", "list"][..], &["config", "get", "max_steps"]] {
        let run = sandbox.bub(args);
        assert!(
            run.stderr.contains("config.yml:1: `max_steps` is `many`"),
            "{run:?}"
        );
        assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""));
    }
    sandbox.bub(["config", "set", "max_steps", "5"]).ok();
    assert_eq!(config(&sandbox), "max_steps: 5\n");
    sandbox.write("home/config.yml", "model: [unclosed\n");
    assert_eq!(
        sandbox.bub(["config", "set", "max_steps", "5"]).code,
        Some(2)
    );
    assert_eq!(config(&sandbox), "model: [unclosed\n");
}

#[test]
fn two_mistakes_are_corrected_one_after_the_other() {
    let sandbox = Sandbox::new();
    sandbox.write(
        "home/config.yml",
        "max_steps: many\nmax_tokens: few\nproviders: {a: {wire: x}, b: {wire: y}}\n",
    );
    let new = sandbox.bub(["config", "set", "providers", "3"]);
    assert_eq!(new.code, Some(2), "{new:?}");
    let run = sandbox.bub(["config", "set", "max_steps", "5"]);
    assert!(
        run.stderr.contains("note: remaining problem: ")
            && run.stderr.contains("`max_tokens` is `few`"),
        "{run:?}"
    );
    run.ok();
    for key in ["max_tokens", "providers.a", "providers.b"] {
        sandbox.bub(["config", "unset", key]).ok();
    }
    assert_eq!(config(&sandbox), "max_steps: 5\n");
    assert_eq!(
        sandbox.bub(["config", "set", "providers.a.wire", "x"]).code,
        Some(2)
    );
}

// W-35: a base URL may contain a key
#[test]
fn an_address_with_a_key_in_it_is_not_quoted() {
    for address in ["https://lab.example/v1?key=KEY", "ftp://me:KEY@lab.example"] {
        let providers =
            json!({"lab": {"base_url": address.replace("KEY", "hush-hush")}}).to_string();
        for (key, value) in [
            ("providers", &*providers),
            (
                "providers.lab.base_url",
                &address.replace("KEY", "hush-hush"),
            ),
        ] {
            let run = Sandbox::new().bub(["config", "set", key, value]);
            assert!(
                run.code == Some(2) && run.stderr.contains("providers.lab.base_url"),
                "{run:?}"
            );
            assert!(!run.stderr.contains("hush-hush"), "{run:?}");
        }
    }
}

// W-13
#[test]
fn no_key_is_lost_by_setting_another_or_nothing() {
    let sandbox = Sandbox::new();
    sandbox.write(
        "home/config.yml",
        "model: groq:m\napi_key: the-key-of-groq\n",
    );
    for args in [
        &["config", "set", "api_key"][..],
        &["config", "set", "api_key.groq"],
    ] {
        // Stdin is empty.
        let run = sandbox.bub(args);
        assert!(
            run.code == Some(2) && run.stderr.contains("is empty, expected a secret"),
            "{run:?}"
        );
    }
    sandbox.bub(["config", "set", "api_key.openai", KEY]).ok();
    let both = format!("model: groq:m\napi_key: {{groq: the-key-of-groq, openai: {KEY}}}\n");
    assert_eq!(config(&sandbox), both);
    sandbox.write("home/config.yml", "api_key: everybodys-key\n");
    sandbox.bub(["config", "set", "api_key.openai", KEY]).ok();
    assert_eq!(
        config(&sandbox),
        format!("api_key: {{'*': everybodys-key, openai: {KEY}}}\n")
    );
}

// W-35: the owner of an unscoped key does not change with the model
#[test]
fn a_plain_key_stays_with_the_provider_of_the_model_before() {
    let openai = "api_key: the-key-of-openai # mine\napi_base: https://openai.example/v1\n";
    let kept = "api_key: {openai: the-key-of-openai} # mine\napi_base: {openai: https://openai.example/v1}\n";
    for (before, args, after) in [
        (
            "model: openai:x\n",
            &["set", "model", "groq:y"][..],
            "model: groq:y\n",
        ),
        ("model: openai:x\n", &["unset", "model"], ""),
    ] {
        let sandbox = Sandbox::new();
        sandbox.write("home/config.yml", &format!("{before}{openai}"));
        let run = sandbox.bub(["config"].iter().chain(args));
        assert_eq!(config(&sandbox).replace('\'', ""), format!("{after}{kept}"));
        let note = "note: moved `api_key` to `api_key.openai`, because it belongs to `openai`; ";
        assert!(run.stderr.contains(note) || args[0] == "unset", "{run:?}");
        run.ok();
    }
    // Another model of the same provider, also by an alias, changes nothing; nor does a value that is not unscoped.
    for (before, model) in [
        ("model: openai:x\napi_key: the-key-of-openai\n", "openai:y"),
        (
            "model: anthropic:x\napi_key: the-key-of-anthropic\n",
            "claude:y",
        ),
        (
            "model: openai:x\napi_key: {openai: the-key-of-openai}\n",
            "groq:y",
        ),
        ("model: x:y\n", "groq:y"),
    ] {
        let sandbox = Sandbox::new();
        sandbox.write("home/config.yml", before);
        let run = sandbox.bub(["config", "set", "model", model]);
        assert_eq!(run.stderr, "", "{before}");
        let (_, rest) = before.split_once('\n').unwrap();
        assert_eq!(config(&sandbox), format!("model: {model}\n{rest}"));
    }
    // A key in a variable cannot be moved.
    let sandbox = Sandbox::new();
    sandbox.write("home/config.yml", "model: openai:x\n");
    let run = run_with(
        &sandbox,
        &[("BUB_API_KEY", KEY)],
        &["config", "set", "model", "groq:y"],
    );
    let note =
        "note: environment variable BUB_API_KEY applied to `openai` and now applies to `groq`\n";
    assert_eq!((run.code, run.stderr.as_str()), (Some(0), note));
}

// W-13: a single value does not replace a map, and a value that cannot be read back is not written
#[test]
fn what_would_cost_the_rest_of_the_file_is_refused() {
    let sandbox = Sandbox::new();
    let before = "api_key:\n  groq: the-key-of-groq\napi_base: {groq: 'https://groq.example/v1'}\n";
    sandbox.write("home/config.yml", before);
    for (key, value, error) in [
        ("api_key", KEY, "set `api_key.<name>`"),
        (
            "api_base",
            "https://other.example/v1",
            "set `api_base.<name>`",
        ),
        ("api_key.lab", "two\nlines", "expected a secret in one line"),
        ("api_key.lab", "a\u{7}bell", "expected a secret in one line"),
    ] {
        let run = sandbox.bub(["config", "set", key, value]);
        assert!(run.code == Some(2) && run.stderr.contains(error), "{run:?}");
        assert_eq!(config(&sandbox), before);
    }
    for (length, error) in [
        (1 << 20, "would be larger than 1 MiB"),
        ((1 << 20) + 1, "stdin is longer than"),
    ] {
        let mut command = sandbox.command(std::path::Path::new("sh"));
        let script = "head -c $1 /dev/zero | tr '\\0' x | $2 config set env.drop -";
        command
            .args(["-c", script, "sh", &length.to_string()])
            .arg(bub());
        let run = Run::from_output(command.output().unwrap());
        assert!(
            run.code == Some(2) && run.stderr.contains(error),
            "{:?} {}",
            run.code,
            run.stderr.len()
        );
        assert_eq!(config(&sandbox), before);
    }
}

#[test]
fn changes_at_the_same_time_are_all_made() {
    let sandbox = Sandbox::new();
    let start = |at: usize| {
        let mut command = sandbox.command(&bub());
        command.args([
            "config",
            "set",
            &format!("api_base.lab{at}"),
            "https://lab.example/v1",
        ]);
        command.stdout(std::process::Stdio::null()).spawn().unwrap()
    };
    for mut child in (0..12).map(start).collect::<Vec<_>>() {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(
        config(&sandbox).matches("https://lab.example/v1").count(),
        12
    );
}

// W-35
#[test]
fn at_a_terminal_a_value_is_asked_for_without_showing_it() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.command(std::path::Path::new(SESSION_LEADER[0]));
    command
        .args(&SESSION_LEADER[1..])
        .arg(bub())
        .args(["config", "set", "api_key.lab"]);
    let mut terminal = Pty::spawn(command);
    terminal.expect("value of api_key.lab: ");
    terminal.send(&format!("{KEY}\r"));
    let (code, shown) = terminal.finish();
    assert_eq!(code, Some(0), "{shown}");
    assert!(!shown.contains(KEY), "{shown}");
    assert_eq!(config(&sandbox), format!("api_key:\n  lab: {KEY}\n"));
}

#[test]
fn a_former_key_works_with_a_warning_and_is_replaced_in_the_file() {
    for (old, new) in [
        ("gateway.queue", "gateway.max_unfinished"),
        ("gateway.turns", "gateway.max_turns"),
        ("webhook.connections", "webhook.max_connections"),
        ("log.file_size", "log.max_file_bytes"),
    ] {
        let sandbox = Sandbox::new();
        let warning = format!("warning: `{old}` is deprecated; use `{new}`\n");
        let (section, name) = old.split_once('.').unwrap();
        sandbox.write("home/config.yml", &format!("{section}: {{{name}: 7}}\n"));
        let run = sandbox.bub(["config", "get", new]);
        assert_eq!((run.code, run.stdout.as_str()), (Some(0), "7\n"), "{run:?}");
        let logged = format!("`{old}` is deprecated; use `{new}`");
        assert!(run.stderr.contains(&logged), "{run:?}");
        let run = sandbox.bub(["config", "get", old]);
        assert_eq!((run.code, run.stdout.as_str()), (Some(0), "7\n"), "{run:?}");
        assert!(run.stderr.contains(&warning), "{run:?}");
        let run = sandbox.bub(["config", "set", old, "8"]);
        assert!(
            run.code == Some(0) && run.stderr.contains(&warning),
            "{run:?}"
        );
        let (_, new_name) = new.split_once('.').unwrap();
        assert_eq!(config(&sandbox), format!("{section}: {{{new_name}: 8}}\n"));
        // The file has only the new key, so there is nothing to warn about.
        let run = sandbox.bub(["config", "get", new]);
        assert_eq!(
            (run.stdout.as_str(), run.stderr.as_str()),
            ("8\n", ""),
            "{run:?}"
        );
        let variable = format!("BUB_{}", old.replace('.', "_").to_uppercase());
        let run = run_with(&sandbox, &[(&variable, "9")], &["config", "get", new]);
        assert_eq!(run.stdout, "9\n", "{run:?}");
        assert!(run.stderr.contains(&variable), "{run:?}");
        sandbox.bub(["config", "unset", old]).ok();
        assert_eq!(config(&sandbox).trim(), "", "{old}");
    }
}

// H-24: a token that no bot can have is refused when it is set.
#[test]
fn an_impossible_bot_token_is_refused_at_once() {
    let sandbox = Sandbox::new();
    for token in [
        "hello", "9876543", "abc:def", "9876543:", "12:a b", "123:abc",
    ] {
        let run = sandbox.bub(["config", "set", "telegram.token", token]);
        assert_eq!(run.code, Some(2), "{run:?}");
        assert_eq!(
            run.stderr,
            "error: invalid `telegram.token`: expected a token from @BotFather, such as `123456:ABC…`\n"
        );
        assert!(!sandbox.home().join("config.yml").exists());
    }
    sandbox
        .bub([
            "config",
            "set",
            "telegram.token",
            bub_testkit::telegram::TOKEN,
        ])
        .ok();
    // A wrong value from before does not prevent the correction of another one.
    sandbox.write("home/config.yml", "telegram: {token: hello}\n");
    sandbox
        .bub(["config", "set", "telegram.stream", "false"])
        .ok();
}

// A list can be written as in the config file.
#[test]
fn a_list_is_set_from_a_yaml_list() {
    let sandbox = Sandbox::new();
    for text in ["[bash, fs.edit]", r#"["bash", "fs.edit"]"#, "bash, fs.edit"] {
        sandbox.bub(["config", "set", "policy.ask", text]).ok();
        let shown = sandbox.bub(["config", "get", "policy.ask"]).ok();
        assert_eq!(shown, "bash, fs.edit\n", "{text}");
    }
    let run = sandbox.bub(["config", "set", "policy.ask", "[bash"]);
    assert_eq!(run.code, Some(2), "{run:?}");
}
