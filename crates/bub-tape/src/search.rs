//! Ranked full-text search, in any writing system.
//!
//! Any word of the text counts, rare words more (BM25). Entries with the words as a phrase come first, then those with
//! all words, then others. Other forms of a word and typing errors count less. Of equal entries, the newest is listed.
//!
//! A store provides [`SearchParts`]. [`Ranker`] finds the best documents in them, and [`score`] compares their texts.

#![expect(
    clippy::cast_precision_loss,
    reason = "scores compare documents and need no exact counts"
)]

mod entry_text;
mod parts;
mod rank;
mod score;
mod segment;
mod stem;
mod syntax;
mod tokens;
mod typo;

use std::{
    collections::{HashMap, HashSet},
    io,
    sync::Arc,
};

use serde_json::Value;

use self::{
    rank::{Candidate, DocumentFilter, Ranker, Ranking},
    score::{EntryScore, MatchLevel, score_entry},
    syntax::ParsedText,
};
use crate::{
    AnchorMark, AnchorQuery, Entry, EntryId, EntryKind, EntryRange, Order, Query, Result, Tape,
    TapeError, TapeName, TapeStore, codec, file::run_blocking, query::lines::LineMetaFilter,
};

pub use self::parts::SearchParts;
pub(crate) use self::{
    parts::{PartSource, SearchChunk, SearchPart},
    segment::{Segment, SegmentBuilder, SegmentData},
};

/// Text at the start of the output of the search tools. A search omits entries that contain this text, so that it does
/// not find earlier search output.
pub const SEARCH_MARKER: &str = "[tape.search]";

/// Default maximum number of entries in the results.
const DEFAULT_SEARCH_LIMIT: usize = 20;
/// Minimum number of entries whose texts are scored, if there are enough.
const MIN_SCORED_ENTRIES: usize = 200;
/// Maximum number of entries whose texts are scored.
const MAX_SCORED_ENTRIES: usize = 20_000;
/// How much the best match near an entry adds to its score if the entry lacks words. An answer often lacks the words of
/// its question.
const NEIGHBOR_WEIGHT: f32 = 0.2;
/// Weight of a question that says hardly more than the search text. It is no answer.
const ECHO_WEIGHT: f32 = 0.35;
/// Maximum difference of the ids of entries that are near each other.
const NEIGHBOR_DISTANCE: i64 = 3;
/// How much more the newest entry counts than the oldest.
const RECENCY_BONUS: f32 = 0.05;
/// Time after which half of the bonus is gone, in days.
const RECENCY_HALF_LIFE_DAYS: f32 = 30.0;

/// A search of tapes.
///
/// The text consists of words. `"a phrase"` must occur, `-word` must not occur. `kind:`, `from:` (role or name),
/// `before:` and `after:` (dates) restrict the entries.
///
/// ```
/// use bub_tape::{EntryKind, Query, Search};
///
/// let search = Search::new("when was the deploy?").within(Query::new().kinds([EntryKind::Message])).limit(5);
/// assert!(search.fuzzy);
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct Search {
    /// The text to search for.
    pub text: String,
    /// The entries to search, by window, dates and kinds. The query's text, limit and order are ignored. `kind:` in the
    /// text replaces its kinds.
    pub within: Query,
    /// Maximum number of entries; 20 by default.
    pub limit: usize,
    /// Whether entries that lack words, or have other forms of them, are found too.
    pub fuzzy: bool,
    /// The tape and the id of the running turn, for a search of its model. The messages of its user, its tool calls,
    /// and what the model still sees of the turn are not found.
    pub running_turn: Option<(TapeName, String)>,
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
            running_turn: None,
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

    /// Omits what the model of a turn knows anyway; see [`running_turn`](Self::running_turn).
    pub fn outside_of_turn(mut self, tape: &TapeName, id: impl Into<String>) -> Self {
        self.running_turn = Some((tape.clone(), id.into()));
        self
    }

    /// Searches tapes of a store. The results depend only on these tapes.
    pub async fn run(&self, store: &dyn TapeStore, tapes: &[TapeName]) -> Result<SearchResults> {
        let text = ParsedText::parse(&self.text)?;
        let mut meta_filter = self.within.meta_filter()?;
        meta_filter.narrow(text.kinds.clone(), text.after, text.before);
        if text.is_empty() || self.limit == 0 {
            return Ok(SearchResults::default());
        }
        let mut scopes = Vec::new();
        for tape in tapes {
            let range = self.within.resolve_range(store, tape).await?;
            scopes.push((
                tape.clone(),
                EntryRange {
                    order: Order::OldestFirst,
                    ..range
                },
            ));
        }
        let hidden = match &self.running_turn {
            Some((tape, id)) => Some(HiddenTurn {
                id: id.clone(),
                anchor: store.anchors(tape, AnchorQuery::Latest(1)).await?.pop(),
            }),
            None => None,
        };
        let prepared = Arc::new(PreparedSearch {
            text,
            meta_filter,
            hidden,
            limit: self.limit,
            fuzzy: self.fuzzy,
        });
        for is_last in [false, true] {
            let parts = store.search_parts(&scopes).await?;
            let prepared = Arc::clone(&prepared);
            let work = move || {
                let results = parts.search(&prepared);
                results.inspect_err(|error| parts.remove_invalid_index(error))
            };
            match run_blocking(work).await {
                Err(error) if error.is_invalid_data() && !is_last => {}
                results => {
                    let mut results = results?;
                    add_phases(store, &mut results.hits).await?;
                    return Ok(results);
                }
            }
        }
        Ok(SearchResults::default())
    }
}

