//! From trees to values, with and without their secrets.

use serde_json::{Number, Value};

use crate::node::{Atom, Node, NodeData, Scalar};
use crate::secret::{MASK, is_sensitive_name};
use crate::spec::{SettingSpec, ValueKind};
use crate::types::ANY_PROVIDER;

/// A tree as data, secrets included.
pub(crate) fn value(setting: &SettingSpec, node: &Node) -> Value {
    build(for_all(setting, node), "", &|_, scalar| plain(scalar))
}

/// A tree that belongs to no setting as data.
///
/// `1e3` is text here, as for `PyYAML`: no declaration says that a number is meant.
pub(crate) fn bare(node: &Node) -> Value {
    build(node, "", &|_, scalar| match scalar.atom {
        Atom::Float(_) if !is_float_of_original(&scalar.text) => Value::from(scalar.text.as_str()),
        _ => plain(scalar),
    })
}

/// Whether `PyYAML` reads a number: there is a point, and an exponent has a sign.
fn is_float_of_original(text: &str) -> bool {
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "+0"));
    mantissa.contains('.') && exponent.starts_with(['-', '+'])
}

/// A tree as data that may be shown; `key` is its own name.
pub(crate) fn masked(setting: &SettingSpec, key: &str, node: &Node) -> Value {
    build(for_all(setting, node), key, &|key, scalar| {
        let hidden = is_secret(setting, key) && scalar.atom != Atom::Null;
        match plain(scalar) {
            _ if hidden => Value::from(MASK),
            Value::String(text) => Value::from(without_secrets(key, text)),
            value => value,
        }
    })
}

/// Whether the leaf under `key` is a secret: because the setting is, or because a free-form map
/// has an entry of that name.
pub(crate) fn is_secret(setting: &SettingSpec, key: &str) -> bool {
    let in_map = || matches!(setting.kind(), ValueKind::Map | ValueKind::Maps);
    setting.is_secret() || (in_map() && (is_sensitive_name(key) || are_headers(key)))
}

/// The name that says whether the entry `child` of the map at `key` is a secret. Headers are called as somebody likes.
pub(crate) fn name_in<'a>(key: &'a str, child: &'a str) -> &'a str {
    if are_headers(key) { key } else { child }
}

fn are_headers(key: &str) -> bool {
    key.ends_with("headers")
}

/// The password in `scheme://user:password@host`.
pub(crate) fn url_password(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let (user, _) = authority.rsplit_once('@')?;
    user.split_once(':')
        .map(|(_, password)| password)
        .filter(|password| !password.is_empty())
}

/// The values in the query of an address that are secrets by their names.
pub(crate) fn query_secrets(text: &str) -> impl Iterator<Item = &str> {
    let query = text
        .split_once("://")
        .and_then(|(_, rest)| rest.split_once('?'))
        .map_or("", |(_, query)| query);
    let pairs = query
        .split(['&', '#'])
        .filter_map(|pair| pair.split_once('='));
    pairs
        .filter(|(name, _)| is_sensitive_name(name))
        .map(|(_, value)| value)
}

/// Whether a text that should be an address may have more in it than an address: a password, a key in its query.
pub(crate) fn has_extras(text: &str) -> bool {
    text.contains(['@', '?', '#'])
}

/// An address without what may be secret in it: a password, or a token in its place, and query and fragment.
fn without_secrets(key: &str, text: String) -> String {
    const URL_KEYS: [&str; 7] = ["url", "base", "proxy", "endpoint", "address", "host", "dsn"];
    let is_address = URL_KEYS.iter().any(|name| key.ends_with(name))
        || (text.contains("://") && !text.contains(char::is_whitespace));
    if !is_address || !has_extras(&text) {
        return text;
    }
    let (scheme, rest) = text
        .split_once("//")
        .map_or(("", text.as_str()), |(_, rest)| {
            text.split_at(text.len() - rest.len())
        });
    let (user, host) = match rest.rsplit_once('@') {
        None => (String::new(), rest),
        Some((user, host)) => {
            let name = user
                .split_once(':')
                .map_or(String::new(), |(name, _)| format!("{name}:"));
            (format!("{name}{MASK}@"), host)
        }
    };
    let cut = host
        .find(['?', '#'])
        .and_then(|at| host.get(..=at))
        .map(|shown| format!("{shown}{MASK}"));
    format!("{scheme}{user}{}", cut.as_deref().unwrap_or(host))
}

fn build(node: &Node, key: &str, leaf: &dyn Fn(&str, &Scalar) -> Value) -> Value {
    match &node.data {
        NodeData::Scalar(scalar) => leaf(key, scalar),
        NodeData::List(items) => items.iter().map(|item| build(item, key, leaf)).collect(),
        NodeData::Map(map) => map
            .iter()
            .map(|(child, node)| (child, build(node, name_in(key, child), leaf)))
            .collect(),
    }
}

/// One value for all providers is written, and shown, without a map.
fn for_all<'a>(setting: &SettingSpec, node: &'a Node) -> &'a Node {
    let NodeData::Map(map) = &node.data else {
        return node;
    };
    let mut entries = map.iter();
    match (setting.kind(), entries.next(), entries.next()) {
        (ValueKind::PerProvider, Some((ANY_PROVIDER, only)), None) => only,
        _ => node,
    }
}

fn plain(scalar: &Scalar) -> Value {
    match scalar.atom {
        Atom::Null => Value::Null,
        Atom::Bool(flag) => Value::Bool(flag),
        Atom::Int(number) => Value::from(number),
        Atom::Float(number) => Number::from_f64(number).map_or(Value::Null, Value::Number),
        Atom::Text => Value::from(scalar.text.as_str()),
    }
}
