//! The setting `providers`: providers added or changed without code.
//!
//! ```yaml
//! providers:
//!   lab:                                # a new provider: only `base_url` is required
//!     base_url: https://llm.lab.example/v1
//!     key_variable: LAB_KEY
//!     context_window: {small: 32000, large: 128000}
//!     prices: {small: {input: 0.5, output: 2}}    # US dollars per million tokens
//!   work: {type: openai, api_key: sk-…}   # as in the Python version: another address or key of a known provider
//! ```

use std::collections::BTreeMap;

use bub_settings::{Secret, SettingSource, Settings, SettingsError};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Catalog, Price, Provider, normalize_name, variable_name};
use crate::base_url::{self, BaseUrl};
use crate::{Quirks, WireFormat};

/// The fields of a provider in the setting `providers`.
const PROVIDER_FIELDS: &str = "type, base_url, api_base, api_key, wire, key_variable, base_variable, key_header, needs_key, default_model, \
                               context_window, prices, headers, quirks";

/// Types that the Python version knows and this version does not, because they use other wire formats or other ways to
/// sign in.
const OTHER_TYPES: [&str; 7] = [
    "bedrock",
    "sagemaker",
    "typesafe",
    "vertexai",
    "vertexaianthropic",
    "voyage",
    "watsonx",
];

/// Applies one entry of the setting `providers` to the catalog. An entry that the Python version accepts and that cannot
/// be used here is omitted with a warning, so that it does not prevent other models from being used.
pub(super) fn apply_custom_provider(
    catalog: &mut Catalog,
    settings: &Settings,
    name: &str,
    value: &Value,
) -> Result<(), SettingsError> {
    let entry = ConfigEntry {
        settings,
        path: format!("providers.{name}"),
        value,
    };
    let normalized = normalize_name(name);
    let fields = value
        .as_object()
        .ok_or_else(|| entry.invalid(type_name(value), "a map with a `base_url`"))?;
    let kind = fields.get("type").and_then(Value::as_str);
    let is_valid = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    // The Python version accepts any name.
    let is_valid = kind.is_some() || normalized.bytes().all(is_valid);
    if normalized.is_empty() || !is_valid {
        return Err(entry.invalid("an invalid name", "letters, digits, `-` and `_`"));
    }
    let omit = |hint: &str| {
        tracing::warn!(setting = entry.path, hint, "model.provider_omitted");
        Ok(())
    };
    if let Some(kind) = kind.filter(|kind| OTHER_TYPES.contains(kind)) {
        return omit(&format!("this version does not support the type `{kind}`"));
    }
    let mut existing = catalog.providers.iter();
    let existing = existing.position(|provider| provider.name == normalized);
    let mut provider = match (fields.get("type"), existing) {
        (Some(kind), _) => entry
            .field("type", kind)
            .new_of_type(catalog, &normalized)?,
        (None, Some(index)) => catalog.providers.remove(index),
        (None, None) => Provider {
            needs_key: true,
            key_variables: vec![variable_name(&normalized, "API_KEY")],
            name: normalized.clone(),
            ..Provider::default()
        },
    };
    catalog
        .providers
        .retain(|provider| provider.name != normalized);
    for (field, value) in fields {
        let field_entry = entry.field(field, value);
        // The Python version ignores other fields of its entries, which all have a `type`.
        if fields.contains_key("type") && !is_known_field(field) {
            let hint = format!("known fields: {PROVIDER_FIELDS}");
            tracing::warn!(setting = field_entry.path, hint, "model.setting_ignored");
            continue;
        }
        field_entry.apply(field, &mut provider)?;
    }
    // Applied last, so that an explicit value overrides the value derived from `base_url`, whatever the order of the
    // fields.
    if let Some(value) = fields.get("needs_key").filter(|value| !value.is_null()) {
        provider.needs_key = value
            .as_bool()
            .ok_or_else(|| entry.field("needs_key", value).expected("true or false"))?;
    }
    if existing.is_none() && provider.base_url.is_none() && !fields.contains_key("base_variable") {
        if kind.is_some() {
            return omit("the type needs an `api_base`");
        }
        return Err(entry.invalid(
            "a new provider without `base_url`",
            base_url::EXPECTED_FORMAT,
        ));
    }
    provider.origin = Some(entry.source());
    // A configured name takes precedence over the alias of another provider.
    for other in &mut catalog.providers {
        other.aliases.retain(|alias| *alias != normalized);
    }
    let index = existing.unwrap_or(catalog.providers.len());
    catalog.providers.insert(index, provider);
    Ok(())
}

fn is_known_field(field: &str) -> bool {
    PROVIDER_FIELDS.split(", ").any(|known| known == field)
}

/// A value in the setting `providers`, with its path for error messages.
struct ConfigEntry<'a> {
    settings: &'a Settings,
    path: String,
    value: &'a Value,
}

