//! The setting of the Codex login.

use std::path::PathBuf;

use bub::{AnySetting, Section, SettingKey};

/// Directory of the Codex login.
pub static CODEX_HOME: SettingKey<PathBuf> = SettingKey::new(
    "codex_home",
    "~/.codex",
    "Directory of the Codex login file `auth.json`.",
)
.variable("CODEX_HOME")
.env_only();

static ROOT: &[&dyn AnySetting] = &[&CODEX_HOME];

/// Returns the section with the settings of this plugin, for [`App::settings`](bub::App::settings). It has no name,
/// because `codex_home` is at the top level.
pub fn section() -> Section {
    Section::new("", ROOT)
}
