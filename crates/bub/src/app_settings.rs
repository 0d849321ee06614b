//! Settings of the program: plugins and logging.

use std::path::PathBuf;

use bub_settings::{
    AnySetting, FromSettings, Section, SettingChoice, SettingKey, Settings, text_format,
};
use serde_json::{Map, Value};

/// Settings at the top level of the config file.
#[derive(Settings)]
#[settings(section = "", crate = bub_settings)]
pub struct AppSettings {
    /// Options of external plugins, by plugin name. `role`: the highest role that users of the plugin's channels can
    /// have. `limits`: timeouts in seconds, with the keys `start` (start of the process), `hook` (asynchronous hooks),
    /// `synchronous` (synchronous hooks), `tool` (tool calls) and `model` (pauses in a model stream); `hooks` maps
    /// single hooks to other timeouts.
    pub plugins: Map<String, Value>,
    /// Log verbosity: 0 warnings, 1 info, 2 debug, 3 trace.
    #[setting(default = 0, at_most = 3)]
    pub verbose: u64,
    /// Plugin project directory of the Python version; accepted for compatibility and not used.
    #[setting(env_only)]
    pub project: Option<PathBuf>,
}

/// Settings in the section `log`.
#[derive(Settings)]
#[settings(section = "log", crate = bub_settings)]
pub struct LogSettings {
    /// Log levels, separated by commas: error, warn, info, debug, trace or off, optionally per target as TARGET=LEVEL.
    ///
    /// A target is the Rust module of a log line. With `None`, the verbosity determines the level.
    #[setting(format = &text_format::LOG_FILTER, variable = "BUB_LOG")]
    pub filter: Option<String>,
    /// Format of log lines: `text` or `json`.
    #[setting(default = LogFormat::Text)]
    pub format: LogFormat,
    /// Path of a log file; bub then logs to stderr and to this file.
    pub file: Option<PathBuf>,
    /// Size in bytes at which the log file is rotated; three rotated files are kept.
    #[setting(default = 10_000_000, deprecated_names = &["log.file_size"], at_least = 1)]
    pub max_file_bytes: u64,
    /// Log the text of messages and answers at level info.
    #[setting(default = false)]
    pub contents: bool,
}

/// Format of log lines on stderr and in the log file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, SettingChoice)]
#[settings(crate = bub_settings)]
pub enum LogFormat {
    /// `time LEVEL event field=value`
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Item of [`PLUGIN_SELECTION`] that omits all plugins that are not named.
pub const OMIT_PLUGINS: &str = "!*";

/// Installed plugins to use although they are disabled; `!name` omits an enabled one, and `!*` all that are not named.
/// Options of commands set it.
pub static PLUGIN_SELECTION: &SettingKey<Vec<String>> = &SettingKey::new(
    "plugin_selection",
    "",
    "Installed plugins to use although they are disabled; `!name` omits an enabled plugin, `!*` all others.",
);

/// Returns the sections with the settings of the program.
pub fn sections() -> [Section; 3] {
    static ROOT: &[&dyn AnySetting] = &[PLUGIN_SELECTION];
    [
        AppSettings::section(),
        LogSettings::section(),
        Section::new("", ROOT),
    ]
}
