//! Finds the API key of each provider, so that bub sends a key only to its own provider.
//!
//! A provider uses the first of these that is set:
//!
//! 1. its entry of `api_key` (`BUB_<PROVIDER>_API_KEY`), 2. its entry of `api_key_command`,
//! 3. its own environment variable, 4. a plain `api_key`, 5. a plain `api_key_command`, 6. its login.
//!
//! A plain value is a setting without the name of a provider. It belongs to exactly one provider:
//!
//! 1. the provider of the `model` that is set in the source of the plain value, such as the config file,
//! 2. otherwise the provider of the effective model,
//! 3. without a model, the provider whose keys have the prefix of the plain key,
//! 4. otherwise the provider of the Python version's default model.
//!
//! So bub never sends a plain key to a fallback model of another vendor. It also never sends the key to a model that a
//! source with higher precedence sets temporarily. If the `.env` of a workspace sets the model, plain values from other sources are
//! ignored: a cloned repository must not decide which provider gets the user's key.

mod command;
mod shell_words;

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bub_settings::{PerProvider, Secret, SettingSource, Settings, SettingsError};
use tokio::sync::Mutex;

use crate::base_url::BaseUrl;
use crate::{
    AccessError, Catalog, ModelId, Provider,
    settings::{API_BASE, API_KEY, API_KEY_COMMAND, MODEL},
};

/// Source of a key, for display. It does not contain the key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeySource {
    /// The setting `api_key`.
    Setting(SettingSource),
    /// The command of the setting `api_key_command`.
    Command(SettingSource),
    /// The provider's own variable in the environment.
    Variable(String),
    /// The provider's own variable in the workspace's `.env`.
    DotEnv(String),
    /// A login stored in this file.
    Login(PathBuf),
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setting(origin) => write!(f, "{origin}"),
            Self::Command(origin) => write!(f, "the command in {origin}"),
            Self::Variable(name) => write!(f, "environment variable {name}"),
            Self::DotEnv(name) => write!(f, "{name} in the workspace's .env"),
            Self::Login(file) => write!(f, "the login in {}", file.display()),
        }
    }
}

/// The key of a provider, or the command that prints the key.
#[derive(Clone, Debug)]
pub(crate) enum KeyLookup {
    Key(Secret, KeySource),
    /// A command that has not run yet.
    Command(String, KeySource),
}

impl KeyLookup {
    pub(crate) fn source(&self) -> &KeySource {
        match self {
            Self::Key(_, source) | Self::Command(_, source) => source,
        }
    }
}

/// Settings whose plain value belongs to one provider without naming it.
const UNSCOPED_SETTINGS: [&str; 4] = ["api_key", "api_key_command", "api_base", "client_args"];

/// The effective keys and base URLs of all providers.
pub(crate) struct ApiKeys {
    settings: Arc<Settings>,
    key: PerProvider<Secret>,
    command: PerProvider<String>,
    base: PerProvider<String>,
    /// The owners of plain values, in the order of [`UNSCOPED_SETTINGS`].
    owners: [Option<String>; 4],
    /// Keys printed by commands, by provider. The lock is held while a command runs, so that it runs only once.
    command_keys: Mutex<HashMap<String, Secret>>,
}

impl ApiKeys {
    pub(crate) fn new(settings: Arc<Settings>, catalog: &Catalog) -> Self {
        let key = settings.get(&API_KEY);
        let owners = unscoped_owners(&settings, catalog, key.shared_value());
        let (command, base) = (settings.get(&API_KEY_COMMAND), settings.get(&API_BASE));
        Self {
            settings,
            key,
            command,
            base,
            owners,
            command_keys: Mutex::default(),
        }
    }

    /// Returns whether the plain value of a setting belongs to `provider`.
    pub(crate) fn is_unscoped_owner(&self, provider: &Provider, setting: &str) -> bool {
        self.unscoped_owner(setting) == Some(&provider.name)
    }

    /// Returns the provider that owns the plain value of a setting. The provider may not exist.
    pub(crate) fn unscoped_owner(&self, setting: &str) -> Option<&str> {
        let mut owners = UNSCOPED_SETTINGS.iter().zip(&self.owners);
        owners
            .find(|(name, _)| **name == setting)
            .and_then(|(_, owner)| owner.as_deref())
    }

    /// Returns the key of a provider, or the command that prints the key. Does not run the command.
    pub(crate) fn find_key(&self, provider: &Provider) -> Result<Option<KeyLookup>, SettingsError> {
        Ok(self
            .find_scoped_key(provider)?
            .or_else(|| self.unscoped_key(provider)))
    }

