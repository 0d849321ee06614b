//! The settings of the webhook, in the section `webhook`.

use std::time::Duration;

use bub::kernel::Role;
use bub::settings::{AnySetting, Secret, Section, SettingKey, text_format};

/// Who may use the webhook. Trusted: whoever sets it opens the door.
pub static WEBHOOK_TOKEN: SettingKey<Option<Secret>> = SettingKey::new(
    "webhook.token",
    None,
    "Token that clients of the webhook must have; without one the channel is off.",
)
.trusted();

/// Where the webhook listens. Trusted: it decides who can reach it.
pub static WEBHOOK_LISTEN: SettingKey<String> = SettingKey::new(
    "webhook.listen",
    "127.0.0.1:8787",
    "Address and port on which the webhook listens.",
)
.format(&text_format::LISTEN)
.trusted();

/// What clients of the webhook may do. Trusted: it is policy.
pub static WEBHOOK_ROLE: SettingKey<Role> = SettingKey::new(
    "webhook.role",
    Role::Member,
    "What those who have the token of the webhook are: `owner`, `member` or `guest`.",
)
.trusted();

/// Which private hosts may be called back. Trusted: it is policy.
pub static WEBHOOK_CALLBACK_HOSTS: SettingKey<Vec<String>> = SettingKey::new(
    "webhook.callback_hosts",
    "",
    "Hosts to which the webhook may post replies though they are in a private network.",
)
.trusted();

/// How long a request waits.
pub static WEBHOOK_REPLY_TIMEOUT: SettingKey<Duration> = SettingKey::new(
    "webhook.reply_timeout_seconds",
    Duration::from_mins(5),
    "Time in seconds for which a request to the webhook waits for its reply.",
);

/// How large a message may be.
pub static WEBHOOK_BODY_LIMIT: SettingKey<u64> = SettingKey::new(
    "webhook.body_limit",
    1_000_000,
    "Most bytes of one request to the webhook.",
)
.at_least(1);

/// How many clients there may be.
pub static WEBHOOK_CONNECTIONS: SettingKey<u64> = SettingKey::new(
    "webhook.connections",
    1024,
    "Most connections to the webhook at one time.",
)
.at_least(1);

static WEBHOOK: &[&dyn AnySetting] = &[
    &WEBHOOK_TOKEN,
    &WEBHOOK_LISTEN,
    &WEBHOOK_ROLE,
    &WEBHOOK_CALLBACK_HOSTS,
    &WEBHOOK_REPLY_TIMEOUT,
    &WEBHOOK_BODY_LIMIT,
    &WEBHOOK_CONNECTIONS,
];

/// The section `webhook`, for `App::settings`.
pub fn section() -> Section {
    Section::new("webhook", WEBHOOK)
}
