//! Finds all secrets in one pass.

use std::collections::BTreeSet;
use std::ops::Range;

use aho_corasick::AhoCorasick;

use super::token_patterns::{TOKEN_PATTERNS, find_telegram_tokens};

/// Finds token formats and registered secrets in a text.
pub(super) struct Matcher {
    /// Automaton for the prefixes of [`TOKEN_PATTERNS`], then the secrets and their fragments.
    /// `None` if it could not be built.
    automaton: Option<AhoCorasick>,
    /// Registered secrets in all their encoded forms, without fragments.
    secrets: Vec<Vec<u8>>,
}

impl Matcher {
    pub(super) fn new(secrets: &BTreeSet<Vec<u8>>, fragments: &BTreeSet<Vec<u8>>) -> Self {
        let secrets: Vec<Vec<u8>> = secrets.iter().cloned().collect();
        let prefixes = TOKEN_PATTERNS.iter().map(|pattern| pattern.0.as_bytes());
        let patterns = prefixes.chain(secrets.iter().chain(fragments).map(Vec::as_slice));
        let automaton = AhoCorasick::new(patterns).ok();
        Self { automaton, secrets }
    }

    /// Returns the positions of secrets, in order and without overlaps.
    pub(super) fn find_secrets(&self, text: &[u8]) -> Vec<Range<usize>> {
        let Some(automaton) = &self.automaton else {
            // Without a matcher the text may contain secrets, so mask all of it.
            let all = Some(0..text.len()).filter(|all| !all.is_empty());
            return all.into_iter().collect();
        };
        let mut spans = Vec::new();
        find_telegram_tokens(text, &mut spans);
        // `is_match` is much faster than finding all positions.
        if automaton.is_match(text) {
            for hit in automaton.find_overlapping_iter(text) {
                match TOKEN_PATTERNS.get(hit.pattern().as_usize()) {
                    Some(pattern) => spans.extend(pattern.token_at(text, hit.range())),
                    None => spans.push(hit.range()),
                }
            }
        }
        merge_overlapping(spans)
    }

    /// Returns the last position at or before `limit` where `text` can be cut without splitting a
    /// secret. This includes a secret of which only the beginning is at the end of `text`.
    ///
    /// `spans` are the positions of the complete secrets in `text`. With `lines`, `limit` is the
    /// end of a line, so only secrets that contain a line break can continue after it.
    pub(super) fn safe_cut(
        &self,
        text: &[u8],
        spans: &[Range<usize>],
        limit: usize,
        lines: bool,
    ) -> usize {
        let secrets = self.secrets.iter();
        let secrets = secrets.filter(|secret| !lines || secret.contains(&b'\n'));
        let begun = secrets.filter_map(|secret| partial_secret_start(text, secret));
        let cut = limit.min(begun.min().unwrap_or(text.len()));
        let split = spans.iter().find(|span| span.start < cut && cut < span.end);
        split.map_or(cut, |span| span.start)
    }
}

/// Returns the start of an incomplete `secret` at the end of the text: the first position from
/// which the rest of the text is a prefix of `secret`.
fn partial_secret_start(text: &[u8], secret: &[u8]) -> Option<usize> {
    let longest = secret.len().saturating_sub(1).min(text.len());
    let mut starts = text.len() - longest..text.len();
    starts.find(|start| {
        text.get(*start..)
            .is_some_and(|tail| secret.starts_with(tail))
    })
}

/// Sorts spans and joins those that overlap, so that no part of two overlapping secrets is shown.
fn merge_overlapping(mut spans: Vec<Range<usize>>) -> Vec<Range<usize>> {
    spans.sort_unstable_by_key(|span| span.start);
    spans.dedup_by(|next, last| {
        let overlaps = next.start < last.end;
        if overlaps {
            last.end = last.end.max(next.end);
        }
        overlaps
    });
    spans
}
