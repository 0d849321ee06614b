//! A cache of open tapes.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{batch::PendingBatch, context::StoreContext, snapshot::Snapshot, tape_file::TapeFile};
use crate::{Result, TapeName};

/// Maximum number of open tapes. Each uses two file descriptors and holds a summary. Tapes in use stay open even beyond
/// this number.
const MAX_OPEN_TAPES: usize = 64;

/// The open tapes of a store.
#[derive(Debug)]
pub(crate) struct OpenTapes {
    pub(super) store_context: Arc<StoreContext>,
    open: Mutex<OpenTapeLru>,
}

#[derive(Debug, Default)]
struct OpenTapeLru {
    open_tapes: HashMap<TapeName, (u64, Arc<OpenTape>)>,
    clock: u64,
}

/// An open tape and the batches queued for it.
///
/// Appending queues a batch before it locks the tape file. The next thread that gets the lock commits all batches that
/// were queued during the previous write. This is the group commit.
#[derive(Debug)]
pub(crate) struct OpenTape {
    queue: Mutex<Vec<PendingBatch>>,
    tape_file: Mutex<TapeFile>,
}

/// Guard that keeps a tape open.
#[derive(Debug)]
pub(crate) struct OpenTapeGuard {
    open_tapes: Arc<OpenTapes>,
    tape: TapeName,
    /// Held only for its reference count.
    _open_tape: Arc<OpenTape>,
}

impl Drop for OpenTapeGuard {
    fn drop(&mut self) {
        let mut open = lock_ignoring_poison(&self.open_tapes.open);
        // One reference is in the map, one in this guard.
        let is_last = |open_tape: &Arc<OpenTape>| Arc::strong_count(open_tape) == 2;
        let closed = match open.open_tapes.get(&self.tape) {
            Some((_, open_tape))
                if is_last(open_tape) && open.open_tapes.len() > MAX_OPEN_TAPES =>
            {
                open.open_tapes.remove(&self.tape)
            }
            _ => None,
        };
        drop(open);
        drop(closed);
    }
}

impl OpenTapes {
    /// Opens a tape and keeps it open until the guard is dropped.
    pub(crate) fn keep_open(self: &Arc<Self>, tape: &TapeName) -> OpenTapeGuard {
        let open_tape = self.get_or_create(tape);
        // If another thread is using the tape, that thread opens the files.
        if let Ok(mut tape_file) = open_tape.tape_file.try_lock() {
            tape_file.open_files();
        }
        OpenTapeGuard {
            _open_tape: open_tape,
            open_tapes: Arc::clone(self),
            tape: tape.clone(),
        }
    }

    pub(crate) fn new(store_context: Arc<StoreContext>) -> Self {
        Self {
            store_context,
            open: Mutex::default(),
        }
    }

    /// Closes the tapes that are not in use.
    pub(super) fn close_idle_tapes(&self) {
        let mut open = lock_ignoring_poison(&self.open);
        let idle = open
            .open_tapes
            .extract_if(|_, (_, open_tape)| Arc::strong_count(open_tape) == 1);
        let closed: Vec<_> = idle.collect();
        drop(open);
        drop(closed);
    }

    pub(crate) fn get_or_create(&self, tape: &TapeName) -> Arc<OpenTape> {
        let mut open = lock_ignoring_poison(&self.open);
        open.clock += 1;
        let tick = open.clock;
        if let Some((last_used, open_tape)) = open.open_tapes.get_mut(tape) {
            *last_used = tick;
            return Arc::clone(open_tape);
        }
        let evicted = open.evict_oldest();
        let tape_file = TapeFile::new(Arc::clone(&self.store_context), tape.clone());
        let open_tape = Arc::new(OpenTape {
            queue: Mutex::default(),
            tape_file: Mutex::new(tape_file),
        });
        open.open_tapes
            .insert(tape.clone(), (tick, Arc::clone(&open_tape)));
        drop(open);
        // Closing a tape saves its index. Do this after the lock on the map is released.
        drop(evicted);
        open_tape
    }
}

impl OpenTapeLru {
    fn evict_oldest(&mut self) -> Option<Arc<OpenTape>> {
        if self.open_tapes.len() < MAX_OPEN_TAPES {
            return None;
        }
        let idle = self
            .open_tapes
            .iter()
            .filter(|(_, (_, open_tape))| Arc::strong_count(open_tape) == 1);
        let oldest = idle
            .min_by_key(|(_, (last_used, _))| *last_used)
            .map(|(tape, _)| tape.clone())?;
        self.open_tapes
            .remove(&oldest)
            .map(|(_, open_tape)| open_tape)
    }
}

impl OpenTape {
    pub(crate) fn lock_tape_file(&self) -> MutexGuard<'_, TapeFile> {
        lock_ignoring_poison(&self.tape_file)
    }

    /// Calls `read` if the cached state of the tape is current. Returns `None` if it is not, or if the tape is locked
    /// by another thread. Never waits.
    pub(crate) fn try_with_snapshot<T>(
        &self,
        read: impl FnOnce(&mut TapeFile, Snapshot) -> T,
    ) -> Option<T> {
        let mut tape_file = self.tape_file.try_lock().ok()?;
        let snapshot = tape_file.cached_snapshot()?;
        Some(read(&mut tape_file, snapshot))
    }

    /// Returns the readable part of the tape without waiting for a writer, or `None` if the tape does not exist.
    pub(crate) fn snapshot(
        &self,
        store_context: &StoreContext,
        tape: &TapeName,
    ) -> Result<Option<Snapshot>> {
        match self.tape_file.try_lock() {
            Ok(tape_file) => tape_file.snapshot(),
            Err(_) => Snapshot::capture(store_context, tape),
        }
    }

    pub(crate) fn enqueue(&self, pending: PendingBatch) {
        lock_ignoring_poison(&self.queue).push(pending);
    }

    /// Commits the queued batches if no other thread or process holds a lock and all files are open. Otherwise returns
    /// `false`; then call [`commit_queued`](Self::commit_queued).
    pub(crate) fn try_commit_queued(&self) -> bool {
        let Ok(mut tape_file) = self.tape_file.try_lock() else {
            return false;
        };
        if !tape_file.has_open_files() {
            return false;
        }
        let Ok(Some(lock)) = tape_file.try_lock() else {
            return false;
        };
        tape_file.commit(&lock, self.take_queued());
        true
    }

    /// Waits for the locks and commits the queued batches.
    pub(crate) fn commit_queued(&self) {
        let mut tape_file = self.lock_tape_file();
        match tape_file.lock() {
            Ok(lock) => tape_file.commit(&lock, self.take_queued()),
            Err(error) => {
                for pending in self.take_queued() {
                    drop(pending.sender.send(Err(error.clone())));
                }
            }
        }
    }

    fn take_queued(&self) -> Vec<PendingBatch> {
        std::mem::take(&mut *lock_ignoring_poison(&self.queue))
    }
}

fn lock_ignoring_poison<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No operation panics between two changes, so the data is consistent even if the lock is poisoned.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
