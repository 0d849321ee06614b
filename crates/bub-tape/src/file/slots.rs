//! The tapes this process has open, a bounded number of them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{batch::Pending, core::Core, shared::Shared, snapshot::Snapshot};
use crate::{Result, TapeName};

/// Each open tape costs two file handles and a summary. Those with a turn stay open beyond this number.
const MAX_OPEN: usize = 64;

/// All open tapes.
#[derive(Debug)]
pub(crate) struct Slots {
    pub(super) shared: Arc<Shared>,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    slots: HashMap<TapeName, (u64, Arc<Slot>)>,
    clock: u64,
}

/// One open tape: what waits to be written, and its state.
///
/// Batches are queued before the core is asked for, so whoever gets the core writes everything that came together while
/// the last write ran: that is the group commit.
#[derive(Debug)]
pub(crate) struct Slot {
    queue: Mutex<Vec<Pending>>,
    core: Mutex<Core>,
}

/// Keeps a tape open.
#[derive(Debug)]
pub(crate) struct Pin {
    slots: Arc<Slots>,
    tape: TapeName,
    /// Held for its count only.
    _slot: Arc<Slot>,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut open = lock(&self.slots.open);
        // The map and this pin.
        let is_last = |slot: &Arc<Slot>| Arc::strong_count(slot) == 2;
        let closed = match open.slots.get(&self.tape) {
            Some((_, slot)) if is_last(slot) && open.slots.len() > MAX_OPEN => {
                open.slots.remove(&self.tape)
            }
            _ => None,
        };
        drop(open);
        drop(closed);
    }
}

impl Slots {
    /// Keeps a tape open for as long as the pin is held.
    pub(crate) fn pin(self: &Arc<Self>, tape: &TapeName) -> Pin {
        let slot = self.get(tape);
        // Somebody else at work on it will have opened them.
        if let Ok(mut core) = slot.core.try_lock() {
            core.open_files();
        }
        Pin {
            _slot: slot,
            slots: Arc::clone(self),
            tape: tape.clone(),
        }
    }

    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            open: Mutex::default(),
        }
    }

    /// Closes the tapes that nobody works on.
    pub(super) fn close_idle(&self) {
        let mut open = lock(&self.open);
        let idle = open
            .slots
            .extract_if(|_, (_, slot)| Arc::strong_count(slot) == 1);
        let closed: Vec<_> = idle.collect();
        drop(open);
        drop(closed);
    }

    pub(crate) fn get(&self, tape: &TapeName) -> Arc<Slot> {
        let mut open = lock(&self.open);
        open.clock += 1;
        let now = open.clock;
        if let Some((used, slot)) = open.slots.get_mut(tape) {
            *used = now;
            return Arc::clone(slot);
        }
        let evicted = open.evict();
        let core = Core::new(Arc::clone(&self.shared), tape.clone());
        let slot = Arc::new(Slot {
            queue: Mutex::default(),
            core: Mutex::new(core),
        });
        open.slots.insert(tape.clone(), (now, Arc::clone(&slot)));
        drop(open);
        // Closing a tape saves its index, which nobody else has to wait for.
        drop(evicted);
        slot
    }
}

impl Open {
    fn evict(&mut self) -> Option<Arc<Slot>> {
        if self.slots.len() < MAX_OPEN {
            return None;
        }
        let idle = self
            .slots
            .iter()
            .filter(|(_, (_, slot))| Arc::strong_count(slot) == 1);
        let oldest = idle
            .min_by_key(|(_, (used, _))| *used)
            .map(|(tape, _)| tape.clone())?;
        self.slots.remove(&oldest).map(|(_, slot)| slot)
    }
}

impl Slot {
    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
        lock(&self.core)
    }

    /// What the tape's state says without waiting for anything; `None` when it has to be asked with patience.
    pub(crate) fn if_known<T>(&self, look: impl FnOnce(&mut Core, Snapshot) -> T) -> Option<T> {
        let mut core = self.core.try_lock().ok()?;
        let snapshot = core.known()?;
        Some(look(&mut core, snapshot))
    }

    /// The readable part of the tape now, without waiting for a writer; `None` when there is no tape.
    pub(crate) fn snapshot(&self, shared: &Shared, tape: &TapeName) -> Result<Option<Snapshot>> {
        match self.core.try_lock() {
            Ok(core) => core.snapshot(),
            Err(_) => Snapshot::take(shared, tape),
        }
    }

    pub(crate) fn enqueue(&self, pending: Pending) {
        lock(&self.queue).push(pending);
    }

    /// Writes what waits, if that needs no waiting; `false` when it has to be done with patience.
    pub(crate) fn drain_if_free(&self) -> bool {
        let Ok(mut core) = self.core.try_lock() else {
            return false;
        };
        if !core.is_warm() {
            return false;
        }
        let Ok(Some(held)) = core.try_hold() else {
            return false;
        };
        core.commit(&held, self.waiting());
        true
    }

    /// Writes what waits.
    pub(crate) fn drain(&self) {
        let mut core = self.core();
        match core.hold() {
            Ok(held) => core.commit(&held, self.waiting()),
            Err(error) => {
                for pending in self.waiting() {
                    drop(pending.reply.send(Err(error.clone())));
                }
            }
        }
    }

    fn waiting(&self) -> Vec<Pending> {
        std::mem::take(&mut *lock(&self.queue))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code in here panics between two states, so a poisoned lock still guards whole data.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
