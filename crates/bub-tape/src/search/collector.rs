//! Collecting matches until there are enough.

use std::collections::HashSet;

use super::{SEARCH_MARKER, SearchHit, SearchResults};
use crate::{Entry, codec};

/// The matches so far, which arrive latest first.
#[derive(Debug, Default)]
pub(super) struct HitCollector {
    limit: usize,
    exact: Vec<SearchHit>,
    near: Vec<SearchHit>,
    payloads: HashSet<String>,
    filtered: usize,
}

impl HitCollector {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            ..Self::default()
        }
    }

    /// Whether no further match could be part of the answer.
    pub(super) fn is_complete(&self) -> bool {
        self.exact.len() >= self.limit
    }

    /// Whether a near match could still be part of the answer.
    pub(super) fn has_room(&self) -> bool {
        self.exact.len() + self.near.len() < self.limit
    }

    pub(super) fn add(&mut self, hit: SearchHit) {
        if is_search_output(&hit.entry) {
            self.filtered += 1;
        } else if self
            .payloads
            .insert(codec::to_python_json(&hit.entry.payload))
        {
            let hits = if hit.exact {
                &mut self.exact
            } else {
                &mut self.near
            };
            hits.push(hit);
        }
    }

    pub(super) fn into_results(self) -> SearchResults {
        let hits = self
            .exact
            .into_iter()
            .chain(self.near)
            .take(self.limit)
            .collect();
        SearchResults {
            hits,
            filtered: self.filtered,
        }
    }
}

fn is_search_output(entry: &Entry) -> bool {
    [&entry.payload, &entry.meta]
        .into_iter()
        .any(|map| codec::to_python_json(map).contains(SEARCH_MARKER))
}
