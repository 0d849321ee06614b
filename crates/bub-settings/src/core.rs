//! The settings of bub itself: the root section and the sections that every home may have.
//!
//! Names, types and defaults are those of the original, so its config files and environments keep
//! working; where a default differs, the help says what it is and the reason stands beside it.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::{Declared, Key, Kind, PerProvider, Secret, Section, SettingType, form};

/// Where bub keeps tapes, history and plugins.
pub static HOME: Key<PathBuf> = Key::new(
    "home",
    "~/.bub",
    "Directory for tapes, history and plugins.",
)
.trusted()
.not_in_file();

/// The model that answers. The original has a default that needs a key; without one, none is honest.
pub static MODEL: Key<Option<String>> = Key::new(
    "model",
    None,
    "Model to use, as `provider:model`; without one bub looks for a usable model.",
)
.like(&form::MODEL);

/// Models tried when the first one fails.
pub static FALLBACK_MODELS: Key<Option<Vec<String>>> = Key::new(
    "fallback_models",
    None,
    "Models to try, in this order, when the first one fails.",
)
.listed();

/// Keys of the providers.
pub static API_KEY: Key<PerProvider<Secret>> = Key::new(
    "api_key",
    (),
    "API key of the provider of `model`, or one for each (`BUB_<PROVIDER>_API_KEY`).",
)
.like(&form::KEY);

/// Addresses of the providers. Trusted, because it decides who receives the key.
pub static API_BASE: Key<PerProvider<String>> = Key::new(
    "api_base",
    (),
    "Base URL of the provider of `model`, or one for each (`BUB_<PROVIDER>_API_BASE`).",
)
.like(&form::BASE_URL)
.trusted();

/// Programs that print keys. Trusted, because they are run.
pub static API_KEY_COMMAND: Key<PerProvider<String>> = Key::new(
    "api_key_command",
    (),
    "Command that prints the API key, for the provider of `model` or one for each; run without a shell.",
)
.trusted();

/// Providers that are added or changed. Trusted, because it decides who receives the key.
pub static PROVIDERS: Key<Map<String, Value>> = Key::new(
    "providers",
    (),
    "Providers to add or change: a map of name to base URL, wire and more.",
)
.trusted();

/// What the configuration says about plugins in other processes.
pub static PLUGINS: Key<Map<String, Value>> = Key::new(
    "plugins",
    (),
    "Plugins by name: `limits` in seconds (start, hook, synchronous, tool, model, hooks), `role` of those who write to its channels.",
)
.trusted();

/// Whether to ask the ports of local model servers.
pub static LOCAL_MODELS: Key<bool> = Key::new(
    "local_models",
    true,
    "Look for a model server on this computer when no model is configured and no key is found.",
);

/// How many steps a turn may take. The original has no limit; 100 stops a runaway loop.
pub static MAX_STEPS: Key<Option<u64>> = Key::new(
    "max_steps",
    Some(100),
    "Most steps of one turn; null for no limit.",
)
.at_least(1);

/// How long an answer may be.
pub static MAX_TOKENS: Key<u64> =
    Key::new("max_tokens", 16_384, "Most tokens of one answer.").at_least(1);

/// How long a model call may take.
pub static MODEL_TIMEOUT: Key<Option<Duration>> = Key::new(
    "model_timeout_seconds",
    None,
    "Longest time of one model call in seconds, streaming included; null for no limit.",
);

/// How long a model may be silent.
pub static MODEL_IDLE_TIMEOUT: Key<Duration> = Key::new(
    "model_idle_timeout_seconds",
    Duration::from_mins(2),
    "Longest silence of a model in seconds, before its first and between any two pieces of an answer.",
);

/// Options of the HTTP client. Trusted, because they can redirect it.
pub static CLIENT_ARGS: Key<Map<String, Value>> = Key::new(
    "client_args",
    (),
    "Options for the HTTP client of the provider.",
)
.trusted();

/// Options of each model call. Trusted, because some providers take addresses and headers here.
pub static COMPLETION_ARGS: Key<Map<String, Value>> = Key::new(
    "completion_args",
    (),
    "Options for every model call, the weakest of all sources.",
)
.trusted();

