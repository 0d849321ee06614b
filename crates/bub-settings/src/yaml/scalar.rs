//! Type and value of YAML scalars.

use crate::node::Atom;

/// Returns the type and value of a scalar, which depend on its tag and on whether it is unquoted
/// (`plain`). Returns `None` if the text does not fit the tag.
pub(super) fn scalar_atom(text: &str, plain: bool, tag: Option<&str>) -> Option<Atom> {
    let Some(tag) = tag else {
        return Some(if plain {
            plain_scalar_atom(text)
        } else {
            Atom::Text
        });
    };
    let value = plain_scalar_atom(text);
    match (tag, value) {
        ("str", _) => Some(Atom::Text),
        ("null", Atom::Null)
        | ("bool", Atom::Bool(_))
        | ("int", Atom::Int(_))
        | ("float", Atom::Float(_)) => Some(value),
        #[expect(clippy::cast_precision_loss, reason = "the user asked for a float")]
        ("float", Atom::Int(number)) => Some(Atom::Float(number as f64)),
        _ => None,
    }
}

/// Returns the type and value of an unquoted scalar.
pub(crate) fn plain_scalar_atom(text: &str) -> Atom {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Atom::Null,
        "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => Atom::Bool(true),
        "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => {
            Atom::Bool(false)
        }
        _ => {
            let float = || parse_float(text).map(Atom::Float);
            let number = parse_integer(text).map(Atom::Int).or_else(float);
            number.unwrap_or(Atom::Text)
        }
    }
}

fn parse_integer(text: &str) -> Option<i64> {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (radix, digits) = match unsigned.as_bytes() {
        [b'0', b'x', ..] => (16, unsigned.get(2..)?),
        [b'0', b'b', ..] => (2, unsigned.get(2..)?),
        [b'0', _, ..] => (8, unsigned.get(1..)?),
        [b'0'..=b'9', ..] => (10, unsigned),
        _ => return None,
    };
    let digits = digits.replace('_', "");
    if !digits.chars().all(|digit| digit.is_digit(radix)) {
        return None;
    }
    let sign = if text.starts_with('-') { "-" } else { "" };
    i64::from_str_radix(&format!("{sign}{digits}"), radix).ok()
}

fn parse_float(text: &str) -> Option<f64> {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let starts = unsigned.starts_with(|c: char| c.is_ascii_digit())
        || (unsigned.starts_with('.')
            && unsigned.as_bytes().get(1).is_some_and(u8::is_ascii_digit));
    let shaped = unsigned.contains(['.', 'e', 'E']);
    let allowed = |c: char| c.is_ascii_digit() || matches!(c, '.' | '_' | 'e' | 'E' | '-' | '+');
    if !starts || !shaped || !unsigned.chars().all(allowed) {
        return None;
    }
    let value: f64 = text.replace('_', "").parse().ok()?;
    value.is_finite().then_some(value)
}
