//! From what a source says to what a declaration means.
//!
//! The declaration drives the reading: the same text is a number, a path or a list depending on
//! the setting it is for. Every rule is the same for all sources; only text (environment, `.env`,
//! flags) is first lifted into a tree, with JSON where a tree is wanted.
//!
//! | written | means |
//! |---|---|
//! | `null` | none where the type has it; an empty list or map; otherwise "not set" |
//! | empty text | none, or an empty list; otherwise "not set" |

use std::path::Path;

use serde_json::Value;

use crate::declare::{Kind, Setting};
use crate::node::{Atom, Data, Map, Node, Scalar};
use crate::secret::is_sensitive_name;
use crate::types::{ANY_PROVIDER, provider_key};
use crate::{Origin, SettingsError, show, yaml};

/// Reads one text from the environment, `.env` or a flag.
pub(crate) fn from_text(
    setting: &Setting,
    text: &str,
    origin: Origin,
    user_home: Option<&Path>,
) -> Result<Option<Node>, SettingsError> {
    let Some(node) = lift(setting.kind(), text, &origin) else {
        return Err(invalid(setting, origin, text));
    };
    canonical(setting, node, user_home)
}

/// The value of a variable such as `BUB_OPENAI_API_KEY`: one entry of the map.
pub(crate) fn for_provider(
    setting: &Setting,
    provider: String,
    text: &str,
    origin: Origin,
) -> Result<Node, SettingsError> {
    let mut map = Map::default();
    let null = text.trim() == "null";
    if !null && !setting.fits(text.trim()) {
        return Err(invalid(setting, origin, text));
    }
    let value = if null {
        Node::null(origin.clone())
    } else {
        Node::text(text.trim(), origin.clone())
    };
    map.insert(provider, value);
    Ok(Node {
        data: Data::Map(map),
        origin,
    })
}

/// Text as a tree; `None` when it starts like JSON and is not.
fn lift(kind: Kind, text: &str, origin: &Origin) -> Option<Node> {
    let trimmed = text.trim();
    let json = match kind {
        Kind::List | Kind::Maps => trimmed.starts_with('['),
        Kind::Map => trimmed.starts_with('{'),
        // Only what cannot be a key or an address is taken for JSON: an all-digit key stays text.
        Kind::PerProvider => {
            trimmed.starts_with('{') || (trimmed.len() > 1 && trimmed.starts_with('"'))
        }
        _ => false,
    };
    if json {
        return Some(from_json(serde_json::from_str(trimmed).ok()?, origin));
    }
    let atom = if trimmed == "null" {
        Atom::Null
    } else {
        Atom::Text
    };
    Some(Node::scalar(text, atom, origin.clone()))
}

fn from_json(value: Value, origin: &Origin) -> Node {
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
        Value::Array(items) => Data::List(
            items
                .into_iter()
                .map(|item| from_json(item, origin))
                .collect(),
        ),
        Value::Object(entries) => {
            let mut map = Map::default();
            for (key, value) in entries {
                map.insert(key, from_json(value, origin));
            }
            Data::Map(map)
        }
    };
    Node {
        data,
        origin: origin.clone(),
    }
}

/// Checks a tree against a declaration and brings it into the one form the rest relies on.
/// `None` means that this source leaves the setting to the sources below.
pub(crate) fn canonical(
    setting: &Setting,
    node: Node,
    user_home: Option<&Path>,
) -> Result<Option<Node>, SettingsError> {
    if node.is_null() {
        return Ok(absent(setting, node.origin));
    }
    match (setting.kind(), node.data) {
        (Kind::Map, Data::Map(map)) => Ok(Some(Node {
            data: Data::Map(map),
            origin: node.origin,
        })),
        (Kind::PerProvider, Data::Map(map)) => providers(setting, map, node.origin).map(Some),
        (Kind::List, Data::List(items)) => list(setting, items, node.origin).map(Some),
        (Kind::Maps, Data::List(items)) => {
            match items.iter().find(|item| !matches!(item.data, Data::Map(_))) {
                Some(item) => {
                    let found = "a list with other things than maps".to_owned();
                    Err(mismatch(setting, item.origin.clone(), found))
                }
                None => Ok(Some(Node {
                    data: Data::List(items),
                    origin: node.origin,
                })),
            }
        }
        (_, Data::Scalar(scalar)) => from_scalar(setting, &scalar, node.origin, user_home),
        (_, Data::List(_)) => Err(mismatch(setting, node.origin, "a list".to_owned())),
        (_, Data::Map(_)) => Err(mismatch(setting, node.origin, "a map".to_owned())),
    }
}

