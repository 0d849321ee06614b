//! Searches raw lines for a text. The search may find lines that do not contain the text, but finds all lines that do.
//!
//! `aho-corasick` ignores case only in ASCII, and a regex engine would be a large dependency for this one search, so the
//! spellings of a short piece of the text are searched for.

use std::{cmp::Reverse, ops::Range};

use aho_corasick::{AhoCorasick, Input, MatchKind, packed};
use memchr::memmem;

use super::{
    fold::case_variants,
    lines::{self, LineMetaFilter},
};
use crate::LineFilter;

/// Maximum number of spellings to search for. The spellings of a text are its variants in upper and lower case.
const MAX_PATTERNS: usize = 256;
/// Number of characters to search for. This is long enough to be rare and short enough to have few spellings.
const PIECE_CHARS: usize = 3;
/// Lower case letters and the space, from rare to frequent in prose and code.
const BYTES_BY_FREQUENCY: &[u8] = b"zqjxkvbywgpfmucdlhrsnioate ";

/// Finds any of several short texts, ignoring case.
#[derive(Debug)]
pub(crate) struct Finder {
    /// A search with vector instructions, if the processor has them. The automaton uses them only for some texts.
    packed: Option<packed::Searcher>,
    automaton: AhoCorasick,
}

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
        let mut builder = AhoCorasick::builder();
        builder.match_kind(MatchKind::LeftmostFirst);
        Some(Self {
            packed: packed::Searcher::new(&patterns),
            automaton: builder.build(&patterns).ok()?,
        })
    }

    /// Returns the byte range of the first match at or after the byte offset `from`.
    pub(crate) fn find(&self, text: &[u8], from: usize) -> Option<Range<usize>> {
        let input = Input::new(text).range(from..);
        let found = match &self.packed {
            Some(packed) => packed.find_in(text, input.get_span())?,
            None => self.automaton.find(input)?,
        };
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
fn frequency_rank(text: &[char]) -> usize {
    let rank = |character: &char| match u8::try_from(*character) {
        Ok(byte) if byte.is_ascii() => BYTES_BY_FREQUENCY
            .iter()
            .position(|known| *known == byte)
            .map_or(10, |rank| rank + 2),
        _ => 1,
    };
    text.iter().map(rank).sum()
}

/// Accepts lines that may contain a folded text.
#[derive(Debug)]
pub(crate) struct SubstringFilter {
    /// Finds the rarest piece of the text.
    finder: Finder,
    /// The part of the text around the piece without characters that JSON can escape, and the number of its characters
    /// before the piece.
    literal: (String, usize),
    meta_filter: LineMetaFilter,
}

impl SubstringFilter {
    /// Creates a filter for a folded text. Returns `None` if JSON can escape every character of the text, or if the
    /// text has too many spellings.
    pub(crate) fn new(folded: &str, meta_filter: LineMetaFilter) -> Option<Self> {
        let mut pieces = Vec::new();
        for literal in folded.split(is_escapable).filter(|part| !part.is_empty()) {
            let characters: Vec<char> = literal.chars().collect();
            let windows = characters.windows(characters.len().min(PIECE_CHARS));
            let windows = windows.map(<[char]>::to_vec).enumerate();
            pieces.extend(windows.map(|(start, piece)| (piece, (literal.to_owned(), start))));
        }
        let rarity = |piece: &[char]| (Reverse(piece.len()), frequency_rank(piece));
        let (piece, literal) = pieces.into_iter().min_by_key(|(piece, _)| rarity(piece))?;
        Some(Self {
            finder: Finder::new([piece.as_slice()])?,
            literal,
            meta_filter,
        })
    }

    /// Returns whether the text around a match of `finder` may be `literal`. `start` is the byte offset of the match.
    fn is_match(&self, lines: &[u8], start: usize) -> bool {
        let (literal, chars_before) = &self.literal;
        let start = start.checked_sub(*chars_before);
        let candidate = start.and_then(|start| lines.get(start..start + literal.len()));
        let is_equal = |text: &[u8]| text.eq_ignore_ascii_case(literal.as_bytes());
        !literal.is_ascii() || candidate.is_some_and(is_equal)
    }
}

impl LineFilter for SubstringFilter {
    fn filter(&self, lines: &[u8], keep: &mut Vec<Range<usize>>) {
        let mut matching: Vec<Range<usize>> = Vec::new();
        let mut offset = 0;
        while let Some(found) = self.finder.find(lines, offset) {
            offset = found.start + 1;
            if self.is_match(lines, found.start) {
                let line = lines::line_at(lines, found.start);
                offset = line.end;
                matching.push(line);
            }
        }
        // In other lines, the text may be written with escapes.
        let non_ascii = !self.literal.0.is_ascii();
        let mut line_end = 0;
        for escape in memmem::find_iter(lines, b"\\u") {
            if escape >= line_end && lines::is_escaped_char(lines, escape, non_ascii) {
                let line = lines::line_at(lines, escape);
                line_end = line.end;
                matching.push(line);
            }
        }
        matching.retain(|line| self.meta_filter.can_match_at(lines, line));
        matching.sort_unstable_by_key(|line| line.start);
        matching.dedup();
        keep.append(&mut matching);
    }
}

/// Returns whether JSON writers must or may escape a character. [`SubstringFilter`] accepts all lines with escapes
/// `\uXXXX` of other characters.
fn is_escapable(character: char) -> bool {
    matches!(character, '"' | '\\' | '/' | '\u{7f}') || character.is_control()
}
