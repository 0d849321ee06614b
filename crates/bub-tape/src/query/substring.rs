//! Searches raw lines for a text. The search may find lines that do not contain the text, but finds all lines that do.

use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind, packed};

use super::{
    fold::case_variants,
    lines::{self, LineMetaFilter},
};
use crate::LineFilter;

/// Maximum number of spellings to search for. More would be slower than searching for a shorter piece.
const MAX_PATTERNS: usize = 64;
/// Bytes from rare to frequent in prose and code. Other bytes are rarer.
const BYTES_BY_FREQUENCY: &[u8] = b"zqjxkvbywgpfmucdlhrsnioate ";

/// Finds any of several short pieces of text, ignoring case.
#[derive(Debug)]
pub(crate) enum Finder {
    /// A search with vector instructions.
    Packed(Box<packed::Searcher>),
    /// A search for processors without vector instructions.
    Automaton(AhoCorasick),
}

impl Finder {
    /// Creates a finder for folded pieces. Returns `None` if there are no pieces or too many spellings.
    pub(crate) fn new<'a>(pieces: impl IntoIterator<Item = &'a [char]>) -> Option<Self> {
        let mut patterns = Vec::new();
        for piece in pieces {
            patterns.extend(all_spellings(piece)?);
        }
        patterns.sort_unstable();
        patterns.dedup();
        if patterns.is_empty() || patterns.len() > MAX_PATTERNS {
            return None;
        }
        if let Some(packed) = packed::Config::new().builder().extend(&patterns).build() {
            return Some(Self::Packed(Box::new(packed)));
        }
        AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostFirst)
            .build(&patterns)
            .ok()
            .map(Self::Automaton)
    }

    /// Returns the first match at or after an offset.
    pub(crate) fn find(&self, text: &[u8], from: usize) -> Option<Range<usize>> {
        let match_range = match self {
            Self::Packed(packed) => packed.find_in(
                text,
                aho_corasick::Span {
                    start: from,
                    end: text.len(),
                },
            )?,
            Self::Automaton(automaton) => {
                automaton.find(aho_corasick::Input::new(text).range(from..))?
            }
        };
        Some(match_range.start()..match_range.end())
    }
}

fn all_spellings(piece: &[char]) -> Option<Vec<String>> {
    let mut texts = vec![String::new()];
    for character in piece {
        let forms = case_variants(*character);
        if texts.len() * forms.len() > MAX_PATTERNS {
            return None;
        }
        let longer = texts
            .iter()
            .flat_map(|text| forms.iter().map(move |form| format!("{text}{form}")));
        texts = longer.collect();
    }
    texts.retain(|text| !text.is_empty());
    Some(texts)
}

/// Returns the approximate frequency of a character. Frequent characters have higher ranks.
pub(crate) fn frequency_rank(character: char) -> usize {
    let letter = u8::try_from(character)
        .ok()
        .and_then(|byte| BYTES_BY_FREQUENCY.iter().position(|known| *known == byte));
    match letter {
        Some(rank) => rank + 2,
        None if character.is_ascii_digit() => 14,
        None if character.is_ascii() => 8,
        None => 1,
    }
}

/// Accepts lines that may contain a folded text.
#[derive(Debug)]
pub(crate) struct SubstringFilter {
    finder: Finder,
    /// The part of the query that is always written in the same way, and the offset in it of the text that `finder`
    /// searches for. `None` if that part is not ASCII.
    literal: Option<(Vec<u8>, usize)>,
    /// Whether the piece contains non-ASCII characters, which can be written as escapes.
    has_non_ascii: bool,
    meta_filter: LineMetaFilter,
}

