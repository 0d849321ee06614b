//! A string that cannot be printed by accident.

use std::fmt;
use std::sync::Arc;

/// What stands in for a secret wherever one would have been shown.
pub const MASK: &str = "***";

/// A password, key or token.
///
/// `Debug` and `Display` show [`MASK`], and there is deliberately no `Serialize`: a secret leaves
/// this type only through [`Secret::expose`], which is easy to find in a review.
///
/// The memory is not wiped on drop. The same bytes also live in the process environment and in the
/// text of the config file, so wiping this one copy would promise more than it keeps.
///
/// ```compile_fail
/// fn needs_serialize<T: serde::Serialize>(_: &T) {}
/// needs_serialize(&bub_settings::Secret::from("sk-123456"));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

impl Secret {
    /// The secret itself, for the one place that must send it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({MASK})")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

/// Whether a name looks like that of a secret (`api_key`, `GITHUB_TOKEN`, `Authorization`, …).
///
/// Used where no declaration can say so: free-form maps, sections of plugins that are not loaded,
/// undeclared variables. Counting words such as `max_tokens` are not secrets, and neither is a
/// command that prints one.
pub fn is_sensitive_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let words: Vec<&str> = name.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    if words.last() == Some(&"command") {
        return false;
    }
    words.iter().any(|word| {
        matches!(*word, "key" | "token" | "secret" | "password" | "passwd" | "credential" | "credentials")
            || matches!(*word, "authorization" | "cookie" | "passphrase")
            // `MYSQL_PWD` is a password, `PWD` a directory.
            || (*word == "pwd" && words.len() > 1)
            || word.ends_with("token")
            || word.ends_with("secret")
            || word.ends_with("password")
            || word.ends_with("apikey")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_shows_only_the_mask() {
        let secret = Secret::from("sk-very-secret");
        assert_eq!(
            format!("{secret} {secret:?} {:?}", Some(&secret)),
            "*** Secret(***) Some(Secret(***))"
        );
        assert_eq!(secret.expose(), "sk-very-secret");
    }

    #[test]
    fn sensitive_names_are_told_from_ordinary_ones() {
        for name in [
            "api_key",
            "BUB_DISCORD_TOKEN",
            "Authorization",
            "x-api-key",
            "accessToken",
            "DB_PASSWORD",
            "MYSQL_PWD",
        ] {
            assert!(is_sensitive_name(name), "{name}");
        }
        for name in [
            "max_tokens",
            "model",
            "keyboard",
            "monkey",
            "PWD",
            "OLDPWD",
            "timeout",
            "tokens_per_minute",
            "auth",
            "api_key_command",
        ] {
            assert!(!is_sensitive_name(name), "{name}");
        }
    }
}
