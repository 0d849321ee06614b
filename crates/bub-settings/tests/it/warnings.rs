//! Tests of mistakes that do not stop the program.

use crate::fixture::settings_fixture;

// H-21: the Python version silently ignores unknown keys
#[test]
fn a_typo_in_the_file_is_a_warning_with_a_suggestion() {
    for (yaml, warning) in [
        (
            "modle: a:b",
            ":1: unknown setting `modle`, did you mean `model`?",
        ),
        (
            "max-steps: 5",
            ":1: unknown setting `max-steps`, did you mean `max_steps`?",
        ),
        (
            "telegram: {tokn: x}",
            ":1: unknown setting `telegram.tokn`, did you mean `telegram.token`?",
        ),
        (
            "telegrm: {token: x}",
            ":1: unknown setting `telegrm`, did you mean `telegram`?",
        ),
        (
            "color: blue",
            ":1: unknown setting `color`; it is ignored, run `bub config list` to see all settings",
        ),
        (
            "spill: {depth: 1}",
            ":1: unknown setting `spill.depth`; it is ignored, run `bub config list` to see all settings",
        ),
        (
            "spill.threshold: 1",
            ":1: unknown setting `spill.threshold`, did you mean `spill: {threshold: …}`?",
        ),
        (
            "model: a:b\nmodel: c:d",
            ":2: `model` is set twice; this value is used, remove the other one",
        ),
    ] {
        assert_eq!(
            settings_fixture().config(yaml).warnings(),
            [format!("user/.bub/config.yml{warning}")]
        );
    }
}

#[test]
fn the_section_of_a_plugin_that_is_not_loaded_is_no_mistake() {
    assert_eq!(
        settings_fixture()
            .config("discord: {token: x}\nmodel: a:b\n")
            .warnings(),
        Vec::<String>::new()
    );
    // Also if its name resembles a setting that is not a map.
    assert_eq!(
        settings_fixture()
            .config("modem: {baud: 300}\nhomes: {a: b}\n")
            .warnings(),
        Vec::<String>::new()
    );
}

#[test]
fn a_typo_in_a_variable_is_a_warning_and_a_foreign_variable_is_none() {
    let fixture = settings_fixture()
        .env("BUB_MODLE", "a:b")
        .env("BUB_FIXTURES", "/x")
        .env("BUBBLE", "1")
        .env("MODLE", "x");
    assert_eq!(
        fixture.warnings(),
        ["environment variable BUB_MODLE: unknown setting `BUB_MODLE`, did you mean `BUB_MODEL`?"]
    );
    let fixture = settings_fixture().dotenv("BUB_MAX_STEP=4\n");
    assert_eq!(
        fixture.warnings(),
        [
            "work/.env:1 (BUB_MAX_STEP): unknown setting `BUB_MAX_STEP`, did you mean `BUB_MAX_STEPS`?"
        ]
    );
}
