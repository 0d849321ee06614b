//! A tape store in memory that can refuse entries, and the plugin that provides it.

use std::sync::Arc;

use bub_kernel::{BoxFuture, Framework, Provided, SessionId, hooks::point::ProvideTapeStore};
use bub_tape::{
    AnchorMark, AnchorSearch, Appended, BlobStore, Entry, EntryId, EntryStream, Kind, Lease,
    Listing, MemoryStore, Reset, ResetOutcome, Result, Span, Summary, TapeError, TapeName,
    TapeStore, Wait,
};
use futures_util::TryStreamExt as _;

use super::Fake;

/// A store without space for entries of some kind.
#[derive(Debug)]
pub(crate) struct FullStore {
    store: MemoryStore,
    refused: Kind,
}

impl FullStore {
    pub(crate) fn without_space_for(refused: Kind) -> Arc<dyn TapeStore> {
        Arc::new(Self {
            store: MemoryStore::new(),
            refused,
        })
    }
}

impl TapeStore for FullStore {
    fn append<'a>(
        &'a self,
        tape: &'a TapeName,
        batch: Vec<Entry>,
    ) -> BoxFuture<'a, Result<Appended>> {
        if batch.iter().any(|entry| entry.kind == self.refused) {
            let path = tape.to_string();
            return Box::pin(std::future::ready(Err(TapeError::NoSpace { path })));
        }
        self.store.append(tape, batch)
    }

    fn list(&self, listing: Listing) -> BoxFuture<'_, Result<Vec<TapeName>>> {
        self.store.list(listing)
    }

    fn read<'a>(&'a self, tape: &'a TapeName, span: Span) -> EntryStream<'a> {
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
        search: AnchorSearch,
    ) -> BoxFuture<'a, Result<Vec<AnchorMark>>> {
        self.store.anchors(tape, search)
    }

    fn summary<'a>(&'a self, tape: &'a TapeName) -> BoxFuture<'a, Result<Summary>> {
        self.store.summary(tape)
    }

    fn archive<'a>(&'a self, tape: &'a TapeName, stamp: &'a str) -> BoxFuture<'a, Result<String>> {
        self.store.archive(tape, stamp)
    }

    fn reset<'a>(
        &'a self,
        tape: &'a TapeName,
        reset: Reset,
    ) -> BoxFuture<'a, Result<ResetOutcome>> {
        self.store.reset(tape, reset)
    }

    fn discard<'a>(&'a self, tape: &'a TapeName) -> BoxFuture<'a, Result<()>> {
        self.store.discard(tape)
    }

    fn lease<'a>(&'a self, tape: &'a TapeName, wait: Wait) -> BoxFuture<'a, Result<Lease>> {
        self.store.lease(tape, wait)
    }

    fn blobs(&self) -> Arc<dyn BlobStore> {
        self.store.blobs()
    }
}

/// A plugin that provides a store.
pub(crate) fn storing(store: Arc<dyn TapeStore>) -> Fake {
    Fake::new().on::<ProvideTapeStore>(move |_| Ok(Some(Provided::new(Arc::clone(&store)))))
}

/// All entries of a session's tape.
pub(crate) async fn entries(framework: &Framework, session_id: &str) -> Vec<Entry> {
    let tape = framework
        .session_tape(&SessionId::from(session_id))
        .unwrap()
        .unwrap();
    let entries = tape.store().read(tape.name(), Span::ALL);
    entries.try_collect().await.unwrap()
}
