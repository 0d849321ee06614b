//! Scores the texts of the best documents.

use super::{
    entry_text::{EntryText, visit_entry},
    rank::{RankedWord, Ranking, SATURATION, kind_weight, length_norm},
    stem::is_stop_word,
    syntax::{ParsedText, SearchWord},
    tokens::{for_each_token, hash_term, normalize},
};
use crate::Entry;

/// Maximum number of characters before the match in a snippet.
const SNIPPET_LEAD_CHARS: usize = 60;
/// Maximum length of a snippet in characters, without ellipses.
const SNIPPET_CHARS: usize = 200;
/// Number of bytes in which a snippet should show as many words as possible.
const SNIPPET_MATCH_BYTES: usize = 140;
/// Maximum distance of the first to the last word, in terms, for an entry to count as one that has all words. In a long
/// text, words that are far apart have nothing to do with each other.
const MAX_SPREAD_TERMS: usize = 64;
/// Weight of a word that occurs only in another form.
const FORM_WEIGHT: f32 = 0.85;
/// Minimum number of words of a search text that questions can repeat. A shorter text is no question.
const MIN_ECHO_WORDS: usize = 3;
/// Maximum number of terms of a question that repeats the search text.
const MAX_ECHO_TERMS: usize = 80;
/// The characters at the end of a question.
const QUESTION_ENDS: [char; 6] = ['?', '？', '؟', '吗', '呢', 'か'];

/// How well an entry matches, apart from its score. Better matches are greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum MatchLevel {
    /// Some of the words.
    Some,
    /// All words, some in other forms or with typing errors.
    AllSimilar,
    /// All words.
    All,
    /// All words in their order, without others between them.
    Phrase,
}

/// The score of an entry.
#[derive(Debug)]
pub(super) struct EntryScore {
    pub(super) level: MatchLevel,
    pub(super) score: f32,
    /// Whether the entry is a question that says hardly more than the search text.
    pub(super) is_echo: bool,
    pub(super) snippet: String,
    /// The author, as a role or name.
    pub(super) author: Option<String>,
}

/// A term of an entry.
struct Term {
    stem: u32,
    hash: u32,
    /// Index of the text in the entry.
    text: usize,
    start: usize,
}

/// The best occurrence of a word in an entry.
#[derive(Clone, Copy)]
struct Occurrence {
    term: usize,
    word: usize,
    is_exact: bool,
}

/// Scores an entry. Returns `None` if it does not match.
pub(super) fn score_entry(
    entry: &Entry,
    text: &ParsedText,
    ranking: &Ranking,
) -> Option<EntryScore> {
    let (mut texts, mut terms, mut authors) = (Vec::new(), Vec::new(), Vec::new());
    let mut author = None;
    let head = visit_entry(entry, &mut |part| match part {
        EntryText::Author(name) => {
            author = Some(name.to_owned());
            authors.push(name.to_owned());
        }
        EntryText::Speaker(name) => authors.push(name.to_owned()),
        EntryText::Content(content) => {
            let normalized = normalize(content).into_owned();
            for_each_token(&normalized, &mut |token| {
                terms.push(Term {
                    stem: token.stem_hash(),
                    hash: hash_term(token.text),
                    text: texts.len(),
                    start: token.start,
                });
            });
            texts.push((content.to_owned(), normalized));
        }
    });
    if !has_author(&authors, text)
        || text.excluded.iter().any(|words| is_excluded(&terms, words))
        || !text
            .phrases
            .iter()
            .all(|phrase| find_phrase(&terms, phrase).is_some())
    {
        return None;
    }
    let occurrences = find_occurrences(&terms, &ranking.words);
    let norm = length_norm(terms.len() as f32, ranking.average_length);
    let (mut score, mut exact, mut any) = (0.0, 0, 0);
    for (number, ranked) in ranking.words.iter().enumerate() {
        let mut weight: f32 = 0.0;
        for alternative in &ranked.alternatives {
            let frequency = terms
                .iter()
                .filter(|term| term.stem == alternative.hash)
                .count() as f32;
            weight += alternative.weight * frequency / (frequency + norm);
        }
        let is_exact = occurrences
            .iter()
            .any(|found| found.word == number && found.is_exact);
        exact += usize::from(is_exact);
        any += usize::from(weight > 0.0);
        let form = if is_exact { 1.0 } else { FORM_WEIGHT };
        score += ranked.rarity * weight * form * (SATURATION + 1.0);
    }
    let count = ranking.words.len();
    if count > 0 && any == 0 {
        return None;
    }
    let phrase = (text.sequence.len() > 1)
        .then(|| find_phrase(&terms, &text.sequence))
        .flatten();
    let phrase = phrase.or_else(|| {
        find_phrase(&terms, text.phrases.first()?).filter(|_| text.sequence.is_empty())
    });
    let is_close = |only_exact: bool| has_all_close(&occurrences, count, only_exact);
    let is_echo = text.phrases.is_empty()
        && count >= MIN_ECHO_WORDS
        && texts.iter().all(|(content, _)| is_question(content))
        && adds_little(&terms, &occurrences);
    let level = match () {
        () if is_echo => MatchLevel::Some,
        () if phrase.is_some() => MatchLevel::Phrase,
        () if exact == count && is_close(true) => MatchLevel::All,
        () if any == count && is_close(false) => MatchLevel::AllSimilar,
        () => MatchLevel::Some,
    };
    let shown = phrase.or_else(|| best_occurrence(&terms, &occurrences, &ranking.words));
    let shown = shown
        .and_then(|term| terms.get(term))
        .map_or((0, 0), |term| (term.text, term.start));
    Some(EntryScore {
        level,
        score: score * kind_weight(head.kind),
        is_echo,
        snippet: texts
            .get(shown.0)
            .map(|(text, normalized)| {
                extract_snippet(text, source_offset(text, normalized, shown.1))
            })
            .unwrap_or_default(),
        author,
    })
}

