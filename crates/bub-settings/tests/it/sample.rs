//! A program's settings: every kind, every form, several at the root.

use std::path::PathBuf;
use std::time::Duration;

use bub_settings::{Declared, Key, Kind, PerProvider, Secret, Section, SettingType, form};
use serde_json::{Map, Value};

pub(crate) static MODEL: Key<Option<String>> = Key::new(
    "model",
    None,
    "Model to use, as `provider:model`; without one bub looks for a usable model.",
)
.like(&form::MODEL);

pub(crate) static FALLBACK_MODELS: Key<Option<Vec<String>>> = Key::new(
    "fallback_models",
    None,
    "Models to try, in this order, when the first one fails.",
)
.listed();

pub(crate) static API_KEY: Key<PerProvider<Secret>> = Key::new(
    "api_key",
    (),
    "API key of the provider of `model`, or one for each (`BUB_<PROVIDER>_API_KEY`).",
)
.like(&form::KEY);

pub(crate) static API_BASE: Key<PerProvider<String>> = Key::new(
    "api_base",
    (),
    "Base URL of the provider of `model`, or one for each (`BUB_<PROVIDER>_API_BASE`).",
)
.like(&form::BASE_URL)
.trusted();

pub(crate) static PROVIDERS: Key<Map<String, Value>> = Key::new(
    "providers",
    (),
    "Providers to add or change: a map of name to base URL, wire and more.",
)
.trusted();

pub(crate) static MAX_STEPS: Key<Option<u64>> = Key::new(
    "max_steps",
    Some(100),
    "Most steps of one turn; null for no limit.",
)
.at_least(1);

pub(crate) static MAX_TOKENS: Key<u64> =
    Key::new("max_tokens", 16_384, "Most tokens of one answer.").at_least(1);

pub(crate) static MODEL_TIMEOUT: Key<Option<Duration>> = Key::new(
    "model_timeout_seconds",
    None,
    "Longest time of one model call in seconds, streaming included; null for no limit.",
);

pub(crate) static CLIENT_ARGS: Key<Map<String, Value>> = Key::new(
    "client_args",
    (),
    "Options for the HTTP client of the provider.",
)
.trusted();

pub(crate) static COMPLETION_ARGS: Key<Map<String, Value>> = Key::new(
    "completion_args",
    (),
    "Options for every model call, the weakest of all sources.",
)
.trusted();

pub(crate) static VERBOSE: Key<u64> = Key::new("verbose", 0, "How much to log.").at_most(2);

pub(crate) static ENABLED_CHANNELS: Key<Vec<String>> = Key::new(
    "enabled_channels",
    "all",
    "Channels to start: `all`, names with commas between them, `!name` to leave one out.",
);

pub(crate) static DEBOUNCE: Key<Duration> = Key::new(
    "debounce_seconds",
    Duration::from_secs(1),
    "Quiet time in seconds after which collected messages become a turn.",
);

pub(crate) static STREAM_OUTPUT: Key<bool> = Key::new(
    "stream_output",
    false,
    "Show answers in channels while they grow.",
);

pub(crate) static PROJECT: Key<Option<PathBuf>> = Key::new(
    "project",
    None,
    "Directory of the plugin project; default `bub-project` in the home directory.",
)
.trusted()
.not_in_file();

pub(crate) static CODEX_HOME: Key<PathBuf> =
    Key::new("codex_home", "~/.codex", "Directory of the Codex login.")
        .variable("CODEX_HOME")
        .trusted()
        .not_in_file();

pub(crate) static OWNERS: Key<Vec<String>> = Key::new(
    "owners",
    "",
    "Who is the owner in a channel: `channel:id`, several with commas between them.",
)
.trusted();

pub(crate) static TELEGRAM_TOKEN: Key<Option<Secret>> = Key::new(
    "telegram.token",
    None,
    "Token of the Telegram bot; without one the channel is off.",
);

pub(crate) static TELEGRAM_ALLOW_USERS: Key<Option<Vec<String>>> = Key::new(
    "telegram.allow_users",
    None,
    "Telegram users who may talk to bub.",
)
.trusted();

