//! The store inside a fork, which shows the parent's entries followed by those of the journal.

use std::{ops::Bound, sync::Arc};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::{ForkHeader, MergeBack, latest_anchor_named};
use crate::{
    AnchorMark, AnchorQuery, AppendReceipt, BlobStore, BoxFuture, Entry, EntryId, EntryRange,
    EntryStream, Lease, LeaseWait, LineFilter, Order, Position, ResetOutcome, ResetRequest, Result,
    TapeError, TapeListFilter, TapeName, TapeStore, TapeSummary,
};

/// Bit that is set in positions of journal entries. It puts them after all positions of the parent.
const FORK_POSITION_BIT: u64 = 1 << 63;

/// A tape and the journal that receives its new entries.
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

/// The store of a fork. Operations on tapes that are not part of the fork go to the parent store.
#[derive(Debug)]
pub(super) struct ForkStore {
    parent: Arc<dyn TapeStore>,
    journals: Vec<ForkJournal>,
    merge_back: MergeBack,
}

impl ForkStore {
    pub(super) fn new(
        parent: Arc<dyn TapeStore>,
        journals: Vec<ForkJournal>,
        merge_back: MergeBack,
    ) -> Self {
        Self {
            parent,
            journals,
            merge_back,
        }
    }

    fn journal_for(&self, tape: &TapeName) -> Option<&TapeName> {
        self.journals
            .iter()
            .find(|journals| journals.target == *tape)
            .map(|journals| &journals.journal)
    }

    async fn read_header(&self, journal: &TapeName) -> Result<Option<ForkHeader>> {
        let first = self
            .parent
            .read(journal, EntryRange::ALL)
            .next()
            .await
            .transpose()?;
        Ok(first.as_ref().and_then(ForkHeader::from_entry))
    }

    async fn append_to_journal(
        &self,
        tape: &TapeName,
        journal: &TapeName,
        mut batch: Vec<Entry>,
    ) -> Result<AppendReceipt> {
        let base = if let Some(header) = self.read_header(journal).await? {
            header.visible_base()
        } else {
            // The first entry of a sidecar in this fork.
            let base = self.parent.summary(tape).await?.max_id;
            batch.insert(
                0,
                ForkHeader {
                    merge_back: self.merge_back,
                    base,
                    reset: false,
                }
                .to_entry(),
            );
            base
        };
        let receipt = self.parent.append(journal, batch).await?;
        let journal_ids = receipt.ids.into_iter().filter(|id| *id > EntryId::new(1));
        Ok(AppendReceipt {
            ids: journal_ids.map(|id| visible_id(base, id)).collect(),
        })
    }

