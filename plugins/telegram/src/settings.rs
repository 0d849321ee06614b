//! The settings in the section `telegram`.

use bub::settings::{Secret, SettingChoice, Settings, text_format};

/// Settings in the section `telegram`.
#[derive(Settings)]
#[settings(section = "telegram")]
#[expect(clippy::struct_excessive_bools, reason = "independent settings")]
pub struct TelegramSettings {
    /// Telegram bot token; the channel is disabled without one.
    pub token: Option<Secret>,
    /// Telegram users who may use bub, by numeric id or user name.
    pub allow_users: Option<Vec<String>>,
    /// Numeric ids of the Telegram chats in which bub may be used; default: all chats.
    pub allow_chats: Option<Vec<String>>,
    /// URL of an HTTP or SOCKS5 proxy for requests to Telegram.
    #[setting(format = &text_format::PROXY)]
    pub proxy: Option<String>,
    /// Base URL of the Telegram Bot API server.
    #[setting(default = "https://api.telegram.org", format = &text_format::BASE_URL)]
    pub api_base: String,
    /// `auto` sends the model's answer to the chat; `tool` sends only messages that the model sends with
    /// `telegram.send`.
    #[setting(default = TelegramReply::Auto)]
    pub reply: TelegramReply,
    /// Show a long answer while the model writes it: bub sends one message and edits it as the text grows.
    #[setting(default = true)]
    pub stream: bool,
    /// Show a preview of the first link in a message.
    #[setting(default = false)]
    pub link_previews: bool,
    /// Discard messages that arrived while bub was not running.
    #[setting(default = false)]
    pub drop_pending: bool,
    /// Send unknown users a pairing code; you grant them access with `bub pair CODE`.
    #[setting(default = true)]
    pub pairing: bool,
}

/// How the model's answers are sent on Telegram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, SettingChoice)]
pub enum TelegramReply {
    /// The model's answer is sent.
    Auto,
    /// Only messages that the model sends with a tool or a script are sent.
    Tool,
}
