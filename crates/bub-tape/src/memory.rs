//! A store in memory, for tests, embedding and temporary sessions.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use async_trait::async_trait;
use futures_util::stream;
use parking_lot::Mutex;

use crate::{
    AnchorMark, AnchorQuery, AppendReceipt, BlobId, BlobStore, Entry, EntryId, EntryRange,
    EntryStream, Lease, LeaseWait, Order, Position, ResetOutcome, ResetRequest, Result, TapeError,
    TapeListFilter, TapeName, TapeStore, TapeSummary,
};

/// A store that keeps tapes in memory until its last clone is dropped. Clones share their tapes.
#[derive(Debug, Clone, Default)]
pub struct MemoryStore {
    state: Arc<Mutex<MemoryState>>,
    blobs: Arc<MemoryBlobs>,
}

#[derive(Debug, Default)]
struct MemoryState {
    tapes: BTreeMap<TapeName, MemoryTape>,
    /// The names of the archives. Nothing reads their content.
    archives: HashSet<String>,
    leased: HashSet<TapeName>,
}

/// The entries of a tape in memory.
#[derive(Debug, Default)]
pub(crate) struct MemoryTape {
    entries: Vec<Arc<Entry>>,
    marks: Vec<AnchorMark>,
    summary: TapeSummary,
    /// The position of the first entry.
    first: Position,
}

impl MemoryTape {
    /// Creates the part of a tape that follows the part with this summary. Its first entry gets the position `first`.
    pub(crate) fn continuing(summary: TapeSummary, first: Position) -> Self {
        Self {
            summary,
            first,
            ..Self::default()
        }
    }

    pub(crate) fn append(&mut self, batch: Vec<Entry>) -> Vec<EntryId> {
        batch.into_iter().map(|entry| self.push(entry)).collect()
    }

    fn push(&mut self, mut entry: Entry) -> EntryId {
        entry.id = self.summary.max_id.next();
        let position = self.position(self.entries.len());
        self.marks.extend(self.summary.observe(&entry, position));
        let id = entry.id;
        self.entries.push(Arc::new(entry));
        id
    }

    fn position(&self, index: usize) -> Position {
        Position::new(self.first.get() + index as u64)
    }

    /// Returns copies of the entries in a range, in its order.
    pub(crate) fn read(&self, range: EntryRange) -> impl Iterator<Item = Entry> + use<> {
        let in_range = |(index, _): &(usize, _)| range.contains(self.position(*index));
        let mut entries: Vec<Arc<Entry>> = (self.entries.iter().cloned().enumerate())
            .filter(in_range)
            .map(|(_, entry)| entry)
            .collect();
        if range.order == Order::NewestFirst {
            entries.reverse();
        }
        entries.into_iter().map(Arc::unwrap_or_clone)
    }

    /// Returns copies of the entries with these ids.
    pub(crate) fn fetch(&self, ids: &[EntryId]) -> Vec<Entry> {
        let ids: HashSet<_> = ids.iter().collect();
        let entries = self.entries.iter().filter(|entry| ids.contains(&entry.id));
        entries.map(|entry| Entry::clone(entry)).collect()
    }

    /// Returns the anchors in this part of the tape.
    pub(crate) fn marks(&self) -> &[AnchorMark] {
        &self.marks
    }

    /// Returns the summary of the tape up to the end of this part.
    pub(crate) fn summary(&self) -> &TapeSummary {
        &self.summary
    }
}

impl MemoryStore {
    /// Creates an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Calls `read` with a tape, or with an empty one if it does not exist.
    fn with_tape<T>(&self, tape: &TapeName, read: impl FnOnce(&MemoryTape) -> T) -> T {
        match self.state.lock().tapes.get(tape) {
            Some(memory_tape) => read(memory_tape),
            None => read(&MemoryTape::default()),
        }
    }

    fn try_lease(&self, tape: &TapeName) -> Result<Lease> {
        if !self.state.lock().leased.insert(tape.clone()) {
            return Err(TapeError::Busy {
                tape: tape.to_string(),
                holder: "this process".to_owned(),
            });
        }
        let held = (Arc::clone(&self.state), tape.clone());
        let guard = scopeguard::guard(held, |(state, tape)| {
            state.lock().leased.remove(&tape);
        });
        Ok(Lease::new(tape.clone(), guard))
    }
}