fn is_question(text: &str) -> bool {
    let end = |letter: char| letter.is_whitespace() || matches!(letter, '.' | '。' | '"');
    text.trim_end_matches(end).ends_with(QUESTION_ENDS)
}

/// Returns whether at least two thirds of the terms other than stop words occur in the search text.
fn adds_little(terms: &[Term], occurrences: &[Occurrence]) -> bool {
    let mut known = vec![false; terms.len()];
    for found in occurrences {
        if let Some(known) = known.get_mut(found.term) {
            *known = true;
        }
    }
    let counted = terms.iter().zip(known);
    let counted = counted.filter(|(term, known)| *known || !is_stop_word(term.hash));
    let (all, new) = counted.fold((0, 0), |(all, new), (_, known)| {
        (all + 1, new + usize::from(!known))
    });
    terms.len() <= MAX_ECHO_TERMS && new * 3 <= all
}

fn has_author(authors: &[String], text: &ParsedText) -> bool {
    let has_words = |name: &String, wanted: &Vec<Vec<u8>>| {
        let mut words = Vec::new();
        for_each_token(&normalize(name), &mut |token| {
            words.push(token.text.to_vec());
        });
        wanted.iter().all(|word| words.contains(word))
    };
    let is_author = |wanted: &Vec<Vec<u8>>| authors.iter().any(|name| has_words(name, wanted));
    text.authors.is_empty() || text.authors.iter().any(is_author)
}

fn is_excluded(terms: &[Term], words: &[SearchWord]) -> bool {
    match words {
        [word] => terms.iter().any(|term| term.stem == word.stem),
        words => find_phrase(terms, words).is_some(),
    }
}

/// Returns the index of the first term of a phrase.
fn find_phrase(terms: &[Term], phrase: &[SearchWord]) -> Option<usize> {
    let is_phrase = |part: &[Term]| {
        part.iter()
            .zip(phrase)
            .all(|(term, word)| term.hash == word.hash)
    };
    terms.windows(phrase.len().max(1)).position(is_phrase)
}

fn find_occurrences(terms: &[Term], words: &[RankedWord]) -> Vec<Occurrence> {
    let mut occurrences = Vec::new();
    for (index, term) in terms.iter().enumerate() {
        for (number, ranked) in words.iter().enumerate() {
            if ranked
                .alternatives
                .iter()
                .any(|alternative| alternative.hash == term.stem)
            {
                occurrences.push(Occurrence {
                    term: index,
                    word: number,
                    is_exact: term.hash == ranked.word.hash,
                });
            }
        }
    }
    occurrences
}

/// Returns whether all words occur within [`MAX_SPREAD_TERMS`].
fn has_all_close(occurrences: &[Occurrence], words: usize, only_exact: bool) -> bool {
    let mut last: Vec<Option<usize>> = vec![None; words];
    occurrences
        .iter()
        .filter(|found| found.is_exact || !only_exact)
        .any(|found| {
            if let Some(last) = last.get_mut(found.word) {
                *last = Some(found.term);
            }
            let first = last.iter().copied().min().flatten();
            first.is_some_and(|first| found.term - first <= MAX_SPREAD_TERMS)
        })
        || words == 0
}

/// Returns the term where a snippet should start: that with the rarest words after it.
fn best_occurrence(
    terms: &[Term],
    occurrences: &[Occurrence],
    words: &[RankedWord],
) -> Option<usize> {
    let rarity = |start: usize| {
        let first = terms.get(occurrences.get(start)?.term)?;
        let mut seen = 0_u32;
        let mut rarity = 0.0;
        for found in occurrences.get(start..)? {
            let term = terms.get(found.term)?;
            if term.text != first.text || term.start - first.start > SNIPPET_MATCH_BYTES {
                break;
            }
            if seen & 1 << found.word == 0 {
                seen |= 1 << found.word;
                let weight = if found.is_exact { 1.0 } else { FORM_WEIGHT };
                rarity += words
                    .get(found.word)
                    .map_or(0.0, |word| word.rarity * weight);
            }
        }
        Some(rarity)
    };
    let mut best: Option<(f32, usize)> = None;
    for (start, found) in occurrences.iter().enumerate() {
        let rarity = rarity(start).unwrap_or(0.0);
        if best.is_none_or(|(other, _)| rarity > other) {
            best = Some((rarity, found.term));
        }
    }
    best.map(|(_, term)| term)
}

/// Returns the byte offset in a text for one in its normalized form. If normalization changed the number of characters
/// before it, the offset is approximate.
fn source_offset(text: &str, normalized: &str, offset: usize) -> usize {
    let before = normalized.get(..offset).unwrap_or_default();
    let mut offsets = text.char_indices().map(|(index, _)| index);
    offsets.nth(before.chars().count()).unwrap_or(0)
}

/// Returns the text around a byte offset, on one line.
fn extract_snippet(text: &str, offset: usize) -> String {
    let before = text.get(..offset).unwrap_or_default();
    let lead = before.char_indices().rev().nth(SNIPPET_LEAD_CHARS - 1);
    let start = lead.map_or(0, |(index, _)| index);
    let mut rest = text.get(start..).unwrap_or_default().chars();
    let part: String = rest.by_ref().take(SNIPPET_CHARS).collect();
    let words: Vec<&str> = part.split_whitespace().collect();
    let (before, after) = (
        if start > 0 { "…" } else { "" },
        if rest.next().is_some() { "…" } else { "" },
    );
    format!("{before}{}{after}", words.join(" "))
}
