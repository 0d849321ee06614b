//! The state of one tape in this process: its open files and its index.
//!
//! All methods are synchronous. Their caller holds the mutex of the [`TapeFile`]. Methods that change the tape also
//! hold the lock file, which excludes other processes.

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

/// Number of bytes a tape grows before the index is saved again. Scanning as many bytes takes a fraction of a
/// millisecond. Saving more often would cost more, because file systems flush a file that replaces another one.
const CHECKPOINT_BYTES: u64 = 256 * 1024;

/// Minimum number of new bytes for saving the index when a tape is closed. Scanning fewer bytes is faster than saving.
const MIN_INDEX_BYTES: u64 = 16 * 1024;

/// Maximum number of attempts to lock a tape whose lock file other programs remove meanwhile. After these attempts,
/// locking fails.
const MAX_LOCK_RETRIES: usize = 100;

/// The files and the index of one tape.
#[derive(Debug)]
pub(crate) struct TapeFile {
    pub(crate) store_context: Arc<StoreContext>,
    pub(crate) tape: TapeName,
    lock_file: Option<OpenFile>,
    pub(crate) open: Option<OpenFile>,
    pub(crate) index: Index,
    /// The inode of the file that the index in memory covers.
    index_inode: u64,
    /// Size of the tape in bytes at which the index is saved next.
    checkpoint_at: u64,
    /// Whether an fsync failed and the tape was not rewritten since. The lock record may not show this.
    pub(crate) has_failed_sync: bool,
}

/// A file open for writing.
#[derive(Debug, Clone)]
pub(crate) struct OpenFile {
    pub(crate) file: Arc<dyn FsFile>,
    pub(crate) inode: u64,
}

/// Guard that holds a tape's lock.
#[derive(Debug)]
pub(crate) struct TapeLock(pub(crate) Arc<dyn FsFile>);

impl Drop for TapeLock {
    fn drop(&mut self) {
        // Ignore errors: closing the file releases the lock too.
        let _ = self.0.unlock();
    }
}

/// A tape without an unfinished operation or a torn tail.
#[derive(Debug)]
pub(crate) struct WritableTape {
    pub(crate) open: OpenFile,
    pub(crate) record: LockRecord,
    /// Events that report what was repaired, to be appended to the tape.
    pub(crate) reports: Vec<Entry>,
}

impl TapeFile {
    pub(crate) fn new(store_context: Arc<StoreContext>, tape: TapeName) -> Self {
        Self {
            store_context,
            tape,
            lock_file: None,
            open: None,
            index: Index::default(),
            index_inode: 0,
            checkpoint_at: 0,
            has_failed_sync: false,
        }
    }

    /// Returns whether all files are open, so that an append takes only microseconds.
    pub(crate) fn has_open_files(&self) -> bool {
        self.lock_file.is_some() && self.open.is_some() && self.index.covered > 0
    }

    /// Waits for the lock.
    pub(crate) fn lock(&mut self) -> Result<TapeLock> {
        for _ in 0..MAX_LOCK_RETRIES {
            let lock_file = self.open_lock_file()?;
            lock_file
                .file
                .lock()
                .map_err(|error| self.io_error("lock", error))?;
            if let Some(lock) = self.verify_lock_file(lock_file)? {
                return Ok(lock);
            }
        }
        let reason = std::io::Error::other(
            "another program keeps removing its lock file; stop that program",
        );
        Err(self.io_error("lock", reason))
    }

    /// Takes the lock if it is free.
    pub(crate) fn try_lock(&mut self) -> Result<Option<TapeLock>> {
        let lock_file = self.open_lock_file()?;
        let is_locked = lock_file
            .file
            .try_lock()
            .map_err(|error| self.io_error("lock", error))?;
        if is_locked {
            self.verify_lock_file(lock_file)
        } else {
            Ok(None)
        }
    }

    /// Returns the lock, or `None` if its file was removed or replaced. In this case other processes lock another file.
    fn verify_lock_file(&mut self, lock_file: OpenFile) -> Result<Option<TapeLock>> {
        let lock = TapeLock(lock_file.file);
        if self.store_context.is_inode_at(
            lock_file.inode,
            &self.store_context.paths.lock_file(&self.tape),
        )? {
            return Ok(Some(lock));
        }
        self.lock_file = None;
        Ok(None)
    }

