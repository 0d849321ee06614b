//! Tests of former keys, which still work in every source.

use serde_json::json;

use crate::fixture::settings_fixture;
use crate::sample::{self, GATEWAY_MAX_UNFINISHED as KEY};

#[test]
fn a_former_key_works_in_every_source_with_a_warning_that_names_the_new_one() {
    for (given, warning) in [
        (
            settings_fixture().config("gateway: {queue: 7}"),
            "user/.bub/config.yml:1: `gateway.queue` is deprecated; use `gateway.max_unfinished`",
        ),
        (
            settings_fixture().config("gateway: {depth: 7}"),
            "user/.bub/config.yml:1: `gateway.depth` is deprecated; use `gateway.max_unfinished`",
        ),
        (
            settings_fixture().env("BUB_GATEWAY_QUEUE", "7"),
            "environment variable BUB_GATEWAY_QUEUE: `BUB_GATEWAY_QUEUE` is deprecated; \
             use `BUB_GATEWAY_MAX_UNFINISHED`",
        ),
        (
            settings_fixture().dotenv("BUB_GATEWAY_QUEUE=7\n"),
            "work/.env:1 (BUB_GATEWAY_QUEUE): `BUB_GATEWAY_QUEUE` is deprecated; \
             use `BUB_GATEWAY_MAX_UNFINISHED`",
        ),
    ] {
        assert_eq!(given.load().get(&KEY), 7, "{warning}");
        assert_eq!(given.warnings(), [warning]);
    }
}

#[test]
fn the_new_key_wins_in_the_same_source_and_the_former_one_is_reported() {
    let given = settings_fixture().config("gateway:\n  max_unfinished: 8\n  queue: 7\n");
    assert_eq!(given.load().get(&KEY), 8);
    assert_eq!(
        given.warnings(),
        [
            "user/.bub/config.yml:3: `gateway.queue` is deprecated and ignored, \
             because `gateway.max_unfinished` is set; remove it"
        ]
    );
    let given = settings_fixture()
        .env("BUB_GATEWAY_QUEUE", "7")
        .env("bub_gateway_max_unfinished", "8");
    assert_eq!(given.load().get(&KEY), 8);
    assert_eq!(
        given.warnings(),
        [
            "environment variable BUB_GATEWAY_QUEUE: `BUB_GATEWAY_QUEUE` is deprecated and ignored, \
             because `BUB_GATEWAY_MAX_UNFINISHED` is set; remove it"
        ]
    );
}

#[test]
fn a_former_key_has_the_precedence_of_its_source() {
    let given = settings_fixture()
        .config("gateway: {max_unfinished: 8}")
        .env("BUB_GATEWAY_QUEUE", "7");
    assert_eq!(given.load().get(&KEY), 7);
    let given = settings_fixture()
        .config("gateway: {queue: 8}")
        .env("BUB_GATEWAY_MAX_UNFINISHED", "7");
    assert_eq!(given.load().get(&KEY), 7);
}

#[test]
fn an_untrusted_workspace_cannot_use_a_former_key() {
    let given = settings_fixture()
        .dotenv("BUB_LOG_FILE_SIZE=1\n")
        .untrusted();
    assert_eq!(given.load().get(&sample::LOG_MAX_FILE_BYTES), 10_000_000);
    assert_eq!(given.warnings(), Vec::<String>::new());
}

#[test]
fn an_invalid_value_is_reported_with_the_key_in_the_file() {
    let given = settings_fixture().config("gateway: {queue: 0}");
    assert_eq!(
        given.error(),
        "user/.bub/config.yml:1: `gateway.queue` is `0`, expected a whole number of at least 1"
    );
}

#[test]
fn lookups_accept_a_former_key() {
    let settings = settings_fixture()
        .config("gateway: {max_unfinished: 8}")
        .load();
    let value = settings.get_value("gateway.queue").unwrap();
    assert_eq!(value.to_display_value(), json!(8));
    assert_eq!(
        settings.origin("gateway.queue"),
        settings.origin("gateway.max_unfinished")
    );
    assert_eq!(
        settings.current_path("gateway.queue"),
        "gateway.max_unfinished"
    );
    assert_eq!(settings.current_path("gateway.turns"), "gateway.turns");
    assert_eq!(settings.current_path("api_key.openai"), "api_key.openai");
}
