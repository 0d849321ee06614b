//! The state of one tape in this process: its open files and its index.
//!
//! Everything here is synchronous and runs with the core's mutex held; what changes the tape also holds
//! the lock file, which is what other processes look at.

use std::sync::Arc;

use super::{
    context::StoreContext,
    index::{self, Index},
    lock_record::{LockPhase, LockRecord},
    snapshot::Snapshot,
};
use crate::{
    AnchorMark, AnchorQuery, Entry, Result, TapeName, TapeSummary,
    fs::{FsFile, OpenMode},
};

/// The index on disk may lag this much behind; reading that again takes a fraction of a millisecond. Saving more often
/// would cost more, because file systems flush a file that replaces another one.
const CHECKPOINT_BYTES: u64 = 256 * 1024;

/// A tape that grew by less than this is summed up again sooner than an index is written.
const MIN_INDEX_BYTES: u64 = 16 * 1024;

/// How often a lock file may vanish while it is being locked before that is called an error.
const MAX_LOCK_RETRIES: usize = 100;

/// One tape.
#[derive(Debug)]
pub(crate) struct TapeFile {
    pub(crate) store_context: Arc<StoreContext>,
    pub(crate) tape: TapeName,
    lock: Option<OpenFile>,
    pub(crate) open: Option<OpenFile>,
    pub(crate) index: Index,
    /// The file the index in memory speaks of.
    index_inode: u64,
    checkpoint_at: u64,
    /// Whether a failed fsync could not even be noted in the lock file.
    pub(crate) suspect: bool,
}

/// A file open for writing.
#[derive(Debug, Clone)]
pub(crate) struct OpenFile {
    pub(crate) file: Arc<dyn FsFile>,
    pub(crate) inode: u64,
}

/// The tape's lock; given back when dropped.
#[derive(Debug)]
pub(crate) struct TapeLock(pub(crate) Arc<dyn FsFile>);

impl Drop for TapeLock {
    fn drop(&mut self) {
        // Closing the file would release it as well; there is nothing better to do about a failure.
        let _ = self.0.unlock();
    }
}

/// A tape that is in order: nothing unfinished, no torn tail.
#[derive(Debug)]
pub(crate) struct WritableTape {
    pub(crate) open: OpenFile,
    pub(crate) record: LockRecord,
    /// What had to be repaired, as events for the tape.
    pub(crate) reports: Vec<Entry>,
}

impl TapeFile {
    pub(crate) fn new(store_context: Arc<StoreContext>, tape: TapeName) -> Self {
        Self {
            store_context,
            tape,
            lock: None,
            open: None,
            index: Index::default(),
            index_inode: 0,
            checkpoint_at: 0,
            suspect: false,
        }
    }

    /// Whether an append would find everything open: then it is a matter of microseconds.
    pub(crate) fn is_warm(&self) -> bool {
        self.lock.is_some() && self.open.is_some() && self.index.covered > 0
    }

    /// Waits for the lock.
    pub(crate) fn lock(&mut self) -> Result<TapeLock> {
        for _ in 0..MAX_LOCK_RETRIES {
            let lock = self.lock_file()?;
            lock.file
                .lock()
                .map_err(|error| self.error("lock", error))?;
            if let Some(held) = self.verify_lock_file(lock)? {
                return Ok(held);
            }
        }
        let lost = std::io::Error::other("its lock file is being removed again and again");
        Err(self.error("lock", lost))
    }

    /// Takes the lock if it is free.
    pub(crate) fn try_lock(&mut self) -> Result<Option<TapeLock>> {
        let lock = self.lock_file()?;
        let taken = lock
            .file
            .try_lock()
            .map_err(|error| self.error("lock", error))?;
        if taken {
            self.verify_lock_file(lock)
        } else {
            Ok(None)
        }
    }

    /// Gives up a lock file that somebody has removed: others would lock a new one.
    fn verify_lock_file(&mut self, lock: OpenFile) -> Result<Option<TapeLock>> {
        let held = TapeLock(lock.file);
        if self
            .store_context
            .has_name(lock.inode, &self.store_context.layout.lock(&self.tape))?
        {
            return Ok(Some(held));
        }
        self.lock = None;
        Ok(None)
    }

