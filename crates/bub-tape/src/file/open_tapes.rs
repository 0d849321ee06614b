//! A cache of open tapes.

use std::sync::Arc;

use indexmap::IndexMap;
use parking_lot::{Mutex, MutexGuard};

use super::{commit::PendingBatch, context::StoreContext, snapshot::Snapshot, tape_file::TapeFile};
use crate::{Result, TapeName};

/// Maximum number of open tapes. Each uses two file descriptors and holds a summary. Tapes in use stay open even beyond
/// this number.
const MAX_OPEN_TAPES: usize = 64;

/// The open tapes of a store.
#[derive(Debug)]
pub(crate) struct OpenTapes {
    pub(super) store: Arc<StoreContext>,
    /// The open tapes, least recently used first.
    open: Mutex<IndexMap<TapeName, Arc<OpenTape>>>,
}

/// An open tape and the batches queued for it. It stays open as long as a reference to it exists.
///
/// Appending queues a batch before it locks the tape file. The next thread that gets the lock commits all batches that
/// were queued during the previous write. This is the group commit.
#[derive(Debug)]
pub(crate) struct OpenTape {
    store: Arc<StoreContext>,
    tape: TapeName,
    queue: Mutex<Vec<PendingBatch>>,
    tape_file: Mutex<TapeFile>,
}

impl OpenTapes {
    pub(crate) fn new(store: Arc<StoreContext>) -> Self {
        Self {
            store,
            open: Mutex::default(),
        }
    }

    /// Returns an open tape whose files are open too, if the tape exists.
    pub(crate) fn open_files(&self, tape: &TapeName) -> Arc<OpenTape> {
        let open_tape = self.get_or_create(tape);
        // If another thread is using the tape, that thread opens the files.
        if let Some(mut tape_file) = open_tape.tape_file.try_lock() {
            tape_file.open_files();
        }
        open_tape
    }

    pub(crate) fn get_or_create(&self, tape: &TapeName) -> Arc<OpenTape> {
        let mut open = self.open.lock();
        let open_tape = open
            .shift_remove(tape)
            .unwrap_or_else(|| Arc::new(OpenTape::new(&self.store, tape)));
        open.insert(tape.clone(), Arc::clone(&open_tape));
        let excess = open.len().saturating_sub(MAX_OPEN_TAPES);
        let closed: Vec<_> = open.extract_if(.., is_idle).take(excess).collect();
        drop(open);
        // Closing a tape saves its index. Do this after the lock on the map is released.
        drop(closed);
        open_tape
    }

    /// Closes the tapes that are not in use.
    pub(super) fn close_idle_tapes(&self) {
        let closed: Vec<_> = self.open.lock().extract_if(.., is_idle).collect();
        drop(closed);
    }
}

/// Returns whether only the map refers to a tape.
fn is_idle(_: &TapeName, open_tape: &mut Arc<OpenTape>) -> bool {
    Arc::strong_count(open_tape) == 1
}

impl OpenTape {
    fn new(store: &Arc<StoreContext>, tape: &TapeName) -> Self {
        Self {
            store: Arc::clone(store),
            tape: tape.clone(),
            queue: Mutex::default(),
            tape_file: Mutex::new(TapeFile::new(Arc::clone(store), tape.clone())),
        }
    }

    pub(crate) fn lock_tape_file(&self) -> MutexGuard<'_, TapeFile> {
        self.tape_file.lock()
    }

    /// Calls `read` if the index in memory covers the complete tape. Returns `None` if it does not, or if another
    /// thread uses the tape. Never waits.
    pub(crate) fn try_with_snapshot<T>(
        &self,
        read: impl FnOnce(&TapeFile, Snapshot) -> T,
    ) -> Option<T> {
        let tape_file = self.tape_file.try_lock()?;
        let snapshot = tape_file.cached_snapshot()?;
        Some(read(&tape_file, snapshot))
    }

    /// Returns the readable part of the tape without waiting for a writer, or `None` if the tape does not exist.
    pub(crate) fn snapshot(&self) -> Result<Option<Snapshot>> {
        match self.tape_file.try_lock() {
            Some(tape_file) => tape_file.snapshot(),
            None => Snapshot::capture(&self.store, &self.tape),
        }
    }

    pub(crate) fn enqueue(&self, pending: PendingBatch) {
        self.queue.lock().push(pending);
    }

    /// Commits the queued batches if all files are open and no other thread or process has locked the tape. Otherwise
    /// returns `false`; then call [`commit_queued`](Self::commit_queued).
    pub(crate) fn try_commit_queued(&self) -> bool {
        let Some(mut tape_file) = self.tape_file.try_lock() else {
            return false;
        };
        if !tape_file.has_open_files() {
            return false;
        }
        let Ok(Some(lock)) = tape_file.try_lock() else {
            return false;
        };
        tape_file.commit(Ok(lock), self.take_queued());
        true
    }

    /// Waits until no other thread or process has locked the tape, then commits the queued batches.
    pub(crate) fn commit_queued(&self) {
        let mut tape_file = self.lock_tape_file();
        let lock = tape_file.lock();
        tape_file.commit(lock, self.take_queued());
    }

    fn take_queued(&self) -> Vec<PendingBatch> {
        std::mem::take(&mut *self.queue.lock())
    }
}
