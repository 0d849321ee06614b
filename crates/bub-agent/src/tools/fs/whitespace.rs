//! Finds text whose whitespace differs from that in a file: line endings, indentation, and spaces within lines.

use std::{collections::BTreeMap, ops::Range};

use crate::truncate;

/// Maximum size of a file in which text with other whitespace is searched.
const MAX_CONTENT_BYTES: usize = 4 << 20;
/// Maximum lines that are compared to find similar text.
const MAX_COMPARED_LINES: usize = 20_000;
/// Maximum characters of a line that are compared to find similar text.
const MAX_COMPARED_CHARS: usize = 120;
/// Minimum similarity of a line that is shown, from 0 to 1.
const MIN_SIMILARITY: f64 = 0.5;
/// Maximum lines of similar text that are shown.
const MAX_SHOWN_LINES: usize = 12;
const MAX_SHOWN_CHARS: usize = 800;

/// A part of the content, and the text that replaces it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Replacement {
    pub(super) range: Range<usize>,
    pub(super) text: String,
}

/// A line of a file.
struct FileLine<'a> {
    start: usize,
    /// The line without its line ending.
    text: &'a [u8],
    /// The words of the line, separated by one space.
    words: Vec<u8>,
}

/// Returns all places from byte `from` on where `old` occurs with other whitespace, each with its replacement. In it, the
/// lines of `new` have the line ending and the indentation of the file. Places where the indentation of two lines
/// contradicts are omitted.
pub(super) fn find_matches(content: &[u8], from: usize, old: &str, new: &str) -> Vec<Replacement> {
    let wanted = old.strip_suffix('\n').unwrap_or(old);
    let wanted: Vec<&str> = wanted.split('\n').collect();
    let words: Vec<Vec<u8>> = wanted.iter().map(|line| words(line.as_bytes())).collect();
    if content.len() > MAX_CONTENT_BYTES || words.iter().all(Vec::is_empty) {
        return Vec::new();
    }
    let lines = split_lines(content, from);
    let windows = lines.windows(wanted.len());
    let is_match = |window: &&[FileLine<'_>]| {
        let mut pairs = window.iter().zip(&words);
        pairs.all(|(line, words)| line.words == *words)
    };
    let replacement = |window: &[FileLine<'_>]| {
        let (first, last) = (window.first()?, window.last()?);
        let indents = indent_map(&wanted, window)?;
        let end = last.start + last.text.len();
        let rest = content.get(end..).unwrap_or_default();
        let line_end = if rest.starts_with(b"\r\n") { 2 } else { 1 };
        let end = if old.ends_with('\n') {
            (end + line_end).min(content.len())
        } else {
            end
        };
        Some(Replacement {
            range: first.start..end,
            text: indent_lines(new, &indents, line_ending(content)),
        })
    };
    windows.filter(is_match).filter_map(replacement).collect()
}

/// Returns the line ending that a file uses.
pub(super) fn line_ending(content: &[u8]) -> &'static str {
    if memchr::memmem::find(content, b"\r\n").is_some() {
        "\r\n"
    } else {
        "\n"
    }
}

/// Returns a text with this line ending.
pub(super) fn with_line_ending(text: &str, line_ending: &str) -> String {
    text.replace("\r\n", "\n").replace('\n', line_ending)
}

/// Returns the lines of a file that are most similar to `old`, and the number of the first one, starting at 0.
pub(super) fn nearest_text(content: &[u8], old: &str) -> Option<(usize, String)> {
    if content.len() > MAX_CONTENT_BYTES {
        return None;
    }
    let wanted: Vec<&str> = old.trim_matches('\n').split('\n').collect();
    let longest = wanted
        .iter()
        .enumerate()
        .max_by_key(|(_, line)| line.trim().len());
    let (index, longest) = longest?;
    let compared = |line: &str| truncate(line.trim(), MAX_COMPARED_CHARS);
    let longest = compared(longest);
    let content = String::from_utf8_lossy(content);
    let lines: Vec<&str> = content.lines().take(MAX_COMPARED_LINES).collect();
    let similarity = |line: &str| strsim::normalized_levenshtein(&compared(line), &longest);
    let scored = lines.iter().enumerate();
    let scored = scored.map(|(number, line)| (similarity(line), number));
    // The first of equally similar lines.
    let (best, number) = scored.reduce(|best, next| if next.0 > best.0 { next } else { best })?;
    if best < MIN_SIMILARITY {
        return None;
    }
    let first = number.saturating_sub(index);
    let count = wanted.len().min(MAX_SHOWN_LINES);
    let shown: Vec<&str> = lines.into_iter().skip(first).take(count).collect();
    Some((first, truncate(&shown.join("\n"), MAX_SHOWN_CHARS)))
}

/// Splits the content from byte `from` on into lines.
fn split_lines(content: &[u8], from: usize) -> Vec<FileLine<'_>> {
    let mut start = from;
    let lines = content
        .get(from..)
        .unwrap_or_default()
        .split_inclusive(|byte| *byte == b'\n');
    lines
        .map(|line| {
            let text = line.strip_suffix(b"\n").unwrap_or(line);
            let text = text.strip_suffix(b"\r").unwrap_or(text);
            let file_line = FileLine {
                start,
                text,
                words: words(text),
            };
            start += line.len();
            file_line
        })
        .collect()
}

/// Returns the words of a line, separated by one space.
fn words(line: &[u8]) -> Vec<u8> {
    let words = line
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(&b' ')
}

/// Returns the indentation in the file for each indentation in `wanted`, or `None` if they contradict.
fn indent_map<'a>(
    wanted: &[&'a str],
    window: &[FileLine<'_>],
) -> Option<BTreeMap<&'a str, String>> {
    let mut map: BTreeMap<&str, String> = BTreeMap::new();
    for (old, line) in wanted
        .iter()
        .zip(window)
        .filter(|(_, line)| !line.words.is_empty())
    {
        let count = line
            .text
            .iter()
            .take_while(|byte| byte.is_ascii_whitespace())
            .count();
        let file = line.text.get(..count).unwrap_or_default();
        let file = String::from_utf8_lossy(file).into_owned();
        if map.entry(indent(old)).or_insert_with(|| file.clone()) != &file {
            return None;
        }
    }
    Some(map)
}

/// Returns `text` with the indentation that the map gives, and with this line ending.
fn indent_lines(text: &str, indents: &BTreeMap<&str, String>, line_ending: &str) -> String {
    let lines = text.split('\n').map(|line| {
        let line = line.strip_suffix('\r').unwrap_or(line);
        let known = indents.iter().rev();
        let mut known = known.filter(|(old, _)| indent(line).starts_with(**old));
        match known.next() {
            Some((old, file)) if !line.trim().is_empty() => {
                format!("{file}{}", line.strip_prefix(old).unwrap_or(line))
            }
            _ => line.to_owned(),
        }
    });
    lines.collect::<Vec<_>>().join(line_ending)
}

fn indent(line: &str) -> &str {
    let end = line.find(|character: char| !character.is_ascii_whitespace());
    line.get(..end.unwrap_or(line.len())).unwrap_or_default()
}
