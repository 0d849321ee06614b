//! Full-text search that tolerates typing errors, in any writing system.
//!
//! An entry is an exact match if the text occurs in its payload, in upper or lower case. It is a fuzzy match if each
//! word of the text occurs in it with at most a few typing errors. Results list exact matches before fuzzy ones, and
//! newer entries before older ones. Entries with equal payloads are listed once.

mod fuzzy;
mod typo;

use std::{
    collections::HashSet,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use futures_util::TryStreamExt as _;
use memchr::memmem;

use self::fuzzy::{FuzzyQuery, FuzzyWord};
use crate::{
    Entry, EntryKind, LineFilter, Query, Result, Tape, codec,
    query::{
        fold::fold_text,
        lines::{self, LineMetaFilter},
        substring::SubstringFilter,
        text::{FoldedNeedle, visit_texts},
    },
};

/// Text at the start of the output of the tool `tape.search`. A search omits entries that contain this text, so that it
/// does not find earlier search output.
pub const SEARCH_MARKER: &str = "[tape.search]";

/// Default maximum number of entries in the results.
const DEFAULT_SEARCH_LIMIT: usize = 20;
/// Maximum number of characters before the match in a snippet.
const SNIPPET_LEAD_CHARS: usize = 60;
/// Maximum length of a snippet in characters, without ellipses.
const SNIPPET_CHARS: usize = 200;

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
        let needs_fuzzy = Arc::new(AtomicBool::new(true));
        let line_filter = SearchFilter {
            exact: SubstringFilter::new(needle.folded(), meta_filter.clone()),
            longest: words.as_ref().map(|words| Arc::clone(&words.longest)),
            needs_fuzzy: Arc::clone(&needs_fuzzy),
            meta_filter,
        };
        let line_filter: Option<Arc<dyn LineFilter>> = Some(Arc::new(line_filter));
        let mut entries = query.run_with_filter(&**self.store(), self.name(), line_filter);
        let mut collector = HitCollector {
            limit: search.limit,
            ..HitCollector::default()
        };
        while collector.exact.len() < search.limit
            && let Some(entry) = entries.try_next().await?
        {
            let fuzzy_words = words.as_ref().filter(|_| collector.can_add_fuzzy());
            if let Some(hit) = match_entry(entry, &needle, fuzzy_words) {
                collector.add_hit(hit);
            }
            needs_fuzzy.store(collector.can_add_fuzzy(), Ordering::Relaxed);
        }
        drop(entries);
        Ok(collector.into_results())
    }
}

/// Accepts lines that may match a search.
#[derive(Debug)]
struct SearchFilter {
    /// A filter for exact matches, or `None` if raw lines cannot be searched for the text.
    exact: Option<SubstringFilter>,
    /// The longest word of the text, or `None` to find only exact matches.
    longest: Option<Arc<FuzzyWord>>,
    /// Whether fuzzy matches are still needed.
    needs_fuzzy: Arc<AtomicBool>,
    meta_filter: LineMetaFilter,
}

impl LineFilter for SearchFilter {
    fn filter(&self, lines: &[u8], keep: &mut Vec<Range<usize>>) {
        match (&self.longest, &self.exact) {
            (Some(longest), exact)
                if exact.is_none() || self.needs_fuzzy.load(Ordering::Relaxed) =>
            {
                // This accepts exact matches too, because they contain the longest word.
                keep.extend(lines::line_ranges(lines).filter(|line| {
                    let line = lines.get(line.clone()).unwrap_or_default();
                    self.meta_filter.can_match(line)
                        && (longest.find(line).is_some() || lines::has_escaped_char(line))
                }));
            }
            (_, Some(exact)) => exact.filter(lines, keep),
            (_, None) => self.meta_filter.filter(lines, keep),
        }
    }
}

/// The hits so far. They arrive newest first.
#[derive(Debug, Default)]
struct HitCollector {
    limit: usize,
    exact: Vec<SearchHit>,
    fuzzy: Vec<SearchHit>,
    payloads: HashSet<String>,
    filtered: usize,
}

impl HitCollector {
    /// Returns whether a fuzzy match could still be part of the results.
    fn can_add_fuzzy(&self) -> bool {
        self.exact.len() + self.fuzzy.len() < self.limit
    }

    fn add_hit(&mut self, hit: SearchHit) {
        let payload = codec::to_python_json(&hit.entry.payload);
        let meta = codec::to_python_json(&hit.entry.meta);
        if payload.contains(SEARCH_MARKER) || meta.contains(SEARCH_MARKER) {
            self.filtered += 1;
        } else if self.payloads.insert(payload) {
            let hits = if hit.exact {
                &mut self.exact
            } else {
                &mut self.fuzzy
            };
            hits.push(hit);
        }
    }

    fn into_results(self) -> SearchResults {
        let hits = self.exact.into_iter().chain(self.fuzzy);
        SearchResults {
            hits: hits.take(self.limit).collect(),
            filtered: self.filtered,
        }
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
        let folded = fold_text(text);
        let offset = memmem::find(folded.as_bytes(), needle.folded().as_bytes());
        snippet = offset.map(|offset| extract_snippet(text, &folded, offset));
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

/// Returns the text around a byte offset of `folded`. Folding keeps the number of characters, so the character index is
/// the same in `text`.
fn extract_snippet(text: &str, folded: &str, offset: usize) -> String {
    let char_index = folded
        .char_indices()
        .take_while(|(index, _)| *index < offset)
        .count();
    let start = char_index.saturating_sub(SNIPPET_LEAD_CHARS);
    let mut rest = text.chars().skip(start);
    let part: String = rest.by_ref().take(SNIPPET_CHARS).collect();
    let words: Vec<&str> = part.split_whitespace().collect();
    let (before, after) = (
        if start > 0 { "…" } else { "" },
        if rest.next().is_some() { "…" } else { "" },
    );
    format!("{before}{}{after}", words.join(" "))
}