    async fn read_combined<'a>(
        &'a self,
        tape: &'a TapeName,
        journal: &'a TapeName,
        range: EntryRange,
        line_filter: Option<Arc<dyn LineFilter>>,
    ) -> Result<EntryStream<'a>> {
        let read = |tape: &'a TapeName, range| match &line_filter {
            Some(line_filter) => self
                .parent
                .read_filtered(tape, range, Arc::clone(line_filter)),
            None => self.parent.read(tape, range),
        };
        let Some(header) = self.read_header(journal).await? else {
            return Ok(read(tape, range));
        };
        let base = header.visible_base();
        let journal_entries = match journal_range(range) {
            Some(range) => read(journal, range),
            None => empty_stream(),
        };
        let journal_entries = journal_entries.try_filter_map(move |entry| {
            let visible = (ForkHeader::from_entry(&entry).is_none()).then(|| Entry {
                id: visible_id(base, entry.id),
                ..entry
            });
            std::future::ready(Ok(visible))
        });
        let parent = match parent_range(range).filter(|_| !header.reset) {
            Some(range) => read(tape, range),
            None => empty_stream(),
        };
        Ok(match range.order {
            Order::OldestFirst => Box::pin(parent.chain(journal_entries)),
            Order::NewestFirst => Box::pin(journal_entries.chain(parent)),
        })
    }

    async fn fetch_combined(
        &self,
        tape: &TapeName,
        journal: &TapeName,
        ids: &[EntryId],
    ) -> Result<Vec<Entry>> {
        let Some(header) = self.read_header(journal).await? else {
            return self.parent.fetch(tape, ids).await;
        };
        let base = header.visible_base();
        let (journal_ids, parents): (Vec<EntryId>, Vec<EntryId>) =
            ids.iter().partition(|id| **id > base);
        let journal_ids: Vec<_> = journal_ids
            .into_iter()
            .map(|id| EntryId::new(id.get() - base.get() + 1))
            .collect();
        let mut entries = if header.reset {
            Vec::new()
        } else {
            self.parent.fetch(tape, &parents).await?
        };
        for entry in self.parent.fetch(journal, &journal_ids).await? {
            entries.push(Entry {
                id: visible_id(base, entry.id),
                ..entry
            });
        }
        Ok(entries)
    }

    async fn combined_anchors(
        &self,
        tape: &TapeName,
        journal: &TapeName,
        query: AnchorQuery,
    ) -> Result<Vec<AnchorMark>> {
        let Some(header) = self.read_header(journal).await? else {
            return self.parent.anchors(tape, query).await;
        };
        let shift = |mark: AnchorMark| AnchorMark {
            id: visible_id(header.visible_base(), mark.id),
            position: Position::new(mark.position.get() | FORK_POSITION_BIT),
            ..mark
        };
        let find_in_journal = |query: AnchorQuery| async move {
            let marks = self.parent.anchors(journal, query).await?;
            Ok::<_, TapeError>(marks.into_iter().map(shift).collect::<Vec<_>>())
        };
        let find_in_parent = |query: AnchorQuery| async move {
            if header.reset {
                Ok(Vec::new())
            } else {
                self.parent.anchors(tape, query).await
            }
        };
        match query {
            AnchorQuery::LatestNamed(name) => {
                let journal_marks = find_in_journal(latest_anchor_named(&name)).await?;
                if journal_marks.is_empty() {
                    find_in_parent(latest_anchor_named(&name)).await
                } else {
                    Ok(journal_marks)
                }
            }
            AnchorQuery::FirstNamedAfter(name, after) => {
                if after.get() & FORK_POSITION_BIT == 0 {
                    let first =
                        find_in_parent(AnchorQuery::FirstNamedAfter(name.clone(), after)).await?;
                    if !first.is_empty() {
                        return Ok(first);
                    }
                }
                // The first entry of the journal is its header, so searching after it misses no anchor.
                let after = if after.get() & FORK_POSITION_BIT == 0 {
                    Position::default()
                } else {
                    journal_position(after)
                };
                find_in_journal(AnchorQuery::FirstNamedAfter(name, after)).await
            }
            AnchorQuery::All => Ok([
                find_in_parent(AnchorQuery::All).await?,
                find_in_journal(AnchorQuery::All).await?,
            ]
            .concat()),
            AnchorQuery::Latest(count) => {
                let journal_marks = find_in_journal(AnchorQuery::Latest(count)).await?;
                let parent_count = count.saturating_sub(journal_marks.len());
                let older = if parent_count == 0 {
                    Vec::new()
                } else {
                    find_in_parent(AnchorQuery::Latest(parent_count)).await?
                };
                Ok([older, journal_marks].concat())
            }
        }
    }

    async fn combined_summary(&self, tape: &TapeName, journal: &TapeName) -> Result<TapeSummary> {
        let Some(header) = self.read_header(journal).await? else {
            return self.parent.summary(tape).await;
        };
        let mut summary = if header.reset {
            TapeSummary::default()
        } else {
            self.parent.summary(tape).await?
        };
        let marks = self.parent.anchors(journal, AnchorQuery::All).await?;
        let mut positions = marks
            .into_iter()
            .map(|mark| mark.position.get() | FORK_POSITION_BIT);
        let mut journal_entries = self
            .read_combined(
                tape,
                journal,
                EntryRange::starting_at(Position::new(FORK_POSITION_BIT)),
                None,
            )
            .await?;
        while let Some(entry) = journal_entries.next().await.transpose()? {
            let position = if entry.kind == crate::EntryKind::Anchor {
                positions.next().unwrap_or(FORK_POSITION_BIT)
            } else {
                FORK_POSITION_BIT
            };
            summary.observe(&entry, Position::new(position));
        }
        Ok(summary)
    }

    /// Resets the tape inside the fork and hides the parent's entries until the merge.
    ///
    /// The parent and the journal are archived now, because the merged tape contains neither.
    async fn reset_journal(
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
            .read_header(journal)
            .await?
            .map_or_else(EntryId::default, |header| header.base);
        let header = ForkHeader {
            merge_back: self.merge_back,
            base,
            reset: true,
        }
        .to_entry();
        let (initial_entries, path) = (reset.initial_entries, archived.clone());
        let initial_entries = Box::new(move |_: Option<&str>| {
            let mut entries = vec![header];
            entries.extend(initial_entries(path.as_deref()));
            entries
        });
        let mut outcome = self
            .parent
            .reset(
                journal,
                ResetRequest {
                    archive: None,
                    initial_entries,
                },
            )
            .await?;
        outcome.ids.remove(0);
        let ids = outcome
            .ids
            .into_iter()
            .map(|id| visible_id(EntryId::default(), id))
            .collect();
        Ok(ResetOutcome { archived, ids })
    }
}

