//! Lone surrogates in JSON escapes.
//!
//! Servers that split a string between UTF-16 units send a `\ud83d` without its second half. JSON parsers reject it,
//! and the complete string would be lost: an answer or the arguments of a tool call.

use std::borrow::Cow;

/// Replaces each lone surrogate in a JSON text with the replacement character U+FFFD.
pub(super) fn replace_lone_surrogates(json: &[u8]) -> Cow<'_, [u8]> {
    let mut repaired = Cow::Borrowed(json);
    let mut at = 0;
    while let Some(offset) = json.get(at..).and_then(|rest| memchr::memchr(b'\\', rest)) {
        let slash = at + offset;
        at = slash
            + match (
                utf16_unit(json, slash),
                utf16_unit(json, slash + ESCAPE_BYTES),
            ) {
                (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => 2 * ESCAPE_BYTES,
                (Some(0xd800..=0xdfff), _) => {
                    if let Some(surrogate) = repaired.to_mut().get_mut(slash..slash + ESCAPE_BYTES)
                    {
                        surrogate.copy_from_slice(br"\ufffd");
                    }
                    ESCAPE_BYTES
                }
                // Skip two bytes, because the escaped character may be a backslash.
                _ => 2,
            };
    }
    repaired
}

/// The length of `\uXXXX`.
const ESCAPE_BYTES: usize = 6;

/// Returns the UTF-16 unit of the `\uXXXX` escape at this position, if there is one.
fn utf16_unit(json: &[u8], at: usize) -> Option<u16> {
    let digits = json.get(at..at + ESCAPE_BYTES)?.strip_prefix(br"\u")?;
    u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}
