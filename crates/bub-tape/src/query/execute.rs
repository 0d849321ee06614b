//! Executes queries on any store.

use std::{future::ready, sync::Arc};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::{
    AnchorWindow, Query, dates::TimestampRange, lines::LineMetaFilter, substring::SubstringFilter,
    text::FoldedNeedle,
};
use crate::{
    AnchorQuery, Entry, EntryRange, EntryStream, LineFilter, Result, Tape, TapeError, TapeName,
    TapeStore,
};

/// The parsed conditions of a query.
#[derive(Debug)]
struct ParsedQuery {
    text: Option<FoldedNeedle>,
    meta_filter: LineMetaFilter,
}

impl ParsedQuery {
    fn parse(query: &Query) -> Result<Self> {
        Ok(Self {
            text: query.text.as_deref().map(FoldedNeedle::new),
            meta_filter: query.meta_filter()?,
        })
    }

    fn matches(&self, entry: &Entry) -> bool {
        let text = self.text.as_ref();
        self.meta_filter.matches(entry) && text.is_none_or(|text| text.is_in_entry(entry))
    }

    /// Returns a filter for raw lines, or `None` if it would accept all lines.
    fn line_filter(&self) -> Option<Arc<dyn LineFilter>> {
        let meta_filter = self.meta_filter.clone();
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
        self.run_with_filter(store, tape, None)
    }

    /// Returns a filter for lines that do not meet the conditions on kind and date.
    pub(crate) fn meta_filter(&self) -> Result<LineMetaFilter> {
        Ok(LineMetaFilter {
            kinds: self.kinds.clone(),
            dates: TimestampRange::parse(&self.dates)?,
        })
    }

    /// Executes the query with another line filter than its own.
    pub(crate) fn run_with_filter<'a>(
        self,
        store: &'a dyn TapeStore,
        tape: &'a TapeName,
        line_filter: Option<Arc<dyn LineFilter>>,
    ) -> EntryStream<'a> {
        let entries = async move {
            let parsed = ParsedQuery::parse(&self)?;
            let range = self.resolve_range(store, tape).await?;
            let entries = match line_filter.or_else(|| parsed.line_filter()) {
                Some(line_filter) => store.read_filtered(tape, range, line_filter),
                None => store.read(tape, range),
            };
            let matching = entries.try_filter(move |entry| ready(parsed.matches(entry)));
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
        let find = async |query: AnchorQuery, missing_error: TapeError| {
            let mark = store.anchors(tape, query).await?.pop();
            Ok(mark.ok_or(missing_error)?.position)
        };
        let find_named = |name: &str| {
            let query = AnchorQuery::LatestNamed(name.to_owned());
            find(query, TapeError::anchor_not_found(name))
        };
        let range = match &self.window {
            AnchorWindow::All => EntryRange::ALL,
            AnchorWindow::AfterLast => {
                EntryRange::after(find(AnchorQuery::Latest(1), TapeError::no_anchors()).await?)
            }
            AnchorWindow::After(name) => EntryRange::after(find_named(name).await?),
            AnchorWindow::Between(start, end) => {
                let from = find_named(start).await?;
                let query = AnchorQuery::FirstNamedAfter(end.clone(), from);
                let to = find(query, TapeError::anchor_not_found(end)).await?;
                EntryRange::after(from).before(to)
            }
        };
        Ok(EntryRange {
            order: self.order,
            ..range
        })
    }
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
