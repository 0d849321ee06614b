//! Searches raw lines for a text. The search may find lines that do not contain the text, but finds all lines that do.

use std::{cmp::Reverse, ops::Range};

use aho_corasick::{AhoCorasick, Input, MatchKind};

use super::{
    fold::case_variants,
    lines::{self, LineMetaFilter},
};
use crate::LineFilter;

/// Maximum number of spellings to search for. The spellings of a text are its variants in upper and lower case. With
/// more spellings, searching for a shorter text is faster.
const MAX_PATTERNS: usize = 64;
/// Number of characters to search for. This is long enough to be rare and short enough to have few spellings.
const PIECE_CHARS: usize = 3;
/// Lower case letters and the space, from rare to frequent in prose and code.
const BYTES_BY_FREQUENCY: &[u8] = b"zqjxkvbywgpfmucdlhrsnioate ";

/// Finds any of several short texts, ignoring case.
#[derive(Debug)]
pub(crate) struct Finder(AhoCorasick);

impl Finder {
    /// Creates a finder for folded texts. Returns `None` if `pieces` is empty or the texts have more than
    /// [`MAX_PATTERNS`] spellings.
    pub(crate) fn new<'a>(pieces: impl IntoIterator<Item = &'a [char]>) -> Option<Self> {
        let mut patterns = Vec::new();
        for piece in pieces {
            patterns.extend(all_spellings(piece)?);
        }
        if patterns.is_empty() || patterns.len() > MAX_PATTERNS {
            return None;
        }
        // With this match kind, the search uses vector instructions.
        AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostFirst)
            .build(&patterns)
            .ok()
            .map(Self)
    }

    /// Returns the byte range of the first match at or after the byte offset `from`.
    pub(crate) fn find(&self, text: &[u8], from: usize) -> Option<Range<usize>> {
        let found = self.0.find(Input::new(text).range(from..))?;
        Some(found.range())
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
    Some(texts)
}

/// Returns a rank for the approximate frequency of a text. Texts with frequent characters have higher ranks.
pub(crate) fn frequency_rank(text: &[char]) -> usize {
    let rank = |character: &char| {
        let letter = u8::try_from(*character)
            .ok()
            .and_then(|byte| BYTES_BY_FREQUENCY.iter().position(|known| *known == byte));
        match letter {
            Some(rank) => rank + 2,
            None if character.is_ascii_digit() => 14,
            None if character.is_ascii() => 8,
            None => 1,
        }
    };
    text.iter().map(rank).sum()
}

/// Accepts lines that may contain a folded text.
#[derive(Debug)]
pub(crate) struct SubstringFilter {
    finder: Finder,
    /// The part of the searched text that contains the text of `finder`, and the offset at which the text of `finder`
    /// starts in this part. The part has no characters that JSON can escape. `None` if the part is not ASCII.
    literal: Option<(String, usize)>,
    /// Whether the text of `finder` contains non-ASCII characters, which can be written as escapes `\uXXXX`.
    has_non_ascii: bool,
    meta_filter: LineMetaFilter,
}

impl SubstringFilter {
    /// Creates a filter for a folded text. Returns `None` if JSON can escape every character of the text, or if the
    /// text has too many spellings.
    pub(crate) fn new(folded: &str, meta_filter: LineMetaFilter) -> Option<Self> {
        let literals: Vec<Vec<char>> = folded
            .split(is_escapable)
            .filter(|literal| !literal.is_empty())
            .map(|literal| literal.chars().collect())
            .collect();
        let pieces = literals.iter().flat_map(|literal| {
            let pieces = literal.windows(literal.len().min(PIECE_CHARS)).enumerate();
            pieces.map(move |(offset, piece)| (literal, offset, piece))
        });
        let (literal, offset, piece) =
            pieces.min_by_key(|(.., piece)| (Reverse(piece.len()), frequency_rank(piece)))?;
        Some(Self {
            finder: Finder::new([piece])?,
            literal: (literal.iter().all(char::is_ascii))
                .then(|| (literal.iter().collect(), offset)),
            has_non_ascii: !piece.iter().all(char::is_ascii),
            meta_filter,
        })
    }

    /// Returns whether the bytes around a match of `finder` equal `literal`, ignoring case. `start` is the byte offset
    /// of the match.
    fn is_match(&self, lines: &[u8], start: usize) -> bool {
        self.literal.as_ref().is_none_or(|(literal, offset)| {
            let start = start.checked_sub(*offset);
            let candidate = start.and_then(|start| lines.get(start..start + literal.len()));
            candidate.is_some_and(|candidate| candidate.eq_ignore_ascii_case(literal.as_bytes()))
        })
    }
}

impl LineFilter for SubstringFilter {
    fn filter(&self, lines: &[u8], keep: &mut Vec<Range<usize>>) {
        let mut offset = 0;
        let matching_lines = std::iter::from_fn(|| {
            while let Some(found) = self.finder.find(lines, offset) {
                offset = found.start + 1;
                if self.is_match(lines, found.start) {
                    let line = lines::line_at(lines, found.start);
                    offset = line.end;
                    return Some(line);
                }
            }
            None
        });
        self.meta_filter
            .keep_lines(lines, matching_lines, self.has_non_ascii, keep);
    }
}

/// Returns whether JSON writers must or may escape a character. Lines with escapes `\uXXXX` of other characters are
/// kept by [`LineMetaFilter::keep_lines`].
fn is_escapable(character: char) -> bool {
    matches!(character, '"' | '\\' | '/' | '\u{7f}') || character.is_control()
}