    fn lock_file(&mut self) -> Result<OpenFile> {
        if let Some(lock) = &self.lock {
            return Ok(lock.clone());
        }
        let file = self
            .store_context
            .open_write(&self.store_context.layout.lock(&self.tape), OpenMode::Write)?;
        let stat = file.stat().map_err(|error| self.error("lock", error))?;
        let lock = OpenFile {
            file: file.into(),
            inode: stat.inode,
        };
        self.lock = Some(lock.clone());
        Ok(lock)
    }

    pub(crate) fn error(&self, action: &'static str, error: std::io::Error) -> crate::TapeError {
        self.store_context
            .error(action, &self.store_context.layout.tape(&self.tape), error)
    }

    /// The readable part of a tape of which this process knows everything: two looks at the disk, and nothing to wait
    /// for. `None` when there is more to find out.
    pub(crate) fn cached_snapshot(&self) -> Option<Snapshot> {
        let snapshot = self.open_snapshot()?;
        let is_known = self.index_inode == snapshot.inode && self.index.covered == snapshot.end;
        is_known.then_some(snapshot)
    }

    /// The readable part of a tape whose files are open, and on which nothing is under way.
    fn open_snapshot(&self) -> Option<Snapshot> {
        let (lock, open) = (self.lock.as_ref()?, self.open.as_ref()?);
        let record = LockRecord::read(&*lock.file).ok()??;
        let named = self
            .store_context
            .fs
            .stat(&self.store_context.layout.tape(&self.tape))
            .ok()?;
        let at_rest = self.idle_record(record, named.size)?;
        let is_same = named.inode == open.inode && at_rest.inode == open.inode;
        is_same.then(|| Snapshot {
            file: Arc::clone(&open.file),
            inode: open.inode,
            end: at_rest.end,
        })
    }

    /// The readable part of the tape now; `None` when there is no tape.
    pub(crate) fn snapshot(&self) -> Result<Option<Snapshot>> {
        match self.open_snapshot() {
            Some(snapshot) => Ok(Some(snapshot)),
            None => Snapshot::capture(&self.store_context, &self.tape),
        }
    }

    /// Opens the files of a tape that exists, for somebody who is about to write to it. What fails is told when it
    /// matters.
    pub(crate) fn open_files(&mut self) {
        if self
            .store_context
            .fs
            .stat(&self.store_context.layout.tape(&self.tape))
            .is_ok()
        {
            let _ = self.lock_file().and_then(|_| self.open_tape());
        }
    }

    /// The summary as of now.
    pub(crate) fn summary(&mut self) -> Result<TapeSummary> {
        self.refresh()?;
        Ok(self.index.summary.clone())
    }

    /// Anchors as of now.
    pub(crate) fn anchors(&mut self, search: &AnchorQuery) -> Result<Vec<AnchorMark>> {
        let snapshot = self.refresh()?;
        let last = self.index.summary.last_anchor.as_ref();
        // The common questions are answered by the summary alone.
        match (search, last) {
            (_, None) => return Ok(Vec::new()),
            (AnchorQuery::Latest(1), Some(last)) => return Ok(vec![last.clone()]),
            (AnchorQuery::LatestNamed(name), Some(last)) if last.name == *name => {
                return Ok(vec![last.clone()]);
            }
            _ => {}
        }
        if let Some(marks) = self.index.marks(&self.store_context, &self.tape) {
            return Ok(search.pick(&marks));
        }
        // The marks on disk belong to another index: sum the tape up again, in memory.
        let mut index = Index::default();
        if let Some(snapshot) = &snapshot {
            index
                .catch_up(snapshot)
                .map_err(|error| self.error("read", error))?;
        }
        self.index = index;
        let marks = self
            .index
            .marks(&self.store_context, &self.tape)
            .unwrap_or_default();
        Ok(search.pick(&marks))
    }

    /// Brings the index in memory up to date.
    fn refresh(&mut self) -> Result<Option<Snapshot>> {
        let Some(snapshot) = self.snapshot()? else {
            self.index = Index::default();
            return Ok(None);
        };
        self.index_to(&snapshot)?;
        if self.index.covered >= self.index.saved + CHECKPOINT_BYTES
            && self.index.covered >= self.checkpoint_at
        {
            self.checkpoint_if_free();
        }
        Ok(Some(snapshot))
    }

