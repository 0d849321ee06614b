//! The setting `providers`: providers added or changed without code.
//!
//! ```yaml
//! providers:
//!   lab:                                # a new provider: only `base_url` is required
//!     base_url: https://llm.lab.example/v1
//!     key_variable: LAB_KEY
//!     context_window: {small: 32000, large: 128000}
//!     prices: {small: {input: 0.5, output: 2}}    # US dollars per million tokens
//! ```

use bub_settings::{SettingSource, Settings, SettingsError};
use serde_json::{Map, Value};

use super::{
    Catalog, PROVIDER_ROWS, Price, Provider, merge_quirks, normalize_name, rows::EMPTY_ROW,
    variable_name,
};
use crate::base_url::{self, BaseUrl};
use crate::{Quirks, WireFormat};

/// The fields of a provider in the setting `providers`.
const PROVIDER_FIELDS: [&str; 11] = [
    "base_url",
    "wire",
    "key_variable",
    "base_variable",
    "key_header",
    "needs_key",
    "default_model",
    "context_window",
    "prices",
    "headers",
    "quirks",
];

/// The fields of [`Quirks`] and the values that they accept.
const QUIRK_FORMS: [(&str, &str); 13] = [
    ("max_tokens_field", "text"),
    ("streaming", "true or false"),
    ("stream_options", "true or false"),
    (
        "effort",
        "one of standard, reasoning_object, thinking_switch, omit",
    ),
    ("reasoning_fields", "a list of text"),
    ("replay_reasoning", "true or false"),
    ("cache_control", "true or false"),
    ("open_with_user", "true or false"),
    ("media_as_file", "true or false"),
    ("default_instructions", "text"),
    ("default_body", "a map"),
    ("extra_body", "a map"),
    ("refused_fields", "a list of text"),
];

/// Applies one entry of the setting `providers` to the catalog.
pub(super) fn apply_custom_provider(
    catalog: &mut Catalog,
    settings: &Settings,
    name: &str,
    fields: &Value,
) -> Result<(), SettingsError> {
    let config_path = ConfigPath { settings, name };
    let normalized = normalize_name(name);
    if !is_valid_name(&normalized) {
        return Err(config_path.invalid_entry_error(
            None,
            "an invalid name".to_owned(),
            "letters, digits, `-` and `_`",
        ));
    }
    let Some(fields) = fields.as_object() else {
        return Err(config_path.invalid_entry_error(
            None,
            type_name(fields).to_owned(),
            "a map with a `base_url`",
        ));
    };
    if let Some(unknown) = fields
        .keys()
        .find(|field| !PROVIDER_FIELDS.contains(&field.as_str()))
    {
        return Err(config_path.invalid_entry_error(
            Some(unknown),
            unknown_field_text(unknown, &PROVIDER_FIELDS),
            &format!("one of {}", PROVIDER_FIELDS.join(", ")),
        ));
    }
    let existing = catalog
        .providers
        .iter()
        .position(|provider| provider.name == normalized);
    let mut provider = match existing {
        Some(index) => catalog.providers.remove(index),
        None => new_provider(&normalized),
    };
    apply_fields(&mut provider, &config_path, fields)?;
    if existing.is_none() && provider.base_url.is_none() && !fields.contains_key("base_variable") {
        return Err(config_path.invalid_entry_error(
            None,
            "a new provider without `base_url`".to_owned(),
            base_url::EXPECTED_FORMAT,
        ));
    }
    provider.origin = Some(config_path.setting_source(None));
    // A configured name takes precedence over the alias of another provider.
    for other in &mut catalog.providers {
        other.aliases.retain(|alias| *alias != normalized);
    }
    let index = existing.unwrap_or(catalog.providers.len());
    catalog.providers.insert(index, provider);
    Ok(())
}

/// Returns a new provider with conventional variable names and no other properties.
fn new_provider(name: &str) -> Provider {
    let mut provider = Provider::from_row(&EMPTY_ROW);
    name.clone_into(&mut provider.name);
    provider.key_variables = vec![variable_name(name, "API_KEY")];
    provider.base_variable = variable_name(name, "API_BASE");
    provider
}

