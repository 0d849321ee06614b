//! Reads parts of a line without decoding it.
//!
//! The functions understand only the format that bub writes and return `None` for any other line. [`LineMetaFilter`]
//! keeps such lines, because the decoder checks them later.

use std::ops::Range;

use memchr::{memchr, memmem, memrchr};

use super::dates::TimestampRange;
use crate::{EntryKind, LineFilter};

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

impl LineMetaFilter {
    /// Keeps those of `candidates`, and of the lines with escaped characters, that may match. The latter are lines in
    /// which a search cannot find an ASCII character, or also a non-ASCII character if `non_ascii` is set.
    pub(crate) fn keep_lines(
        &self,
        lines: &[u8],
        candidates: impl Iterator<Item = Range<usize>>,
        non_ascii: bool,
        keep: &mut Vec<Range<usize>>,
    ) {
        let can_match = |line: &Range<usize>| {
            lines
                .get(line.clone())
                .is_some_and(|line| self.can_match(line))
        };
        let mut kept: Vec<_> = candidates.filter(can_match).collect();
        let count = kept.len();
        kept.extend(escaped_lines(lines, non_ascii).filter(can_match));
        if kept.len() > count {
            kept.sort_unstable_by_key(|line| line.start);
            kept.dedup();
        }
        keep.append(&mut kept);
    }
}

impl LineFilter for LineMetaFilter {
    fn filter(&self, lines: &[u8], keep: &mut Vec<Range<usize>>) {
        keep.extend(line_ranges(lines).filter(|line| {
            lines
                .get(line.clone())
                .is_some_and(|line| self.can_match(line))
        }));
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

/// Returns the ranges of the lines in which a character is written as an escape `\uXXXX`. A search for the bytes of the
/// character does not find such a line.
///
/// Without `non_ascii`, only escapes of ASCII characters count. Escapes of control characters below U+0020 never count,
/// because JSON always escapes these characters.
fn escaped_lines(lines: &[u8], non_ascii: bool) -> impl Iterator<Item = Range<usize>> {
    let mut next = 0;
    std::iter::from_fn(move || {
        loop {
            let offset = next + memmem::find(lines.get(next..)?, b"\\u")?;
            next = offset + 2;
            let digits = lines.get(next..next + 4).unwrap_or_default();
            let code = std::str::from_utf8(digits).ok();
            let code = code.and_then(|digits| u32::from_str_radix(digits, 16).ok());
            if code.is_some_and(|code| (0x20..0x80).contains(&code) || non_ascii && code >= 0x80) {
                let line = line_at(lines, offset);
                next = line.end;
                return Some(line);
            }
        }
    })
}
