//! Tests all settings of the program.

use std::collections::BTreeSet;

use bub_settings::{Environment, FromSettings as _, Loader, Settings, is_sensitive_name};
use serde_json::Value;

use crate::sandbox::Sandbox;

/// Returns the settings of the standard program with these environment variables.
fn settings(variables: &[(&str, &str)]) -> Settings {
    let home = [("BUB_HOME", "/nonexistent"), ("HOME", "/nonexistent")];
    let variables = home.into_iter().chain(variables.iter().copied());
    Loader::new(Environment::from_pairs(variables))
        .sections(bub::core_sections())
        .section(bub_fetch::settings::section())
        .section(bub_telegram::settings::TelegramSettings::section())
        .section(bub_replay::settings::ReplaySettings::section())
        .section(bub_http::settings::WebhookSettings::section())
        .section(bub_codex::settings::section())
        .load()
        .unwrap()
}

// H-23: names and defaults of the Python version; those of model and max_steps are ours, and three names
#[test]
#[expect(clippy::too_many_lines, reason = "one line per setting")]
fn the_declared_names_and_defaults_are_those_of_the_python_version() {
    let listed = Sandbox::new().bub(["config", "list", "--json"]).ok();
    let row = |line| {
        let entry: Value = serde_json::from_str(line).unwrap();
        let text = |name: &str| entry[name].as_str().unwrap().to_owned();
        format!("{} {} {}", text("key"), text("variable"), entry["default"])
    };
    let table: Vec<String> = listed.lines().map(row).collect();
    assert_eq!(
        table,
        [
            r#"home BUB_HOME "~/.bub""#,
            "model BUB_MODEL null",
            "fallback_models BUB_FALLBACK_MODELS null",
            "api_key BUB_API_KEY null",
            "api_base BUB_API_BASE null",
            "api_key_command BUB_API_KEY_COMMAND null",
            "providers BUB_PROVIDERS {}",
            "local_models BUB_LOCAL_MODELS true",
            "model_timeout_seconds BUB_MODEL_TIMEOUT_SECONDS null",
            "model_idle_timeout_seconds BUB_MODEL_IDLE_TIMEOUT_SECONDS 120.0",
            "client_args BUB_CLIENT_ARGS {}",
            "max_steps BUB_MAX_STEPS 100",
            "max_tokens BUB_MAX_TOKENS 16384",
            "transcribe BUB_TRANSCRIBE null",
            "completion_args BUB_COMPLETION_ARGS {}",
            r#"enabled_channels BUB_ENABLED_CHANNELS ["all"]"#,
            "debounce_seconds BUB_DEBOUNCE_SECONDS 1.0",
            "max_wait_seconds BUB_MAX_WAIT_SECONDS 10.0",
            "active_time_window BUB_ACTIVE_TIME_WINDOW 60.0",
            "stream_output BUB_STREAM_OUTPUT false",
            "owners BUB_OWNERS []",
            r#"command_prefix BUB_COMMAND_PREFIX ",""#,
            "plugins BUB_PLUGINS {}",
            "verbose BUB_VERBOSE 0",
            "project BUB_PROJECT null",
            "plugin_selection BUB_PLUGIN_SELECTION []",
            r#"codex_home CODEX_HOME "~/.codex""#,
            "env.pass BUB_ENV_PASS []",
            "env.drop BUB_ENV_DROP []",
            "spill.threshold BUB_SPILL_THRESHOLD 4096",
            "policy.deny BUB_POLICY_DENY []",
            "policy.run_deny BUB_POLICY_RUN_DENY []",
            "policy.run_ask BUB_POLICY_RUN_ASK []",
            "policy.run_allow BUB_POLICY_RUN_ALLOW []",
            "policy.rules BUB_POLICY_RULES []",
            "policy.ask BUB_POLICY_ASK []",
            "policy.allow BUB_POLICY_ALLOW []",
            "policy.approval_timeout_seconds BUB_POLICY_APPROVAL_TIMEOUT_SECONDS 300.0",
            r#"policy.mixed_company BUB_POLICY_MIXED_COMPANY "deny""#,
            r#"policy.untrusted_content BUB_POLICY_UNTRUSTED_CONTENT "ask""#,
            "fs.confine BUB_FS_CONFINE false",
            "skills.env BUB_SKILLS_ENV {}",
            "sandbox.profile BUB_SANDBOX_PROFILE \"workspace\"",
            "sandbox.network BUB_SANDBOX_NETWORK \"auto\"",
            "sandbox.grants BUB_SANDBOX_GRANTS []",
            "sandbox.readable BUB_SANDBOX_READABLE []",
            "sandbox.writable BUB_SANDBOX_WRITABLE []",
            "sandbox.max_processes BUB_SANDBOX_MAX_PROCESSES 4096",
            "sandbox.max_memory_mb BUB_SANDBOX_MAX_MEMORY_MB 16384",
            "sandbox.max_file_mb BUB_SANDBOX_MAX_FILE_MB 16384",
            "usage.daily_tokens BUB_USAGE_DAILY_TOKENS null",
            "usage.daily_cost BUB_USAGE_DAILY_COST null",
            "usage.process_cost BUB_USAGE_PROCESS_COST null",
            "gateway.drain_seconds BUB_GATEWAY_DRAIN_SECONDS 30.0",
            "gateway.session_queue BUB_GATEWAY_SESSION_QUEUE 100",
            "gateway.max_unfinished BUB_GATEWAY_MAX_UNFINISHED 10000",
            "gateway.max_turns BUB_GATEWAY_MAX_TURNS 1000",
            r#"tape.durability BUB_TAPE_DURABILITY "os""#,
            r#"tape.storage BUB_TAPE_STORAGE "file""#,
            r#"tape.integrity BUB_TAPE_INTEGRITY "none""#,
            "media.max_items BUB_MEDIA_MAX_ITEMS 20",
            "media.max_mb BUB_MEDIA_MAX_MB 12",
            "log.filter BUB_LOG null",
            r#"log.format BUB_LOG_FORMAT "text""#,
            "log.file BUB_LOG_FILE null",
            "log.max_file_bytes BUB_LOG_MAX_FILE_BYTES 10000000",
            "log.contents BUB_LOG_CONTENTS false",
            "web.allow_private BUB_WEB_ALLOW_PRIVATE []",
            "web.proxy BUB_WEB_PROXY true",
            "telegram.token BUB_TELEGRAM_TOKEN null",
            "telegram.allow_users BUB_TELEGRAM_ALLOW_USERS null",
            "telegram.allow_chats BUB_TELEGRAM_ALLOW_CHATS null",
            "telegram.proxy BUB_TELEGRAM_PROXY null",
            r#"telegram.api_base BUB_TELEGRAM_API_BASE "https://api.telegram.org""#,
            r#"telegram.reply BUB_TELEGRAM_REPLY "auto""#,
            "telegram.stream BUB_TELEGRAM_STREAM true",
            "telegram.link_previews BUB_TELEGRAM_LINK_PREVIEWS false",
            "telegram.drop_pending BUB_TELEGRAM_DROP_PENDING false",
            "telegram.pairing BUB_TELEGRAM_PAIRING true",
            r#"replay.divergence BUB_REPLAY_DIVERGENCE "strict""#,
            "replay.pace BUB_REPLAY_PACE 0",
            "replay.session BUB_REPLAY_SESSION false",
            "webhook.token BUB_WEBHOOK_TOKEN null",
            r#"webhook.listen BUB_WEBHOOK_LISTEN "127.0.0.1:8787""#,
            r#"webhook.role BUB_WEBHOOK_ROLE "member""#,
            "webhook.callback_hosts BUB_WEBHOOK_CALLBACK_HOSTS []",
            "webhook.reply_timeout_seconds BUB_WEBHOOK_REPLY_TIMEOUT_SECONDS 300.0",
            "webhook.body_limit BUB_WEBHOOK_BODY_LIMIT 1000000",
            "webhook.max_connections BUB_WEBHOOK_MAX_CONNECTIONS 1024",
            "run.header BUB_RUN_HEADER false",
        ]
    );
    let loaded = settings(&[]);
    let keys: Vec<&str> = loaded.entries().map(|entry| &*entry.setting.key).collect();
    let listed = table.iter().filter_map(|row| row.split(' ').next());
    // The program declares the section `run` itself.
    let listed = listed.filter(|key| !key.starts_with("run."));
    assert_eq!(
        keys,
        listed.collect::<Vec<_>>(),
        "the other tests here check every setting"
    );
}

