//! Finds words with typing errors without comparing every word.
//!
//! A part of a word with a typing error is still correct. The search finds parts of the longest word first and compares
//! only the words around them. The same code searches raw lines and decoded text, so the results do not depend on the
//! store.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{
    typo::{MAX_CHARS, MIN_CHARS, Pattern},
    visit_payload_texts,
};
use crate::{
    Entry, LineFilter,
    query::{
        fold::{fold_char, fold_text},
        lines::{self, LineMetaFilter},
        substring::{Finder, SubstringFilter, can_match_line, frequency_rank, sort_and_dedup},
        text::FoldedNeedle,
    },
};

/// The words of a search text.
#[derive(Debug)]
pub(super) struct FuzzyQuery {
    /// The longest word, which is searched for in raw lines.
    longest: Arc<FuzzyWord>,
    others: Vec<FuzzyWord>,
    /// Words that are too short for typing errors.
    short: Vec<FoldedNeedle>,
}

/// The position of a fuzzy match.
#[derive(Debug)]
pub(super) struct MatchPosition {
    /// The text that contains the match.
    pub(super) text: String,
    /// Byte offset in the folded text.
    pub(super) offset: usize,
}

impl FuzzyQuery {
    /// Creates a query. Returns `None` if no word is long enough for typing errors.
    pub(super) fn new(folded: &str) -> Option<Self> {
        let tokens = folded
            .split(|character| !is_word_char(character))
            .filter(|token| !token.is_empty());
        let (long, short): (Vec<&str>, Vec<&str>) =
            tokens.partition(|token| token.chars().count() >= MIN_CHARS);
        let mut words: Vec<FuzzyWord> = long
            .into_iter()
            .map(FuzzyWord::new)
            .collect::<Option<_>>()?;
        let longest = words
            .iter()
            .enumerate()
            .max_by_key(|(_, word)| word.pattern.length())
            .map(|(index, _)| index)?;
        let longest = Arc::new(words.swap_remove(longest));
        Some(Self {
            longest,
            others: words,
            short: short.into_iter().map(FoldedNeedle::new).collect(),
        })
    }

    /// Returns the position of the longest word if the entry contains all words.
    pub(super) fn find_in_entry(&self, entry: &Entry) -> Option<MatchPosition> {
        let mut position = None;
        visit_payload_texts(entry, &mut |text| {
            position = self
                .longest
                .find(fold_text(text).as_bytes())
                .map(|offset| MatchPosition {
                    text: text.to_owned(),
                    offset,
                });
            position.is_some()
        });
        let occurs = |matches: &dyn Fn(&str) -> bool| {
            let mut is_found = false;
            visit_payload_texts(entry, &mut |text| {
                is_found = matches(text);
                is_found
            });
            is_found
        };
        position.filter(|_| {
            self.others
                .iter()
                .all(|word| occurs(&|text| word.find(fold_text(text).as_bytes()).is_some()))
                && self
                    .short
                    .iter()
                    .all(|needle| occurs(&|text| needle.is_in(text)))
        })
    }
}

/// A word and those of its parts that typing errors leave intact.
#[derive(Debug)]
struct FuzzyWord {
    pattern: Pattern,
    parts: Finder,
}

impl FuzzyWord {
    fn new(folded: &str) -> Option<Self> {
        let word: Vec<char> = folded.chars().take(MAX_CHARS).collect();
        let parts = intact_parts(&word);
        let parts = Finder::new(parts.iter().map(Vec::as_slice))
            // The letters have too many spellings: search for the rarest pair of characters.
            .or_else(|| {
                Finder::new(
                    word.windows(2)
                        .min_by_key(|pair| pair.iter().map(|c| frequency_rank(*c)).sum::<usize>()),
                )
            })?;
        Some(Self {
            pattern: Pattern::new(&word),
            parts,
        })
    }

    /// Returns the offset of a similar word in a text or raw line.
    fn find(&self, text: &[u8]) -> Option<usize> {
        let mut offset = 0;
        while let Some(part) = self.parts.find(text, offset) {
            let (run, is_complete) = self.word_run_around(text, &part);
            if self.is_in_run(text, &run) {
                return Some(run.start);
            }
            // All words of a complete run were compared. In a truncated run, the last word may be incomplete.
            let compared = if is_complete {
                run.end
            } else {
                run.end.saturating_sub(6 * self.pattern.length())
            };
            offset = compared.max(part.start + 1);
        }
        None
    }

    /// Returns the range of word characters around a part, up to a maximum length, and whether the range is the
    /// complete run.
    fn word_run_around(&self, text: &[u8], part: &Range<usize>) -> (Range<usize>, bool) {
        let max_bytes = 4 * (2 * self.pattern.length() + 8);
        let (before, after) = (
            text.get(..part.start).unwrap_or_default(),
            text.get(part.end..).unwrap_or_default(),
        );
        let bytes_before = before
            .iter()
            .rev()
            .take(max_bytes)
            .take_while(|byte| is_word_byte(**byte))
            .count();
        let bytes_after = after
            .iter()
            .take(max_bytes)
            .take_while(|byte| is_word_byte(**byte))
            .count();
        (
            part.start - bytes_before..part.end + bytes_after,
            bytes_before < max_bytes && bytes_after < max_bytes,
        )
    }

