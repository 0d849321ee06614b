//! Tests of values by path.

use bub_settings::{LookupError, LookupValue, SettingSource};
use serde_json::json;

use crate::fixture::settings_fixture;

// H-26
#[test]
fn a_path_finds_settings_parts_of_maps_and_sections() {
    let fixture = settings_fixture()
        .config("client_args: {extra_query: {X: 1}}\nspill: {threshold: 9}\n")
        .env("BUB_MODEL", "a:b");
    let settings = fixture.load();
    let value = |path| settings.get_value(path).unwrap();
    assert_eq!(value("model"), LookupValue::Value(json!("a:b")));
    assert_eq!(
        value("client_args.extra_query.X"),
        LookupValue::Value(json!(1))
    );
    assert_eq!(value("spill.threshold"), LookupValue::Value(json!(9)));
    assert_eq!(value("spill"), LookupValue::Value(json!({"threshold": 9})));
    assert_eq!(value("max_steps"), LookupValue::Value(json!(100)));
    assert_eq!(
        value("codex_home"),
        LookupValue::Value(json!(fixture.path("user/.codex")))
    );
    assert_eq!(settings.origin("max_steps"), Some(SettingSource::Default));
    assert_eq!(settings.origin("nope"), None);
}

// H-26
#[test]
fn an_empty_path_an_unknown_one_and_raw_yaml_are_errors() {
    let settings = settings_fixture()
        .config("mystery: {a: 1}\nmodel: a:b\n")
        .load();
    assert_eq!(settings.get_value(""), Err(LookupError::EmptyPath));
    for path in [
        "mystery",
        "mystery.a",
        "model.x",
        "api_key.openai",
        ".",
        "spill.",
        "spill.nope",
    ] {
        assert!(
            matches!(settings.get_value(path), Err(LookupError::Unknown { .. })),
            "{path}"
        );
    }
    let error = settings.get_value("telegram.tokn").unwrap_err();
    assert_eq!(
        error.to_string(),
        "unknown setting `telegram.tokn`, did you mean `telegram.token`?"
    );
}

// H-26, W-36: a template or a report must not get a secret by accident
#[test]
fn secrets_come_as_secrets_and_masked_inside_maps() {
    let fixture = settings_fixture()
        .config("api_key: {openai: sk-one-secret}\nclient_args: {headers: {Authorization: abc, X: y}}\ntelegram: {token: tok-secret, proxy: 'http://u:pass-secret@h'}\n");
    let settings = fixture.load();
    let LookupValue::Secret(secret) = settings.get_value("api_key.openai").unwrap() else {
        panic!("not a secret")
    };
    assert_eq!(secret.expose(), "sk-one-secret");
    assert_eq!(
        settings.get_value("api_key").unwrap(),
        LookupValue::Value(json!({"openai": "***"}))
    );
    let args = json!({"headers": {"Authorization": "***", "X": "***"}});
    assert_eq!(
        settings.get_value("client_args").unwrap(),
        LookupValue::Value(args)
    );
    for header in ["Authorization", "X"] {
        let LookupValue::Secret(_) = settings
            .get_value(&format!("client_args.headers.{header}"))
            .unwrap()
        else {
            panic!()
        };
    }
    assert_eq!(
        settings
            .get_value("client_args.headers")
            .unwrap()
            .to_display_value()["X"],
        json!("***")
    );
    let telegram = settings.get_value("telegram").unwrap().to_display_value();
    assert_eq!(telegram["token"], json!("***"));
    assert_eq!(telegram["proxy"], json!("http://u:***@h"));
    let settings = settings_fixture().env("BUB_API_KEY", "plain-secret").load();
    let LookupValue::Secret(secret) = settings.get_value("api_key").unwrap() else {
        panic!("not a secret")
    };
    assert_eq!(secret.expose(), "plain-secret");
    assert_eq!(
        format!("{:?} {settings:?}", settings.get_value("api_key"))
            .matches("plain-secret")
            .count(),
        0
    );
}

#[test]
fn an_address_is_shown_without_password_query_and_fragment() {
    for (written, shown) in [
        ("http://u:P6@h/v1?api_key=PLANTED", "http://u:***@h/v1?***"),
        ("http://token@h/v1", "http://***@h/v1"),
        ("http://u:p/w@h/v1", "http://u:***@h/v1"),
        ("//u:pw@h", "//u:***@h"),
        ("u:pw@h", "u:***@h"),
        ("h/v1?key=PLANTED", "h/v1?***"),
        ("http://h/v1#key=PLANTED", "http://h/v1#***"),
        ("http://h/v1", "http://h/v1"),
    ] {
        let settings = settings_fixture()
            .config(format!("providers: {{lab: {{base_url: '{written}'}}}}\n"))
            .load();
        assert_eq!(
            settings
                .get_value("providers.lab.base_url")
                .unwrap()
                .to_display_value(),
            json!(shown)
        );
        assert_eq!(
            settings.get_value("providers").unwrap().to_display_value(),
            json!({"lab": {"base_url": shown}})
        );
        let is_known = settings.redactor().redact("<PLANTED>") == "<***>";
        assert_eq!(is_known, written.contains("api_key"), "{written}");
    }
}