#[test]
fn declarations_follow_the_rules() {
    let settings = settings(&[]);
    let variables: BTreeSet<String> = settings
        .entries()
        .map(|entry| entry.setting.variable().into_owned())
        .collect();
    let all = settings.entries().count();
    assert_eq!(variables.len(), all, "two settings share a variable");
    for entry in settings.entries() {
        let key = &*entry.setting.key;
        assert!(entry.setting.help.ends_with('.'), "{key}");
        assert!(key.matches('.').count() <= 1, "{key}");
        assert_eq!(entry.setting.secret, is_sensitive_name(key), "{key}");
    }
}

#[test]
fn the_configuration_page_names_every_setting() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, table) = page.split_once("## Settings").unwrap();
    for entry in settings(&[]).entries() {
        let (key, variable) = (&*entry.setting.key, entry.setting.variable());
        let named = table.contains(&format!("`{key}`")) || table.contains(&format!("`{variable}`"));
        assert!(named, "{key} is missing");
    }
}

// Sections of plugins are known before the variables of providers are read.
#[test]
fn the_address_of_the_bot_server_is_not_that_of_a_provider() {
    let settings = settings(&[("BUB_TELEGRAM_API_BASE", "http://127.0.0.1:1")]);
    assert!(
        settings
            .get(bub_model::settings::ModelSettings::API_BASE)
            .is_empty()
    );
    let address = settings.get(bub_telegram::settings::TelegramSettings::API_BASE);
    assert_eq!(address, "http://127.0.0.1:1");
}
