//! Settings that this crate reads itself.

use std::path::PathBuf;

use crate::{AnySetting, Section, SettingKey};

/// Directory for tapes, history and plugins.
pub static HOME: SettingKey<PathBuf> = SettingKey::new(
    "home",
    "~/.bub",
    "Directory for bub's data: tapes, history, plugins and the config file.",
)
.env_only();

/// Environment variables that child processes get even if they hold secrets.
pub static ENV_PASS: SettingKey<Vec<String>> = SettingKey::new(
    "env.pass",
    "",
    "Environment variables to pass to child processes even if they hold secrets: `NAME` or `PREFIX*`.",
);

/// Environment variables that child processes never get.
pub static ENV_DROP: SettingKey<Vec<String>> = SettingKey::new(
    "env.drop",
    "",
    "Environment variables to withhold from child processes: `NAME` or `PREFIX*`.",
);

static ROOT: &[&dyn AnySetting] = &[&HOME];
static ENV: &[&dyn AnySetting] = &[&ENV_PASS, &ENV_DROP];

/// Returns the sections with the settings of this module. The loader always registers them.
pub(crate) fn sections() -> [Section; 2] {
    [Section::new("", ROOT), Section::new("env", ENV)]
}
