//! Tests of editing the config file: the rest stays unchanged, and all parsers read the same
//! values.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use bub_settings::{ConfigFile, EditError, parse_yaml};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::fixture::{SettingsFixture, settings_fixture};

fn file(fixture: &SettingsFixture) -> ConfigFile {
    ConfigFile::open(&fixture.path("user/.bub/config.yml")).unwrap()
}

fn edited(before: &str, edit: impl FnOnce(&mut ConfigFile) -> Result<(), EditError>) -> String {
    let fixture = settings_fixture().config(before);
    let mut file = file(&fixture);
    match edit(&mut file) {
        Ok(()) => file.text().to_owned(),
        Err(error) => format!("error: {}", fixture.shorten(error.to_string())),
    }
}

fn set(before: &str, path: &str, value: impl Into<Value>) -> String {
    edited(before, |file| {
        file.set(&path.split('.').collect::<Vec<_>>(), &value.into())
    })
}

fn unset(before: &str, path: &str) -> String {
    edited(before, |file| {
        file.unset(&path.split('.').collect::<Vec<_>>()).map(drop)
    })
}

// W-13: the Python version writes a new file and loses everything else
#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn setting_a_value_keeps_everything_else() {
    for (before, path, value, after) in [
        ("", "model", json!("a:b"), "model: a:b\n"),
        (
            "# only a comment",
            "model",
            json!("a:b"),
            "# only a comment\nmodel: a:b\n",
        ),
        ("---\n", "model", json!("a:b"), "---\nmodel: a:b\n"),
        (
            "model: x:y # mine\nmax_steps: 3\n",
            "model",
            json!("a:b"),
            "model: a:b # mine\nmax_steps: 3\n",
        ),
        ("model:   x:y\n", "model", json!("a:b"), "model:   a:b\n"),
        (
            "model:\nmax_steps: 3\n",
            "model",
            json!("a:b"),
            "model: a:b\nmax_steps: 3\n",
        ),
        (
            "model: ~ # none\n",
            "model",
            json!("a:b"),
            "model: a:b # none\n",
        ),
        (
            "\"model\" : 'x:y'\n",
            "model",
            json!("a:b"),
            "\"model\" : a:b\n",
        ),
        (
            "# top\nmodel: x:y\n\n# end\n",
            "max_steps",
            json!(3),
            "# top\nmodel: x:y\nmax_steps: 3\n\n# end\n",
        ),
        (
            "model: x:y",
            "max_steps",
            json!(3),
            "model: x:y\nmax_steps: 3",
        ),
        (
            "model: x:y\r\nmine: 1\r\n",
            "max_steps",
            json!(3),
            "model: x:y\r\nmine: 1\r\nmax_steps: 3\r\n",
        ),
        (
            "\u{feff}model: x:y\n",
            "model",
            json!("a:b"),
            "\u{feff}model: a:b\n",
        ),
        // sections
        (
            "model: x:y\n",
            "telegram.token",
            json!("1:a"),
            "model: x:y\ntelegram:\n  token: '1:a'\n",
        ),
        (
            "telegram:\n",
            "telegram.token",
            json!("t"),
            "telegram:\n  token: t\n",
        ),
        (
            "telegram: # bot\nmax_steps: 3\n",
            "telegram.token",
            json!("t"),
            "telegram: # bot\n  token: t\nmax_steps: 3\n",
        ),
        (
            "telegram: null\n",
            "telegram.token",
            json!("t"),
            "telegram:\n  token: t\n",
        ),
        (
            "telegram:\n    token: x # old\n    # who\n    allow_users: a\n# last\n",
            "telegram.proxy",
            json!("http://p"),
            "telegram:\n    token: x # old\n    # who\n    allow_users: a\n    proxy: http://p\n# last\n",
        ),
        (
            "telegram: {token: x}\n",
            "telegram.proxy",
            json!("p"),
            "telegram: {token: x, proxy: p}\n",
        ),
        (
            "telegram: {}\n",
            "telegram.proxy",
            json!("http://p"),
            "telegram: {proxy: 'http://p'}\n",
        ),
        (
            "{model: x}\n",
            "telegram.token",
            json!("t"),
            "{model: x, telegram: {token: t}}\n",
        ),
        // complete collections, texts over several lines
        (
            "fallback_models:\n- a:b\n- c:d\nmax_steps: 3\n",
            "fallback_models",
            json!(["e"]),
            "fallback_models: [e]\nmax_steps: 3\n",
        ),
        (
            "api_key: # all\n  x: y\nmodel: m\n",
            "api_key",
            json!("k"),
            "api_key: k # all\nmodel: m\n",
        ),
        (
            "note: |\n  one\n  two\nmodel: m\n",
            "note",
            json!("k"),
            "note: k\nmodel: m\n",
        ),
        (
            "note: |\n  one\n  two\n",
            "model",
            json!("m"),
            "note: |\n  one\n  two\nmodel: m\n",
        ),
        (
            "note: \"one\n  two\"\nmodel: m\n",
            "note",
            json!("k"),
            "note: k\nmodel: m\n",
        ),
        (
            "client_args:\n  a:\n    b: 1\n",
            "client_args.a.c",
            json!(2),
            "client_args:\n  a:\n    b: 1\n    c: 2\n",
        ),
        (
            "a: 1\nmodel: x\nmodel: y\n",
            "model",
            json!("z"),
            "a: 1\nmodel: x\nmodel: z\n",
        ),
        (
            "base: &b {model: x}\n<<: *b\n",
            "model",
            json!("z"),
            "base: &b {model: x}\n<<: *b\nmodel: z\n",
        ),
        (
            "schlüssel: ä\nmodel: 你好\n",
            "model",
            json!("z"),
            "schlüssel: ä\nmodel: z\n",
        ),
    ] {
        assert_eq!(set(before, path, value), after, "{before:?} {path}");
    }
}