    /// Returns the key of a provider, or the command that prints the key. Ignores plain values.
    pub(crate) fn find_scoped_key(
        &self,
        provider: &Provider,
    ) -> Result<Option<KeyLookup>, SettingsError> {
        let own_key =
            scoped_value(&self.key, provider).map(|(name, key)| self.configured_key(name, key));
        let own_command = || {
            scoped_value(&self.command, provider).map(|(name, line)| self.command_key(name, line))
        };
        match own_key.or_else(own_command) {
            Some(lookup) => Ok(Some(lookup)),
            None => self.variable_key(provider),
        }
    }

    /// Returns the plain key or the plain command, if it belongs to the provider.
    pub(crate) fn unscoped_key(&self, provider: &Provider) -> Option<KeyLookup> {
        let key = self
            .key
            .shared_value()
            .filter(|_| self.is_unscoped_owner(provider, "api_key"));
        let command = || {
            self.command
                .shared_value()
                .filter(|_| self.is_unscoped_owner(provider, "api_key_command"))
        };
        let from_command = || command().map(|line| self.command_key("*", line));
        key.map(|key| self.configured_key("*", key))
            .or_else(from_command)
    }

    /// Returns the key of a lookup. Runs a command at most once per provider, until its key is
    /// [forgotten](Self::forget_key).
    pub(crate) async fn resolve_key(
        &self,
        provider: &Provider,
        lookup: KeyLookup,
    ) -> Result<Secret, AccessError> {
        let (key, source) = match lookup {
            KeyLookup::Key(key, source) => (key, source),
            KeyLookup::Command(line, source) => {
                (self.run_key_command(provider, &line).await?, source)
            }
        };
        check_header_value(provider, &key, &source)?;
        Ok(key)
    }

    /// Checks the key or the command of a lookup. Does not run the command.
    pub(crate) fn check_key(
        &self,
        provider: &Provider,
        lookup: &KeyLookup,
    ) -> Result<(), AccessError> {
        let problem = |problem| AccessError::KeyCommandFailed {
            provider: provider.name.clone(),
            problem,
        };
        match lookup {
            KeyLookup::Key(key, source) => check_header_value(provider, key, source),
            KeyLookup::Command(line, _) => {
                command::check_key_command(&self.settings, line).map_err(problem)
            }
        }
    }

    /// Returns a message for each base URL in the workspace's `.env` that is ignored.
    pub(crate) fn ignored_base_url_warnings(&self, catalog: &Catalog) -> Vec<String> {
        let ignored = catalog.iter().filter_map(|provider| {
            let (name, variable) = (&provider.name, &provider.base_variable);
            let origin = self.settings.dotenv_origin(variable)?;
            let config = self.settings.config_file().display();
            self.settings
                .environment()
                .get(variable)
                .is_none()
                .then(|| {
                    format!(
                        "{origin}: ignored, because a workspace must not decide where keys are sent; \
                     set it in the environment, or set `api_base.{name}` in {config}"
                    )
                })
        });
        ignored.collect()
    }

    /// Forgets the key that the command of a provider printed, because the provider rejected the key. Returns whether a
    /// key was stored.
    pub(crate) async fn forget_key(&self, provider: &Provider) -> bool {
        self.command_keys
            .lock()
            .await
            .remove(&provider.name)
            .is_some()
    }

    /// Returns the configured base URL of a provider, or its default.
    pub(crate) fn base_url(&self, provider: &Provider) -> Result<BaseUrl, AccessError> {
        match self.configured_base_url(provider)? {
            Some(base) => Ok(base),
            None => provider
                .base_url
                .clone()
                .ok_or_else(|| self.missing_base_error(provider)),
        }
    }

    /// Returns the configured base URL of a provider, if one is set.
    ///
    /// The provider's own variable is read from the environment only: the `.env` of a cloned repository must not
    /// decide where keys are sent.
    pub(crate) fn configured_base_url(
        &self,
        provider: &Provider,
    ) -> Result<Option<BaseUrl>, AccessError> {
        let set = scoped_value(&self.base, provider).or_else(|| {
            self.base
                .shared_value()
                .filter(|_| self.is_unscoped_owner(provider, "api_base"))
                .map(|base| ("*", base))
        });
        let invalid_base_error = |origin: String| AccessError::InvalidBaseUrl {
            provider: provider.name.clone(),
            origin,
        };
        if let Some((name, text)) = set {
            let base = BaseUrl::parse(text).ok_or_else(|| {
                invalid_base_error(self.setting_source("api_base", name).to_string())
            })?;
            return Ok(Some(base.with_default_path(&provider.base_path)));
        }
        let environment = self.settings.environment();
        let name = &provider.base_variable;
        let text = environment
            .get(name)
            .and_then(|text| text.to_str())
            .filter(|text| !text.trim().is_empty());
        let Some(text) = text else { return Ok(None) };
        let base = match &provider.base_url {
            Some(default) if provider.local => BaseUrl::parse_host(text, default),
            _ => BaseUrl::parse(text),
        };
        let base =
            base.ok_or_else(|| invalid_base_error(format!("environment variable {name}")))?;
        Ok(Some(base.with_default_path(&provider.base_path)))
    }

