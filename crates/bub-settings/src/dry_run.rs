//! Checks changes of the config file before they are saved.

use serde_json::Value;

use crate::load::parse_config;
use crate::node::NodeData;
use crate::secret::is_sensitive_name;
use crate::settings::{SettingSlot, Settings};
use crate::sources::Sources;
use crate::spec::ValueKind;
use crate::{LookupError, LookupValue, SettingSource, SettingsError, display, validate, yaml};

/// Error for a text that cannot be the value of a setting.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ValueError {
    /// The setting is unknown.
    #[error(transparent)]
    Unknown(#[from] LookupError),
    /// The value is invalid. The error does not show a secret.
    #[error("`{key}` is {found}, expected {expected}")]
    Unfit {
        /// Key of the setting.
        key: String,
        /// The invalid value, or a description of it.
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
        let unknown = || self.unknown_error(path);
        let (slot, mut rest) = self.slot_for(path).ok_or_else(unknown)?;
        let setting = slot.spec();
        let is_secret = display::is_secret(setting, path);
        if is_secret {
            self.redactor.register_text(text.trim());
        }
        if !setting.in_file {
            return Err(ValueError::NotInFile {
                key: setting.key.to_string(),
                variable: setting.variable().into_owned(),
            });
        }
        let unfit = |found: &str, expected: &str| ValueError::Unfit {
            key: path.to_owned(),
            found: found.to_owned(),
            expected: expected.to_owned(),
        };
        // Empty input, for example from an empty pipe, must not overwrite an existing secret.
        if is_secret && text.trim().is_empty() {
            return Err(unfit(
                "empty",
                "a secret; use `bub config unset` to remove it",
            ));
        }
        // An API key has one line, because it is sent in a header. Other secrets, such as a
        // certificate, may have several.
        let is_api_key = setting.kind == ValueKind::PerProvider;
        let is_forbidden = |c: char| c.is_control() && (c != '\n' || is_api_key);
        if is_secret && text.trim().contains(is_forbidden) {
            let found = "text with several lines or control characters";
            return Err(unfit(found, "a secret in one line"));
        }
        let expected = setting.describe_expected();
        let invalid = |error: SettingsError| match error {
            SettingsError::Invalid { found, .. } => unfit(&found, &expected),
            other => unfit(&other.to_string(), &expected),
        };
        let origin = SettingSource::Default;
        match (setting.kind, rest.next()) {
            (_, None) => {}
            (ValueKind::PerProvider, Some(provider)) if rest.next().is_none() => {
                validate::parse_provider_text(setting, provider.to_owned(), text, origin)
                    .map_err(invalid)?;
                return Ok(Value::from(text.trim()));
            }
            (ValueKind::Map, Some(_)) => {
                return yaml::parse_yaml(text)
                    .map_err(|_| unfit("not valid YAML", "a YAML value; put quotes around text"));
            }
            _ => return Err(unknown().into()),
        }
        let user_home = self.environment().user_home();
        let node = validate::parse_setting_text(setting, text, origin, user_home);
        let Some(node) = node.map_err(invalid)? else {
            return Err(unfit("empty", &expected));
        };
        let value = display::to_value(setting, &node);
        Ok(match (setting.kind, value) {
            // Keep `~` unexpanded.
            (ValueKind::Path, Value::String(_)) => Value::from(text.trim()),
            (ValueKind::List, Value::Array(items)) if !setting.write_as_list => {
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
        revised.workspace_trust = self.workspace_trust.clone();
        revised.trust_report = self.trust_report.clone();
        revised.sections.clone_from(&self.sections);
        let declared = self.slots.iter().map(|slot| slot.declared.clone());
        revised.slots.extend(declared.map(SettingSlot::new));
        revised.register_undeclared_secrets();
        let sections = revised.sections.iter().filter(|name| !name.is_empty());
        let mut problems: Vec<_> = sections
            .filter_map(|section| revised.section_problem(section))
            .collect();
        revised.resolve_slots_from(0, &mut problems);
        problems.extend(revised.policy_typo_errors());
        Ok((revised, problems))
    }

    /// Returns whether the config file holds a secret: the value of a secret setting, or of any
    /// other key whose name suggests a secret.
    pub fn has_secrets_in_file(&self) -> bool {
        let declared = self.specs().filter(|setting| setting.secret);
        let declared = declared.filter_map(|setting| self.sources.config_value(setting));
        let mut has_secret = false;
        for node in declared {
            node.visit_leaves("", &mut |_, leaf| {
                has_secret |= !leaf.text.trim().is_empty();
            });
        }
        if let Some(config) = &self.sources.config {
            config.visit_leaves("", &mut |key, leaf| {
                has_secret |= is_sensitive_name(key) && !leaf.text.trim().is_empty();
            });
        }
        has_secret
    }

    /// Returns an error if a section of the config file is not a map.
    pub(crate) fn section_problem(&self, section: &str) -> Option<SettingsError> {
        let config = self.sources.config.as_ref()?;
        let node = config.descend(std::iter::once(section))?;
        (!node.is_null() && !matches!(node.data, NodeData::Map(_))).then(|| {
            SettingsError::Invalid {
                origin: node.origin.clone(),
                key: section.to_owned(),
                found: "a single value or a list".to_owned(),
                expected: "a map of settings".to_owned(),
            }
        })
    }

    /// Returns the value at a path as text that may be shown to the user. Returns `None` for a
    /// secret, for null, and for an unknown path.
    pub fn text_at(&self, path: &str) -> Option<String> {
        match self.get_value(path).ok()? {
            LookupValue::Value(Value::String(text)) => Some(text),
            LookupValue::Value(Value::Array(items)) => {
                let texts: Vec<_> = items.iter().filter_map(Value::as_str).collect();
                Some(texts.join(", "))
            }
            LookupValue::Value(Value::Null) | LookupValue::Secret(_) => None,
            LookupValue::Value(value) => Some(value.to_string()),
        }
    }
}