pub(crate) static TELEGRAM_PROXY: Key<Option<String>> =
    Key::new("telegram.proxy", None, "HTTP or SOCKS5 proxy for Telegram.")
        .like(&form::PROXY)
        .trusted();

pub(crate) static TELEGRAM_API_BASE: Key<String> = Key::new(
    "telegram.api_base",
    "https://api.telegram.org",
    "Address of the Bot API server.",
)
.like(&form::BASE_URL)
.trusted();

pub(crate) static WEBHOOK_LISTEN: Key<String> = Key::new(
    "webhook.listen",
    "127.0.0.1:8787",
    "Address and port on which the webhook listens.",
)
.like(&form::LISTEN)
.trusted();

pub(crate) static SPILL_THRESHOLD: Key<u64> = Key::new(
    "spill.threshold",
    4096,
    "Size in characters above which tool output is put aside; 0 never.",
);

pub(crate) static TAPE_DURABILITY: Key<Durability> = Key::new(
    "tape.durability",
    Durability::Os,
    "`os`: survives the end of the process; `always`: also the loss of power.",
);

pub(crate) static GATEWAY_TURNS: Key<u64> = Key::new(
    "gateway.turns",
    1000,
    "Turns that run at the same time; further messages wait for their turn.",
)
.at_least(1);

pub(crate) static POLICY_RULES: Key<Vec<Map<String, Value>>> = Key::new(
    "policy.rules",
    (),
    "Rules for tool calls, the first that fits decides: a list of maps with roles, channels, tools, arguments, action, reason.",
)
.trusted();

pub(crate) static FS_CONFINE: Key<bool> = Key::new(
    "fs.confine",
    false,
    "Keep the fs tools inside the workspace, for owners too.",
)
.trusted();

pub(crate) static USAGE_DAILY_COST: Key<Option<f64>> = Key::new(
    "usage.daily_cost",
    None,
    "Most US dollars of one day; null for no limit.",
)
.trusted();

pub(crate) static LOG_FILTER: Key<Option<String>> = Key::new(
    "log.filter",
    None,
    "What to log: error, warn, info, debug, trace, off, and TARGET=LEVEL, with commas between them.",
)
.like(&form::LOG_FILTER)
.variable("BUB_LOG");

/// What an acknowledged write survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Durability {
    /// The end of the process, however it ends.
    #[default]
    Os,
    /// The loss of power, too.
    Always,
}

impl SettingType for Durability {
    type Default = Self;
    const KIND: Kind = Kind::Choice(&["os", "always"]);

    fn from_default(default: Self) -> Self {
        default
    }

    fn default_value(default: Self) -> Value {
        match default {
            Self::Os => Value::from("os"),
            Self::Always => Value::from("always"),
        }
    }

    fn from_value(value: Value) -> Option<Self> {
        match value.as_str()? {
            "os" => Some(Self::Os),
            "always" => Some(Self::Always),
            _ => None,
        }
    }
}

static ROOT: &[&dyn Declared] = &[
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
static TELEGRAM: &[&dyn Declared] = &[
    &TELEGRAM_TOKEN,
    &TELEGRAM_ALLOW_USERS,
    &TELEGRAM_PROXY,
    &TELEGRAM_API_BASE,
];
static WEBHOOK: &[&dyn Declared] = &[&WEBHOOK_LISTEN];
static SPILL: &[&dyn Declared] = &[&SPILL_THRESHOLD];
static TAPE: &[&dyn Declared] = &[&TAPE_DURABILITY];
static GATEWAY: &[&dyn Declared] = &[&GATEWAY_TURNS];
static POLICY: &[&dyn Declared] = &[&POLICY_RULES];
static FS: &[&dyn Declared] = &[&FS_CONFINE];
static USAGE: &[&dyn Declared] = &[&USAGE_DAILY_COST];
static LOG: &[&dyn Declared] = &[&LOG_FILTER];

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
