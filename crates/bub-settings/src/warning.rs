//! Problems in settings that do not stop the program.

use std::fmt;

use crate::SettingSource;

/// A warning about a source of settings, ready to be logged.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SettingsWarning {
    /// A key of the config file or a variable that is not declared.
    Unknown {
        /// Source of the name.
        origin: SettingSource,
        /// Key or variable.
        name: String,
        /// Likely intended name.
        suggestion: Option<String>,
    },
    /// A key that appears twice in one map; the last one is used.
    Duplicate {
        /// Source of the second occurrence.
        origin: SettingSource,
        /// Key.
        name: String,
    },
    /// A former key or variable of a setting.
    Deprecated {
        /// Source of the value.
        origin: SettingSource,
        /// Former key or variable.
        name: String,
        /// New key or variable.
        replacement: String,
        /// Whether the same source also has the new name, so that this value is not used.
        is_ignored: bool,
    },
    /// A trusted setting in the `.env` of an untrusted workspace.
    Untrusted {
        /// Source of the value.
        origin: SettingSource,
        /// Dotted key of the setting.
        name: String,
    },
    /// A setting of the process, such as `home`, that the config file cannot set.
    NotInFile {
        /// Source of the value.
        origin: SettingSource,
        /// Key.
        name: String,
        /// Variable that sets the setting.
        variable: String,
    },
    /// A line of `.env` that is not an assignment.
    DotEnvSyntax {
        /// Source of the line; the name is empty.
        origin: SettingSource,
        /// What is wrong with the line.
        problem: &'static str,
    },
    /// A `.env` that cannot be read. It often belongs to another program; for example, it is a
    /// virtual environment.
    DotEnvFile {
        /// The file and what is wrong with it.
        problem: String,
    },
    /// A value in `.env` that is invalid for its setting.
    DotEnvValue {
        /// Source of the value and what is wrong with it.
        problem: String,
    },
    /// A `${NAME}` in the `.env` of an untrusted workspace that names a secret of the process.
    SecretReference {
        /// Source of the reference.
        origin: SettingSource,
        /// Referenced variable.
        name: String,
    },
}

impl fmt::Display for SettingsWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown {
                origin,
                name,
                suggestion: Some(suggestion),
            } => {
                write!(
                    f,
                    "{origin}: unknown setting `{name}`, did you mean `{suggestion}`?"
                )
            }
            Self::Unknown {
                origin,
                name,
                suggestion: None,
            } => {
                write!(
                    f,
                    "{origin}: unknown setting `{name}`; it is ignored, run `bub config list` to see all settings"
                )
            }
            Self::Duplicate { origin, name } => {
                write!(
                    f,
                    "{origin}: `{name}` is set twice; this value is used, remove the other one"
                )
            }
            Self::Deprecated {
                origin,
                name,
                replacement,
                is_ignored: false,
            } => {
                write!(f, "{origin}: `{name}` is deprecated; use `{replacement}`")
            }
            Self::Deprecated {
                origin,
                name,
                replacement,
                is_ignored: true,
            } => {
                write!(
                    f,
                    "{origin}: `{name}` is deprecated and ignored, because `{replacement}` is set; remove it"
                )
            }
            Self::Untrusted { origin, name } => {
                write!(
                    f,
                    "{origin}: `{name}` is ignored: this workspace is not trusted to set it; set it in the environment or the config file"
                )
            }
            Self::NotInFile {
                origin,
                name,
                variable,
            } => {
                write!(
                    f,
                    "{origin}: `{name}` is ignored: only the variable {variable} sets it"
                )
            }
            Self::DotEnvSyntax { origin, problem } => {
                write!(f, "{origin}: line ignored: {problem}")
            }
            Self::DotEnvFile { problem } => write!(f, "{problem}; the file is ignored"),
            Self::DotEnvValue { problem } => write!(f, "{problem}; the line is ignored"),
            Self::SecretReference { origin, name } => {
                write!(
                    f,
                    "{origin}: `${{{name}}}` is empty: this workspace is not trusted to read it; remove the reference"
                )
            }
        }
    }
}
