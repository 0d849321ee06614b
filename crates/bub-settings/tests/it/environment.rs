//! Tests of reading variables.

use std::time::Duration;

use bub_settings::{Environment, Loader};
use serde_json::json;

use crate::fixture::settings_fixture;
use crate::sample;

// H-21
#[test]
fn variable_names_are_case_insensitive_and_capitals_win() {
    let settings = settings_fixture().env("bub_Model", "a:b").load();
    assert_eq!(settings.get(&sample::MODEL).unwrap(), "a:b");
    let settings = settings_fixture()
        .env("BUB_MODEL", "a:capitals")
        .env("bub_model", "a:small")
        .load();
    assert_eq!(settings.get(&sample::MODEL).unwrap(), "a:capitals");
}

// H-23: the Python version rejects the comma form
#[test]
fn lists_are_json_or_comma_separated() {
    for (text, models) in [
        (r#"["a:b", "c:d"]"#, Some(vec!["a:b", "c:d"])),
        ("a:b, c:d,", Some(vec!["a:b", "c:d"])),
        ("a:b", Some(vec!["a:b"])),
        ("[]", Some(vec![])),
        ("", Some(vec![])),
        ("null", None),
    ] {
        let found = settings_fixture()
            .env("BUB_FALLBACK_MODELS", text)
            .load()
            .get(&sample::FALLBACK_MODELS);
        let models = models.map(|models| models.into_iter().map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(found, models, "{text}");
    }
}

// H-23, W-57: the Python version rejects a key of digits
#[test]
fn a_key_of_digits_is_a_key() {
    for fixture in [
        settings_fixture().env("BUB_API_KEY", "0123456789"),
        settings_fixture().config("api_key: 0123456789\n"),
        settings_fixture().dotenv("BUB_API_KEY=0123456789\n"),
        settings_fixture().env("BUB_API_KEY", r#"{"openai": "0123456789"}"#),
        settings_fixture().config("api_key: {OpenAI: 0123456789}\n"),
        settings_fixture().env("BUB_OPENAI_API_KEY", "0123456789"),
    ] {
        let keys = fixture.load().get(&sample::API_KEY);
        assert_eq!(keys.get("openai").unwrap().expose(), "0123456789");
    }
}

// H-23
#[test]
fn null_means_none() {
    let fixture = settings_fixture().config(
        "api_key: from-file\nmax_steps: 5\nclient_args: {a: 1}\ntelegram: {token: abc123}\n",
    );
    let fixture = fixture
        .env("BUB_API_KEY", "null")
        .env("BUB_MAX_STEPS", "null");
    let fixture = fixture
        .env("BUB_CLIENT_ARGS", "null")
        .env("BUB_TELEGRAM_TOKEN", "null");
    let settings = fixture.load();
    assert!(settings.get(&sample::API_KEY).is_empty());
    assert_eq!(settings.get(&sample::MAX_STEPS), None);
    assert!(settings.get(&sample::CLIENT_ARGS).is_empty());
    assert_eq!(settings.get(&sample::TELEGRAM_TOKEN), None);
}

#[test]
fn an_empty_variable_means_none_or_not_set() {
    let fixture = settings_fixture()
        .config("model: a:b\nmax_tokens: 5\ntelegram: {token: abc123}\nenabled_channels: cli\n");
    let fixture = fixture
        .env("BUB_MODEL", "")
        .env("BUB_MAX_TOKENS", " ")
        .env("BUB_TELEGRAM_TOKEN", "");
    let settings = fixture
        .env("BUB_ENABLED_CHANNELS", "")
        .env("BUB_OPENAI_API_KEY", "")
        .load();
    assert_eq!(settings.get(&sample::MODEL), None);
    assert_eq!(settings.get(&sample::MAX_TOKENS), 5);
    assert_eq!(settings.get(&sample::TELEGRAM_TOKEN), None);
    assert_eq!(
        settings.get(&sample::ENABLED_CHANNELS),
        Vec::<String>::new()
    );
    assert!(settings.get(&sample::API_KEY).is_empty());
}

// H-23
#[test]
fn booleans_have_eight_spellings_in_every_source() {
    for (text, expected) in [
        ("true", true),
        ("1", true),
        ("yes", true),
        ("ON", true),
        ("False", false),
        ("0", false),
        ("no", false),
        ("off", false),
    ] {
        assert_eq!(
            settings_fixture()
                .env("BUB_STREAM_OUTPUT", text)
                .load()
                .get(&sample::STREAM_OUTPUT),
            expected
        );
        let config = format!("stream_output: {text}\n");
        assert_eq!(
            settings_fixture()
                .config(config)
                .load()
                .get(&sample::STREAM_OUTPUT),
            expected
        );
        let config = format!("stream_output: '{text}'\n");
        assert_eq!(
            settings_fixture()
                .config(config)
                .load()
                .get(&sample::STREAM_OUTPUT),
            expected
        );
    }
}

#[test]
fn typed_values_have_their_types() {
    let settings = settings_fixture()
        .env("BUB_MODEL_TIMEOUT_SECONDS", "90")
        .env("BUB_DEBOUNCE_SECONDS", "0.25")
        .env("BUB_TAPE_DURABILITY", "Always")
        .env("BUB_MAX_TOKENS", "0100")
        .env("BUB_TELEGRAM_ALLOW_USERS", "123, ada")
        .env("BUB_PROJECT", "~/p")
        .load();
    assert_eq!(
        settings.get(&sample::MODEL_TIMEOUT),
        Some(Duration::from_secs(90))
    );
    assert_eq!(settings.get(&sample::DEBOUNCE), Duration::from_millis(250));
    assert_eq!(
        settings.get(&sample::TAPE_DURABILITY),
        sample::Durability::Always
    );
    assert_eq!(settings.get(&sample::MAX_TOKENS), 100);
    assert_eq!(
        settings.get(&sample::TELEGRAM_ALLOW_USERS),
        Some(vec!["123".into(), "ada".into()])
    );
    assert!(settings.get(&sample::PROJECT).unwrap().ends_with("user/p"));
    assert!(settings.get(&sample::CODEX_HOME).ends_with("user/.codex"));
}

#[test]
fn a_star_is_an_ordinary_key_of_a_free_form_map() {
    let fixture = settings_fixture().config("client_args: {'*': 1}\n");
    assert_eq!(
        serde_json::Value::Object(fixture.load().get(&sample::CLIENT_ARGS)),
        json!({"*": 1})
    );
}

#[test]
fn json_numbers_in_free_form_maps_stay_numbers() {
    let fixture = settings_fixture().env(
        "BUB_COMPLETION_ARGS",
        r#"{"t": 1e3, "n": 2, "s": "3", "b": [true, null]}"#,
    );
    let map = fixture.load().get(&sample::COMPLETION_ARGS);
    assert_eq!(
        serde_json::Value::Object(map),
        json!({"t": 1000.0, "n": 2, "s": "3", "b": [true, null]})
    );
}

#[test]
fn a_start_without_home_directory_needs_bub_home() {
    let none: [(&str, &str); 0] = [];
    let error = Loader::new(Environment::from_pairs(none))
        .load()
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "no home directory found; set BUB_HOME to a directory that bub can use"
    );
    let settings = Loader::new(Environment::from_pairs([("BUB_HOME", "/nonexistent/bub")]))
        .load()
        .unwrap();
    assert_eq!(settings.home().to_str(), Some("/nonexistent/bub"));
}

// L7 of the design: a child must not inherit secrets that bub has read, or variables named like
// secrets
#[test]
fn children_get_the_environment_without_secrets() {
    let fixture = settings_fixture()
        .config("env:\n  pass: [OPENAI_API_KEY, GH_TOKEN]\n  drop: DATABASE_*\n")
        .env("PATH", "/bin")
        .env("BUB_API_KEY", "one-secret")
        .env("bub_api_key", "other-secret")
        .env("BUB_GROQ_API_KEY", "two-secret")
        .env("BUB_DISCORD_TOKEN", "of a plugin that is not loaded")
        .env("BUB_TELEGRAM_PROXY", "socks5://user:hunter2hunter2@proxy")
        .env(
            "BUB_CLIENT_ARGS",
            r#"{"headers": {"Authorization": "abcdefgh"}}"#,
        )
        .env("BUB_MODEL", "a:b")
        .env("OPENAI_API_KEY", "read later, but passed")
        .env("GEMINI_API_KEY", "read later")
        .env("MISTRAL_API_KEY", "never read")
        .env("MY_DB_PASSWORD", "of another program")
        .env("AWS_SECRET_ACCESS_KEY", "of another program, too")
        .env("GH_TOKEN", "passed")
        .env("DATABASE_URL", "x")
        .flag("api_key", "from-flag");
    let settings = fixture.load();
    assert!(
        settings
            .secret_variable("OPENAI_API_KEY")
            .unwrap()
            .is_some()
    );
    assert!(
        settings
            .secret_variable("gemini_api_key")
            .unwrap()
            .is_some()
    );
    assert!(settings.secret_variable("NOT_THERE").unwrap().is_none());
    assert_eq!(
        settings.secret_env_names(),
        [
            "AWS_SECRET_ACCESS_KEY",
            "BUB_API_KEY",
            "BUB_CLIENT_ARGS",
            "BUB_DISCORD_TOKEN",
            "BUB_GROQ_API_KEY",
            "BUB_TELEGRAM_PROXY",
            "GEMINI_API_KEY",
            "GH_TOKEN",
            "MISTRAL_API_KEY",
            "MY_DB_PASSWORD",
            "OPENAI_API_KEY",
            "bub_api_key"
        ]
    );
    let names: Vec<&str> = settings
        .child_environment()
        .iter()
        .map(|(name, _)| *name)
        .collect();
    assert_eq!(
        names,
        ["HOME", "PATH", "BUB_MODEL", "OPENAI_API_KEY", "GH_TOKEN"]
    );
    // The value is masked in every case.
    for secret in [
        "never read",
        "of another program",
        "of another program, too",
        "passed",
    ] {
        assert_eq!(
            settings.redactor().redact(&format!("<{secret}>")),
            "<***>",
            "{secret}"
        );
    }
}

// L7: one filter for commands and plugins. A plugin can request what it needs.
#[test]
fn a_child_gets_nothing_that_looks_like_a_secret_unless_granted() {
    let plain = [
        ("PATH", "/home/vagrant/bin:/bin"),
        ("CARGO_HOME", "/home/vagrant/.cargo"),
        ("USER", "vagrant"),
        ("LC_ALL", "C"),
        ("MAX_TOKENS", "100"),
        ("GIT_AUTHOR_NAME", "Pat Smith"),
        ("PWD", "/here"),
        ("LANG", "C"),
        ("WEATHER_UNITS", "metric"),
        ("HOMEPAGE", "https://a.b/c"),
        ("NOTIFY_AT", "http://localhost:8080/webhook"),
        ("DOCS", "https://a.b/webhooks/how-to-receive-them"),
        ("GOPRIVATE", "example.com/team"),
        ("CACHE_BYPASS", "1"),
    ];
    let secret = [
        ("LOCAL_PASSWORD", "vagrant"),
        ("COPY", "it is vagrant"),
        ("GH_PAT", "x"),
        ("APP_SECRETS", "x"),
        ("SENTRY_DSN", "x"),
        ("AWS_PROFILE", "work"),
        ("SSH_AUTH_SOCK", "/tmp/ssh-1/agent.1"),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/etc/key.json"),
        ("TEAM_WEBHOOKS", "x"),
        ("TEST_DATABASE_URL", "x"),
        ("INDEX", "https://a-token@packages.example/simple"),
        ("HTTPS_PROXY", "http://user:proxy-password@proxy:3128"),
        ("MYSQL_PWD", "x"),
        ("NPM_CONFIG__AUTH", "x"),
        ("SLACK_WEBHOOK", "https://hooks.example/x"),
        ("DATABASE_URL", "postgres://user:pw@db/x"),
        ("REDIS_URL", "redis://:pw@cache"),
        ("HARMLESS", "sk-ant-0123456789"),
        ("CLOUD", "AKIA0123456789ABCDEF"),
        ("SESSION", "eyJhbGciOi.eyJzdWIi.c2lnbmF0dXJl"),
        ("WEATHER_KEY", "w-12345678"),
        ("PGPASS", "x"),
        ("MYPASS", "x"),
        ("X_CRED", "x"),
        ("APP_CREDS_FILE", "x"),
        ("PRIVATE_DATA", "x"),
        (
            "NOTIFY",
            "https://hooks.slack.com/services/T0/B0/abcdefghijklmnop",
        ),
        (
            "CHAT_URL",
            "https://discord.com/api/webhooks/123456789012345678/aBcDeFgHiJkLmNoPq",
        ),
        ("ALERTS", "https://a.b/webhook/v1/0123456789abcdef0123"),
        ("HUB", "hf_abcdefghij0123456789"),
        ("FAST", "gsk_abcdefghij0123456789"),
        (
            "DEPLOY",
            "-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl\n-----END OPENSSH PRIVATE KEY-----\n",
        ),
    ];
    let mut fixture = settings_fixture();
    for (name, value) in plain.into_iter().chain(secret) {
        fixture = fixture.env(name, value);
    }
    let settings = fixture.load();
    let names = |granted: &[&str]| -> Vec<String> {
        let granted: Vec<String> = granted.iter().map(|name| (*name).to_owned()).collect();
        let environment = settings.plugin_environment(&granted).into_iter();
        environment
            .map(|(name, _)| name.into_string().unwrap())
            .filter(|name| name != "HOME")
            .collect()
    };
    let commands: Vec<String> = settings
        .child_environment()
        .into_iter()
        .map(|(name, _)| name.to_owned())
        .filter(|name| name != "HOME")
        .collect();
    let usual = names(&[]);
    assert_eq!(commands, usual);
    assert_eq!(usual.len(), plain.len(), "{usual:?}");
    assert!(
        plain
            .iter()
            .all(|(name, _)| usual.iter().any(|known| known == name)),
        "{usual:?}"
    );
    let granted = names(&["DATABASE_URL", "WEATHER_KEY", "PATH", "NOT_THERE"]);
    assert_eq!(granted.len(), plain.len() + 2, "{granted:?}");
    // A grant does not remove a variable that commands get.
    assert_eq!(names(&[]), usual);
    for (text, redacted) in [
        ("/bin", "/bin"),
        ("/tmp/ssh-1/agent.1", "/tmp/ssh-1/agent.1"),
        ("proxy-password", "***"),
        ("https://hooks.example/x", "***"),
    ] {
        assert_eq!(settings.redactor().redact(text), redacted);
    }
}
