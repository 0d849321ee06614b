//! Finds the documents with the best scores in the index.
//!
//! The score is BM25. Documents with all words are better than all others. The scores are those of stems and rounded
//! lengths; [`super::score`] compares the texts of the best documents.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    io,
};

use super::{
    entry_text::{NO_ENTRY, kind_code},
    parts::{DocumentCounts, SearchPart},
    segment::{SEARCH_OUTPUT, author_hash, decode_length, for_each_posting},
    syntax::{ParsedText, SearchWord},
    typo,
};
use crate::{EntryKind, EntryRange};

/// How fast more occurrences of a term stop counting.
pub(super) const SATURATION: f32 = 1.2;
/// How much longer documents are worth less. Lower than the usual 0.75, because messages are short.
pub(super) const LENGTH_WEIGHT: f32 = 0.5;
/// Bit of a document with an excluded word.
const EXCLUDED_BIT: u32 = 1 << 31;
/// Bit of a document with a requested author.
const AUTHOR_BIT: u32 = 1 << 30;
/// Weight of a word with a similar meaning.
const SIMILAR_WEIGHT: f32 = 0.4;
/// Maximum number of segments in which similar words are looked up, over all words.
const MAX_TYPO_SEGMENTS: usize = 32;
/// Maximum number of similar words for a word.
const MAX_SIMILAR_WORDS: usize = 6;

/// A term that counts for a word: its stem, another form, or a similar word.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Alternative {
    pub(super) hash: u32,
    pub(super) weight: f32,
}

/// A word of the search text with the terms that count for it.
#[derive(Debug, Clone)]
pub(super) struct RankedWord {
    pub(super) word: SearchWord,
    pub(super) alternatives: Vec<Alternative>,
    /// How much the word counts. Rare words count more.
    pub(super) rarity: f32,
}

/// What a document must meet, apart from its words.
#[derive(Debug, Clone)]
pub(super) struct DocumentFilter {
    /// The kinds; empty means all.
    pub(super) kinds: Vec<EntryKind>,
    /// The first and last second. Documents without a date are always candidates.
    pub(super) seconds: (u32, u32),
    /// Whether all words must occur.
    pub(super) all_words: bool,
    /// Whether similar words count.
    pub(super) fuzzy: bool,
}

/// A document that may be part of the results. The order is that of the results.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Candidate {
    has_all_words: bool,
    /// The bits of the score, which is never negative, so that they have its order.
    score: u32,
    seconds: u32,
    /// Byte offset on the tape.
    position: u64,
    pub(super) part: usize,
    pub(super) document: u32,
    pub(super) offset: u32,
}

/// The best documents, the best first.
#[derive(Debug, Default)]
pub(super) struct Ranking {
    pub(super) candidates: Vec<Candidate>,
    pub(super) words: Vec<RankedWord>,
    pub(super) average_length: f32,
    /// Number of documents with search output that match.
    pub(super) filtered: usize,
    /// Whether there are more documents that match.
    pub(super) is_truncated: bool,
}

/// Returns the weight of a kind in scores.
pub(super) fn kind_weight(kind: u8) -> f32 {
    if kind == kind_code(&EntryKind::Message) {
        1.0
    } else {
        0.7
    }
}

/// The postings of each word in a part: for each alternative, its weight and the encoded documents.
type PartPostings = Vec<Vec<(f32, Vec<u8>)>>;

/// A search of parts.
pub(super) struct Ranker<'a> {
    parts: &'a [SearchPart],
    text: &'a ParsedText,
    filter: &'a DocumentFilter,
    /// Length codes and kinds of the documents of each part.
    documents: Vec<(Vec<u8>, Vec<u8>)>,
    counts: DocumentCounts,
}

impl<'a> Ranker<'a> {
    pub(super) fn new(
        parts: &'a [SearchPart],
        text: &'a ParsedText,
        filter: &'a DocumentFilter,
    ) -> io::Result<Self> {
        let mut ranker = Self {
            parts,
            text,
            filter,
            documents: Vec::new(),
            counts: DocumentCounts::default(),
        };
        for part in parts {
            let (lengths, kinds) = part.segment.read_lengths_and_kinds()?;
            for chunk in &part.chunks {
                ranker.counts.add(chunk, &lengths, &kinds);
            }
            ranker.documents.push((lengths, kinds));
        }
        Ok(ranker)
    }

