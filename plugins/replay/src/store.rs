//! The store of a replay: the copy of the tape in memory, and what resets removed from it.

use std::{collections::BTreeMap, sync::Arc};

use bub::{
    Entry, EntryKind, TapeStore, async_trait,
    futures::TryStreamExt as _,
    tape::{
        AnchorMark, AnchorQuery, AppendReceipt, BlobStore, EntryId, EntryRange, EntryStream, Lease,
        LeaseWait, MemoryStore, ResetOutcome, ResetRequest, TapeError, TapeListFilter, TapeName,
        TapeSummary,
    },
};
use parking_lot::Mutex;

type Result<T> = std::result::Result<T, TapeError>;

/// Tapes in memory. A reset of a tape removes entries from it, but not from its history: the report of a replay needs them.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReplayStore {
    tapes: MemoryStore,
    removed: Arc<Mutex<BTreeMap<TapeName, Vec<Entry>>>>,
}

impl ReplayStore {
    /// Returns all entries of a tape, also those that resets removed. A reset writes some entries again; they are in the
    /// history once.
    pub(crate) async fn history(&self, tape: &TapeName) -> Result<Vec<Entry>> {
        let mut history = self.removed_entries(tape);
        let removed = history.len();
        for entry in self.entries(tape).await? {
            let is_same = |other: &Entry| {
                (&other.kind, &other.payload, &other.date)
                    == (&entry.kind, &entry.payload, &entry.date)
            };
            let can_repeat = matches!(
                entry.kind,
                EntryKind::Message | EntryKind::ToolCall | EntryKind::ToolResult
            );
            let mut earlier = history.iter().take(removed);
            if !(can_repeat && earlier.any(is_same)) {
                history.push(entry);
            }
        }
        Ok(history)
    }

    /// Returns the number of entries that resets removed from a tape.
    pub(crate) fn removed_count(&self, tape: &TapeName) -> usize {
        self.removed_entries(tape).len()
    }

    /// Replaces the entries of a tape. Those that are removed are not part of its history.
    pub(crate) async fn replace(&self, tape: &TapeName, entries: Vec<Entry>) -> Result<()> {
        let request = ResetRequest::with_entries(entries);
        self.tapes.reset(tape, request).await.map(drop)
    }

    fn removed_entries(&self, tape: &TapeName) -> Vec<Entry> {
        self.removed.lock().get(tape).cloned().unwrap_or_default()
    }

    async fn entries(&self, tape: &TapeName) -> Result<Vec<Entry>> {
        self.tapes.read(tape, EntryRange::ALL).try_collect().await
    }
}

#[async_trait]
impl TapeStore for ReplayStore {
    async fn reset(&self, tape: &TapeName, request: ResetRequest) -> Result<ResetOutcome> {
        let history = self.history(tape).await?;
        let outcome = self.tapes.reset(tape, request).await?;
        self.removed.lock().insert(tape.clone(), history);
        Ok(outcome)
    }

    async fn list(&self, filter: TapeListFilter) -> Result<Vec<TapeName>> {
        self.tapes.list(filter).await
    }

    /// Appends entries, without the decisions of the plugin `replay`. So the entries of the copy have the ids of the
    /// recorded ones, and a copied anchor refers to the right entries.
    async fn append(&self, tape: &TapeName, mut batch: Vec<Entry>) -> Result<AppendReceipt> {
        let is_kept: Vec<bool> = batch.iter().map(|entry| !is_own_event(entry)).collect();
        batch.retain(|entry| !is_own_event(entry));
        let mut kept = self.tapes.append(tape, batch).await?.ids.into_iter();
        let mut last = self.tapes.summary(tape).await?.max_id;
        let ids = is_kept.into_iter().map(|is_kept| {
            last = is_kept.then(|| kept.next()).flatten().unwrap_or(last);
            last
        });
        let ids = ids.collect();
        Ok(AppendReceipt { ids })
    }

    fn read<'a>(&'a self, tape: &'a TapeName, range: EntryRange) -> EntryStream<'a> {
        self.tapes.read(tape, range)
    }

    async fn fetch(&self, tape: &TapeName, ids: &[EntryId]) -> Result<Vec<Entry>> {
        self.tapes.fetch(tape, ids).await
    }

    async fn anchors(&self, tape: &TapeName, query: AnchorQuery) -> Result<Vec<AnchorMark>> {
        self.tapes.anchors(tape, query).await
    }

    async fn summary(&self, tape: &TapeName) -> Result<TapeSummary> {
        self.tapes.summary(tape).await
    }

    async fn archive(&self, tape: &TapeName, stamp: &str) -> Result<String> {
        self.tapes.archive(tape, stamp).await
    }

    async fn discard(&self, tape: &TapeName) -> Result<()> {
        self.tapes.discard(tape).await
    }

    async fn lease(&self, tape: &TapeName, wait: LeaseWait) -> Result<Lease> {
        self.tapes.lease(tape, wait).await
    }

    fn blobs(&self) -> Arc<dyn BlobStore> {
        self.tapes.blobs()
    }
}

/// Returns whether an entry is the record of a decision of the plugin `replay`.
fn is_own_event(entry: &Entry) -> bool {
    let plugin = entry.data().and_then(|data| data.get("plugin"));
    entry.name() == Some("hook") && plugin.is_some_and(|name| name == crate::ReplayPlugin::NAME)
}