impl MemoryState {
    fn archive(&mut self, tape: &TapeName, stamp: &str) -> String {
        let mut name = format!("memory:{tape}.{stamp}");
        let mut number = 1;
        while !self.archives.insert(name.clone()) {
            name = format!("memory:{tape}.{stamp}-{number}");
            number += 1;
        }
        name
    }
}

#[async_trait]
impl TapeStore for MemoryStore {
    async fn list(&self, list_filter: TapeListFilter) -> Result<Vec<TapeName>> {
        let state = self.state.lock();
        let names = state.tapes.keys();
        Ok(names
            .filter(|name| list_filter.includes(name))
            .cloned()
            .collect())
    }

    async fn append(&self, tape: &TapeName, batch: Vec<Entry>) -> Result<AppendReceipt> {
        if batch.is_empty() {
            return Ok(AppendReceipt { ids: Vec::new() });
        }
        let mut state = self.state.lock();
        let ids = state.tapes.entry(tape.clone()).or_default().append(batch);
        Ok(AppendReceipt { ids })
    }

    fn read<'a>(&'a self, tape: &'a TapeName, range: EntryRange) -> EntryStream<'a> {
        let entries = self.with_tape(tape, |memory_tape| memory_tape.read(range));
        Box::pin(stream::iter(entries.map(Ok)))
    }

    async fn fetch(&self, tape: &TapeName, ids: &[EntryId]) -> Result<Vec<Entry>> {
        Ok(self.with_tape(tape, |memory_tape| memory_tape.fetch(ids)))
    }

    async fn anchors(&self, tape: &TapeName, query: AnchorQuery) -> Result<Vec<AnchorMark>> {
        Ok(self.with_tape(tape, |memory_tape| query.select_marks(memory_tape.marks())))
    }

    async fn summary(&self, tape: &TapeName) -> Result<TapeSummary> {
        Ok(self.with_tape(tape, |memory_tape| memory_tape.summary().clone()))
    }

    async fn archive(&self, tape: &TapeName, stamp: &str) -> Result<String> {
        Ok(self.state.lock().archive(tape, stamp))
    }

    async fn reset(&self, tape: &TapeName, request: ResetRequest) -> Result<ResetOutcome> {
        let mut state = self.state.lock();
        let archived = request.archive.map(|stamp| state.archive(tape, &stamp));
        let mut memory_tape = MemoryTape::default();
        let ids = memory_tape.append((request.initial_entries)(archived.as_deref()));
        state.tapes.insert(tape.clone(), memory_tape);
        Ok(ResetOutcome { archived, ids })
    }

    async fn discard(&self, tape: &TapeName) -> Result<()> {
        self.state.lock().tapes.remove(tape);
        Ok(())
    }

    async fn lease(&self, tape: &TapeName, wait: LeaseWait) -> Result<Lease> {
        wait.retry_while_busy(|| self.try_lease(tape)).await
    }

    fn blobs(&self) -> Arc<dyn BlobStore> {
        Arc::clone(&self.blobs) as Arc<dyn BlobStore>
    }
}

#[derive(Debug, Default)]
struct MemoryBlobs(Mutex<BTreeMap<BlobId, Vec<u8>>>);

#[async_trait]
impl BlobStore for MemoryBlobs {
    async fn put(&self, bytes: Vec<u8>) -> Result<BlobId> {
        let id = BlobId::from_bytes(&bytes);
        self.0.lock().insert(id.clone(), bytes);
        Ok(id)
    }

    async fn get(&self, id: &BlobId) -> Result<Vec<u8>> {
        let bytes = self.0.lock().get(id).cloned();
        bytes.ok_or_else(|| {
            TapeError::NotFound(format!(
                "blob `{id}` not found: it was removed or never stored"
            ))
        })
    }

    async fn list(&self) -> Result<Vec<BlobId>> {
        Ok(self.0.lock().keys().cloned().collect())
    }

    async fn remove(&self, id: &BlobId) -> Result<()> {
        self.0.lock().remove(id);
        Ok(())
    }
}
