//! Collects search hits up to the limit.

use std::collections::HashSet;

use super::{SEARCH_MARKER, SearchHit, SearchResults};
use crate::{Entry, codec};

/// The hits so far. They arrive newest first.
#[derive(Debug, Default)]
pub(super) struct HitCollector {
    limit: usize,
    exact: Vec<SearchHit>,
    fuzzy: Vec<SearchHit>,
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

    /// Returns whether the results cannot change any more.
    pub(super) fn is_complete(&self) -> bool {
        self.exact.len() >= self.limit
    }

    /// Returns whether a fuzzy match could still be part of the results.
    pub(super) fn can_add_fuzzy(&self) -> bool {
        self.exact.len() + self.fuzzy.len() < self.limit
    }

    pub(super) fn add_hit(&mut self, hit: SearchHit) {
        if is_search_output(&hit.entry) {
            self.filtered += 1;
        } else if self
            .payloads
            .insert(codec::to_python_json(&hit.entry.payload))
        {
            let hits = if hit.exact {
                &mut self.exact
            } else {
                &mut self.fuzzy
            };
            hits.push(hit);
        }
    }

    pub(super) fn into_results(self) -> SearchResults {
        let hits = self
            .exact
            .into_iter()
            .chain(self.fuzzy)
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
