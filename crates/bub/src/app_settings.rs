//! The settings of the program: its plugins and its log.

use std::path::PathBuf;

use bub_settings::{Declared, Key, Section, form};
use serde_json::{Map, Value};

/// What the configuration says about plugins in other processes.
pub static PLUGINS: Key<Map<String, Value>> = Key::new(
    "plugins",
    (),
    "Plugins by name: `limits` in seconds (start, hook, synchronous, tool, model, hooks), `role` of those who write to its channels.",
)
.trusted();

/// How much to log.
pub static VERBOSE: Key<u64> = Key::new("verbose", 0, "How much to log.").at_most(2);

/// The plugin project directory of the original.
pub static PROJECT: Key<Option<PathBuf>> = Key::new(
    "project",
    None,
    "Directory of the plugin project; default `bub-project` in the home directory.",
)
.trusted()
.not_in_file();

/// Which log lines are written.
pub static LOG_FILTER: Key<Option<String>> = Key::new(
    "log.filter",
    None,
    "What to log: error, warn, info, debug, trace, off, and TARGET=LEVEL, with commas between them.",
)
.like(&form::LOG_FILTER)
.variable("BUB_LOG");

/// A file for the log. Trusted: it is written.
pub static LOG_FILE: Key<Option<PathBuf>> =
    Key::new("log.file", None, "File for the log, beside standard error.").trusted();

/// How large that file may grow.
pub static LOG_FILE_SIZE: Key<u64> = Key::new(
    "log.file_size",
    10_000_000,
    "Bytes after which the log file is put aside; three such files are kept.",
)
.at_least(1)
.trusted();

/// Whether the log may hold what people said. Trusted: it is policy.
pub static LOG_CONTENTS: Key<bool> = Key::new(
    "log.contents",
    false,
    "Log what people and models say, too, from the level info on.",
)
.trusted();

static ROOT: &[&dyn Declared] = &[&PLUGINS, &VERBOSE, &PROJECT];
static LOG: &[&dyn Declared] = &[&LOG_FILTER, &LOG_FILE, &LOG_FILE_SIZE, &LOG_CONTENTS];

/// The sections with these settings. The one without a name adds to the root.
pub fn sections() -> [Section; 2] {
    [Section::new("", ROOT), Section::new("log", LOG)]
}
