//! A string that cannot be printed by accident.

use std::fmt;
use std::sync::Arc;

/// Text shown instead of a secret.
pub const MASK: &str = "***";

/// A password, key or token.
///
/// `Debug` and `Display` show [`MASK`], and `Serialize` is deliberately not implemented. A secret
/// leaves this type only through [`Secret::expose`], which is easy to find in a review.
///
/// The memory is not wiped on drop. The secret is also in the process environment and in the text
/// of the config file, so wiping this copy would not help.
///
/// ```compile_fail
/// fn needs_serialize<T: serde::Serialize>(_: &T) {}
/// needs_serialize(&bub_settings::Secret::from("sk-123456"));
/// ```
#[derive(Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(from = "String")]
pub struct Secret(Arc<str>);

impl Secret {
    /// Returns the secret itself, for the code that must send it.
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

/// Returns whether a name looks like the name of a secret (`api_key`, `GITHUB_TOKEN`,
/// `Authorization`, …).
///
/// For values without a declaration: in free-form maps, sections of plugins that are not loaded,
/// and undeclared variables. Returns `false` for counts such as `max_tokens`, and for names that
/// end in `command`, because their value is a command that prints a secret.
pub fn is_sensitive_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let words: Vec<&str> = name.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    if words.last() == Some(&"command") {
        return false;
    }
    words.iter().any(|word| {
        matches!(*word, "key" | "token" | "secret" | "password" | "passwd" | "credential" | "credentials")
            || matches!(*word, "authorization" | "cookie" | "passphrase")
            // `MYSQL_PWD` is a password, `PWD` is a directory.
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
    fn sensitive_names_are_distinguished_from_ordinary_ones() {
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
