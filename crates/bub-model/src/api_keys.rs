//! Finds the API key of each provider, so that bub sends a key only to its own provider.
//!
//! A provider uses the first of these that is set:
//!
//! 1. the `api_key` of its entry in the setting `providers`,
//! 2. its entry in the setting `api_key` (`BUB_<PROVIDER>_API_KEY`),
//! 3. its entry in the setting `api_key_command`,
//! 4. its own environment variable,
//! 5. a plain `api_key`,
//! 6. a plain `api_key_command`,
//! 7. its login.
//!
//! A plain value is the value of a setting that is set without the name of a provider. It belongs to exactly one
//! provider:
//!
//! 1. the provider of the `model` that is set in the source of the plain value, such as the config file,
//! 2. otherwise the provider of the effective model,
//! 3. without a model, the provider whose key prefix matches the plain key,
//! 4. otherwise the provider of the Python version's default model.
//!
//! So bub never sends a plain key to a fallback model of another provider. If the config file sets a model and a plain
//! key, and a flag sets another model, the key still belongs to the provider of the model in the config file. If the
//! `.env` of a workspace sets the model but not the plain key, all plain values are ignored: a cloned repository must
//! not decide which provider gets the user's key.

mod command;

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use bub_settings::{PerProvider, Secret, SettingSource, Settings, SettingsError};
use serde::Serialize;
use tokio::sync::Mutex;

use crate::base_url::BaseUrl;
use crate::{AccessError, Catalog, ModelId, Provider, settings::ModelSettings};

/// Where the key of a provider comes from, for display. The key itself is not included.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
#[non_exhaustive]
pub enum KeySource {
    /// The setting `api_key`, with the source of its value.
    Setting(SettingSource),
    /// The command of the setting `api_key_command`, with the source of the setting.
    Command(SettingSource),
    /// The provider's own environment variable, by name.
    Variable(String),
    /// The provider's own variable in the workspace's `.env`, by name.
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
            Self::DotEnv(name) => write!(f, "{name} in .env"),
            Self::Login(file) => write!(f, "the login in {}", file.display()),
        }
    }
}

impl From<KeySource> for String {
    fn from(source: KeySource) -> Self {
        source.to_string()
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

/// A setting with a value per provider, and a plain value that belongs to one provider.
struct ProviderSetting<T> {
    name: &'static str,
    values: PerProvider<T>,
    /// The provider that the plain value belongs to; `None` if the plain value is ignored.
    owner: Option<String>,
}

impl<T> ProviderSetting<T> {
    /// Returns the value for this provider, and the provider's name or alias under which the value is set.
    fn scoped<'a>(&'a self, provider: &'a Provider) -> Option<(&'a str, &'a T)> {
        provider
            .names()
            .find_map(|name| Some((name, self.values.specific_value(name)?)))
    }

    /// Returns the plain value, if it belongs to this provider, and the name `*`.
    fn plain(&self, provider: &Provider) -> Option<(&str, &T)> {
        let value = self.values.shared_value()?;
        (self.owner.as_ref() == Some(&provider.name)).then_some(("*", value))
    }

    /// Returns the name of the setting and the name of each provider that has its own value.
    fn providers(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.values.providers().map(|name| (self.name, name))
    }
}

/// The effective keys and base URLs of all providers.
pub(crate) struct ApiKeys {
    settings: Arc<Settings>,
    key: ProviderSetting<Secret>,
    command: ProviderSetting<String>,
    base: ProviderSetting<String>,
    /// The provider that gets the headers in `client_args`; `None` if they are ignored.
    client_args_owner: Option<String>,
    /// Keys printed by commands, by provider. The lock is held while a command runs, so that it runs only once.
    command_keys: Mutex<HashMap<String, Secret>>,
}

impl ApiKeys {
    pub(crate) fn new(settings: Arc<Settings>, catalog: &Catalog) -> Self {
        let key = settings.get(ModelSettings::API_KEY);
        let owner = |setting| plain_owner(&settings, catalog, &key, setting);
        Self {
            command: ProviderSetting {
                name: "api_key_command",
                values: settings.get(ModelSettings::API_KEY_COMMAND),
                owner: owner("api_key_command"),
            },
            base: ProviderSetting {
                name: "api_base",
                values: settings.get(ModelSettings::API_BASE),
                owner: owner("api_base"),
            },
            client_args_owner: owner("client_args"),
            key: ProviderSetting {
                name: "api_key",
                owner: owner("api_key"),
                values: key,
            },
            settings,
            command_keys: Mutex::default(),
        }
    }

    /// Returns whether `provider` gets the headers in `client_args`.
    pub(crate) fn owns_client_args(&self, provider: &Provider) -> bool {
        self.client_args_owner.as_ref() == Some(&provider.name)
    }

    /// Returns the name of the provider that the plain key belongs to, or `None` if the key is ignored. A plain key is
    /// set without the name of a provider. The catalog may not have the returned provider.
    pub(crate) fn plain_key_owner(&self) -> Option<&str> {
        self.key.owner.as_deref()
    }

