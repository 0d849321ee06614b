//! A lenient JSON parser for text that strict parsers reject.
//!
//! Python writes `NaN` and `Infinity`, and model output may contain lone surrogates such as `\ud800`. [`Value`] cannot
//! represent them. The parser reads `NaN` and `Infinity` as `null`, and lone surrogates as U+FFFD, because losing one
//! value or character is better than losing the entry.

use std::thread;

use serde::{Deserialize as _, de::IgnoredAny};
use serde_json::{Deserializer, Value};

/// Maximum nesting depth. Deeper documents are rejected because they could overflow the stack.
const MAX_DEPTH: usize = 1_000;
/// Nesting depth that `serde_json` rejects.
const SERDE_MAX_DEPTH: usize = 128;
/// Stack size in bytes for text of [`MAX_DEPTH`]. The stack of other threads may be too small.
const STACK_BYTES: usize = 16 * 1024 * 1024;

/// Parses JSON leniently: `NaN` and infinities become `null`, lone surrogates become U+FFFD.
///
/// Returns `None` if the text is not JSON even with these exceptions.
///
/// ```
/// let value = bub_tape::parse_json_lossy(r#"{"score": NaN}"#);
/// assert_eq!(value, Some(serde_json::json!({"score": null})));
/// ```
pub fn parse_json_lossy(text: &str) -> Option<Value> {
    serde_json::from_str(text)
        .ok()
        .or_else(|| parse_json_lenient(text))
}

/// Parses JSON with the lenient parser, without trying the strict parser first.
pub(crate) fn parse_json_lenient(text: &str) -> Option<Value> {
    let (strict, depth) = to_strict_json(text)?;
    if depth < SERDE_MAX_DEPTH {
        return serde_json::from_str(&strict).ok();
    }
    thread::scope(|scope| {
        let builder = thread::Builder::new().stack_size(STACK_BYTES);
        let parse = || {
            let mut deserializer = Deserializer::from_str(&strict);
            deserializer.disable_recursion_limit();
            let value = Value::deserialize(&mut deserializer).ok()?;
            deserializer.end().ok().map(|()| value)
        };
        builder.spawn_scoped(scope, parse).ok()?.join().ok()?
    })
}

/// Replaces what strict parsers reject, and returns the nesting depth of the text. Returns `None` if a string does not
/// end, or if the text is nested too deeply.
fn to_strict_json(text: &str) -> Option<(String, usize)> {
    let mut strict = String::with_capacity(text.len());
    let (mut rest, mut depth, mut max_depth) = (text, 0_usize, 0);
    while !rest.is_empty() {
        let is_delimiter =
            |c: char| matches!(c, ',' | ':' | '[' | ']' | '{' | '}' | '"') || c.is_whitespace();
        let (literal, after) = rest.split_at(rest.find(is_delimiter).unwrap_or(rest.len()));
        strict.push_str(if is_unrepresentable(literal) {
            "null"
        } else {
            literal
        });
        let mut characters = after.chars();
        let delimiter = characters.next();
        strict.extend(delimiter);
        rest = characters.as_str();
        match delimiter {
            Some('"') => rest = copy_string(rest, &mut strict)?,
            Some('[' | '{') => depth += 1,
            Some(']' | '}') => depth = depth.saturating_sub(1),
            _ => {}
        }
        max_depth = max_depth.max(depth);
        if depth >= MAX_DEPTH {
            return None;
        }
    }
    Some((strict, max_depth))
}

/// Returns whether a literal is a number that [`Value`] cannot represent: `NaN`, an infinity, or a number that is too
/// large for a double, such as 1e999. Python reads it as infinity.
fn is_unrepresentable(literal: &str) -> bool {
    matches!(literal, "NaN" | "Infinity" | "-Infinity")
        || serde_json::from_str::<IgnoredAny>(literal).is_ok()
            && serde_json::from_str::<Value>(literal).is_err()
}

/// Copies a string up to its closing quote to `strict`, with U+FFFD for lone surrogates. Returns the text after the
/// string.
fn copy_string<'a>(mut rest: &'a str, strict: &mut String) -> Option<&'a str> {
    loop {
        let (plain, special) = rest.split_at(rest.find(['"', '\\'])?);
        strict.push_str(plain);
        if let Some(after) = special.strip_prefix('"') {
            strict.push('"');
            return Some(after);
        }
        let next = special.get(6..).and_then(escaped_code);
        let length = match escaped_code(special) {
            Some(0xd800..0xdc00) if next.is_some_and(|code| (0xdc00..0xe000).contains(&code)) => 12,
            Some(0xd800..0xe000) => {
                strict.push_str("\\ufffd");
                rest = special.get(6..)?;
                continue;
            }
            _ => 2,
        };
        strict.push_str(special.get(..length)?);
        rest = special.get(length..)?;
    }
}

/// Returns the code of the escape `\uXXXX` at the start of a text.
fn escaped_code(text: &str) -> Option<u16> {
    u16::from_str_radix(text.strip_prefix("\\u")?.get(..4)?, 16).ok()
}