impl<'a> ConfigEntry<'a> {
    fn field(&self, name: &str, value: &'a Value) -> Self {
        Self {
            settings: self.settings,
            path: format!("{}.{name}", self.path),
            value,
        }
    }

    /// Creates a provider of the type that this entry names: another address or key of a known provider.
    fn new_of_type(&self, catalog: &Catalog, name: &str) -> Result<Provider, SettingsError> {
        let kind = self.text()?;
        let known = catalog.get(kind).ok_or_else(|| {
            let suggestion = catalog.closest_name(kind);
            let suggestion = suggestion.map(|known| format!(" (did you mean `{known}`?)"));
            let found = format!("`{kind}`{}", suggestion.unwrap_or_default());
            self.invalid(&found, "a provider; see `bub models`")
        })?;
        if known.name == name {
            return Ok(known.clone());
        }
        Ok(Provider {
            name: name.to_owned(),
            type_name: Some(known.name.clone()),
            aliases: Vec::new(),
            key_variables: vec![variable_name(name, "API_KEY")],
            base_variable: None,
            default_model: None,
            ..known.clone()
        })
    }

    /// Applies a field of a provider other than `needs_key`.
    fn apply(&self, field: &str, provider: &mut Provider) -> Result<(), SettingsError> {
        if !is_known_field(field) {
            return Err(self.unknown(field, PROVIDER_FIELDS));
        }
        match field {
            _ if self.value.is_null() => {}
            // The Python version accepts an empty value and uses the default.
            "api_base" | "api_key" if self.value.as_str().is_some_and(str::is_empty) => {}
            "base_url" | "api_base" => {
                let url = BaseUrl::parse(self.text()?)
                    .ok_or_else(|| self.expected(base_url::EXPECTED_FORMAT))?;
                provider.local = url.is_loopback();
                provider.needs_key &= !provider.local;
                // A login and `native_wire` are valid only for the default base URL.
                provider.has_replaced_base_url = provider.base_url.is_some();
                provider.native_wire = None;
                provider.type_name = None;
                provider.base_url = Some(url.with_default_path(provider.base_path));
            }
            "wire" => {
                let names = WireFormat::ALL.map(WireFormat::name).join(", ");
                provider.native_wire = None;
                provider.wire = WireFormat::from_name(self.text()?)
                    .ok_or_else(|| self.expected(&format!("one of {names}")))?;
            }
            "api_key" => provider.key = Some((Secret::from(self.text()?), self.source())),
            "key_variable" => provider.key_variables = self.texts()?,
            "base_variable" => provider.base_variable = Some(self.text()?.to_owned()),
            "key_header" => provider.key_header = Some(self.header_name(self.text()?)?),
            "default_model" => provider.default_model = Some(self.text()?.to_owned()),
            "context_window" => {
                let tokens = |value: &Value| value.as_u64().filter(|tokens| *tokens > 0);
                let expected = "a number of tokens, or a map of model prefix to number";
                provider.windows = self.by_model(self.value.as_object(), tokens, expected)?;
            }
            "prices" => {
                let by_prefix = self.value.as_object();
                let by_prefix = by_prefix.filter(|map| !map.contains_key("input"));
                let expected = "{input, output, cached, cache_write} in US dollars per million tokens, or a map of model prefix to such prices";
                provider.prices = self.by_model(by_prefix, parse_price, expected)?;
            }
            "headers" => provider.headers = self.headers()?,
            "quirks" => provider.custom_quirks.extend(self.quirks()?.clone()),
            _ => {}
        }
        Ok(())
    }

