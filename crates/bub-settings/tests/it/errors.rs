//! Tests of invalid input: one line with the location, the key, the value and what is expected.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;

use bub_settings::SettingsError;

use crate::fixture::settings_fixture;
use crate::sample;

// H-20: the Python version crashes with a traceback
#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn a_wrong_value_in_the_file_names_file_line_key_and_expectation() {
    for (yaml, message) in [
        (
            "max_steps: many",
            ":1: `max_steps` is `many`, expected a whole number of at least 1, or null",
        ),
        (
            "model: a:b\nmax_steps: 0",
            ":2: `max_steps` is `0`, expected a whole number of at least 1, or null",
        ),
        (
            "max_tokens: 1.5",
            ":1: `max_tokens` is `1.5`, expected a whole number of at least 1",
        ),
        (
            "max_tokens: 99999999999999999999",
            ":1: `max_tokens` is `99999999999999999999`, expected a whole number of at least 1",
        ),
        (
            "verbose: 3",
            ":1: `verbose` is `3`, expected a whole number from 0 to 2",
        ),
        (
            "debounce_seconds: -1",
            ":1: `debounce_seconds` is `-1`, expected a number of at least 0",
        ),
        (
            "debounce_seconds: .nan",
            ":1: `debounce_seconds` is `.nan`, expected a number of at least 0",
        ),
        (
            "stream_output: maybe",
            ":1: `stream_output` is `maybe`, expected true or false",
        ),
        (
            "model: [a, b]",
            ":1: `model` is a list, expected a model, as `provider:model`, or null",
        ),
        (
            "model:\n  name: a",
            ":2: `model` is a map, expected a model, as `provider:model`, or null",
        ),
        (
            "model: foo",
            ":1: `model` is `foo`, expected a model, as `provider:model`, or null",
        ),
        (
            "api_base:\n  lab: https://lab.example\n  other: ftp://other.example",
            ":3: `api_base.other` is `ftp://other.example`, expected a URL such as `https://host/v1`, without user, query and fragment, or a map of provider to that, or null",
        ),
        (
            "telegram:\n  proxy: junk",
            ":2: `telegram.proxy` is `junk`, expected the URL of an HTTP or SOCKS proxy, such as `socks5://127.0.0.1:1080`, or null",
        ),
        (
            "webhook:\n  listen: foo",
            ":2: `webhook.listen` is `foo`, expected an address and a port, such as `127.0.0.1:8787`",
        ),
        (
            "gateway: {turns: 0}",
            ":1: `gateway.turns` is `0`, expected a whole number of at least 1",
        ),
        (
            "log:\n  filter: loud",
            ":2: `log.filter` is `loud`, expected a log level (error, warn, info, debug, trace, off) or TARGET=LEVEL, separated by commas, or null",
        ),
        (
            "fallback_models: {a: b}",
            ":1: `fallback_models` is a map, expected a list, or comma-separated text, or null",
        ),
        (
            "fallback_models: [[a]]",
            ":1: `fallback_models` is a list with items that are not text, expected a list, or comma-separated text, or null",
        ),
        (
            "client_args: [1]",
            ":1: `client_args` is a list, expected a map",
        ),
        (
            "api_base: {openai: [x]}",
            ":1: `api_base` is a map with a value that is not text for `openai`, expected a URL such as `https://host/v1`, without user, query and fragment, or a map of provider to that, or null",
        ),
        (
            "policy:\n  rules: [x]",
            ":2: `policy.rules` is a list with items that are not maps, expected a list of maps",
        ),
        (
            "policy:\n  rules: deny",
            ":2: `policy.rules` is a single value, expected a list of maps",
        ),
        (
            "tape:\n  durability: maybe",
            ":2: `tape.durability` is `maybe`, expected one of os, always",
        ),
        (
            "telegram: on",
            ":1: `telegram` is a single value or a list, expected a map of settings",
        ),
    ] {
        assert_eq!(
            settings_fixture().config(yaml).error(),
            format!("user/.bub/config.yml{message}")
        );
    }
}

