//! Filling in the body of a skill: its directory, a Python, and settings that may be shown.

use std::path::Path;

use bub_settings::{LookupValue, Settings};
use serde_json::Value;

use super::SkillSource;

/// What the placeholders of one skill stand for.
pub(super) struct Template<'a> {
    pub(super) settings: &'a Settings,
    pub(super) source: SkillSource,
    /// A builtin skill has none.
    pub(super) directory: Option<&'a Path>,
    pub(super) python: &'a Path,
}

impl Template<'_> {
    /// Replaces `$SKILL_DIR`, `$PYTHON`, `${config.a.b}` and `$$`; everything else stays. What is withheld goes to `warn`.
    pub(super) fn render(&self, text: &str, warn: &mut dyn FnMut(String)) -> String {
        let mut rendered = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('$') {
            rendered.push_str(before);
            let (value, tail) = self
                .replacement(after, warn)
                .unwrap_or_else(|| ("$".to_owned(), after));
            rendered.push_str(&value);
            rest = tail;
        }
        rendered.push_str(rest);
        rendered
    }

    /// What stands for the placeholder at the start of `text`, which follows a `$`, and the text after it.
    fn replacement<'t>(
        &self,
        text: &'t str,
        warn: &mut dyn FnMut(String),
    ) -> Option<(String, &'t str)> {
        if let Some(tail) = text.strip_prefix('$') {
            return Some(("$".to_owned(), tail));
        }
        if let Some((inner, tail)) = text.strip_prefix('{').and_then(|text| text.split_once('}')) {
            let value = match inner.trim().strip_prefix("config.") {
                Some(path) if is_path(path) => self.setting(path, warn),
                _ => self.variable(inner)?,
            };
            return Some((value, tail));
        }
        let end = text
            .find(|c: char| c != '_' && !c.is_ascii_alphanumeric())
            .unwrap_or(text.len());
        let (name, tail) = text.split_at_checked(end)?;
        Some((self.variable(name)?, tail))
    }

    fn variable(&self, name: &str) -> Option<String> {
        match name {
            "SKILL_DIR" => self.directory.map(display_path),
            "PYTHON" => Some(display_path(self.python)),
            _ => None,
        }
    }

    /// The value of a setting; empty when there is none, or when this skill must not have it.
    fn setting(&self, path: &str, warn: &mut dyn FnMut(String)) -> String {
        let below = |long: &str, short: &str| {
            long.strip_prefix(short)
                .is_some_and(|rest| rest.starts_with('.'))
        };
        for entry in self.settings.entries() {
            let (setting, key) = (entry.setting, entry.setting.key());
            if key != path && !below(key, path) && !below(path, key) {
                continue;
            }
            if setting.is_secret() {
                let variable = setting.variable();
                warn(format!(
                    "`${{config.{path}}}` is left empty, because `{key}` is secret: ask for the variable {variable} in \
                     `metadata.env` and use it in commands; the setting `skills.env` grants it"
                ));
                return String::new();
            }
            if setting.is_trusted() && self.source == SkillSource::Project {
                warn(format!(
                    "`${{config.{path}}}` is left empty: skills of a workspace do not see `{key}`"
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
                    "`${{config.{path}}}` is left empty, because it is secret"
                ));
                return String::new();
            }
        };
        self.settings.redactor().redact(&text).into_owned()
    }
}

fn is_path(path: &str) -> bool {
    path.bytes()
        .all(|byte| matches!(byte, b'_' | b'.' | b'-') || byte.is_ascii_alphanumeric())
}

fn display_path(path: &Path) -> String {
    path.display().to_string()
}
