//! The settings of the program: its plugins and its log.

use std::path::PathBuf;

use bub_settings::{AnySetting, Section, SettingKey, text_format};
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

static ROOT: &[&dyn AnySetting] = &[&PLUGINS, &VERBOSE, &PROJECT];
static LOG: &[&dyn AnySetting] = &[&LOG_FILTER, &LOG_FILE, &LOG_FILE_SIZE, &LOG_CONTENTS];

/// The sections with these settings. The one without a name adds to the root.
pub fn sections() -> [Section; 2] {
    [Section::new("", ROOT), Section::new("log", LOG)]
}