#[test]
fn what_cannot_be_changed_safely_is_refused() {
    for (before, path, error) in [
        (
            "api_key: abc\n",
            "api_key.openai",
            "user/.bub/config.yml:1: cannot set `openai`: `api_key` is a single value or a list; unset it first",
        ),
        (
            "a: &x 1\nb: *x\n",
            "a",
            "user/.bub/config.yml:1: `a` is written in a way that cannot be changed safely; use `bub config edit`",
        ),
        (
            "- a\n",
            "a",
            "user/.bub/config.yml:1: found a single value or a list, expected a map of settings such as `model: provider:name`",
        ),
        ("a: [\n", "a", "user/.bub/config.yml:1:4: not valid YAML: "),
    ] {
        let text = set(before, path, json!(7));
        assert!(
            text.starts_with(&format!("error: {error}")),
            "{before:?}: {text}"
        );
    }
}

#[test]
fn taking_a_value_out_keeps_everything_else() {
    for (before, path, after) in [
        (
            "# top\nmodel: x # mine\n# more\nmax_steps: 3\n",
            "model",
            "# top\n# more\nmax_steps: 3\n",
        ),
        ("model: x\n", "model", ""),
        ("model: x", "model", ""),
        ("model: x\n", "absent", "model: x\n"),
        (
            "telegram:\n  token: t\n  proxy: p\nmodel: x\n",
            "telegram.token",
            "telegram:\n  proxy: p\nmodel: x\n",
        ),
        (
            "telegram:\n  # the bot\n  token: t\nmodel: x\n",
            "telegram.token",
            "  # the bot\nmodel: x\n",
        ),
        (
            "telegram:\n  token: t\n  proxy: p\nmodel: x\n",
            "telegram",
            "model: x\n",
        ),
        (
            "telegram: {token: t, proxy: p}\n",
            "telegram.token",
            "telegram: {proxy: p}\n",
        ),
        (
            "telegram: {token: t, proxy: p}\n",
            "telegram.proxy",
            "telegram: {token: t}\n",
        ),
        (
            "telegram: {token: t}\nmodel: x\n",
            "telegram.token",
            "model: x\n",
        ),
        ("{model: x}\n", "model", "{}\n"),
        ("model: x\na: 1\nmodel: y\n", "model", "a: 1\n"),
        ("note: |\n  one\n  two\nmodel: m\n", "note", "model: m\n"),
        (
            "fallback_models:\n- a\n- b\nmodel: m\n",
            "fallback_models",
            "model: m\n",
        ),
    ] {
        assert_eq!(unset(before, path), after, "{before:?} {path}");
    }
}

// C.4: words that some YAML parsers read differently are quoted
#[test]
fn what_is_written_is_text_for_every_reader() {
    for text in [
        "yes",
        "No",
        "on",
        "OFF",
        "y",
        "N",
        "null",
        "~",
        "",
        " a",
        "a ",
        "1e3",
        "12:30",
        "12:30:45",
        "2026-01-01",
        "0x1f",
        "017",
        "1_000",
        ".inf",
        "=",
        "<<",
        "- a",
        "a: b",
        "a #b",
        "#a",
        "*a",
        "&a",
        "!a",
        "%a",
        "@a",
        "`a",
        "{a}",
        "[a]",
        "a:",
        "'",
        "\"",
        "\\",
        "it's",
    ] {
        let after = set("", "model", json!(text));
        assert!(after.starts_with("model: '"), "{after:?}");
        assert_eq!(parse_yaml(&after).unwrap(), json!({"model": text}));
    }
    for text in [
        "openrouter:openrouter/free",
        "/tmp/x",
        "a, b",
        "http://localhost:11434/v1",
        "gpt-5.1",
    ] {
        assert_eq!(set("", "model", json!(text)), format!("model: {text}\n"));
    }
    assert_eq!(
        set("", "model", json!("a\nb\u{85}\u{7}")),
        "model: \"a\\nb\\U00000085\\U00000007\"\n"
    );
    assert_eq!(set("", "x", json!(1e21)), "x: 1000000000000000000000.0\n");
    assert_eq!(
        set("", "x", json!([1.5, null, true, {"a": "b:c"}])),
        "x: [1.5, null, true, {a: 'b:c'}]\n"
    );
}

