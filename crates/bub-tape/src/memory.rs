//! A store in memory, for tests, embedding and temporary sessions.

use std::{
    collections::{BTreeMap, HashSet},
    future::ready,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures_util::stream;

use crate::{
    AnchorMark, AnchorQuery, AppendReceipt, BlobId, BlobStore, BoxFuture, Entry, EntryId,
    EntryRange, EntryStream, Lease, LeaseWait, Order, Position, ResetOutcome, ResetRequest, Result,
    TapeError, TapeListFilter, TapeName, TapeStore, TapeSummary,
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
    archives: BTreeMap<String, Vec<Arc<Entry>>>,
    leased: HashSet<TapeName>,
}

#[derive(Debug, Default)]
struct MemoryTape {
    entries: Vec<Arc<Entry>>,
    marks: Vec<AnchorMark>,
    summary: TapeSummary,
}

impl MemoryTape {
    fn append(&mut self, batch: Vec<Entry>) -> Vec<EntryId> {
        batch.into_iter().map(|entry| self.push(entry)).collect()
    }

    fn push(&mut self, mut entry: Entry) -> EntryId {
        entry.id = self.summary.max_id.next();
        let position = Position::new(self.entries.len() as u64);
        self.marks.extend(self.summary.observe(&entry, position));
        let id = entry.id;
        self.entries.push(Arc::new(entry));
        id
    }

    fn read(&self, range: EntryRange) -> Vec<Arc<Entry>> {
        let in_range =
            |(index, _): &(usize, &Arc<Entry>)| range.contains(Position::new(*index as u64));
        let mut entries: Vec<_> = self
            .entries
            .iter()
            .enumerate()
            .filter(in_range)
            .map(|(_, entry)| Arc::clone(entry))
            .collect();
        if range.order == Order::NewestFirst {
            entries.reverse();
        }
        entries
    }
}

impl MemoryStore {
    /// Creates an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the entries of an archive. `name` is the name that [`TapeStore::archive`] returned.
    pub fn archived_entries(&self, name: &str) -> Option<Vec<Entry>> {
        Some(
            self.lock()
                .archives
                .get(name)?
                .iter()
                .map(|entry| (**entry).clone())
                .collect(),
        )
    }

    fn lock(&self) -> MutexGuard<'_, MemoryState> {
        // No operation panics between two changes, so the data is consistent even if the lock is poisoned.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_lease(&self, tape: &TapeName) -> Result<Lease> {
        if !self.lock().leased.insert(tape.clone()) {
            return Err(TapeError::Busy {
                tape: tape.to_string(),
                holder: "this process".to_owned(),
            });
        }
        Ok(Lease::new(
            tape.clone(),
            MemoryLease {
                store: self.clone(),
                tape: tape.clone(),
            },
        ))
    }
}

struct MemoryLease {
    store: MemoryStore,
    tape: TapeName,
}

impl Drop for MemoryLease {
    fn drop(&mut self) {
        self.store.lock().leased.remove(&self.tape);
    }
}

impl MemoryState {
    fn archive(&mut self, tape: &TapeName, stamp: &str) -> String {
        let entries = self
            .tapes
            .get(tape)
            .map(|memory_tape| memory_tape.entries.clone())
            .unwrap_or_default();
        let mut name = format!("memory:{tape}.{stamp}");
        let mut number = 1;
        while self.archives.contains_key(&name) {
            name = format!("memory:{tape}.{stamp}-{number}");
            number += 1;
        }
        self.archives.insert(name.clone(), entries);
        name
    }
}

