//! Reads parts of a line without decoding it.
//!
//! The functions read lines in the format that bub writes and return `None` for other lines. A filter accepts such
//! lines, because the decoder checks them later.

use std::ops::Range;

use memchr::{memchr, memmem, memrchr};

use super::dates::TimestampRange;
use crate::EntryKind;

/// Number of bytes at the end of a line to search for the date. The date with its key is shorter.
const DATE_TAIL_BYTES: usize = 64;

/// Filters lines by kind and date, which are at the start and at the end of a line.
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

    /// Returns whether the filter accepts all lines.
    pub(crate) fn accepts_all(&self) -> bool {
        self.kinds.is_empty() && self.dates.is_unbounded()
    }

    /// Returns whether the kind and date of a line may match.
    pub(crate) fn can_match(&self, line: &[u8]) -> bool {
        let is_kind_allowed = self.kinds.is_empty()
            || line_kind(line).is_none_or(|kind| {
                self.kinds
                    .iter()
                    .any(|allowed| allowed.as_str().as_bytes() == kind)
            });
        is_kind_allowed
            && (self.dates.is_unbounded()
                || line_date(line).is_none_or(|date| self.dates.contains(date)))
    }
}

/// Returns the range of the line at an offset, with its newline.
pub(crate) fn line_at(lines: &[u8], offset: usize) -> Range<usize> {
    let (before, after) = lines.split_at_checked(offset).unwrap_or((lines, &[]));
    let start = memrchr(b'\n', before).map_or(0, |newline| newline + 1);
    let end = memchr(b'\n', after).map_or(lines.len(), |newline| offset + newline + 1);
    start..end
}

/// Returns the ranges of all lines, with their newlines.
pub(crate) fn line_ranges(lines: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let rest = lines.get(start..).filter(|rest| !rest.is_empty())?;
        let length = memchr(b'\n', rest).map_or(rest.len(), |newline| newline + 1);
        let range = start..start + length;
        start += length;
        Some(range)
    })
}

/// Returns the `kind` of a line whose first two keys are `id` and `kind`.
pub(crate) fn line_kind(line: &[u8]) -> Option<&[u8]> {
    let rest = line.strip_prefix(b"{\"id\": ")?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let rest = rest.get(digits..)?.strip_prefix(b", \"kind\": \"")?;
    let kind = rest.get(..memchr(b'"', rest)?)?;
    memchr(b'\\', kind).is_none().then_some(kind)
}

/// Returns the `date` of a line whose last key is `date`. The searched bytes `, "date": "` cannot occur in a string,
/// where quotes are escaped. They cannot belong to a nested object either, because only one brace follows.
fn line_date(line: &[u8]) -> Option<&str> {
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

/// Calls `on_line` with each line that contains a relevant character as `\uXXXX`. Such a line cannot be searched as
/// bytes.
///
/// With `non_ascii`, all characters but control characters are relevant, and only those in ASCII otherwise. Control
/// characters are always escaped, so they do not matter.
pub(crate) fn for_each_escaped_line(
    lines: &[u8],
    non_ascii: bool,
    mut on_line: impl FnMut(Range<usize>),
) {
    let mut next = 0;
    while let Some(escape) = lines
        .get(next..)
        .and_then(|rest| memmem::find(rest, b"\\u"))
    {
        let offset = next + escape;
        next = offset + 2;
        let code = lines
            .get(next..next + 4)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        let code = code.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        if code.is_some_and(|code| (0x20..0x80).contains(&code) || non_ascii && code >= 0x80) {
            let line = line_at(lines, offset);
            next = line.end;
            on_line(line);
        }
    }
}
