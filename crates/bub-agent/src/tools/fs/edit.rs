//! Replaces text byte for byte. Line endings, encoding and the end of the file stay unchanged.

use bub_kernel::{Error, Result};
use memchr::memmem;

use super::whitespace::{self, Replacement};
use crate::truncate;

/// Maximum size of a file to edit, and maximum number of bytes that an edit may add.
pub(super) const MAX_EDIT_BYTES: u64 = 64 << 20;
/// Maximum number of matches counted for an error message.
const MAX_COUNTED_MATCHES: usize = 1000;
const MAX_SHOWN_CHARS: usize = 200;
const MAX_SHOWN_LINES: usize = 10;

/// The arguments of an edit.
pub(super) struct EditRequest<'a> {
    /// The path as the caller wrote it, for errors.
    pub(super) path: &'a str,
    pub(super) old: &'a str,
    pub(super) new: &'a str,
    /// The first line to search, starting at 0.
    pub(super) start: usize,
    pub(super) all: bool,
}

/// The result of an edit.
pub(super) struct EditOutcome {
    pub(super) content: Vec<u8>,
    /// The number of replacements.
    pub(super) count: usize,
    /// The line, starting at 0, where `old` was found with other whitespace.
    pub(super) similar_line: Option<usize>,
}

/// Replaces `old` with `new` in a file's content. Without `all`, `old` must occur exactly once. If it does not occur, text
/// that differs only in whitespace is replaced, which must occur exactly once, too.
pub(super) fn apply_edit(content: &[u8], change: &EditRequest<'_>) -> Result<EditOutcome> {
    let EditRequest { old, new, .. } = *change;
    if old.is_empty() {
        return Err(Error::invalid_input(
            "`old` is empty; pass the text to replace, or write the file with fs.write",
        ));
    }
    if old == new {
        return Err(Error::invalid_input(
            "`old` and `new` are equal; pass different text as `new`",
        ));
    }
    let from = line_start(content, change.start);
    let tail = content.get(from..).unwrap_or_default();
    let matches: Vec<usize> = if change.all {
        memmem::find_iter(tail, old).collect()
    } else {
        overlapping_matches(tail, old.as_bytes())
            .take(MAX_COUNTED_MATCHES)
            .collect()
    };
    if !change.all && matches.len() > 1 {
        return Err(ambiguous_error(content, from, change, &matches));
    }
    let exact = matches.iter().map(|at| Replacement {
        range: from + at..from + at + old.len(),
        text: new.to_owned(),
    });
    let mut replacements: Vec<Replacement> = exact.collect();
    let mut similar_line = None;
    if replacements.is_empty() {
        let similar = similar_match(content, from, change)?;
        similar_line = Some(line_number(content, similar.range.start));
        replacements.push(similar);
    }
    let count = replacements.len();
    let added = count.saturating_mul(new.len().saturating_sub(old.len()));
    if added as u64 > MAX_EDIT_BYTES {
        return Err(Error::invalid_input(format!(
            "{} would grow by {added} bytes; use a program such as sed",
            change.path
        )));
    }
    let mut edited = Vec::with_capacity(content.len() + added);
    let mut done = 0;
    for Replacement { range, text } in replacements {
        edited.extend_from_slice(content.get(done..range.start).unwrap_or_default());
        edited.extend_from_slice(text.as_bytes());
        done = range.end;
    }
    edited.extend_from_slice(content.get(done..).unwrap_or_default());
    Ok(EditOutcome {
        content: edited,
        count,
        similar_line,
    })
}

/// Returns the only place where `old` occurs with other line endings or other whitespace.
fn similar_match(content: &[u8], from: usize, change: &EditRequest<'_>) -> Result<Replacement> {
    let EditRequest { old, new, .. } = *change;
    let line_ending = whitespace::line_ending(content);
    let with_ending = |text: &str| whitespace::with_line_ending(text, line_ending);
    let (old_lines, tail) = (with_ending(old), content.get(from..).unwrap_or_default());
    let found = overlapping_matches(tail, old_lines.as_bytes()).take(MAX_COUNTED_MATCHES);
    let replacement = |at: usize| Replacement {
        range: from + at..from + at + old_lines.len(),
        text: with_ending(new),
    };
    let mut matches: Vec<Replacement> = found.map(replacement).collect();
    if matches.is_empty() && !change.all {
        matches = whitespace::find_matches(content, from, &old.replace("\r\n", "\n"), new);
    }
    match matches.len() {
        0 => Err(not_found_error(content, change)),
        1 => matches
            .pop()
            .ok_or_else(|| not_found_error(content, change)),
        _ => {
            let starts = matches.iter().map(|found| found.range.start - from);
            let starts: Vec<usize> = starts.collect();
            Err(ambiguous_error(content, from, change, &starts))
        }
    }
}

/// Returns the byte offsets of all matches. Overlapping matches are included, because they also make an edit ambiguous.
fn overlapping_matches<'a>(text: &'a [u8], needle: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    let finder = memmem::Finder::new(needle);
    let mut from = 0;
    std::iter::from_fn(move || {
        let at = from + finder.find(text.get(from..)?)?;
        from = at + 1;
        Some(at)
    })
}

/// Returns the byte offset where a line starts, or the length of the content if it has fewer lines.
fn line_start(content: &[u8], line: usize) -> usize {
    let Some(breaks) = line.checked_sub(1) else {
        return 0;
    };
    memchr::memchr_iter(b'\n', content)
        .nth(breaks)
        .map_or(content.len(), |at| at + 1)
}

fn line_number(content: &[u8], at: usize) -> usize {
    memchr::memchr_iter(b'\n', content.get(..at).unwrap_or_default()).count()
}

fn ambiguous_error(
    content: &[u8],
    from: usize,
    change: &EditRequest<'_>,
    matches: &[usize],
) -> Error {
    let lines = matches.iter().take(MAX_SHOWN_LINES);
    let lines = lines.map(|at| line_number(content, from + at).to_string());
    let mut lines: Vec<String> = lines.collect();
    if matches.len() > MAX_SHOWN_LINES {
        lines.push("…".to_owned());
    }
    let at_least = if matches.len() == MAX_COUNTED_MATCHES {
        "at least "
    } else {
        ""
    };
    Error::invalid_input(format!(
        "'{}' occurs {at_least}{} times in {}, at lines {} (starting at 0); include more context in `old`, or set all=true",
        truncate(change.old, MAX_SHOWN_CHARS),
        matches.len(),
        change.path,
        lines.join(", ")
    ))
}

fn not_found_error(content: &[u8], change: &EditRequest<'_>) -> Error {
    let EditRequest {
        path, old, start, ..
    } = *change;
    let hint = mismatch_hint(content, old).map(|hint| format!("; {hint}"));
    let (old, hint) = (truncate(old, MAX_SHOWN_CHARS), hint.unwrap_or_default());
    Error::invalid_input(format!(
        "'{old}' not found in {path} from line {start}{hint}"
    ))
}

/// Returns a hint why `old` was not found by an edit: it occurs only before the line where the search starts, or other text
/// is similar.
fn mismatch_hint(content: &[u8], old: &str) -> Option<String> {
    if let Some(at) = memmem::find(content, old.as_bytes()) {
        return Some(format!(
            "it is at line {}, before `start`",
            line_number(content, at)
        ));
    }
    let (line, text) = whitespace::nearest_text(content, old)?;
    Some(format!(
        "the most similar text is at line {line} (starting at 0):\n{text}"
    ))
}
