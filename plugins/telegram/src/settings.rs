//! The settings in the section `telegram`.

use bub::settings::{AnySetting, Secret, Section, SettingChoice, SettingKey, text_format};

/// The bot token.
pub static TELEGRAM_TOKEN: SettingKey<Option<Secret>> = SettingKey::new(
    "telegram.token",
    None,
    "Telegram bot token; the channel is disabled without one.",
);

/// Users with access.
///
/// The `.env` of an untrusted workspace cannot set it, because it decides who has access.
pub static TELEGRAM_ALLOW_USERS: SettingKey<Option<Vec<String>>> = SettingKey::new(
    "telegram.allow_users",
    None,
    "Telegram users who may use bub, by numeric id or user name.",
)
.trusted();

/// Chats in which the bot may be used.
///
/// The `.env` of an untrusted workspace cannot set it, because it decides who has access.
pub static TELEGRAM_ALLOW_CHATS: SettingKey<Option<Vec<String>>> = SettingKey::new(
    "telegram.allow_chats",
    None,
    "Numeric ids of the Telegram chats in which bub may be used; default: all chats.",
)
.trusted();

/// Proxy for requests to the Bot API.
///
/// The `.env` of an untrusted workspace cannot set it, because a proxy sees the traffic.
pub static TELEGRAM_PROXY: SettingKey<Option<String>> = SettingKey::new(
    "telegram.proxy",
    None,
    "URL of an HTTP or SOCKS5 proxy for requests to Telegram.",
)
.format(&text_format::PROXY)
.trusted();

/// Base URL of the Bot API.
///
/// The `.env` of an untrusted workspace cannot set it, because the server gets the token.
pub static TELEGRAM_API_BASE: SettingKey<String> = SettingKey::new(
    "telegram.api_base",
    "https://api.telegram.org",
    "Base URL of the Telegram Bot API server.",
)
.format(&text_format::BASE_URL)
.trusted();

/// How the model's answers are sent.
pub static TELEGRAM_REPLY: SettingKey<TelegramReply> = SettingKey::new(
    "telegram.reply",
    TelegramReply::Auto,
    "`auto` sends the model's answer to the chat; `tool` sends only messages that the model sends with `telegram.send`.",
);

/// Whether long answers are shown while they are generated.
pub static TELEGRAM_STREAM: SettingKey<bool> = SettingKey::new(
    "telegram.stream",
    true,
    "Show a long answer while the model writes it: bub sends one message and edits it as the text grows.",
);

/// Whether messages that arrived while bub was not running are discarded.
pub static TELEGRAM_DROP_PENDING: SettingKey<bool> = SettingKey::new(
    "telegram.drop_pending",
    false,
    "Discard messages that arrived while bub was not running.",
);

/// Whether unknown users can request access.
///
/// The `.env` of an untrusted workspace cannot set it, because it decides who has access.
pub static TELEGRAM_PAIRING: SettingKey<bool> = SettingKey::new(
    "telegram.pairing",
    true,
    "Send unknown users a pairing code; you grant them access with `bub pair CODE`.",
)
.trusted();

/// How the model's answers are sent on Telegram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, SettingChoice)]
pub enum TelegramReply {
    /// The model's answer is sent.
    Auto,
    /// Only messages that the model sends with a tool or a script are sent.
    Tool,
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

/// Returns the section `telegram`, for `App::settings`.
pub fn section() -> Section {
    Section::new("telegram", TELEGRAM)
}
