//! Validates the values of sources against declarations.
//!
//! The declaration determines how a value is read: the same text is a number, a path or a list,
//! depending on the setting. The rules are the same for all sources. Text (environment, `.env`,
//! flags) is first converted to a tree; lists and maps can be JSON.
//!
//! | value | meaning |
//! |---|---|
//! | `null` | an empty map for map kinds; else `null` if allowed; else an empty list for list kinds; else "not set" |
//! | empty text | an empty list for lists of text, an error for maps; otherwise as `null` |

use std::path::Path;

use serde_json::Value;

use crate::node::{Atom, Node, NodeData, NodeMap, Scalar};
use crate::secret::is_sensitive_name;
use crate::spec::{SettingSpec, ValueKind};
use crate::types::{ANY_PROVIDER, provider_key};
use crate::{SettingSource, SettingsError, display, yaml};

/// Parses and validates the text of a variable or a flag.
pub(crate) fn parse_setting_text(
    setting: &SettingSpec,
    text: &str,
    origin: SettingSource,
    user_home: Option<&Path>,
) -> Result<Option<Node>, SettingsError> {
    match text_to_node(setting.kind, text, &origin) {
        Some(node) => validate_node(setting, node, user_home),
        None => Err(invalid_value_error(setting, origin, text)),
    }
}

/// Parses and validates the text of a variable such as `BUB_OPENAI_API_KEY`. Returns a map with one
/// entry, the provider.
pub(crate) fn parse_provider_text(
    setting: &SettingSpec,
    provider: String,
    text: &str,
    origin: SettingSource,
) -> Result<Node, SettingsError> {
    let is_null = text.trim() == "null";
    let value = provider_value(setting, text, is_null, origin.clone())?;
    Ok(NodeData::map([(provider, value)]).at(origin))
}

/// Converts text to a tree; returns `None` if it starts like JSON or a YAML list but is invalid.
fn text_to_node(kind: ValueKind, text: &str, origin: &SettingSource) -> Option<Node> {
    let trimmed = text.trim();
    let json = match kind {
        ValueKind::List | ValueKind::Maps => trimmed.starts_with('['),
        ValueKind::Map => trimmed.starts_with('{'),
        // Only text that cannot be an API key or a URL is read as JSON: an API key of digits stays
        // text.
        ValueKind::PerProvider => {
            trimmed.starts_with('{') || (trimmed.len() > 1 && trimmed.starts_with('"'))
        }
        _ => false,
    };
    if json {
        let value = serde_json::from_str(trimmed).ok();
        // A list as in the config file, such as `[bash, fs.edit]`.
        let is_list = kind == ValueKind::List;
        let value = value.or_else(|| yaml::parse_yaml(trimmed).ok().filter(|_| is_list));
        return Some(json_to_node(value?, origin));
    }
    let data = match trimmed {
        "null" => NodeData::scalar(text, Atom::Null),
        _ => NodeData::text(text),
    };
    Some(data.at(origin.clone()))
}

fn json_to_node(value: Value, origin: &SettingSource) -> Node {
    let data = match value {
        Value::Null => NodeData::NULL,
        Value::Bool(flag) => NodeData::scalar(flag.to_string(), Atom::Bool(flag)),
        Value::Number(number) => {
            let float = || Atom::Float(number.as_f64().unwrap_or(f64::NAN));
            let atom = number.as_i64().map_or_else(float, Atom::Int);
            NodeData::scalar(number.to_string(), atom)
        }
        Value::String(text) => NodeData::text(text),
        Value::Array(items) => {
            let items = items.into_iter().map(|item| json_to_node(item, origin));
            NodeData::List(items.collect())
        }
        Value::Object(map) => {
            let entries = map.into_iter();
            NodeData::map(entries.map(|(key, value)| (key, json_to_node(value, origin))))
        }
    };
    data.at(origin.clone())
}