/// How much to log.
pub static VERBOSE: Key<u64> = Key::new("verbose", 0, "How much to log.").at_most(2);

/// Which channels run.
pub static ENABLED_CHANNELS: Key<Vec<String>> = Key::new(
    "enabled_channels",
    "all",
    "Channels to start: `all`, names with commas between them, `!name` to leave one out.",
);

/// How long to wait for more messages.
pub static DEBOUNCE: Key<Duration> = Key::new(
    "debounce_seconds",
    Duration::from_secs(1),
    "Quiet time in seconds after which collected messages become a turn.",
);

/// The hard cap of that wait.
pub static MAX_WAIT: Key<Duration> = Key::new(
    "max_wait_seconds",
    Duration::from_secs(10),
    "Longest time in seconds a message is held back.",
);

/// How long a chat stays active after the bot was addressed.
pub static ACTIVE_TIME_WINDOW: Key<Duration> = Key::new(
    "active_time_window",
    Duration::from_mins(1),
    "Time in seconds for which a chat stays active after bub was addressed.",
);

/// Whether channels see the answer grow.
pub static STREAM_OUTPUT: Key<bool> = Key::new(
    "stream_output",
    false,
    "Show answers in channels while they grow.",
);

/// The plugin project directory of the original.
pub static PROJECT: Key<Option<PathBuf>> = Key::new(
    "project",
    None,
    "Directory of the plugin project; default `bub-project` in the home directory.",
)
.trusted()
.not_in_file();

/// Where the Codex login is kept.
pub static CODEX_HOME: Key<PathBuf> =
    Key::new("codex_home", "~/.codex", "Directory of the Codex login.")
        .variable("CODEX_HOME")
        .trusted()
        .not_in_file();

/// Whose computer it is, seen from a channel. Trusted: it is policy.
pub static OWNERS: Key<Vec<String>> = Key::new(
    "owners",
    "",
    "Who is the owner in a channel: `channel:id`, several with commas between them.",
)
.trusted();

/// The bot's token.
pub static TELEGRAM_TOKEN: Key<Option<Secret>> = Key::new(
    "telegram.token",
    None,
    "Token of the Telegram bot; without one the channel is off.",
);

/// Who may talk to the bot. Trusted: it is policy.
pub static TELEGRAM_ALLOW_USERS: Key<Option<Vec<String>>> = Key::new(
    "telegram.allow_users",
    None,
    "Telegram users who may talk to bub.",
)
.trusted();

/// Where the bot may talk. Trusted: it is policy.
pub static TELEGRAM_ALLOW_CHATS: Key<Option<Vec<String>>> = Key::new(
    "telegram.allow_chats",
    None,
    "Telegram chats in which bub may talk.",
)
.trusted();

/// The way to Telegram. Trusted, because it sees the traffic.
pub static TELEGRAM_PROXY: Key<Option<String>> =
    Key::new("telegram.proxy", None, "HTTP or SOCKS5 proxy for Telegram.")
        .like(&form::PROXY)
        .trusted();

/// Where the Bot API is. Trusted, because it gets the token.
pub static TELEGRAM_API_BASE: Key<String> = Key::new(
    "telegram.api_base",
    "https://api.telegram.org",
    "Address of the Bot API server.",
)
.like(&form::BASE_URL)
.trusted();

/// How the model's answers reach people.
pub static TELEGRAM_REPLY: Key<TelegramReply> = Key::new(
    "telegram.reply",
    TelegramReply::Auto,
    "`auto` sends the model's answer to the chat; `tool` leaves it to the model to send something.",
);

/// Whether a long answer is seen to grow.
pub static TELEGRAM_STREAM: Key<bool> = Key::new(
    "telegram.stream",
    true,
    "Show long answers while they grow, by editing one message.",
);

/// Whether what was sent while bub did not run is thrown away.
pub static TELEGRAM_DROP_PENDING: Key<bool> = Key::new(
    "telegram.drop_pending",
    false,
    "Throw away what was sent while bub did not run.",
);