    /// Returns the best documents, at most `limit` of them.
    pub(super) fn rank(&self, limit: usize) -> io::Result<Ranking> {
        let mut postings: Vec<PartPostings> = Vec::new();
        let mut words = self
            .text
            .words
            .iter()
            .map(|word| self.rank_word(word))
            .collect::<io::Result<Vec<_>>>()?;
        if self.filter.fuzzy {
            self.add_similar_words(&mut words)?;
        }
        for part in self.parts {
            let find = |word: &RankedWord| find_all(part, &word.alternatives);
            postings.push(words.iter().map(find).collect::<io::Result<_>>()?);
        }
        let mut best = BestCandidates {
            limit,
            ..BestCandidates::default()
        };
        let mut ranking = Ranking {
            average_length: self.counts.average_length(),
            words,
            ..Ranking::default()
        };
        for (index, postings) in postings.iter().enumerate() {
            self.score_part(index, postings, &mut best, &ranking)?;
        }
        ranking.filtered = best.filtered;
        ranking.is_truncated = best.is_truncated;
        let sorted = best.heap.into_sorted_vec().into_iter();
        ranking.candidates = sorted.map(|Reverse(candidate)| candidate).collect();
        Ok(ranking)
    }

    fn count_in_all_parts(&self, hash: u32) -> io::Result<u64> {
        self.parts
            .iter()
            .map(|part| count_documents(part, hash))
            .sum()
    }

    fn rank_word(&self, word: &SearchWord) -> io::Result<RankedWord> {
        let mut alternatives = vec![Alternative {
            hash: word.stem,
            weight: 1.0,
        }];
        alternatives.extend(word.forms.iter().map(|form| Alternative {
            hash: *form,
            weight: 0.9,
        }));
        let mut documents = 0;
        for alternative in &alternatives {
            documents += self.count_in_all_parts(alternative.hash)?;
        }
        if self.filter.fuzzy {
            alternatives.extend(word.similar.iter().map(|similar| Alternative {
                hash: *similar,
                weight: SIMILAR_WEIGHT,
            }));
        }
        Ok(RankedWord {
            word: word.clone(),
            alternatives,
            rarity: self.rarity(documents),
        })
    }

    /// Returns how much a term in this number of documents counts.
    fn rarity(&self, documents: u64) -> f32 {
        let (total, documents) = (self.counts.documents as f32, documents as f32);
        (1.0 + (total - documents + 0.5).max(0.0) / (documents + 0.5)).ln()
    }

    /// Adds similar words that occur on the tapes to words that are rare or missing.
    fn add_similar_words(&self, words: &mut [RankedWord]) -> io::Result<()> {
        let mut parts: Vec<&SearchPart> = self.parts.iter().collect();
        parts.sort_by_key(|part| Reverse(part.segment.documents()));
        let mut budget = MAX_TYPO_SEGMENTS;
        let mut by_rarity: Vec<&mut RankedWord> = words.iter_mut().collect();
        by_rarity.sort_by(|left, right| right.rarity.total_cmp(&left.rarity));
        for ranked in by_rarity {
            let mut own = 0;
            for alternative in &ranked.alternatives {
                own += self.count_in_all_parts(alternative.hash)?;
            }
            let letters = String::from_utf8_lossy(&ranked.word.text).chars().count();
            if !typo::can_be_misspelled(letters, own) || budget == 0 {
                continue;
            }
            let searched = parts.len().min(budget);
            budget -= searched;
            let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
            for hash in typo::similar_stems(&ranked.word) {
                for part in parts.iter().take(searched) {
                    let count = count_documents(part, hash)?;
                    if count > 0 {
                        *counts.entry(hash).or_default() += count;
                    }
                }
            }
            let is_known = |hash: &u32| ranked.alternatives.iter().any(|known| known.hash == *hash);
            let mut similar: Vec<_> = counts
                .into_iter()
                .filter(|(hash, _)| !is_known(hash))
                .collect();
            // A frequent word is no misspelling of a word that occurs.
            similar.retain(|(_, count)| typo::can_replace(letters, own, *count));
            similar.sort_by_key(|(hash, count)| (Reverse(*count), *hash));
            similar.truncate(MAX_SIMILAR_WORDS);
            if own == 0 {
                ranked.rarity = self.rarity(similar.iter().map(|(_, count)| count).sum());
            }
            let weight = if own == 0 { 0.5 } else { 0.3 };
            let similar = similar
                .into_iter()
                .map(|(hash, _)| Alternative { hash, weight });
            ranked.alternatives.extend(similar);
        }
        Ok(())
    }

