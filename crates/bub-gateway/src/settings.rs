//! The settings of the gateway: channels, waiting times and limits.

use std::time::Duration;

use bub_settings::{AnySetting, Section, SettingKey};

/// Which channels run.
pub static ENABLED_CHANNELS: SettingKey<Vec<String>> = SettingKey::new(
    "enabled_channels",
    "all",
    "Channels to start: `all`, names with commas between them, `!name` to leave one out.",
);

/// How long to wait for more messages.
pub static DEBOUNCE: SettingKey<Duration> = SettingKey::new(
    "debounce_seconds",
    Duration::from_secs(1),
    "Quiet time in seconds after which collected messages become a turn.",
);

/// The hard cap of that wait.
pub static MAX_WAIT: SettingKey<Duration> = SettingKey::new(
    "max_wait_seconds",
    Duration::from_secs(10),
    "Longest time in seconds a message is held back.",
);

/// How long a chat stays active after the bot was addressed.
pub static ACTIVE_TIME_WINDOW: SettingKey<Duration> = SettingKey::new(
    "active_time_window",
    Duration::from_mins(1),
    "Time in seconds for which a chat stays active after bub was addressed.",
);

/// Whether channels see the answer grow.
pub static STREAM_OUTPUT: SettingKey<bool> = SettingKey::new(
    "stream_output",
    false,
    "Show answers in channels while they grow.",
);

/// How long a gateway finishes its work after the request to stop.
pub static GATEWAY_DRAIN: SettingKey<Duration> = SettingKey::new(
    "gateway.drain_seconds",
    Duration::from_secs(30),
    "Time in seconds for which the gateway finishes running turns after it was asked to stop.",
);

/// How many messages of one session wait.
pub static GATEWAY_SESSION_QUEUE: SettingKey<u64> = SettingKey::new(
    "gateway.session_queue",
    100,
    "Messages of one session that may wait; more are refused.",
)
.at_least(1);

/// How many messages wait in all.
pub static GATEWAY_QUEUE: SettingKey<u64> = SettingKey::new(
    "gateway.queue",
    10_000,
    "Unfinished messages in all, and undelivered replies of a channel; more messages are refused.",
)
.at_least(1);

/// How many turns run.
pub static GATEWAY_TURNS: SettingKey<u64> = SettingKey::new(
    "gateway.turns",
    1000,
    "Turns that run at the same time; further messages wait for their turn.",
)
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
    &GATEWAY_QUEUE,
    &GATEWAY_TURNS,
];

/// The sections with these settings, for `Loader::sections`. The one without a name adds to the root.
pub fn sections() -> [Section; 2] {
    [Section::new("", ROOT), Section::new("gateway", GATEWAY)]
}
