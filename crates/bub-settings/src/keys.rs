//! The settings that this crate reads itself.

use std::path::PathBuf;

use crate::{Declared, Key, Section};

/// Where bub keeps tapes, history and plugins.
pub static HOME: Key<PathBuf> = Key::new(
    "home",
    "~/.bub",
    "Directory for tapes, history and plugins.",
)
.trusted()
.not_in_file();

/// Variables that child processes get although bub read them as secrets. Trusted: it is policy.
pub static ENV_PASS: Key<Vec<String>> = Key::new(
    "env.pass",
    "",
    "Variables child processes get although they hold secrets.",
)
.trusted();

/// Variables that child processes never get. Trusted: it is policy.
pub static ENV_DROP: Key<Vec<String>> =
    Key::new("env.drop", "", "Variables child processes never get.").trusted();

static ROOT: &[&dyn Declared] = &[&HOME];
static ENV: &[&dyn Declared] = &[&ENV_PASS, &ENV_DROP];

/// The sections that every program has.
pub(crate) fn sections() -> [Section; 2] {
    [Section::new("", ROOT), Section::new("env", ENV)]
}
