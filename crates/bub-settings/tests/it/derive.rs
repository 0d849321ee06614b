//! Structs of settings.

use std::path::PathBuf;
use std::time::Duration;

use bub_settings::{
    AnySetting as _, Environment, FromSettings, Loader, PerProvider, Secret, SettingChoice,
    Settings, ValueKind, testing, text_format,
};
use serde_json::{Map, Value, json};

/// A setting of each type, with each option.
#[derive(Settings)]
#[settings(section = "shop", crate = bub_settings)]
struct ShopSettings {
    /// Token for the cash desk.
    token: Option<Secret>,
    /// Base URL of the shop.
    ///
    /// The `.env` of an untrusted workspace cannot set it.
    #[setting(default = "https://shop.example", format = &text_format::BASE_URL)]
    base: String,
    /// Seconds until the shop
    /// closes.
    #[setting(default = Duration::from_secs(5), name = "close_seconds")]
    close: Duration,
    /// Number of shops.
    #[setting(default = 3, at_least = 1, at_most = 9, deprecated_names = &["shop.number"])]
    count: u64,
    /// Directory of the goods.
    #[setting(default = "~/goods", env_only, variable = "GOODS")]
    directory: PathBuf,
    /// Names of the goods.
    #[setting(write_as_list)]
    goods: Vec<String>,
    /// Goods in the window.
    #[setting(default = Some("a,b"))]
    shown: Option<Vec<String>>,
    /// Kind of door.
    #[setting(default = Door::Open)]
    r#type: Door,
    /// Keys of the suppliers.
    suppliers: PerProvider<String>,
    /// Other options.
    extra: Map<String, Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, SettingChoice)]
#[settings(crate = bub_settings)]
enum Door {
    Open,
    HalfOpen,
    #[setting(name = "locked")]
    Shut,
}

fn load(variables: &[(&str, &str)], text: &str) -> Settings {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("config.yml"), text).unwrap();
    let home = home.path().to_str().unwrap();
    let variables = variables.iter().copied();
    let variables = variables.chain([("BUB_HOME", home), ("HOME", "/user")]);
    testing::load(variables, [ShopSettings::section()])
}

#[test]
fn a_struct_without_values_has_the_defaults() {
    let shop = ShopSettings::from_settings(&load(&[], ""));
    assert_eq!(shop.token, None);
    assert_eq!(shop.base, "https://shop.example");
    assert_eq!(shop.close, Duration::from_secs(5));
    assert_eq!(shop.count, 3);
    assert_eq!(shop.directory, PathBuf::from("/user/goods"));
    assert_eq!(shop.goods, Vec::<String>::new());
    assert_eq!(shop.shown.unwrap(), ["a", "b"]);
    assert_eq!(shop.r#type, Door::Open);
    assert!(shop.suppliers.is_empty() && shop.extra.is_empty());
}

#[test]
fn a_struct_reads_every_source() {
    let text = "shop: {base: 'http://other', count: 4, goods: 'x, y', shown: null, type: half-open, \
                suppliers: {Some-One: k}, extra: {a: 1}}";
    let variables = [
        ("BUB_SHOP_TOKEN", "secret-token"),
        ("BUB_SHOP_CLOSE_SECONDS", "0.5"),
        ("BUB_SHOP_TYPE", "LOCKED"),
        ("GOODS", "~/x"),
    ];
    let settings = load(&variables, text);
    let shop = ShopSettings::from_settings(&settings);
    assert_eq!(shop.token.unwrap().expose(), "secret-token");
    assert_eq!(shop.base, "http://other");
    assert_eq!(shop.close, Duration::from_millis(500));
    assert_eq!(shop.count, 4);
    assert_eq!(shop.directory, PathBuf::from("/user/x"));
    assert_eq!(shop.goods, ["x", "y"]);
    assert_eq!(shop.shown, None);
    assert_eq!(shop.r#type, Door::Shut);
    assert_eq!(shop.suppliers.get("some-one").unwrap(), "k");
    assert_eq!(Value::from(shop.extra), json!({"a": 1}));
    assert_eq!(settings.get(ShopSettings::COUNT), 4);
}

#[test]
fn the_options_of_a_field_are_its_declaration() {
    let base = ShopSettings::BASE.setting();
    assert_eq!(base.key, "shop.base");
    assert_eq!(base.help, "Base URL of the shop.");
    assert!(base.in_file && !base.secret && !base.nullable);
    let close = ShopSettings::CLOSE.setting();
    assert_eq!(
        (&*close.key, &*close.help),
        ("shop.close_seconds", "Seconds until the shop closes.")
    );
    let count = ShopSettings::COUNT.setting();
    assert_eq!((count.min, count.max), (Some(1), Some(9)));
    assert_eq!(count.deprecated_names, ["shop.number"]);
    let directory = ShopSettings::DIRECTORY.setting();
    assert_eq!(directory.variable(), "GOODS");
    assert!(!directory.in_file);
    let token = ShopSettings::TOKEN.setting();
    assert!(token.secret && token.nullable);
    let door = ShopSettings::TYPE;
    assert_eq!(door.setting().key, "shop.type");
    assert_eq!(
        door.setting().kind,
        ValueKind::Choice(&["open", "half-open", "locked"])
    );
    assert_eq!(door.default_value(), "open");
}

#[test]
fn an_invalid_value_of_a_field_names_the_line_and_what_to_write() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("config.yml");
    std::fs::write(&file, "shop:\n  type: ajar\n").unwrap();
    let error = Loader::new(Environment::from_pairs([("BUB_HOME", home.path())]))
        .section(ShopSettings::section())
        .load()
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "{}:2: `shop.type` is `ajar`, expected one of open, half-open, locked",
            file.display()
        )
    );
}

#[test]
fn compile_errors_name_the_fix() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
