//! Archives, resets and removes tapes. New content is complete before it replaces the old content.

use std::path::{Path, PathBuf};

use super::{
    batch::{Batch, CommitBuffer},
    file_ops::not_found_to_none,
    index,
    lock_record::{LockPhase, LockRecord},
    recovery::copy_range,
    snapshot::Snapshot,
    tape_file::{OpenFile, TapeFile},
};
use crate::{EntryId, ResetOutcome, ResetRequest, Result, TapeError, fs::OpenMode};

/// Maximum number of archives of one tape with the same timestamp. Beyond it, archiving fails.
const MAX_ARCHIVES_PER_SECOND: u32 = 10_000;

impl TapeFile {
    /// Copies the tape to a new archive and returns the archive's path.
    pub(crate) fn archive(&mut self, stamp: &str) -> Result<String> {
        let lock = self.lock()?;
        let snapshot = Snapshot::capture(&self.store_context, &self.tape)?;
        let path = self.copy_to_archive(snapshot.as_ref(), stamp)?;
        drop(lock);
        Ok(path.display().to_string())
    }

    /// Replaces the tape's content.
    ///
    /// The process can end at any point without losing data. First the old content gets its archive name. Then the new
    /// content is written to a temporary file. Finally, one rename replaces the tape.
    pub(crate) fn reset(&mut self, request: ResetRequest) -> Result<ResetOutcome> {
        let lock = self.lock()?;
        let writable = self.make_writable(&lock)?;
        let path = self.store_context.paths.tape_file(&self.tape);
        let intent = self.write_lock_record(
            &lock,
            LockRecord {
                phase: LockPhase::Replace,
                ..writable.record
            },
        )?;
        let result = self.replace_content(request, &writable.open, intent.end);
        let (outcome, size) = match result {
            Ok(replaced) => replaced,
            Err(error) => {
                // The tape is unchanged. If this write fails too, the next lock holder removes what is left.
                let _ = self.restore_idle_record(&lock, &writable.open, intent);
                return Err(error);
            }
        };
        // Sync in every durability mode: resets are rare, and an empty file after power loss would lose the tape.
        self.store_context.sync_parent_dir(&path)?;
        self.forget_replaced_file();
        let stat = self
            .store_context
            .fs
            .stat(&path)
            .map_err(|error| self.io_error("inspect", error))?;
        let max_id = outcome.ids.last().copied().unwrap_or_default().get();
        let record = LockRecord {
            synced: size,
            ..LockRecord::idle(stat.inode, size, max_id)
        };
        self.write_lock_record(
            &lock,
            LockRecord {
                sequence: intent.sequence,
                ..record
            },
        )?;
        // Ignore errors: a stale index is detected when it is loaded.
        let _ = index::remove_index_files(&self.store_context, &self.tape);
        Ok(outcome)
    }

    fn replace_content(
        &self,
        request: ResetRequest,
        old_file: &OpenFile,
        end: u64,
    ) -> Result<(ResetOutcome, u64)> {
        let path = self.store_context.paths.tape_file(&self.tape);
        let archived = match &request.archive {
            Some(stamp) => Some(
                self.link_archive(&path, old_file, end, stamp)?
                    .display()
                    .to_string(),
            ),
            None => None,
        };
        let mut lines = CommitBuffer::new(EntryId::default());
        let ids = Batch::new((request.initial_entries)(archived.as_deref())).append_to(&mut lines);
        let result = self.store_context.replace_file(&path, &lines.bytes, true);
        if result.is_err()
            && let Some(archived) = &archived
        {
            let _ = self.store_context.remove_file(Path::new(archived));
        }
        result?;
        Ok((ResetOutcome { archived, ids }, lines.bytes.len() as u64))
    }

    fn restore_idle_record(
        &self,
        lock: &super::tape_file::TapeLock,
        open: &OpenFile,
        intent: LockRecord,
    ) -> Result<LockRecord> {
        let idle = LockRecord::idle(open.inode, intent.end, intent.max_id);
        self.write_lock_record(
            lock,
            LockRecord {
                sequence: intent.sequence,
                synced: intent.synced,
                ..idle
            },
        )
    }