impl ForkHeader {
    /// Returns the id before the first entry of the fork.
    fn visible_base(&self) -> EntryId {
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
        match self.journal_for(tape) {
            Some(journal) if !batch.is_empty() => {
                Box::pin(self.append_to_journal(tape, journal, batch))
            }
            _ => self.parent.append(tape, batch),
        }
    }

    fn read<'a>(&'a self, tape: &'a TapeName, range: EntryRange) -> EntryStream<'a> {
        match self.journal_for(tape) {
            Some(journal) => {
                Box::pin(stream::once(self.read_combined(tape, journal, range, None)).try_flatten())
            }
            None => self.parent.read(tape, range),
        }
    }

    fn read_filtered<'a>(
        &'a self,
        tape: &'a TapeName,
        range: EntryRange,
        line_filter: Arc<dyn LineFilter>,
    ) -> EntryStream<'a> {
        match self.journal_for(tape) {
            Some(journal) => Box::pin(
                stream::once(self.read_combined(tape, journal, range, Some(line_filter)))
                    .try_flatten(),
            ),
            None => self.parent.read_filtered(tape, range, line_filter),
        }
    }

    fn fetch<'a>(
        &'a self,
        tape: &'a TapeName,
        ids: &'a [EntryId],
    ) -> BoxFuture<'a, Result<Vec<Entry>>> {
        match self.journal_for(tape) {
            Some(journal) => Box::pin(self.fetch_combined(tape, journal, ids)),
            None => self.parent.fetch(tape, ids),
        }
    }

    fn anchors<'a>(
        &'a self,
        tape: &'a TapeName,
        query: AnchorQuery,
    ) -> BoxFuture<'a, Result<Vec<AnchorMark>>> {
        match self.journal_for(tape) {
            Some(journal) => Box::pin(self.combined_anchors(tape, journal, query)),
            None => self.parent.anchors(tape, query),
        }
    }

    fn summary<'a>(&'a self, tape: &'a TapeName) -> BoxFuture<'a, Result<TapeSummary>> {
        match self.journal_for(tape) {
            Some(journal) => Box::pin(self.combined_summary(tape, journal)),
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
        match self.journal_for(tape) {
            Some(journal) => Box::pin(self.reset_journal(tape, journal, reset)),
            None => self.parent.reset(tape, reset),
        }
    }

    fn discard<'a>(&'a self, tape: &'a TapeName) -> BoxFuture<'a, Result<()>> {
        match self.journal_for(tape) {
            Some(_) => {
                let error = TapeError::InvalidInput(format!(
                    "cannot discard tape `{tape}`: it is part of a fork; finish the fork instead"
                ));
                Box::pin(std::future::ready(Err(error)))
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

/// Converts the id of a journal entry to the id inside the fork. The first entry of a journal is its header, so its
/// second entry has the id after `base`.
fn visible_id(base: EntryId, id: EntryId) -> EntryId {
    EntryId::new(base.get() + id.get() - 1)
}

fn journal_position(position: Position) -> Position {
    Position::new(position.get() & !FORK_POSITION_BIT)
}

/// Returns the part of a range that is in the journal.
fn journal_range(range: EntryRange) -> Option<EntryRange> {
    let is_in_journal = |position: &Position| position.get() & FORK_POSITION_BIT != 0;
    let start = match range.start {
        Bound::Included(position) | Bound::Excluded(position) if !is_in_journal(&position) => {
            Bound::Unbounded
        }
        bound => bound.map(journal_position),
    };
    match range.end {
        Bound::Included(position) | Bound::Excluded(position) if !is_in_journal(&position) => None,
        bound => Some(EntryRange {
            start,
            end: bound.map(journal_position),
            order: range.order,
        }),
    }
}

/// Returns the part of a range that is in the parent.
fn parent_range(range: EntryRange) -> Option<EntryRange> {
    let is_in_journal = |position: &Position| position.get() & FORK_POSITION_BIT != 0;
    let end = match range.end {
        Bound::Included(position) | Bound::Excluded(position) if is_in_journal(&position) => {
            Bound::Unbounded
        }
        bound => bound,
    };
    match range.start {
        Bound::Included(position) | Bound::Excluded(position) if is_in_journal(&position) => None,
        start => Some(EntryRange {
            start,
            end,
            order: range.order,
        }),
    }
}

fn empty_stream<'a>() -> EntryStream<'a> {
    Box::pin(stream::empty())
}
