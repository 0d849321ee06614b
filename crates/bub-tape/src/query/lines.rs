//! Reads parts of a line without decoding it.
//!
//! The functions understand only the format that bub writes and return `None` for any other line. [`LineMetaFilter`]
//! keeps such lines, because the decoder checks them later.

use std::ops::Range;

use jiff::Timestamp;
use memchr::{memchr, memmem, memrchr};

use super::dates::TimestampRange;
use crate::{Entry, EntryKind, LineFilter};

/// Number of bytes at the end of a line to search for the date. The date with its key is shorter.
const DATE_TAIL_BYTES: usize = 64;

/// Filters lines by kind and date, which are at the start and at the end of a line.
#[derive(Debug, Clone, Default)]
pub(crate) struct LineMetaFilter {
    /// The kinds of entries; empty means all.
    pub(crate) kinds: Vec<EntryKind>,
    pub(crate) dates: TimestampRange,
}

impl LineMetaFilter {
    /// Returns whether the kind and date of an entry match.
    pub(crate) fn matches(&self, entry: &Entry) -> bool {
        (self.kinds.is_empty() || self.kinds.contains(&entry.kind))
            && self.dates.contains(&entry.date)
    }

    /// Replaces the kinds and restricts the dates.
    pub(crate) fn narrow(
        &mut self,
        kinds: Option<Vec<EntryKind>>,
        after: Option<Timestamp>,
        before: Option<Timestamp>,
    ) {
        self.kinds = kinds.unwrap_or(std::mem::take(&mut self.kinds));
        self.dates.narrow(after, before);
    }

    /// Returns whether the filter accepts all lines.
    pub(crate) fn accepts_all(&self) -> bool {
        self.kinds.is_empty() && self.dates.is_unbounded()
    }

    /// Returns whether the kind and date of a line may match.
    pub(crate) fn can_match(&self, line: &[u8]) -> bool {
        let is_wanted = |kind: &[u8]| {
            let mut kinds = self.kinds.iter();
            kinds.any(|wanted| wanted.as_str().as_bytes() == kind)
        };
        (self.kinds.is_empty() || line_kind(line).is_none_or(is_wanted))
            && (self.dates.is_unbounded()
                || line_date(line).is_none_or(|date| self.dates.contains(date)))
    }

    /// Returns whether the line at the range `line` of `lines` may match.
    pub(crate) fn can_match_at(&self, lines: &[u8], line: &Range<usize>) -> bool {
        lines
            .get(line.clone())
            .is_some_and(|line| self.can_match(line))
    }
}

impl LineFilter for LineMetaFilter {
    fn filter(&self, lines: &[u8], keep: &mut Vec<Range<usize>>) {
        keep.extend(line_ranges(lines).filter(|line| self.can_match_at(lines, line)));
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

/// Returns whether the bytes at an offset are an escape `\uXXXX` of a character that need not be escaped. A search for
/// the bytes of the character does not find it.
///
/// Without `non_ascii`, only escapes of ASCII characters count. Escapes of control characters below U+0020 never count,
/// because JSON always escapes these characters.
pub(crate) fn is_escaped_char(lines: &[u8], offset: usize, non_ascii: bool) -> bool {
    let escape = lines.get(offset..offset + 6).unwrap_or_default();
    let digits = escape.strip_prefix(b"\\u").map(std::str::from_utf8);
    let code = digits.and_then(|digits| u32::from_str_radix(digits.ok()?, 16).ok());
    code.is_some_and(|code| (0x20..0x80).contains(&code) || non_ascii && code >= 0x80)
}
