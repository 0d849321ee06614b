//! Environment variables for child processes.

use std::{
    borrow::Cow,
    ffi::{OsStr, OsString},
};

use crate::{LookupValue, Redactor, Settings, display, keys};

impl Settings {
    /// Returns the environment for a child process.
    ///
    /// It contains all variables except secrets. A variable counts as a secret if bub has read it
    /// as one, or if its name suggests one. The setting `env.pass` lists secrets to include anyway,
    /// and `env.drop` lists variables to remove. Both settings accept `NAME` and `PREFIX*`.
    pub fn child_environment(&self) -> Vec<(&str, &OsStr)> {
        let secret = self.secret_env_names();
        let (pass, drop) = (self.get(&keys::ENV_PASS), self.get(&keys::ENV_DROP));
        let is_allowed = |(name, _): &(&str, &OsStr)| {
            let is_secret = || secret.iter().any(|secret| secret == name);
            !matches_any(&drop, name) && (matches_any(&pass, name) || !is_secret())
        };
        self.environment().iter().filter(is_allowed).collect()
    }

    /// Returns the environment for an external plugin.
    ///
    /// It is the environment of a [child process](Self::child_environment) with two changes. A
    /// stricter check removes more variables that look like secrets, except those that `env.pass`
    /// names. The variables in `granted` are added.
    pub fn plugin_environment(&self, granted: &[String]) -> Vec<(OsString, OsString)> {
        let pass = self.get(&keys::ENV_PASS);
        let mut environment = self.child_environment();
        environment.retain(|(name, value)| {
            granted.iter().any(|other| other == name)
                || matches_any(&pass, name)
                || !may_be_secret(name, &value.to_string_lossy())
        });
        let owned = |(name, value): (&str, &OsStr)| (OsString::from(name), value.to_owned());
        let mut environment: Vec<_> = environment.into_iter().map(owned).collect();
        for name in granted {
            // Skip variables that every child gets: `granted_variable` would hide them from other
            // child processes.
            if environment.iter().all(|(other, _)| other != name.as_str())
                && let Some(value) = self.granted_variable(name)
            {
                environment.push((OsString::from(name), value));
            }
        }
        environment
    }

    /// Returns the value of a secret variable that was granted to one child process.
    ///
    /// If the variable sets a secret setting, this is the value of that setting. Otherwise it is
    /// the value in the environment. `env.drop` applies here, too. From now on the value is masked,
    /// and child processes without the grant do not get it.
    pub fn granted_variable(&self, name: &str) -> Option<OsString> {
        self.hide_from_children(name);
        if matches_any(&self.get(&keys::ENV_DROP), name) {
            return None;
        }
        let setting = self.specs().find(|setting| setting.variable() == name);
        let value = match setting.map(|setting| self.get_value(&setting.key)) {
            Some(Ok(LookupValue::Secret(secret))) => Some(OsString::from(secret.expose())),
            _ => self.environment().get(name).map(OsStr::to_owned),
        };
        if let Some(text) = value.as_deref().and_then(OsStr::to_str) {
            self.redactor().register_text(text.trim());
        }
        value
    }
}

/// Returns whether a variable may be a secret, by its name or its value. Used only for external
/// plugins: a plugin that needs such a variable can request it.
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

/// Returns whether one of the patterns, `NAME` or `PREFIX*`, matches a name. The case is ignored.
fn matches_any(patterns: &[String], name: &str) -> bool {
    patterns
        .iter()
        .any(|pattern| match pattern.strip_suffix('*') {
            Some(prefix) => {
                let start = name.get(..prefix.len());
                start.is_some_and(|start| start.eq_ignore_ascii_case(prefix))
            }
            None => pattern.eq_ignore_ascii_case(name),
        })
}
