//! Full-text search that tolerates typing errors, in any writing system.
//!
//! An entry is an exact match if the text occurs in its payload, in upper or lower case. It is a fuzzy match if each
//! word of the text occurs in it with at most a few typing errors. Results list exact matches before fuzzy ones, and
//! newer entries before older ones. Entries with equal payloads are listed once.

mod collector;
mod fuzzy;
mod snippet;
mod typo;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use futures_util::TryStreamExt as _;

use self::{
    collector::HitCollector,
    fuzzy::{FuzzyFilter, FuzzyQuery},
};
use crate::{
    Entry, EntryKind, LineFilter, Query, Result, Tape,
    query::{
        substring::SubstringFilter,
        text::{FoldedNeedle, visit_texts},
    },
};

/// Text at the start of the output of the tool `tape.search`. A search omits entries that contain this text, so that it
/// does not find earlier search output.
pub const SEARCH_MARKER: &str = "[tape.search]";

/// Default maximum number of entries in the results.
const DEFAULT_SEARCH_LIMIT: usize = 20;

/// A search of one tape.
///
/// ```
/// use bub_tape::{EntryKind, Query, Search};
///
/// let search = Search::new("deploy").within(Query::new().kinds([EntryKind::Message])).limit(5);
/// assert!(search.fuzzy);
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct Search {
    /// The text to search for. Surrounding whitespace is ignored.
    pub text: String,
    /// The entries to search, by window, dates and kinds. The query's text, limit and order are ignored.
    pub within: Query,
    /// Maximum number of entries; 20 by default.
    pub limit: usize,
    /// Whether to find fuzzy matches too.
    pub fuzzy: bool,
}

impl Search {
    /// Creates a search of all messages and tool results.
    pub fn new(text: impl Into<String>) -> Self {
        let within = Query::new().kinds([EntryKind::Message, EntryKind::ToolResult]);
        Self {
            text: text.into(),
            within,
            limit: DEFAULT_SEARCH_LIMIT,
            fuzzy: true,
        }
    }

    /// Sets the entries to search.
    pub fn within(mut self, query: Query) -> Self {
        self.within = query;
        self
    }

    /// Sets the maximum number of entries.
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// Finds only exact matches.
    pub fn exact_only(mut self) -> Self {
        self.fuzzy = false;
        self
    }
}

/// The results of a search.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SearchResults {
    /// Exact matches, followed by fuzzy ones, newest first.
    pub hits: Vec<SearchHit>,
    /// Number of omitted matches that contain search output.
    pub filtered: usize,
}

/// An entry that matches.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchHit {
    /// The entry.
    pub entry: Entry,
    /// The text around the match, on one line.
    pub snippet: String,
    /// Whether this is an exact match; otherwise it is a fuzzy one.
    pub exact: bool,
}

impl Tape {
    /// Searches the tape, including the entries of the running turn.
    pub async fn search(&self, search: &Search) -> Result<SearchResults> {
        let needle = FoldedNeedle::new(search.text.trim());
        let words = FuzzyQuery::new(needle.folded()).filter(|_| search.fuzzy);
        let query = Query {
            text: None,
            limit: None,
            ..search.within.clone()
        }
        .newest_first();
        let meta_filter = query.meta_filter()?;
        let exact_filter = SubstringFilter::new(needle.folded(), meta_filter.clone());
        let fuzzy_is_needed = Arc::new(AtomicBool::new(true));
        let line_filter: Arc<dyn LineFilter> = match (&words, exact_filter) {
            (Some(words), exact) => Arc::new(FuzzyFilter {
                longest: Arc::clone(&words.longest),
                exact,
                meta_filter,
                is_needed: Arc::clone(&fuzzy_is_needed),
            }),
            (None, Some(exact)) => Arc::new(exact),
            (None, None) => Arc::new(meta_filter),
        };
        let mut entries = query.run_with_filter(&**self.store(), self.name(), Some(line_filter));
        let mut collector = HitCollector::new(search.limit);
        while !collector.is_complete()
            && let Some(entry) = entries.try_next().await?
        {
            let fuzzy_words = words.as_ref().filter(|_| collector.can_add_fuzzy());
            if let Some(hit) = match_entry(entry, &needle, fuzzy_words) {
                collector.add_hit(hit);
            }
            fuzzy_is_needed.store(collector.can_add_fuzzy(), Ordering::Relaxed);
        }
        drop(entries);
        Ok(collector.into_results())
    }
}

/// Returns the entry as a hit if it matches.
fn match_entry(
    entry: Entry,
    needle: &FoldedNeedle,
    words: Option<&FuzzyQuery>,
) -> Option<SearchHit> {
    let mut snippet = None;
    visit_payload_texts(&entry, &mut |text| {
        snippet = snippet::snippet_around(text, needle);
        snippet.is_some()
    });
    let exact = snippet.is_some();
    let snippet = snippet.or_else(|| words?.find_in_entry(&entry))?;
    Some(SearchHit {
        entry,
        snippet,
        exact,
    })
}

/// Calls `visit` with the texts of a payload until it returns `true`. Skips roles and types, which all messages have.
fn visit_payload_texts(entry: &Entry, visit: &mut dyn FnMut(&str) -> bool) {
    let mut visit =
        |key: Option<&str>, text: &str| !matches!(key, Some("role" | "type")) && visit(text);
    let _ = entry
        .payload
        .iter()
        .any(|(key, value)| visit_texts(Some(key), value, false, &mut visit));
}
