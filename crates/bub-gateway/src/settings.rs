//! Settings of the gateway: channels, timeouts and limits.

use std::time::Duration;

use bub_settings::{AnySetting, Section, SettingKey};

/// Channels that the gateway runs.
pub static ENABLED_CHANNELS: SettingKey<Vec<String>> = SettingKey::new(
    "enabled_channels",
    "all",
    "Channels to run: `all` or a comma-separated list; `!name` excludes a channel.",
);

/// How long a chat must be quiet before its collected messages become a turn.
pub static DEBOUNCE: SettingKey<Duration> = SettingKey::new(
    "debounce_seconds",
    Duration::from_secs(1),
    "Seconds without a new message after which collected messages become a turn.",
);

/// Maximum time that the debounce holds a message.
pub static MAX_WAIT: SettingKey<Duration> = SettingKey::new(
    "max_wait_seconds",
    Duration::from_secs(10),
    "Maximum seconds that a message is held to collect further messages.",
);

/// How long bub reads all messages of a group after a user addressed bub.
pub static ACTIVE_TIME_WINDOW: SettingKey<Duration> = SettingKey::new(
    "active_time_window",
    Duration::from_mins(1),
    "Seconds for which bub reads all messages of a group after a user addresses bub there.",
);

/// Whether channels show answers while the model produces them.
pub static STREAM_OUTPUT: SettingKey<bool> = SettingKey::new(
    "stream_output",
    false,
    "Show answers in channels while the model produces them.",
);

/// How long a gateway may finish running turns after it was asked to stop.
pub static GATEWAY_DRAIN: SettingKey<Duration> = SettingKey::new(
    "gateway.drain_seconds",
    Duration::from_secs(30),
    "Seconds to finish running turns after the gateway was asked to stop.",
);

/// Maximum number of unfinished messages per session.
pub static GATEWAY_SESSION_QUEUE: SettingKey<u64> = SettingKey::new(
    "gateway.session_queue",
    100,
    "Maximum unfinished messages per session, including those of the running turn; further messages are rejected.",
)
.at_least(1);

/// Maximum number of unfinished messages, and of undelivered replies per channel.
pub static GATEWAY_MAX_UNFINISHED: SettingKey<u64> = SettingKey::new(
    "gateway.max_unfinished",
    10_000,
    "Maximum unfinished messages in total, and maximum undelivered replies per channel; further messages are rejected.",
)
.deprecated_names(&["gateway.queue"])
.at_least(1);

/// Maximum number of concurrent turns.
pub static GATEWAY_MAX_TURNS: SettingKey<u64> = SettingKey::new(
    "gateway.max_turns",
    1000,
    "Maximum concurrent turns; other messages are queued.",
)
.deprecated_names(&["gateway.turns"])
.at_least(1);

static ROOT: &[&dyn AnySetting] = &[
    &ENABLED_CHANNELS,
    &DEBOUNCE,
    &MAX_WAIT,
    &ACTIVE_TIME_WINDOW,
    &STREAM_OUTPUT,
];
static GATEWAY: &[&dyn AnySetting] = &[
    &GATEWAY_DRAIN,
    &GATEWAY_SESSION_QUEUE,
    &GATEWAY_MAX_UNFINISHED,
    &GATEWAY_MAX_TURNS,
];

/// Returns the sections with the settings of the gateway, for `Loader::sections`. The settings of the section without a
/// name are at the top level of the config file.
pub fn sections() -> [Section; 2] {
    [Section::new("", ROOT), Section::new("gateway", GATEWAY)]
}
