//! Expands placeholders in the body of a skill: its directory, a Python interpreter, and settings that are not secret.

use std::path::Path;

use bub_settings::{LookupValue, Settings};
use serde_json::Value;

/// The values for the placeholders of one skill.
pub(super) struct Template<'a> {
    pub(super) settings: &'a Settings,
    /// The directory of the skill; `None` for a builtin skill.
    pub(super) directory: Option<&'a Path>,
    pub(super) python: &'a Path,
}

impl Template<'_> {
    /// Replaces `$SKILL_DIR`, `$PYTHON`, `${config.a.b}` and `$$` in `text`. Other dollar signs stay. Calls `warn` for
    /// each setting that the skill must not read.
    pub(super) fn render(&self, text: &str, warn: &mut dyn FnMut(String)) -> String {
        let mut rendered = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('$') {
            rendered.push_str(before);
            let (value, tail) = self
                .expand_placeholder(after, warn)
                .unwrap_or_else(|| ("$".to_owned(), after));
            rendered.push_str(&value);
            rest = tail;
        }
        rendered.push_str(rest);
        rendered
    }

    /// Expands a placeholder. `text` is the text after the `$`. Returns the value and the text after the placeholder,
    /// or `None` if `text` does not start with a known placeholder.
    fn expand_placeholder<'t>(
        &self,
        text: &'t str,
        warn: &mut dyn FnMut(String),
    ) -> Option<(String, &'t str)> {
        if let Some(tail) = text.strip_prefix('$') {
            return Some(("$".to_owned(), tail));
        }
        if let Some((inner, tail)) = text.strip_prefix('{').and_then(|text| text.split_once('}')) {
            let value = match inner.trim().strip_prefix("config.") {
                Some(path) if is_setting_path(path) => self.setting_value(path, warn),
                _ => self.variable_value(inner)?,
            };
            return Some((value, tail));
        }
        let end = text
            .find(|c: char| c != '_' && !c.is_ascii_alphanumeric())
            .unwrap_or(text.len());
        let (name, tail) = text.split_at_checked(end)?;
        Some((self.variable_value(name)?, tail))
    }

    /// Returns the value of `SKILL_DIR` or `PYTHON`, and `None` for other names.
    fn variable_value(&self, name: &str) -> Option<String> {
        let path = match name {
            "SKILL_DIR" => self.directory?,
            "PYTHON" => self.python,
            _ => return None,
        };
        Some(path.display().to_string())
    }

    /// Returns the value of a setting. Returns an empty text if the setting has no value or if this skill must not read
    /// it.
    fn setting_value(&self, path: &str, warn: &mut dyn FnMut(String)) -> String {
        let is_below = |long: &str, short: &str| {
            long.strip_prefix(short)
                .is_some_and(|rest| rest.starts_with('.'))
        };
        for entry in self.settings.entries() {
            let (setting, key) = (entry.setting, &*entry.setting.key);
            if key != path && !is_below(key, path) && !is_below(path, key) {
                continue;
            }
            if setting.secret {
                warn(format!(
                    "`${{config.{path}}}` is empty because `{key}` is secret; request the variable {} in `metadata.env`, \
                     use it in commands, and grant it with the setting `skills.env`",
                    setting.variable()
                ));
                return String::new();
            }
        }
        let text = match self.settings.get_value(path) {
            Ok(LookupValue::Value(Value::Null)) | Err(_) => return String::new(),
            Ok(LookupValue::Value(Value::String(text))) => text,
            Ok(LookupValue::Value(value)) => value.to_string(),
            Ok(LookupValue::Secret(_)) => {
                warn(format!(
                    "`${{config.{path}}}` is empty because the value is secret; request a variable in `metadata.env` instead"
                ));
                return String::new();
            }
        };
        self.settings.redactor().redact(&text).into_owned()
    }
}

fn is_setting_path(path: &str) -> bool {
    path.bytes()
        .all(|byte| matches!(byte, b'_' | b'.' | b'-') || byte.is_ascii_alphanumeric())
}
