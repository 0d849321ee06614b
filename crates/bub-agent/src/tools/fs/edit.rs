//! Replacing text byte for byte: whatever the line endings, the encoding or the end of the file are, they stay.

use bub_kernel::{Error, Result};
use memchr::memmem;

/// More than anybody edits by hand.
pub(super) const MAX_EDIT_BYTES: u64 = 64 << 20;
/// How often is of no interest beyond this.
const MAX_COUNTED_MATCHES: usize = 1000;
const MAX_SHOWN_CHARS: usize = 200;
const MAX_SHOWN_LINES: usize = 10;

pub(super) struct EditRequest<'a> {
    /// As it was asked for, to be named in errors.
    pub(super) path: &'a str,
    pub(super) old: &'a str,
    pub(super) new: &'a str,
    /// The first line to look at, counted from 0.
    pub(super) start: usize,
    pub(super) all: bool,
}

#[derive(Debug)]
pub(super) struct EditResult {
    pub(super) content: Vec<u8>,
    pub(super) times: usize,
}

pub(super) fn edit(content: &[u8], change: &EditRequest<'_>) -> Result<EditResult> {
    let EditRequest { old, new, .. } = *change;
    if old.is_empty() {
        return Err(Error::invalid_input(
            "`old` is empty: give the text to replace, or write the whole file",
        ));
    }
    if old == new {
        return Err(Error::invalid_input(
            "`old` and `new` are the same: there is nothing to change",
        ));
    }
    let from = line_start(content, change.start);
    let tail = content.get(from..).unwrap_or_default();
    let times = if change.all {
        memmem::find_iter(tail, old).count()
    } else {
        let places: Vec<usize> = overlapping(tail, old.as_bytes())
            .take(MAX_COUNTED_MATCHES)
            .collect();
        if places.len() > 1 {
            return Err(ambiguous(content, from, change, &places));
        }
        places.len()
    };
    if times == 0 {
        return Err(not_found(content, change));
    }
    let added = times.saturating_mul(new.len().saturating_sub(old.len()));
    if added as u64 > MAX_EDIT_BYTES {
        return Err(Error::invalid_input(format!(
            "{} would grow by {added} bytes: use a program",
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
    Ok(EditResult {
        content: edited,
        times,
    })
}

/// Where `needle` occurs, also where two occurrences share bytes: then it is not clear which one is meant.
fn overlapping<'a>(text: &'a [u8], needle: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    let finder = memmem::Finder::new(needle);
    let mut from = 0;
    std::iter::from_fn(move || {
        let at = from + finder.find(text.get(from..)?)?;
        from = at + 1;
        Some(at)
    })
}

/// Where a line begins; the end of the content when it has fewer lines.
fn line_start(content: &[u8], line: usize) -> usize {
    let Some(breaks) = line.checked_sub(1) else {
        return 0;
    };
    memchr::memchr_iter(b'\n', content)
        .nth(breaks)
        .map_or(content.len(), |at| at + 1)
}

fn line_of(content: &[u8], at: usize) -> usize {
    memchr::memchr_iter(b'\n', content.get(..at).unwrap_or_default()).count()
}

fn ambiguous(content: &[u8], from: usize, change: &EditRequest<'_>, places: &[usize]) -> Error {
    let lines = places
        .iter()
        .take(MAX_SHOWN_LINES)
        .map(|at| line_of(content, from + at).to_string());
    let mut lines: Vec<String> = lines.collect();
    if places.len() > MAX_SHOWN_LINES {
        lines.push("…".to_owned());
    }
    let at_least = if places.len() == MAX_COUNTED_MATCHES {
        "at least "
    } else {
        ""
    };
    Error::invalid_input(format!(
        "'{}' occurs {at_least}{} times in {}, at lines {} (counted from 0); give more of the text around it, or set all=true",
        shorten(change.old),
        places.len(),
        change.path,
        lines.join(", ")
    ))
}

fn not_found(content: &[u8], change: &EditRequest<'_>) -> Error {
    let EditRequest {
        path, old, start, ..
    } = *change;
    let hint = hint(content, old)
        .map(|hint| format!("; {hint}"))
        .unwrap_or_default();
    Error::invalid_input(format!(
        "'{}' not found in {path} from line {start}{hint}",
        shorten(old)
    ))
}

/// What is there in place of the text that is not.
fn hint(content: &[u8], old: &str) -> Option<String> {
    if let Some(at) = memmem::find(content, old.as_bytes()) {
        return Some(format!(
            "it is at line {}, before `start`",
            line_of(content, at)
        ));
    }
    if memmem::find(
        &strip_carriage_returns(content),
        &strip_carriage_returns(old.as_bytes()),
    )
    .is_some()
    {
        let (file, given) = if old.contains("\r\n") {
            ("\\n", "\\r\\n")
        } else {
            ("\\r\\n", "\\n")
        };
        return Some(format!(
            "the line endings differ: {file} in the file, {given} in `old`"
        ));
    }
    let bytes = |text| -> Vec<u8> { collapse_whitespace(text).map(|(byte, _)| byte).collect() };
    let wanted = bytes(old.trim().as_bytes());
    let at = memmem::find(&bytes(content), &wanted).filter(|_| !wanted.is_empty())?;
    let (_, line) = collapse_whitespace(content).nth(at)?;
    Some(format!(
        "the same text with other whitespace is at line {line} (counted from 0): read it again"
    ))
}

fn strip_carriage_returns(text: &[u8]) -> Vec<u8> {
    let next = text.iter().skip(1).map(Some).chain([None]);
    let kept = text
        .iter()
        .zip(next)
        .filter(|(byte, next)| !(**byte == b'\r' && *next == Some(&b'\n')));
    kept.map(|(byte, _)| *byte).collect()
}

/// The text with every stretch of whitespace as one space, each byte with its line.
fn collapse_whitespace(text: &[u8]) -> impl Iterator<Item = (u8, usize)> + '_ {
    let mut line = 0;
    let mut was_space = false;
    text.iter().filter_map(move |byte| {
        let is_space = byte.is_ascii_whitespace();
        let kept = (!is_space || !was_space).then_some((if is_space { b' ' } else { *byte }, line));
        was_space = is_space;
        line += usize::from(*byte == b'\n');
        kept
    })
}

/// The text, cut where it gets long.
fn shorten(text: &str) -> String {
    match text.char_indices().nth(MAX_SHOWN_CHARS) {
        Some((at, _)) => format!("{}…", text.get(..at).unwrap_or_default()),
        None => text.to_owned(),
    }
}
