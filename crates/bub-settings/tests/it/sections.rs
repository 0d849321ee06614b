//! Tests of the sections of plugins.

use bub_settings::{
    AnySetting, DynamicSetting, LookupValue, Secret, Section, SettingKey, SettingSpec,
    SettingsError, ValueKind,
};
use serde_json::json;

use crate::fixture::settings_fixture;
use crate::sample;

static COLOR: SettingKey<String> = SettingKey::new("shop.color", "red", "The color of the shop.");
static TOKEN: SettingKey<Option<Secret>> =
    SettingKey::new("shop.token", None, "The key to the shop.");
static SHOP: &[&dyn AnySetting] = &[&COLOR, &TOKEN];
static OUTSIDE: SettingKey<bool> = SettingKey::new("elsewhere.open", true, "Not in the shop.");
static WRONG: &[&dyn AnySetting] = &[&OUTSIDE];
static CLASH: SettingKey<bool> =
    SettingKey::new("max.steps", true, "Its variable is that of `max_steps`.");
static CLASHING: &[&dyn AnySetting] = &[&CLASH];

// H-25
#[test]
fn a_plugin_section_is_read_from_every_source_even_when_registered_late() {
    let fixture = settings_fixture()
        .config("shop: {color: blue, token: from-the-file}\n")
        .env("BUB_SHOP_TOKEN", "from-the-env");
    let mut settings = fixture.load();
    assert_eq!(settings.get(&COLOR), "red", "not registered yet");
    assert_eq!(
        fixture.redactor.redact("from-the-env from-the-file"),
        "*** ***",
        "secret although not declared yet"
    );
    settings.register(Section::new("shop", SHOP)).unwrap();
    assert_eq!(settings.get(&COLOR), "blue");
    assert_eq!(settings.get(&TOKEN).unwrap().expose(), "from-the-env");
    assert_eq!(settings.secret_env_names(), ["BUB_SHOP_TOKEN"]);
}

#[test]
fn a_section_known_only_at_run_time_is_checked_like_any_other() {
    let mut password = SettingSpec::dynamic("py.password", ValueKind::Text, "Hush.");
    (password.nullable, password.secret) = (true, true);
    let keys = vec![
        DynamicSetting {
            setting: SettingSpec::dynamic("py.level", ValueKind::Integer, "How much."),
            default: json!(3),
        },
        DynamicSetting {
            setting: password,
            default: json!(null),
        },
    ];
    let fixture = settings_fixture().config("py: {level: high, password: hush-hush}\n");
    let (settings, problems) = fixture
        .loader()
        .section(Section::dynamic("py", keys))
        .load_lenient();
    assert_eq!(
        fixture.shorten(problems[0].to_string()),
        "user/.bub/config.yml:1: `py.level` is `high`, expected a whole number"
    );
    assert_eq!(
        settings.get_value("py.level"),
        Ok(LookupValue::Value(json!(3)))
    );
    assert_eq!(
        settings.get_value("py").unwrap().to_display_value(),
        json!({"level": 3, "password": "***"})
    );
}

#[test]
fn a_section_that_is_wrong_in_itself_is_refused() {
    let mut settings = settings_fixture().load();
    for (section, problem) in [
        (
            Section::new("", SHOP),
            "cannot register the top-level settings: the name must not be empty or contain dots",
        ),
        (
            Section::new("a.b", SHOP),
            "cannot register settings section `a.b`: the name must not be empty or contain dots",
        ),
        (
            Section::new("telegram", &[]),
            "cannot register settings section `telegram`: a section with this name already exists; choose another name",
        ),
        (
            Section::new("model", &[]),
            "cannot register settings section `model`: a setting with this name already exists; choose another name",
        ),
        (
            Section::new("shop", WRONG),
            "cannot register settings section `shop`: the key `elsewhere.open` must be `shop.<name>`",
        ),
        (
            Section::new("max", CLASHING),
            "cannot register settings section `max`: the variable BUB_MAX_STEPS belongs to another setting; choose another key",
        ),
    ] {
        let error = settings.register(section).unwrap_err();
        assert!(matches!(error, SettingsError::Declaration { .. }));
        assert_eq!(error.to_string(), problem);
    }
    settings.register(Section::new("shop", SHOP)).unwrap();
    assert!(settings.register(Section::new("shop", SHOP)).is_err());
    // A section that was declared at run time may be declared again.
    let dynamic = || Section::dynamic("py", Vec::new());
    settings.register(dynamic()).unwrap();
    settings.check_registration(&dynamic()).unwrap();
    assert!(settings.register(dynamic()).is_err());
    assert!(
        settings
            .check_registration(&Section::dynamic("shop", Vec::new()))
            .is_err()
    );
}