// C.4: the Python version reads the same values. Skipped if its YAML parser is not installed.
#[test]
fn what_is_written_is_read_alike_by_the_reader_of_the_original() {
    let texts = [
        "yes",
        "No",
        "on",
        "y",
        "n",
        "1e3",
        "12:30",
        "12:30:45",
        "2026-01-01",
        "0x1f",
        "017",
        "0o17",
        "1_000",
        ".inf",
        "~",
        "null",
        "=",
        "<<",
        "it's",
        "a: b",
        "#x",
        "a #b",
        "ünï 你好 🐙",
        "\"q\"",
        "a\tb\n",
        "-",
        "- a",
        "? a",
        "a,b",
        "{a",
        "[a",
        "*a",
        "&a",
        "!a",
        "%a",
        "@a",
        "`a",
        "|",
        "> x",
        "\\",
        "a\u{2028}b\u{7f}\u{85}",
        "-1",
        "1.5",
        "1.5e+3",
        "a:",
        "//x",
        "",
        " x ",
    ];
    let value = json!({"texts": texts.to_vec(), "numbers": [1, -2, 1.5, 1e21, 2.0], "others": [null, true, {"on": {"y": "n"}}, []]});
    let fixture = settings_fixture().config("# nothing yet\n");
    let mut file = file(&fixture);
    for (number, text) in texts.iter().enumerate() {
        file.set(&["plain", &format!("k{number}")], &json!(text))
            .unwrap();
        file.set(&["keys", text], &json!(number)).unwrap();
    }
    file.set(&["flow"], &value).unwrap();
    file.save().unwrap();
    let script = "import json, sys\ntry:\n import yaml\nexcept ImportError:\n sys.exit(3)\n\
                  print(json.dumps(yaml.safe_load(open(sys.argv[1], encoding='utf-8'))))";
    let path = fixture.path("user/.bub/config.yml");
    let Ok(output) = std::process::Command::new("python3")
        .args(["-c", script])
        .arg(path)
        .output()
    else {
        return;
    };
    if output.status.code() == Some(3) {
        return;
    }
    let read: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| {
        panic!(
            "{}\n{}",
            file.text(),
            String::from_utf8_lossy(&output.stderr)
        )
    });
    assert_eq!(read, parse_yaml(file.text()).unwrap());
    assert_eq!(read["flow"], value);
}

// W-13: also a file that others could read, and without a secret in it.
#[test]
fn a_file_is_replaced_whole_through_links_and_becomes_private() {
    let fixture = settings_fixture().file("elsewhere/real.yml", "model: x # mine\n");
    let (link, real) = (
        fixture.path("user/.bub/config.yml"),
        fixture.path("elsewhere/real.yml"),
    );
    symlink("../../elsewhere/real.yml", &link).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    fs::set_permissions(&real, fs::Permissions::from_mode(0o644)).unwrap();
    let inode = fs::metadata(&real).unwrap().ino();

    let mut file = ConfigFile::open(&link).unwrap();
    file.set(&["model"], &json!("z")).unwrap();
    file.save().unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::read_to_string(&real).unwrap(), "model: z # mine\n");
    assert_eq!(mode(&real), 0o600);
    assert_ne!(
        fs::metadata(&real).unwrap().ino(),
        inode,
        "written in place"
    );
    assert_eq!(
        fs::read_dir(fixture.path("elsewhere")).unwrap().count(),
        1,
        "nothing is left behind"
    );

    let fresh = fixture.path("new/home/config.yml");
    ConfigFile::open(&fresh).unwrap().save().unwrap();
    assert_eq!(
        (mode(&fresh), mode(fresh.parent().unwrap())),
        (0o600, 0o700)
    );
}

#[test]
fn what_somebody_else_wrote_meanwhile_is_not_overwritten() {
    let fixture = settings_fixture().config("model: x\n");
    let mut file = file(&fixture);
    file.set(&["model"], &json!("z")).unwrap();
    let fixture = fixture.config("model: theirs\n");
    assert!(matches!(file.save(), Err(EditError::Changed { .. })));
    assert_eq!(
        fs::read_to_string(fixture.path("user/.bub/config.yml")).unwrap(),
        "model: theirs\n"
    );
}