    /// Adds the best documents of a part.
    fn score_part(
        &self,
        index: usize,
        postings: &PartPostings,
        best: &mut BestCandidates,
        ranking: &Ranking,
    ) -> io::Result<()> {
        let (Some(part), Some((lengths, kinds))) =
            (self.parts.get(index), self.documents.get(index))
        else {
            return Ok(());
        };
        let is_in_every = self.text.words.is_empty();
        if !is_in_every && postings.iter().all(Vec::is_empty) {
            return Ok(());
        }
        let (scores, matched) = self.score_documents(part, lengths, postings, ranking)?;
        let all_words = (1_u32 << ranking.words.len()) - 1;
        let required = self.required_words(ranking, all_words);
        let kind_codes: Vec<u8> = self.filter.kinds.iter().map(kind_code).collect();
        let (first, last) = self.filter.seconds;
        let mut details: Option<(Vec<u32>, Vec<u32>)> = None;
        let documents = part.chunks.iter().flat_map(|chunk| {
            chunk
                .documents
                .clone()
                .map(move |document| (chunk, document))
        });
        for (chunk, document) in documents {
            let at = document as usize;
            let matched = matched.get(at).copied().unwrap_or(EXCLUDED_BIT);
            let has_words = is_in_every || matched & all_words != 0;
            if !has_words || matched & EXCLUDED_BIT != 0 || matched & required != required {
                continue;
            }
            let marked_kind = kinds.get(at).copied().unwrap_or(NO_ENTRY);
            let kind = marked_kind & !SEARCH_OUTPUT;
            if marked_kind == NO_ENTRY || !kind_codes.is_empty() && !kind_codes.contains(&kind) {
                continue;
            }
            let is_output = marked_kind & SEARCH_OUTPUT != 0;
            let mut candidate = Candidate {
                has_all_words: matched & all_words == all_words,
                score: (scores.get(at).copied().unwrap_or(0.0) * kind_weight(kind)).to_bits(),
                part: index,
                document,
                ..Candidate::default()
            };
            // Most documents are worse than those found so far, and need no further reads.
            if !is_output && best.is_worse_than_all(&candidate) {
                continue;
            }
            let (seconds, offsets) = match &details {
                Some(details) => details,
                None => {
                    details.insert((part.segment.read_seconds()?, part.segment.read_offsets()?))
                }
            };
            candidate.seconds = seconds.get(at).copied().unwrap_or(0);
            candidate.offset = offsets.get(at).copied().unwrap_or(0);
            candidate.position = chunk.start + u64::from(candidate.offset);
            let is_in_time = candidate.seconds == 0 || (first..=last).contains(&candidate.seconds);
            if !is_in_time
                || chunk.window != EntryRange::ALL && !chunk.has_in_window(candidate.offset)
            {
                continue;
            }
            if is_output {
                best.filtered += 1;
            } else {
                best.add(candidate);
            }
        }
        Ok(())
    }

    /// Returns the scores of all documents of a part, and the bits of the words that they have.
    fn score_documents(
        &self,
        part: &SearchPart,
        lengths: &[u8],
        postings: &PartPostings,
        ranking: &Ranking,
    ) -> io::Result<(Vec<f32>, Vec<u32>)> {
        let norms = length_norms(ranking.average_length);
        let mut scores = vec![0.0_f32; lengths.len()];
        let mut matched = vec![0_u32; lengths.len()];
        for (number, (word, terms)) in ranking.words.iter().zip(postings).enumerate() {
            for (weight, postings) in terms {
                let factor = word.rarity * weight * (SATURATION + 1.0);
                for_each_posting(postings, |document, frequency| {
                    let document = document as usize;
                    let (Some(score), Some(matched), Some(length)) = (
                        scores.get_mut(document),
                        matched.get_mut(document),
                        lengths.get(document),
                    ) else {
                        return;
                    };
                    let norm = norms.get(usize::from(*length)).copied().unwrap_or(1.0);
                    let frequency = frequency as f32;
                    *score += factor * frequency / (frequency + norm);
                    *matched |= 1 << number;
                });
            }
        }
        let excluded = self
            .text
            .excluded
            .iter()
            .filter_map(|words| match words.as_slice() {
                [word] => Some(word.stem),
                _ => None,
            });
        mark(part, excluded, EXCLUDED_BIT, &mut matched)?;
        let authors = self.text.authors.iter().filter_map(|words| words.first());
        mark(
            part,
            authors.map(|word| author_hash(word)),
            AUTHOR_BIT,
            &mut matched,
        )?;
        Ok((scores, matched))
    }