    /// Returns whether a run contains a similar word.
    fn is_in_run(&self, text: &[u8], run: &Range<usize>) -> bool {
        let bytes = text.get(run.clone()).unwrap_or_default();
        if bytes.len() * 3 < self.pattern.length() * 2 {
            return false;
        }
        // In a raw line, the letter after a backslash is not part of the word. In `\u001b`, five characters are not.
        let escaped = run.start.checked_sub(1).and_then(|before| text.get(before)) == Some(&b'\\');
        let skip = if bytes.first() == Some(&b'u') { 5 } else { 1 };
        let unescaped = bytes.get(skip..).filter(|_| escaped).unwrap_or_default();
        self.is_similar_to_any_word(bytes) || self.is_similar_to_any_word(unescaped)
    }

    fn is_similar_to_any_word(&self, run: &[u8]) -> bool {
        if run.is_ascii() {
            return self
                .pattern
                .is_similar_to(run, |byte| char::from(byte.to_ascii_lowercase()));
        }
        let run: Vec<char> = String::from_utf8_lossy(run)
            .chars()
            .map(fold_char)
            .collect();
        run.split(|letter| !is_word_char(*letter))
            .any(|word| self.pattern.is_similar_to(word, |letter| letter))
    }
}

/// Returns short parts of a word. One typing error, or two in a longer word, leaves at least one part intact. In a word
/// of six letters, swapping the middle letters changes both parts, so the swapped middle is a part too.
fn intact_parts(word: &[char]) -> Vec<Vec<char>> {
    let length = word.len();
    let size = if length < 6 {
        2
    } else if length < 14 {
        3
    } else {
        4
    };
    let middle = (length - size) / 2;
    let starts = match length {
        0..=3 => vec![0, 1],
        4..=8 => vec![0, length - size],
        _ => vec![0, middle, length - size],
    };
    let mut parts: Vec<Vec<char>> = starts
        .into_iter()
        .filter_map(|start| word.get(start..start + size))
        .map(<[char]>::to_vec)
        .collect();
    if let [_, first, second, third, fourth, _] = word {
        parts.push(vec![*first, *third, *second, *fourth]);
    }
    parts
}

fn is_word_char(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// Returns whether a byte may belong to a word. All bytes of non-ASCII characters may.
fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii()
}

/// Accepts lines that contain a word similar to the longest word of the search. After
/// [`reject_fuzzy_matches`](Self::reject_fuzzy_matches), accepts only lines that may be exact matches.
#[derive(Debug)]
pub(super) struct FuzzyFilter {
    longest: Arc<FuzzyWord>,
    folded: String,
    exact: Option<SubstringFilter>,
    meta_filter: LineMetaFilter,
    exact_only: Arc<AtomicBool>,
}

impl FuzzyFilter {
    pub(super) fn new(words: &FuzzyQuery, folded: &str) -> Self {
        let longest = Arc::clone(&words.longest);
        let (meta_filter, exact_only) = (LineMetaFilter::default(), Arc::default());
        Self {
            longest,
            folded: folded.to_owned(),
            exact: None,
            meta_filter,
            exact_only,
        }
    }

    /// Returns the filter combined with conditions on kind and date.
    pub(super) fn with_meta_filter(&self, meta_filter: LineMetaFilter) -> Self {
        Self {
            longest: Arc::clone(&self.longest),
            folded: self.folded.clone(),
            exact: SubstringFilter::new(&self.folded, meta_filter.clone()),
            meta_filter,
            exact_only: Arc::clone(&self.exact_only),
        }
    }

    /// Stops accepting fuzzy matches.
    pub(super) fn reject_fuzzy_matches(&self) {
        self.exact_only.store(true, Ordering::Relaxed);
    }
}

impl LineFilter for FuzzyFilter {
    fn filter(&self, lines: &[u8], keep: &mut Vec<Range<usize>>) {
        if let Some(exact) = self
            .exact
            .as_ref()
            .filter(|_| self.exact_only.load(Ordering::Relaxed))
        {
            return exact.filter(lines, keep);
        }
        let first = keep.len();
        // Exact matches contain the longest word too.
        let has_similar_word = |line: &Range<usize>| {
            let line = lines.get(line.clone()).unwrap_or_default();
            self.meta_filter.can_match(line) && self.longest.find(line).is_some()
        };
        keep.extend(lines::line_ranges(lines).filter(has_similar_word));
        let found_count = keep.len();
        lines::for_each_escaped_line(lines, true, |line| {
            keep.extend(Some(line).filter(|line| can_match_line(&self.meta_filter, lines, line)));
        });
        if keep.len() > found_count {
            sort_and_dedup(keep, first);
        }
    }
}
