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
use tokio::sync::Mutex;

use super::{ForkHeader, MergeBack};
use crate::{
    AnchorMark, AnchorQuery, AppendReceipt, BlobStore, Entry, EntryId, EntryRange, EntryStream,
    Lease, LeaseWait, LineFilter, Order, Position, ResetOutcome, ResetRequest, Result, TapeError,
    TapeListFilter, TapeName, TapeStore, TapeSummary, memory::MemoryTape,
};

/// Bit that is set in the positions of entries in forks, so that they follow all positions of the forked tape.
const FORK_POSITION_BIT: u64 = 1 << 63;
/// Number of low bits for the index of an entry in its fork. The bits above contain the number of the fork.
const INDEX_BITS: u32 = 32;

/// The store of a fork. Operations on tapes that are not part of the fork go to the parent store.
#[derive(Debug)]
pub(super) struct ForkStore {
    parent: Arc<dyn TapeStore>,
    merge_back: MergeBack,
    tapes: Vec<ForkedTape>,
    /// The position of the first entry of the fork.
    first: Position,
}

/// A tape that is part of a fork.
#[derive(Debug)]
struct ForkedTape {
    name: TapeName,
    /// The fork journal, which receives the entries that are appended in the fork.
    journal: TapeName,
    /// The content of the journal, or `None` if it does not exist yet.
    branch: Mutex<Option<Branch>>,
}

/// The content of a fork journal. It is kept in memory too, because a fork is read often, and exists only for one run.
#[derive(Debug)]
struct Branch {
    header: ForkHeader,
    entries: MemoryTape,
}

impl Branch {
    fn new(header: ForkHeader, first: Position) -> Self {
        let base = if header.reset {
            EntryId::default()
        } else {
            header.base
        };
        Self {
            header,
            entries: MemoryTape::starting_after(base, first),
        }
    }
}

impl ForkStore {
    /// Creates the store of a fork of `tapes`, which are the names of the forked tapes and of their fork journals. The
    /// journals must not exist.
    pub(super) fn new(
        parent: Arc<dyn TapeStore>,
        merge_back: MergeBack,
        tapes: impl IntoIterator<Item = (TapeName, TapeName)>,
    ) -> Self {
        static NEXT_FORK_NUMBER: AtomicU64 = AtomicU64::new(0);
        // A fork of a fork has a higher number, so that its entries follow those of the outer fork.
        let number = NEXT_FORK_NUMBER.fetch_add(1, Ordering::Relaxed);
        let tapes = tapes.into_iter().map(|(name, journal)| ForkedTape {
            name,
            journal,
            branch: Mutex::default(),
        });
        Self {
            parent,
            merge_back,
            tapes: tapes.collect(),
            first: Position::new(FORK_POSITION_BIT | number << INDEX_BITS),
        }
    }

    fn forked_tape(&self, tape: &TapeName) -> Option<&ForkedTape> {
        self.tapes.iter().find(|forked| forked.name == *tape)
    }

    /// Appends a batch to the journal of a forked tape. Creates the journal if it does not exist.
    pub(super) async fn append_to_journal(
        &self,
        tape: &TapeName,
        batch: Vec<Entry>,
    ) -> Result<AppendReceipt> {
        let Some(forked) = self.forked_tape(tape) else {
            return self.parent.append(tape, batch).await;
        };
        let mut branch = forked.branch.lock().await;
        let mut written = batch.clone();
        let header = if let Some(branch) = &*branch {
            branch.header
        } else {
            let header = ForkHeader {
                merge_back: self.merge_back == MergeBack::Yes,
                base: self.parent.summary(tape).await?.max_id,
                reset: false,
            };
            written.insert(0, header.to_entry());
            header
        };
        self.parent.append(&forked.journal, written).await?;
        let branch = branch.get_or_insert_with(|| Branch::new(header, self.first));
        let ids = branch.entries.append(batch);
        Ok(AppendReceipt { ids })
    }

