//! Replaces text byte for byte. Line endings, encoding and the end of the file stay unchanged.

use bub_kernel::{Error, Result};
use memchr::memmem;

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

/// Replaces `old` with `new` in a file's content. Without `all`, `old` must occur exactly once. Returns the new content
/// and the number of replacements.
pub(super) fn apply_edit(content: &[u8], change: &EditRequest<'_>) -> Result<(Vec<u8>, usize)> {
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
    let count = if change.all {
        memmem::find_iter(tail, old).count()
    } else {
        let matches: Vec<usize> = overlapping_matches(tail, old.as_bytes())
            .take(MAX_COUNTED_MATCHES)
            .collect();
        if matches.len() > 1 {
            return Err(ambiguous_error(content, from, change, &matches));
        }
        matches.len()
    };
    if count == 0 {
        return Err(not_found_error(content, change));
    }
    let added = count.saturating_mul(new.len().saturating_sub(old.len()));
    if added as u64 > MAX_EDIT_BYTES {
        return Err(Error::invalid_input(format!(
            "{} would grow by {added} bytes; use a program such as sed",
            change.path
        )));
    }
    let mut edited = Vec::with_capacity(content.len() + added);
    edited.extend_from_slice(content.get(..from).unwrap_or_default());
    let mut done = 0;
    for at in memmem::find_iter(tail, old) {
        edited.extend_from_slice(tail.get(done..at).unwrap_or_default());
        edited.extend_from_slice(new.as_bytes());
        done = at + old.len();
    }
    edited.extend_from_slice(tail.get(done..).unwrap_or_default());
    Ok((edited, count))
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

/// Returns a hint why `old` was not found by an edit: it occurs only before the line where the search starts, or with
/// other line endings or whitespace.
fn mismatch_hint(content: &[u8], old: &str) -> Option<String> {
    if let Some(at) = memmem::find(content, old.as_bytes()) {
        return Some(format!(
            "it is at line {}, before `start`",
            line_number(content, at)
        ));
    }
    let with_unix_ends = |text| String::from_utf8_lossy(text).replace("\r\n", "\n");
    if with_unix_ends(content).contains(&with_unix_ends(old.as_bytes())) {
        let (in_file, in_old) = if old.contains("\r\n") {
            ("\\n", "\\r\\n")
        } else {
            ("\\r\\n", "\\n")
        };
        return Some(format!(
            "the line endings differ: {in_file} in the file, {in_old} in `old`"
        ));
    }
    let bytes = |text| -> Vec<u8> { collapse_whitespace(text).map(|(byte, _)| byte).collect() };
    let needle = bytes(old.trim().as_bytes());
    let at = memmem::find(&bytes(content), &needle).filter(|_| !needle.is_empty())?;
    let (_, line) = collapse_whitespace(content).nth(at)?;
    Some(format!(
        "the same text with different whitespace is at line {line} (starting at 0); read it again"
    ))
}

/// Returns each byte of a text with the number of its line, starting at 0. Consecutive whitespace becomes one space.
fn collapse_whitespace(text: &[u8]) -> impl Iterator<Item = (u8, usize)> + '_ {
    let mut line = 0;
    let mut was_space = false;
    text.iter().filter_map(move |byte| {
        let is_space = byte.is_ascii_whitespace();
        let filtered =
            (!is_space || !was_space).then_some((if is_space { b' ' } else { *byte }, line));
        was_space = is_space;
        line += usize::from(*byte == b'\n');
        filtered
    })
}