fn apply_fields(
    provider: &mut Provider,
    config_path: &ConfigPath<'_>,
    fields: &Map<String, Value>,
) -> Result<(), SettingsError> {
    for (field, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
        let text = || config_path.parse_text(field, value);
        match field.as_str() {
            "base_url" => {
                let parsed = BaseUrl::parse(text()?);
                let url = parsed.ok_or_else(|| {
                    config_path.invalid_value_error(field, value, base_url::EXPECTED_FORMAT)
                })?;
                provider.local = url.is_loopback();
                provider.needs_key &= !provider.local;
                // The login and the newer wire format are valid only for the default base URL.
                provider.login = None;
                provider.native_wire = None;
                provider.base_url = Some(url.with_default_path(&provider.base_path));
            }
            "wire" => {
                let names = WireFormat::ALL.map(WireFormat::name).join(", ");
                let wire = WireFormat::from_name(text()?);
                provider.native_wire = None;
                provider.wire = wire.ok_or_else(|| {
                    config_path.invalid_value_error(field, value, &format!("one of {names}"))
                })?;
            }
            "key_variable" => provider.key_variables = config_path.parse_texts(field, value)?,
            "base_variable" => text()?.clone_into(&mut provider.base_variable),
            "key_header" => {
                provider.key_header = Some(config_path.parse_header_name(field, text()?)?);
            }
            "default_model" => provider.default_model = Some(text()?.to_owned()),
            "context_window" => provider.windows = config_path.parse_windows(field, value)?,
            "prices" => provider.prices = config_path.parse_prices(field, value)?,
            "headers" => provider.headers = config_path.parse_headers(field, value)?,
            "quirks" => provider.quirks = config_path.parse_quirks(field, value, &provider.name)?,
            _ => {}
        }
    }
    // Applied last: an explicit value overrides the one derived from `base_url`, in any order of fields.
    if let Some(value) = fields.get("needs_key").filter(|value| !value.is_null()) {
        provider.needs_key = value
            .as_bool()
            .ok_or_else(|| config_path.invalid_value_error("needs_key", value, "true or false"))?;
    }
    Ok(())
}

fn is_valid_name(name: &str) -> bool {
    let valid = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    !name.is_empty() && name.bytes().all(valid)
}

/// Path of a provider's entry in the config, for error messages.
struct ConfigPath<'a> {
    settings: &'a Settings,
    name: &'a str,
}

