//! Finds words with typing errors without comparing every word.
//!
//! A word with a typing error still contains correct parts. The search looks for short parts of the longest word of the
//! search text. It compares only the words that contain one of these parts. The same code searches raw lines and
//! decoded text, so the results do not depend on the store.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{
    snippet::extract_snippet,
    typo::{MAX_CHARS, MIN_CHARS, is_similar},
    visit_payload_texts,
};
use crate::{
    Entry, LineFilter,
    query::{
        fold::{fold_char, fold_text},
        lines::{self, LineMetaFilter},
        substring::{Finder, SubstringFilter, frequency_rank},
    },
};

/// The words of a search text.
#[derive(Debug)]
pub(super) struct FuzzyQuery {
    /// The longest word, which is searched for in raw lines.
    pub(super) longest: Arc<FuzzyWord>,
    others: Vec<FuzzyWord>,
    /// Words that are too short to allow typing errors. They must occur exactly.
    short: Vec<String>,
}

impl FuzzyQuery {
    /// Creates a query from a folded text. Returns `None` if no word is long enough for typing errors.
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
        words.sort_by_key(|word| word.characters.len());
        Some(Self {
            longest: Arc::new(words.pop()?),
            others: words,
            short: short.into_iter().map(str::to_owned).collect(),
        })
    }

    /// Returns the text around the longest word if the entry contains all words.
    pub(super) fn find_in_entry(&self, entry: &Entry) -> Option<String> {
        let mut texts = Vec::new();
        visit_payload_texts(entry, &mut |text| {
            texts.push((text.to_owned(), fold_text(text)));
            false
        });
        let snippet = texts.iter().find_map(|(text, folded)| {
            let offset = self.longest.find(folded.as_bytes())?;
            Some(extract_snippet(text, folded, offset))
        })?;
        let occurs = |find: &dyn Fn(&str) -> bool| texts.iter().any(|(_, folded)| find(folded));
        let has_all_words = self
            .others
            .iter()
            .all(|word| occurs(&|folded| word.find(folded.as_bytes()).is_some()))
            && self
                .short
                .iter()
                .all(|word| occurs(&|folded| folded.contains(word)));
        has_all_words.then_some(snippet)
    }
}

/// A word of the search text and a finder for short parts of it. A few typing errors leave at least one of the parts
/// intact.
#[derive(Debug)]
pub(super) struct FuzzyWord {
    characters: Vec<char>,
    parts: Finder,
}

impl FuzzyWord {
    fn new(folded: &str) -> Option<Self> {
        let characters: Vec<char> = folded.chars().take(MAX_CHARS).collect();
        let parts = intact_parts(&characters);
        let parts = Finder::new(parts.iter().map(Vec::as_slice)).or_else(|| {
            // The parts have too many spellings: search for the rarest pair of characters instead.
            let pairs = characters.windows(2);
            Finder::new(pairs.min_by_key(|pair| frequency_rank(pair)))
        })?;
        Some(Self { characters, parts })
    }

    /// Finds a similar word in a text or raw line. Returns the byte offset of the sequence of word characters that
    /// contains it.
    fn find(&self, text: &[u8]) -> Option<usize> {
        let mut offset = 0;
        while let Some(part) = self.parts.find(text, offset) {
            let (run, is_complete) = self.word_run_around(text, &part);
            if self.is_in_run(text, &run) {
                return Some(run.start);
            }
            // All words of a complete sequence were compared. In a truncated sequence, the last word may be incomplete.
            let compared = if is_complete {
                run.end
            } else {
                run.end.saturating_sub(6 * self.characters.len())
            };
            offset = compared.max(part.start + 1);
        }
        None
    }

    /// Returns the byte range of the word characters around a part of a word, up to a maximum length. Also returns
    /// whether the range is complete, which means that the maximum length did not truncate it.
    fn word_run_around(&self, text: &[u8], part: &Range<usize>) -> (Range<usize>, bool) {
        let max_bytes = 4 * (2 * self.characters.len() + 8);
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

    /// Returns whether a sequence of word characters, the range `run` of `text`, contains a similar word.
    fn is_in_run(&self, text: &[u8], run: &Range<usize>) -> bool {
        let bytes = text.get(run.clone()).unwrap_or_default();
        if bytes.len() * 3 < self.characters.len() * 2 {
            return false;
        }
        // In a raw line, the letter of an escape such as `\n` is not part of the word after it. For `\u001b`, skip five
        // characters.
        let escaped = run.start.checked_sub(1).and_then(|before| text.get(before)) == Some(&b'\\');
        let skip = if bytes.first() == Some(&b'u') { 5 } else { 1 };
        let unescaped = bytes.get(skip..).filter(|_| escaped).unwrap_or_default();
        self.is_similar_to_any_word(bytes) || self.is_similar_to_any_word(unescaped)
    }

    fn is_similar_to_any_word(&self, run: &[u8]) -> bool {
        let run: Vec<char> = String::from_utf8_lossy(run)
            .chars()
            .map(fold_char)
            .collect();
        run.split(|letter| !is_word_char(*letter))
            .any(|word| is_similar(&self.characters, word))
    }
}

/// Returns short parts of a word. One typing error, or two in a longer word, leaves at least one part intact. In a word
/// of six letters, swapping the middle letters changes both parts, so the middle with swapped letters is a part too.
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

/// Returns whether a byte may belong to a word. Bytes of non-ASCII characters always may.
fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii()
}

/// Accepts lines that contain a word similar to the longest word of the search.
#[derive(Debug)]
pub(super) struct FuzzyFilter {
    pub(super) longest: Arc<FuzzyWord>,
    /// A filter for exact matches.
    pub(super) exact: Option<SubstringFilter>,
    pub(super) meta_filter: LineMetaFilter,
    /// Whether fuzzy matches are needed. Otherwise the filter accepts only lines that may be exact matches.
    pub(super) is_needed: Arc<AtomicBool>,
}

impl LineFilter for FuzzyFilter {
    fn filter(&self, lines: &[u8], keep: &mut Vec<Range<usize>>) {
        if let Some(exact) = &self.exact
            && !self.is_needed.load(Ordering::Relaxed)
        {
            return exact.filter(lines, keep);
        }
        // This accepts exact matches too, because they contain the longest word.
        let has_similar_word = |line: &Range<usize>| {
            let line = lines.get(line.clone()).unwrap_or_default();
            self.meta_filter.can_match(line) && self.longest.find(line).is_some()
        };
        let similar_lines = lines::line_ranges(lines).filter(has_similar_word);
        self.meta_filter
            .keep_lines(lines, similar_lines, true, keep);
    }
}
