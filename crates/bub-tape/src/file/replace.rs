//! Archives, resets and removes tapes. New content is complete before it replaces the old content.

use std::{
    io::{self, ErrorKind},
    path::PathBuf,
};

use super::{
    chain::{ChainHead, ChainState},
    commit::{Batch, CommitBuffer},
    context::IoResultExt as _,
    lock_record::{LockPhase, LockRecord},
    recovery::copy_range,
    snapshot::Snapshot,
    tape_file::{TapeFile, TapeLock, WritableTape},
};
use crate::{EntryId, ResetOutcome, ResetRequest, Result};

/// Maximum number of archives of one tape with the same timestamp. Beyond it, archiving fails.
const MAX_ARCHIVES_PER_SECOND: u32 = 10_000;

/// The content that replaces a tape.
pub(crate) struct NewContent {
    /// Size in bytes.
    pub(crate) size: u64,
    pub(crate) max_id: EntryId,
    /// The head of the hash chain, if it is known.
    pub(crate) head: Option<ChainHead>,
}

impl TapeFile {
    /// Copies the tape to a new archive and returns the archive's path.
    pub(crate) fn archive(&mut self, stamp: &str) -> Result<String> {
        let lock = self.lock()?;
        let snapshot = Snapshot::capture(&self.store, &self.tape)?;
        let path = self.copy_to_archive(snapshot.as_ref(), self.unused_archive_path(stamp)?)?;
        drop(lock);
        Ok(path.display().to_string())
    }

    /// Replaces the tape's content.
    ///
    /// The process can end at any point without losing data. If an archive is requested, the old file first gets the
    /// name of the archive as a second name. Then the new content is written to a temporary file. Finally, one rename
    /// replaces the tape.
    pub(crate) fn reset(&mut self, request: ResetRequest) -> Result<ResetOutcome> {
        let lock = self.lock()?;
        let writable = self.make_writable(&lock)?;
        let intent = self.announce_replacement(&lock, &writable)?;
        let (outcome, lines) = self.replace_content(request, &writable).inspect_err(|_| {
            // The tape is unchanged. If this write fails too, the next lock holder removes the unfinished archive.
            let unchanged = LockRecord {
                phase: LockPhase::Idle,
                ..intent
            };
            let _ = self.write_lock_record(&lock, unchanged);
        })?;
        self.finish_replacement(&lock, intent, &lines)?;
        Ok(outcome)
    }

    /// Writes a lock record that announces that another file will replace the tape file.
    pub(crate) fn announce_replacement(
        &self,
        lock: &TapeLock,
        writable: &WritableTape,
    ) -> Result<LockRecord> {
        let intent = LockRecord {
            phase: LockPhase::Replace,
            ..writable.record
        };
        self.write_lock_record(lock, intent)
    }

    /// Completes the replacement of the tape file by a file with this content.
    pub(crate) fn finish_replacement(
        &mut self,
        lock: &TapeLock,
        intent: LockRecord,
        content: &NewContent,
    ) -> Result<()> {
        // Sync in every durability mode: replacements are rare, and an empty file after power loss would lose the tape.
        self.store.sync_parent_dir(&self.path)?;
        self.forget_replaced_file();
        let stat = self.store.stat(&self.path)?;
        let inode = stat.map_or(0, |stat| stat.inode);
        let record = LockRecord {
            sequence: intent.sequence,
            synced: content.size,
            head: content.head,
            ..LockRecord::idle(inode, content.size, content.max_id.get())
        };
        self.write_lock_record(lock, record)?;
        // Ignore errors: a stale index is detected when it is loaded.
        let _ = self.remove_index_files();
        Ok(())
    }

    fn replace_content(
        &self,
        request: ResetRequest,
        writable: &WritableTape,
    ) -> Result<(ResetOutcome, NewContent)> {
        let archive = match &request.archive {
            Some(stamp) => Some(self.link_archive(writable, stamp)?),
            None => None,
        };
        let archived = archive.as_ref().map(|path| path.display().to_string());
        let mut lines = CommitBuffer::new(EntryId::default());
        lines.chain = self.store.is_chained().then(|| ChainState::new(None));
        let mut batch = Batch::new((request.initial_entries)(archived.as_deref()));
        batch.append_to(&mut lines);
        self.store
            .replace_file(&self.path, &lines.bytes, true)
            .inspect_err(|_| {
                let _ = archive.map(|path| self.store.remove_file(&path));
            })?;
        let ids = batch.ids();
        let size = lines.bytes.len() as u64;
        let content = NewContent {
            size,
            max_id: lines.max_id,
            head: lines.chain.and_then(|chain| chain.head(size)),
        };
        Ok((ResetOutcome { archived, ids }, content))
    }

    /// Gives the tape file a second name as an archive. Copies the file if the file system does not support hard links.
    fn link_archive(&self, writable: &WritableTape, stamp: &str) -> Result<PathBuf> {
        let archive = self.unused_archive_path(stamp)?;
        match self.store.link(&self.path, &archive) {
            Err(error) if is_link_unsupported(&error) => {
                let snapshot = self.snapshot_of(&writable.open, writable.record.end);
                self.copy_to_archive(Some(&snapshot), archive)
            }
            linked => linked.describe("archive to", &archive).map(|()| archive),
        }
    }

    fn copy_to_archive(&self, snapshot: Option<&Snapshot>, archive: PathBuf) -> Result<PathBuf> {
        let temp_path = self.store.paths.temp_file(&archive);
        self.store.write_file(&temp_path, true, |file| {
            snapshot.map_or(Ok(()), |snapshot| {
                copy_range(&*snapshot.file, file, 0..snapshot.end)
            })
        })?;
        self.store.rename_file(&temp_path, &archive)?;
        self.store.sync_parent_dir(&archive)?;
        Ok(archive)
    }

    /// Returns the first unused archive path. It stays unused while the caller holds the tape's lock.
    fn unused_archive_path(&self, stamp: &str) -> Result<PathBuf> {
        for number in 0..MAX_ARCHIVES_PER_SECOND {
            let path = self.store.paths.archive_file(&self.tape, stamp, number);
            if self.store.stat(&path)?.is_none() {
                return Ok(path);
            }
        }
        let reason = format!("too many archives have the timestamp `{stamp}`; try again");
        Err(io::Error::new(ErrorKind::AlreadyExists, reason)).describe("archive", &self.path)
    }

    /// Removes the tape and its index. For a fork journal, also removes the lock and lease files, because no later fork
    /// uses its name. They are removed last, so that the lock is held until the end.
    pub(crate) fn discard(&mut self) -> Result<()> {
        if self.store.stat(&self.path)?.is_none() {
            return Ok(());
        }
        let lock = self.lock()?;
        self.forget_replaced_file();
        self.remove_index_files()?;
        self.store.remove_file(&self.path)?;
        if self.tape.is_fork() {
            let paths = &self.store.paths;
            self.store.remove_file(&paths.lock_file(&self.tape))?;
            self.store.remove_file(&paths.lease_file(&self.tape))?;
        } else {
            // The chain of the tape ends, so that `verify` does not report it as missing.
            self.write_lock_record(&lock, LockRecord::idle(0, 0, 0))?;
        }
        drop(lock);
        self.close_files();
        Ok(())
    }
}

fn is_link_unsupported(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Unsupported | ErrorKind::PermissionDenied | ErrorKind::CrossesDevices
    )
}