    fn open_lock_file(&mut self) -> Result<OpenFile> {
        if let Some(lock_file) = &self.lock_file {
            return Ok(lock_file.clone());
        }
        let file = self.store_context.open_for_writing(
            &self.store_context.paths.lock_file(&self.tape),
            OpenMode::Write,
        )?;
        let stat = file.stat().map_err(|error| self.io_error("lock", error))?;
        let lock_file = OpenFile {
            file: file.into(),
            inode: stat.inode,
        };
        self.lock_file = Some(lock_file.clone());
        Ok(lock_file)
    }

    pub(crate) fn io_error(&self, action: &'static str, error: std::io::Error) -> crate::TapeError {
        self.store_context.io_error(
            action,
            &self.store_context.paths.tape_file(&self.tape),
            error,
        )
    }

    /// Returns the readable part of the tape if the index in memory covers all of it. Makes two system calls and never
    /// waits.
    pub(crate) fn cached_snapshot(&self) -> Option<Snapshot> {
        let snapshot = self.open_snapshot()?;
        let is_known = self.index_inode == snapshot.inode && self.index.covered == snapshot.end;
        is_known.then_some(snapshot)
    }

    /// Returns the readable part of the tape if its files are open and no operation is in progress.
    fn open_snapshot(&self) -> Option<Snapshot> {
        let (lock_file, open) = (self.lock_file.as_ref()?, self.open.as_ref()?);
        let record = LockRecord::read(&*lock_file.file).ok()??;
        let stat = self
            .store_context
            .fs
            .stat(&self.store_context.paths.tape_file(&self.tape))
            .ok()?;
        let idle = self.idle_record(record, stat.size)?;
        let is_same = stat.inode == open.inode && idle.inode == open.inode;
        is_same.then(|| Snapshot {
            file: Arc::clone(&open.file),
            inode: open.inode,
            end: idle.end,
        })
    }

    /// Returns the readable part of the tape, or `None` if the tape does not exist.
    pub(crate) fn snapshot(&self) -> Result<Option<Snapshot>> {
        match self.open_snapshot() {
            Some(snapshot) => Ok(Some(snapshot)),
            None => Snapshot::capture(&self.store_context, &self.tape),
        }
    }

    /// Opens the files of an existing tape before its first use. Ignores errors; a later read or write reports them.
    pub(crate) fn open_files(&mut self) {
        if self
            .store_context
            .fs
            .stat(&self.store_context.paths.tape_file(&self.tape))
            .is_ok()
        {
            let _ = self.open_lock_file().and_then(|_| self.open_current_file());
        }
    }

    /// Returns the current summary.
    pub(crate) fn summary(&mut self) -> Result<TapeSummary> {
        self.refresh_index()?;
        Ok(self.index.summary.clone())
    }

    /// Returns the selected anchors.
    pub(crate) fn anchors(&mut self, query: &AnchorQuery) -> Result<Vec<AnchorMark>> {
        let snapshot = self.refresh_index()?;
        let last = self.index.summary.last_anchor.as_ref();
        // The summary suffices for the common queries.
        match (query, last) {
            (_, None) => return Ok(Vec::new()),
            (AnchorQuery::Latest(1), Some(last)) => return Ok(vec![last.clone()]),
            (AnchorQuery::LatestNamed(name), Some(last)) if last.name == *name => {
                return Ok(vec![last.clone()]);
            }
            _ => {}
        }
        if let Some(marks) = self.index.all_marks(&self.store_context, &self.tape) {
            return Ok(query.select_marks(&marks));
        }
        // The marks on disk belong to another index. Scan the complete tape in memory.
        let mut index = Index::default();
        if let Some(snapshot) = &snapshot {
            index
                .extend_to(snapshot)
                .map_err(|error| self.io_error("read", error))?;
        }
        self.index = index;
        let marks = self
            .index
            .all_marks(&self.store_context, &self.tape)
            .unwrap_or_default();
        Ok(query.select_marks(&marks))
    }

    /// Updates the index in memory and returns the snapshot it covers.
    fn refresh_index(&mut self) -> Result<Option<Snapshot>> {
        let Some(snapshot) = self.snapshot()? else {
            self.index = Index::default();
            return Ok(None);
        };
        self.update_index(&snapshot)?;
        if self.index.covered >= self.index.saved + CHECKPOINT_BYTES
            && self.index.covered >= self.checkpoint_at
        {
            self.save_index_if_unlocked();
        }
        Ok(Some(snapshot))
    }

