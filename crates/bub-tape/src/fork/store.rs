//! The store inside a fork: the parent's entries, then the fork's own.

use std::{ops::Bound, sync::Arc};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::{ForkHeader, MergeBack, latest_named};
use crate::{
    AnchorMark, AnchorQuery, AppendReceipt, BlobStore, BoxFuture, Entry, EntryId, EntryRange,
    EntryStream, Lease, LeaseWait, LineFilter, Order, Position, ResetOutcome, ResetRequest, Result,
    TapeError, TapeListFilter, TapeName, TapeStore, TapeSummary,
};

/// Positions of the fork stand behind all positions of the parent.
const FORK_POSITION_BIT: u64 = 1 << 63;

/// A tape and the journal that takes its place for writing.
#[derive(Debug, Clone)]
pub(super) struct ForkJournal {
    target: TapeName,
    journal: TapeName,
}

impl ForkJournal {
    pub(super) fn new(target: TapeName, journal: TapeName) -> Self {
        Self { target, journal }
    }
}

/// The store of a fork. Tapes that are not part of it go straight to the parent.
#[derive(Debug)]
pub(super) struct ForkStore {
    parent: Arc<dyn TapeStore>,
    managed: Vec<ForkJournal>,
    merge_back: MergeBack,
}

impl ForkStore {
    pub(super) fn new(
        parent: Arc<dyn TapeStore>,
        managed: Vec<ForkJournal>,
        merge_back: MergeBack,
    ) -> Self {
        Self {
            parent,
            managed,
            merge_back,
        }
    }

    fn journal(&self, tape: &TapeName) -> Option<&TapeName> {
        self.managed
            .iter()
            .find(|managed| managed.target == *tape)
            .map(|managed| &managed.journal)
    }

    async fn header(&self, journal: &TapeName) -> Result<Option<ForkHeader>> {
        let first = self
            .parent
            .read(journal, EntryRange::ALL)
            .next()
            .await
            .transpose()?;
        Ok(first.as_ref().and_then(ForkHeader::read))
    }

    async fn append_own(
        &self,
        tape: &TapeName,
        journal: &TapeName,
        mut batch: Vec<Entry>,
    ) -> Result<AppendReceipt> {
        let base = if let Some(header) = self.header(journal).await? {
            header.shown_base()
        } else {
            // The first word of a sidecar inside the fork.
            let base = self.parent.summary(tape).await?.max_id;
            batch.insert(
                0,
                ForkHeader {
                    merge_back: self.merge_back,
                    base,
                    reset: false,
                }
                .entry(),
            );
            base
        };
        let appended = self.parent.append(journal, batch).await?;
        let own = appended.ids.into_iter().filter(|id| *id > EntryId::new(1));
        Ok(AppendReceipt {
            ids: own.map(|id| shown_id(base, id)).collect(),
        })
    }

