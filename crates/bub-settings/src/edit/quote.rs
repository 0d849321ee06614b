//! Values as YAML that every reader takes for the same: quoted wherever one of them might guess.

use std::fmt::Write as _;

use serde_json::Value;

use crate::node::Atom;
use crate::yaml;

/// A value on one line; `in_flow` when it stands between brackets.
pub(super) fn inline(value: &Value, in_flow: bool) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            // The original takes `1e3` for text.
            Some(float) if float.fract() == 0.0 => format!("{float:.1}"),
            Some(float) => float.to_string(),
            None => number.to_string(),
        },
        Value::String(string) => text(string, in_flow),
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(|item| inline(item, true)).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(map) => {
            let entries: Vec<_> = map
                .iter()
                .map(|(key, value)| format!("{}: {}", text(key, true), inline(value, true)))
                .collect();
            format!("{{{}}}", entries.join(", "))
        }
    }
}

/// A path of keys with a value, between brackets.
pub(super) fn nested_inline(path: &[&str], value: &Value) -> String {
    match path.split_first() {
        None => inline(value, true),
        Some((key, [])) => format!("{}: {}", text(key, true), inline(value, true)),
        Some((key, rest)) => format!("{}: {{{}}}", text(key, true), nested_inline(rest, value)),
    }
}

/// Text with the quotes it needs.
pub(super) fn text(text: &str, in_flow: bool) -> String {
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

/// Words, names and addresses; whatever begins like a number, a date or a mark is quoted.
fn is_plain(text: &str, in_flow: bool) -> bool {
    let allowed = |c: char| {
        c.is_ascii_alphanumeric() || "_-./@+".contains(c) || (!in_flow && ":, ".contains(c))
    };
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/' || c == '_')
        && text.chars().all(allowed)
        && !text.ends_with([':', ' '])
        && !text.contains(": ")
        && !matches!(text, "y" | "Y" | "n" | "N")
        && yaml::resolve(text) == Atom::Text
}

/// What YAML allows as it is.
fn is_printable(character: char) -> bool {
    !character.is_control()
        && !matches!(
            character,
            '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}'
        )
}