/// Validates a tree against a declaration and converts its values to the declared kind.
///
/// Returns `None` if this source leaves the setting to sources with lower precedence.
pub(crate) fn validate_node(
    setting: &SettingSpec,
    Node { data, origin }: Node,
    user_home: Option<&Path>,
) -> Result<Option<Node>, SettingsError> {
    let data = match (setting.kind, data) {
        (kind, NodeData::Scalar(scalar)) => {
            let is_list_or_map = matches!(kind, ValueKind::List | ValueKind::Map);
            if scalar.atom == Atom::Null || (scalar.text.trim().is_empty() && !is_list_or_map) {
                return Ok(null_data(setting).map(|data| data.at(origin)));
            }
            match convert_scalar(setting, &scalar, &origin, user_home) {
                Some(data) => data,
                None => return Err(invalid_value_error(setting, origin, &scalar.text)),
            }
        }
        (ValueKind::Map, data @ NodeData::Map(_)) => data,
        (ValueKind::PerProvider, NodeData::Map(map)) => validate_providers(setting, map)?,
        (ValueKind::List, NodeData::List(items)) => {
            convert_items(setting, items, "text", |data| match data {
                NodeData::Scalar(scalar) if scalar.atom != Atom::Null => {
                    Some(NodeData::text(scalar.text))
                }
                _ => None,
            })?
        }
        (ValueKind::Maps, NodeData::List(items)) => {
            convert_items(setting, items, "maps", |data| {
                Some(data).filter(|data| matches!(data, NodeData::Map(_)))
            })?
        }
        (_, NodeData::List(_)) => return Err(mismatch_error(setting, origin, "a list")),
        (_, NodeData::Map(_)) => return Err(mismatch_error(setting, origin, "a map")),
    };
    Ok(Some(data.at(origin)))
}

/// Returns the value that `null` means for a setting; `None` if the setting counts as not set.
fn null_data(setting: &SettingSpec) -> Option<NodeData> {
    match setting.kind {
        ValueKind::Map | ValueKind::PerProvider => Some(NodeData::replacing_map([])),
        _ if setting.nullable => Some(NodeData::NULL),
        ValueKind::List | ValueKind::Maps => Some(NodeData::List(Vec::new())),
        _ => None,
    }
}

/// Converts a scalar to the kind of a setting; returns `None` if it is invalid.
fn convert_scalar(
    setting: &SettingSpec,
    scalar: &Scalar,
    origin: &SettingSource,
    user_home: Option<&Path>,
) -> Option<NodeData> {
    let text = scalar.text.trim();
    let item = |text: &str| NodeData::text(text).at(origin.clone());
    match setting.kind {
        ValueKind::Text | ValueKind::PerProvider if !setting.matches_format(text) => None,
        ValueKind::Text => Some(NodeData::text(text)),
        ValueKind::Path => expand_home(text, user_home).map(NodeData::text),
        ValueKind::Bool => parse_boolean(text).map(|flag| NodeData::scalar(text, Atom::Bool(flag))),
        ValueKind::Integer | ValueKind::Number => {
            parse_number(setting, scalar).map(|number| NodeData::scalar(text, number))
        }
        ValueKind::Choice(words) => {
            let mut words = words.iter();
            let word = words.find(|word| word.eq_ignore_ascii_case(text));
            word.map(|word| NodeData::text(*word))
        }
        ValueKind::List => {
            let items = text.split(',').map(str::trim);
            let items = items.filter(|item| !item.is_empty());
            Some(NodeData::List(items.map(item).collect()))
        }
        ValueKind::PerProvider => {
            let all = (ANY_PROVIDER.to_owned(), item(text));
            Some(NodeData::replacing_map([all]))
        }
        ValueKind::Map | ValueKind::Maps => None,
    }
}

/// Converts the items of a list. `expected` names the items that `convert` accepts.
fn convert_items(
    setting: &SettingSpec,
    items: Vec<Node>,
    expected: &str,
    convert: impl Fn(NodeData) -> Option<NodeData>,
) -> Result<NodeData, SettingsError> {
    let convert = |Node { data, origin }| {
        let Some(data) = convert(data) else {
            let found = format!("a list with items that are not {expected}");
            return Err(mismatch_error(setting, origin, found));
        };
        Ok(data.at(origin))
    };
    let items = items.into_iter().map(convert);
    items.collect::<Result<_, _>>().map(NodeData::List)
}

fn validate_providers(setting: &SettingSpec, map: NodeMap) -> Result<NodeData, SettingsError> {
    let validate = |(provider, Node { data, origin }): (String, Node)| {
        let NodeData::Scalar(scalar) = data else {
            let found = format!("a map with a value that is not text for `{provider}`");
            return Err(mismatch_error(setting, origin, found));
        };
        let text = scalar.text.trim();
        let is_null = scalar.atom == Atom::Null || text.is_empty();
        match provider_value(setting, text, is_null, origin) {
            Ok(value) => Ok((provider_key(&provider), value)),
            // `api_key` becomes `api_key.openai`.
            Err(error) => {
                Err(error.with_name(&setting.key, &format!("{}.{provider}", setting.key)))
            }
        }
    };
    let entries = map.entries.into_iter().map(validate);
    entries.collect::<Result<Vec<_>, _>>().map(NodeData::map)
}

