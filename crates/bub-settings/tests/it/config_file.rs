//! Tests of which config file is read and what it may contain.

use crate::fixture::settings_fixture;
use crate::sample;

// H-20, W-57: in the Python version BUB_HOME does not move the file
#[test]
fn the_homes_own_config_is_read_and_else_the_usual_one() {
    let fixture = settings_fixture();
    let home = fixture.path("elsewhere");
    let fixture = fixture
        .config("model: usual:file\n")
        .env("BUB_HOME", home.clone());
    let settings = fixture.load();
    assert_eq!(settings.home(), home);
    assert_eq!(settings.get(&sample::MODEL).unwrap(), "usual:file");
    assert_eq!(settings.config_file(), fixture.path("user/.bub/config.yml"));

    let fixture = fixture.file("elsewhere/config.yml", "model: own:file\n");
    let settings = fixture.load();
    assert_eq!(settings.get(&sample::MODEL).unwrap(), "own:file");
    assert_eq!(settings.config_file(), fixture.path("elsewhere/config.yml"));
}

// H-20
#[test]
fn without_any_file_the_config_belongs_into_the_home() {
    let fixture = settings_fixture();
    assert_eq!(
        fixture.load().config_file(),
        fixture.path("user/.bub/config.yml")
    );
    let fixture = fixture.env("BUB_HOME", "~/x");
    assert_eq!(
        fixture.load().config_file(),
        fixture.path("user/x/config.yml")
    );
    assert_eq!(
        fixture.load().get(&bub_settings::HOME),
        fixture.path("user/x")
    );
}

// C.4
#[test]
fn a_file_written_by_the_original_loads_unchanged() {
    let fixture = settings_fixture().config(
        "model: openrouter:openrouter/free\napi_key: sk-or-v1-0123456789\nenabled_channels: telegram\nstream_output: false\n\
         telegram:\n  token: 123456:ABC\n  allow_users: '42,ada'\nspill:\n  threshold: 0\nsome-plugin:\n  level: 3\n",
    );
    let settings = fixture.load();
    assert_eq!(
        settings
            .get(&sample::API_KEY)
            .get("openrouter")
            .unwrap()
            .expose(),
        "sk-or-v1-0123456789"
    );
    assert_eq!(settings.get(&sample::ENABLED_CHANNELS), ["telegram"]);
    assert_eq!(
        settings.get(&sample::TELEGRAM_TOKEN).unwrap().expose(),
        "123456:ABC"
    );
    assert_eq!(
        settings.get(&sample::TELEGRAM_ALLOW_USERS),
        Some(vec!["42".into(), "ada".into()])
    );
    assert_eq!(settings.get(&sample::SPILL_THRESHOLD), 0);
    assert_eq!(fixture.warnings(), Vec::<String>::new());
}

#[test]
fn lists_in_the_file_may_be_lists_texts_or_a_single_number() {
    for yaml in ["[42, ada]", "42, ada", "\n    - 42\n    - ada", "'42,ada'"] {
        let fixture = settings_fixture().config(format!("telegram:\n  allow_users: {yaml}\n"));
        assert_eq!(
            fixture.load().get(&sample::TELEGRAM_ALLOW_USERS),
            Some(vec!["42".into(), "ada".into()]),
            "{yaml}"
        );
    }
    let fixture = settings_fixture().config("telegram:\n  allow_users: 42\n");
    assert_eq!(
        fixture.load().get(&sample::TELEGRAM_ALLOW_USERS),
        Some(vec!["42".into()])
    );
}

#[test]
fn a_key_without_value_is_not_set_and_an_empty_section_is_fine() {
    let settings = settings_fixture()
        .config("model:\nmax_tokens: null\ntelegram:\nfallback_models: ~\n")
        .load();
    assert_eq!(settings.get(&sample::MODEL), None);
    assert_eq!(settings.get(&sample::MAX_TOKENS), 16_384);
    assert_eq!(settings.get(&sample::FALLBACK_MODELS), None);
}

// H-23: the config file cannot set home, project and the Codex home
#[test]
fn the_file_cannot_move_the_home() {
    let fixture = settings_fixture().config("model: a:b\nhome: /elsewhere\n");
    assert_eq!(fixture.load().home(), fixture.path("user/.bub"));
    assert_eq!(
        fixture.warnings(),
        ["user/.bub/config.yml:2: `home` is ignored: only the variable BUB_HOME sets it"]
    );
}

#[test]
fn a_link_to_nothing_is_no_reason_to_read_another_file() {
    let fixture = settings_fixture()
        .config("model: a:b\n")
        .file("other/x", "");
    std::os::unix::fs::symlink("nowhere.yml", fixture.path("other/config.yml")).unwrap();
    let home = fixture.path("other");
    let fixture = fixture.env("BUB_HOME", home);
    assert_eq!(
        fixture.error(),
        "other/config.yml: cannot be read: a link to a file that does not exist"
    );
    assert_eq!(
        fixture.loader().load_lenient().0.config_file(),
        fixture.path("other/config.yml")
    );
}