#[test]
fn a_wrong_variable_is_named() {
    let fixture = settings_fixture().env("BUB_MAX_TOKENS", "lots");
    assert_eq!(
        fixture.error(),
        "environment variable BUB_MAX_TOKENS: `max_tokens` is `lots`, expected a whole number of at least 1"
    );
    let fixture = settings_fixture().flag("max_tokens", "lots");
    assert!(
        fixture
            .error()
            .starts_with("flag --max_tokens: `max_tokens` is `lots`, expected")
    );
    let fixture = settings_fixture().env("BUB_FALLBACK_MODELS", "[a");
    assert!(
        fixture
            .error()
            .contains("`fallback_models` is `[a`, expected a list")
    );
    let fixture = settings_fixture().env("BUB_MODEL", OsString::from_vec(vec![0xff, 0xfe]));
    assert_eq!(
        fixture.error(),
        "environment variable BUB_MODEL: not valid UTF-8 text; convert it to UTF-8"
    );
}

// W-35
#[test]
fn the_value_of_a_secret_is_never_quoted() {
    for fixture in [
        settings_fixture().config("api_key: {openai: [hunter2hunter2]}"),
        settings_fixture().config("api_key: [hunter2hunter2]"),
        settings_fixture().config("telegram: {token: [hunter2hunter2]}"),
        settings_fixture().env("BUB_API_KEY", "{hunter2hunter2"),
        settings_fixture().env("BUB_CLIENT_ARGS", "hunter2hunter2"),
        settings_fixture().config("api_key: 'hunter2hunter2"),
        settings_fixture().config("api_key: hunter2hunter2: x"),
        settings_fixture().config("api_key: *hunter2hunter2"),
        settings_fixture().env("BUB_LAB_API_BASE", "ftp://me:hunter2hunter2@lab.example"),
        settings_fixture().config("telegram: {proxy: 'junk://me:hunter2hunter2@proxy'}"),
    ] {
        let error = fixture.loader().load().unwrap_err();
        assert!(
            !format!("{error} {error:?}").contains("hunter2"),
            "{error:?}"
        );
    }
}

#[test]
fn long_and_strange_values_are_cut() {
    let error = settings_fixture()
        .env("BUB_MAX_TOKENS", "x\n\u{1b}[2J".repeat(100))
        .error();
    assert!(
        error.contains("`x[2Jx[2J") && error.contains("…`") && error.len() < 250,
        "{error}"
    );
}

// H-20
#[test]
fn malformed_yaml_names_line_and_column() {
    let error = settings_fixture()
        .config("model: a:b\nmax_steps: [1\n")
        .error();
    assert_eq!(
        error,
        "user/.bub/config.yml:2:12: not valid YAML: unclosed bracket '['"
    );
}

// H-20
#[test]
fn a_file_that_is_no_map_says_what_it_is() {
    assert_eq!(
        settings_fixture().config("\n- a\n").error(),
        "user/.bub/config.yml:2: found a list, expected a map of settings such as `model: provider:name`"
    );
    assert!(
        settings_fixture()
            .config("just text")
            .error()
            .starts_with("user/.bub/config.yml:1: found a single value")
    );
}

#[test]
fn unreadable_files_are_errors_and_not_missing_ones() {
    let fixture = settings_fixture();
    fs::create_dir(fixture.path("user/.bub/config.yml")).unwrap();
    assert_eq!(
        fixture.error(),
        "user/.bub/config.yml: cannot be read: not a regular file"
    );

    assert_eq!(
        settings_fixture().config([b'a', b':', 0xff]).error(),
        "user/.bub/config.yml: not valid UTF-8 text; convert it to UTF-8"
    );
    assert_eq!(
        settings_fixture()
            .config(vec![b'#'; 1024 * 1024 + 1])
            .error(),
        "user/.bub/config.yml: cannot be read: larger than 1 MiB"
    );

    let fixture = settings_fixture().file("plain", "");
    let home = fixture.path("plain");
    assert!(
        fixture
            .env("BUB_HOME", home)
            .error()
            .starts_with("plain/config.yml: cannot be read: ")
    );
}

