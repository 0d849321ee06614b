//! What child processes get to see.

use std::ffi::OsStr;

use crate::{Settings, core};

impl Settings {
    /// The environment for a child process: everything but the secrets bub has read, plus what
    /// `env.pass` names, minus what `env.drop` names. Both take `NAME` and `PREFIX*`.
    pub fn child_environment(&self) -> Vec<(&str, &OsStr)> {
        let secret = self.secret_env_names();
        let (pass, drop) = (self.get(&core::ENV_PASS), self.get(&core::ENV_DROP));
        let allowed = |name: &str| {
            let named = |patterns: &[String]| patterns.iter().any(|pattern| matches(pattern, name));
            !named(&drop) && (named(&pass) || !secret.iter().any(|secret| secret == name))
        };
        self.environment().iter().filter(|(name, _)| allowed(name)).collect()
    }
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix)),
        None => pattern.eq_ignore_ascii_case(name),
    }
}
