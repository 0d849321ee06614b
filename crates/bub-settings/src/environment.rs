//! The process environment, read once and passed on as data.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// A snapshot of environment variables.
///
/// All code in this crate works on a snapshot, so tests never touch the real environment.
#[derive(Clone, Default)]
pub struct Environment {
    vars: Vec<(String, OsString)>,
    user_home: Option<PathBuf>,
}

impl Environment {
    /// Returns the environment of this process. No other function in bub reads it.
    ///
    /// Variables whose names are not UTF-8 cannot be settings and are skipped.
    #[allow(
        clippy::disallowed_methods,
        reason = "only this function reads the environment"
    )]
    pub fn from_process() -> Self {
        let vars: Vec<_> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
            .collect();
        // The account database has the home directory even if HOME is not set (cron, systemd).
        let user_home = std::env::home_dir().filter(|home| !home.as_os_str().is_empty());
        Self { vars, user_home }
    }

    /// Creates an environment from the given variables; the user's home directory is `HOME`.
    pub fn from_pairs<N: Into<String>, V: Into<OsString>>(
        pairs: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let pairs = pairs.into_iter();
        let vars = pairs.map(|(name, value)| (name.into(), value.into()));
        let mut environment = Self {
            vars: vars.collect(),
            user_home: None,
        };
        let home = environment.get("HOME").filter(|home| !home.is_empty());
        environment.user_home = home.map(PathBuf::from);
        environment
    }

    /// Returns the value of a variable. The case of the name is ignored, but an exact match takes
    /// precedence.
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        let exact = self.iter().find(|(variable, _)| *variable == name);
        let matching = exact.or_else(|| {
            let mut variables = self.iter();
            variables.find(|(variable, _)| variable.eq_ignore_ascii_case(name))
        });
        matching.map(|(_, value)| value)
    }

    /// Returns the user's home directory, which replaces a leading `~`.
    pub fn user_home(&self) -> Option<&Path> {
        self.user_home.as_deref()
    }

    /// Returns all variables in the order of the snapshot.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &OsStr)> {
        self.vars
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_os_str()))
    }
}
