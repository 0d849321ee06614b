//! Environment variables for child processes.

use std::ffi::{OsStr, OsString};

use crate::{LookupValue, Redactor, Settings, display, keys};

impl Settings {
    /// Returns the environment for a child process, such as a command of the agent.
    ///
    /// It contains all variables except secrets. A variable counts as a secret if bub has read it
    /// as one, or if its name or its value suggests one. The setting `env.pass` lists secrets to
    /// include anyway, and `env.drop` lists variables to remove. Both settings accept `NAME` and
    /// `PREFIX*`.
    pub fn child_environment(&self) -> Vec<(&str, &OsStr)> {
        let secret = self.secret_env_names();
        let (pass, drop) = (self.get(&keys::ENV_PASS), self.get(&keys::ENV_DROP));
        let is_allowed = |(name, value): &(&str, &OsStr)| {
            let is_secret = || {
                secret.iter().any(|secret| secret == name)
                    || self.may_be_secret(name, &value.to_string_lossy())
            };
            !matches_any(&drop, name) && (matches_any(&pass, name) || !is_secret())
        };
        self.environment().iter().filter(is_allowed).collect()
    }

    /// Returns the environment for an external plugin: that of a [child
    /// process](Self::child_environment) and the variables in `granted`.
    pub fn plugin_environment(&self, granted: &[String]) -> Vec<(OsString, OsString)> {
        let environment = self.child_environment().into_iter();
        let owned = |(name, value): (&str, &OsStr)| (OsString::from(name), value.to_owned());
        let mut environment: Vec<_> = environment.map(owned).collect();
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

    /// Returns whether a variable may be a secret, by its name or its value.
    fn may_be_secret(&self, name: &str, value: &str) -> bool {
        // A short password may be a part of a path, and programs need their paths.
        let is_masked = if value.starts_with('/') || is_never_secret(name) {
            Redactor::new().redact(value) != value
        } else {
            self.redactor().redact(value) != value
        };
        is_masked
            || has_secret_name(name)
            || matches_any(&["AWS_*".to_owned()], name)
            || has_secret_value(value)
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

/// Returns whether the name of a variable suggests a secret. Stricter than
/// [`is_sensitive_name`](crate::is_sensitive_name), which is also for settings.
pub(crate) fn has_secret_name(name: &str) -> bool {
    const WORDS: [&str; 5] = ["PAT", "PWD", "PASSPHRASE", "AUTH", "DSN"];
    const STARTS: [&str; 2] = ["PRIVATE", "CRED"];
    let name = name.to_ascii_uppercase();
    let is_secret = |word: &str| {
        WORDS.contains(&word)
            || word.ends_with("PASS") && !matches!(word, "BYPASS" | "COMPASS")
            || STARTS.iter().any(|start| word.starts_with(start))
    };
    // `PWD` and `OLDPWD` are directories.
    name.ends_with("DATABASE_URL")
        || ["SECRET", "WEBHOOK"].iter().any(|part| name.contains(part))
        || (!matches!(name.as_str(), "PWD" | "OLDPWD")
            && name
                .split(|c: char| !c.is_ascii_alphanumeric())
                .any(is_secret))
}

/// Returns whether a value is a token, a private key, or a URL with a password.
pub(crate) fn has_secret_value(value: &str) -> bool {
    const PREFIXES: [&str; 15] = [
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
        "-----BEGIN",
    ];
    let value = value.trim();
    // `https://token@host` has a token instead of a user.
    let authority = value
        .strip_prefix("http")
        .and_then(|rest| rest.split('/').nth(2));
    let is_jwt = value.starts_with("eyJ") && value.split('.').count() == 3;
    is_jwt
        || PREFIXES.iter().any(|prefix| value.starts_with(prefix))
        || authority.is_some_and(|authority| authority.contains('@'))
        || display::url_password(value).is_some()
        || has_token_in_path(value)
}

/// Returns whether a value is the URL of a webhook with a token in its path, such as
/// `https://hooks.example/services/T0/B0/token`. The address of a webhook without one is no secret.
fn has_token_in_path(value: &str) -> bool {
    const MIN_TOKEN_CHARS: usize = 16;
    let address = value
        .strip_prefix("http")
        .and_then(|rest| rest.split_once("://"));
    let address = address.map_or_else(String::new, |(_, address)| address.to_ascii_lowercase());
    let mut parts = address.split(['/', '?', '&', '=']);
    let is_webhook = |part: &str| part.contains("webhook") || part == "hooks";
    let has_digit = |part: &str| part.contains(|c: char| c.is_ascii_digit());
    let is_token = |part: &str| part.len() >= MIN_TOKEN_CHARS && has_digit(part);
    // Hosts that are only for webhooks can have tokens of letters alone.
    address.starts_with("hooks.") && address.matches('/').count() > 2
        || parts.any(is_webhook) && parts.any(is_token)
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

/// Returns whether a variable is known to hold no secret, such as `HOME`. Any other variable may
/// hold one.
fn is_never_secret(name: &str) -> bool {
    const NAMES: [&str; 11] = [
        "HOME", "USER", "LOGNAME", "PWD", "SHELL", "LANG", "TERM", "TMPDIR", "HOSTNAME", "TZ",
        "EDITOR",
    ];
    NAMES.contains(&name) || name.starts_with("XDG_") || name.starts_with("LC_")
}
