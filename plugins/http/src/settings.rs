//! Settings of the webhook channel, in the section `webhook`.

use std::time::Duration;

use bub::kernel::Role;
use bub::settings::{AnySetting, Secret, Section, SettingKey, text_format};

/// Token for clients of the webhook.
///
/// The `.env` of an untrusted workspace cannot set it, because setting it opens the channel.
pub static WEBHOOK_TOKEN: SettingKey<Option<Secret>> = SettingKey::new(
    "webhook.token",
    None,
    "Token that webhook clients must send; the channel is disabled without one.",
)
.trusted();

/// Address that the webhook listens on.
///
/// The `.env` of an untrusted workspace cannot set it, because it decides who can reach the channel.
pub static WEBHOOK_LISTEN: SettingKey<String> = SettingKey::new(
    "webhook.listen",
    "127.0.0.1:8787",
    "Address and port that the webhook listens on.",
)
.format(&text_format::LISTEN)
.trusted();

/// Role of webhook clients that send the token.
///
/// The `.env` of an untrusted workspace cannot set it, because it grants permissions.
pub static WEBHOOK_ROLE: SettingKey<Role> = SettingKey::new(
    "webhook.role",
    Role::Member,
    "Role of webhook clients that send the token: `owner`, `member` or `guest`.",
)
.trusted();

/// Private hosts that replies may be posted to.
///
/// The `.env` of an untrusted workspace cannot set it, because it opens access to private networks.
pub static WEBHOOK_CALLBACK_HOSTS: SettingKey<Vec<String>> = SettingKey::new(
    "webhook.callback_hosts",
    "",
    "Hosts in private networks that the webhook may post replies to.",
)
.trusted();

/// How long a request waits for its reply.
pub static WEBHOOK_REPLY_TIMEOUT: SettingKey<Duration> = SettingKey::new(
    "webhook.reply_timeout_seconds",
    Duration::from_mins(5),
    "Seconds that a webhook request waits for its reply; the client can fetch the reply later.",
);

/// Maximum size of a request body in bytes.
pub static WEBHOOK_BODY_LIMIT: SettingKey<u64> = SettingKey::new(
    "webhook.body_limit",
    1_000_000,
    "Maximum size of the body of a webhook request, in bytes.",
)
.at_least(1);

/// Maximum number of concurrent connections.
pub static WEBHOOK_MAX_CONNECTIONS: SettingKey<u64> = SettingKey::new(
    "webhook.max_connections",
    1024,
    "Maximum concurrent webhook connections.",
)
.deprecated_names(&["webhook.connections"])
.at_least(1);

static WEBHOOK: &[&dyn AnySetting] = &[
    &WEBHOOK_TOKEN,
    &WEBHOOK_LISTEN,
    &WEBHOOK_ROLE,
    &WEBHOOK_CALLBACK_HOSTS,
    &WEBHOOK_REPLY_TIMEOUT,
    &WEBHOOK_BODY_LIMIT,
    &WEBHOOK_MAX_CONNECTIONS,
];

/// Returns the section `webhook`, for `App::settings`.
pub fn section() -> Section {
    Section::new("webhook", WEBHOOK)
}
