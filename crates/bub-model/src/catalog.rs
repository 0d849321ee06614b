//! The provider catalogue: builtin rows, and what the config adds to them or changes.

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

/// A model identifier for error messages: the default of the original.
pub(crate) const EXAMPLE_MODEL: &str = "openrouter:openrouter/free";

/// Who can be asked, and how: a row of the table with what the config says about it.
#[derive(Clone, Debug)]
pub struct Provider {
    /// The name in `provider:model`.
    pub name: String,
    /// Other names for it.
    pub aliases: Vec<String>,
    /// Where it is, unless `api_base` or its own variable says otherwise.
    pub base_url: Option<BaseUrl>,
    /// What is appended to a base URL that was given without a path.
    pub base_path: String,
    /// The provider's own variables for its key.
    pub key_variables: Vec<String>,
    /// The provider's own variable for its address; `<NAME>_API_BASE` unless it has another.
    pub base_variable: String,
    /// What it speaks.
    pub wire: WireFormat,
    /// What it speaks at its own address, if that differs; see [`wire_at`](Self::wire_at).
    pub home_wire: Option<WireFormat>,
    /// How it differs from what it speaks.
    pub quirks: Quirks,
    /// Whether it runs on the user's computer.
    pub local: bool,
    /// Whether it refuses to work without a key.
    pub needs_key: bool,
    /// The header for the key, where the wire's own is wrong.
    pub key_header: Option<String>,
    /// How its keys begin, where that tells them from others.
    pub key_prefix: Option<String>,
    /// The model used when none is configured.
    pub default_model: Option<String>,
    /// More headers for every call.
    pub headers: Vec<(String, String)>,
    /// How to get in without a key.
    pub login: Option<LoginMethod>,
    /// Where the config adds or changes it; `None` for a builtin one.
    pub origin: Option<SettingSource>,
    /// Context windows from the config: prefix of the model's name, tokens.
    windows: Vec<(String, u64)>,
    /// Prices from the config: prefix of the model's name, price.
    prices: Vec<(String, Price)>,
}

impl Provider {
    /// The context window of a model in tokens, if it is known. The config beats the builtin table,
    /// which says nothing about local servers: there the window is whatever the server was started with.
    pub fn context_window(&self, model: &str) -> Option<u64> {
        let fits = self
            .windows
            .iter()
            .filter(|(prefix, _)| model.starts_with(prefix));
        let configured = fits
            .max_by_key(|(prefix, _)| prefix.len())
            .map(|(_, window)| *window);
        configured.or_else(|| {
            if self.local {
                None
            } else {
                windows::known_window(model)
            }
        })
    }

    /// What a model costs, if it is known. The config beats the builtin table; what runs on the user's computer is free.
    pub fn price(&self, model: &str) -> Option<Price> {
        let fits = self
            .prices
            .iter()
            .filter(|(prefix, _)| model.starts_with(prefix));
        let configured = fits
            .max_by_key(|(prefix, _)| prefix.len())
            .map(|(_, price)| *price);
        let free = self.local.then_some(Price::FREE);
        configured
            .or(free)
            .or_else(|| prices::known_price(&ModelId::new(&self.name, model)))
    }

    /// What it speaks at an address: somebody else's server may only imitate it.
    pub fn wire_at(&self, base_url: &BaseUrl) -> WireFormat {
        self.home_wire
            .filter(|_| self.base_url.as_ref() == Some(base_url))
            .unwrap_or(self.wire)
    }

    /// Every name it is known by.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.name)
            .chain(&self.aliases)
            .map(String::as_str)
    }

    fn builtin(row: &ProviderRow) -> Self {
        let texts = |list: &[&str]| list.iter().map(|&text| text.to_owned()).collect();
        let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        Self {
            name: row.name.to_owned(),
            aliases: texts(row.aliases),
            base_url: BaseUrl::parse(row.base_url),
            base_path: row.base_path.to_owned(),
            key_variables: texts(row.key_variables),
            base_variable: text(row.base_variable)
                .unwrap_or_else(|| conventional(row.name, "API_BASE")),
            wire: row.wire,
            home_wire: row.home_wire,
            quirks: quirks(row, &Map::new()).unwrap_or_default(),
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
    /// The builtin providers with what the setting `providers` adds or changes.
    ///
    /// The error names file, line and field.
    pub fn new(settings: &Settings) -> Result<Self, SettingsError> {
        let custom = settings.get(&PROVIDERS);
        let mut catalogue = Self {
            providers: PROVIDER_ROWS.iter().map(Provider::builtin).collect(),
        };
        for (name, fields) in &custom {
            custom::apply(&mut catalogue, settings, name, fields)?;
        }
        Ok(catalogue)
    }

    /// The provider of this name or alias, whatever its case.
    pub fn get(&self, name: &str) -> Option<&Provider> {
        let name = normal(name);
        let by_name = self.providers.iter().find(|provider| provider.name == name);
        by_name.or_else(|| {
            self.providers
                .iter()
                .find(|provider| provider.aliases.contains(&name))
        })
    }

    /// What a model costs, if it is known.
    pub fn price(&self, model: &ModelId) -> Option<Price> {
        self.get(model.provider())?.price(model.model())
    }

    /// Every provider, in the order in which keys decide about the model.
    pub fn iter(&self) -> impl Iterator<Item = &Provider> {
        self.providers.iter()
    }

    /// The provider whose name looks most like a mistyped one.
    pub fn similar(&self, name: &str) -> Option<&str> {
        bub_settings::closest(name, self.providers.iter().flat_map(Provider::names))
    }

    /// The provider that a plain key belongs to when no model is configured: the one whose keys begin like it, else that
    /// of the original's default model.
    pub fn owner_of(&self, plain_key: Option<&str>) -> Option<&Provider> {
        plain_key
            .and_then(|key| self.by_key(key))
            .or(self.providers.first())
    }

    fn by_key(&self, key: &str) -> Option<&Provider> {
        let fits = |provider: &&Provider| {
            provider
                .key_prefix
                .as_ref()
                .is_some_and(|own| key.starts_with(own))
        };
        self.providers.iter().find(fits)
    }
}

/// A provider's variable, where it follows the convention.
fn conventional(name: &str, what: &str) -> String {
    format!("{}_{what}", name.to_ascii_uppercase())
}

/// How a name is compared: variables cannot say `azure-openai`.
fn normal(name: &str) -> String {
    name.trim().to_ascii_lowercase().replace('-', "_")
}

/// A row's quirks with others on top.
fn quirks(row: &ProviderRow, own: &Map<String, Value>) -> serde_json::Result<Quirks> {
    let mut merged: Map<String, Value> = serde_json::from_str(row.quirks).unwrap_or_default();
    merged.extend(own.clone());
    serde_json::from_value(Value::Object(merged))
}
