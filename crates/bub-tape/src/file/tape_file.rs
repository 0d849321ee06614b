//! The open files and the index of one tape in this process.
//!
//! All methods are synchronous. Their caller holds the mutex of the [`TapeFile`]. Methods that change the tape also
//! hold the tape's lock, which excludes other processes.

use std::{io, path::PathBuf, sync::Arc};

use super::{
    chain::ChainState,
    context::{IoResultExt as _, StoreContext},
    index::Index,
    lock_record::{LockPhase, LockRecord},
    snapshot::Snapshot,
};
use crate::{
    Durability, Entry, Result, TapeError, TapeName,
    fs::{FsFile, OpenMode},
};

/// Maximum number of attempts to lock a tape whose lock file other programs remove meanwhile. After these attempts,
/// locking fails.
const MAX_LOCK_RETRIES: usize = 100;

/// The files and the index of one tape.
#[derive(Debug)]
pub(crate) struct TapeFile {
    pub(crate) store: Arc<StoreContext>,
    pub(crate) tape: TapeName,
    /// The path of the tape file.
    pub(crate) path: PathBuf,
    lock_file: Option<OpenFile>,
    pub(crate) open: Option<OpenFile>,
    pub(crate) index: Index,
    /// The hash chain up to the end of the tape after the last append of this process.
    pub(crate) chain: Option<ChainState>,
    /// Whether an fsync failed and the tape was not rewritten since. The lock record may not show this.
    pub(crate) has_failed_sync: bool,
}

/// A file open for writing.
#[derive(Debug, Clone)]
pub(crate) struct OpenFile {
    pub(crate) file: Arc<dyn FsFile>,
    pub(crate) inode: u64,
}

/// Guard that holds the lock of a file. Closing the file is not enough to release it: a child process that is just
/// being started has a copy of the file descriptor, which keeps the lock.
#[derive(Debug)]
pub(crate) struct TapeLock(pub(crate) Arc<dyn FsFile>);

impl Drop for TapeLock {
    fn drop(&mut self) {
        // The lock is released when the process ends, at the latest.
        let _ = self.0.unlock();
    }
}

/// A tape that is ready for an append: it has no unfinished operation and no incomplete last line.
#[derive(Debug)]
pub(crate) struct WritableTape {
    pub(crate) open: OpenFile,
    pub(crate) record: LockRecord,
    /// Events that report what was repaired, to be appended to the tape.
    pub(crate) reports: Vec<Entry>,
}

impl TapeFile {
    pub(crate) fn new(store: Arc<StoreContext>, tape: TapeName) -> Self {
        Self {
            path: store.paths.tape_file(&tape),
            store,
            tape,
            lock_file: None,
            open: None,
            index: Index::default(),
            chain: None,
            has_failed_sync: false,
        }
    }

    /// Returns whether the files are open and the index is in memory, so that an append takes only microseconds.
    pub(crate) fn has_open_files(&self) -> bool {
        self.lock_file.is_some() && self.open.is_some() && self.index.covered > 0
    }

    /// Waits for the tape's lock and takes it.
    pub(crate) fn lock(&mut self) -> Result<TapeLock> {
        for _ in 0..MAX_LOCK_RETRIES {
            if let Some(lock) = self.lock_with(|file| file.lock().map(|()| true))? {
                return Ok(lock);
            }
        }
        let reason = "another program keeps removing its lock file; stop that program";
        Err(io::Error::other(reason)).describe("lock", &self.path)
    }

    /// Takes the tape's lock if it is free. Returns `None` otherwise.
    pub(crate) fn try_lock(&mut self) -> Result<Option<TapeLock>> {
        self.lock_with(|file| file.try_lock())
    }

    /// Calls `take_lock` with the lock file. Returns `None` if it does not take the lock, or if the lock file was
    /// removed or replaced. In this case other processes lock another file.
    fn lock_with(
        &mut self,
        take_lock: impl FnOnce(&dyn FsFile) -> io::Result<bool>,
    ) -> Result<Option<TapeLock>> {
        let OpenFile { file, inode } = self.open_lock_file()?;
        if !take_lock(&*file).describe("lock", &self.path)? {
            return Ok(None);
        }
        let lock = TapeLock(file);
        let lock_path = self.store.paths.lock_file(&self.tape);
        if self.store.is_inode_at(inode, &lock_path)? {
            return Ok(Some(lock));
        }
        self.lock_file = None;
        Ok(None)
    }

