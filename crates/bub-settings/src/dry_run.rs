//! Checks changes of the config file before they are saved.

use serde_json::Value;

use crate::load::parse_config;
use crate::node::{Node, NodeData, NodeMap};
use crate::secret::is_sensitive_name;
use crate::settings::{RegisteredSetting, SettingSlot, Settings};
use crate::sources::Sources;
use crate::spec::ValueKind;
use crate::{
    LookupError, LookupValue, Secret, SettingSource, SettingsError, display, validate, yaml,
};

/// Error for a text that cannot be the value of a setting.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ValueError {
    /// The setting is unknown.
    #[error(transparent)]
    Unknown(#[from] LookupError),
    /// The value is invalid. A secret is not quoted.
    #[error("`{key}` is {found}, expected {expected}")]
    Unfit {
        /// Key of the setting.
        key: String,
        /// The invalid value, or its kind.
        found: String,
        /// What the declaration requires.
        expected: String,
    },
    /// Only an environment variable can set the setting.
    #[error("`{key}` cannot be set in the config file; set the variable {variable}")]
    NotInFile {
        /// Key of the setting.
        key: String,
        /// Environment variable that sets the setting.
        variable: String,
    },
}

impl Settings {
    /// Parses a text for the setting at a path and returns the value for the config file. A secret
    /// is masked from now on.
    pub fn parse_config_value(&self, path: &str, text: &str) -> Result<Value, ValueError> {
        let unknown = || LookupError::Unknown {
            path: path.to_owned(),
            suggestion: self.suggest_key(path),
        };
        let (slot, mut rest) = self.slot_for(path).ok_or_else(unknown)?;
        let setting = slot.spec();
        if display::is_secret(setting, path) {
            self.redactor.register(&Secret::from(text.trim()));
        }
        if !setting.is_in_file() {
            let variable = setting.variable().into_owned();
            return Err(ValueError::NotInFile {
                key: setting.key().to_owned(),
                variable,
            });
        }
        let unfit = |found: String, expected: String| ValueError::Unfit {
            key: path.to_owned(),
            found,
            expected,
        };
        // Empty input, for example from an empty pipe, must not overwrite an existing secret.
        if display::is_secret(setting, path) && text.trim().is_empty() {
            return Err(unfit(
                "empty".to_owned(),
                "a secret; use `bub config unset` to remove it".to_owned(),
            ));
        }
        // A key is sent in one line. Other secrets, such as a certificate, may have several lines.
        let is_forbidden = |c: char| {
            c.is_control() && (c != '\n' || matches!(setting.kind(), ValueKind::PerProvider))
        };
        if display::is_secret(setting, path) && text.trim().contains(is_forbidden) {
            return Err(unfit(
                "text with several lines or control characters".to_owned(),
                "a secret in one line".to_owned(),
            ));
        }
        let wrong = |error| match error {
            SettingsError::Invalid {
                found, expected, ..
            } => unfit(found, expected),
            other => unfit(other.to_string(), setting.describe_expected()),
        };
        match (setting.kind(), rest.next()) {
            (_, None) => {}
            (ValueKind::PerProvider, Some(provider)) if rest.next().is_none() => {
                validate::parse_provider_text(
                    setting,
                    provider.to_owned(),
                    text,
                    SettingSource::Default,
                )
                .map_err(wrong)?;
                return Ok(Value::from(text.trim()));
            }
            (ValueKind::Map, Some(_)) => {
                let parsed = yaml::parse(text, &|_| SettingSource::Default);
                let node = parsed
                    .map_err(|_| {
                        unfit(
                            "not valid YAML".to_owned(),
                            "a YAML value; put quotes around text".to_owned(),
                        )
                    })?
                    .root;
                return Ok(node
                    .as_ref()
                    .map(display::undeclared_to_value)
                    .unwrap_or_default());
            }
            _ => return Err(unknown().into()),
        }
        let user_home = self.environment().user_home();
        let node = validate::parse_setting_text(setting, text, SettingSource::Default, user_home)
            .map_err(wrong)?;
        let Some(node) = node else {
            return Err(unfit("empty".to_owned(), setting.describe_expected()));
        };
        let value = display::to_value(setting, &node);
        Ok(match (setting.kind(), value) {
            // Keep `~` unexpanded.
            (ValueKind::Path, Value::String(_)) => Value::from(text.trim()),
            (ValueKind::List, Value::Array(items)) if !setting.is_written_as_list() => {
                let texts: Vec<_> = items.iter().filter_map(Value::as_str).collect();
                if texts.iter().any(|item| item.contains(',')) {
                    items.into()
                } else {
                    texts.join(", ").into()
                }
            }
            (_, value) => value,
        })
    }