/// Whether strangers may ask to be let in. Trusted: it is policy.
pub static TELEGRAM_PAIRING: Key<bool> = Key::new(
    "telegram.pairing",
    true,
    "Give unknown people a code for `bub pair`.",
)
.trusted();

/// Who may use the webhook. Trusted: whoever sets it opens the door.
pub static WEBHOOK_TOKEN: Key<Option<Secret>> = Key::new(
    "webhook.token",
    None,
    "Token that clients of the webhook must have; without one the channel is off.",
)
.trusted();

/// Where the webhook listens. Trusted: it decides who can reach it.
pub static WEBHOOK_LISTEN: Key<String> = Key::new(
    "webhook.listen",
    "127.0.0.1:8787",
    "Address and port on which the webhook listens.",
)
.like(&form::LISTEN)
.trusted();

/// What clients of the webhook may do. Trusted: it is policy.
pub static WEBHOOK_ROLE: Key<WebhookRole> = Key::new(
    "webhook.role",
    WebhookRole::Member,
    "What those who have the token of the webhook are: `owner`, `member` or `guest`.",
)
.trusted();

/// Which private hosts may be called back. Trusted: it is policy.
pub static WEBHOOK_CALLBACK_HOSTS: Key<Vec<String>> = Key::new(
    "webhook.callback_hosts",
    "",
    "Hosts to which the webhook may post replies though they are in a private network.",
)
.trusted();

/// How long a request waits.
pub static WEBHOOK_REPLY_TIMEOUT: Key<Duration> = Key::new(
    "webhook.reply_timeout_seconds",
    Duration::from_mins(5),
    "Time in seconds for which a request to the webhook waits for its reply.",
);

/// How large a message may be.
pub static WEBHOOK_BODY_LIMIT: Key<u64> = Key::new(
    "webhook.body_limit",
    1_000_000,
    "Most bytes of one request to the webhook.",
)
.at_least(1);

/// How many clients there may be.
pub static WEBHOOK_CONNECTIONS: Key<u64> = Key::new(
    "webhook.connections",
    1024,
    "Most connections to the webhook at one time.",
)
.at_least(1);

/// From which size a tool's output is put aside.
pub static SPILL_THRESHOLD: Key<u64> = Key::new(
    "spill.threshold",
    4096,
    "Size in characters above which tool output is put aside; 0 never.",
);

/// What an acknowledged tape entry survives.
pub static TAPE_DURABILITY: Key<Durability> = Key::new(
    "tape.durability",
    Durability::Os,
    "`os`: survives the end of the process; `always`: also the loss of power.",
);

/// How long a gateway finishes its work after the request to stop.
pub static GATEWAY_DRAIN: Key<Duration> = Key::new(
    "gateway.drain_seconds",
    Duration::from_secs(30),
    "Time in seconds for which the gateway finishes running turns after it was asked to stop.",
);

/// How many messages of one session wait.
pub static GATEWAY_SESSION_QUEUE: Key<u64> = Key::new(
    "gateway.session_queue",
    100,
    "Messages of one session that may wait; more are refused.",
)
.at_least(1);

/// How many messages wait in all.
pub static GATEWAY_QUEUE: Key<u64> = Key::new(
    "gateway.queue",
    10_000,
    "Unfinished messages in all, and undelivered replies of a channel; more messages are refused.",
)
.at_least(1);

/// How many turns run.
pub static GATEWAY_TURNS: Key<u64> = Key::new(
    "gateway.turns",
    1000,
    "Turns that run at the same time; further messages wait for their turn.",
)
.at_least(1);

/// What people may do. Trusted: it is policy.
pub static POLICY_RULES: Key<Vec<Map<String, Value>>> = Key::new(
    "policy.rules",
    (),
    "Rules for tool calls, the first that fits decides: a list of maps with roles, channels, tools, arguments, action, reason.",
)
.trusted();

/// How long an answer is waited for. Trusted: it is policy.
pub static POLICY_APPROVAL_TIMEOUT: Key<Duration> = Key::new(
    "policy.approval_timeout_seconds",
    Duration::from_mins(5),
    "Time in seconds after which a tool call that nobody approved is denied.",
)
.trusted();

