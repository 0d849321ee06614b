//! The tapes this process has open, a bounded number of them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{batch::PendingBatch, context::StoreContext, snapshot::Snapshot, tape_file::TapeFile};
use crate::{Result, TapeName};

/// Each open tape costs two file handles and a summary. Those with a turn stay open beyond this number.
const MAX_OPEN_TAPES: usize = 64;

/// All open tapes.
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

/// One open tape: what waits to be written, and its state.
///
/// Batches are queued before the core is asked for, so whoever gets the core writes everything that came together while
/// the last write ran: that is the group commit.
#[derive(Debug)]
pub(crate) struct OpenTape {
    queue: Mutex<Vec<PendingBatch>>,
    core: Mutex<TapeFile>,
}

/// Keeps a tape open.
#[derive(Debug)]
pub(crate) struct OpenTapeGuard {
    open_tapes: Arc<OpenTapes>,
    tape: TapeName,
    /// Held for its count only.
    _slot: Arc<OpenTape>,
}

impl Drop for OpenTapeGuard {
    fn drop(&mut self) {
        let mut open = lock(&self.open_tapes.open);
        // The map and this pin.
        let is_last = |slot: &Arc<OpenTape>| Arc::strong_count(slot) == 2;
        let closed = match open.open_tapes.get(&self.tape) {
            Some((_, slot)) if is_last(slot) && open.open_tapes.len() > MAX_OPEN_TAPES => {
                open.open_tapes.remove(&self.tape)
            }
            _ => None,
        };
        drop(open);
        drop(closed);
    }
}

impl OpenTapes {
    /// Keeps a tape open for as long as the pin is held.
    pub(crate) fn pin(self: &Arc<Self>, tape: &TapeName) -> OpenTapeGuard {
        let slot = self.get(tape);
        // Somebody else at work on it will have opened them.
        if let Ok(mut core) = slot.core.try_lock() {
            core.open_files();
        }
        OpenTapeGuard {
            _slot: slot,
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

    /// Closes the tapes that nobody works on.
    pub(super) fn close_idle(&self) {
        let mut open = lock(&self.open);
        let idle = open
            .open_tapes
            .extract_if(|_, (_, slot)| Arc::strong_count(slot) == 1);
        let closed: Vec<_> = idle.collect();
        drop(open);
        drop(closed);
    }

    pub(crate) fn get(&self, tape: &TapeName) -> Arc<OpenTape> {
        let mut open = lock(&self.open);
        open.clock += 1;
        let now = open.clock;
        if let Some((used, slot)) = open.open_tapes.get_mut(tape) {
            *used = now;
            return Arc::clone(slot);
        }
        let evicted = open.evict();
        let core = TapeFile::new(Arc::clone(&self.store_context), tape.clone());
        let slot = Arc::new(OpenTape {
            queue: Mutex::default(),
            core: Mutex::new(core),
        });
        open.open_tapes
            .insert(tape.clone(), (now, Arc::clone(&slot)));
        drop(open);
        // Closing a tape saves its index, which nobody else has to wait for.
        drop(evicted);
        slot
    }
}

impl OpenTapeLru {
    fn evict(&mut self) -> Option<Arc<OpenTape>> {
        if self.open_tapes.len() < MAX_OPEN_TAPES {
            return None;
        }
        let idle = self
            .open_tapes
            .iter()
            .filter(|(_, (_, slot))| Arc::strong_count(slot) == 1);
        let oldest = idle
            .min_by_key(|(_, (used, _))| *used)
            .map(|(tape, _)| tape.clone())?;
        self.open_tapes.remove(&oldest).map(|(_, slot)| slot)
    }
}

impl OpenTape {
    pub(crate) fn core(&self) -> MutexGuard<'_, TapeFile> {
        lock(&self.core)
    }

    /// What the tape's state says without waiting for anything; `None` when it has to be asked with patience.
    pub(crate) fn try_with_snapshot<T>(
        &self,
        look: impl FnOnce(&mut TapeFile, Snapshot) -> T,
    ) -> Option<T> {
        let mut core = self.core.try_lock().ok()?;
        let snapshot = core.cached_snapshot()?;
        Some(look(&mut core, snapshot))
    }

    /// The readable part of the tape now, without waiting for a writer; `None` when there is no tape.
    pub(crate) fn snapshot(
        &self,
        store_context: &StoreContext,
        tape: &TapeName,
    ) -> Result<Option<Snapshot>> {
        match self.core.try_lock() {
            Ok(core) => core.snapshot(),
            Err(_) => Snapshot::capture(store_context, tape),
        }
    }

    pub(crate) fn enqueue(&self, pending: PendingBatch) {
        lock(&self.queue).push(pending);
    }

    /// Writes what waits, if that needs no waiting; `false` when it has to be done with patience.
    pub(crate) fn try_drain(&self) -> bool {
        let Ok(mut core) = self.core.try_lock() else {
            return false;
        };
        if !core.is_warm() {
            return false;
        }
        let Ok(Some(held)) = core.try_lock() else {
            return false;
        };
        core.commit(&held, self.waiting());
        true
    }

    /// Writes what waits.
    pub(crate) fn drain(&self) {
        let mut core = self.core();
        match core.lock() {
            Ok(held) => core.commit(&held, self.waiting()),
            Err(error) => {
                for pending in self.waiting() {
                    drop(pending.reply.send(Err(error.clone())));
                }
            }
        }
    }

    fn waiting(&self) -> Vec<PendingBatch> {
        std::mem::take(&mut *lock(&self.queue))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code in here panics between two states, so a poisoned lock still guards whole data.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
