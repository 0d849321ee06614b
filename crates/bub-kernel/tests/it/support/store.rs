//! A tape store in memory that can reject entries, and the plugin that provides it.

use std::sync::Arc;

use bub_kernel::{Framework, Provided, SessionId, hooks::point::ProvideTapeStore};
use bub_tape::{
    AnchorMark, AnchorQuery, AppendReceipt, BlobStore, Entry, EntryId, EntryKind, EntryRange,
    EntryStream, Lease, LeaseWait, MemoryStore, ResetOutcome, ResetRequest, Result, TapeError,
    TapeListFilter, TapeName, TapeStore, TapeSummary, async_trait,
};
use futures_util::TryStreamExt as _;

use tokio::sync::Notify;

use super::FakePlugin;

/// A store that has no space for entries of one kind, or writes them late.
#[derive(Debug)]
pub(crate) struct FullStore {
    store: MemoryStore,
    affected_kind: EntryKind,
    late_write: Option<Arc<LateWrite>>,
}

/// A write that waits for `release`. Like the write of a file, it continues if its caller is dropped.
#[derive(Debug, Default)]
pub(crate) struct LateWrite {
    pub(crate) reached: Notify,
    pub(crate) release: Notify,
}

impl FullStore {
    pub(crate) fn without_space_for(affected_kind: EntryKind) -> Arc<dyn TapeStore> {
        Arc::new(Self {
            store: MemoryStore::new(),
            affected_kind,
            late_write: None,
        })
    }

    pub(crate) fn writing_late(
        affected_kind: EntryKind,
        late_write: &Arc<LateWrite>,
    ) -> Arc<dyn TapeStore> {
        Arc::new(Self {
            store: MemoryStore::new(),
            affected_kind,
            late_write: Some(Arc::clone(late_write)),
        })
    }
}

#[async_trait]
impl TapeStore for FullStore {
    async fn append(&self, tape: &TapeName, batch: Vec<Entry>) -> Result<AppendReceipt> {
        if batch.iter().any(|entry| entry.kind == self.affected_kind) {
            let Some(late_write) = self.late_write.clone() else {
                let path = tape.to_string();
                return Err(TapeError::NoSpace { path });
            };
            let (store, tape) = (self.store.clone(), tape.clone());
            let write = tokio::spawn(async move {
                late_write.reached.notify_one();
                late_write.release.notified().await;
                // Further writes are not late.
                late_write.release.notify_one();
                store.append(&tape, batch).await
            });
            return write.await.unwrap();
        }
        self.store.append(tape, batch).await
    }

    async fn list(&self, listing: TapeListFilter) -> Result<Vec<TapeName>> {
        self.store.list(listing).await
    }

    fn read<'a>(&'a self, tape: &'a TapeName, span: EntryRange) -> EntryStream<'a> {
        self.store.read(tape, span)
    }

    async fn fetch(&self, tape: &TapeName, ids: &[EntryId]) -> Result<Vec<Entry>> {
        self.store.fetch(tape, ids).await
    }

    async fn anchors(&self, tape: &TapeName, search: AnchorQuery) -> Result<Vec<AnchorMark>> {
        self.store.anchors(tape, search).await
    }

    async fn summary(&self, tape: &TapeName) -> Result<TapeSummary> {
        self.store.summary(tape).await
    }

    async fn archive(&self, tape: &TapeName, stamp: &str) -> Result<String> {
        self.store.archive(tape, stamp).await
    }

    async fn reset(&self, tape: &TapeName, reset: ResetRequest) -> Result<ResetOutcome> {
        self.store.reset(tape, reset).await
    }

    async fn discard(&self, tape: &TapeName) -> Result<()> {
        self.store.discard(tape).await
    }

    async fn lease(&self, tape: &TapeName, wait: LeaseWait) -> Result<Lease> {
        self.store.lease(tape, wait).await
    }

    fn blobs(&self) -> Arc<dyn BlobStore> {
        self.store.blobs()
    }
}

/// Returns a plugin that provides a store.
pub(crate) fn store_plugin(store: Arc<dyn TapeStore>) -> FakePlugin {
    FakePlugin::new().on::<ProvideTapeStore>(move |_| Ok(Some(Provided::new(Arc::clone(&store)))))
}

/// Returns all entries of a session's tape.
pub(crate) async fn entries(framework: &Framework, session_id: &str) -> Vec<Entry> {
    let tape = framework
        .session_tape(&SessionId::from(session_id))
        .unwrap()
        .unwrap();
    let entries = tape.store().read(tape.name(), EntryRange::ALL);
    entries.try_collect().await.unwrap()
}
