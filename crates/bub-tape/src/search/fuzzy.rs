//! Words that nearly match, found without comparing every word.
//!
//! A word with a typing error still has a part that is right. The parts of the longest word are looked for first,
//! and only the words around them are compared. The same code looks at raw lines and at decoded text, so what is found
//! does not depend on the store.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{
    typo::{MAX_CHARS, MIN_CHARS, Pattern},
    visit_texts,
};
use crate::{
    Entry, LineFilter,
    query::{
        fold::{fold, fold_text},
        lines::{self, LineMetaFilter},
        substring::{Finder, SubstringFilter, allows, commonness, sort_and_dedup},
        text::FoldedNeedle,
    },
};

/// The words of a search text.
#[derive(Debug)]
pub(super) struct FuzzyQuery {
    /// The one that is looked for in raw lines, because it is the longest.
    driver: Arc<FuzzyWord>,
    others: Vec<FuzzyWord>,
    /// Words too short for errors.
    short: Vec<FoldedNeedle>,
}

/// Where a near match is: the text and the byte in its folded form.
#[derive(Debug)]
pub(super) struct MatchPosition {
    pub(super) text: String,
    pub(super) at: usize,
}

impl FuzzyQuery {
    /// `None` when no word is long enough for errors.
    pub(super) fn new(folded: &str) -> Option<Self> {
        let tokens = folded
            .split(|character| !is_word(character))
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
        let driver = Arc::new(words.swap_remove(longest));
        Some(Self {
            driver,
            others: words,
            short: short.into_iter().map(FoldedNeedle::new).collect(),
        })
    }

    /// Whether every word is somewhere in the entry, and where the longest one is.
    pub(super) fn find_in(&self, entry: &Entry) -> Option<MatchPosition> {
        let mut place = None;
        visit_texts(entry, &mut |text| {
            place = self
                .driver
                .find(fold_text(text).as_bytes())
                .map(|at| MatchPosition {
                    text: text.to_owned(),
                    at,
                });
            place.is_some()
        });
        let everywhere = |matches: &dyn Fn(&str) -> bool| {
            let mut found = false;
            visit_texts(entry, &mut |text| {
                found = matches(text);
                found
            });
            found
        };
        place.filter(|_| {
            self.others
                .iter()
                .all(|word| everywhere(&|text| word.find(fold_text(text).as_bytes()).is_some()))
                && self
                    .short
                    .iter()
                    .all(|wanted| everywhere(&|text| wanted.is_in(text)))
        })
    }
}

/// A word and the parts of it that survive errors.
#[derive(Debug)]
struct FuzzyWord {
    pattern: Pattern,
    parts: Finder,
}

impl FuzzyWord {
    fn new(folded: &str) -> Option<Self> {
        let word: Vec<char> = folded.chars().take(MAX_CHARS).collect();
        let parts = parts(&word);
        let parts = Finder::new(parts.iter().map(Vec::as_slice))
            // Letters with many forms: the two rarest characters alone.
            .or_else(|| {
                Finder::new(
                    word.windows(2)
                        .min_by_key(|pair| pair.iter().map(|c| commonness(*c)).sum::<usize>()),
                )
            })?;
        Some(Self {
            pattern: Pattern::new(&word),
            parts,
        })
    }

    /// Where in a text or a raw line something like the word is.
    fn find(&self, text: &[u8]) -> Option<usize> {
        let mut at = 0;
        while let Some(part) = self.parts.find(text, at) {
            let (run, whole) = self.run_around(text, &part);
            if self.is_in(text, &run) {
                return Some(run.start);
            }
            // All words of a whole run were compared. Of a longer one everything was but what its end cuts off.
            let compared = if whole {
                run.end
            } else {
                run.end.saturating_sub(6 * self.pattern.length())
            };
            at = compared.max(part.start + 1);
        }
        None
    }

