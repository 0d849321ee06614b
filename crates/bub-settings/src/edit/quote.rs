//! Writes values as YAML that all parsers read alike: ambiguous text is quoted.

use std::fmt::Write as _;

use serde_json::Value;

use crate::node::Atom;
use crate::yaml;

/// Formats a value on one line; `in_flow` if it is inside brackets.
pub(super) fn format_inline(value: &Value, in_flow: bool) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            // The Python version reads `1e3` as text.
            Some(float) if float.fract() == 0.0 => format!("{float:.1}"),
            Some(float) => float.to_string(),
            None => number.to_string(),
        },
        Value::String(string) => quote_text(string, in_flow),
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(|item| format_inline(item, true)).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(map) => {
            let entries: Vec<_> = map
                .iter()
                .map(|(key, value)| {
                    format!("{}: {}", quote_text(key, true), format_inline(value, true))
                })
                .collect();
            format!("{{{}}}", entries.join(", "))
        }
    }
}

/// Formats nested keys and a value on one line, for use inside braces: `a: {b: 1}`.
pub(super) fn format_nested_inline(path: &[&str], value: &Value) -> String {
    match path.split_first() {
        None => format_inline(value, true),
        Some((key, [])) => format!("{}: {}", quote_text(key, true), format_inline(value, true)),
        Some((key, rest)) => format!(
            "{}: {{{}}}",
            quote_text(key, true),
            format_nested_inline(rest, value)
        ),
    }
}

/// Quotes text if necessary.
pub(super) fn quote_text(text: &str, in_flow: bool) -> String {
    if is_plain(text, in_flow) {
        return text.to_owned();
    }
    if text.chars().all(is_printable) {
        return format!("'{}'", text.replace('\'', "''"));
    }
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            character if is_printable(character) => quoted.push(character),
            character => {
                let _ = write!(quoted, "\\U{:08x}", u32::from(character));
            }
        }
    }
    quoted + "\""
}

/// Returns whether a text needs no quotes, as most words, names and URLs. Text that begins with a
/// digit or with a YAML indicator such as `-` needs quotes.
fn is_plain(text: &str, in_flow: bool) -> bool {
    let allowed = |c: char| {
        c.is_ascii_alphanumeric() || "_-./@+".contains(c) || (!in_flow && ":, ".contains(c))
    };
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/' || c == '_')
        && text.chars().all(allowed)
        && !text.ends_with([':', ' '])
        && !text.contains(": ")
        && !matches!(text, "y" | "Y" | "n" | "N")
        && yaml::plain_scalar_atom(text) == Atom::Text
}

/// Returns whether YAML allows the character unescaped.
fn is_printable(character: char) -> bool {
    !character.is_control()
        && !matches!(
            character,
            '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}'
        )
}