impl TapeStore for MemoryStore {
    fn list(&self, list_filter: TapeListFilter) -> BoxFuture<'_, Result<Vec<TapeName>>> {
        let names = self
            .lock()
            .tapes
            .keys()
            .filter(|name| list_filter.includes(name))
            .cloned()
            .collect();
        Box::pin(ready(Ok(names)))
    }

    fn append<'a>(
        &'a self,
        tape: &'a TapeName,
        batch: Vec<Entry>,
    ) -> BoxFuture<'a, Result<AppendReceipt>> {
        Box::pin(async move {
            if batch.is_empty() {
                return Ok(AppendReceipt { ids: Vec::new() });
            }
            let ids = self
                .lock()
                .tapes
                .entry(tape.clone())
                .or_default()
                .append(batch);
            Ok(AppendReceipt { ids })
        })
    }

    fn read<'a>(&'a self, tape: &'a TapeName, range: EntryRange) -> EntryStream<'a> {
        let entries = self
            .lock()
            .tapes
            .get(tape)
            .map(|memory_tape| memory_tape.read(range))
            .unwrap_or_default();
        Box::pin(stream::iter(
            entries.into_iter().map(|entry| Ok((*entry).clone())),
        ))
    }

    fn fetch<'a>(
        &'a self,
        tape: &'a TapeName,
        ids: &'a [EntryId],
    ) -> BoxFuture<'a, Result<Vec<Entry>>> {
        let ids: HashSet<_> = ids.iter().collect();
        let state = self.lock();
        let entries = state
            .tapes
            .get(tape)
            .map(|memory_tape| memory_tape.entries.as_slice())
            .unwrap_or_default();
        let entries = entries
            .iter()
            .filter(|entry| ids.contains(&entry.id))
            .map(|entry| (**entry).clone())
            .collect();
        Box::pin(ready(Ok(entries)))
    }

    fn anchors<'a>(
        &'a self,
        tape: &'a TapeName,
        query: AnchorQuery,
    ) -> BoxFuture<'a, Result<Vec<AnchorMark>>> {
        let state = self.lock();
        let marks = state
            .tapes
            .get(tape)
            .map(|memory_tape| memory_tape.marks.as_slice())
            .unwrap_or_default();
        Box::pin(ready(Ok(query.select_marks(marks))))
    }

    fn summary<'a>(&'a self, tape: &'a TapeName) -> BoxFuture<'a, Result<TapeSummary>> {
        let summary = self
            .lock()
            .tapes
            .get(tape)
            .map(|memory_tape| memory_tape.summary.clone())
            .unwrap_or_default();
        Box::pin(ready(Ok(summary)))
    }

    fn archive<'a>(&'a self, tape: &'a TapeName, stamp: &'a str) -> BoxFuture<'a, Result<String>> {
        Box::pin(async move { Ok(self.lock().archive(tape, stamp)) })
    }

    fn reset<'a>(
        &'a self,
        tape: &'a TapeName,
        request: ResetRequest,
    ) -> BoxFuture<'a, Result<ResetOutcome>> {
        Box::pin(async move {
            let mut state = self.lock();
            let archived = request.archive.map(|stamp| state.archive(tape, &stamp));
            let mut memory_tape = MemoryTape::default();
            let ids = memory_tape.append((request.initial_entries)(archived.as_deref()));
            state.tapes.insert(tape.clone(), memory_tape);
            Ok(ResetOutcome { archived, ids })
        })
    }

    fn discard<'a>(&'a self, tape: &'a TapeName) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.lock().tapes.remove(tape);
            Ok(())
        })
    }

    fn lease<'a>(&'a self, tape: &'a TapeName, wait: LeaseWait) -> BoxFuture<'a, Result<Lease>> {
        Box::pin(wait.retry_while_busy(move || self.try_lease(tape)))
    }

    fn blobs(&self) -> Arc<dyn BlobStore> {
        Arc::clone(&self.blobs) as Arc<dyn BlobStore>
    }
}

#[derive(Debug, Default)]
struct MemoryBlobs(Mutex<BTreeMap<BlobId, Vec<u8>>>);

impl MemoryBlobs {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<BlobId, Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BlobStore for MemoryBlobs {
    fn put(&self, bytes: Vec<u8>) -> BoxFuture<'_, Result<BlobId>> {
        let id = BlobId::from_bytes(&bytes);
        self.lock().insert(id.clone(), bytes);
        Box::pin(ready(Ok(id)))
    }

    fn get<'a>(&'a self, id: &'a BlobId) -> BoxFuture<'a, Result<Vec<u8>>> {
        let bytes = self.lock().get(id).cloned();
        Box::pin(ready(bytes.ok_or_else(|| {
            TapeError::NotFound(format!(
                "blob `{id}` not found: it was removed or never stored"
            ))
        })))
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<BlobId>>> {
        Box::pin(ready(Ok(self.lock().keys().cloned().collect())))
    }

    fn remove<'a>(&'a self, id: &'a BlobId) -> BoxFuture<'a, Result<()>> {
        self.lock().remove(id);
        Box::pin(ready(Ok(())))
    }
}
