//! Sections of plugins.

use bub_settings::{
    Declared, DynamicKey, Found, Key, Kind, Secret, Section, Setting, SettingsError,
};
use serde_json::json;

use crate::given::Given;

static COLOUR: Key<String> = Key::new("shop.colour", "red", "The colour of the shop.");
static TOKEN: Key<Option<Secret>> = Key::new("shop.token", None, "The key to the shop.");
static SHOP: &[&dyn Declared] = &[&COLOUR, &TOKEN];
static OUTSIDE: Key<bool> = Key::new("elsewhere.open", true, "Not in the shop.");
static WRONG: &[&dyn Declared] = &[&OUTSIDE];
static CLASH: Key<bool> = Key::new("max.steps", true, "Its variable is that of `max_steps`.");
static CLASHING: &[&dyn Declared] = &[&CLASH];

// H-25
#[test]
fn a_plugin_section_is_read_from_every_source_even_when_registered_late() {
    let given = Given::new()
        .config("shop: {colour: blue, token: from-the-file}\n")
        .env("BUB_SHOP_TOKEN", "from-the-env");
    let mut settings = given.load();
    assert_eq!(settings.get(&COLOUR), "red", "not registered yet");
    assert_eq!(
        given.redactor.redact("from-the-env from-the-file"),
        "*** ***",
        "secret although not declared yet"
    );
    settings.register(Section::new("shop", SHOP)).unwrap();
    assert_eq!(settings.get(&COLOUR), "blue");
    assert_eq!(settings.get(&TOKEN).unwrap().expose(), "from-the-env");
    assert_eq!(settings.secret_env_names(), ["BUB_SHOP_TOKEN"]);
}

#[test]
fn a_section_known_only_at_run_time_is_checked_like_any_other() {
    let keys = vec![
        DynamicKey {
            setting: Setting::dynamic("py.level", Kind::Integer, "How much."),
            default: json!(3),
        },
        DynamicKey {
            setting: Setting::dynamic("py.password", Kind::Text, "Hush.")
                .nullable()
                .secret(),
            default: json!(null),
        },
    ];
    let given = Given::new().config("py: {level: high, password: hush-hush}\n");
    let (settings, problems) = given
        .loader()
        .section(Section::dynamic("py", keys))
        .load_lenient();
    assert_eq!(
        given.shorten(&problems[0].to_string()),
        "user/.bub/config.yml:1: `py.level` is `high`, expected a whole number"
    );
    assert_eq!(settings.get_value("py.level"), Ok(Found::Value(json!(3))));
    assert_eq!(
        settings.get_value("py").unwrap().shown(),
        json!({"level": 3, "password": "***"})
    );
}

#[test]
fn a_section_that_is_wrong_in_itself_is_refused() {
    let mut settings = Given::new().load();
    for (section, problem) in [
        (
            Section::new("", SHOP),
            "settings section ``: needs a name without dots",
        ),
        (
            Section::new("a.b", SHOP),
            "settings section `a.b`: needs a name without dots",
        ),
        (
            Section::new("telegram", &[]),
            "settings section `telegram`: a section of this name exists already",
        ),
        (
            Section::new("model", &[]),
            "settings section `model`: a setting of this name exists already",
        ),
        (
            Section::new("shop", WRONG),
            "settings section `shop`: the key `elsewhere.open` must be `shop.<name>`",
        ),
        (
            Section::new("max", CLASHING),
            "settings section `max`: the variable BUB_MAX_STEPS has another setting",
        ),
    ] {
        let error = settings.register(section).unwrap_err();
        assert!(matches!(error, SettingsError::Declaration { .. }));
        assert_eq!(error.to_string(), problem);
    }
    settings.register(Section::new("shop", SHOP)).unwrap();
    assert!(settings.register(Section::new("shop", SHOP)).is_err());
    // One that was declared at run time may be declared anew.
    let dynamic = || Section::dynamic("py", Vec::new());
    settings.register(dynamic()).unwrap();
    settings.fits(&dynamic()).unwrap();
    assert!(settings.register(dynamic()).is_err());
    assert!(
        settings
            .fits(&Section::dynamic("shop", Vec::new()))
            .is_err()
    );
}

#[test]
fn the_key_of_a_plugin_is_no_provider() {
    static API_KEY: Key<Option<Secret>> =
        Key::new("search.api_key", None, "The key of the search service.");
    static SEARCH: &[&dyn Declared] = &[&API_KEY];
    let given = Given::new().env("BUB_SEARCH_API_KEY", "search-secret");
    let settings = given
        .loader()
        .section(Section::new("search", SEARCH))
        .load()
        .unwrap();
    assert_eq!(settings.get(&API_KEY).unwrap().expose(), "search-secret");
}

#[test]
fn settings_and_redactor_can_be_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<bub_settings::Settings>();
    shared::<bub_settings::Redactor>();
}

#[test]
fn the_declarations_of_bub_itself_follow_the_rules() {
    let settings = Given::new().load();
    let mut variables: Vec<String> = settings
        .entries()
        .map(|entry| entry.setting.variable().into_owned())
        .collect();
    let all = variables.len();
    variables.sort();
    variables.dedup();
    assert_eq!(variables.len(), all, "two settings share a variable");
    for entry in settings.entries() {
        assert!(
            entry.setting.help().ends_with('.'),
            "{}",
            entry.setting.key()
        );
        assert!(entry.setting.key().matches('.').count() <= 1);
        let secret = bub_settings::is_sensitive_name(entry.setting.key());
        assert_eq!(entry.setting.is_secret(), secret, "{}", entry.setting.key());
    }
}