    /// The run of word characters around a part, as far as it can matter, and whether that is all of it.
    fn run_around(&self, text: &[u8], part: &Range<usize>) -> (Range<usize>, bool) {
        let reach = 4 * (2 * self.pattern.length() + 8);
        let (before, after) = (
            text.get(..part.start).unwrap_or_default(),
            text.get(part.end..).unwrap_or_default(),
        );
        let left = before
            .iter()
            .rev()
            .take(reach)
            .take_while(|byte| is_word_byte(**byte))
            .count();
        let right = after
            .iter()
            .take(reach)
            .take_while(|byte| is_word_byte(**byte))
            .count();
        (
            part.start - left..part.end + right,
            left < reach && right < reach,
        )
    }

    /// Whether one of the words of a run is like this one.
    fn is_in(&self, text: &[u8], run: &Range<usize>) -> bool {
        let bytes = text.get(run.clone()).unwrap_or_default();
        if bytes.len() * 3 < self.pattern.length() * 2 {
            return false;
        }
        // In a raw line the letter behind a backslash is not part of the word; in `\u001b` five characters are not.
        let escaped = run.start.checked_sub(1).and_then(|before| text.get(before)) == Some(&b'\\');
        let skip = if bytes.first() == Some(&b'u') { 5 } else { 1 };
        let behind = bytes.get(skip..).filter(|_| escaped).unwrap_or_default();
        self.resembles_any(bytes) || self.resembles_any(behind)
    }

    fn resembles_any(&self, run: &[u8]) -> bool {
        if run.is_ascii() {
            return self
                .pattern
                .resembles(run, |byte| char::from(byte.to_ascii_lowercase()));
        }
        let run: Vec<char> = String::from_utf8_lossy(run).chars().map(fold).collect();
        run.split(|letter| !is_word(*letter))
            .any(|word| self.pattern.resembles(word, |letter| letter))
    }
}

/// Parts of which at least one is untouched by an error; by two errors in longer words. In words of six letters an exchange
/// of the middle ones touches both parts, so what it makes is a part too.
fn parts(word: &[char]) -> Vec<Vec<char>> {
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

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// Bytes that may belong to a word; of other scripts all may.
fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii()
}

/// Keeps the lines that have something like the longest word, until only exact matches are still wanted.
#[derive(Debug)]
pub(super) struct FuzzyFilter {
    driver: Arc<FuzzyWord>,
    folded: String,
    exact: Option<SubstringFilter>,
    outside: LineMetaFilter,
    only_exact: Arc<AtomicBool>,
}

impl FuzzyFilter {
    pub(super) fn new(words: &FuzzyQuery, folded: &str) -> Self {
        let driver = Arc::clone(&words.driver);
        let (outside, only_exact) = (LineMetaFilter::default(), Arc::default());
        Self {
            driver,
            folded: folded.to_owned(),
            exact: None,
            outside,
            only_exact,
        }
    }

    /// The sieve for these lines.
    pub(super) fn within(&self, outside: LineMetaFilter) -> Self {
        Self {
            driver: Arc::clone(&self.driver),
            folded: self.folded.clone(),
            exact: SubstringFilter::new(&self.folded, outside.clone()),
            outside,
            only_exact: Arc::clone(&self.only_exact),
        }
    }

    /// From now on near matches are of no use.
    pub(super) fn only_exact(&self) {
        self.only_exact.store(true, Ordering::Relaxed);
    }
}

impl LineFilter for FuzzyFilter {
    fn filter(&self, lines: &[u8], keep: &mut Vec<Range<usize>>) {
        if let Some(exact) = self
            .exact
            .as_ref()
            .filter(|_| self.only_exact.load(Ordering::Relaxed))
        {
            return exact.filter(lines, keep);
        }
        let first = keep.len();
        // What matches exactly has the longest word too.
        let near = |line: &Range<usize>| {
            let line = lines.get(line.clone()).unwrap_or_default();
            self.outside.allows(line) && self.driver.find(line).is_some()
        };
        keep.extend(lines::all(lines).filter(near));
        let found = keep.len();
        lines::with_escapes(lines, true, |line| {
            keep.extend(Some(line).filter(|line| allows(&self.outside, lines, line)));
        });
        if keep.len() > found {
            sort_and_dedup(keep, first);
        }
    }
}
