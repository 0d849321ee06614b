//! The store inside a fork. A tape in it has the entries of the forked tape, followed by those of the fork.
//!
//! The store combines both instead of copying the forked tape to a temporary one, so that a fork of a long tape costs
//! nothing.

use std::{
    ops::Bound,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use tokio::sync::{Mutex, MutexGuard};

use super::{ForkHeader, MergeBack};
use crate::{
    AnchorMark, AnchorQuery, AppendReceipt, BlobStore, Entry, EntryId, EntryRange, EntryStream,
    Lease, LeaseWait, LineFilter, Order, Position, ResetOutcome, ResetRequest, Result, SearchParts,
    TapeError, TapeListFilter, TapeName, TapeStore, TapeSummary, memory::MemoryTape,
};

/// Bit that is set in the positions of entries in forks, so that they follow all positions of the forked tape.
const FORK_POSITION_BIT: u64 = 1 << 63;
/// Number of low bits for the index of an entry in its fork. The bits above contain the number of the fork.
const INDEX_BITS: u32 = 32;

/// The store of a fork. Operations on tapes that are not part of the fork go to the parent store.
#[derive(Debug)]
pub(super) struct ForkStore {
    parent: Arc<dyn TapeStore>,
    /// The forked tapes.
    branches: Vec<(TapeName, Mutex<Branch>)>,
    /// The position of the first entry of the fork.
    first: Position,
}

/// The part of a tape that is in the fork.
#[derive(Debug)]
struct Branch {
    /// The fork journal. It is created with the first entry.
    journal: TapeName,
    has_journal: bool,
    header: ForkHeader,
    /// The content of the journal. It is kept in memory too, because a fork is read often, and exists only for one run.
    entries: MemoryTape,
}

impl ForkStore {
    /// Creates the store of a fork of `tapes`, which are the names of the forked tapes and of their fork journals. The
    /// journals must not exist.
    pub(super) async fn new(
        parent: Arc<dyn TapeStore>,
        merge_back: MergeBack,
        tapes: Vec<(TapeName, TapeName)>,
    ) -> Result<Self> {
        static NEXT_FORK_NUMBER: AtomicU64 = AtomicU64::new(0);
        // A fork of a fork has a higher number, so that its entries follow those of the outer fork.
        let number = NEXT_FORK_NUMBER.fetch_add(1, Ordering::Relaxed);
        let first = Position::new(FORK_POSITION_BIT | number << INDEX_BITS);
        let mut branches = Vec::new();
        for (tape, journal) in tapes {
            let summary = parent.summary(&tape).await?;
            let branch = Branch {
                journal,
                has_journal: false,
                header: ForkHeader {
                    merge_back: merge_back == MergeBack::Yes,
                    base: summary.max_id,
                    reset: false,
                },
                entries: MemoryTape::continuing(summary, first),
            };
            branches.push((tape, Mutex::new(branch)));
        }
        Ok(Self {
            parent,
            branches,
            first,
        })
    }

    /// Returns the branch of a tape, or `None` if the tape is not part of the fork.
    async fn branch(&self, tape: &TapeName) -> Option<MutexGuard<'_, Branch>> {
        let (_, branch) = self.branches.iter().find(|(name, _)| name == tape)?;
        Some(branch.lock().await)
    }

    /// Appends a batch to the journal of a forked tape. Creates the journal if it does not exist.
    pub(super) async fn append_to_journal(
        &self,
        tape: &TapeName,
        batch: Vec<Entry>,
    ) -> Result<AppendReceipt> {
        let Some(mut branch) = self.branch(tape).await else {
            return self.parent.append(tape, batch).await;
        };
        let header = (!branch.has_journal).then(|| branch.header.to_entry());
        let written = header.into_iter().chain(batch.iter().cloned()).collect();
        self.parent.append(&branch.journal, written).await?;
        branch.has_journal = true;
        let ids = branch.entries.append(batch);
        Ok(AppendReceipt { ids })
    }

    fn read_combined<'a>(
        &'a self,
        tape: &'a TapeName,
        range: EntryRange,
        line_filter: Option<Arc<dyn LineFilter>>,
    ) -> EntryStream<'a> {
        let combined = async move {
            let branch = self.branch(tape).await;
            let is_reset = branch.as_ref().is_some_and(|branch| branch.header.reset);
            let parent_range = self.parent_range(range).filter(|_| !is_reset);
            let parent = match (parent_range, line_filter) {
                (None, _) => Box::pin(stream::empty()),
                (Some(range), None) => self.parent.read(tape, range),
                (Some(range), Some(filter)) => self.parent.read_filtered(tape, range, filter),
            };
            let own = branch.map(|branch| branch.entries.read(range));
            let own = stream::iter(own.into_iter().flatten().map(Ok));
            Ok::<EntryStream<'a>, TapeError>(match range.order {
                Order::OldestFirst => Box::pin(parent.chain(own)),
                Order::NewestFirst => Box::pin(own.chain(parent)),
            })
        };
        Box::pin(stream::once(combined).try_flatten())
    }

    /// Returns the part of a range that is in the forked tape. Returns `None` if it is empty.
    fn parent_range(&self, range: EntryRange) -> Option<EntryRange> {
        let is_own = |bound| match bound {
            Bound::Included(position) | Bound::Excluded(position) => position >= self.first,
            Bound::Unbounded => false,
        };
        let end = Some(range.end).filter(|end| !is_own(*end));
        (!is_own(range.start)).then_some(EntryRange {
            end: end.unwrap_or(Bound::Unbounded),
            ..range
        })
    }
}