    async fn read_combined<'a>(
        &'a self,
        forked: &'a ForkedTape,
        range: EntryRange,
        line_filter: Option<Arc<dyn LineFilter>>,
    ) -> Result<EntryStream<'a>> {
        let branch = forked.branch.lock().await;
        let parent_range = match &*branch {
            Some(branch) if branch.header.reset => None,
            _ => self.parent_range(range),
        };
        let parent = match (parent_range, line_filter) {
            (None, _) => Box::pin(stream::empty()),
            (Some(range), None) => self.parent.read(&forked.name, range),
            (Some(range), Some(line_filter)) => {
                self.parent.read_filtered(&forked.name, range, line_filter)
            }
        };
        let own = branch.as_ref().map(|branch| branch.entries.read(range));
        let own = stream::iter(own.into_iter().flatten().map(Ok));
        Ok(match range.order {
            Order::OldestFirst => Box::pin(parent.chain(own)),
            Order::NewestFirst => Box::pin(own.chain(parent)),
        })
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

    /// Resets the tape inside the fork. Until the merge, the fork hides the entries of the forked tape.
    ///
    /// If an archive is requested, archives the forked tape and the journal now, because the merged tape will not have
    /// their current entries.
    async fn reset_journal(
        &self,
        forked: &ForkedTape,
        request: ResetRequest,
    ) -> Result<ResetOutcome> {
        let mut branch = forked.branch.lock().await;
        let mut archived = None;
        if let Some(stamp) = &request.archive {
            archived = Some(self.parent.archive(&forked.name, stamp).await?);
            self.parent.archive(&forked.journal, stamp).await?;
        }
        let base = branch.as_ref().map(|branch| branch.header.base);
        let header = ForkHeader {
            merge_back: self.merge_back == MergeBack::Yes,
            base: base.unwrap_or_default(),
            reset: true,
        };
        let batch = (request.initial_entries)(archived.as_deref());
        let mut written = batch.clone();
        written.insert(0, header.to_entry());
        self.parent
            .reset(&forked.journal, ResetRequest::with_entries(written))
            .await?;
        let branch = branch.insert(Branch::new(header, self.first));
        let ids = branch.entries.append(batch);
        Ok(ResetOutcome { archived, ids })
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
        match self.forked_tape(tape) {
            Some(forked) => {
                Box::pin(stream::once(self.read_combined(forked, range, None)).try_flatten())
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
        match self.forked_tape(tape) {
            Some(forked) => {
                let entries = self.read_combined(forked, range, Some(line_filter));
                Box::pin(stream::once(entries).try_flatten())
            }
            None => self.parent.read_filtered(tape, range, line_filter),
        }
    }

    async fn fetch(&self, tape: &TapeName, ids: &[EntryId]) -> Result<Vec<Entry>> {
        let Some(forked) = self.forked_tape(tape) else {
            return self.parent.fetch(tape, ids).await;
        };
        let branch = forked.branch.lock().await;
        let Some(Branch { header, entries }) = &*branch else {
            return self.parent.fetch(tape, ids).await;
        };
        let mut parent_ids = ids.to_vec();
        parent_ids.retain(|id| !header.reset && *id <= header.base);
        let mut fetched = self.parent.fetch(tape, &parent_ids).await?;
        fetched.extend(entries.fetch(ids));
        Ok(fetched)
    }

    async fn anchors(&self, tape: &TapeName, query: AnchorQuery) -> Result<Vec<AnchorMark>> {
        let Some(forked) = self.forked_tape(tape) else {
            return self.parent.anchors(tape, query).await;
        };
        let branch = forked.branch.lock().await;
        let skips_parent = branch.as_ref().is_some_and(|branch| branch.header.reset)
            || matches!(&query, AnchorQuery::FirstNamedAfter(_, after) if *after >= self.first);
        let mut marks = if skips_parent {
            Vec::new()
        } else {
            self.parent.anchors(tape, query.clone()).await?
        };
        marks.extend(
            branch
                .iter()
                .flat_map(|branch| branch.entries.marks().to_vec()),
        );
        Ok(query.select_marks(&marks))
    }

    async fn summary(&self, tape: &TapeName) -> Result<TapeSummary> {
        let Some(forked) = self.forked_tape(tape) else {
            return self.parent.summary(tape).await;
        };
        let branch = forked.branch.lock().await;
        let mut summary = match &*branch {
            Some(branch) if branch.header.reset => TapeSummary::default(),
            _ => self.parent.summary(tape).await?,
        };
        if let Some(branch) = &*branch {
            branch.entries.add_to_summary(&mut summary);
        }
        Ok(summary)
    }

    async fn archive(&self, tape: &TapeName, stamp: &str) -> Result<String> {
        self.parent.archive(tape, stamp).await
    }

    async fn reset(&self, tape: &TapeName, request: ResetRequest) -> Result<ResetOutcome> {
        match self.forked_tape(tape) {
            Some(forked) => self.reset_journal(forked, request).await,
            None => self.parent.reset(tape, request).await,
        }
    }

    async fn discard(&self, tape: &TapeName) -> Result<()> {
        if self.forked_tape(tape).is_some() {
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
