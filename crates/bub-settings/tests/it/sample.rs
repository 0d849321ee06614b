//! Settings of a sample program: every kind, every format, several at the root.

use std::path::PathBuf;
use std::time::Duration;

use bub_settings::{
    AnySetting, PerProvider, Secret, Section, SettingChoice, SettingKey, text_format,
};
use serde_json::{Map, Value};

pub(crate) static MODEL: SettingKey<Option<String>> = SettingKey::new(
    "model",
    None,
    "Model to use, as `provider:model`; without one bub looks for a usable model.",
)
.format(&text_format::MODEL);

pub(crate) static FALLBACK_MODELS: SettingKey<Option<Vec<String>>> = SettingKey::new(
    "fallback_models",
    None,
    "Models to try, in this order, when the first one fails.",
)
.write_as_list();

pub(crate) static API_KEY: SettingKey<PerProvider<Secret>> = SettingKey::new(
    "api_key",
    (),
    "API key of the provider of `model`, or one for each (`BUB_<PROVIDER>_API_KEY`).",
)
.format(&text_format::KEY);

pub(crate) static API_BASE: SettingKey<PerProvider<String>> = SettingKey::new(
    "api_base",
    (),
    "Base URL of the provider of `model`, or one for each (`BUB_<PROVIDER>_API_BASE`).",
)
.format(&text_format::BASE_URL);

pub(crate) static PROVIDERS: SettingKey<Map<String, Value>> = SettingKey::new(
    "providers",
    (),
    "Providers to add or change: a map of name to base URL, wire and more.",
);

pub(crate) static MAX_STEPS: SettingKey<Option<u64>> = SettingKey::new(
    "max_steps",
    Some(100),
    "Most steps of one turn; null for no limit.",
)
.at_least(1);

pub(crate) static MAX_TOKENS: SettingKey<u64> =
    SettingKey::new("max_tokens", 16_384, "Most tokens of one answer.").at_least(1);

pub(crate) static MODEL_TIMEOUT: SettingKey<Option<Duration>> = SettingKey::new(
    "model_timeout_seconds",
    None,
    "Longest time of one model call in seconds, streaming included; null for no limit.",
);

pub(crate) static CLIENT_ARGS: SettingKey<Map<String, Value>> = SettingKey::new(
    "client_args",
    (),
    "Options for the HTTP client of the provider.",
);

pub(crate) static COMPLETION_ARGS: SettingKey<Map<String, Value>> = SettingKey::new(
    "completion_args",
    (),
    "Options for every model call, the weakest of all sources.",
);

pub(crate) static VERBOSE: SettingKey<u64> =
    SettingKey::new("verbose", 0, "Log verbosity: 0 warnings, 1 info, 2 debug.").at_most(2);

pub(crate) static ENABLED_CHANNELS: SettingKey<Vec<String>> = SettingKey::new(
    "enabled_channels",
    "all",
    "Channels to start: `all`, names with commas between them, `!name` to leave one out.",
);

pub(crate) static DEBOUNCE: SettingKey<Duration> = SettingKey::new(
    "debounce_seconds",
    Duration::from_secs(1),
    "Quiet time in seconds after which collected messages become a turn.",
);

pub(crate) static STREAM_OUTPUT: SettingKey<bool> = SettingKey::new(
    "stream_output",
    false,
    "Show answers in channels while they grow.",
);

pub(crate) static PROJECT: SettingKey<Option<PathBuf>> = SettingKey::new(
    "project",
    None,
    "Plugin project directory of the Python version; accepted for compatibility and not used.",
)
.env_only();

pub(crate) static CODEX_HOME: SettingKey<PathBuf> =
    SettingKey::new("codex_home", "~/.codex", "Directory of the Codex login.")
        .variable("CODEX_HOME")
        .env_only();

pub(crate) static OWNERS: SettingKey<Vec<String>> = SettingKey::new(
    "owners",
    "",
    "Senders with the owner role, as `channel:id`, separated by commas.",
);

pub(crate) static TELEGRAM_TOKEN: SettingKey<Option<Secret>> = SettingKey::new(
    "telegram.token",
    None,
    "Token of the Telegram bot; without one the channel is off.",
);

pub(crate) static TELEGRAM_ALLOW_USERS: SettingKey<Option<Vec<String>>> = SettingKey::new(
    "telegram.allow_users",
    None,
    "Telegram users who may talk to bub.",
);

pub(crate) static TELEGRAM_PROXY: SettingKey<Option<String>> =
    SettingKey::new("telegram.proxy", None, "HTTP or SOCKS5 proxy for Telegram.")
        .format(&text_format::PROXY);

pub(crate) static TELEGRAM_API_BASE: SettingKey<String> = SettingKey::new(
    "telegram.api_base",
    "https://api.telegram.org",
    "Address of the Bot API server.",
)
.format(&text_format::BASE_URL);

