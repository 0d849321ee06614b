//! Finds all secrets in one pass.

use std::collections::BTreeSet;
use std::ops::Range;

use aho_corasick::AhoCorasick;

use super::token_patterns::{TOKEN_PATTERNS, find_telegram_tokens};

/// Matcher for all patterns and registered secrets.
pub(super) struct Matcher {
    /// Automaton for the prefixes of [`TOKEN_PATTERNS`], then the secrets and their fragments.
    /// `None` if it could not be built.
    automaton: Option<AhoCorasick>,
    /// Complete secrets.
    secrets: Vec<Vec<u8>>,
}

impl Matcher {
    pub(super) fn new(secrets: &BTreeSet<Vec<u8>>, fragments: &BTreeSet<Vec<u8>>) -> Self {
        let secrets: Vec<Vec<u8>> = secrets.iter().cloned().collect();
        let prefixes = TOKEN_PATTERNS.iter().map(|shape| shape.prefix.as_bytes());
        let patterns = prefixes.chain(secrets.iter().chain(fragments).map(Vec::as_slice));
        let automaton = AhoCorasick::new(patterns).ok();
        Self { automaton, secrets }
    }

    /// Returns the positions of secrets, in order and without overlaps.
    pub(super) fn find_secrets(&self, text: &[u8]) -> Vec<Range<usize>> {
        let Some(automaton) = &self.automaton else {
            // Without a matcher the text may contain secrets, so mask all of it.
            return std::iter::once(0..text.len())
                .filter(|all| !all.is_empty())
                .collect();
        };
        let mut spans = Vec::new();
        find_telegram_tokens(text, &mut spans);
        // `is_match` is much faster than finding all positions.
        if automaton.is_match(text) {
            for hit in automaton.find_overlapping_iter(text) {
                match TOKEN_PATTERNS.get(hit.pattern().as_usize()) {
                    Some(shape) => spans.extend(shape.token_at(text, hit.range())),
                    None => spans.push(hit.range()),
                }
            }
        }
        merge_overlapping(spans)
    }

    /// Returns the largest cut at or before `limit` that splits no secret, complete or partial.
    ///
    /// `spans` are the positions in the complete `text`. Only secrets with a line break can
    /// continue after the end of a line; `lines` says that the text is cut at line ends.
    pub(super) fn safe_cut(
        &self,
        text: &[u8],
        spans: &[Range<usize>],
        limit: usize,
        lines: bool,
    ) -> usize {
        let secrets = self
            .secrets
            .iter()
            .filter(|secret| !lines || secret.contains(&b'\n'));
        let begun = secrets
            .filter_map(|secret| partial_secret_start(text, secret))
            .min()
            .unwrap_or(text.len());
        let cut = limit.min(begun);
        let split = spans.iter().find(|span| span.start < cut && cut < span.end);
        split.map_or(cut, |span| span.start)
    }
}

/// Returns the position where the text ends with a prefix of `secret`.
fn partial_secret_start(text: &[u8], secret: &[u8]) -> Option<usize> {
    let longest = secret.len().saturating_sub(1).min(text.len());
    (1..=longest)
        .rev()
        .map(|length| text.len() - length)
        .find(|start| {
            let tail = text.get(*start..).unwrap_or_default();
            secret.starts_with(tail)
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
