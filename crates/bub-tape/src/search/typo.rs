//! Words that differ from a word by one typing error.
//!
//! The index has no list of words, so the possible words are looked up. There are a few hundred of them.

use super::{
    stem::stem,
    syntax::SearchWord,
    tokens::{MAX_WORD_BYTES, hash_term},
};

/// Minimum length of a missing word for similar words to count.
const MIN_MISSING_CHARS: usize = 5;
/// Minimum length of a word that occurs, for its misspellings to count.
const MIN_KNOWN_CHARS: usize = 6;
/// Maximum number of documents with a word for its misspellings to count.
const MAX_KNOWN_DOCUMENTS: u64 = 20;
/// Length from which a word in one or two documents may itself be misspelled.
const MIN_SUSPECT_CHARS: usize = 8;
/// Maximum length of a word with typing errors.
const MAX_CHARS: usize = 24;

/// Returns whether similar words count for a word with this number of letters and documents.
pub(super) fn can_be_misspelled(letters: usize, documents: u64) -> bool {
    let min = if documents == 0 {
        MIN_MISSING_CHARS
    } else {
        MIN_KNOWN_CHARS
    };
    (min..=MAX_CHARS).contains(&letters) && documents <= MAX_KNOWN_DOCUMENTS
}

/// Returns whether a similar word that occurs in `similar` documents counts for a word that occurs in `own` documents.
pub(super) fn can_replace(letters: usize, own: u64, similar: u64) -> bool {
    own == 0 || similar <= own || own <= 2 && letters >= MIN_SUSPECT_CHARS
}

/// Returns the hashes of the stems of all words with one typing error. Words with digits have none.
pub(super) fn similar_stems(word: &SearchWord) -> Vec<u32> {
    let text = String::from_utf8_lossy(&word.text);
    let letters: Vec<char> = text.chars().collect();
    let alphabet: Vec<char> = match letters.first() {
        Some('a'..='z') => ('a'..='z').collect(),
        Some('а'..='я') => ('а'..='я').collect(),
        Some('α'..='ω') => ('α'..='ω').collect(),
        _ => Vec::new(),
    };
    if !letters.iter().all(|letter| letter.is_alphabetic()) {
        return Vec::new();
    }
    let mut hashes = Vec::new();
    let mut add = |letters: &[char]| {
        let text: String = letters.iter().collect();
        let hash = hash_term(stem(text.as_bytes(), &mut [0; MAX_WORD_BYTES]));
        hashes.extend(Some(hash).filter(|hash| *hash != word.stem));
    };
    for index in 0..=letters.len() {
        let (before, after) = letters.split_at(index);
        let with = |middle: &[char], after: &[char]| [before, middle, after].concat();
        for letter in &alphabet {
            add(&with(&[*letter], after));
        }
        if let [first, rest @ ..] = after {
            add(&with(&[], rest));
            for letter in alphabet.iter().filter(|letter| *letter != first) {
                add(&with(&[*letter], rest));
            }
        }
        if let [first, second, rest @ ..] = after
            && first != second
        {
            add(&with(&[*second, *first], rest));
        }
    }
    hashes.sort_unstable();
    hashes.dedup();
    hashes
}