/// The results of a search.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SearchResults {
    /// The matches, the best first.
    pub hits: Vec<SearchHit>,
    /// Number of omitted matches that contain search output.
    pub filtered: usize,
    /// Number of bytes of the tapes that were not searched, because they are not indexed yet. The next search indexes
    /// more of them.
    pub unindexed_bytes: u64,
}

/// An entry that matches.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchHit {
    /// The tape of the entry.
    pub tape: TapeName,
    /// The entry.
    pub entry: Entry,
    /// The text around the match, on one line.
    pub snippet: String,
    /// Whether all words occur as they are in the search text.
    pub exact: bool,
    /// The author: the role, or the name of the sender.
    pub author: Option<String>,
    /// The name of the latest anchor before the entry.
    pub phase: Option<String>,
}

impl Tape {
    /// Searches the tape, including the entries of the running turn.
    pub async fn search(&self, search: &Search) -> Result<SearchResults> {
        search
            .run(&**self.store(), std::slice::from_ref(self.name()))
            .await
    }
}

/// A search without its store.
#[derive(Debug)]
struct PreparedSearch {
    text: ParsedText,
    meta_filter: LineMetaFilter,
    hidden: Option<HiddenTurn>,
    limit: usize,
    fuzzy: bool,
}

/// A running turn, whose model does not find what it sees.
#[derive(Debug)]
struct HiddenTurn {
    id: String,
    /// The latest anchor of the turn's tape. A handoff during the turn hides earlier entries from the model.
    anchor: Option<AnchorMark>,
}

impl HiddenTurn {
    fn has(&self, entry: &Entry) -> bool {
        let run_id = entry.meta.get("run_id").and_then(Value::as_str);
        let is_handed_off = |anchor: &AnchorMark| entry.id < anchor.id;
        let is_asked = entry.kind == EntryKind::ToolCall
            || entry.payload.get("role").and_then(Value::as_str) == Some("user");
        run_id == Some(self.id.as_str())
            && (is_asked || !self.anchor.as_ref().is_some_and(is_handed_off))
    }
}

impl SearchParts {
    fn search(&self, search: &PreparedSearch) -> Result<SearchResults> {
        let (text, limit, fuzzy) = (&search.text, search.limit, search.fuzzy);
        let filter = DocumentFilter {
            kinds: search.meta_filter.kinds.clone(),
            seconds: search.meta_filter.dates.to_seconds(),
            all_words: !fuzzy,
            fuzzy,
        };
        let ranker = Ranker::new(&self.parts, text, &filter).map_err(index_error)?;
        let mut count = limit.saturating_mul(4).max(MIN_SCORED_ENTRIES);
        loop {
            let ranking = ranker.rank(count).map_err(index_error)?;
            let mut scorer = HitCollector::default();
            for candidate in &ranking.candidates {
                if let Some((tape, entry)) = self.read_candidate(candidate)?
                    && search.meta_filter.matches(&entry)
                    && !search.hidden.as_ref().is_some_and(|turn| turn.has(&entry))
                    && let Some(score) = score_entry(&entry, text, &ranking)
                {
                    scorer.add(tape, entry, score);
                }
            }
            let mut results = scorer.into_results(&ranking, limit, fuzzy);
            results.unindexed_bytes = self.unindexed_bytes;
            if results.hits.len() >= limit || !ranking.is_truncated || count >= MAX_SCORED_ENTRIES {
                return Ok(results);
            }
            count = count.saturating_mul(8);
        }
    }

