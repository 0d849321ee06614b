//! The one way in which queries are answered, whatever the store.

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

/// A query that was understood.
#[derive(Debug)]
struct ParsedQuery {
    text: Option<FoldedNeedle>,
    dates: TimestampRange,
    kinds: Vec<EntryKind>,
}

impl ParsedQuery {
    fn read(query: &Query) -> Result<Self> {
        Ok(Self {
            text: query.text.as_deref().map(FoldedNeedle::new),
            dates: TimestampRange::read(&query.dates)?,
            kinds: query.kinds.clone(),
        })
    }

    fn matches(&self, entry: &Entry) -> bool {
        (self.kinds.is_empty() || self.kinds.contains(&entry.kind))
            && self.dates.contain(&entry.date)
            && self
                .text
                .as_ref()
                .is_none_or(|text| text.is_in_entry(entry))
    }

    /// What can be told from the ends of raw lines.
    fn outside(&self) -> LineMetaFilter {
        LineMetaFilter::new(&self.kinds, self.dates)
    }

    /// What can be told from raw lines.
    fn line_filter(&self) -> Option<Arc<dyn LineFilter>> {
        let outside = self.outside();
        if let Some(text) = self.text.as_ref().filter(|text| !text.is_datelike())
            && let Some(needle) = SubstringFilter::new(text.folded(), outside.clone())
        {
            return Some(Arc::new(needle));
        }
        (!outside.is_open()).then(|| Arc::new(outside) as Arc<dyn LineFilter>)
    }
}

impl Query {
    /// Answers the query from a store. The cost is that of its window, and memory is bounded whatever the answer's length.
    ///
    /// What is wrong with the query — an unknown anchor, an unreadable date — is the stream's first and only item; errors
    /// of the store are passed on, never taken for an empty tape.
    pub fn run<'a>(self, store: &'a dyn TapeStore, tape: &'a TapeName) -> EntryStream<'a> {
        self.run_through(store, tape, ParsedQuery::line_filter)
    }

    /// Answers the query for a caller that compares the text itself and knows which lines are worth it.
    pub(crate) fn run_for_search<'a>(
        self,
        store: &'a dyn TapeStore,
        tape: &'a TapeName,
        line_filter: impl FnOnce(LineMetaFilter) -> Arc<dyn LineFilter> + Send + 'a,
    ) -> EntryStream<'a> {
        self.run_through(store, tape, move |filter| {
            Some(line_filter(filter.outside()))
        })
    }

    fn run_through<'a>(
        self,
        store: &'a dyn TapeStore,
        tape: &'a TapeName,
        line_filter: impl FnOnce(&ParsedQuery) -> Option<Arc<dyn LineFilter>> + Send + 'a,
    ) -> EntryStream<'a> {
        let found = async move {
            let filter = ParsedQuery::read(&self)?;
            let span = self.span(store, tape).await?;
            let entries = match line_filter(&filter) {
                Some(line_filter) => store.read_filtered(tape, span, line_filter),
                None => store.read(tape, span),
            };
            let matching = entries.try_filter(move |entry| ready(filter.matches(entry)));
            Ok::<_, TapeError>(matching.take(self.limit.unwrap_or(usize::MAX)))
        };
        Box::pin(stream::once(found).try_flatten())
    }

    /// The stretch of the tape its window means, found through the store's anchors.
    pub(crate) async fn span(&self, store: &dyn TapeStore, tape: &TapeName) -> Result<EntryRange> {
        let latest = |name: &str| one(store, tape, AnchorQuery::LatestNamed(name.to_owned()));
        let missing = |name: &str| TapeError::no_anchor(name);
        let span = match &self.window {
            AnchorWindow::All => EntryRange::ALL,
            AnchorWindow::AfterLast => {
                let last = one(store, tape, AnchorQuery::Latest(1)).await?;
                EntryRange::after(last.ok_or_else(TapeError::no_anchors)?.position)
            }
            AnchorWindow::After(name) => {
                EntryRange::after(latest(name).await?.ok_or_else(|| missing(name))?.position)
            }
            AnchorWindow::Between(start, end) => {
                let from = latest(start).await?.ok_or_else(|| missing(start))?.position;
                let search = AnchorQuery::FirstNamedAfter(end.clone(), from);
                let to = one(store, tape, search)
                    .await?
                    .ok_or_else(|| missing(end))?;
                EntryRange::after(from).before(to.position)
            }
        };
        Ok(if self.order == Order::NewestFirst {
            span.newest_first()
        } else {
            span
        })
    }
}

async fn one(
    store: &dyn TapeStore,
    tape: &TapeName,
    search: AnchorQuery,
) -> Result<Option<AnchorMark>> {
    Ok(store.anchors(tape, search).await?.pop())
}

impl Tape {
    /// The entries a query asks for, one by one.
    pub fn query(&self, query: Query) -> EntryStream<'_> {
        query.run(&**self.store(), self.name())
    }

    /// The entries a query asks for, collected; give a limit when there may be many.
    pub async fn query_all(&self, query: Query) -> Result<Vec<Entry>> {
        self.query(query).try_collect().await
    }
}