    fn open_lock_file(&mut self) -> Result<OpenFile> {
        if let Some(lock_file) = &self.lock_file {
            return Ok(lock_file.clone());
        }
        let lock_path = self.store.paths.lock_file(&self.tape);
        let file = self.store.open_for_writing(&lock_path, OpenMode::Write)?;
        let lock_file = OpenFile {
            inode: file.stat().describe("lock", &self.path)?.inode,
            file: file.into(),
        };
        Ok(self.lock_file.insert(lock_file).clone())
    }

    /// Returns the current tape file and its size. Opens the file again if it was replaced, and creates it if it does
    /// not exist.
    pub(crate) fn open_current_file(&mut self) -> Result<(OpenFile, u64)> {
        let stat = self.store.stat(&self.path)?;
        if let (Some(open), Some(stat)) = (&self.open, stat)
            && open.inode == stat.inode
        {
            return Ok((open.clone(), stat.size));
        }
        let file = self.store.open_for_writing(&self.path, OpenMode::Write)?;
        if stat.is_none() && self.store.durability == Durability::Always {
            self.store.sync_parent_dir(&self.path)?;
        }
        let stat = file.stat().describe("inspect", &self.path)?;
        let open = OpenFile {
            file: file.into(),
            inode: stat.inode,
        };
        Ok((self.open.insert(open).clone(), stat.size))
    }

    /// Opens the files of an existing tape before its first use. Ignores errors; a later read or write reports them.
    pub(crate) fn open_files(&mut self) {
        if let Ok(Some(_)) = self.store.stat(&self.path) {
            let _ = self.open_lock_file().and_then(|_| self.open_current_file());
        }
    }

    /// Returns the readable part of the tape if the index in memory covers all of it. Makes two system calls and never
    /// waits.
    pub(crate) fn cached_snapshot(&self) -> Option<Snapshot> {
        self.open_snapshot().filter(|snapshot| {
            self.index.inode == snapshot.inode && self.index.covered == snapshot.end
        })
    }

    /// Returns the readable part of the tape, or `None` if the tape does not exist.
    pub(crate) fn snapshot(&self) -> Result<Option<Snapshot>> {
        match self.open_snapshot() {
            Some(snapshot) => Ok(Some(snapshot)),
            None => Snapshot::capture(&self.store, &self.tape),
        }
    }

    /// Returns the readable part of the tape if its files are open and no operation is in progress.
    fn open_snapshot(&self) -> Option<Snapshot> {
        let (lock_file, open) = (self.lock_file.as_ref()?, self.open.as_ref()?);
        let record = LockRecord::read(&*lock_file.file).ok()??;
        let stat = self.store.stat(&self.path).ok()??;
        let is_current = stat.inode == open.inode && record.inode == open.inode;
        (is_current && self.is_idle(record, stat.size)).then(|| self.snapshot_of(open, stat.size))
    }

    /// Returns the part of an open file that ends at `end`.
    pub(crate) fn snapshot_of(&self, open: &OpenFile, end: u64) -> Snapshot {
        Snapshot {
            path: self.path.clone(),
            file: Arc::clone(&open.file),
            inode: open.inode,
            end,
        }
    }

    /// Drops the open tape file and the index after the file was replaced or removed.
    pub(crate) fn forget_replaced_file(&mut self) {
        self.open = None;
        self.index = Index::default();
    }

    /// Closes all files, including the lock file.
    pub(crate) fn close_files(&mut self) {
        self.forget_replaced_file();
        self.lock_file = None;
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
            .describe("write the lock record of", &self.path)?;
        Ok(record)
    }

    /// Returns whether the record describes an idle tape of this size. Otherwise the tape may need recovery.
    pub(crate) fn is_idle(&self, record: LockRecord, size: u64) -> bool {
        record.phase == LockPhase::Idle && record.end == size && !self.has_failed_sync
    }

    pub(crate) fn sync_error(&self, source: io::Error) -> TapeError {
        TapeError::NotDurable {
            path: self.path.display().to_string(),
            source: source.into(),
        }
    }
}

impl Drop for TapeFile {
    fn drop(&mut self) {
        self.save_index_on_close();
    }
}