#[test]
fn a_lenient_load_reports_every_problem_and_keeps_the_rest() {
    let fixture = settings_fixture()
        .config("max_steps: many\nmodel: a:b\nverbose: 9\n")
        .env("BUB_MAX_TOKENS", "x");
    let (settings, problems) = fixture.loader().load_lenient();
    assert_eq!(problems.len(), 3);
    assert_eq!(settings.get(&sample::MODEL).unwrap(), "a:b");
    assert_eq!(settings.get(&sample::MAX_STEPS), Some(100));

    let fixture = settings_fixture().config("[").env("BUB_MODEL", "a:b");
    assert!(matches!(
        fixture.problems().as_slice(),
        [SettingsError::Syntax { .. }]
    ));
    assert_eq!(
        fixture
            .loader()
            .load_lenient()
            .0
            .get(&sample::MODEL)
            .unwrap(),
        "a:b"
    );
}

// L7: a typo in the policy must not disable it.
#[test]
fn mistyped_policies_and_owners_are_errors() {
    for (config, expected) in [
        (
            "polcy: {rules: []}\n",
            "unknown setting `polcy`, did you mean `policy`?",
        ),
        (
            "Policy: {rules: []}\n",
            "unknown setting `Policy`, did you mean `policy`?",
        ),
        (
            "owner: [a:b]\n",
            "unknown setting `owner`, did you mean `owners`?",
        ),
        (
            "policy.rules: []\n",
            "unknown setting `policy.rules`, did you mean `policy: {rules: …}`?",
        ),
        (
            "policy: {rulez: []}\n",
            "unknown setting `policy.rulez`, did you mean `policy.rules`?",
        ),
        (
            "policy: {anything: []}\n",
            "unknown setting `policy.anything`; run `bub config list` to see all settings",
        ),
        (
            "policies: {rules: []}\n",
            "unknown setting `policies`, did you mean `policy`?",
        ),
        (
            "owner_ids: [a:b]\n",
            "unknown setting `owner_ids`, did you mean `owners`?",
        ),
    ] {
        let error = settings_fixture().config(config).error();
        assert!(
            error.ends_with(expected) && error.contains("config.yml:1"),
            "{error}"
        );
    }
}

// W-35: an error about a URL never repeats a password or a key in it.
#[test]
fn a_wrong_address_with_more_than_an_address_in_it_is_not_shown() {
    let files = [
        "telegram: {proxy: 'user:PLANTED@host:1080'}",
        "telegram: {proxy: '//user:PLANTED@host'}",
        "telegram: {proxy: 'PLANTED@host'}",
        "telegram: {api_base: 'host/bot?key=PLANTED'}",
        "api_base: 'user:PLANTED@host/v1'",
        "api_base: 'http://host/v1?key=PLANTED'",
        "api_base: {openai: 'host/v1?key=PLANTED'}",
        "api_base: {openai: 'host/v1#PLANTED'}",
        "webhook: {listen: 'user:PLANTED@host'}",
    ];
    let fixture = files
        .map(|file| settings_fixture().config(file))
        .into_iter();
    let variables = [
        ("BUB_TELEGRAM_PROXY", "user:PLANTED@x"),
        ("BUB_API_BASE", "user:PLANTED@x"),
        ("BUB_OPENAI_API_BASE", "x?key=PLANTED"),
    ];
    for fixture in fixture.chain(variables.map(|(name, value)| settings_fixture().env(name, value)))
    {
        let error = fixture.error();
        assert!(
            error.contains("is a value that is not shown, expected"),
            "{error}"
        );
        assert!(!error.contains("PLANTED"), "{error}");
    }
    let fixture = settings_fixture().env("BUB_TELEGRAM_PROXY", "user:PLANTED@x");
    let (settings, _) = fixture.loader().load_lenient();
    assert_eq!(settings.secret_env_names(), ["BUB_TELEGRAM_PROXY"]);
}
