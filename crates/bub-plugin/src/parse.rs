//! Parses data from plugin authors and users, with error messages that do not mention Rust types.

use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::Value;

/// Deserializes a map. The error names the invalid key, if it can be determined.
pub(crate) fn deserialize_map<T: DeserializeOwned>(value: &Value) -> Result<T, String> {
    if !value.is_object() {
        return Err("must be a map".to_owned());
    }
    let error = match T::deserialize(value) {
        Ok(parsed) => return Ok(parsed),
        Err(error) => error.to_string(),
    };
    // A key is invalid if removing it changes or resolves the error.
    let is_wrong = |key: &String| {
        let mut remaining = value.as_object().cloned().unwrap_or_default();
        remaining.shift_remove(key);
        T::deserialize(&Value::Object(remaining))
            .err()
            .is_none_or(|other| other.to_string() != error)
    };
    let keys = value
        .as_object()
        .into_iter()
        .flat_map(serde_json::Map::keys);
    let wrong_key = keys
        .filter(|_| !error.starts_with("unknown field `"))
        .find(|key| is_wrong(key));
    Err(wrong_key.map_or_else(
        || simplify_parser_error(&error),
        |key| format!("`{key}`: {}", simplify_parser_error(&error)),
    ))
}

/// Rewrites an error message of serde without Rust type names.
pub(crate) fn simplify_parser_error(error: &str) -> String {
    let simplify_type = |text: &str| match text
        .split_once(' ')
        .map_or((text, ""), |(first, rest)| (first, rest))
    {
        ("struct" | "map", _) | ("a", "map") => "a map".to_owned(),
        ("sequence", _) | ("a", "sequence") => "a list".to_owned(),
        ("a", "string") => "text".to_owned(),
        ("a", "boolean") => "true or false".to_owned(),
        ("variant", _) => "a word".to_owned(),
        ("string", actual) => format!("the text {actual}"),
        ("integer" | "floating", actual) => {
            format!("the number {}", actual.trim_start_matches("point "))
        }
        ("boolean", actual) => actual.to_owned(),
        ("u32" | "u64" | "usize", _) => "a whole number".to_owned(),
        _ => text.to_owned(),
    };
    let parts = |prefix: &str| {
        error
            .strip_prefix(prefix)
            .and_then(|rest| rest.split_once(", expected "))
    };
    if let Some((actual, expected)) = parts("invalid type: ").or_else(|| parts("invalid value: ")) {
        return format!(
            "must be {}, not {}",
            simplify_type(expected),
            simplify_type(actual)
        );
    }
    if let Some((actual, expected)) = parts("unknown field ") {
        return format!(
            "unknown key {actual}; available keys: {}",
            expected.trim_start_matches("one of ")
        );
    }
    if let Some((actual, expected)) = parts("unknown variant ") {
        return format!(
            "unknown value {actual}; available values: {}",
            expected.trim_start_matches("one of ")
        );
    }
    if let Some(name) = error.strip_prefix("missing field ") {
        return format!("{name} is missing");
    }
    if error.starts_with("data did not match any variant") {
        return "unsupported value: the plugin protocol does not allow this form".to_owned();
    }
    error.to_owned()
}

/// Quotes a path as an argument of a shell command, if necessary.
///
/// ```
/// use std::path::Path;
///
/// assert_eq!(bub_plugin::quote_for_shell(Path::new("plugins/weather")), "plugins/weather");
/// assert_eq!(bub_plugin::quote_for_shell(Path::new("my plugins")), "'my plugins'");
/// ```
pub fn quote_for_shell(path: &Path) -> String {
    let text = path.to_string_lossy();
    let is_plain =
        |c: char| c.is_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | '+' | '@' | ':' | ',');
    if !text.is_empty() && text.chars().all(is_plain) && !text.starts_with('-') {
        return text.into_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}
