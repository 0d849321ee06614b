//! Halves of a character in JSON escapes.
//!
//! A `\ud83d` without its other half is no text, and a parser that refuses it would lose the whole string, be it
//! an answer or the arguments of a call. Servers that cut a string between UTF-16 units send just that.

use std::borrow::Cow;

/// The JSON text with a replacement character for each half that stands alone.
pub(super) fn replace_lone_surrogates(json: &[u8]) -> Cow<'_, [u8]> {
    let mut mended = Cow::Borrowed(json);
    let mut at = 0;
    while let Some(found) = json.get(at..).and_then(|rest| memchr::memchr(b'\\', rest)) {
        let slash = at + found;
        at = slash
            + match (unit(json, slash), unit(json, slash + ESCAPE_BYTES)) {
                (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => 2 * ESCAPE_BYTES,
                (Some(0xd800..=0xdfff), _) => {
                    if let Some(half) = mended.to_mut().get_mut(slash..slash + ESCAPE_BYTES) {
                        half.copy_from_slice(br"\ufffd");
                    }
                    ESCAPE_BYTES
                }
                // Of any other escape the second character may be a backslash.
                _ => 2,
            };
    }
    mended
}

/// The length of `\uXXXX`.
const ESCAPE_BYTES: usize = 6;

/// The UTF-16 unit that is escaped here, if one is.
fn unit(json: &[u8], at: usize) -> Option<u16> {
    let digits = json.get(at..at + ESCAPE_BYTES)?.strip_prefix(br"\u")?;
    u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}
