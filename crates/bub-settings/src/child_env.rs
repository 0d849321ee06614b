//! What child processes get to see.

use std::{
    borrow::Cow,
    ffi::{OsStr, OsString},
};

use crate::{LookupValue, Redactor, Secret, Settings, display, keys};

impl Settings {
    /// The environment for a child process: everything but secrets (those bub has read, and variables whose
    /// names say that they are), plus what
    /// `env.pass` names, minus what `env.drop` names. Both take `NAME` and `PREFIX*`.
    pub fn child_environment(&self) -> Vec<(&str, &OsStr)> {
        let secret = self.secret_env_names();
        let (pass, drop) = (self.get(&keys::ENV_PASS), self.get(&keys::ENV_DROP));
        let allowed = |name: &str| {
            let named = |patterns: &[String]| patterns.iter().any(|pattern| matches(pattern, name));
            !named(&drop) && (named(&pass) || !secret.iter().any(|secret| secret == name))
        };
        self.environment()
            .iter()
            .filter(|(name, _)| allowed(name))
            .collect()
    }

    /// The environment for a plugin: the same without what only looks like a secret, and with what it was granted.
    pub fn plugin_environment(&self, granted: &[String]) -> Vec<(OsString, OsString)> {
        let is_granted = |name: &str| granted.iter().any(|known| known == name);
        let pass = self.get(&keys::ENV_PASS);
        let is_passed = |name: &str| pass.iter().any(|pattern| matches(pattern, name));
        let usual = self.child_environment().into_iter();
        let usual = usual.filter(|(name, value)| {
            is_granted(name) || is_passed(name) || !looks_secret(name, &value.to_string_lossy())
        });
        let mut environment: Vec<_> = usual
            .map(|(name, value)| (OsString::from(name), value.to_owned()))
            .collect();
        for name in granted {
            // What everybody has is nothing that would have to be kept from others now.
            if environment.iter().all(|(known, _)| known != name.as_str()) {
                environment.extend(
                    self.granted_variable(name)
                        .map(|value| (OsString::from(name), value)),
                );
            }
        }
        environment
    }

    /// The value of a variable that one child process was granted although it is a secret: of the
    /// setting that the variable sets, else of the environment. `env.drop` holds here, too.
    ///
    /// From now on the value is masked everywhere, and children without the grant do not get it.
    pub fn granted_variable(&self, name: &str) -> Option<OsString> {
        self.hide_from_children(name);
        if self
            .get(&keys::ENV_DROP)
            .iter()
            .any(|pattern| matches(pattern, name))
        {
            return None;
        }
        let setting = self.slots.iter().map(crate::settings::SettingSlot::setting);
        let setting = setting
            .into_iter()
            .find(|setting| setting.variable() == name);
        let value = match setting.map(|setting| self.get_value(setting.key())) {
            Some(Ok(LookupValue::Secret(secret))) => Some(OsString::from(secret.expose())),
            _ => self.environment().get(name).map(OsStr::to_owned),
        };
        if let Some(text) = value
            .as_deref()
            .and_then(OsStr::to_str)
            .filter(|text| !text.trim().is_empty())
        {
            self.redactor().register(&Secret::from(text.trim()));
        }
        value
    }
}

/// Whether a variable may well be a secret: by its name, or by what it is. Only for those who can ask for it.
fn looks_secret(name: &str, value: &str) -> bool {
    const SECRET_NAMES: [&str; 9] = [
        "PAT",
        "PWD",
        "PASS",
        "PASSPHRASE",
        "AUTH",
        "CREDENTIAL",
        "CREDS",
        "WEBHOOK",
        "DSN",
    ];
    const SECRET_PREFIXES: [&str; 14] = [
        "sk-",
        "sk_live_",
        "rk_live_",
        "ghp_",
        "gho_",
        "ghu_",
        "ghs_",
        "github_pat_",
        "glpat-",
        "xox",
        "AKIA",
        "ASIA",
        "AIza",
        "npm_",
    ];
    let name = name.to_ascii_uppercase();
    // The directory everybody is in.
    let is_named = !matches!(name.as_str(), "PWD" | "OLDPWD")
        && name
            .split(|c: char| !c.is_ascii_alphanumeric())
            .any(|word| SECRET_NAMES.contains(&word));
    let value = value.trim();
    let is_jwt = value.starts_with("eyJ") && value.split('.').count() == 3;
    is_named
        || is_jwt
        || SECRET_PREFIXES
            .iter()
            .any(|prefix| value.starts_with(prefix))
        || value.starts_with("-----BEGIN")
        || display::url_password(value).is_some()
        || matches!(Redactor::new().redact(value), Cow::Owned(_))
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name
            .get(..prefix.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(prefix)),
        None => pattern.eq_ignore_ascii_case(name),
    }
}
