//! The effective settings.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

use crate::node::Node;
use crate::secret::Secret;
use crate::sources::Sources;
use crate::spec::{AnySetting, DynamicSetting, Section, SettingKey, SettingSpec, ValueKind};
use crate::types::SettingType;
use crate::{Environment, Redactor, SettingsError, SettingsWarning, display, validate};

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
    secret_variables: Mutex<BTreeSet<String>>,
}

/// A declaration and the merged value of all sources; `None` means the default.
pub(crate) struct SettingSlot {
    pub(crate) declared: RegisteredSetting,
    pub(crate) value: Option<Node>,
}

pub(crate) enum RegisteredSetting {
    Static(&'static dyn AnySetting),
    Dynamic(Box<DynamicSetting>),
}

impl SettingSlot {
    pub(crate) fn declared(&self) -> &dyn AnySetting {
        match &self.declared {
            RegisteredSetting::Static(declared) => *declared,
            RegisteredSetting::Dynamic(declared) => &**declared,
        }
    }

    pub(crate) fn spec(&self) -> &SettingSpec {
        self.declared().setting()
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
            secret_variables: Mutex::default(),
        }
    }

    /// Returns the value of a setting.
    ///
    /// Returns the default if the section of the key is not registered.
    pub fn get<T: SettingType>(&self, key: &SettingKey<T>) -> T {
        let setting = key.setting();
        let slot = self
            .slots
            .iter()
            .find(|slot| slot.spec().key() == setting.key());
        let value = match slot.and_then(|slot| slot.value.as_ref()) {
            Some(node) => Some(display::to_value(setting, node)),
            None => (setting.kind() == ValueKind::Path).then(|| self.default_value(key)),
        };
        value
            .and_then(T::from_value)
            .unwrap_or_else(|| key.default())
    }

    /// Returns a default as data. In a path, a leading `~` is replaced.
    pub(crate) fn default_value(&self, declared: &dyn AnySetting) -> Value {
        let default = declared.default_value();
        match default.as_str() {
            Some(path) if declared.setting().kind() == ValueKind::Path => {
                validate::expand_home(path, self.sources.environment.user_home())
                    .map_or(default.clone(), Value::from)
            }
            _ => default,
        }
    }

    /// Adds a section, for a plugin that is loaded after the settings.
    ///
    /// Returns the first problem as the error. A section with an invalid declaration is not added.
    /// A section with an invalid value is added, and that value is treated as not set.
    pub fn register(&mut self, section: Section) -> Result<(), SettingsError> {
        let mut problems = Vec::new();
        self.add_section(section, &mut problems);
        problems.into_iter().next().map_or(Ok(()), Err)
    }

    /// Checks whether a section can be registered.
    ///
    /// A registered section with the same name is accepted if it was declared at run time, because
    /// the new section would replace it.
    pub fn check_registration(&self, section: &Section) -> Result<(), SettingsError> {
        match self.declaration_problem(section, true) {
            Some(problem) => Err(SettingsError::Declaration {
                section: section.name.to_string(),
                problem,
            }),
            None => Ok(()),
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

    /// Reads a variable that is not a setting as a secret, such as a provider's `OPENAI_API_KEY`.
    ///
    /// The environment comes first, then the workspace's `.env`. An empty value counts as not set.
    pub fn secret_variable(&self, name: &str) -> Result<Option<Secret>, SettingsError> {
        let text = match self.sources.environment.get(name) {
            Some(value) => {
                self.hide_from_children(name);
                let not_text = || SettingsError::NotText {
                    location: format!("environment variable {name}"),
                };
                Some(value.to_str().ok_or_else(not_text)?)
            }
            None => self.sources.dotenv.as_ref().and_then(|file| {
                let same =
                    |binding: &&crate::dotenv::Binding| binding.name.eq_ignore_ascii_case(name);
                file.bindings
                    .iter()
                    .rev()
                    .find(same)
                    .map(|binding| binding.value.as_str())
            }),
        };
        let secret = text
            .map(str::trim)
            .filter(|text| !text.is_empty())
            .map(Secret::from);
        if let Some(secret) = &secret {
            self.redactor.register(secret);
        }
        Ok(secret)
    }

    /// Returns where the workspace's `.env` sets a variable that is not a setting.
    pub fn dotenv_origin(&self, name: &str) -> Option<crate::SettingSource> {
        let file = self.sources.dotenv.as_ref()?;
        let binding = file
            .bindings
            .iter()
            .rev()
            .find(|binding| binding.name.eq_ignore_ascii_case(name))?;
        Some(crate::SettingSource::DotEnv {
            file: file.file.clone(),
            line: binding.line,
            name: binding.name.clone().into(),
        })
    }

    /// Returns the environment variables that hold secrets, in their actual spelling.
    ///
    /// These are the secrets that bub has read and the variables whose names suggest a secret.
    /// Child processes must not get them.
    pub fn secret_env_names(&self) -> Vec<String> {
        let names = self
            .secret_variables
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        names.iter().cloned().collect()
    }

    /// Hides a variable from child processes, in every spelling present, because a child could read
    /// any of them.
    pub(crate) fn hide_from_children(&self, name: &str) {
        let spelled = self
            .sources
            .environment
            .iter()
            .filter(|(variable, _)| variable.eq_ignore_ascii_case(name));
        let mut names = self
            .secret_variables
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        names.extend(spelled.map(|(variable, _)| variable.to_owned()));
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
