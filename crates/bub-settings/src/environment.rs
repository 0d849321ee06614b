//! The process environment, read once and handed on as data.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// A snapshot of environment variables.
///
/// Everything in this crate works on a snapshot, so tests inject one and never touch the real one.
#[derive(Clone, Default)]
pub struct Environment {
    vars: Vec<(String, OsString)>,
    user_home: Option<PathBuf>,
}

impl Environment {
    /// The environment of this process: the only place in bub that reads it.
    ///
    /// Variables whose names are not UTF-8 cannot be settings and are left out.
    #[allow(
        clippy::disallowed_methods,
        reason = "this is the one place that reads the environment"
    )]
    pub fn process() -> Self {
        let vars: Vec<_> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
            .collect();
        // The account database knows the home directory even where HOME is not set (cron, systemd).
        let user_home = std::env::home_dir().filter(|home| !home.as_os_str().is_empty());
        Self { vars, user_home }
    }

    /// An environment of the given variables; the user's home directory is `HOME`.
    pub fn from_pairs<N: Into<String>, V: Into<OsString>>(
        pairs: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let vars: Vec<_> = pairs
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        let mut environment = Self {
            vars,
            user_home: None,
        };
        let home = environment
            .get("HOME")
            .filter(|home| !home.is_empty())
            .map(PathBuf::from);
        environment.user_home = home;
        environment
    }

    /// The value of a variable. Names are compared without regard to case, an exact match first.
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        let exact = self.vars.iter().find(|(known, _)| known == name);
        let found = exact.or_else(|| {
            self.vars
                .iter()
                .find(|(known, _)| known.eq_ignore_ascii_case(name))
        });
        found.map(|(_, value)| value.as_os_str())
    }

    /// The user's home directory, which `~` stands for.
    pub fn user_home(&self) -> Option<&Path> {
        self.user_home.as_deref()
    }

    /// All variables in the order of the snapshot.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &OsStr)> {
        self.vars
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_os_str()))
    }
}
