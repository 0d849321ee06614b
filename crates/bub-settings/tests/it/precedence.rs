//! Tests of the precedence of sources, which is the same for every setting.

use bub_settings::{SettingSource, SettingSpec, ValueKind};
use serde_json::{Value, json};

use crate::fixture::{SettingsFixture, settings_fixture};
use crate::sample;

/// Returns the `n`th value for a setting, as text and as its meaning. Distinct for distinct `n`.
fn example(setting: &SettingSpec, n: u8) -> (String, Value) {
    let text = |text: String| (text.clone(), Value::from(text));
    match setting.kind {
        _ if setting.key == "model" => text(format!("lab:m{n}")),
        _ if setting.key == "webhook.listen" => text(format!("127.0.0.1:{n}")),
        _ if setting.key == "log.filter" => text(format!("lab={n}")),
        _ if setting.key.ends_with("api_base")
            || setting.key.ends_with("proxy") && setting.kind == ValueKind::Text =>
        {
            text(format!("http://host{n}"))
        }
        ValueKind::Bool => (["no", "yes"][usize::from(n % 2)].into(), json!(n % 2 == 1)),
        ValueKind::Integer if setting.max == Some(2) => ((n % 3).to_string(), json!(n % 3)),
        ValueKind::Integer => (n.to_string(), json!(n)),
        ValueKind::Number => (format!("{n}.5"), json!(f64::from(n) + 0.5)),
        ValueKind::List => (
            format!("a{n}, b{n}"),
            json!([format!("a{n}"), format!("b{n}")]),
        ),
        ValueKind::Map => (
            format!("{{\"k\": \"v{n}\"}}"),
            json!({"k": format!("v{n}")}),
        ),
        ValueKind::Maps => (
            format!("[{{\"k\": \"v{n}\"}}]"),
            json!([{"k": format!("v{n}")}]),
        ),
        ValueKind::Choice(words) => {
            let word = words[usize::from(n) % words.len()];
            (word.into(), json!(word))
        }
        _ if setting.secret => (format!("value-{n}"), json!("***")),
        _ => (format!("/value/{n}"), json!(format!("/value/{n}"))),
    }
}

/// Returns the config file for one dotted key.
fn yaml(key: &str, text: &str) -> String {
    match key.split_once('.') {
        Some((section, name)) => format!("{section}:\n  {name}: {text}\n"),
        None => format!("{key}: {text}\n"),
    }
}

fn check(fixture: &SettingsFixture, setting: &SettingSpec, expected: &Value, origin: &str) {
    let settings = fixture.load();
    let key = &*setting.key;
    let entry = settings
        .entries()
        .find(|entry| entry.setting.key == key)
        .unwrap();
    assert_eq!(&entry.display_value, expected, "{key} from {origin}");
    assert_eq!(fixture.shorten(entry.origin.to_string()), origin, "{key}");
}

// H-21, H-22, H-23, W-57: the Python version reads `.env` for some settings only
#[test]
fn every_setting_obeys_flags_then_environment_then_dotenv_then_config_then_default() {
    let settings: Vec<SettingSpec> = settings_fixture()
        .load()
        .entries()
        .map(|entry| entry.setting.clone())
        .collect();
    assert!(settings.len() > 25);
    for setting in &settings {
        let (key, variable) = (&*setting.key, setting.variable());
        let [config, dotenv, env, flag] = [1, 2, 3, 4].map(|n| example(setting, n));
        let mut fixture = settings_fixture();
        if key != "home" {
            let default = fixture
                .load()
                .entries()
                .find(|entry| entry.setting.key == key)
                .unwrap()
                .display_value;
            check(&fixture, setting, &default, "default");
        }
        if setting.in_file {
            fixture = fixture.config(yaml(key, &config.0));
            let line = if key.contains('.') { 2 } else { 1 };
            check(
                &fixture,
                setting,
                &config.1,
                &format!("user/.bub/config.yml:{line}"),
            );
        }
        fixture = fixture.dotenv(format!("# note\n{variable}='{}'\n", dotenv.0));
        check(
            &fixture,
            setting,
            &dotenv.1,
            &format!("work/.env:2 ({variable})"),
        );
        fixture = fixture.env(&variable, &env.0);
        check(
            &fixture,
            setting,
            &env.1,
            &format!("environment variable {variable}"),
        );
        fixture = fixture.flag(key, &flag.0);
        check(&fixture, setting, &flag.1, &format!("flag --{key}"));
    }
}

