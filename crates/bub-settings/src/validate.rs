//! Validates the values of sources against declarations.
//!
//! The declaration determines how a value is read: the same text is a number, a path or a list,
//! depending on the setting. The rules are the same for all sources. Text (environment, `.env`,
//! flags) is first converted to a tree; lists and maps can be JSON.
//!
//! | value | meaning |
//! |---|---|
//! | `null` | none where the type has it; an empty list or map; otherwise "not set" |
//! | empty text | none, or an empty list; otherwise "not set" |

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
    let Some(node) = text_to_node(setting.kind(), text, &origin) else {
        return Err(invalid_value_error(setting, origin, text));
    };
    validate_node(setting, node, user_home)
}

/// Parses the text of a variable such as `BUB_OPENAI_API_KEY` as a map with one entry.
pub(crate) fn parse_provider_text(
    setting: &SettingSpec,
    provider: String,
    text: &str,
    origin: SettingSource,
) -> Result<Node, SettingsError> {
    let mut map = NodeMap::default();
    let null = text.trim() == "null";
    if !null && !setting.matches_format(text.trim()) {
        return Err(invalid_value_error(setting, origin, text));
    }
    let value = if null {
        Node::null(origin.clone())
    } else {
        Node::text(text.trim(), origin.clone())
    };
    map.insert(provider, value);
    Ok(Node {
        data: NodeData::Map(map),
        origin,
    })
}

/// Converts text to a tree; returns `None` if it starts like JSON but is invalid.
fn text_to_node(kind: ValueKind, text: &str, origin: &SettingSource) -> Option<Node> {
    let trimmed = text.trim();
    let json = match kind {
        ValueKind::List | ValueKind::Maps => trimmed.starts_with('['),
        ValueKind::Map => trimmed.starts_with('{'),
        // Only text that cannot be a key or a URL is read as JSON: a key of digits stays text.
        ValueKind::PerProvider => {
            trimmed.starts_with('{') || (trimmed.len() > 1 && trimmed.starts_with('"'))
        }
        _ => false,
    };
    if json {
        return Some(json_to_node(serde_json::from_str(trimmed).ok()?, origin));
    }
    let atom = if trimmed == "null" {
        Atom::Null
    } else {
        Atom::Text
    };
    Some(Node::scalar(text, atom, origin.clone()))
}

fn json_to_node(value: Value, origin: &SettingSource) -> Node {
    let node = |text: String, atom| Node::scalar(text, atom, origin.clone());
    let data = match value {
        Value::Null => return Node::null(origin.clone()),
        Value::Bool(flag) => return node(flag.to_string(), Atom::Bool(flag)),
        Value::Number(number) => {
            let float = || Atom::Float(number.as_f64().unwrap_or(f64::NAN));
            return node(
                number.to_string(),
                number.as_i64().map_or_else(float, Atom::Int),
            );
        }
        Value::String(text) => return node(text, Atom::Text),
        Value::Array(items) => NodeData::List(
            items
                .into_iter()
                .map(|item| json_to_node(item, origin))
                .collect(),
        ),
        Value::Object(entries) => {
            let mut map = NodeMap::default();
            for (key, value) in entries {
                map.insert(key, json_to_node(value, origin));
            }
            NodeData::Map(map)
        }
    };
    Node {
        data,
        origin: origin.clone(),
    }
}

/// Validates a tree against a declaration and converts it to the canonical form.
///
/// Returns `None` if this source leaves the setting to sources with lower precedence.
pub(crate) fn validate_node(
    setting: &SettingSpec,
    node: Node,
    user_home: Option<&Path>,
) -> Result<Option<Node>, SettingsError> {
    if node.is_null() {
        return Ok(null_to_node(setting, node.origin));
    }
    match (setting.kind(), node.data) {
        (ValueKind::Map, NodeData::Map(map)) => Ok(Some(Node {
            data: NodeData::Map(map),
            origin: node.origin,
        })),
        (ValueKind::PerProvider, NodeData::Map(map)) => {
            validate_providers(setting, map, node.origin).map(Some)
        }
        (ValueKind::List, NodeData::List(items)) => {
            validate_list(setting, items, node.origin).map(Some)
        }
        (ValueKind::Maps, NodeData::List(items)) => {
            match items
                .iter()
                .find(|item| !matches!(item.data, NodeData::Map(_)))
            {
                Some(item) => {
                    let found = "a list with items that are not maps".to_owned();
                    Err(mismatch_error(setting, item.origin.clone(), found))
                }
                None => Ok(Some(Node {
                    data: NodeData::List(items),
                    origin: node.origin,
                })),
            }
        }
        (_, NodeData::Scalar(scalar)) => validate_scalar(setting, &scalar, node.origin, user_home),
        (_, NodeData::List(_)) => Err(mismatch_error(setting, node.origin, "a list".to_owned())),
        (_, NodeData::Map(_)) => Err(mismatch_error(setting, node.origin, "a map".to_owned())),
    }
}