// W-13: a full disk or a read-only directory leaves the file unchanged
#[test]
fn a_failed_write_leaves_the_file_and_nothing_else() {
    let fixture = settings_fixture().config("model: x\n");
    let mut file = file(&fixture);
    file.set(&["model"], &json!("z")).unwrap();
    // Blocks the path of the temporary file.
    let obstacle = fixture
        .path("user/.bub")
        .join(format!(".config.yml.{}", std::process::id()));
    fs::create_dir(&obstacle).unwrap();
    assert!(matches!(file.save(), Err(EditError::Unwritable { .. })));
    assert_eq!(
        fs::read_to_string(fixture.path("user/.bub/config.yml")).unwrap(),
        "model: x\n"
    );
}

#[test]
fn a_text_becomes_what_the_declaration_says_and_the_original_reads() {
    let settings = settings_fixture().load();
    for (path, text, value) in [
        ("max_steps", "7", json!(7)),
        ("max_steps", "null", json!(null)),
        ("stream_output", "on", json!(true)),
        ("debounce_seconds", "1.5", json!(1.5)),
        // H-23: the Python version reads these as comma-separated text, and that one only as a list
        (
            "enabled_channels",
            "telegram,webhook",
            json!("telegram, webhook"),
        ),
        ("telegram.allow_users", "[\"a\", \"b\"]", json!("a, b")),
        ("fallback_models", "a:b, c:d", json!(["a:b", "c:d"])),
        ("api_key", "0123", json!("0123")),
        ("api_key.openai", " sk-1 ", json!("sk-1")),
        ("client_args.timeout", "30", json!(30)),
        ("client_args", "{\"a\": 1}", json!({"a": 1})),
        ("tape.durability", "ALWAYS", json!("always")),
    ] {
        assert_eq!(
            settings.parse_config_value(path, text).unwrap(),
            value,
            "{path}"
        );
    }
    for (path, text, error) in [
        (
            "max_steps",
            "many",
            "`max_steps` is `many`, expected a whole number of at least 1, or null",
        ),
        (
            "modle",
            "x",
            "unknown setting `modle`, did you mean `model`?",
        ),
        (
            "home",
            "/x",
            "`home` cannot be set in the config file; set the variable BUB_HOME",
        ),
        (
            "telegram",
            "x",
            "unknown setting `telegram`; run `bub config list` to see all settings",
        ),
        ("max_steps.x", "1", "unknown setting `max_steps.x`"),
    ] {
        assert!(
            settings
                .parse_config_value(path, text)
                .unwrap_err()
                .to_string()
                .starts_with(error),
            "{path}"
        );
    }
}

#[test]
fn a_revision_says_what_would_be_in_force_and_what_is_wrong() {
    let fixture = settings_fixture()
        .config("model: x:y\n")
        .env("BUB_MAX_STEPS", "9");
    let settings = fixture.load();
    let (revised, problems) = settings
        .with_config_text("model: a:b\nmax_steps: 3\nmax_tokens: many\n")
        .unwrap();
    assert_eq!(revised.text_at("model").as_deref(), Some("a:b"));
    assert_eq!(
        revised.text_at("max_steps").as_deref(),
        Some("9"),
        "the environment is stronger"
    );
    assert_eq!(problems.len(), 1);
    assert!(!revised.has_secrets_in_file());
    for text in [
        "api_key: {openai: abc}\n",
        "telegram: {token: x}\n",
        "mail: {password: x}\n",
    ] {
        assert!(
            settings
                .with_config_text(text)
                .unwrap()
                .0
                .has_secrets_in_file(),
            "{text}"
        );
    }
    assert!(settings.with_config_text("telegram: 3\n").unwrap().1.len() == 1);
    assert!(settings.with_config_text("a: [\n").is_err());
}

fn yaml_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            proptest::collection::hash_map("[a-z ]{1,4}", inner, 0..3)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    // The value is set afterwards, or the change was rejected.
    #[test]
    fn any_value_survives_the_way_into_the_file(value in yaml_value(), key in "[a-z]{1,3}", other in yaml_value()) {
        let fixture = settings_fixture().config("# c\na: {b: 1}\nab:\n  c: 2 # d\n");
        let mut file = file(&fixture);
        file.set(&[&key], &other).unwrap();
        file.set(&["ab", "zz"], &value).ok();
        if key != "ab" {
            prop_assert_eq!(parse_yaml(file.text()).unwrap()["ab"]["zz"].clone(), value);
        }
        prop_assert!(file.text().contains("# c\n"));
    }
}
