//! The settings in force.

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

/// Every declared setting with its value and where it came from.
///
/// Made by [`Loader`](crate::Loader). Values do not change any more, so it can be shared.
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

/// A declaration and what the sources say about it, merged; `None` leaves the default.
pub(crate) struct SettingSlot {
    pub(crate) declared: RegisteredSetting,
    pub(crate) value: Option<Node>,
}

pub(crate) enum RegisteredSetting {
    Static(&'static dyn AnySetting),
    Dynamic(DynamicSetting),
}

impl SettingSlot {
    pub(crate) fn declared(&self) -> &dyn AnySetting {
        match &self.declared {
            RegisteredSetting::Static(declared) => *declared,
            RegisteredSetting::Dynamic(declared) => declared,
        }
    }

    pub(crate) fn setting(&self) -> &SettingSpec {
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

    /// The value of a setting.
    ///
    /// A key whose section was never registered has its default.
    pub fn get<T: SettingType>(&self, key: &SettingKey<T>) -> T {
        let setting = key.setting();
        let slot = self
            .slots
            .iter()
            .find(|slot| slot.setting().key() == setting.key());
        let value = match slot.and_then(|slot| slot.value.as_ref()) {
            Some(node) => Some(display::value(setting, node)),
            None => (setting.kind() == ValueKind::Path).then(|| self.default_of(key)),
        };
        value
            .and_then(T::from_value)
            .unwrap_or_else(|| key.default())
    }

    /// A default as data; in a path `~` is replaced.
    pub(crate) fn default_of(&self, declared: &dyn AnySetting) -> Value {
        let default = declared.default_value();
        match default.as_str() {
            Some(path) if declared.setting().kind() == ValueKind::Path => {
                validate::expand(path, self.sources.environment.user_home())
                    .map_or(default.clone(), Value::from)
            }
            _ => default,
        }
    }

    /// Adds a section, for a plugin that is loaded after the settings were.
    ///
    /// The first problem is the error; a section that is wrong in itself is not added, one with a
    /// wrong value is, and that value counts as not set.
    pub fn register(&mut self, section: Section) -> Result<(), SettingsError> {
        let mut problems = Vec::new();
        self.add(section, &mut problems);
        problems.into_iter().next().map_or(Ok(()), Err)
    }

    /// Whether a section could be registered, in the place of one of its name that was declared at run time.
    pub fn fits(&self, section: &Section) -> Result<(), SettingsError> {
        match self.declaration_problem(section, true) {
            Some(problem) => Err(SettingsError::Declaration {
                section: section.name.to_string(),
                problem,
            }),
            None => Ok(()),
        }
    }

    /// Where tapes, history and plugins live; absolute.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// The config file that was read, or the one to create.
    pub fn config_file(&self) -> &Path {
        &self.config_file
    }

    /// The environment the settings were read from.
    pub fn environment(&self) -> &Environment {
        &self.sources.environment
    }

    /// The redactor that knows all secrets of these settings.
    pub fn redactor(&self) -> &Redactor {
        &self.redactor
    }

    /// Reads a variable that is no setting as a secret, such as a provider's own `OPENAI_API_KEY`:
    /// from the environment, else from the workspace's `.env`. An empty one counts as not set.
    pub fn secret_variable(&self, name: &str) -> Result<Option<Secret>, SettingsError> {
        let text = match self.sources.environment.get(name) {
            Some(value) => {
                self.hide_from_children(name);
                let place = || SettingsError::NotText {
                    place: format!("environment variable {name}"),
                };
                Some(value.to_str().ok_or_else(place)?)
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

    /// Where the workspace's `.env` sets a variable that is no setting.
    pub fn dotenv_origin(&self, name: &str) -> Option<crate::SettingSource> {
        let file = self.sources.dotenv.as_ref()?;
        let found = file
            .bindings
            .iter()
            .rev()
            .find(|binding| binding.name.eq_ignore_ascii_case(name))?;
        Some(crate::SettingSource::DotEnv {
            file: file.file.clone(),
            line: found.line,
            name: found.name.clone().into(),
        })
    }

    /// The variables of the environment that hold secrets, spelled as they are there: those bub has read,
    /// and those whose names say so. Child processes must not get them.
    pub fn secret_env_names(&self) -> Vec<String> {
        let names = self
            .secret_variables
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        names.iter().cloned().collect()
    }

    /// Every spelling of the name that is present: the child could read any of them.
    pub(crate) fn hide_from_children(&self, name: &str) {
        let spelled = self
            .sources
            .environment
            .iter()
            .filter(|(known, _)| known.eq_ignore_ascii_case(name));
        let mut names = self
            .secret_variables
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        names.extend(spelled.map(|(known, _)| known.to_owned()));
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values are left out: not all of them may be shown.
        f.debug_struct("Settings")
            .field("home", &self.home)
            .field("config_file", &self.config_file)
            .finish_non_exhaustive()
    }
}
