//! From trees to values, with and without their secrets.

use serde_json::{Number, Value};

use crate::declare::{Kind, Setting};
use crate::node::{Atom, Data, Node, Scalar};
use crate::secret::{MASK, is_sensitive_name};
use crate::types::ANY_PROVIDER;

/// A tree as data, secrets included.
pub(crate) fn value(setting: &Setting, node: &Node) -> Value {
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

/// A tree as data that may be shown.
pub(crate) fn masked(setting: &Setting, node: &Node) -> Value {
    build(for_all(setting, node), setting.key(), &|key, scalar| {
        let hidden = is_secret(setting, key) && scalar.atom != Atom::Null;
        if hidden { Value::from(MASK) } else { without_password(plain(scalar)) }
    })
}

/// Whether the leaf under `key` is a secret: because the setting is, or because a free-form map
/// has an entry of that name.
pub(crate) fn is_secret(setting: &Setting, key: &str) -> bool {
    setting.is_secret() || (matches!(setting.kind(), Kind::Map | Kind::Maps) && is_sensitive_name(key))
}

/// The password in `scheme://user:password@host`.
pub(crate) fn url_password(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let (user, _) = authority.rsplit_once('@')?;
    user.split_once(':').map(|(_, password)| password).filter(|password| !password.is_empty())
}

fn without_password(value: Value) -> Value {
    match value {
        Value::String(text) => match url_password(&text) {
            Some(password) => Value::String(text.replace(&format!(":{password}@"), &format!(":{MASK}@"))),
            None => Value::String(text),
        },
        value => value,
    }
}

fn build(node: &Node, key: &str, leaf: &dyn Fn(&str, &Scalar) -> Value) -> Value {
    match &node.data {
        Data::Scalar(scalar) => leaf(key, scalar),
        Data::List(items) => items.iter().map(|item| build(item, key, leaf)).collect(),
        Data::Map(map) => map.iter().map(|(key, node)| (key, build(node, key, leaf))).collect(),
    }
}

/// One value for all providers is written, and shown, without a map.
fn for_all<'a>(setting: &Setting, node: &'a Node) -> &'a Node {
    let Data::Map(map) = &node.data else { return node };
    let mut entries = map.iter();
    match (setting.kind(), entries.next(), entries.next()) {
        (Kind::PerProvider, Some((ANY_PROVIDER, only)), None) => only,
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
