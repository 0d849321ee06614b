//! Errors of reading settings.

use std::io;
use std::path::PathBuf;

use crate::SettingSource;

/// Error in a source of settings.
///
/// Every message is one line with the location, the cause, and what is expected instead. It never
/// contains the value of a secret.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// A file exists but cannot be read. The user can fix its permissions or its type.
    #[error("{}: cannot be read: {source}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Error from the operating system.
        source: io::Error,
    },
    /// Other users can change the home or the config file, and so what bub does.
    #[error(
        "{}: not safe to use: {problem}; run `{fix}`, or set BUB_HOME to a directory of your own",
        path.display()
    )]
    Unsafe {
        /// The file or directory.
        path: PathBuf,
        /// What other users can do.
        problem: String,
        /// The command that corrects it.
        fix: String,
    },
    /// A file or a variable is not UTF-8 text.
    #[error("{location}: not valid UTF-8 text; convert it to UTF-8")]
    NotText {
        /// The file or the variable.
        location: String,
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
        /// Problem that the parser reported.
        problem: String,
    },
    /// The config file is YAML but not a map of settings.
    #[error("{}:{line}: found {found}, expected a map of settings such as `model: provider:name`", file.display())]
    NotAMap {
        /// The config file.
        file: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// Kind of value found instead.
        found: &'static str,
    },
    /// A value has the wrong type or is out of range.
    #[error("{origin}: `{key}` is {found}, expected {expected}")]
    Invalid {
        /// Source of the value.
        origin: SettingSource,
        /// The dotted key of the setting.
        key: String,
        /// The value as written, or a description of it. A secret is not shown.
        found: String,
        /// What the declaration requires.
        expected: String,
    },
    /// An undeclared name that resembles `policy` or `owners`, which restrict access. Ignoring such
    /// a typo would allow what the user wants to forbid.
    #[error("{origin}: unknown setting `{name}`{suggestion}")]
    Unknown {
        /// Source of the name.
        origin: SettingSource,
        /// The key.
        name: String,
        /// End of the message: the likely intended name, or how to list all settings.
        suggestion: String,
    },
    /// A section cannot be registered because of a mistake in its declaration.
    #[error("cannot register {}: {problem}", section_label(section))]
    Declaration {
        /// Name of the section, empty for the root.
        section: String,
        /// What is wrong with the section.
        problem: String,
    },
    /// Neither `BUB_HOME` nor a home directory is available.
    #[error("no home directory found; set BUB_HOME to a directory that bub can use")]
    NoHome,
}

impl SettingsError {
    /// Returns the error with `name`, the key that the user wrote, instead of the setting's current
    /// key.
    pub(crate) fn with_name(mut self, setting_key: &str, name: &str) -> Self {
        if let Self::Invalid { key, .. } = &mut self
            && let Some(rest) = key.strip_prefix(setting_key)
        {
            *key = format!("{name}{rest}");
        }
        self
    }
}

/// Error of [`Settings::get_value`](crate::Settings::get_value).
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LookupError {
    /// The path was empty.
    #[error("empty setting name: expected a key such as `model`")]
    EmptyPath,
    /// No declared setting has this path.
    #[error("unknown setting `{path}`{}", suggestion_text(suggestion.as_deref()))]
    Unknown {
        /// Requested path.
        path: String,
        /// Declared key with a similar name.
        suggestion: Option<String>,
    },
}

/// Returns the end of an error about an unknown setting: the likely intended name, or how to list
/// all settings.
pub(crate) fn suggestion_text(suggestion: Option<&str>) -> String {
    match suggestion {
        Some(name) => format!(", did you mean `{name}`?"),
        None => "; run `bub config list` to see all settings".to_owned(),
    }
}

fn section_label(section: &str) -> String {
    match section {
        "" => "the top-level settings".to_owned(),
        name => format!("settings section `{name}`"),
    }
}
