//! Settings of the gateway: channels, timeouts and limits.

use std::time::Duration;

use bub_settings::{FromSettings, Section, Settings};

/// Settings for all channels, at the top level of the config file.
#[derive(Settings)]
#[settings(section = "", crate = bub_settings)]
pub struct ChannelSettings {
    /// Channels to run: `all` or a comma-separated list; `!name` excludes a channel.
    #[setting(default = "all")]
    pub enabled_channels: Vec<String>,
    /// Seconds without a new message after which collected messages become a turn.
    #[setting(default = Duration::from_secs(1), name = "debounce_seconds")]
    pub debounce: Duration,
    /// Maximum seconds that a message is held to collect further messages.
    #[setting(default = Duration::from_secs(10), name = "max_wait_seconds")]
    pub max_wait: Duration,
    /// Seconds for which bub reads all messages of a group after a user addresses bub there.
    #[setting(default = Duration::from_mins(1))]
    pub active_time_window: Duration,
    /// Show answers in channels while the model produces them.
    #[setting(default = false)]
    pub stream_output: bool,
}

/// Settings in the section `gateway`.
#[derive(Settings)]
#[settings(section = "gateway", crate = bub_settings)]
pub struct GatewaySettings {
    /// Seconds to finish running turns after the gateway was asked to stop.
    #[setting(default = Duration::from_secs(30), name = "drain_seconds")]
    pub drain: Duration,
    /// Maximum turns to run per session, including the running one; further messages are refused, or wait at the
    /// platform.
    #[setting(default = 100, at_least = 1)]
    pub session_queue: usize,
    /// Maximum unfinished messages in total, and maximum undelivered replies per channel; further messages are
    /// rejected.
    #[setting(default = 10_000, at_least = 1, deprecated_names = &["gateway.queue"])]
    pub max_unfinished: usize,
    /// Maximum concurrent turns; other messages are queued.
    #[setting(default = 1000, at_least = 1, deprecated_names = &["gateway.turns"])]
    pub max_turns: usize,
}

/// Returns the sections with the settings of the gateway, for `Loader::sections`.
pub fn sections() -> [Section; 2] {
    [ChannelSettings::section(), GatewaySettings::section()]
}
