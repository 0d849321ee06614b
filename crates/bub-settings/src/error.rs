//! What can go wrong while reading settings.

use std::io;
use std::path::PathBuf;

use crate::SettingSource;

/// A source of settings that cannot be used as it is.
///
/// Every message is one line that says where, what, and what is expected instead. The value of a
/// secret is never part of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// A file exists but cannot be read. The user can fix its permissions or its kind.
    #[error("{}: cannot be read: {source}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file or a variable is not UTF-8 text.
    #[error("{place}: not valid UTF-8 text")]
    NotText {
        /// The file or the variable.
        place: String,
    },
    /// The config file is not YAML.
    #[error("{}:{line}:{column}: not valid YAML: {problem}", file.display())]
    Syntax {
        /// The config file.
        file: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// The column, counted from 1.
        column: usize,
        /// What the parser did not understand.
        problem: String,
    },
    /// The config file is YAML but not a map of settings.
    #[error("{}:{line}: found {found}, expected a map of settings such as `model: provider:name`", file.display())]
    NotAMap {
        /// The config file.
        file: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// What is there instead.
        found: &'static str,
    },
    /// A value has the wrong type or is out of range.
    #[error("{origin}: `{key}` is {found}, expected {expected}")]
    Invalid {
        /// Where the value stands.
        origin: SettingSource,
        /// The dotted key of the setting.
        key: String,
        /// The value as written (masked when secret), or its kind.
        found: String,
        /// What the declaration asks for.
        expected: String,
    },
    /// A name that no declaration knows, where a mistake would allow what should be forbidden.
    #[error("{origin}: there is no setting `{name}`{suggestion}")]
    Unknown {
        /// Where it stands.
        origin: SettingSource,
        /// The key.
        name: String,
        /// What was probably meant, as a question; else empty.
        suggestion: String,
    },
    /// A section cannot be registered: a mistake of its author.
    #[error("settings section `{section}`: {problem}")]
    Declaration {
        /// The name of the section, empty for the root.
        section: String,
        /// What is wrong with it.
        problem: String,
    },
    /// There is neither `BUB_HOME` nor a home directory.
    #[error("no home directory found: set BUB_HOME to the directory bub may use")]
    NoHome,
}

/// Why [`Settings::get_value`](crate::Settings::get_value) found nothing.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LookupError {
    /// The path was empty.
    #[error("the path of a setting must not be empty")]
    EmptyPath,
    /// No declared setting has this path.
    #[error("no setting `{path}`{}", .suggestion.as_ref().map(|s| format!(", did you mean `{s}`?")).unwrap_or_default())]
    Unknown {
        /// The path that was asked for.
        path: String,
        /// A declared key that looks like it.
        suggestion: Option<String>,
    },
}