    /// Returns the bits that a document must have.
    fn required_words(&self, ranking: &Ranking, all_words: u32) -> u32 {
        let mut required = if self.filter.all_words { all_words } else { 0 };
        for (number, ranked) in ranking.words.iter().enumerate() {
            let is_same = |word: &SearchWord| word.stem == ranked.word.stem;
            if self.text.phrases.iter().flatten().any(is_same) {
                required |= 1 << number;
            }
        }
        if !self.text.authors.is_empty() {
            required |= AUTHOR_BIT;
        }
        required
    }
}

/// The best candidates so far.
#[derive(Debug, Default)]
struct BestCandidates {
    heap: BinaryHeap<Reverse<Candidate>>,
    limit: usize,
    filtered: usize,
    is_truncated: bool,
}

impl BestCandidates {
    /// Returns whether a candidate cannot be one of the best, whatever its date and position are.
    fn is_worse_than_all(&mut self, candidate: &Candidate) -> bool {
        let rank = |candidate: &Candidate| (candidate.has_all_words, candidate.score);
        let is_full = self.heap.len() >= self.limit;
        let worst = self.heap.peek().filter(|_| is_full);
        let is_worse = worst.is_some_and(|Reverse(worst)| rank(candidate) < rank(worst));
        self.is_truncated |= is_worse;
        is_worse
    }

    fn add(&mut self, candidate: Candidate) {
        self.heap.push(Reverse(candidate));
        if self.heap.len() > self.limit {
            self.heap.pop();
            self.is_truncated = true;
        }
    }
}

/// Sets a bit for all documents with any of the terms.
fn mark(
    part: &SearchPart,
    hashes: impl Iterator<Item = u32>,
    bit: u32,
    matched: &mut [u32],
) -> io::Result<()> {
    for hash in hashes {
        if let Some(term) = part.segment.find_term(hash)? {
            for_each_posting(&part.segment.read_postings(&term)?, |document, _| {
                if let Some(matched) = matched.get_mut(document as usize) {
                    *matched |= bit;
                }
            });
        }
    }
    Ok(())
}

/// Returns the number of searched documents of a part that have a term.
fn count_documents(part: &SearchPart, hash: u32) -> io::Result<u64> {
    let Some(term) = part.segment.find_term(hash)? else {
        return Ok(0);
    };
    if part.is_complete() {
        return Ok(u64::from(term.documents));
    }
    let mut count = 0;
    for_each_posting(&part.segment.read_postings(&term)?, |document, _| {
        count += u64::from(part.chunk_of(document).is_some());
    });
    Ok(count)
}

fn find_all(part: &SearchPart, alternatives: &[Alternative]) -> io::Result<Vec<(f32, Vec<u8>)>> {
    let mut found = Vec::new();
    for alternative in alternatives {
        if let Some(term) = part.segment.find_term(alternative.hash)? {
            found.push((alternative.weight, part.segment.read_postings(&term)?));
        }
    }
    Ok(found)
}

/// Returns the part of the score's denominator that depends on the length, for each length code.
fn length_norms(average: f32) -> Vec<f32> {
    (0..=u8::MAX)
        .map(|code| length_norm(decode_length(code) as f32, average))
        .collect()
}

/// Returns the part of the score's denominator that depends on the length.
pub(super) fn length_norm(length: f32, average: f32) -> f32 {
    SATURATION * (1.0 - LENGTH_WEIGHT + LENGTH_WEIGHT * length / average)
}