/// What `null` means for a setting.
fn absent(setting: &Setting, origin: Origin) -> Option<Node> {
    match setting.kind() {
        Kind::Map | Kind::PerProvider => Some(Node {
            data: Data::Map(Map::replacing(Vec::new())),
            origin,
        }),
        _ if setting.is_nullable() => Some(Node::null(origin)),
        Kind::List | Kind::Maps => Some(Node {
            data: Data::List(Vec::new()),
            origin,
        }),
        _ => None,
    }
}

fn from_scalar(
    setting: &Setting,
    scalar: &Scalar,
    origin: Origin,
    user_home: Option<&Path>,
) -> Result<Option<Node>, SettingsError> {
    let text = scalar.text.trim();
    if text.is_empty() && !matches!(setting.kind(), Kind::List | Kind::Map) {
        return Ok(absent(setting, origin));
    }
    let node = match setting.kind() {
        Kind::Text | Kind::PerProvider if !setting.fits(text) => None,
        Kind::Text => Some(Node::text(text, origin.clone())),
        Kind::Path => expand(text, user_home).map(|path| Node::text(path, origin.clone())),
        Kind::Bool => {
            boolean(text).map(|flag| Node::scalar(text, Atom::Bool(flag), origin.clone()))
        }
        Kind::Integer => {
            integer(setting, scalar).map(|n| Node::scalar(text, Atom::Int(n), origin.clone()))
        }
        Kind::Number => {
            number(setting, scalar).map(|n| Node::scalar(text, Atom::Float(n), origin.clone()))
        }
        Kind::Choice(words) => {
            let word = words.iter().find(|word| word.eq_ignore_ascii_case(text));
            word.map(|word| Node::text(*word, origin.clone()))
        }
        Kind::List => {
            let items = text
                .split(',')
                .map(str::trim)
                .filter(|item| !item.is_empty());
            let items = items.map(|item| Node::text(item, origin.clone())).collect();
            Some(Node {
                data: Data::List(items),
                origin: origin.clone(),
            })
        }
        Kind::PerProvider => {
            let all = vec![(ANY_PROVIDER.to_owned(), Node::text(text, origin.clone()))];
            Some(Node {
                data: Data::Map(Map::replacing(all)),
                origin: origin.clone(),
            })
        }
        Kind::Map | Kind::Maps => None,
    };
    node.map(Some)
        .ok_or_else(|| invalid(setting, origin, &scalar.text))
}

fn list(setting: &Setting, items: Vec<Node>, origin: Origin) -> Result<Node, SettingsError> {
    let mut texts = Vec::with_capacity(items.len());
    for item in items {
        match item.data {
            Data::Scalar(scalar) if scalar.atom != Atom::Null => {
                texts.push(Node::text(scalar.text, item.origin));
            }
            _ => {
                return Err(mismatch(
                    setting,
                    item.origin,
                    "a list with other things than text".to_owned(),
                ));
            }
        }
    }
    Ok(Node {
        data: Data::List(texts),
        origin,
    })
}