// H-21
#[test]
fn maps_of_all_sources_merge_and_every_entry_knows_its_source() {
    let fixture = settings_fixture()
        .config("client_args:\n  timeout: 5\n  headers:\n    A: file\n    B: file\n")
        .dotenv("BUB_CLIENT_ARGS='{\"headers\": {\"B\": \"dotenv\", \"C\": \"dotenv\"}}'")
        .env("BUB_CLIENT_ARGS", r#"{"headers": {"C": "env"}}"#);
    let settings = fixture.load();
    let merged = json!({"timeout": 5, "headers": {"A": "file", "B": "dotenv", "C": "env"}});
    assert_eq!(Value::Object(settings.get(&sample::CLIENT_ARGS)), merged);
    let origin = |path| fixture.shorten(settings.origin(path).unwrap().to_string());
    assert_eq!(origin("client_args.headers.A"), "user/.bub/config.yml:4");
    assert_eq!(
        origin("client_args.headers.B"),
        "work/.env:1 (BUB_CLIENT_ARGS)"
    );
    assert_eq!(
        settings.origin("client_args.headers.C"),
        Some(SettingSource::Env("BUB_CLIENT_ARGS".into()))
    );
}

// H-21, W-57: in the Python version provider variables rank below the file
#[test]
fn a_provider_variable_ranks_as_environment() {
    let fixture = settings_fixture()
        .config("api_key:\n  openai: file-openai\n  groq: file-groq\n")
        .env("BUB_OPENAI_API_KEY", "env-openai")
        .env("bub_anthropic_api_key", "env-anthropic");
    let settings = fixture.load();
    let keys = settings.get(&sample::API_KEY);
    let key = |provider| keys.get(provider).map(|secret| secret.expose().to_owned());
    assert_eq!(key("openai").as_deref(), Some("env-openai"));
    assert_eq!(key("groq").as_deref(), Some("file-groq"));
    assert_eq!(key("Anthropic").as_deref(), Some("env-anthropic"));
    assert_eq!(key("gemini"), None);
    assert_eq!(
        settings.origin("api_key.openai"),
        Some(SettingSource::Env("BUB_OPENAI_API_KEY".into()))
    );
}

// W-39, H-23: a provider's own value takes precedence over the value for all, unless that one comes
// from a source with higher precedence
#[test]
fn a_value_for_all_providers_is_the_fallback_of_the_specific_ones() {
    let fixture = settings_fixture()
        .config("api_key: all-from-file\n")
        .env("BUB_OPENAI_API_KEY", "env-openai");
    let keys = fixture.load().get(&sample::API_KEY);
    assert_eq!(keys.get("openai").unwrap().expose(), "env-openai");
    assert_eq!(keys.get("groq").unwrap().expose(), "all-from-file");
    assert_eq!(keys.specific_value("groq"), None);

    let fixture = fixture
        .env("BUB_API_KEY", "all-from-env")
        .config("api_key: {groq: file-groq}\n");
    let keys = fixture.load().get(&sample::API_KEY);
    assert_eq!(keys.shared_value().unwrap().expose(), "all-from-env");
    assert_eq!(
        keys.specific_value("openai").unwrap().expose(),
        "env-openai"
    );
    assert_eq!(
        keys.specific_value("groq"),
        None,
        "one key for all from a stronger source replaces the file's map"
    );
}
