//! Executes queries on any store.

use std::{future::ready, sync::Arc};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::{
    AnchorWindow, Order, Query, dates::TimestampRange, lines::LineMetaFilter,
    substring::SubstringFilter, text::FoldedNeedle,
};
use crate::{
    AnchorMark, AnchorQuery, Entry, EntryKind, EntryRange, EntryStream, LineFilter, Result, Tape,
    TapeError, TapeName, TapeStore,
};

/// The parsed conditions of a query.
#[derive(Debug)]
struct ParsedQuery {
    text: Option<FoldedNeedle>,
    dates: TimestampRange,
    kinds: Vec<EntryKind>,
}

impl ParsedQuery {
    fn parse(query: &Query) -> Result<Self> {
        Ok(Self {
            text: query.text.as_deref().map(FoldedNeedle::new),
            dates: TimestampRange::parse(&query.dates)?,
            kinds: query.kinds.clone(),
        })
    }

    fn matches(&self, entry: &Entry) -> bool {
        (self.kinds.is_empty() || self.kinds.contains(&entry.kind))
            && self.dates.contains(&entry.date)
            && self
                .text
                .as_ref()
                .is_none_or(|text| text.is_in_entry(entry))
    }

    /// Returns a filter for the conditions on kind and date.
    fn meta_filter(&self) -> LineMetaFilter {
        LineMetaFilter::new(&self.kinds, self.dates)
    }

    /// Returns a filter for raw lines, or `None` if it would accept all lines.
    fn line_filter(&self) -> Option<Arc<dyn LineFilter>> {
        let meta_filter = self.meta_filter();
        if let Some(text) = self.text.as_ref().filter(|text| !text.is_datelike())
            && let Some(filter) = SubstringFilter::new(text.folded(), meta_filter.clone())
        {
            return Some(Arc::new(filter));
        }
        (!meta_filter.accepts_all()).then(|| Arc::new(meta_filter) as Arc<dyn LineFilter>)
    }
}

impl Query {
    /// Executes the query. It reads only the window of the query, and memory use is bounded.
    ///
    /// If the query is invalid, because of an unknown anchor or an invalid date, the error is the only item of the
    /// stream. Errors of the store are passed on.
    pub fn run<'a>(self, store: &'a dyn TapeStore, tape: &'a TapeName) -> EntryStream<'a> {
        self.run_with_filter(store, tape, ParsedQuery::line_filter)
    }

    /// Executes the query with the line filter of a search. Does not compare the text of the query, because the search
    /// does.
    pub(crate) fn run_for_search<'a>(
        self,
        store: &'a dyn TapeStore,
        tape: &'a TapeName,
        line_filter: impl FnOnce(LineMetaFilter) -> Arc<dyn LineFilter> + Send + 'a,
    ) -> EntryStream<'a> {
        self.run_with_filter(store, tape, move |filter| {
            Some(line_filter(filter.meta_filter()))
        })
    }

    fn run_with_filter<'a>(
        self,
        store: &'a dyn TapeStore,
        tape: &'a TapeName,
        line_filter: impl FnOnce(&ParsedQuery) -> Option<Arc<dyn LineFilter>> + Send + 'a,
    ) -> EntryStream<'a> {
        let entries = async move {
            let filter = ParsedQuery::parse(&self)?;
            let range = self.resolve_range(store, tape).await?;
            let entries = match line_filter(&filter) {
                Some(line_filter) => store.read_filtered(tape, range, line_filter),
                None => store.read(tape, range),
            };
            let matching = entries.try_filter(move |entry| ready(filter.matches(entry)));
            Ok::<_, TapeError>(matching.take(self.limit.unwrap_or(usize::MAX)))
        };
        Box::pin(stream::once(entries).try_flatten())
    }

    /// Returns the range of the query's window. Finds it with the store's anchor index.
    pub(crate) async fn resolve_range(
        &self,
        store: &dyn TapeStore,
        tape: &TapeName,
    ) -> Result<EntryRange> {
        let latest =
            |name: &str| find_anchor(store, tape, AnchorQuery::LatestNamed(name.to_owned()));
        let missing_error = |name: &str| TapeError::anchor_not_found(name);
        let range = match &self.window {
            AnchorWindow::All => EntryRange::ALL,
            AnchorWindow::AfterLast => {
                let last = find_anchor(store, tape, AnchorQuery::Latest(1)).await?;
                EntryRange::after(last.ok_or_else(TapeError::no_anchors)?.position)
            }
            AnchorWindow::After(name) => EntryRange::after(
                latest(name)
                    .await?
                    .ok_or_else(|| missing_error(name))?
                    .position,
            ),
            AnchorWindow::Between(start, end) => {
                let from = latest(start)
                    .await?
                    .ok_or_else(|| missing_error(start))?
                    .position;
                let query = AnchorQuery::FirstNamedAfter(end.clone(), from);
                let to = find_anchor(store, tape, query)
                    .await?
                    .ok_or_else(|| missing_error(end))?;
                EntryRange::after(from).before(to.position)
            }
        };
        Ok(if self.order == Order::NewestFirst {
            range.newest_first()
        } else {
            range
        })
    }
}

async fn find_anchor(
    store: &dyn TapeStore,
    tape: &TapeName,
    query: AnchorQuery,
) -> Result<Option<AnchorMark>> {
    Ok(store.anchors(tape, query).await?.pop())
}

impl Tape {
    /// Returns a stream of the entries that a query selects.
    pub fn query(&self, query: Query) -> EntryStream<'_> {
        query.run(&**self.store(), self.name())
    }

    /// Returns all entries that a query selects. Set a limit if there may be many.
    pub async fn query_all(&self, query: Query) -> Result<Vec<Entry>> {
        self.query(query).try_collect().await
    }
}