    /// Makes the index speak of this snapshot.
    pub(crate) fn index_to(&mut self, snapshot: &Snapshot) -> Result<()> {
        let file = &*snapshot.file;
        let usable = self.index_inode == snapshot.inode && self.index.matches(file, snapshot.end);
        let behind = snapshot.end.saturating_sub(self.index.covered);
        if !usable || behind > CHECKPOINT_BYTES {
            let stored = Index::load(&self.store_context, &self.tape, file, snapshot.end);
            match stored {
                Some(stored) if !usable || stored.covered > self.index.covered => {
                    self.index = stored;
                }
                None if !usable => self.index = Index::default(),
                _ => {}
            }
        }
        self.index_inode = snapshot.inode;
        self.index
            .catch_up(snapshot)
            .map_err(|error| self.error("read", error))
    }

    /// Adds a committed batch to the index and saves it when enough has come together.
    pub(crate) fn note_batch<'a>(
        &mut self,
        open: &OpenFile,
        (offset, end): (u64, u64),
        batch: impl Iterator<Item = (&'a Entry, u64)>,
    ) {
        if offset == 0 {
            self.index = Index::default();
            self.index_inode = open.inode;
        }
        if self.index_inode == open.inode {
            self.index.extend(offset, batch, end);
        }
        if end >= self.index.saved + CHECKPOINT_BYTES && end >= self.checkpoint_at {
            self.checkpoint(open, end);
        }
    }

    /// Saves the index; the tape's lock must be held. A failure costs the next reader time and nothing else.
    pub(crate) fn checkpoint(&mut self, open: &OpenFile, end: u64) {
        let snapshot = Snapshot {
            file: Arc::clone(&open.file),
            inode: open.inode,
            end,
        };
        self.checkpoint_at = end + CHECKPOINT_BYTES;
        let saved = self
            .index_to(&snapshot)
            .and_then(|()| self.index.save(&self.store_context, &self.tape, &snapshot));
        if let Err(error) = saved {
            tracing::debug!(tape = %self.tape, %error, "index.save_failed");
        }
    }

    fn checkpoint_if_free(&mut self) {
        let Ok(Some(held)) = self.try_lock() else {
            return;
        };
        // Under the lock the tape may have become longer, but never part of a batch.
        if let Ok(Some(snapshot)) = Snapshot::capture(&self.store_context, &self.tape) {
            self.checkpoint(
                &OpenFile {
                    file: snapshot.file,
                    inode: snapshot.inode,
                },
                snapshot.end,
            );
        }
        drop(held);
    }

    /// Forgets the tape's files after they were replaced or removed.
    pub(crate) fn forget(&mut self) {
        self.open = None;
        self.index = Index::default();
        self.index_inode = 0;
        self.checkpoint_at = 0;
    }

    /// Closes all files, the lock file too.
    pub(crate) fn close(&mut self) {
        self.forget();
        self.lock = None;
    }

    /// Sums the whole tape up again and saves that.
    pub(crate) fn rebuild(&mut self) -> Result<TapeSummary> {
        let held = self.lock()?;
        index::remove(&self.store_context, &self.tape)?;
        self.forget();
        let Some(snapshot) = Snapshot::capture(&self.store_context, &self.tape)? else {
            return Ok(TapeSummary::default());
        };
        self.index_to(&snapshot)?;
        self.index
            .save(&self.store_context, &self.tape, &snapshot)?;
        drop(held);
        Ok(self.index.summary.clone())
    }

    /// Writes the record, counting.
    pub(crate) fn write_record(&self, lock: &TapeLock, record: LockRecord) -> Result<LockRecord> {
        let record = LockRecord {
            sequence: record.sequence.wrapping_add(1),
            ..record
        };
        record
            .write(&*lock.0)
            .map_err(|error| self.error("write the lock record of", error))?;
        Ok(record)
    }

    /// The record of a tape on which nothing is under way; `None` when that has to be found out.
    pub(crate) fn idle_record(&self, record: LockRecord, size: u64) -> Option<LockRecord> {
        let at_rest = record.phase == LockPhase::Idle && record.end == size && !self.suspect;
        at_rest.then_some(record)
    }
}

impl Drop for TapeFile {
    fn drop(&mut self) {
        if self.index.covered >= self.index.saved + MIN_INDEX_BYTES {
            self.checkpoint_if_free();
        }
    }
}