fn providers(setting: &Setting, map: Map, origin: Origin) -> Result<Node, SettingsError> {
    let mut clean = Map::default();
    for (provider, value) in map.into_entries() {
        let Data::Scalar(scalar) = value.data else {
            let found = format!("a map with something other than text for `{provider}`");
            return Err(mismatch(setting, value.origin, found));
        };
        let text = scalar.text.trim();
        let null = scalar.atom == Atom::Null || text.is_empty();
        if !null && !setting.fits(text) {
            return Err(of_entry(&provider, invalid(setting, value.origin, text)));
        }
        let value = if null {
            Node::null(value.origin)
        } else {
            Node::text(text, value.origin)
        };
        clean.insert(provider_key(&provider), value);
    }
    Ok(Node {
        data: Data::Map(clean),
        origin,
    })
}

/// The words for true and false, the same in every source.
fn boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" | "y" | "t" => Some(true),
        "false" | "0" | "no" | "off" | "n" | "f" => Some(false),
        _ => None,
    }
}

fn integer(setting: &Setting, scalar: &Scalar) -> Option<i64> {
    let value = match atom(scalar) {
        Atom::Int(value) => value,
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the value is whole and in range"
        )]
        Atom::Float(value) if value.fract() == 0.0 && value.abs() < 9e15 => value as i64,
        Atom::Float(_) | Atom::Null | Atom::Bool(_) | Atom::Text => return None,
    };
    let (min, max) = setting.limits();
    (min.is_none_or(|min| value >= min) && max.is_none_or(|max| value <= max)).then_some(value)
}

fn number(setting: &Setting, scalar: &Scalar) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "limits and seconds are small")]
    let as_float = |value: i64| value as f64;
    let value = match atom(scalar) {
        Atom::Int(value) => as_float(value),
        Atom::Float(value) if value.is_finite() => value,
        Atom::Float(_) | Atom::Null | Atom::Bool(_) | Atom::Text => return None,
    };
    let (min, max) = setting.limits();
    let fits = min.is_none_or(|min| value >= as_float(min))
        && max.is_none_or(|max| value <= as_float(max));
    fits.then_some(value)
}

/// Quoted numbers and numbers from the environment are numbers, too. There a leading zero is just
/// a zero, not the mark of an octal number as in YAML.
fn atom(scalar: &Scalar) -> Atom {
    let text = scalar.text.trim();
    match scalar.atom {
        Atom::Text => text.parse().map_or_else(|_| yaml::resolve(text), Atom::Int),
        atom => atom,
    }
}

/// Replaces a leading `~`; `None` when there is no home directory to put there.
pub(crate) fn expand(text: &str, user_home: Option<&Path>) -> Option<String> {
    match text.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => Some(format!(
            "{}{rest}",
            user_home?.to_str()?.trim_end_matches('/')
        )),
        _ => Some(text.to_owned()),
    }
}

/// A wrong text, quoted in the error unless it may be a secret.
pub(crate) fn invalid(setting: &Setting, origin: Origin, text: &str) -> SettingsError {
    const LONGEST: usize = 60;
    let found = if matches!(setting.kind(), Kind::Map | Kind::Maps) {
        "a single value".to_owned()
    } else if setting.is_secret() || is_sensitive_name(setting.key()) || may_hide(setting, text) {
        "a text that is not shown".to_owned()
    } else if text.chars().count() > LONGEST || text.chars().any(char::is_control) {
        let shown: String = text
            .chars()
            .take(LONGEST)
            .filter(|c| !c.is_control())
            .collect();
        format!("`{shown}…`")
    } else {
        format!("`{text}`")
    };
    mismatch(setting, origin, found)
}

/// The same, with the name of the entry.
fn of_entry(provider: &str, mut error: SettingsError) -> SettingsError {
    if let SettingsError::Invalid { key, .. } = &mut error {
        *key = format!("{key}.{provider}");
    }
    error
}

/// Whether a text has a password or a key in it, or what may well be one.
pub(crate) fn may_hide(setting: &Setting, text: &str) -> bool {
    show::url_password(text).is_some() || (setting.has_form() && show::has_extras(text))
}

fn mismatch(setting: &Setting, origin: Origin, found: String) -> SettingsError {
    SettingsError::Invalid {
        origin,
        key: setting.key().to_owned(),
        found,
        expected: setting.expected(),
    }
}