    fn read_candidate(&self, candidate: &Candidate) -> Result<Option<(TapeName, Entry)>> {
        let Some(part) = self.parts.get(candidate.part) else {
            return Ok(None);
        };
        let entry = part.read_entry(candidate.document, candidate.offset)?;
        let tape = part
            .chunk_of(candidate.document)
            .map(|chunk| chunk.tape.clone());
        Ok(tape.zip(entry))
    }
}

fn index_error(error: io::Error) -> TapeError {
    TapeError::from_io("read", "search index".as_ref(), error)
}

/// The entries that match, with their scores.
#[derive(Default)]
struct HitCollector {
    hits: Vec<(SearchHit, EntryScore)>,
    filtered: usize,
}

impl HitCollector {
    fn add(&mut self, tape: TapeName, entry: Entry, mut score: EntryScore) {
        if codec::to_python_json(&entry.meta).contains(SEARCH_MARKER) {
            self.filtered += 1;
            return;
        }
        let hit = SearchHit {
            tape,
            entry,
            snippet: std::mem::take(&mut score.snippet),
            exact: score.level >= MatchLevel::All,
            author: score.author.take(),
            phase: None,
        };
        self.hits.push((hit, score));
    }

    /// Adds what the places and dates of the entries say to their scores.
    fn adjust_scores(&mut self) {
        let seconds = |hit: &SearchHit| entry_text::date_seconds(&hit.entry.date);
        let newest = self.hits.iter().map(|(hit, _)| seconds(hit)).max();
        let newest = newest.unwrap_or(0);
        let own = self.hits.iter();
        let own = own.map(|(hit, score)| ((hit.tape.clone(), hit.entry.id), score.score));
        let own: HashMap<_, _> = own.collect();
        for (hit, score) in &mut self.hits {
            let id = hit.entry.id.get();
            let near = (id.saturating_sub(NEIGHBOR_DISTANCE)
                ..=id.saturating_add(NEIGHBOR_DISTANCE))
                .filter(|other| *other != id);
            let near = near.filter_map(|other| own.get(&(hit.tape.clone(), EntryId::new(other))));
            if score.is_echo {
                score.score *= ECHO_WEIGHT;
            } else if score.level == MatchLevel::Some {
                score.score += NEIGHBOR_WEIGHT * near.copied().fold(0.0, f32::max);
            }
            let days = (newest - seconds(hit)) as f32 / 86_400.0;
            score.score *= 1.0 + RECENCY_BONUS * 0.5_f32.powf(days / RECENCY_HALF_LIFE_DAYS);
        }
    }

    fn into_results(mut self, ranking: &Ranking, limit: usize, fuzzy: bool) -> SearchResults {
        self.adjust_scores();
        self.hits
            .sort_by(|(left, left_score), (right, right_score)| {
                let by_level = right_score.level.cmp(&left_score.level);
                by_level
                    .then(right_score.score.total_cmp(&left_score.score))
                    .then_with(|| right.entry.timestamp().cmp(&left.entry.timestamp()))
                    .then_with(|| (&right.tape, right.entry.id).cmp(&(&left.tape, left.entry.id)))
            });
        let mut payloads = HashSet::new();
        let hits = self
            .hits
            .into_iter()
            .map(|(hit, ..)| hit)
            .filter(|hit| hit.exact || fuzzy);
        let hits = hits.filter(|hit| {
            payloads.insert((hit.tape.clone(), codec::to_python_json(&hit.entry.payload)))
        });
        SearchResults {
            hits: hits.take(limit).collect(),
            filtered: self.filtered + ranking.filtered,
            unindexed_bytes: 0,
        }
    }
}

/// Sets the phases of hits.
async fn add_phases(store: &dyn TapeStore, hits: &mut [SearchHit]) -> Result<()> {
    let mut anchors: HashMap<TapeName, Vec<AnchorMark>> = HashMap::new();
    for hit in hits {
        if !anchors.contains_key(&hit.tape) {
            let marks = store.anchors(&hit.tape, AnchorQuery::All).await?;
            anchors.insert(hit.tape.clone(), marks);
        }
        let marks = anchors.get(&hit.tape).into_iter().flatten();
        let phase = marks.rev().find(|mark| mark.id < hit.entry.id);
        hit.phase = phase.map(|mark| mark.name.clone());
    }
    Ok(())
}