    /// Returns the key of a provider, or the command that prints the key. Does not run the command.
    pub(crate) fn find_key(&self, provider: &Provider) -> Result<Option<KeyLookup>, SettingsError> {
        Ok(self
            .find_scoped_key(provider)?
            .or_else(|| self.plain_key(provider)))
    }

    /// Returns the key of a provider, or the command that prints the key. Ignores values that are set without the name
    /// of a provider.
    pub(crate) fn find_scoped_key(
        &self,
        provider: &Provider,
    ) -> Result<Option<KeyLookup>, SettingsError> {
        if let Some((key, source)) = &provider.key {
            let source = KeySource::Setting(source.clone());
            return Ok(Some(KeyLookup::Key(key.clone(), source)));
        }
        match self.lookup(self.key.scoped(provider), self.command.scoped(provider)) {
            Some(lookup) => Ok(Some(lookup)),
            None => self.variable_key(provider),
        }
    }

    /// Returns the key or command that is set without the name of a provider, if it belongs to `provider`.
    pub(crate) fn plain_key(&self, provider: &Provider) -> Option<KeyLookup> {
        self.lookup(self.key.plain(provider), self.command.plain(provider))
    }

    fn lookup(
        &self,
        key: Option<(&str, &Secret)>,
        command: Option<(&str, &String)>,
    ) -> Option<KeyLookup> {
        if let Some((name, key)) = key {
            let source = KeySource::Setting(self.setting_source(self.key.name, name));
            return Some(KeyLookup::Key(key.clone(), source));
        }
        let (name, line) = command?;
        let source = KeySource::Command(self.setting_source(self.command.name, name));
        Some(KeyLookup::Command(line.clone(), source))
    }

    /// Returns the key of a lookup. If the lookup is a command, runs it and keeps the printed key until
    /// [`forget_key`](Self::forget_key), so that a command runs only once per provider.
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
        match lookup {
            KeyLookup::Key(key, source) => check_header_value(provider, key, source),
            KeyLookup::Command(line, _) => command::check_key_command(&self.settings, line)
                .map_err(|problem| command_error(provider, problem)),
        }
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
        let base = self.configured_base_url(provider)?;
        base.or_else(|| provider.base_url.clone())
            .ok_or_else(|| AccessError::MissingBaseUrl {
                provider: provider.name.clone(),
                variable: provider.base_variable(),
                config_file: self.settings.config_file().to_owned(),
            })
    }

    /// Returns the configured base URL of a provider, if one is set.
    pub(crate) fn configured_base_url(
        &self,
        provider: &Provider,
    ) -> Result<Option<BaseUrl>, AccessError> {
        let set = self.base.scoped(provider);
        let variable = provider.base_variable();
        let (base, origin) = if let Some((name, text)) = set.or_else(|| self.base.plain(provider)) {
            let origin = self.setting_source(self.base.name, name).to_string();
            (BaseUrl::parse(text), origin)
        } else {
            let set = self.settings.variable(&variable);
            let Some((text, origin)) = set.filter(|(text, _)| !text.trim().is_empty()) else {
                return Ok(None);
            };
            let base = match &provider.base_url {
                Some(default) if provider.local => BaseUrl::parse_host(text, default),
                _ => BaseUrl::parse(text),
            };
            (base, origin.to_string())
        };
        match base {
            Some(base) => Ok(Some(base.with_default_path(provider.base_path))),
            None => Err(AccessError::InvalidBaseUrl {
                provider: provider.name.clone(),
                origin,
            }),
        }
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
        let key = command::run_key_command(&self.settings, line)
            .await
            .map_err(|problem| command_error(provider, problem))?;
        self.settings.redactor().register(&key);
        command_keys.insert(provider.name.clone(), key.clone());
        Ok(key)
    }

    /// Returns the entries of the settings `api_key`, `api_key_command` and `api_base`, as pairs of setting and
    /// provider name.
    pub(crate) fn scoped_names(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let (keys, commands) = (self.key.providers(), self.command.providers());
        keys.chain(commands).chain(self.base.providers())
    }
}

fn command_error(provider: &Provider, problem: String) -> AccessError {
    AccessError::KeyCommandFailed {
        provider: provider.name.clone(),
        problem,
    }
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

/// Returns the provider that the plain value of a setting belongs to. A plain value is set without the name of a
/// provider.
fn plain_owner(
    settings: &Settings,
    catalog: &Catalog,
    key: &PerProvider<Secret>,
    setting: &str,
) -> Option<String> {
    let source = settings
        .origin(&format!("{setting}.*"))
        .or_else(|| settings.origin(setting));
    let model_of_source =
        source.and_then(|source| settings.text_from_source(ModelSettings::MODEL, &source));
    let Some(model) = model_of_source.or_else(|| settings.get(ModelSettings::MODEL)) else {
        let owner = catalog.plain_key_owner(key.shared_value().map(Secret::expose));
        return owner.map(|provider| provider.name.clone());
    };
    let model = model.parse::<ModelId>().ok()?;
    let name = catalog.get(model.provider()).map(|known| &*known.name);
    Some(name.unwrap_or(model.provider()).to_owned())
}
