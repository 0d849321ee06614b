//! What child processes get to see.

use std::ffi::{OsStr, OsString};

use crate::{Found, Secret, Settings, core};

impl Settings {
    /// The environment for a child process: everything but secrets (those bub has read, and variables whose
    /// names say that they are), plus what
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

    /// The value of a variable that one child process was granted although it is a secret: of the
    /// setting that the variable sets, else of the environment. `env.drop` holds here, too.
    ///
    /// From now on the value is masked everywhere, and children without the grant do not get it.
    pub fn granted_variable(&self, name: &str) -> Option<OsString> {
        self.keep_from_children(name);
        if self.get(&core::ENV_DROP).iter().any(|pattern| matches(pattern, name)) {
            return None;
        }
        let setting = self.slots.iter().map(crate::settings::Slot::setting);
        let setting = setting.into_iter().find(|setting| setting.variable() == name);
        let value = match setting.map(|setting| self.get_value(setting.key())) {
            Some(Ok(Found::Secret(secret))) => Some(OsString::from(secret.expose())),
            _ => self.environment().get(name).map(OsStr::to_owned),
        };
        if let Some(text) = value.as_deref().and_then(OsStr::to_str).filter(|text| !text.trim().is_empty()) {
            self.redactor().register(&Secret::from(text.trim()));
        }
        value
    }
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix)),
        None => pattern.eq_ignore_ascii_case(name),
    }
}
