//! Finding what was said, in any script, spelled rightly or nearly so.
//!
//! An entry matches exactly when the text occurs in its payload, whatever the case. It matches nearly when every word
//! of the text does, each within the tolerance of a typing error. Exact matches come first, and in each group
//! the latest; entries with the same payload count once.

mod collector;
mod fuzzy;
mod snippet;
mod typo;

use std::sync::Arc;

use futures_util::TryStreamExt as _;

use self::{
    collector::HitCollector,
    fuzzy::{FuzzyFilter, FuzzyQuery},
};
use crate::{
    Entry, EntryKind, LineFilter, Query, Result, Tape,
    query::{
        lines::LineMetaFilter,
        substring::SubstringFilter,
        text::{FoldedNeedle, each_text},
    },
};

/// What the output of a search starts with. Entries that contain it are left out: a search that finds itself says nothing.
pub const SEARCH_MARKER: &str = "[tape.search]";

const DEFAULT_SEARCH_LIMIT: usize = 20;

/// A search of one tape.
#[derive(Debug, Clone)]
#[must_use]
pub struct Search {
    /// What to look for; the space around it does not matter.
    pub text: String,
    /// Which entries to look at: window, dates and kinds. Its text, limit and order mean nothing here.
    pub within: Query,
    /// How many entries to find at most.
    pub limit: usize,
    /// Whether what nearly matches is found too.
    pub fuzzy: bool,
}

impl Search {
    /// A search of all messages and tool results.
    pub fn new(text: impl Into<String>) -> Self {
        let within = Query::new().kinds([EntryKind::Message, EntryKind::ToolResult]);
        Self {
            text: text.into(),
            within,
            limit: DEFAULT_SEARCH_LIMIT,
            fuzzy: true,
        }
    }

    /// Looks at other entries.
    pub fn within(mut self, query: Query) -> Self {
        self.within = query;
        self
    }

    /// Finds at most so many.
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// Finds only what matches exactly.
    pub fn exactly(mut self) -> Self {
        self.fuzzy = false;
        self
    }
}

/// What a search found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SearchResults {
    /// Exact matches, latest first, then near ones.
    pub hits: Vec<SearchHit>,
    /// How many matches were left out because they are themselves the output of a search.
    pub filtered: usize,
}

/// An entry that matches.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchHit {
    /// The entry.
    pub entry: Entry,
    /// The text around the match, on one line.
    pub snippet: String,
    /// Whether the text occurs as it was asked for.
    pub exact: bool,
}

impl Tape {
    /// Searches the tape, what the running turn has written included.
    pub async fn search(&self, search: &Search) -> Result<SearchResults> {
        let wanted = FoldedNeedle::new(search.text.trim());
        let words = if search.fuzzy {
            FuzzyQuery::new(wanted.folded())
        } else {
            None
        };
        let blurred = words
            .as_ref()
            .map(|words| Arc::new(FuzzyFilter::new(words, wanted.folded())));
        let query = Query {
            text: None,
            limit: None,
            ..search.within.clone()
        }
        .newest_first();
        let line_filter = |outside| line_filter(blurred.as_ref(), &wanted, outside);
        let mut entries = query.run_for_search(&**self.store(), self.name(), line_filter);
        let mut gathered = HitCollector::new(search.limit);
        while !gathered.is_complete()
            && let Some(entry) = entries.try_next().await?
        {
            let near = words.as_ref().filter(|_| gathered.has_room());
            if let Some(hit) = compare(entry, &wanted, near) {
                gathered.add(hit);
            }
            if let Some(blurred) = blurred.as_ref().filter(|_| !gathered.has_room()) {
                blurred.only_exact();
            }
        }
        drop(entries);
        Ok(gathered.into_results())
    }
}

fn line_filter(
    blurred: Option<&Arc<FuzzyFilter>>,
    wanted: &FoldedNeedle,
    outside: LineMetaFilter,
) -> Arc<dyn LineFilter> {
    if let Some(blurred) = blurred {
        return Arc::new(blurred.within(outside));
    }
    match SubstringFilter::new(wanted.folded(), outside.clone()) {
        Some(needle) => Arc::new(needle),
        None => Arc::new(outside),
    }
}

/// The entry as a hit, when it matches at all.
fn compare(entry: Entry, wanted: &FoldedNeedle, words: Option<&FuzzyQuery>) -> Option<SearchHit> {
    let mut snippet = None;
    visit_texts(&entry, &mut |text| {
        snippet = snippet::snippet_around(text, wanted);
        snippet.is_some()
    });
    if let Some(snippet) = snippet {
        return Some(SearchHit {
            entry,
            snippet,
            exact: true,
        });
    }
    let place = words?.find_in(&entry)?;
    Some(SearchHit {
        entry,
        snippet: snippet::snippet(&place.text, place.at),
        exact: false,
    })
}

/// Calls `visit` with the texts of a payload until it returns `true`. What every message has says nothing about it.
fn visit_texts(entry: &Entry, visit: &mut dyn FnMut(&str) -> bool) {
    let mut visit =
        |key: Option<&str>, text: &str| !matches!(key, Some("role" | "type")) && visit(text);
    let _ = entry
        .payload
        .iter()
        .any(|(key, value)| each_text(Some(key), value, false, &mut visit));
}
