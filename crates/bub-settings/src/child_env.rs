//! Environment variables for child processes.

use std::{
    borrow::Cow,
    ffi::{OsStr, OsString},
};

use crate::{LookupValue, Redactor, Secret, Settings, display, keys};

impl Settings {
    /// Returns the environment for a child process.
    ///
    /// It contains all variables except secrets: those that bub has read, and those whose names
    /// suggest a secret. `env.pass` adds variables and `env.drop` removes them. Both accept `NAME`
    /// and `PREFIX*`.
    pub fn child_environment(&self) -> Vec<(&str, &OsStr)> {
        let secret = self.secret_env_names();
        let (pass, drop) = (self.get(&keys::ENV_PASS), self.get(&keys::ENV_DROP));
        let allowed = |name: &str| {
            let named = |patterns: &[String]| {
                patterns
                    .iter()
                    .any(|pattern| matches_pattern(pattern, name))
            };
            !named(&drop) && (named(&pass) || !secret.iter().any(|secret| secret == name))
        };
        self.environment()
            .iter()
            .filter(|(name, _)| allowed(name))
            .collect()
    }

    /// Returns the environment for an external plugin: that of a child process, without values that
    /// look like secrets, but with the variables in `granted`.
    pub fn plugin_environment(&self, granted: &[String]) -> Vec<(OsString, OsString)> {
        let is_granted = |name: &str| granted.iter().any(|other| other == name);
        let pass = self.get(&keys::ENV_PASS);
        let is_passed = |name: &str| pass.iter().any(|pattern| matches_pattern(pattern, name));
        let usual = self.child_environment().into_iter();
        let usual = usual.filter(|(name, value)| {
            is_granted(name) || is_passed(name) || !may_be_secret(name, &value.to_string_lossy())
        });
        let mut environment: Vec<_> = usual
            .map(|(name, value)| (OsString::from(name), value.to_owned()))
            .collect();
        for name in granted {
            // A variable that every child gets does not need to be hidden from others.
            if environment.iter().all(|(other, _)| other != name.as_str()) {
                environment.extend(
                    self.granted_variable(name)
                        .map(|value| (OsString::from(name), value)),
                );
            }
        }
        environment
    }

    /// Returns the value of a secret variable that was granted to one child process.
    ///
    /// The value comes from the setting of the variable, else from the environment. `env.drop`
    /// applies here, too. From now on the value is masked, and child processes without the grant do
    /// not get it.
    pub fn granted_variable(&self, name: &str) -> Option<OsString> {
        self.hide_from_children(name);
        if self
            .get(&keys::ENV_DROP)
            .iter()
            .any(|pattern| matches_pattern(pattern, name))
        {
            return None;
        }
        let setting = self.slots.iter().map(crate::settings::SettingSlot::spec);
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

/// Returns whether a variable may be a secret, by its name or its value. Used only for plugins,
/// which can request such a variable.
fn may_be_secret(name: &str, value: &str) -> bool {
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
    // `PWD` and `OLDPWD` are directories.
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

fn matches_pattern(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name
            .get(..prefix.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(prefix)),
        None => pattern.eq_ignore_ascii_case(name),
    }
}
