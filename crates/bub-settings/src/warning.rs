//! Things a user should know that do not stop the program.

use std::fmt;

use crate::SettingSource;

/// One remark about a source of settings, ready to be logged.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SettingsWarning {
    /// A key of the config file or a variable that no declaration knows.
    Unknown {
        /// Where it stands.
        origin: SettingSource,
        /// The key or the variable.
        name: String,
        /// What was probably meant.
        suggestion: Option<String>,
    },
    /// A key appears twice in one map; the last one counts.
    Duplicate {
        /// Where the second one stands.
        origin: SettingSource,
        /// The key.
        name: String,
    },
    /// A trusted setting in the `.env` of a workspace that is not trusted.
    Untrusted {
        /// Where it stands.
        origin: SettingSource,
        /// The dotted key of the setting.
        name: String,
    },
    /// A setting of the process (such as `home`) that the config file cannot set.
    NotInFile {
        /// Where it stands.
        origin: SettingSource,
        /// The key.
        name: String,
        /// The variable that sets it.
        variable: String,
    },
    /// A line of `.env` that is not an assignment.
    DotEnvSyntax {
        /// Where it stands; the name is empty.
        origin: SettingSource,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A `.env` that cannot be read, which is somebody else's file as often as not: a virtual environment, for one.
    DotEnvFile {
        /// The file, and what is wrong with it.
        problem: String,
    },
    /// A value in `.env` that does not fit its setting.
    DotEnvValue {
        /// Where it stands, and what is wrong with it.
        problem: String,
    },
    /// A `${NAME}` in the `.env` of an untrusted workspace that names a secret of the process.
    SecretReference {
        /// Where it stands.
        origin: SettingSource,
        /// The variable that was asked for.
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
                write!(f, "{origin}: unknown setting `{name}`")
            }
            Self::Duplicate { origin, name } => {
                write!(f, "{origin}: `{name}` is set twice, this one counts")
            }
            Self::Untrusted { origin, name } => {
                write!(
                    f,
                    "{origin}: `{name}` ignored, this workspace is not trusted to set it"
                )
            }
            Self::NotInFile {
                origin,
                name,
                variable,
            } => {
                write!(
                    f,
                    "{origin}: `{name}` ignored, only the variable {variable} sets it"
                )
            }
            Self::DotEnvSyntax { origin, problem } => write!(f, "{origin}: ignored, {problem}"),
            Self::DotEnvFile { problem } => write!(f, "{problem}; the file is ignored"),
            Self::DotEnvValue { problem } => write!(f, "{problem}; the line is ignored"),
            Self::SecretReference { origin, name } => {
                write!(
                    f,
                    "{origin}: `${{{name}}}` left empty, this workspace is not trusted to read it"
                )
            }
        }
    }
}
