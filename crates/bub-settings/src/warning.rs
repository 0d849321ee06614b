//! Problems in settings that do not stop the program.

use crate::SettingSource;

/// A warning about a source of settings, ready to be logged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsWarning {
    /// A key of the config file or a variable that is not declared.
    #[error("{origin}: unknown setting `{name}`{}", unknown_hint(suggestion.as_deref()))]
    Unknown {
        /// Source of the name.
        origin: SettingSource,
        /// Key or variable.
        name: String,
        /// Likely intended name.
        suggestion: Option<String>,
    },
    /// A key that appears twice in one map; the last one is used.
    #[error("{origin}: `{name}` is set twice; this value is used, remove the other one")]
    Duplicate {
        /// Source of the second occurrence.
        origin: SettingSource,
        /// Key.
        name: String,
    },
    /// A former key or variable of a setting.
    #[error("{origin}: `{name}` is deprecated{}", deprecated_hint(replacement, *is_ignored))]
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
    /// A key of the config file for a setting that the config file cannot set, such as `home`.
    #[error("{origin}: `{name}` is ignored: only the variable {variable} sets it")]
    NotInFile {
        /// Source of the value.
        origin: SettingSource,
        /// Key.
        name: String,
        /// Variable that sets the setting.
        variable: String,
    },
    /// A line of `.env` that is ignored because it is not a valid assignment.
    #[error("{origin}: line ignored: {problem}")]
    DotEnvSyntax {
        /// File and line. The name of the variable in this source is empty.
        origin: SettingSource,
        /// What is wrong with the line.
        problem: &'static str,
    },
    /// A `.env` that cannot be read. It often belongs to another program: for example, it is the
    /// directory of a Python virtual environment.
    #[error("{problem}; the file is ignored")]
    DotEnvFile {
        /// The file and what is wrong with it.
        problem: String,
    },
    /// A value in `.env` that is invalid for its setting.
    #[error("{problem}; the line is ignored")]
    DotEnvValue {
        /// Source of the value and what is wrong with it.
        problem: String,
    },
}

fn unknown_hint(suggestion: Option<&str>) -> String {
    match suggestion {
        Some(name) => format!(", did you mean `{name}`?"),
        None => "; it is ignored, run `bub config list` to see all settings".to_owned(),
    }
}

fn deprecated_hint(replacement: &str, is_ignored: bool) -> String {
    if is_ignored {
        format!(" and ignored, because `{replacement}` is set; remove it")
    } else {
        format!("; use `{replacement}`")
    }
}