    fn missing_base_error(&self, provider: &Provider) -> AccessError {
        AccessError::MissingBaseUrl {
            provider: provider.name.clone(),
            variable: provider.base_variable.clone(),
            config_file: self.settings.config_file().to_owned(),
        }
    }

    fn configured_key(&self, name: &str, key: &Secret) -> KeyLookup {
        KeyLookup::Key(
            key.clone(),
            KeySource::Setting(self.setting_source("api_key", name)),
        )
    }

    fn command_key(&self, name: &str, line: &str) -> KeyLookup {
        KeyLookup::Command(
            line.to_owned(),
            KeySource::Command(self.setting_source("api_key_command", name)),
        )
    }

    fn variable_key(&self, provider: &Provider) -> Result<Option<KeyLookup>, SettingsError> {
        for name in &provider.key_variables {
            let Some(key) = self.settings.secret_variable(name)? else {
                continue;
            };
            let in_environment = self.settings.environment().get(name).is_some();
            let source = if in_environment {
                KeySource::Variable
            } else {
                KeySource::DotEnv
            };
            return Ok(Some(KeyLookup::Key(key, source(name.clone()))));
        }
        Ok(None)
    }

    fn setting_source(&self, setting: &str, name: &str) -> SettingSource {
        let scoped = self.settings.origin(&format!("{setting}.{name}"));
        scoped
            .or_else(|| self.settings.origin(setting))
            .unwrap_or(SettingSource::Default)
    }

    async fn run_key_command(
        &self,
        provider: &Provider,
        line: &str,
    ) -> Result<Secret, AccessError> {
        let mut command_keys = self.command_keys.lock().await;
        if let Some(key) = command_keys.get(&provider.name) {
            return Ok(key.clone());
        }
        let problem = |problem| AccessError::KeyCommandFailed {
            provider: provider.name.clone(),
            problem,
        };
        let key = command::run_key_command(&self.settings, line)
            .await
            .map_err(problem)?;
        self.settings.redactor().register(&key);
        command_keys.insert(provider.name.clone(), key.clone());
        Ok(key)
    }

    /// Returns each provider name that `api_key`, `api_key_command` or `api_base` has an entry for, with the setting.
    pub(crate) fn scoped_names(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let keys = self.key.providers().map(|name| ("api_key", name));
        let commands = self
            .command
            .providers()
            .map(|name| ("api_key_command", name));
        keys.chain(commands)
            .chain(self.base.providers().map(|name| ("api_base", name)))
    }

    /// Returns the path of the config file.
    pub(crate) fn config_file(&self) -> &Path {
        self.settings.config_file()
    }
}

/// Returns the value of a setting for this provider, with the name or alias of the provider that the setting uses.
fn scoped_value<'a, 'p, T>(
    values: &'a PerProvider<T>,
    provider: &'p Provider,
) -> Option<(&'p str, &'a T)> {
    provider
        .names()
        .find_map(|name| Some((name, values.specific_value(name)?)))
}

fn check_header_value(
    provider: &Provider,
    key: &Secret,
    source: &KeySource,
) -> Result<(), AccessError> {
    let key = key.expose();
    if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        let (provider, source_text) = (provider.name.clone(), source.to_string());
        return Err(AccessError::InvalidKey {
            provider,
            source_text,
        });
    }
    Ok(())
}

/// Returns the providers that plain values belong to, in the order of [`UNSCOPED_SETTINGS`].
fn unscoped_owners(
    settings: &Settings,
    catalog: &Catalog,
    key: Option<&Secret>,
) -> [Option<String>; 4] {
    let is_from_workspace =
        |path: &str| matches!(settings.origin(path), Some(SettingSource::DotEnv { .. }));
    if is_from_workspace("model")
        && !is_from_workspace("api_key.*")
        && !is_from_workspace("api_key")
    {
        if key.is_some() {
            let reason = "the workspace's .env sets the model, and it must not decide which provider gets the key";
            tracing::warn!(setting = "api_key", reason, "model.key_ignored");
        }
        return Default::default();
    }
    UNSCOPED_SETTINGS.map(|setting| {
        let source = settings
            .origin(&format!("{setting}.*"))
            .or_else(|| settings.origin(setting));
        let model_of_source = source.and_then(|source| settings.text_from_source(&MODEL, &source));
        let Some(model) = model_of_source.or_else(|| settings.get(&MODEL)) else {
            return catalog
                .plain_key_owner(key.map(Secret::expose))
                .map(|provider| provider.name.clone());
        };
        let model = model.parse::<ModelId>().ok()?;
        let canonical_name = catalog
            .get(model.provider())
            .map(|provider| provider.name.clone());
        Some(canonical_name.unwrap_or_else(|| model.provider().to_owned()))
    })
}