    async fn read_own<'a>(
        &'a self,
        tape: &'a TapeName,
        journal: &'a TapeName,
        span: EntryRange,
        line_filter: Option<Arc<dyn LineFilter>>,
    ) -> Result<EntryStream<'a>> {
        let read = |tape: &'a TapeName, span| match &line_filter {
            Some(line_filter) => self
                .parent
                .read_filtered(tape, span, Arc::clone(line_filter)),
            None => self.parent.read(tape, span),
        };
        let Some(header) = self.header(journal).await? else {
            return Ok(read(tape, span));
        };
        let base = header.shown_base();
        let own = match own_span(span) {
            Some(span) => read(journal, span),
            None => empty(),
        };
        let own = own.try_filter_map(move |entry| {
            let shown = (ForkHeader::read(&entry).is_none()).then(|| Entry {
                id: shown_id(base, entry.id),
                ..entry
            });
            std::future::ready(Ok(shown))
        });
        let parent = match parent_span(span).filter(|_| !header.reset) {
            Some(span) => read(tape, span),
            None => empty(),
        };
        Ok(match span.order {
            Order::OldestFirst => Box::pin(parent.chain(own)),
            Order::NewestFirst => Box::pin(own.chain(parent)),
        })
    }

    async fn fetch_own(
        &self,
        tape: &TapeName,
        journal: &TapeName,
        ids: &[EntryId],
    ) -> Result<Vec<Entry>> {
        let Some(header) = self.header(journal).await? else {
            return self.parent.fetch(tape, ids).await;
        };
        let base = header.shown_base();
        let (own, parents): (Vec<EntryId>, Vec<EntryId>) = ids.iter().partition(|id| **id > base);
        let own: Vec<_> = own
            .into_iter()
            .map(|id| EntryId::new(id.get() - base.get() + 1))
            .collect();
        let mut found = if header.reset {
            Vec::new()
        } else {
            self.parent.fetch(tape, &parents).await?
        };
        for entry in self.parent.fetch(journal, &own).await? {
            found.push(Entry {
                id: shown_id(base, entry.id),
                ..entry
            });
        }
        Ok(found)
    }

    async fn anchors_own(
        &self,
        tape: &TapeName,
        journal: &TapeName,
        search: AnchorQuery,
    ) -> Result<Vec<AnchorMark>> {
        let Some(header) = self.header(journal).await? else {
            return self.parent.anchors(tape, search).await;
        };
        let shift = |mark: AnchorMark| AnchorMark {
            id: shown_id(header.shown_base(), mark.id),
            position: Position::new(mark.position.get() | FORK_POSITION_BIT),
            ..mark
        };
        let own = |search: AnchorQuery| async move {
            let marks = self.parent.anchors(journal, search).await?;
            Ok::<_, TapeError>(marks.into_iter().map(shift).collect::<Vec<_>>())
        };
        let parents = |search: AnchorQuery| async move {
            if header.reset {
                Ok(Vec::new())
            } else {
                self.parent.anchors(tape, search).await
            }
        };
        match search {
            AnchorQuery::LatestNamed(name) => {
                let mine = own(latest_named(&name)).await?;
                if mine.is_empty() {
                    parents(latest_named(&name)).await
                } else {
                    Ok(mine)
                }
            }
            AnchorQuery::FirstNamedAfter(name, after) => {
                if after.get() & FORK_POSITION_BIT == 0 {
                    let first = parents(AnchorQuery::FirstNamedAfter(name.clone(), after)).await?;
                    if !first.is_empty() {
                        return Ok(first);
                    }
                }
                // The header stands at the very beginning, so nothing is missed by searching behind it.
                let behind = if after.get() & FORK_POSITION_BIT == 0 {
                    Position::default()
                } else {
                    strip(after)
                };
                own(AnchorQuery::FirstNamedAfter(name, behind)).await
            }
            AnchorQuery::All => Ok([
                parents(AnchorQuery::All).await?,
                own(AnchorQuery::All).await?,
            ]
            .concat()),
            AnchorQuery::Latest(count) => {
                let mine = own(AnchorQuery::Latest(count)).await?;
                let rest = count.saturating_sub(mine.len());
                let older = if rest == 0 {
                    Vec::new()
                } else {
                    parents(AnchorQuery::Latest(rest)).await?
                };
                Ok([older, mine].concat())
            }
        }
    }

    async fn summary_own(&self, tape: &TapeName, journal: &TapeName) -> Result<TapeSummary> {
        let Some(header) = self.header(journal).await? else {
            return self.parent.summary(tape).await;
        };
        let mut summary = if header.reset {
            TapeSummary::default()
        } else {
            self.parent.summary(tape).await?
        };
        let marks = self.parent.anchors(journal, AnchorQuery::All).await?;
        let mut places = marks
            .into_iter()
            .map(|mark| mark.position.get() | FORK_POSITION_BIT);
        let mut own = self
            .read_own(
                tape,
                journal,
                EntryRange::from(Position::new(FORK_POSITION_BIT)),
                None,
            )
            .await?;
        while let Some(entry) = own.next().await.transpose()? {
            let place = if entry.kind == crate::EntryKind::Anchor {
                places.next().unwrap_or(FORK_POSITION_BIT)
            } else {
                FORK_POSITION_BIT
            };
            summary.observe(&entry, Position::new(place));
        }
        Ok(summary)
    }

    /// Hides the parent's content until the merge. An archive is made now, of the parent and of what the fork has so
    /// far, because neither will be part of the merged tape.
    async fn reset_own(
        &self,
        tape: &TapeName,
        journal: &TapeName,
        reset: ResetRequest,
    ) -> Result<ResetOutcome> {
        let archived = match &reset.archive {
            Some(stamp) => {
                let archived = self.parent.archive(tape, stamp).await?;
                self.parent.archive(journal, stamp).await?;
                Some(archived)
            }
            None => None,
        };
        let base = self
            .header(journal)
            .await?
            .map_or_else(EntryId::default, |header| header.base);
        let header = ForkHeader {
            merge_back: self.merge_back,
            base,
            reset: true,
        }
        .entry();
        let (opening, path) = (reset.opening, archived.clone());
        let opening = Box::new(move |_: Option<&str>| {
            let mut entries = vec![header];
            entries.extend(opening(path.as_deref()));
            entries
        });
        let mut outcome = self
            .parent
            .reset(
                journal,
                ResetRequest {
                    archive: None,
                    opening,
                },
            )
            .await?;
        outcome.ids.remove(0);
        let ids = outcome
            .ids
            .into_iter()
            .map(|id| shown_id(EntryId::default(), id))
            .collect();
        Ok(ResetOutcome { archived, ids })
    }
}

impl ForkHeader {
    /// The id before the fork's first one.
    fn shown_base(&self) -> EntryId {
        if self.reset {
            EntryId::default()
        } else {
            self.base
        }
    }
}