pub(crate) static WEBHOOK_LISTEN: SettingKey<String> = SettingKey::new(
    "webhook.listen",
    "127.0.0.1:8787",
    "Address and port on which the webhook listens.",
)
.format(&text_format::LISTEN);

pub(crate) static SPILL_THRESHOLD: SettingKey<u64> = SettingKey::new(
    "spill.threshold",
    4096,
    "Size in characters above which tool output is spilled; 0 never.",
);

pub(crate) static TAPE_DURABILITY: SettingKey<Durability> = SettingKey::new(
    "tape.durability",
    Durability::Os,
    "Failures that tape entries survive. `os`: a crash of bub; `always`: also power loss.",
);

pub(crate) static GATEWAY_TURNS: SettingKey<u64> = SettingKey::new(
    "gateway.turns",
    1000,
    "Turns that run at the same time; further messages wait for their turn.",
)
.at_least(1);

pub(crate) static GATEWAY_MAX_UNFINISHED: SettingKey<u64> = SettingKey::new(
    "gateway.max_unfinished",
    10_000,
    "Maximum unfinished messages; further messages are rejected.",
)
.deprecated_names(&["gateway.queue", "gateway.depth"])
.at_least(1);

pub(crate) static LOG_MAX_FILE_BYTES: SettingKey<u64> = SettingKey::new(
    "log.max_file_bytes",
    10_000_000,
    "Size in bytes at which the log file is rotated.",
)
.deprecated_names(&["log.file_size"]);

pub(crate) static POLICY_RULES: SettingKey<Vec<Map<String, Value>>> = SettingKey::new(
    "policy.rules",
    (),
    "Rules for tool calls, the first that fits decides: a list of maps with roles, channels, tools, arguments, action, reason.",
);

pub(crate) static FS_CONFINE: SettingKey<bool> = SettingKey::new(
    "fs.confine",
    false,
    "Keep the fs tools inside the workspace, for owners too.",
);

pub(crate) static USAGE_DAILY_COST: SettingKey<Option<f64>> = SettingKey::new(
    "usage.daily_cost",
    None,
    "Most US dollars of one day; null for no limit.",
);

pub(crate) static LOG_FILTER: SettingKey<Option<String>> = SettingKey::new(
    "log.filter",
    None,
    "Log levels, separated by commas: error, warn, info, debug, trace, off, and TARGET=LEVEL.",
)
.format(&text_format::LOG_FILTER)
.variable("BUB_LOG");

/// What an acknowledged write survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, SettingChoice)]
#[settings(crate = bub_settings)]
pub(crate) enum Durability {
    /// The end of the process, including a crash.
    #[default]
    Os,
    /// A power loss, too.
    Always,
}

static ROOT: &[&dyn AnySetting] = &[
    &MODEL,
    &FALLBACK_MODELS,
    &API_KEY,
    &API_BASE,
    &PROVIDERS,
    &MAX_STEPS,
    &MAX_TOKENS,
    &MODEL_TIMEOUT,
    &CLIENT_ARGS,
    &COMPLETION_ARGS,
    &VERBOSE,
    &ENABLED_CHANNELS,
    &DEBOUNCE,
    &STREAM_OUTPUT,
    &PROJECT,
    &CODEX_HOME,
    &OWNERS,
];
static TELEGRAM: &[&dyn AnySetting] = &[
    &TELEGRAM_TOKEN,
    &TELEGRAM_ALLOW_USERS,
    &TELEGRAM_PROXY,
    &TELEGRAM_API_BASE,
];
static WEBHOOK: &[&dyn AnySetting] = &[&WEBHOOK_LISTEN];
static SPILL: &[&dyn AnySetting] = &[&SPILL_THRESHOLD];
static TAPE: &[&dyn AnySetting] = &[&TAPE_DURABILITY];
static GATEWAY: &[&dyn AnySetting] = &[&GATEWAY_TURNS, &GATEWAY_MAX_UNFINISHED];
static POLICY: &[&dyn AnySetting] = &[&POLICY_RULES];
static FS: &[&dyn AnySetting] = &[&FS_CONFINE];
static USAGE: &[&dyn AnySetting] = &[&USAGE_DAILY_COST];
static LOG: &[&dyn AnySetting] = &[&LOG_FILTER, &LOG_MAX_FILE_BYTES];

pub(crate) fn sections() -> [Section; 10] {
    [
        Section::new("", ROOT),
        Section::new("telegram", TELEGRAM),
        Section::new("webhook", WEBHOOK),
        Section::new("spill", SPILL),
        Section::new("tape", TAPE),
        Section::new("gateway", GATEWAY),
        Section::new("policy", POLICY),
        Section::new("fs", FS),
        Section::new("usage", USAGE),
        Section::new("log", LOG),
    ]
}
