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
    /// A variable of the process environment, in its actual spelling.
    Env(Arc<str>),
    /// A line of the workspace's `.env` file.
    DotEnv {
        /// The `.env` file.
        file: Arc<Path>,
        /// The line, counted from 1.
        line: usize,
        /// Variable in its actual spelling; empty for a line that sets no variable.
        name: Arc<str>,
    },
    /// A line of the config file.
    Config {
        /// The config file.
        file: Arc<Path>,
        /// The line, counted from 1.
        line: usize,
    },
    /// The declared default; no source sets a value.
    Default,
}

impl SettingSource {
    /// Returns `false` for a variable with lowercase letters. If several spellings of a variable are set, the one in
    /// capitals takes precedence. Sources without a variable return `true`.
    pub(crate) fn has_usual_spelling(&self) -> bool {
        match self {
            Self::Env(name) | Self::DotEnv { name, .. } => {
                !name.bytes().any(|byte| byte.is_ascii_lowercase())
            }
            Self::Flag(_) | Self::Config { .. } | Self::Default => true,
        }
    }
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
