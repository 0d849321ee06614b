//! The settings of the program: its plugins and its log.

use std::path::PathBuf;

use bub_settings::{AnySetting, Section, SettingKey, SettingType, ValueKind, text_format};
use serde_json::{Map, Value};

/// What the configuration says about plugins in other processes.
pub static PLUGINS: SettingKey<Map<String, Value>> = SettingKey::new(
    "plugins",
    (),
    "Plugins by name: `limits` in seconds (start, hook, synchronous, tool, model, hooks), `role` of those who write to its channels.",
)
.trusted();

/// How much to log.
pub static VERBOSE: SettingKey<u64> = SettingKey::new("verbose", 0, "How much to log.").at_most(2);

/// The plugin project directory of the original.
pub static PROJECT: SettingKey<Option<PathBuf>> = SettingKey::new(
    "project",
    None,
    "Directory of the plugin project; default `bub-project` in the home directory.",
)
.trusted()
.env_only();

/// Which log lines are written.
pub static LOG_FILTER: SettingKey<Option<String>> = SettingKey::new(
    "log.filter",
    None,
    "What to log: error, warn, info, debug, trace, off, and TARGET=LEVEL, with commas between them.",
)
.format(&text_format::LOG_FILTER)
.variable("BUB_LOG");

/// The format of log lines.
pub static LOG_FORMAT: SettingKey<LogFormat> = SettingKey::new(
    "log.format",
    LogFormat::Text,
    "Format of log lines: `text` for people, `json` for programs.",
);

/// A file for the log. Trusted: it is written.
pub static LOG_FILE: SettingKey<Option<PathBuf>> =
    SettingKey::new("log.file", None, "File for the log, beside standard error.").trusted();

/// How large that file may grow.
pub static LOG_FILE_SIZE: SettingKey<u64> = SettingKey::new(
    "log.file_size",
    10_000_000,
    "Bytes after which the log file is put aside; three such files are kept.",
)
.at_least(1)
.trusted();

/// Whether the log may hold what people said. Trusted: it is policy.
pub static LOG_CONTENTS: SettingKey<bool> = SettingKey::new(
    "log.contents",
    false,
    "Log what people and models say, too, from the level info on.",
)
.trusted();

/// The format of log lines, on stderr and in the log file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// `time LEVEL event field=value`.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

impl LogFormat {
    fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

impl SettingType for LogFormat {
    type Default = Self;
    const KIND: ValueKind = ValueKind::Choice(&["text", "json"]);

    fn from_default(default: Self) -> Self {
        default
    }

    fn default_value(default: Self) -> Value {
        Value::from(default.name())
    }

    fn from_value(value: Value) -> Option<Self> {
        let name = value.as_str()?;
        [Self::Text, Self::Json]
            .into_iter()
            .find(|format| format.name() == name)
    }
}

static ROOT: &[&dyn AnySetting] = &[&PLUGINS, &VERBOSE, &PROJECT];
static LOG: &[&dyn AnySetting] = &[
    &LOG_FILTER,
    &LOG_FORMAT,
    &LOG_FILE,
    &LOG_FILE_SIZE,
    &LOG_CONTENTS,
];

/// The sections with these settings. The one without a name adds to the root.
pub fn sections() -> [Section; 2] {
    [Section::new("", ROOT), Section::new("log", LOG)]
}