/// Whether files outside the workspace are out of reach. Trusted: it is policy.
pub static FS_CONFINE: Key<bool> = Key::new(
    "fs.confine",
    false,
    "Keep the fs tools inside the workspace, for owners too.",
)
.trusted();

/// Variables that child processes get although bub read them as secrets. Trusted: it is policy.
pub static ENV_PASS: Key<Vec<String>> = Key::new(
    "env.pass",
    "",
    "Variables child processes get although they hold secrets.",
)
.trusted();

/// Variables that child processes never get. Trusted: it is policy.
pub static ENV_DROP: Key<Vec<String>> =
    Key::new("env.drop", "", "Variables child processes never get.").trusted();

/// Which variables a skill gets once it is loaded. Trusted: it is policy.
pub static SKILLS_ENV: Key<Map<String, Value>> = Key::new(
    "skills.env",
    (),
    "Variables a skill may ask for: a map of skill to names, `project:name` for a skill of the workspace.",
)
.trusted();

/// Who in the own network may be read. Trusted: it is policy.
pub static WEB_ALLOW_PRIVATE: Key<Vec<String>> = Key::new(
    "web.allow_private",
    "",
    "Hosts (`wiki.corp`, `*.corp`) and networks (`10.1.0.0/16`) that `web.fetch` may reach although they are private.",
)
.trusted();

/// Whether proxies are used. Trusted: a proxy looks names up itself.
pub static WEB_PROXY: Key<bool> = Key::new(
    "web.proxy",
    true,
    "Let `web.fetch` use the proxies of the environment (`HTTPS_PROXY` and the like).",
)
.trusted();

/// How many tokens a day. Trusted: a workspace must not lift it.
pub static USAGE_DAILY_TOKENS: Key<Option<u64>> = Key::new(
    "usage.daily_tokens",
    None,
    "Most tokens of one day, input and output; null for no limit.",
)
.trusted();

/// How much money a day. Trusted: a workspace must not lift it.
pub static USAGE_DAILY_COST: Key<Option<f64>> = Key::new(
    "usage.daily_cost",
    None,
    "Most US dollars of one day; null for no limit.",
)
.trusted();

/// Which log lines are written.
pub static LOG_FILTER: Key<Option<String>> = Key::new(
    "log.filter",
    None,
    "What to log: error, warn, info, debug, trace, off, and TARGET=LEVEL, with commas between them.",
)
.like(&form::LOG_FILTER)
.variable("BUB_LOG");

/// A file for the log. Trusted: it is written.
pub static LOG_FILE: Key<Option<PathBuf>> =
    Key::new("log.file", None, "File for the log, beside standard error.").trusted();

/// How large that file may grow.
pub static LOG_FILE_SIZE: Key<u64> = Key::new(
    "log.file_size",
    10_000_000,
    "Bytes after which the log file is put aside; three such files are kept.",
)
.at_least(1)
.trusted();

/// Whether the log may hold what people said. Trusted: it is policy.
pub static LOG_CONTENTS: Key<bool> = Key::new(
    "log.contents",
    false,
    "Log what people and models say, too, from the level info on.",
)
.trusted();

/// What an acknowledged write survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
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

/// What whoever has the token of the webhook is to this house.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WebhookRole {
    /// Whose computer it is.
    Owner,
    /// Somebody the owner let in.
    Member,
    /// Nobody in particular.
    Guest,
}

impl SettingType for WebhookRole {
    type Default = Self;
    const KIND: Kind = Kind::Choice(&["owner", "member", "guest"]);

    fn from_default(default: Self) -> Self {
        default
    }

    fn default_value(default: Self) -> Value {
        Value::from(match default {
            Self::Owner => "owner",
            Self::Member => "member",
            Self::Guest => "guest",
        })
    }

    fn from_value(value: Value) -> Option<Self> {
        match value.as_str()? {
            "owner" => Some(Self::Owner),
            "member" => Some(Self::Member),
            "guest" => Some(Self::Guest),
            _ => None,
        }
    }
}

/// How the model's answers reach people on Telegram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TelegramReply {
    /// What the model answers is sent.
    Auto,
    /// Only what the model sends by a tool or a script.
    Tool,
}

