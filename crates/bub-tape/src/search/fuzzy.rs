//! Finds words with typing errors without comparing every word.
//!
//! A word with a typing error still contains correct parts. The search looks for short parts of the longest word of the
//! search text. It compares only the words that contain one of these parts. The same code searches raw lines and
//! decoded text, so the results do not depend on the store.

use std::{ops::Range, sync::Arc};

use super::{
    extract_snippet,
    typo::{MAX_CHARS, MIN_CHARS, is_similar},
    visit_payload_texts,
};
use crate::{
    Entry,
    query::{
        fold::{fold_char, fold_text},
        substring::Finder,
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
        let folded = texts.iter().map(|(_, folded)| folded);
        let has_word = |word: &FuzzyWord| {
            let mut folded = folded.clone();
            folded.any(|text| word.find(text.as_bytes()).is_some())
        };
        let has_all_words = self.others.iter().all(has_word)
            && (self.short.iter()).all(|word| folded.clone().any(|text| text.contains(word)));
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
        let parts = Finder::new(parts.iter().map(Vec::as_slice))?;
        Some(Self { characters, parts })
    }

    /// Finds a similar word in a text or raw line. Returns the byte offset of the sequence of word characters that
    /// contains it.
    pub(super) fn find(&self, text: &[u8]) -> Option<usize> {
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
        let before = text.get(..part.start).unwrap_or_default().iter().rev();
        let after = text.get(part.end..).unwrap_or_default().iter();
        let is_in_word = |byte: &&u8| is_word_byte(**byte);
        let bytes_before = before.take(max_bytes).take_while(is_in_word).count();
        let bytes_after = after.take(max_bytes).take_while(is_in_word).count();
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
    let size = match length {
        0..6 => 2,
        6..14 => 3,
        _ => 4,
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
