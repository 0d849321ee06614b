//! Looking at a line without decoding it.
//!
//! Every function here answers for lines as they are usually written and gives up on others; who asks then keeps the
//! line.

use std::ops::Range;

use memchr::{memchr, memmem, memrchr};

use super::dates::TimestampRange;
use crate::EntryKind;

/// A date and what stands around it are shorter than this.
const DATE_TAIL_BYTES: usize = 64;

/// What can be told about a line from its beginning and its end.
#[derive(Debug, Clone, Default)]
pub(crate) struct LineMetaFilter {
    kinds: Vec<EntryKind>,
    dates: TimestampRange,
}

impl LineMetaFilter {
    pub(crate) fn new(kinds: &[EntryKind], dates: TimestampRange) -> Self {
        Self {
            kinds: kinds.to_vec(),
            dates,
        }
    }

    /// Whether it tells lines apart at all.
    pub(crate) fn is_open(&self) -> bool {
        self.kinds.is_empty() && self.dates.is_open()
    }

    /// Whether the line may be wanted.
    pub(crate) fn allows(&self, line: &[u8]) -> bool {
        let wanted_kind = self.kinds.is_empty()
            || kind(line).is_none_or(|kind| {
                self.kinds
                    .iter()
                    .any(|wanted| wanted.as_str().as_bytes() == kind)
            });
        wanted_kind
            && (self.dates.is_open() || date(line).is_none_or(|date| self.dates.contain(date)))
    }
}

/// The line around a place, with its newline.
pub(crate) fn line_at(lines: &[u8], place: usize) -> Range<usize> {
    let (before, after) = lines.split_at_checked(place).unwrap_or((lines, &[]));
    let start = memrchr(b'\n', before).map_or(0, |newline| newline + 1);
    let end = memchr(b'\n', after).map_or(lines.len(), |newline| place + newline + 1);
    start..end
}

/// The ranges of all lines.
pub(crate) fn all(lines: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let rest = lines.get(start..).filter(|rest| !rest.is_empty())?;
        let length = memchr(b'\n', rest).map_or(rest.len(), |newline| newline + 1);
        let range = start..start + length;
        start += length;
        Some(range)
    })
}

/// The `kind` of a line whose first two keys are `id` and `kind`.
pub(crate) fn kind(line: &[u8]) -> Option<&[u8]> {
    let rest = line.strip_prefix(b"{\"id\": ")?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let rest = rest.get(digits..)?.strip_prefix(b", \"kind\": \"")?;
    let kind = rest.get(..memchr(b'"', rest)?)?;
    memchr(b'\\', kind).is_none().then_some(kind)
}

/// The `date` of a line whose last key it is. The quotes in the pattern cannot be inside a text, where they would be
/// escaped, and a single brace at the end closes the line's own object.
fn date(line: &[u8]) -> Option<&str> {
    let line = line
        .strip_suffix(b"\n")
        .unwrap_or(line)
        .strip_suffix(b"\"}")?;
    let tail = line.get(line.len().saturating_sub(DATE_TAIL_BYTES)..)?;
    let key = b", \"date\": \"";
    let value = tail.get(memmem::rfind(tail, key)? + key.len()..)?;
    std::str::from_utf8(value)
        .ok()
        .filter(|date| !date.contains(['\\', '"']))
}

/// Collects the lines in which a character of interest is written as `\uXXXX`: the text of such a line is not its bytes.
///
/// Control characters are always written so and say nothing. `wide` asks for all others, else ASCII alone matters.
pub(crate) fn with_escapes(lines: &[u8], wide: bool, mut each: impl FnMut(Range<usize>)) {
    let mut at = 0;
    while let Some(found) = lines.get(at..).and_then(|rest| memmem::find(rest, b"\\u")) {
        let place = at + found;
        at = place + 2;
        let code = lines
            .get(at..at + 4)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        let code = code.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        if code.is_some_and(|code| (0x20..0x80).contains(&code) || wide && code >= 0x80) {
            let line = line_at(lines, place);
            at = line.end;
            each(line);
        }
    }
}