fn provider_value(
    setting: &SettingSpec,
    text: &str,
    is_null: bool,
    origin: SettingSource,
) -> Result<Node, SettingsError> {
    match text.trim() {
        _ if is_null => Ok(NodeData::NULL.at(origin)),
        trimmed if setting.matches_format(trimmed) => Ok(NodeData::text(trimmed).at(origin)),
        _ => Err(invalid_value_error(setting, origin, text)),
    }
}

/// Parses the words for true and false.
fn parse_boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" | "y" | "t" => Some(true),
        "false" | "0" | "no" | "off" | "n" | "f" => Some(false),
        _ => None,
    }
}

/// Parses a number within the limits of a setting; returns a whole number for an integer setting.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "limits are small, and only whole numbers in range become integers"
)]
fn parse_number(setting: &SettingSpec, scalar: &Scalar) -> Option<Atom> {
    let atom = numeric_atom(scalar);
    let value = match atom {
        Atom::Int(value) => value as f64,
        Atom::Float(value) if value.is_finite() => value,
        _ => return None,
    };
    let number = match (setting.kind, atom) {
        (ValueKind::Number, _) => Atom::Float(value),
        (_, Atom::Float(_)) if value.fract() != 0.0 || value.abs() >= 9e15 => return None,
        (_, Atom::Float(_)) => Atom::Int(value as i64),
        _ => atom,
    };
    let fits = setting.min.is_none_or(|min| value >= min as f64)
        && setting.max.is_none_or(|max| value <= max as f64);
    fits.then_some(number)
}

/// Returns the value of a scalar for a setting that expects a number. Text in quotes or from the
/// environment is parsed as a number, too. In such text, a leading zero does not mean octal, unlike
/// in YAML.
fn numeric_atom(scalar: &Scalar) -> Atom {
    let text = scalar.text.trim();
    match scalar.atom {
        Atom::Text => text
            .parse()
            .map_or_else(|_| yaml::plain_scalar_atom(text), Atom::Int),
        atom => atom,
    }
}

/// Replaces a leading `~` by the user's home directory; returns `None` if that directory is needed
/// but unknown.
pub(crate) fn expand_home(text: &str, user_home: Option<&Path>) -> Option<String> {
    match text.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => {
            let home = user_home?.to_str()?;
            Some(format!("{}{rest}", home.trim_end_matches('/')))
        }
        _ => Some(text.to_owned()),
    }
}

/// Builds the error for an invalid text; quotes the text unless it may be a secret.
pub(crate) fn invalid_value_error(
    setting: &SettingSpec,
    origin: SettingSource,
    text: &str,
) -> SettingsError {
    const MAX_SHOWN_CHARS: usize = 60;
    let found = if matches!(setting.kind, ValueKind::Map | ValueKind::Maps) {
        "a single value".to_owned()
    } else if setting.secret || is_sensitive_name(&setting.key) || may_contain_secret(setting, text)
    {
        "a value that is not shown".to_owned()
    } else if text.chars().count() > MAX_SHOWN_CHARS || text.chars().any(char::is_control) {
        let excerpt = text.chars().take(MAX_SHOWN_CHARS);
        let excerpt: String = excerpt.filter(|c| !c.is_control()).collect();
        format!("`{excerpt}…`")
    } else {
        format!("`{text}`")
    };
    mismatch_error(setting, origin, found)
}

/// Returns whether a text contains, or may contain, a password or a key.
pub(crate) fn may_contain_secret(setting: &SettingSpec, text: &str) -> bool {
    display::url_password(text).is_some()
        || (setting.format.is_some() && display::may_hold_url_secret(text))
}

fn mismatch_error(
    setting: &SettingSpec,
    origin: SettingSource,
    found: impl Into<String>,
) -> SettingsError {
    SettingsError::Invalid {
        origin,
        key: setting.key.to_string(),
        found: found.into(),
        expected: setting.describe_expected(),
    }
}