impl SettingType for TelegramReply {
    type Default = Self;
    const KIND: Kind = Kind::Choice(&["auto", "tool"]);

    fn from_default(default: Self) -> Self {
        default
    }

    fn default_value(default: Self) -> Value {
        Value::from(if default == Self::Auto {
            "auto"
        } else {
            "tool"
        })
    }

    fn from_value(value: Value) -> Option<Self> {
        match value.as_str()? {
            "auto" => Some(Self::Auto),
            "tool" => Some(Self::Tool),
            _ => None,
        }
    }
}

static ROOT: &[&dyn Declared] = &[
    &HOME,
    &MODEL,
    &FALLBACK_MODELS,
    &API_KEY,
    &API_BASE,
    &API_KEY_COMMAND,
    &PROVIDERS,
    &PLUGINS,
    &LOCAL_MODELS,
    &MAX_STEPS,
    &MAX_TOKENS,
    &MODEL_TIMEOUT,
    &MODEL_IDLE_TIMEOUT,
    &CLIENT_ARGS,
    &COMPLETION_ARGS,
    &VERBOSE,
    &ENABLED_CHANNELS,
    &DEBOUNCE,
    &MAX_WAIT,
    &ACTIVE_TIME_WINDOW,
    &STREAM_OUTPUT,
    &PROJECT,
    &CODEX_HOME,
    &OWNERS,
];
static TELEGRAM: &[&dyn Declared] = &[
    &TELEGRAM_TOKEN,
    &TELEGRAM_ALLOW_USERS,
    &TELEGRAM_ALLOW_CHATS,
    &TELEGRAM_PROXY,
    &TELEGRAM_API_BASE,
    &TELEGRAM_REPLY,
    &TELEGRAM_STREAM,
    &TELEGRAM_DROP_PENDING,
    &TELEGRAM_PAIRING,
];
static WEBHOOK: &[&dyn Declared] = &[
    &WEBHOOK_TOKEN,
    &WEBHOOK_LISTEN,
    &WEBHOOK_ROLE,
    &WEBHOOK_CALLBACK_HOSTS,
    &WEBHOOK_REPLY_TIMEOUT,
    &WEBHOOK_BODY_LIMIT,
    &WEBHOOK_CONNECTIONS,
];
static SPILL: &[&dyn Declared] = &[&SPILL_THRESHOLD];
static TAPE: &[&dyn Declared] = &[&TAPE_DURABILITY];
static GATEWAY: &[&dyn Declared] = &[
    &GATEWAY_DRAIN,
    &GATEWAY_SESSION_QUEUE,
    &GATEWAY_QUEUE,
    &GATEWAY_TURNS,
];
static POLICY: &[&dyn Declared] = &[&POLICY_RULES, &POLICY_APPROVAL_TIMEOUT];
static FS: &[&dyn Declared] = &[&FS_CONFINE];
static ENV: &[&dyn Declared] = &[&ENV_PASS, &ENV_DROP];
static SKILLS: &[&dyn Declared] = &[&SKILLS_ENV];
static WEB: &[&dyn Declared] = &[&WEB_ALLOW_PRIVATE, &WEB_PROXY];
static USAGE: &[&dyn Declared] = &[&USAGE_DAILY_TOKENS, &USAGE_DAILY_COST];

static LOG: &[&dyn Declared] = &[&LOG_FILTER, &LOG_FILE, &LOG_FILE_SIZE, &LOG_CONTENTS];

/// The sections that are always there, the root first.
pub(crate) fn sections() -> [Section; 13] {
    [
        Section::new("", ROOT),
        Section::new("telegram", TELEGRAM),
        Section::new("webhook", WEBHOOK),
        Section::new("spill", SPILL),
        Section::new("tape", TAPE),
        Section::new("gateway", GATEWAY),
        Section::new("policy", POLICY),
        Section::new("fs", FS),
        Section::new("env", ENV),
        Section::new("skills", SKILLS),
        Section::new("web", WEB),
        Section::new("usage", USAGE),
        Section::new("log", LOG),
    ]
}