    /// Returns the settings that another text of the config file would produce, and their problems.
    pub fn with_config_text(
        &self,
        text: &str,
    ) -> Result<(Self, Vec<SettingsError>), SettingsError> {
        let mut warnings = Vec::new();
        let config = parse_config(&self.config_file, text, &mut warnings)?;
        let sources = Sources {
            config,
            ..self.sources.clone()
        };
        let mut revised = Self::new(sources, self.redactor.clone(), warnings);
        revised.home.clone_from(&self.home);
        revised.config_file.clone_from(&self.config_file);
        revised.sections.clone_from(&self.sections);
        revised
            .slots
            .extend(self.slots.iter().map(|slot| SettingSlot {
                value: None,
                declared: match &slot.declared {
                    RegisteredSetting::Static(key) => RegisteredSetting::Static(*key),
                    RegisteredSetting::Dynamic(key) => RegisteredSetting::Dynamic(key.clone()),
                },
            }));
        revised.register_undeclared_secrets();
        let mut problems = Vec::new();
        revised.check_sections(&mut problems);
        revised.resolve_slots_from(0, &mut problems);
        problems.extend(revised.policy_typo_errors());
        Ok((revised, problems))
    }

    /// Returns whether the config file holds a secret of bub or of a plugin that is not loaded.
    pub fn has_secrets_in_file(&self) -> bool {
        let Some(config) = &self.sources.config else {
            return false;
        };
        let declared = self
            .slots
            .iter()
            .map(SettingSlot::spec)
            .filter(|setting| setting.is_secret());
        let mut nodes: Vec<_> = declared
            .filter_map(|setting| self.sources.config_value(setting))
            .collect();
        let mut has_secret = false;
        let mut visit = |node: &Node, key: &str, is_secret: bool| {
            node.visit_leaves(key, &mut |key, leaf| {
                has_secret |= (is_secret || is_sensitive_name(key)) && !leaf.text.trim().is_empty();
            });
        };
        nodes.drain(..).for_each(|node| visit(node, "", true));
        config
            .iter()
            .for_each(|(key, node)| visit(node, key, false));
        has_secret
    }

    fn check_sections(&self, problems: &mut Vec<SettingsError>) {
        for section in self.sections.iter().filter(|section| !section.is_empty()) {
            problems.extend(self.section_problem(section));
        }
    }

    /// Returns an error if a section of the config file is not a map.
    pub(crate) fn section_problem(&self, section: &str) -> Option<SettingsError> {
        let node = self
            .sources
            .config
            .as_ref()
            .and_then(|config: &NodeMap| config.get(section))?;
        (!node.is_null() && !matches!(node.data, NodeData::Map(_))).then(|| {
            SettingsError::Invalid {
                origin: node.origin.clone(),
                key: section.to_owned(),
                found: "a single value or a list".to_owned(),
                expected: "a map of settings".to_owned(),
            }
        })
    }

    /// Returns the value at a path as text for a prompt. Returns `None` for a secret.
    pub fn text_at(&self, path: &str) -> Option<String> {
        match self.get_value(path).ok()? {
            LookupValue::Value(Value::String(text)) => Some(text),
            LookupValue::Value(Value::Array(items)) => Some(
                items
                    .iter()
                    .filter_map(Value::as_str)
                    .collect::<Vec<_>>()
                    .join(", "),
            ),
            LookupValue::Value(Value::Null) | LookupValue::Secret(_) => None,
            LookupValue::Value(value) => Some(value.to_string()),
        }
    }
}