    fn text(&self) -> Result<&'a str, SettingsError> {
        let text = self.value.as_str().map(str::trim);
        text.filter(|text| !text.is_empty())
            .ok_or_else(|| self.expected("text"))
    }

    /// Returns a list of texts, which may be written as one text.
    fn texts(&self) -> Result<Vec<String>, SettingsError> {
        let items = match self.value {
            Value::Array(items) => items.as_slice(),
            value => std::slice::from_ref(value),
        };
        let texts = items.iter().map(|item| self.with(item).text());
        texts.map(|text| text.map(str::to_owned)).collect()
    }

    /// Returns values by prefix of the model's name. Without `by_prefix`, one value applies to all models.
    fn by_model<T>(
        &self,
        by_prefix: Option<&'a Map<String, Value>>,
        parse: impl Fn(&Value) -> Option<T>,
        expected: &str,
    ) -> Result<BTreeMap<String, T>, SettingsError> {
        let parse =
            |value: &'a Value| parse(value).ok_or_else(|| self.with(value).expected(expected));
        match by_prefix {
            Some(map) => map
                .iter()
                .map(|(prefix, value)| Ok((prefix.clone(), parse(value)?)))
                .collect(),
            None => Ok(BTreeMap::from([(String::new(), parse(self.value)?)])),
        }
    }

    fn header_name(&self, name: &str) -> Result<String, SettingsError> {
        let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if name.is_empty() || !name.bytes().all(is_valid) {
            return Err(self.invalid(&format!("`{name}`"), "the name of an HTTP header"));
        }
        Ok(name.to_ascii_lowercase())
    }

    fn headers(&self) -> Result<Vec<(String, Secret)>, SettingsError> {
        let expected = "a map of header name to text";
        let map = self.value.as_object();
        let pairs = map.ok_or_else(|| self.expected(expected))?.iter();
        let pairs = pairs.map(|(name, value)| {
            let text = match value {
                Value::String(text) => text.clone(),
                Value::Number(_) | Value::Bool(_) => value.to_string(),
                value => return Err(self.with(value).expected(expected)),
            };
            if !text.chars().all(|c| c == ' ' || c.is_ascii_graphic()) {
                let found = "text with control or non-ASCII characters";
                return Err(self.invalid(found, expected));
            }
            let name = self.header_name(name)?;
            // The HTTP client derives these headers from the URL and the body. Other values break the request.
            if ["host", "content-length", "transfer-encoding"].contains(&name.as_str()) {
                let expected = "a header that bub does not set itself";
                return Err(self.invalid(&format!("`{name}`"), expected));
            }
            Ok((name, Secret::from(text)))
        });
        pairs.collect()
    }

    fn quirks(&self) -> Result<&'a Map<String, Value>, SettingsError> {
        let quirks = self.value.as_object();
        let quirks = quirks.ok_or_else(|| self.expected("a map of quirks"))?;
        let invalid = quirks.iter().find(|&(name, value)| {
            let single = Map::from_iter([(name.clone(), value.clone())]);
            Quirks::deserialize(&single).is_err()
        });
        let Some((name, value)) = invalid else {
            return Ok(quirks);
        };
        let quirk = self.field(name, value);
        let defaults = serde_json::to_value(Quirks::default()).unwrap_or_default();
        let known: Vec<&str> = defaults
            .as_object()
            .into_iter()
            .flat_map(Map::keys)
            .map(String::as_str)
            .collect();
        Err(match defaults.get(name) {
            None => quirk.unknown(name, &known.join(", ")),
            Some(_) if name == "effort" => {
                quirk.expected("one of standard, reasoning_object, thinking_switch, omit")
            }
            Some(Value::Bool(_)) => quirk.expected("true or false"),
            Some(Value::Array(_)) => quirk.expected("a list of text"),
            Some(Value::Object(_)) => quirk.expected("a map"),
            Some(_) => quirk.expected("text"),
        })
    }

    /// Returns this entry with a value inside its value.
    fn with(&self, value: &'a Value) -> Self {
        Self {
            path: self.path.clone(),
            value,
            ..*self
        }
    }

    /// Returns the source of the innermost part of the path that has one.
    fn source(&self) -> SettingSource {
        std::iter::successors(Some(&*self.path), |path| Some(path.rsplit_once('.')?.0))
            .find_map(|path| self.settings.origin(path))
            .unwrap_or(SettingSource::Default)
    }

    fn invalid(&self, found: &str, expected: &str) -> SettingsError {
        SettingsError::Invalid {
            origin: self.source(),
            key: self.path.clone(),
            found: found.to_owned(),
            expected: expected.to_owned(),
        }
    }

    /// Builds the error for an unknown field, with the closest known one.
    fn unknown(&self, field: &str, known: &str) -> SettingsError {
        let suggestion = bub_settings::closest_match(field, known.split(", "))
            .map(|known| format!(" (did you mean `{known}`?)"));
        self.invalid(
            &format!("an unknown field{}", suggestion.unwrap_or_default()),
            &format!("one of {known}"),
        )
    }

    /// Builds the error for an invalid value.
    ///
    /// The error quotes short text, except headers and URLs with a user, query or fragment, which may contain secrets.
    fn expected(&self, expected: &str) -> SettingsError {
        let may_quote = |text: &str| {
            let may_be_secret = self.path.ends_with(".headers") || self.path.ends_with(".api_key");
            text.len() <= 60 && !text.contains(['?', '@', '#']) && !may_be_secret
        };
        let found = match self.value {
            Value::String(text) if may_quote(text) => format!("`{text}`"),
            Value::Number(number) => format!("`{number}`"),
            value => type_name(value).to_owned(),
        };
        self.invalid(&found, expected)
    }
}

/// A price in the config. The default of `cached` and `cache_write` is the price of `input`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PriceEntry {
    input: f64,
    output: f64,
    cached: Option<f64>,
    cache_write: Option<f64>,
}

fn parse_price(value: &Value) -> Option<Price> {
    let entry = PriceEntry::deserialize(value).ok()?;
    let price = Price {
        input: entry.input,
        cached: entry.cached.unwrap_or(entry.input),
        cache_write: entry.cache_write.unwrap_or(entry.input),
        output: entry.output,
    };
    let numbers = [price.input, price.cached, price.cache_write, price.output];
    let is_valid = |number: &f64| number.is_finite() && *number >= 0.0;
    numbers.iter().all(is_valid).then_some(price)
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a map",
    }
}