#[test]
fn several_crates_add_to_the_root() {
    static OPEN: SettingKey<bool> = SettingKey::new("open", true, "Whether anything is sold.");
    static MORE: &[&dyn AnySetting] = &[&OPEN];
    let fixture = settings_fixture().config("open: false\nopn: true\nmodel: a:b\n");
    let settings = fixture
        .loader()
        .section(Section::new("shop", SHOP))
        .section(Section::new("", MORE))
        .load()
        .unwrap();
    assert!(!settings.get(&OPEN));
    assert_eq!(settings.get(&sample::MODEL).as_deref(), Some("a:b"));
    let warnings = settings.warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert_eq!(
        fixture.shorten(warnings[0].to_string()),
        "user/.bub/config.yml:2: unknown setting `opn`, did you mean `open`?"
    );
    let entries = settings.entries().map(|entry| &*entry.setting.key);
    let root = entries.take_while(|key| !key.contains('.'));
    assert_eq!(root.last(), Some("open"), "the root is listed first");
}

#[test]
fn a_root_key_that_clashes_is_refused() {
    static MODEL: SettingKey<bool> = SettingKey::new("model", true, "There is one already.");
    static DAY: SettingKey<bool> = SettingKey::new("day", true, "Declared twice.");
    static SHELF: SettingKey<bool> = SettingKey::new("shop", true, "It has the name of a section.");
    static KNOWN: &[&dyn AnySetting] = &[&MODEL];
    static TWICE: &[&dyn AnySetting] = &[&DAY, &DAY];
    static NAMED: &[&dyn AnySetting] = &[&SHELF];
    for (keys, problem) in [
        (
            KNOWN,
            "cannot register the top-level settings: the variable BUB_MODEL belongs to another setting; choose another key",
        ),
        (
            TWICE,
            "cannot register the top-level settings: the variable BUB_DAY belongs to another setting; choose another key",
        ),
        (
            WRONG,
            "cannot register the top-level settings: the key `elsewhere.open` must not contain dots",
        ),
        (
            NAMED,
            "cannot register settings section `shop`: a setting with this name already exists; choose another name",
        ),
    ] {
        let loader = settings_fixture()
            .loader()
            .section(Section::new("shop", SHOP));
        let error = loader.section(Section::new("", keys)).load().unwrap_err();
        assert_eq!(error.to_string(), problem);
    }
}

#[test]
fn the_key_of_a_plugin_is_no_provider() {
    static API_KEY: SettingKey<Option<Secret>> =
        SettingKey::new("search.api_key", None, "The key of the search service.");
    static SEARCH: &[&dyn AnySetting] = &[&API_KEY];
    let fixture = settings_fixture().env("BUB_SEARCH_API_KEY", "search-secret");
    let settings = fixture
        .loader()
        .section(Section::new("search", SEARCH))
        .load()
        .unwrap();
    assert_eq!(settings.get(&API_KEY).unwrap().expose(), "search-secret");
    assert!(settings.get(&sample::API_KEY).is_empty());
}

#[test]
fn settings_and_redactor_can_be_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<bub_settings::Settings>();
    shared::<bub_settings::Redactor>();
}