#[async_trait]
impl TapeStore for ForkStore {
    async fn list(&self, list_filter: TapeListFilter) -> Result<Vec<TapeName>> {
        self.parent.list(list_filter).await
    }

    async fn append(&self, tape: &TapeName, batch: Vec<Entry>) -> Result<AppendReceipt> {
        if batch.is_empty() {
            return Ok(AppendReceipt { ids: Vec::new() });
        }
        self.append_to_journal(tape, batch).await
    }

    fn read<'a>(&'a self, tape: &'a TapeName, range: EntryRange) -> EntryStream<'a> {
        self.read_combined(tape, range, None)
    }

    fn read_filtered<'a>(
        &'a self,
        tape: &'a TapeName,
        range: EntryRange,
        line_filter: Arc<dyn LineFilter>,
    ) -> EntryStream<'a> {
        self.read_combined(tape, range, Some(line_filter))
    }

    async fn fetch(&self, tape: &TapeName, ids: &[EntryId]) -> Result<Vec<Entry>> {
        let Some(branch) = self.branch(tape).await else {
            return self.parent.fetch(tape, ids).await;
        };
        let header = branch.header;
        let mut parent_ids = ids.to_vec();
        parent_ids.retain(|id| !header.reset && *id <= header.base);
        let mut fetched = self.parent.fetch(tape, &parent_ids).await?;
        fetched.extend(branch.entries.fetch(ids));
        Ok(fetched)
    }

    async fn search_parts(&self, scopes: &[(TapeName, EntryRange)]) -> Result<SearchParts> {
        let (mut parent_scopes, mut own) = (Vec::new(), Vec::new());
        for (tape, range) in scopes {
            let branch = self.branch(tape).await;
            let is_reset = branch.as_ref().is_some_and(|branch| branch.header.reset);
            let parent_range = self.parent_range(*range).filter(|_| !is_reset);
            parent_scopes.extend(parent_range.map(|range| (tape.clone(), range)));
            own.extend(branch.map(|branch| (tape, branch.entries.read(*range).collect())));
        }
        let mut parts = self.parent.search_parts(&parent_scopes).await?;
        for (tape, entries) in own {
            parts.add_entries(tape, entries)?;
        }
        Ok(parts)
    }

    async fn anchors(&self, tape: &TapeName, query: AnchorQuery) -> Result<Vec<AnchorMark>> {
        let Some(branch) = self.branch(tape).await else {
            return self.parent.anchors(tape, query).await;
        };
        let starts_in_fork =
            matches!(&query, AnchorQuery::FirstNamedAfter(_, after) if *after >= self.first);
        let mut marks = if branch.header.reset || starts_in_fork {
            Vec::new()
        } else {
            self.parent.anchors(tape, query.clone()).await?
        };
        marks.extend_from_slice(branch.entries.marks());
        Ok(query.select_marks(&marks))
    }

    async fn summary(&self, tape: &TapeName) -> Result<TapeSummary> {
        match self.branch(tape).await {
            Some(branch) => Ok(branch.entries.summary().clone()),
            None => self.parent.summary(tape).await,
        }
    }

    async fn archive(&self, tape: &TapeName, stamp: &str) -> Result<String> {
        self.parent.archive(tape, stamp).await
    }

    /// Resets the tape inside the fork. Until the merge, the fork hides the entries of the forked tape.
    ///
    /// If an archive is requested, archives the forked tape and the journal now, because the merged tape will not have
    /// their current entries.
    async fn reset(&self, tape: &TapeName, request: ResetRequest) -> Result<ResetOutcome> {
        let Some(mut branch) = self.branch(tape).await else {
            return self.parent.reset(tape, request).await;
        };
        let mut archived = None;
        if let Some(stamp) = &request.archive {
            archived = Some(self.parent.archive(tape, stamp).await?);
            self.parent.archive(&branch.journal, stamp).await?;
        }
        let header = ForkHeader {
            reset: true,
            ..branch.header
        };
        let batch = (request.initial_entries)(archived.as_deref());
        let mut written = batch.clone();
        written.insert(0, header.to_entry());
        self.parent
            .reset(&branch.journal, ResetRequest::with_entries(written))
            .await?;
        branch.has_journal = true;
        branch.header = header;
        branch.entries = MemoryTape::continuing(TapeSummary::default(), self.first);
        let ids = branch.entries.append(batch);
        Ok(ResetOutcome { archived, ids })
    }

    async fn discard(&self, tape: &TapeName) -> Result<()> {
        if self.branch(tape).await.is_some() {
            return Err(TapeError::InvalidInput(format!(
                "cannot discard tape `{tape}`: it is part of a fork; finish the fork instead"
            )));
        }
        self.parent.discard(tape).await
    }

    async fn lease(&self, tape: &TapeName, wait: LeaseWait) -> Result<Lease> {
        self.parent.lease(tape, wait).await
    }

    fn blobs(&self) -> Arc<dyn BlobStore> {
        self.parent.blobs()
    }
}
