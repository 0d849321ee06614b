//! The provider catalog: built-in providers, and providers added or changed in the config.

mod custom;
mod prices;
mod rows;
mod windows;

use bub_settings::{SettingSource, Settings, SettingsError};
use serde_json::{Map, Value};

pub use self::prices::Price;
pub use self::rows::{LoginMethod, PROVIDER_ROWS, ProviderRow};
use crate::base_url::BaseUrl;
use crate::{ModelId, Quirks, WireFormat, settings::PROVIDERS};

/// Example of a model identifier for error messages: the default model of the Python version.
pub(crate) const EXAMPLE_MODEL: &str = "openrouter:openrouter/free";

/// A service that serves models: a built-in row with the changes from the config applied.
#[derive(Clone, Debug)]
pub struct Provider {
    /// The name in `provider:model`.
    pub name: String,
    /// Alternative names.
    pub aliases: Vec<String>,
    /// Default base URL. The setting `api_base` and the provider's own variable override it.
    pub base_url: Option<BaseUrl>,
    /// Path appended to a configured base URL that has none.
    pub base_path: String,
    /// The provider's own environment variables for its key.
    pub key_variables: Vec<String>,
    /// The provider's own environment variable for its base URL; by default `<NAME>_API_BASE`.
    pub base_variable: String,
    /// The wire format.
    pub wire: WireFormat,
    /// The wire format at the default base URL, if it differs from `wire`; see [`wire_format_at`](Self::wire_format_at).
    pub native_wire: Option<WireFormat>,
    /// Deviations from the wire format.
    pub quirks: Quirks,
    /// Whether the provider runs on the user's machine.
    pub local: bool,
    /// Whether the provider requires a key.
    pub needs_key: bool,
    /// Header that carries the key, if it is not the wire format's usual header.
    pub key_header: Option<String>,
    /// Prefix that identifies the provider's keys, if they have one.
    pub key_prefix: Option<String>,
    /// The model to use if none is configured.
    pub default_model: Option<String>,
    /// Additional headers for every call.
    pub headers: Vec<(String, String)>,
    /// Login that replaces a key.
    pub login: Option<LoginMethod>,
    /// Config entry that adds or changes the provider; `None` for an unchanged built-in provider.
    pub origin: Option<SettingSource>,
    /// Context windows from the config: prefix of the model's name and number of tokens.
    windows: Vec<(String, u64)>,
    /// Prices from the config: prefix of the model's name and price.
    prices: Vec<(String, Price)>,
}

impl Provider {
    /// Returns the context window of a model in tokens, if it is known.
    ///
    /// The config overrides the built-in table. The table does not apply to local servers, because their context
    /// window depends on how they were started.
    pub fn context_window(&self, model: &str) -> Option<u64> {
        let matching = self
            .windows
            .iter()
            .filter(|(prefix, _)| model.starts_with(prefix));
        let configured = matching
            .max_by_key(|(prefix, _)| prefix.len())
            .map(|(_, window)| *window);
        configured.or_else(|| {
            if self.local {
                None
            } else {
                windows::built_in_window(model)
            }
        })
    }

    /// Returns the price of a model, if it is known.
    ///
    /// The config overrides the built-in table. Local models are free.
    pub fn price(&self, model: &str) -> Option<Price> {
        let matching = self
            .prices
            .iter()
            .filter(|(prefix, _)| model.starts_with(prefix));
        let configured = matching
            .max_by_key(|(prefix, _)| prefix.len())
            .map(|(_, price)| *price);
        let free = self.local.then_some(Price::FREE);
        configured
            .or(free)
            .or_else(|| prices::built_in_price(&ModelId::new(&self.name, model)))
    }

    /// Returns the wire format to use at a base URL: [`native_wire`](Self::native_wire) at the default base URL, otherwise
    /// [`wire`](Self::wire), which compatible servers of other vendors support.
    pub fn wire_format_at(&self, base_url: &BaseUrl) -> WireFormat {
        self.native_wire
            .filter(|_| self.base_url.as_ref() == Some(base_url))
            .unwrap_or(self.wire)
    }

    /// Returns the name and all aliases.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.name)
            .chain(&self.aliases)
            .map(String::as_str)
    }

    fn from_row(row: &ProviderRow) -> Self {
        let texts = |list: &[&str]| list.iter().map(|&text| text.to_owned()).collect();
        let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        Self {
            name: row.name.to_owned(),
            aliases: texts(row.aliases),
            base_url: BaseUrl::parse(row.base_url),
            base_path: row.base_path.to_owned(),
            key_variables: texts(row.key_variables),
            base_variable: text(row.base_variable)
                .unwrap_or_else(|| variable_name(row.name, "API_BASE")),
            wire: row.wire,
            native_wire: row.native_wire,
            quirks: merge_quirks(row, &Map::new()).unwrap_or_default(),
            local: row.local,
            needs_key: !row.local,
            key_header: text(row.key_header),
            key_prefix: text(row.key_prefix),
            default_model: text(row.default_model),
            headers: Vec::new(),
            login: row.login,
            origin: None,
            windows: Vec::new(),
            prices: Vec::new(),
        }
    }
}

/// All providers that can be named in `provider:model`.
#[derive(Clone, Debug)]
pub struct Catalog {
    providers: Vec<Provider>,
}

impl Catalog {
    /// Creates the catalog from the built-in providers and the setting `providers`.
    ///
    /// # Errors
    ///
    /// Fails if `providers` has an invalid entry. The error names the file, line and field.
    pub fn new(settings: &Settings) -> Result<Self, SettingsError> {
        let custom = settings.get(&PROVIDERS);
        let mut catalog = Self {
            providers: PROVIDER_ROWS.iter().map(Provider::from_row).collect(),
        };
        for (name, fields) in &custom {
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
                .find(|provider| provider.aliases.contains(&name))
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

    /// Returns the provider that owns a plain key if no model is configured.
    ///
    /// The owner is the provider whose key prefix matches the key. If no prefix matches, it is the first provider of the
    /// catalog, which serves the default model of the Python version.
    pub fn plain_key_owner(&self, plain_key: Option<&str>) -> Option<&Provider> {
        plain_key
            .and_then(|key| self.find_by_key_prefix(key))
            .or(self.providers.first())
    }

    fn find_by_key_prefix(&self, key: &str) -> Option<&Provider> {
        let has_prefix = |provider: &&Provider| {
            provider
                .key_prefix
                .as_ref()
                .is_some_and(|prefix| key.starts_with(prefix))
        };
        self.providers.iter().find(has_prefix)
    }
}

/// Returns the conventional name of a provider's environment variable.
fn variable_name(name: &str, suffix: &str) -> String {
    format!("{}_{suffix}", name.to_ascii_uppercase())
}

/// Converts the name of a provider to the form used for comparisons: lower case, with `_` instead of `-`.
fn normalize_name(name: &str) -> String {
    name.trim().to_ascii_lowercase().replace('-', "_")
}

/// Returns the quirks of a built-in row, with `overrides` applied.
fn merge_quirks(row: &ProviderRow, overrides: &Map<String, Value>) -> serde_json::Result<Quirks> {
    let mut merged: Map<String, Value> = serde_json::from_str(row.quirks).unwrap_or_default();
    merged.extend(overrides.clone());
    serde_json::from_value(Value::Object(merged))
}
