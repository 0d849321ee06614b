//! Where the value of a setting comes from.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// Source of one value, precise enough to find and change it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SettingSource {
    /// A command-line flag as the user typed it (`--model`).
    Flag(Arc<str>),
    /// A variable of the process environment, spelled as there, in upper or lower case.
    Env(Arc<str>),
    /// A line of the `.env` file.
    DotEnv {
        /// The `.env` file.
        file: Arc<Path>,
        /// The line, counted from 1.
        line: usize,
        /// Name of the variable as the file spells it, in upper or lower case; empty if the line sets
        /// no variable.
        name: Arc<str>,
    },
    /// A line of the config file.
    Config {
        /// The config file.
        file: Arc<Path>,
        /// The line, counted from 1.
        line: usize,
    },
    /// The default in the setting's declaration. It applies if no flag, variable or file sets the
    /// setting.
    Default,
}

impl fmt::Display for SettingSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => write!(f, "flag {flag}"),
            Self::Env(name) => write!(f, "environment variable {name}"),
            Self::DotEnv { file, line, name } if name.is_empty() => {
                write!(f, "{}:{line}", file.display())
            }
            Self::DotEnv { file, line, name } => write!(f, "{}:{line} ({name})", file.display()),
            Self::Config { file, line } => write!(f, "{}:{line}", file.display()),
            Self::Default => f.write_str("default"),
        }
    }
}