impl TapeStore for ForkStore {
    fn list(&self, list_filter: TapeListFilter) -> BoxFuture<'_, Result<Vec<TapeName>>> {
        self.parent.list(list_filter)
    }

    fn append<'a>(
        &'a self,
        tape: &'a TapeName,
        batch: Vec<Entry>,
    ) -> BoxFuture<'a, Result<AppendReceipt>> {
        match self.journal(tape) {
            Some(journal) if !batch.is_empty() => Box::pin(self.append_own(tape, journal, batch)),
            _ => self.parent.append(tape, batch),
        }
    }

    fn read<'a>(&'a self, tape: &'a TapeName, span: EntryRange) -> EntryStream<'a> {
        match self.journal(tape) {
            Some(journal) => {
                Box::pin(stream::once(self.read_own(tape, journal, span, None)).try_flatten())
            }
            None => self.parent.read(tape, span),
        }
    }

    fn read_filtered<'a>(
        &'a self,
        tape: &'a TapeName,
        span: EntryRange,
        line_filter: Arc<dyn LineFilter>,
    ) -> EntryStream<'a> {
        match self.journal(tape) {
            Some(journal) => Box::pin(
                stream::once(self.read_own(tape, journal, span, Some(line_filter))).try_flatten(),
            ),
            None => self.parent.read_filtered(tape, span, line_filter),
        }
    }

    fn fetch<'a>(
        &'a self,
        tape: &'a TapeName,
        ids: &'a [EntryId],
    ) -> BoxFuture<'a, Result<Vec<Entry>>> {
        match self.journal(tape) {
            Some(journal) => Box::pin(self.fetch_own(tape, journal, ids)),
            None => self.parent.fetch(tape, ids),
        }
    }

    fn anchors<'a>(
        &'a self,
        tape: &'a TapeName,
        search: AnchorQuery,
    ) -> BoxFuture<'a, Result<Vec<AnchorMark>>> {
        match self.journal(tape) {
            Some(journal) => Box::pin(self.anchors_own(tape, journal, search)),
            None => self.parent.anchors(tape, search),
        }
    }

    fn summary<'a>(&'a self, tape: &'a TapeName) -> BoxFuture<'a, Result<TapeSummary>> {
        match self.journal(tape) {
            Some(journal) => Box::pin(self.summary_own(tape, journal)),
            None => self.parent.summary(tape),
        }
    }

    fn archive<'a>(&'a self, tape: &'a TapeName, stamp: &'a str) -> BoxFuture<'a, Result<String>> {
        self.parent.archive(tape, stamp)
    }

    fn reset<'a>(
        &'a self,
        tape: &'a TapeName,
        reset: ResetRequest,
    ) -> BoxFuture<'a, Result<ResetOutcome>> {
        match self.journal(tape) {
            Some(journal) => Box::pin(self.reset_own(tape, journal, reset)),
            None => self.parent.reset(tape, reset),
        }
    }

    fn discard<'a>(&'a self, tape: &'a TapeName) -> BoxFuture<'a, Result<()>> {
        match self.journal(tape) {
            Some(_) => {
                let refused = TapeError::InvalidInput(format!(
                    "Tape '{tape}' is part of a fork; finish the fork instead."
                ));
                Box::pin(std::future::ready(Err(refused)))
            }
            None => self.parent.discard(tape),
        }
    }

    fn lease<'a>(&'a self, tape: &'a TapeName, wait: LeaseWait) -> BoxFuture<'a, Result<Lease>> {
        self.parent.lease(tape, wait)
    }

    fn blobs(&self) -> Arc<dyn BlobStore> {
        self.parent.blobs()
    }
}

/// A journal's first entry is its header, so its second one has the id behind the base.
fn shown_id(base: EntryId, id: EntryId) -> EntryId {
    EntryId::new(base.get() + id.get() - 1)
}

fn strip(position: Position) -> Position {
    Position::new(position.get() & !FORK_POSITION_BIT)
}

/// The part of a span that lies in the journal.
fn own_span(span: EntryRange) -> Option<EntryRange> {
    let is_own = |position: &Position| position.get() & FORK_POSITION_BIT != 0;
    let start = match span.start {
        Bound::Included(position) | Bound::Excluded(position) if !is_own(&position) => {
            Bound::Unbounded
        }
        bound => bound.map(strip),
    };
    match span.end {
        Bound::Included(position) | Bound::Excluded(position) if !is_own(&position) => None,
        bound => Some(EntryRange {
            start,
            end: bound.map(strip),
            order: span.order,
        }),
    }
}

/// The part of a span that lies in the parent.
fn parent_span(span: EntryRange) -> Option<EntryRange> {
    let is_own = |position: &Position| position.get() & FORK_POSITION_BIT != 0;
    let end = match span.end {
        Bound::Included(position) | Bound::Excluded(position) if is_own(&position) => {
            Bound::Unbounded
        }
        bound => bound,
    };
    match span.start {
        Bound::Included(position) | Bound::Excluded(position) if is_own(&position) => None,
        start => Some(EntryRange {
            start,
            end,
            order: span.order,
        }),
    }
}

fn empty<'a>() -> EntryStream<'a> {
    Box::pin(stream::empty())
}
