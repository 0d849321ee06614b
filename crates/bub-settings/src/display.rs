//! Converts [`Node`] trees to JSON values, with or without secrets.

use serde_json::{Number, Value};

use crate::node::{Atom, Node, NodeData, Scalar};
use crate::secret::{MASK, is_sensitive_name};
use crate::spec::{SettingSpec, ValueKind};
use crate::types::ANY_PROVIDER;

/// Converts the value of a setting to JSON, including secrets.
pub(crate) fn to_value(setting: &SettingSpec, node: &Node) -> Value {
    convert_tree(unwrap_any_provider(setting, node), "", &|_, scalar| {
        scalar_to_value(scalar)
    })
}

/// Converts a tree that belongs to no setting to JSON.
///
/// `1e3` is text, as in `PyYAML`, because no declaration asks for a number.
pub(crate) fn undeclared_to_value(node: &Node) -> Value {
    convert_tree(node, "", &|_, scalar| match scalar.atom {
        Atom::Float(_) if !is_pyyaml_float(&scalar.text) => Value::from(scalar.text.as_str()),
        _ => scalar_to_value(scalar),
    })
}

/// Returns whether `PyYAML` reads `text`, a number with a fraction or an exponent, as a float.
/// `PyYAML` requires a decimal point and, if there is an exponent, a sign before its digits.
fn is_pyyaml_float(text: &str) -> bool {
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "+0"));
    mantissa.contains('.') && exponent.starts_with(['-', '+'])
}

/// Converts the value of a setting, or a part of it, to JSON with secrets masked. `key` is the name
/// of the part.
pub(crate) fn to_masked_value(setting: &SettingSpec, key: &str, node: &Node) -> Value {
    convert_tree(unwrap_any_provider(setting, node), key, &|key, scalar| {
        let hidden = is_secret(setting, key) && scalar.atom != Atom::Null;
        match scalar_to_value(scalar) {
            _ if hidden => Value::from(MASK),
            Value::String(text) => Value::from(mask_url_secrets(key, text)),
            value => value,
        }
    })
}

/// Returns whether the leaf under `key` is a secret: its setting is secret, or `key` is a sensitive
/// name in a free-form map.
pub(crate) fn is_secret(setting: &SettingSpec, key: &str) -> bool {
    let in_map = || matches!(setting.kind, ValueKind::Map | ValueKind::Maps);
    setting.secret || (in_map() && (is_sensitive_name(key) || is_headers_map(key)))
}

/// Returns the name that decides whether the entry `child` of the map at `key` is a secret. This is
/// `child`, except in a map of HTTP headers: their names are arbitrary, so the name of the map
/// decides.
pub(crate) fn secret_deciding_name<'a>(key: &'a str, child: &'a str) -> &'a str {
    if is_headers_map(key) { key } else { child }
}

fn is_headers_map(key: &str) -> bool {
    key.ends_with("headers")
}

/// Returns the password in `scheme://user:password@host`.
pub(crate) fn url_password(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let (user, _) = authority.rsplit_once('@')?;
    user.split_once(':')
        .map(|(_, password)| password)
        .filter(|password| !password.is_empty())
}

/// Returns the values of those query parameters in a URL that have the name of a secret: `abc` in
/// `https://host/?token=abc`.
pub(crate) fn query_secrets(text: &str) -> impl Iterator<Item = &str> {
    let rest = text.split_once("://").map_or("", |(_, rest)| rest);
    let query = rest.split_once('?').map_or("", |(_, query)| query);
    query.split(['&', '#']).filter_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        is_sensitive_name(name).then_some(value)
    })
}

/// Returns whether a text that should be a URL may contain a password or a key in its query.
pub(crate) fn may_hold_url_secret(text: &str) -> bool {
    text.contains(['@', '?', '#'])
}

/// Masks possible secrets in a URL: the password (or the whole user part if it has no password),
/// the query and the fragment. Returns text that is not a URL unchanged.
fn mask_url_secrets(key: &str, text: String) -> String {
    const URL_KEYS: [&str; 7] = ["url", "base", "proxy", "endpoint", "address", "host", "dsn"];
    let is_address = URL_KEYS.iter().any(|name| key.ends_with(name))
        || (text.contains("://") && !text.contains(char::is_whitespace));
    if !is_address || !may_hold_url_secret(&text) {
        return text;
    }
    let (scheme, rest) = text.split_at(text.find("//").map_or(0, |at| at + 2));
    let (user, host) = match rest.rsplit_once('@') {
        None => (String::new(), rest),
        Some((user, host)) => {
            let name = user
                .find(':')
                .and_then(|at| user.get(..=at))
                .unwrap_or_default();
            (format!("{name}{MASK}@"), host)
        }
    };
    match host.find(['?', '#']).and_then(|at| host.get(..=at)) {
        Some(visible) => format!("{scheme}{user}{visible}{MASK}"),
        None => format!("{scheme}{user}{host}"),
    }
}

fn convert_tree(node: &Node, key: &str, leaf: &dyn Fn(&str, &Scalar) -> Value) -> Value {
    match &node.data {
        NodeData::Scalar(scalar) => leaf(key, scalar),
        NodeData::List(items) => {
            let items = items.iter();
            items.map(|item| convert_tree(item, key, leaf)).collect()
        }
        NodeData::Map(map) => {
            let entries = map.entries.iter();
            let convert = |(child, node): (&String, &Node)| {
                let value = convert_tree(node, secret_deciding_name(key, child), leaf);
                (child.clone(), value)
            };
            Value::Object(entries.map(convert).collect())
        }
    }
}

/// Returns the value of a per-provider map whose only entry is [`ANY_PROVIDER`]. Returns any other
/// node unchanged.
fn unwrap_any_provider<'a>(setting: &SettingSpec, node: &'a Node) -> &'a Node {
    let mut entries = node.entries();
    match (entries.next(), entries.next()) {
        (Some((key, only)), None)
            if setting.kind == ValueKind::PerProvider && key == ANY_PROVIDER =>
        {
            only
        }
        _ => node,
    }
}

fn scalar_to_value(scalar: &Scalar) -> Value {
    match scalar.atom {
        Atom::Null => Value::Null,
        Atom::Bool(flag) => Value::Bool(flag),
        Atom::Int(number) => Value::from(number),
        Atom::Float(number) => Number::from_f64(number).map_or(Value::Null, Value::Number),
        Atom::Text => Value::from(scalar.text.as_str()),
    }
}
