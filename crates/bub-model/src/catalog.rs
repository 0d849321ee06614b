//! The provider catalog: built-in providers, and providers added or changed in the config.
//!
//! The tables of providers, prices and context windows are JSON files in `catalog/`.

mod custom;
mod prices;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use bub_settings::{Secret, SettingSource, Settings, SettingsError};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

pub use self::prices::Price;
use crate::base_url::BaseUrl;
use crate::{ModelId, Quirks, WireFormat, settings::ModelSettings};

/// Example of a model identifier for error messages: the default model of the Python version.
pub(crate) const EXAMPLE_MODEL: &str = "openrouter:openrouter/free";

/// The built-in providers, as JSON with the serialized fields of [`Provider`].
///
/// If no model is configured, bub uses the default model of the first provider in this list that has a key. So the list
/// starts with the default provider of the Python version. The providers that most users have keys for come next.
/// Providers retire models within months, so prefer a default model whose name the provider keeps current. `github` has
/// no default model and is never chosen automatically, because users set `GITHUB_TOKEN` for other purposes.
const BUILT_IN_PROVIDERS: &str = include_str!("catalog/providers.json");

/// Prefixes of model names and their context windows in tokens, as their vendors publish them. Names are written with
/// `-` instead of `.`.
///
/// The table is small and matches prefixes of names, because vendors release models more often than bub is released. If
/// a value is too large, a call fails and is repeated with a smaller context. If a value is missing, bub cannot shrink
/// the context in advance.
static CONTEXT_WINDOWS: LazyLock<BTreeMap<&str, u64>> = LazyLock::new(|| {
    serde_json::from_str(include_str!("catalog/context_windows.json")).unwrap_or_default()
});

/// A service that serves models: built in, changed in the config, or added there.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "independent properties")]
pub struct Provider {
    /// The name in `provider:model`.
    pub name: String,
    /// Other names of the provider that are valid in `provider:model`.
    pub aliases: Vec<&'static str>,
    /// Default base URL; `None` if each customer has a separate one. The setting `api_base` and the provider's own
    /// variable override it.
    #[serde(deserialize_with = "deserialize_base_url")]
    pub base_url: Option<BaseUrl>,
    /// Path appended to a configured base URL that has no path.
    pub base_path: &'static str,
    /// The provider's own environment variables for its key. The first one that is set is used; error messages suggest
    /// the first one.
    pub key_variables: Vec<String>,
    /// Page on which users create a key, if it is known.
    pub key_url: Option<&'static str>,
    /// The provider's own environment variable for its base URL, if it is not `<NAME>_API_BASE`.
    base_variable: Option<String>,
    /// The wire format, unless `native_wire` applies.
    pub wire: WireFormat,
    /// The wire format at the default base URL, if it differs from `wire`; see
    /// [`wire_format_at`](Self::wire_format_at).
    pub native_wire: Option<WireFormat>,
    /// Whether a plugin answers the calls of the provider, so that it has no base URL.
    pub is_plugin: bool,
    /// Whether the provider runs on the user's machine.
    #[serde(skip)]
    pub local: bool,
    /// Whether the provider requires a key.
    #[serde(skip)]
    pub needs_key: bool,
    /// Header that carries the key, if it is not the wire format's usual header.
    pub key_header: Option<String>,
    /// Prefix that identifies the provider's keys, if they have one.
    pub key_prefix: Option<&'static str>,
    /// Model that bub uses if no model is configured; `None` if the provider is never chosen automatically.
    pub default_model: Option<String>,
    /// Additional headers for every call.
    #[serde(skip)]
    pub headers: Vec<(String, Secret)>,
    /// Whether the config replaces the provider's base URL. A login is then not used.
    #[serde(skip)]
    pub has_replaced_base_url: bool,
    /// Config entry that adds or changes the provider; `None` for an unchanged built-in provider.
    #[serde(skip)]
    pub origin: Option<SettingSource>,
    /// The key of a config entry, and the entry's source.
    #[serde(skip)]
    pub(crate) key: Option<(Secret, SettingSource)>,
    /// For a config entry with another provider's `type` and address: that provider's name, for its prices.
    #[serde(skip)]
    type_name: Option<String>,
    /// Deviations from the wire format: a map with fields of [`Quirks`]. They are parsed when they are needed.
    #[serde(borrow)]
    quirks: Option<&'static RawValue>,
    /// Fields of [`Quirks`] from the config. They override `quirks`.
    #[serde(skip)]
    custom_quirks: Map<String, Value>,
    /// Context windows from the config: prefix of the model's name and number of tokens.
    #[serde(skip)]
    windows: BTreeMap<String, u64>,
    /// Prices from the config: prefix of the model's name and price.
    #[serde(skip)]
    prices: BTreeMap<String, Price>,
}

impl Provider {
    /// Returns the context window of a model in tokens, if it is known.
    ///
    /// The config overrides the built-in table. The table does not apply to local servers, because their context
    /// window depends on how they were started.
    pub fn context_window(&self, model: &str) -> Option<u64> {
        let configured = longest_prefix(&self.windows, model);
        let built_in = || longest_prefix(&CONTEXT_WINDOWS, &table_name(model));
        configured.or_else(|| built_in().filter(|_| !self.local))
    }

    /// Returns the price of a model, if it is known.
    ///
    /// The config overrides the built-in table. Local models are free.
    pub fn price(&self, model: &str) -> Option<Price> {
        let configured = longest_prefix(&self.prices, model);
        let free = self.local.then_some(Price::FREE);
        configured.or(free).or_else(|| {
            let name = self.type_name.as_ref().unwrap_or(&self.name);
            prices::built_in_price(&ModelId::new(name, model))
        })
    }

