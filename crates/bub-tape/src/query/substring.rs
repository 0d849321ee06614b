//! Finding a text in raw lines, quickly and with too much rather than too little.

use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind, packed};

use super::{
    fold::spellings,
    lines::{self, LineMetaFilter},
};
use crate::LineFilter;

/// More spellings than this make the finder slower than a shorter piece does.
const MAX_PATTERNS: usize = 64;
/// From rare to common in prose and code; what is not named is rarer.
const BYTES_BY_FREQUENCY: &[u8] = b"zqjxkvbywgpfmucdlhrsnioate ";

/// Finds any of a few short pieces of text, whatever their case.
#[derive(Debug)]
pub(crate) enum Finder {
    /// With vector instructions.
    Packed(Box<packed::Searcher>),
    /// On machines without them.
    Automaton(AhoCorasick),
}

impl Finder {
    /// A finder of folded pieces. `None` when there is nothing to find or it has too many spellings.
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

    /// The first piece behind a place.
    pub(crate) fn find(&self, text: &[u8], from: usize) -> Option<Range<usize>> {
        let found = match self {
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
        Some(found.start()..found.end())
    }
}

fn all_spellings(piece: &[char]) -> Option<Vec<String>> {
    let mut texts = vec![String::new()];
    for character in piece {
        let forms = spellings(*character);
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

/// How common a character is, roughly.
pub(crate) fn commonness(character: char) -> usize {
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

/// Keeps the lines in which a folded text may occur.
#[derive(Debug)]
pub(crate) struct SubstringFilter {
    finder: Finder,
    /// When the piece stands in a stretch of plain ASCII: that stretch, and where in it the piece stands.
    stretch: Option<(Vec<u8>, usize)>,
    wide: bool,
    outside: LineMetaFilter,
}

impl SubstringFilter {
    /// `None` when the text has no piece that is surely written as it is.
    pub(crate) fn new(folded: &str, outside: LineMetaFilter) -> Option<Self> {
        let stretches: Vec<Vec<char>> = folded
            .split(is_escapable)
            .map(|part| part.chars().collect())
            .collect();
        let pieces = stretches
            .iter()
            .flat_map(|stretch| windows(stretch).map(move |piece| (stretch, piece)));
        let rarest = pieces.min_by_key(|(_, (_, piece))| cost(piece));
        let (stretch, (at, piece)) = rarest?;
        let finder = Finder::new([piece])?;
        let wide = !piece.iter().all(char::is_ascii);
        let ascii: Option<Vec<u8>> = stretch
            .iter()
            .map(|character| u8::try_from(*character).ok())
            .collect();
        let stretch = ascii
            .filter(|bytes| bytes.is_ascii())
            .map(|bytes| (bytes, at));
        Some(Self {
            finder,
            stretch,
            wide,
            outside,
        })
    }

    /// Whether the stretch around a found piece is the wanted one.
    fn confirms(&self, lines: &[u8], place: usize) -> bool {
        let Some((stretch, at)) = &self.stretch else {
            return true;
        };
        let start = place.checked_sub(*at);
        let found = start.and_then(|start| lines.get(start..start + stretch.len()));
        found.is_some_and(|found| found.eq_ignore_ascii_case(stretch))
    }
}

impl LineFilter for SubstringFilter {
    fn filter(&self, lines: &[u8], keep: &mut Vec<Range<usize>>) {
        let first = keep.len();
        let mut at = 0;
        while let Some(found) = self.finder.find(lines, at) {
            at = found.start + 1;
            if self.confirms(lines, found.start) {
                let line = lines::line_at(lines, found.start);
                at = line.end;
                keep.extend(Some(line).filter(|line| allows(&self.outside, lines, line)));
            }
        }
        let found = keep.len();
        lines::with_escapes(lines, self.wide, |line| {
            keep.extend(Some(line).filter(|line| allows(&self.outside, lines, line)));
        });
        if keep.len() > found {
            sort_and_dedup(keep, first);
        }
    }
}

/// Keeps lines by what stands outside their payload.
impl LineFilter for LineMetaFilter {
    fn filter(&self, lines: &[u8], keep: &mut Vec<Range<usize>>) {
        keep.extend(lines::all(lines).filter(|line| allows(self, lines, line)));
    }
}

/// Whether a line may be wanted.
pub(crate) fn allows(outside: &LineMetaFilter, lines: &[u8], line: &Range<usize>) -> bool {
    lines
        .get(line.clone())
        .is_some_and(|line| outside.allows(line))
}

/// Puts what was collected twice and in two passes in order.
pub(crate) fn sort_and_dedup(keep: &mut Vec<Range<usize>>, first: usize) {
    let mut fresh = keep.split_off(first);
    fresh.sort_unstable_by_key(|line| line.start);
    fresh.dedup();
    keep.append(&mut fresh);
}

/// Characters that JSON writes in more than one way.
fn is_escapable(character: char) -> bool {
    matches!(character, '"' | '\\' | '/' | '\u{7f}') || character.is_control()
}

/// The pieces of a stretch that are long enough to be rare and short enough to have few spellings.
fn windows(stretch: &[char]) -> impl Iterator<Item = (usize, &[char])> {
    let whole = stretch.len();
    (0..whole).filter_map(move |start| {
        let mut bytes = 0;
        let rest = stretch.get(start..)?;
        let enough = rest.iter().position(|character| {
            bytes += character.len_utf8();
            bytes >= 3 && (bytes >= 4 || character.is_ascii())
        });
        // A short end is of use only when there is nothing longer.
        let length = enough
            .map(|last| last + 1)
            .or((start == 0).then_some(rest.len()))?;
        Some((start, rest.get(..length)?))
    })
}

fn cost(piece: &[char]) -> usize {
    let mean = piece
        .iter()
        .map(|character| commonness(*character))
        .sum::<usize>();
    mean * 3 / piece.len().max(1)
        + if piece.len() < 3 && piece.iter().all(char::is_ascii) {
            100
        } else {
            0
        }
}