/// Returns the value that `null` means for a setting; `None` if the setting counts as not set.
fn null_to_node(setting: &SettingSpec, origin: SettingSource) -> Option<Node> {
    match setting.kind() {
        ValueKind::Map | ValueKind::PerProvider => Some(Node {
            data: NodeData::Map(NodeMap::new_replacing(Vec::new())),
            origin,
        }),
        _ if setting.is_nullable() => Some(Node::null(origin)),
        ValueKind::List | ValueKind::Maps => Some(Node {
            data: NodeData::List(Vec::new()),
            origin,
        }),
        _ => None,
    }
}

fn validate_scalar(
    setting: &SettingSpec,
    scalar: &Scalar,
    origin: SettingSource,
    user_home: Option<&Path>,
) -> Result<Option<Node>, SettingsError> {
    let text = scalar.text.trim();
    if text.is_empty() && !matches!(setting.kind(), ValueKind::List | ValueKind::Map) {
        return Ok(null_to_node(setting, origin));
    }
    let node = match setting.kind() {
        ValueKind::Text | ValueKind::PerProvider if !setting.matches_format(text) => None,
        ValueKind::Text => Some(Node::text(text, origin.clone())),
        ValueKind::Path => {
            expand_home(text, user_home).map(|path| Node::text(path, origin.clone()))
        }
        ValueKind::Bool => {
            parse_boolean(text).map(|flag| Node::scalar(text, Atom::Bool(flag), origin.clone()))
        }
        ValueKind::Integer => {
            parse_integer(setting, scalar).map(|n| Node::scalar(text, Atom::Int(n), origin.clone()))
        }
        ValueKind::Number => parse_number(setting, scalar)
            .map(|n| Node::scalar(text, Atom::Float(n), origin.clone())),
        ValueKind::Choice(words) => {
            let word = words.iter().find(|word| word.eq_ignore_ascii_case(text));
            word.map(|word| Node::text(*word, origin.clone()))
        }
        ValueKind::List => {
            let items = text
                .split(',')
                .map(str::trim)
                .filter(|item| !item.is_empty());
            let items = items.map(|item| Node::text(item, origin.clone())).collect();
            Some(Node {
                data: NodeData::List(items),
                origin: origin.clone(),
            })
        }
        ValueKind::PerProvider => {
            let all = vec![(ANY_PROVIDER.to_owned(), Node::text(text, origin.clone()))];
            Some(Node {
                data: NodeData::Map(NodeMap::new_replacing(all)),
                origin: origin.clone(),
            })
        }
        ValueKind::Map | ValueKind::Maps => None,
    };
    node.map(Some)
        .ok_or_else(|| invalid_value_error(setting, origin, &scalar.text))
}

fn validate_list(
    setting: &SettingSpec,
    items: Vec<Node>,
    origin: SettingSource,
) -> Result<Node, SettingsError> {
    let mut texts = Vec::with_capacity(items.len());
    for item in items {
        match item.data {
            NodeData::Scalar(scalar) if scalar.atom != Atom::Null => {
                texts.push(Node::text(scalar.text, item.origin));
            }
            _ => {
                return Err(mismatch_error(
                    setting,
                    item.origin,
                    "a list with items that are not text".to_owned(),
                ));
            }
        }
    }
    Ok(Node {
        data: NodeData::List(texts),
        origin,
    })
}