    /// Returns the deviations from the wire format.
    pub fn quirks(&self) -> Quirks {
        let built_in = self.quirks.map_or("{}", RawValue::get);
        let mut quirks: Map<_, _> = serde_json::from_str(built_in).unwrap_or_default();
        quirks.extend(self.custom_quirks.clone());
        Quirks::deserialize(quirks).unwrap_or_default()
    }

    /// Returns the provider's own environment variable for its base URL.
    pub fn base_variable(&self) -> String {
        let conventional = || variable_name(&self.name, "API_BASE");
        self.base_variable.clone().unwrap_or_else(conventional)
    }

    /// Returns the wire format to use at a base URL: [`native_wire`](Self::native_wire) at the default base URL,
    /// otherwise [`wire`](Self::wire), which compatible servers of other vendors support.
    pub fn wire_format_at(&self, base_url: &BaseUrl) -> WireFormat {
        self.native_wire
            .filter(|_| self.base_url.as_ref() == Some(base_url))
            .unwrap_or(self.wire)
    }

    /// Returns the name and all aliases.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.name.as_str()).chain(self.aliases.iter().copied())
    }
}

/// All providers that can be named in `provider:model`.
#[derive(Clone, Debug)]
pub struct Catalog {
    providers: Vec<Provider>,
}

impl Catalog {
    /// Creates the catalog of the built-in providers.
    pub fn built_in() -> Self {
        let mut providers: Vec<Provider> =
            serde_json::from_str(BUILT_IN_PROVIDERS).unwrap_or_default();
        for provider in &mut providers {
            provider.local = provider.base_url.as_ref().is_some_and(BaseUrl::is_loopback);
            provider.needs_key = !provider.local && !provider.is_plugin;
        }
        Self { providers }
    }

    /// Creates the catalog from the built-in providers and the setting `providers`.
    ///
    /// # Errors
    ///
    /// Fails if `providers` has an invalid entry. The error names the file, line and field.
    pub fn new(settings: &Settings) -> Result<Self, SettingsError> {
        let mut catalog = Self::built_in();
        for (name, fields) in &settings.get(ModelSettings::PROVIDERS) {
            custom::apply_custom_provider(&mut catalog, settings, name, fields)?;
        }
        Ok(catalog)
    }

    /// Returns the provider with this name or alias. Case does not matter, and `-` equals `_`.
    pub fn get(&self, name: &str) -> Option<&Provider> {
        let name = normalize_name(name);
        let by_name = self.providers.iter().find(|provider| provider.name == name);
        by_name.or_else(|| {
            self.providers
                .iter()
                .find(|provider| provider.aliases.contains(&name.as_str()))
        })
    }

    /// Returns the price of a model, if it is known.
    pub fn price(&self, model: &ModelId) -> Option<Price> {
        self.get(model.provider())?.price(model.model())
    }

    /// Returns all providers, in the order in which [`Models::choose_model`](crate::Models::choose_model) checks them
    /// for a key.
    pub fn iter(&self) -> impl Iterator<Item = &Provider> {
        self.providers.iter()
    }

    /// Returns the provider name or alias that is closest to a mistyped name.
    pub fn closest_name(&self, name: &str) -> Option<&str> {
        bub_settings::closest_match(name, self.providers.iter().flat_map(Provider::names))
    }

    /// Returns the provider that a plain key belongs to if no model is configured. A plain key is set without the name
    /// of a provider.
    ///
    /// The key belongs to the provider whose key prefix matches the key. If no prefix matches, it belongs to the first
    /// provider of the catalog, which serves the default model of the Python version.
    pub fn plain_key_owner(&self, plain_key: Option<&str>) -> Option<&Provider> {
        let has_prefix = |provider: &&Provider| {
            let prefix = provider.key_prefix.zip(plain_key);
            prefix.is_some_and(|(prefix, key)| key.starts_with(prefix))
        };
        let by_prefix = self.providers.iter().find(has_prefix);
        by_prefix.or(self.providers.first())
    }
}

fn deserialize_base_url<'de, D>(deserializer: D) -> Result<Option<BaseUrl>, D::Error>
where
    D: Deserializer<'de>,
{
    <&str>::deserialize(deserializer).map(|url| Some(BaseUrl::unchecked(url)))
}

/// Returns the conventional name of a provider's environment variable, such as `LAB_API_KEY`.
fn variable_name(name: &str, suffix: &str) -> String {
    format!("{}_{suffix}", name.to_ascii_uppercase())
}

/// Converts the name of a provider to the form used for comparisons: lower case, with `_` instead of `-`.
fn normalize_name(name: &str) -> String {
    name.trim().to_ascii_lowercase().replace('-', "_")
}

/// Converts the name of a model to the form used in the built-in tables: lower case, without vendor, with `-` instead
/// of `.`.
///
/// Providers that forward calls to other vendors put the vendor before the name: `anthropic/claude-…`. Some providers
/// write `5.5`, others `5-5`.
fn table_name(model: &str) -> String {
    let name = model.rsplit('/').next().unwrap_or(model);
    name.to_ascii_lowercase().replace('.', "-")
}

/// Returns the value of the longest prefix of `model` in a table.
fn longest_prefix<P: AsRef<str>, T: Copy>(table: &BTreeMap<P, T>, model: &str) -> Option<T> {
    let matching = table
        .iter()
        .filter(|(prefix, _)| model.starts_with(prefix.as_ref()));
    matching
        .max_by_key(|(prefix, _)| prefix.as_ref().len())
        .map(|(_, value)| *value)
}