impl SubstringFilter {
    /// Creates a filter. Returns `None` if the text has no piece that is always written in the same way.
    pub(crate) fn new(folded: &str, meta_filter: LineMetaFilter) -> Option<Self> {
        let literals: Vec<Vec<char>> = folded
            .split(is_escapable)
            .map(|part| part.chars().collect())
            .collect();
        let pieces = literals
            .iter()
            .flat_map(|literal| candidate_pieces(literal).map(move |piece| (literal, piece)));
        let rarest = pieces.min_by_key(|(_, (_, piece))| search_cost(piece));
        let (literal, (offset, piece)) = rarest?;
        let finder = Finder::new([piece])?;
        let has_non_ascii = !piece.iter().all(char::is_ascii);
        let ascii: Option<Vec<u8>> = literal
            .iter()
            .map(|character| u8::try_from(*character).ok())
            .collect();
        let literal = ascii
            .filter(|bytes| bytes.is_ascii())
            .map(|bytes| (bytes, offset));
        Some(Self {
            finder,
            literal,
            has_non_ascii,
            meta_filter,
        })
    }

    /// Returns whether the text around a found piece matches.
    fn is_match(&self, lines: &[u8], start: usize) -> bool {
        let Some((literal, offset)) = &self.literal else {
            return true;
        };
        let start = start.checked_sub(*offset);
        let candidate = start.and_then(|start| lines.get(start..start + literal.len()));
        candidate.is_some_and(|candidate| candidate.eq_ignore_ascii_case(literal))
    }
}

impl LineFilter for SubstringFilter {
    fn filter(&self, lines: &[u8], keep: &mut Vec<Range<usize>>) {
        let first = keep.len();
        let mut offset = 0;
        while let Some(match_range) = self.finder.find(lines, offset) {
            offset = match_range.start + 1;
            if self.is_match(lines, match_range.start) {
                let line = lines::line_at(lines, match_range.start);
                offset = line.end;
                keep.extend(
                    Some(line).filter(|line| can_match_line(&self.meta_filter, lines, line)),
                );
            }
        }
        let found_count = keep.len();
        lines::for_each_escaped_line(lines, self.has_non_ascii, |line| {
            keep.extend(Some(line).filter(|line| can_match_line(&self.meta_filter, lines, line)));
        });
        if keep.len() > found_count {
            sort_and_dedup(keep, first);
        }
    }
}

impl LineFilter for LineMetaFilter {
    fn filter(&self, lines: &[u8], keep: &mut Vec<Range<usize>>) {
        keep.extend(lines::line_ranges(lines).filter(|line| can_match_line(self, lines, line)));
    }
}

/// Returns whether the line at the range `line` of `lines` may pass the filter, judged by its kind and date.
pub(crate) fn can_match_line(
    meta_filter: &LineMetaFilter,
    lines: &[u8],
    line: &Range<usize>,
) -> bool {
    lines
        .get(line.clone())
        .is_some_and(|line| meta_filter.can_match(line))
}

/// Sorts the ranges from index `first` on and removes duplicates. They were collected in two passes.
pub(crate) fn sort_and_dedup(keep: &mut Vec<Range<usize>>, first: usize) {
    let mut added = keep.split_off(first);
    added.sort_unstable_by_key(|line| line.start);
    added.dedup();
    keep.append(&mut added);
}

/// Returns whether JSON can write a character in more than one way.
fn is_escapable(character: char) -> bool {
    matches!(character, '"' | '\\' | '/' | '\u{7f}') || character.is_control()
}

/// Returns the pieces of a text that are long enough to be rare and short enough to have few spellings, with their
/// offsets.
fn candidate_pieces(literal: &[char]) -> impl Iterator<Item = (usize, &[char])> {
    (0..literal.len()).filter_map(move |start| {
        let mut bytes = 0;
        let rest = literal.get(start..)?;
        let enough = rest.iter().position(|character| {
            bytes += character.len_utf8();
            bytes >= 3 && (bytes >= 4 || character.is_ascii())
        });
        // Use a shorter piece only if the complete text is short.
        let length = enough
            .map(|last| last + 1)
            .or((start == 0).then_some(rest.len()))?;
        Some((start, rest.get(..length)?))
    })
}

fn search_cost(piece: &[char]) -> usize {
    let mean = piece
        .iter()
        .map(|character| frequency_rank(*character))
        .sum::<usize>();
    mean * 3 / piece.len().max(1)
        + if piece.len() < 3 && piece.iter().all(char::is_ascii) {
            100
        } else {
            0
        }
}