impl ConfigPath<'_> {
    fn setting_source(&self, field: Option<&str>) -> SettingSource {
        let field = field.map(|field| format!(".{field}")).unwrap_or_default();
        let path = format!("providers.{}{field}", self.name);
        std::iter::successors(Some(&*path), |path| Some(path.rsplit_once('.')?.0))
            .find_map(|path| self.settings.origin(path))
            .unwrap_or(SettingSource::Default)
    }

    fn invalid_entry_error(
        &self,
        field: Option<&str>,
        found: String,
        expected: &str,
    ) -> SettingsError {
        let name = self.name;
        let key = field.map_or_else(
            || format!("providers.{name}"),
            |field| format!("providers.{name}.{field}"),
        );
        SettingsError::Invalid {
            origin: self.setting_source(field),
            key,
            found,
            expected: expected.to_owned(),
        }
    }

    /// Builds the error for an invalid value of a field.
    ///
    /// The error quotes short text, except headers and URLs with a user, query or fragment, which may contain secrets.
    fn invalid_value_error(&self, field: &str, value: &Value, expected: &str) -> SettingsError {
        let found = match value {
            Value::String(text)
                if text.len() <= 60 && field != "headers" && !text.contains(['?', '@', '#']) =>
            {
                format!("`{text}`")
            }
            Value::Number(number) => format!("`{number}`"),
            value => type_name(value).to_owned(),
        };
        self.invalid_entry_error(Some(field), found, expected)
    }

    fn parse_text<'v>(&self, field: &str, value: &'v Value) -> Result<&'v str, SettingsError> {
        let text = value
            .as_str()
            .map(str::trim)
            .filter(|text| !text.is_empty());
        text.ok_or_else(|| self.invalid_value_error(field, value, "text"))
    }

    fn parse_texts(&self, field: &str, value: &Value) -> Result<Vec<String>, SettingsError> {
        match value {
            Value::Array(items) => items
                .iter()
                .map(|item| self.parse_text(field, item).map(str::to_owned))
                .collect(),
            value => Ok(vec![self.parse_text(field, value)?.to_owned()]),
        }
    }

    fn parse_header_name(&self, field: &str, name: &str) -> Result<String, SettingsError> {
        let valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if name.is_empty() || !name.bytes().all(valid) {
            return Err(self.invalid_entry_error(
                Some(field),
                format!("`{name}`"),
                "the name of an HTTP header",
            ));
        }
        Ok(name.to_ascii_lowercase())
    }

    fn parse_headers(
        &self,
        field: &str,
        value: &Value,
    ) -> Result<Vec<(String, String)>, SettingsError> {
        let expected = "a map of header name to text";
        let map = value
            .as_object()
            .ok_or_else(|| self.invalid_value_error(field, value, expected))?;
        let pairs = map.iter().map(|(name, value)| {
            let text = match value {
                Value::String(text) => text.clone(),
                Value::Number(number) => number.to_string(),
                Value::Bool(flag) => flag.to_string(),
                value => return Err(self.invalid_value_error(field, value, expected)),
            };
            let sendable = text.chars().all(|c| c == ' ' || c.is_ascii_graphic());
            if !sendable {
                return Err(self.invalid_entry_error(
                    Some(field),
                    "text with control or non-ASCII characters".into(),
                    expected,
                ));
            }
            let name = self.parse_header_name(field, name)?;
            // The HTTP client derives these headers from the URL and the body. Other values break the request.
            if ["host", "content-length", "transfer-encoding"].contains(&name.as_str()) {
                return Err(self.invalid_entry_error(
                    Some(field),
                    format!("`{name}`"),
                    "a header that bub does not set itself",
                ));
            }
            Ok((name, text))
        });
        pairs.collect()
    }

    /// Parses context windows: one number for all models, or a map of model prefix to number.
    fn parse_windows(
        &self,
        field: &str,
        value: &Value,
    ) -> Result<Vec<(String, u64)>, SettingsError> {
        let expected = "a number of tokens, or a map of model prefix to number";
        let tokens = |value: &Value| {
            value
                .as_u64()
                .filter(|tokens| *tokens > 0)
                .ok_or_else(|| self.invalid_value_error(field, value, expected))
        };
        match value {
            Value::Object(map) => map
                .iter()
                .map(|(prefix, value)| Ok((prefix.clone(), tokens(value)?)))
                .collect(),
            value => Ok(vec![(String::new(), tokens(value)?)]),
        }
    }

    /// Parses prices: one price for all models, or a map of model prefix to price.
    fn parse_prices(
        &self,
        field: &str,
        value: &Value,
    ) -> Result<Vec<(String, Price)>, SettingsError> {
        let invalid_value_error = |value: &Value| {
            self.invalid_value_error(field, value, "{input, output, cached, cache_write} in US dollars per million tokens, or a map of model prefix to such prices")
        };
        let map = value
            .as_object()
            .ok_or_else(|| invalid_value_error(value))?;
        if map.contains_key("input") {
            return Ok(vec![(
                String::new(),
                parse_price(value).ok_or_else(|| invalid_value_error(value))?,
            )]);
        }
        let pairs = map.iter().map(|(prefix, price)| {
            Ok((
                prefix.clone(),
                parse_price(price).ok_or_else(|| invalid_value_error(price))?,
            ))
        });
        pairs.collect()
    }

    /// Parses quirks. They override the built-in quirks of the provider.
    fn parse_quirks(
        &self,
        field: &str,
        value: &Value,
        provider: &str,
    ) -> Result<Quirks, SettingsError> {
        let overrides = value
            .as_object()
            .ok_or_else(|| self.invalid_value_error(field, value, "a map of quirks"))?;
        let row = PROVIDER_ROWS
            .iter()
            .find(|row| row.name == provider)
            .unwrap_or(&EMPTY_ROW);
        merge_quirks(row, overrides).map_err(|_| {
            let invalid = overrides.iter().find(|&(name, value)| {
                let single = Map::from_iter([(name.clone(), value.clone())]);
                merge_quirks(&EMPTY_ROW, &single).is_err()
            });
            match invalid {
                Some((name, value)) => self.invalid_quirk_error(field, name, value),
                None => self.invalid_value_error(field, value, "a map of quirks"),
            }
        })
    }

    fn invalid_quirk_error(&self, field: &str, name: &str, value: &Value) -> SettingsError {
        let path = format!("{field}.{name}");
        if let Some((_, expected)) = QUIRK_FORMS.iter().find(|(known, _)| *known == name) {
            return self.invalid_value_error(&path, value, expected);
        }
        let names = QUIRK_FORMS.map(|(name, _)| name);
        self.invalid_entry_error(
            Some(&path),
            unknown_field_text(name, &names),
            &format!("one of {}", names.join(", ")),
        )
    }
}

/// Describes an unknown field and suggests the closest known one.
fn unknown_field_text(field: &str, known: &[&'static str]) -> String {
    match bub_settings::closest_match(field, known.iter().copied()) {
        Some(known) => format!("an unknown field (did you mean `{known}`?)"),
        None => "an unknown field".to_owned(),
    }
}

/// Parses a price. The default of `cached` and `cache_write` is the price of `input`.
fn parse_price(value: &Value) -> Option<Price> {
    let map = value.as_object()?;
    let fields = ["input", "cached", "cache_write", "output"];
    let number = |name: &str| match map.get(name) {
        Some(value) => value
            .as_f64()
            .filter(|price| price.is_finite() && *price >= 0.0)
            .map(Some),
        None => Some(None),
    };
    let input = number("input")??;
    let price = Price {
        input,
        cached: number("cached")?.unwrap_or(input),
        cache_write: number("cache_write")?.unwrap_or(input),
        output: number("output")??,
    };
    map.keys()
        .all(|key| fields.contains(&key.as_str()))
        .then_some(price)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forms_of_quirks_are_complete() {
        let unknown = serde_json::from_str::<Quirks>(r#"{"x": 1}"#).unwrap_err();
        let names = QUIRK_FORMS.map(|(name, _)| format!("`{name}`")).join(", ");
        assert!(unknown.to_string().contains(&names), "{unknown}");
    }
}