    /// Updates the index in memory to cover this snapshot.
    pub(crate) fn update_index(&mut self, snapshot: &Snapshot) -> Result<()> {
        let file = &*snapshot.file;
        let is_usable =
            self.index_inode == snapshot.inode && self.index.is_valid_for(file, snapshot.end);
        let behind = snapshot.end.saturating_sub(self.index.covered);
        if !is_usable || behind > CHECKPOINT_BYTES {
            let stored = Index::load(&self.store_context, &self.tape, file, snapshot.end);
            match stored {
                Some(stored) if !is_usable || stored.covered > self.index.covered => {
                    self.index = stored;
                }
                None if !is_usable => self.index = Index::default(),
                _ => {}
            }
        }
        self.index_inode = snapshot.inode;
        self.index
            .extend_to(snapshot)
            .map_err(|error| self.io_error("read", error))
    }

    /// Adds a committed batch to the index, and saves the index every [`CHECKPOINT_BYTES`].
    pub(crate) fn index_batch<'a>(
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
            self.index.append_batch(offset, batch, end);
        }
        if end >= self.index.saved + CHECKPOINT_BYTES && end >= self.checkpoint_at {
            self.save_index(open, end);
        }
    }

    /// Saves the index. The caller must hold the tape's lock. Errors are only logged, because the next reader can
    /// rebuild the index.
    pub(crate) fn save_index(&mut self, open: &OpenFile, end: u64) {
        let snapshot = Snapshot {
            file: Arc::clone(&open.file),
            inode: open.inode,
            end,
        };
        self.checkpoint_at = end + CHECKPOINT_BYTES;
        let saved = self
            .update_index(&snapshot)
            .and_then(|()| self.index.save(&self.store_context, &self.tape, &snapshot));
        if let Err(error) = saved {
            tracing::debug!(tape = %self.tape, %error, "index.save_failed");
        }
    }

    fn save_index_if_unlocked(&mut self) {
        let Ok(Some(lock)) = self.try_lock() else {
            return;
        };
        // The tape may have grown before the lock was taken, but now it contains no incomplete batch.
        if let Ok(Some(snapshot)) = Snapshot::capture(&self.store_context, &self.tape) {
            self.save_index(
                &OpenFile {
                    file: snapshot.file,
                    inode: snapshot.inode,
                },
                snapshot.end,
            );
        }
        drop(lock);
    }

    /// Drops the open tape file and the index after the file was replaced or removed.
    pub(crate) fn forget_replaced_file(&mut self) {
        self.open = None;
        self.index = Index::default();
        self.index_inode = 0;
        self.checkpoint_at = 0;
    }

    /// Closes all files, including the lock file.
    pub(crate) fn close_files(&mut self) {
        self.forget_replaced_file();
        self.lock_file = None;
    }

    /// Rebuilds the index from the complete tape and saves it.
    pub(crate) fn rebuild_index(&mut self) -> Result<TapeSummary> {
        let lock = self.lock()?;
        index::remove_index_files(&self.store_context, &self.tape)?;
        self.forget_replaced_file();
        let Some(snapshot) = Snapshot::capture(&self.store_context, &self.tape)? else {
            return Ok(TapeSummary::default());
        };
        self.update_index(&snapshot)?;
        self.index
            .save(&self.store_context, &self.tape, &snapshot)?;
        drop(lock);
        Ok(self.index.summary.clone())
    }

    /// Writes the lock record with the next sequence number and returns it.
    pub(crate) fn write_lock_record(
        &self,
        lock: &TapeLock,
        record: LockRecord,
    ) -> Result<LockRecord> {
        let record = LockRecord {
            sequence: record.sequence.wrapping_add(1),
            ..record
        };
        record
            .write(&*lock.0)
            .map_err(|error| self.io_error("write the lock record of", error))?;
        Ok(record)
    }

    /// Returns the record if it describes an idle tape of this size. Otherwise the tape may need recovery.
    pub(crate) fn idle_record(&self, record: LockRecord, size: u64) -> Option<LockRecord> {
        let is_idle =
            record.phase == LockPhase::Idle && record.end == size && !self.has_failed_sync;
        is_idle.then_some(record)
    }
}

impl Drop for TapeFile {
    fn drop(&mut self) {
        if self.index.covered >= self.index.saved + MIN_INDEX_BYTES {
            self.save_index_if_unlocked();
        }
    }
}
