//! The effective settings.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde_json::Value;

use crate::node::Node;
use crate::secret::Secret;
use crate::sources::Sources;
use crate::spec::{AnySetting, RegisteredSetting, Section, SettingKey, SettingSpec, ValueKind};
use crate::types::SettingType;
use crate::{
    Environment, Redactor, SettingSource, SettingsError, SettingsWarning, TrustReport,
    WorkspaceTrust, display, validate,
};

/// All declared settings with their values and sources.
///
/// Created by [`Loader`](crate::Loader). Values do not change after loading, so the settings can be
/// shared.
pub struct Settings {
    pub(crate) sources: Sources,
    pub(crate) slots: Vec<SettingSlot>,
    pub(crate) sections: Vec<Cow<'static, str>>,
    pub(crate) home: PathBuf,
    pub(crate) config_file: PathBuf,
    pub(crate) warnings: Vec<SettingsWarning>,
    pub(crate) redactor: Redactor,
    pub(crate) workspace_trust: WorkspaceTrust,
    pub(crate) trust_report: TrustReport,
    secret_variables: Mutex<BTreeSet<String>>,
}

/// A struct whose fields are the settings of a section. Derive it with
/// [`Settings`](macro@crate::Settings).
pub trait FromSettings: Sized {
    /// Returns the declarations.
    fn section() -> Section;

    /// Reads the values. A setting of a section that is not registered has its default.
    fn from_settings(settings: &Settings) -> Self;
}

/// A declaration and the merged value of all sources; `None` means the default.
pub(crate) struct SettingSlot {
    pub(crate) declared: RegisteredSetting,
    pub(crate) value: Option<Node>,
}

impl SettingSlot {
    pub(crate) fn new(declared: RegisteredSetting) -> Self {
        Self {
            declared,
            value: None,
        }
    }

    pub(crate) fn spec(&self) -> &SettingSpec {
        self.declared.setting()
    }
}

impl Settings {
    pub(crate) fn new(
        sources: Sources,
        redactor: Redactor,
        warnings: Vec<SettingsWarning>,
    ) -> Self {
        Self {
            sources,
            slots: Vec::new(),
            sections: Vec::new(),
            home: PathBuf::new(),
            config_file: PathBuf::new(),
            warnings,
            redactor,
            workspace_trust: WorkspaceTrust::default(),
            trust_report: TrustReport::default(),
            secret_variables: Mutex::default(),
        }
    }

    /// Returns the value of a setting.
    ///
    /// Returns the default if the section of the key is not registered.
    pub fn get<T: SettingType>(&self, key: &SettingKey<T>) -> T {
        let setting = key.setting();
        let mut slots = self.slots.iter();
        let slot = slots.find(|slot| slot.spec().key == setting.key);
        let value = match slot.and_then(|slot| slot.value.as_ref()) {
            Some(node) => Some(display::to_value(setting, node)),
            None => (setting.kind == ValueKind::Path).then(|| self.default_value(key)),
        };
        let value = value.and_then(T::from_value);
        value.unwrap_or_else(|| key.default())
    }

    /// Returns the declarations of all registered settings.
    pub(crate) fn specs(&self) -> impl Iterator<Item = &SettingSpec> {
        self.slots.iter().map(SettingSlot::spec)
    }

    /// Returns the default of a setting as JSON. In a path, the user's home directory replaces a
    /// leading `~`.
    pub(crate) fn default_value(&self, declared: &dyn AnySetting) -> Value {
        let default = declared.default_value();
        match default.as_str() {
            Some(path) if declared.setting().kind == ValueKind::Path => {
                validate::expand_home(path, self.sources.environment.user_home())
                    .map_or(default.clone(), Value::from)
            }
            _ => default,
        }
    }

    /// Returns the directory for tapes, history and plugins, as an absolute path.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Returns the config file that was read, or the one to create.
    pub fn config_file(&self) -> &Path {
        &self.config_file
    }

    /// Returns the environment that the settings were read from.
    pub fn environment(&self) -> &Environment {
        &self.sources.environment
    }

    /// Returns the redactor that masks all secrets of these settings.
    pub fn redactor(&self) -> &Redactor {
        &self.redactor
    }

    /// Reads a secret from a variable that is not a setting, such as a provider's `OPENAI_API_KEY`.
    ///
    /// The environment comes first, then the `.env`. An empty value counts as not set.
    pub fn secret_variable(&self, name: &str) -> Result<Option<Secret>, SettingsError> {
        let text = if let Some(value) = self.sources.environment.get(name) {
            self.hide_from_children(name);
            let not_text = || SettingsError::NotText {
                location: format!("environment variable {name}"),
            };
            Some(value.to_str().ok_or_else(not_text)?)
        } else {
            let file = self.sources.dotenv.as_ref();
            let binding = file.and_then(|file| file.binding(name));
            binding.map(|binding| binding.value.as_str())
        };
        let Some(text) = text.map(str::trim).filter(|text| !text.is_empty()) else {
            return Ok(None);
        };
        self.redactor.register_text(text);
        Ok(Some(Secret::from(text)))
    }

    /// Returns a variable that is neither a setting nor a secret, and its source.
    ///
    /// The environment comes first, then the `.env`. A value that is not UTF-8 counts as not set.
    pub fn variable(&self, name: &str) -> Option<(&str, SettingSource)> {
        if let Some(value) = self.sources.environment.get(name) {
            return Some((value.to_str()?, SettingSource::Env(name.into())));
        }
        let file = self.sources.dotenv.as_ref()?;
        let binding = file.binding(name)?;
        Some((&binding.value, file.origin(binding)))
    }

    /// Returns which files of workspaces the user trusts.
    pub fn workspace_trust(&self) -> &WorkspaceTrust {
        &self.workspace_trust
    }

    /// Returns what needed trust in the workspace when the settings were loaded.
    pub fn trust_report(&self) -> &TrustReport {
        &self.trust_report
    }

    /// Returns the environment variables that hold secrets, in their actual spelling.
    ///
    /// These are the secrets that bub has read and the variables whose names suggest a secret.
    /// Child processes must not get them.
    pub fn secret_env_names(&self) -> Vec<String> {
        self.secret_variables.lock().iter().cloned().collect()
    }

    /// Hides a variable from child processes, in every spelling present, because a child could read
    /// any of them.
    pub(crate) fn hide_from_children(&self, name: &str) {
        let variables = self
            .sources
            .environment
            .iter()
            .map(|(variable, _)| variable);
        let spelled = variables.filter(|variable| variable.eq_ignore_ascii_case(name));
        self.secret_variables
            .lock()
            .extend(spelled.map(str::to_owned));
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Omit the values, because some of them must not be shown.
        f.debug_struct("Settings")
            .field("home", &self.home)
            .field("config_file", &self.config_file)
            .finish_non_exhaustive()
    }
}
