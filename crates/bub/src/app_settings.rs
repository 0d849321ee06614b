//! Settings of the program: plugins and logging.

use std::path::PathBuf;

use bub_settings::{AnySetting, Section, SettingChoice, SettingKey, text_format};
use serde_json::{Map, Value};

/// Options of external plugins, by name.
pub static PLUGINS: SettingKey<Map<String, Value>> = SettingKey::new(
    "plugins",
    (),
    "Options of external plugins, by plugin name. `role`: the highest role that users of the plugin's channels can have. `limits`: timeouts in seconds, with the keys `start` (start of the process), `hook` (asynchronous hooks), `synchronous` (synchronous hooks), `tool` (tool calls) and `model` (pauses in a model stream); `hooks` maps single hooks to other timeouts.",
)
.trusted();

/// Log verbosity: 0 logs warnings, 1 also info, 2 also debug, 3 also trace.
pub static VERBOSE: SettingKey<u64> = SettingKey::new(
    "verbose",
    0,
    "Log verbosity: 0 warnings, 1 info, 2 debug, 3 trace.",
)
.at_most(3);

/// Plugin project directory of the Python version. bub accepts the setting but does not use it.
pub static PROJECT: SettingKey<Option<PathBuf>> = SettingKey::new(
    "project",
    None,
    "Plugin project directory of the Python version; accepted for compatibility and not used.",
)
.trusted()
.env_only();

/// Log levels, optionally by target, which is the Rust module of a log line. With `None`, the
/// verbosity determines the level.
pub static LOG_FILTER: SettingKey<Option<String>> = SettingKey::new(
    "log.filter",
    None,
    "Log levels, separated by commas: error, warn, info, debug, trace or off, optionally per target as TARGET=LEVEL.",
)
.format(&text_format::LOG_FILTER)
.variable("BUB_LOG");

/// Format of log lines.
pub static LOG_FORMAT: SettingKey<LogFormat> = SettingKey::new(
    "log.format",
    LogFormat::Text,
    "Format of log lines: `text` or `json`.",
);

/// Path of the log file.
///
/// The `.env` of a workspace cannot set it, because bub writes the file.
pub static LOG_FILE: SettingKey<Option<PathBuf>> = SettingKey::new(
    "log.file",
    None,
    "Path of a log file; bub then logs to stderr and to this file.",
)
.trusted();

/// Maximum size of the log file in bytes. A full file is rotated.
pub static LOG_MAX_FILE_BYTES: SettingKey<u64> = SettingKey::new(
    "log.max_file_bytes",
    10_000_000,
    "Size in bytes at which the log file is rotated; three rotated files are kept.",
)
.deprecated_names(&["log.file_size"])
.at_least(1)
.trusted();

/// Whether the log may contain the text of messages.
///
/// The `.env` of a workspace cannot set it, because it affects privacy.
pub static LOG_CONTENTS: SettingKey<bool> = SettingKey::new(
    "log.contents",
    false,
    "Log the text of messages and answers at level info.",
)
.trusted();

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

static ROOT: &[&dyn AnySetting] = &[&PLUGINS, &VERBOSE, &PROJECT];
static LOG: &[&dyn AnySetting] = &[
    &LOG_FILTER,
    &LOG_FORMAT,
    &LOG_FILE,
    &LOG_MAX_FILE_BYTES,
    &LOG_CONTENTS,
];

/// Returns the sections with the settings of the program. The section without a name adds settings
/// at the top level.
pub fn sections() -> [Section; 2] {
    [Section::new("", ROOT), Section::new("log", LOG)]
}
