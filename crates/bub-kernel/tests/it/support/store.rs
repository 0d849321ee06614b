//! A tape store in memory that can reject entries, and the plugin that provides it.

use std::sync::Arc;

use bub_kernel::{BoxFuture, Framework, Provided, SessionId, hooks::point::ProvideTapeStore};
use bub_tape::{
    AnchorMark, AnchorQuery, AppendReceipt, BlobStore, Entry, EntryId, EntryKind, EntryRange,
    EntryStream, Lease, LeaseWait, MemoryStore, ResetOutcome, ResetRequest, Result, TapeError,
    TapeListFilter, TapeName, TapeStore, TapeSummary,
};
use futures_util::TryStreamExt as _;

use super::FakePlugin;

/// A store that has no space for entries of one kind.
#[derive(Debug)]
pub(crate) struct FullStore {
    store: MemoryStore,
    rejected_kind: EntryKind,
}

impl FullStore {
    pub(crate) fn without_space_for(rejected_kind: EntryKind) -> Arc<dyn TapeStore> {
        Arc::new(Self {
            store: MemoryStore::new(),
            rejected_kind,
        })
    }
}

impl TapeStore for FullStore {
    fn append<'a>(
        &'a self,
        tape: &'a TapeName,
        batch: Vec<Entry>,
    ) -> BoxFuture<'a, Result<AppendReceipt>> {
        if batch.iter().any(|entry| entry.kind == self.rejected_kind) {
            let path = tape.to_string();
            return Box::pin(std::future::ready(Err(TapeError::NoSpace { path })));
        }
        self.store.append(tape, batch)
    }

    fn list(&self, listing: TapeListFilter) -> BoxFuture<'_, Result<Vec<TapeName>>> {
        self.store.list(listing)
    }

    fn read<'a>(&'a self, tape: &'a TapeName, span: EntryRange) -> EntryStream<'a> {
        self.store.read(tape, span)
    }

    fn fetch<'a>(
        &'a self,
        tape: &'a TapeName,
        ids: &'a [EntryId],
    ) -> BoxFuture<'a, Result<Vec<Entry>>> {
        self.store.fetch(tape, ids)
    }

    fn anchors<'a>(
        &'a self,
        tape: &'a TapeName,
        search: AnchorQuery,
    ) -> BoxFuture<'a, Result<Vec<AnchorMark>>> {
        self.store.anchors(tape, search)
    }

    fn summary<'a>(&'a self, tape: &'a TapeName) -> BoxFuture<'a, Result<TapeSummary>> {
        self.store.summary(tape)
    }

    fn archive<'a>(&'a self, tape: &'a TapeName, stamp: &'a str) -> BoxFuture<'a, Result<String>> {
        self.store.archive(tape, stamp)
    }

    fn reset<'a>(
        &'a self,
        tape: &'a TapeName,
        reset: ResetRequest,
    ) -> BoxFuture<'a, Result<ResetOutcome>> {
        self.store.reset(tape, reset)
    }

    fn discard<'a>(&'a self, tape: &'a TapeName) -> BoxFuture<'a, Result<()>> {
        self.store.discard(tape)
    }

    fn lease<'a>(&'a self, tape: &'a TapeName, wait: LeaseWait) -> BoxFuture<'a, Result<Lease>> {
        self.store.lease(tape, wait)
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
