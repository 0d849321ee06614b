//! Searches find the evidence for questions about long conversations, at least as often as plain BM25.
#![allow(clippy::cast_precision_loss, reason = "a test")]

use std::collections::HashMap;

use bub_tape::{Entry, MemoryStore, Search, Tape, TapeName};

use crate::recall_data::{Conversation, conversations, unseen_conversations};

/// Number of results in which the evidence must be.
const RESULTS: usize = 10;

/// Plain BM25: words in lower case and pairs of other characters, without stems and stop words.
struct PlainBm25 {
    documents: Vec<HashMap<String, f64>>,
    frequencies: HashMap<String, f64>,
}

fn plain_terms(text: &str) -> Vec<String> {
    let mut terms = Vec::new();
    for word in text
        .to_lowercase()
        .split(|letter: char| !letter.is_alphanumeric())
    {
        let letters: Vec<char> = word.chars().collect();
        if word.is_ascii() || letters.len() < 2 {
            terms.extend(Some(word.to_owned()).filter(|word| !word.is_empty()));
        } else {
            terms.extend(letters.windows(2).map(String::from_iter));
        }
    }
    terms
}

impl PlainBm25 {
    fn new(conversation: &Conversation) -> Self {
        let (mut documents, mut frequencies) = (Vec::new(), HashMap::new());
        for (_, text) in &conversation.messages {
            let mut counts = HashMap::new();
            for term in plain_terms(text) {
                *counts.entry(term).or_default() += 1.0;
            }
            for term in counts.keys() {
                *frequencies.entry(String::clone(term)).or_default() += 1.0;
            }
            documents.push(counts);
        }
        Self {
            documents,
            frequencies,
        }
    }

    fn search(&self, text: &str) -> Vec<usize> {
        let count = self.documents.len() as f64;
        let average = self.documents.iter().flat_map(HashMap::values).sum::<f64>() / count;
        let score = |document: &HashMap<String, f64>| -> f64 {
            let length: f64 = document.values().sum();
            let term_score = |term: &String| {
                let (Some(frequency), Some(documents)) =
                    (document.get(term), self.frequencies.get(term))
                else {
                    return 0.0;
                };
                let rarity = (1.0 + (count - documents + 0.5) / (documents + 0.5)).ln();
                rarity * frequency * 2.5 / (frequency + 1.5 * (0.25 + 0.75 * length / average))
            };
            plain_terms(text).iter().map(term_score).sum()
        };
        let mut scored: Vec<(f64, usize)> = self.documents.iter().map(score).zip(0..).collect();
        scored.sort_by(|left, right| right.0.total_cmp(&left.0));
        scored
            .into_iter()
            .take(RESULTS)
            .map(|(_, index)| index)
            .collect()
    }
}

pub(crate) async fn tape_of(conversation: &Conversation) -> Tape {
    let tape = Tape::new(
        std::sync::Arc::new(MemoryStore::new()),
        TapeName::new("recall__tape").unwrap(),
    );
    let entries = conversation
        .messages
        .iter()
        .map(|(date, text)| Entry::message("user", text.as_str()).with_date(date));
    tape.store()
        .append(tape.name(), entries.collect())
        .await
        .unwrap();
    tape
}

/// Returns the number of questions, and for how many of them and of their keywords search and plain BM25 find the
/// evidence.
async fn count_found(conversations: Vec<Conversation>) -> (usize, [usize; 2], [usize; 2]) {
    let (mut questions, mut found, mut plain) = (0, [0; 2], [0; 2]);
    for conversation in conversations {
        let (tape, reference) = (tape_of(&conversation).await, PlainBm25::new(&conversation));
        for question in &conversation.questions {
            questions += 1;
            for (index, text) in [&question.text, &question.keywords].into_iter().enumerate() {
                let results = tape
                    .search(&Search::new(text).limit(RESULTS))
                    .await
                    .unwrap();
                let is_evidence = |index: &usize| question.evidence.contains(index);
                let hits = results.hits.iter();
                let mut hits = hits.map(|hit| usize::try_from(hit.entry.id.get()).unwrap() - 1);
                found[index] += usize::from(hits.any(|index| is_evidence(&index)));
                plain[index] += usize::from(reference.search(text).iter().any(is_evidence));
            }
        }
    }
    println!(
        "of {questions}: questions {} (plain BM25 {}), keywords {} (plain BM25 {})",
        found[0], plain[0], found[1], plain[1]
    );
    assert!(
        found[0] >= plain[0] && found[1] >= plain[1],
        "{found:?} of {questions}, plain BM25: {plain:?}"
    );
    (questions, found, plain)
}

#[tokio::test]
async fn questions_and_keywords_find_their_evidence_at_least_as_often_as_plain_bm25() {
    let (questions, found, _) = count_found(conversations()).await;
    assert!(questions >= 300, "{questions}");
    assert!(
        found.iter().all(|found| found * 10 >= questions * 8),
        "{found:?} of {questions}"
    );
}

#[tokio::test]
async fn texts_that_the_search_was_not_adjusted_to_are_found_more_often_than_by_plain_bm25() {
    let (questions, found, plain) = count_found(unseen_conversations()).await;
    assert!(questions >= 60, "{questions}");
    assert!(
        found[0] > plain[0] && found[1] > plain[1],
        "{found:?} of {questions}, plain BM25: {plain:?}"
    );
}
