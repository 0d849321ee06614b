//! The settings of the bot, in the section `telegram`.

use bub::settings::{AnySetting, Secret, Section, SettingKey, SettingType, ValueKind, text_format};
use serde_json::Value;

/// The bot's token.
pub static TELEGRAM_TOKEN: SettingKey<Option<Secret>> = SettingKey::new(
    "telegram.token",
    None,
    "Token of the Telegram bot; without one the channel is off.",
);

/// Who may talk to the bot. Trusted: it is policy.
pub static TELEGRAM_ALLOW_USERS: SettingKey<Option<Vec<String>>> = SettingKey::new(
    "telegram.allow_users",
    None,
    "Telegram users who may talk to bub.",
)
.trusted();

/// Where the bot may talk. Trusted: it is policy.
pub static TELEGRAM_ALLOW_CHATS: SettingKey<Option<Vec<String>>> = SettingKey::new(
    "telegram.allow_chats",
    None,
    "Telegram chats in which bub may talk.",
)
.trusted();

/// The way to Telegram. Trusted, because it sees the traffic.
pub static TELEGRAM_PROXY: SettingKey<Option<String>> =
    SettingKey::new("telegram.proxy", None, "HTTP or SOCKS5 proxy for Telegram.")
        .format(&text_format::PROXY)
        .trusted();

/// Where the Bot API is. Trusted, because it gets the token.
pub static TELEGRAM_API_BASE: SettingKey<String> = SettingKey::new(
    "telegram.api_base",
    "https://api.telegram.org",
    "Address of the Bot API server.",
)
.format(&text_format::BASE_URL)
.trusted();

/// How the model's answers reach people.
pub static TELEGRAM_REPLY: SettingKey<TelegramReply> = SettingKey::new(
    "telegram.reply",
    TelegramReply::Auto,
    "`auto` sends the model's answer to the chat; `tool` leaves it to the model to send something.",
);

/// Whether a long answer is seen to grow.
pub static TELEGRAM_STREAM: SettingKey<bool> = SettingKey::new(
    "telegram.stream",
    true,
    "Show long answers while they grow, by editing one message.",
);

/// Whether what was sent while bub did not run is thrown away.
pub static TELEGRAM_DROP_PENDING: SettingKey<bool> = SettingKey::new(
    "telegram.drop_pending",
    false,
    "Throw away what was sent while bub did not run.",
);

/// Whether strangers may ask to be let in. Trusted: it is policy.
pub static TELEGRAM_PAIRING: SettingKey<bool> = SettingKey::new(
    "telegram.pairing",
    true,
    "Give unknown people a code for `bub pair`.",
)
.trusted();

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
    const KIND: ValueKind = ValueKind::Choice(&["auto", "tool"]);

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

static TELEGRAM: &[&dyn AnySetting] = &[
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

/// The section `telegram`, for `App::settings`.
pub fn section() -> Section {
    Section::new("telegram", TELEGRAM)
}