fn validate_providers(
    setting: &SettingSpec,
    map: NodeMap,
    origin: SettingSource,
) -> Result<Node, SettingsError> {
    let mut clean = NodeMap::default();
    for (provider, value) in map.into_entries() {
        let NodeData::Scalar(scalar) = value.data else {
            let found = format!("a map with a value that is not text for `{provider}`");
            return Err(mismatch_error(setting, value.origin, found));
        };
        let text = scalar.text.trim();
        let null = scalar.atom == Atom::Null || text.is_empty();
        if !null && !setting.matches_format(text) {
            return Err(add_provider_to_key(
                &provider,
                invalid_value_error(setting, value.origin, text),
            ));
        }
        let value = if null {
            Node::null(value.origin)
        } else {
            Node::text(text, value.origin)
        };
        clean.insert(provider_key(&provider), value);
    }
    Ok(Node {
        data: NodeData::Map(clean),
        origin,
    })
}

/// Parses the words for true and false.
fn parse_boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" | "y" | "t" => Some(true),
        "false" | "0" | "no" | "off" | "n" | "f" => Some(false),
        _ => None,
    }
}

fn parse_integer(setting: &SettingSpec, scalar: &Scalar) -> Option<i64> {
    let value = match numeric_atom(scalar) {
        Atom::Int(value) => value,
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the value is an integer and in range"
        )]
        Atom::Float(value) if value.fract() == 0.0 && value.abs() < 9e15 => value as i64,
        Atom::Float(_) | Atom::Null | Atom::Bool(_) | Atom::Text => return None,
    };
    let (min, max) = setting.limits();
    (min.is_none_or(|min| value >= min) && max.is_none_or(|max| value <= max)).then_some(value)
}

fn parse_number(setting: &SettingSpec, scalar: &Scalar) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "limits and seconds are small")]
    let as_float = |value: i64| value as f64;
    let value = match numeric_atom(scalar) {
        Atom::Int(value) => as_float(value),
        Atom::Float(value) if value.is_finite() => value,
        Atom::Float(_) | Atom::Null | Atom::Bool(_) | Atom::Text => return None,
    };
    let (min, max) = setting.limits();
    let fits = min.is_none_or(|min| value >= as_float(min))
        && max.is_none_or(|max| value <= as_float(max));
    fits.then_some(value)
}

/// Returns the meaning of a scalar where a number is expected. Text, as from quotes or the
/// environment, is read as a number, too; unlike in YAML, a leading zero in it does not mean octal.
fn numeric_atom(scalar: &Scalar) -> Atom {
    let text = scalar.text.trim();
    match scalar.atom {
        Atom::Text => text
            .parse()
            .map_or_else(|_| yaml::plain_scalar_atom(text), Atom::Int),
        atom => atom,
    }
}

/// Replaces a leading `~`; returns `None` if the home directory is unknown.
pub(crate) fn expand_home(text: &str, user_home: Option<&Path>) -> Option<String> {
    match text.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => Some(format!(
            "{}{rest}",
            user_home?.to_str()?.trim_end_matches('/')
        )),
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
    let found = if matches!(setting.kind(), ValueKind::Map | ValueKind::Maps) {
        "a single value".to_owned()
    } else if setting.is_secret()
        || is_sensitive_name(setting.key())
        || may_contain_secret(setting, text)
    {
        "a value that is not shown".to_owned()
    } else if text.chars().count() > MAX_SHOWN_CHARS || text.chars().any(char::is_control) {
        let excerpt: String = text
            .chars()
            .take(MAX_SHOWN_CHARS)
            .filter(|c| !c.is_control())
            .collect();
        format!("`{excerpt}…`")
    } else {
        format!("`{text}`")
    };
    mismatch_error(setting, origin, found)
}

/// Adds the provider to the key of an error.
fn add_provider_to_key(provider: &str, mut error: SettingsError) -> SettingsError {
    if let SettingsError::Invalid { key, .. } = &mut error {
        *key = format!("{key}.{provider}");
    }
    error
}

/// Returns whether a text contains, or may contain, a password or a key.
pub(crate) fn may_contain_secret(setting: &SettingSpec, text: &str) -> bool {
    display::url_password(text).is_some()
        || (setting.has_format() && display::may_hold_url_secret(text))
}

fn mismatch_error(setting: &SettingSpec, origin: SettingSource, found: String) -> SettingsError {
    SettingsError::Invalid {
        origin,
        key: setting.key().to_owned(),
        found,
        expected: setting.describe_expected(),
    }
}