    /// Gives the tape file a second name as an archive. Copies the file if the file system does not support hard links.
    fn link_archive(
        &self,
        path: &Path,
        old_file: &OpenFile,
        end: u64,
        stamp: &str,
    ) -> Result<PathBuf> {
        for number in 0..MAX_ARCHIVES_PER_SECOND {
            let archive = self
                .store_context
                .paths
                .archive_file(&self.tape, stamp, number);
            match self.store_context.fs.link(path, &archive) {
                Ok(()) => return Ok(archive),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) if is_link_unsupported(&error) => {
                    let snapshot = Snapshot {
                        file: old_file.file.clone(),
                        inode: old_file.inode,
                        end,
                    };
                    return self.copy_to_archive(Some(&snapshot), stamp);
                }
                Err(error) => {
                    return Err(self.store_context.io_error("archive to", &archive, error));
                }
            }
        }
        Err(self.archive_names_error(stamp))
    }

    fn copy_to_archive(&self, snapshot: Option<&Snapshot>, stamp: &str) -> Result<PathBuf> {
        let archive = self.unused_archive_path(stamp)?;
        let temp_path = self.store_context.paths.temp_file(&archive);
        let file = self
            .store_context
            .open_for_writing(&temp_path, OpenMode::Truncate)?;
        let copied = match snapshot {
            Some(snapshot) => copy_range(&*snapshot.file, &*file, 0, snapshot.end),
            None => Ok(()),
        };
        let finished = copied
            .and_then(|()| file.sync())
            .map_err(|error| self.store_context.io_error("write", &temp_path, error))
            .and_then(|()| self.store_context.rename_file(&temp_path, &archive));
        if finished.is_err() {
            let _ = self.store_context.remove_file(&temp_path);
        }
        finished?;
        self.store_context.sync_parent_dir(&archive)?;
        Ok(archive)
    }

    /// Returns the first unused archive path. It stays unused while the caller holds the tape's lock.
    fn unused_archive_path(&self, stamp: &str) -> Result<PathBuf> {
        for number in 0..MAX_ARCHIVES_PER_SECOND {
            let archive = self
                .store_context
                .paths
                .archive_file(&self.tape, stamp, number);
            let stat = not_found_to_none(self.store_context.fs.stat(&archive));
            if stat
                .map_err(|error| self.store_context.io_error("inspect", &archive, error))?
                .is_none()
            {
                return Ok(archive);
            }
        }
        Err(self.archive_names_error(stamp))
    }

    /// Builds the error for a timestamp that [`MAX_ARCHIVES_PER_SECOND`] archives already have.
    fn archive_names_error(&self, stamp: &str) -> TapeError {
        let reason = format!("too many archives have the timestamp `{stamp}`; try again");
        let source = std::io::Error::new(std::io::ErrorKind::AlreadyExists, reason);
        self.io_error("archive", source)
    }

    /// Removes the tape and its index. For a fork journal, also removes the lock and lease files, because no later fork
    /// uses its name. They are removed last, so that the lock is held until the end.
    pub(crate) fn discard(&mut self) -> Result<()> {
        let path = self.store_context.paths.tape_file(&self.tape);
        let stat = not_found_to_none(self.store_context.fs.stat(&path))
            .map_err(|error| self.io_error("inspect", error))?;
        if stat.is_none() {
            return Ok(());
        }
        let lock = self.lock()?;
        self.forget_replaced_file();
        index::remove_index_files(&self.store_context, &self.tape)?;
        self.store_context.remove_file(&path)?;
        if self.tape.is_fork() {
            self.store_context
                .remove_file(&self.store_context.paths.lock_file(&self.tape))?;
            self.store_context
                .remove_file(&self.store_context.paths.lease_file(&self.tape))?;
        }
        drop(lock);
        self.close_files();
        Ok(())
    }
}

fn is_link_unsupported(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    matches!(
        error.kind(),
        ErrorKind::Unsupported | ErrorKind::PermissionDenied | ErrorKind::CrossesDevices
    )
}
