//! Tests that secrets of every source are registered with the redactor.

use std::io::Write;

use bub_settings::{Environment, Loader, Redactor};

use crate::fixture::settings_fixture;
use crate::sample;

// W-35: in the Python version a key in the environment appears in tracebacks
#[test]
fn a_secret_from_any_source_is_redacted_even_when_another_source_wins() {
    let fixture = settings_fixture()
        .config("api_key: {groq: secret-of-file}\ntelegram: {token: token-of-file}\nplugin: {api_key: undeclared-key}\nclient_args: {headers: {Cookie: cookie-of-args}}\n")
        .dotenv("BUB_API_KEY=secret-of-dotenv\nDB_PASSWORD=foreign-password\n")
        .env("BUB_API_KEY", "secret-of-env")
        .env("BUB_GROQ_API_KEY", "secret-of-provider")
        .env("BUB_PLUGIN_TOKEN", "token-of-plugin")
        .env("BUB_TELEGRAM_PROXY", "socks5://user:proxy-password@host:1")
        .flag("api_key", "secret-of-flag");
    let settings = fixture.load();
    let planted = [
        "secret-of-file",
        "token-of-file",
        "undeclared-key",
        "cookie-of-args",
        "secret-of-dotenv",
        "foreign-password",
        "secret-of-env",
        "secret-of-provider",
        "token-of-plugin",
        "proxy-password",
        "secret-of-flag",
    ];
    for secret in planted {
        assert_eq!(
            settings.redactor().redact(&format!("<{secret}>")),
            "<***>",
            "{secret}"
        );
    }
    let entries: Vec<_> = settings.entries().collect();
    let shown = format!("{settings:?} {:?} {entries:?}", settings.warnings());
    for secret in planted {
        assert!(!shown.contains(secret), "{secret}");
    }
}

#[test]
fn log_output_built_on_the_redactor_holds_secrets_back() {
    let redactor = Redactor::new();
    let env =
        Environment::from_pairs([("BUB_HOME", "/nonexistent"), ("BUB_API_KEY", "swordfish-1")]);
    Loader::new(env)
        .redactor(&redactor)
        .sections(sample::sections())
        .load()
        .unwrap();
    let mut log = Vec::new();
    let mut writer = redactor.writer(&mut log);
    for piece in ["request with sword", "fish", "-1\nnext li", "ne"] {
        writer.write_all(piece.as_bytes()).unwrap();
    }
    drop(writer);
    assert_eq!(
        String::from_utf8(log).unwrap(),
        "request with ***\nnext line"
    );
}
