//! Archive, reset and removal of a tape: the new is written before the old loses its name.

use std::path::{Path, PathBuf};

use super::{
    batch::{Batch, CommitBuffer},
    context::missing_is_none,
    index,
    lock_record::{LockPhase, LockRecord},
    recovery::copy_range,
    snapshot::Snapshot,
    tape_file::{OpenFile, TapeFile},
};
use crate::{EntryId, ResetOutcome, ResetRequest, Result, fs::OpenMode};

/// Nobody archives one tape this often within a second.
const MAX_ARCHIVES_PER_SECOND: u32 = 10_000;

impl TapeFile {
    /// Copies the tape as it is to a new archive.
    pub(crate) fn archive(&mut self, stamp: &str) -> Result<String> {
        let held = self.lock()?;
        let snapshot = Snapshot::capture(&self.store_context, &self.tape)?;
        let path = self.copy_to_archive(snapshot.as_ref(), stamp)?;
        drop(held);
        Ok(path.display().to_string())
    }

    /// Replaces the tape's content.
    ///
    /// The order is what makes it safe to die at any point: the new content is complete under another name, then the
    /// old content has its archive name, then one rename makes the change.
    pub(crate) fn reset(&mut self, reset: ResetRequest) -> Result<ResetOutcome> {
        let held = self.lock()?;
        let writable = self.make_writable(&held)?;
        let path = self.store_context.layout.tape(&self.tape);
        let intent = self.write_record(
            &held,
            LockRecord {
                phase: LockPhase::Replace,
                ..writable.record
            },
        )?;
        let replaced = self.replace_content(reset, &writable.open, intent.end);
        let (outcome, size) = match replaced {
            Ok(done) => done,
            Err(error) => {
                // The tape itself was not touched; the next holder clears what is left.
                let _ = self.resume_idle(&held, &writable.open, intent);
                return Err(error);
            }
        };
        // Durable in every mode: a reset is rare, and an empty file after a power cut would lose the tape.
        self.store_context.sync_dir_of(&path)?;
        self.forget();
        let stat = self
            .store_context
            .fs
            .stat(&path)
            .map_err(|error| self.error("look at", error))?;
        let max_id = outcome.ids.last().copied().unwrap_or_default().get();
        let record = LockRecord {
            synced: size,
            ..LockRecord::idle(stat.inode, size, max_id)
        };
        self.write_record(
            &held,
            LockRecord {
                sequence: intent.sequence,
                ..record
            },
        )?;
        // A stale index is recognised as such; removing it is tidiness.
        let _ = index::remove(&self.store_context, &self.tape);
        Ok(outcome)
    }

    fn replace_content(
        &self,
        reset: ResetRequest,
        old: &OpenFile,
        end: u64,
    ) -> Result<(ResetOutcome, u64)> {
        let path = self.store_context.layout.tape(&self.tape);
        let archived = match &reset.archive {
            Some(stamp) => Some(
                self.link_archive(&path, old, end, stamp)?
                    .display()
                    .to_string(),
            ),
            None => None,
        };
        let mut lines = CommitBuffer::after(EntryId::default());
        let ids = Batch::new((reset.opening)(archived.as_deref())).write(&mut lines);
        let replaced = self.store_context.replace(&path, &lines.bytes, true);
        if replaced.is_err()
            && let Some(archived) = &archived
        {
            let _ = self.store_context.remove(Path::new(archived));
        }
        replaced?;
        Ok((ResetOutcome { archived, ids }, lines.bytes.len() as u64))
    }

    fn resume_idle(
        &self,
        held: &super::tape_file::TapeLock,
        open: &OpenFile,
        intent: LockRecord,
    ) -> Result<LockRecord> {
        let idle = LockRecord::idle(open.inode, intent.end, intent.max_id);
        self.write_record(
            held,
            LockRecord {
                sequence: intent.sequence,
                synced: intent.synced,
                ..idle
            },
        )
    }

    /// Gives the old content its archive name beside the present one. Where the file system knows no second names,
    /// a copy does.
    fn link_archive(&self, path: &Path, old: &OpenFile, end: u64, stamp: &str) -> Result<PathBuf> {
        for number in 0..MAX_ARCHIVES_PER_SECOND {
            let archive = self.store_context.layout.archive(&self.tape, stamp, number);
            match self.store_context.fs.link(path, &archive) {
                Ok(()) => return Ok(archive),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) if is_unsupported(&error) => {
                    let snapshot = Snapshot {
                        file: old.file.clone(),
                        inode: old.inode,
                        end,
                    };
                    return self.copy_to_archive(Some(&snapshot), stamp);
                }
                Err(error) => return Err(self.store_context.error("archive to", &archive, error)),
            }
        }
        Err(self
            .store_context
            .error("archive", path, std::io::ErrorKind::AlreadyExists.into()))
    }

    fn copy_to_archive(&self, snapshot: Option<&Snapshot>, stamp: &str) -> Result<PathBuf> {
        let archive = self.free_archive(stamp)?;
        let temporary = self.store_context.scratch(&archive);
        let file = self
            .store_context
            .open_write(&temporary, OpenMode::Truncate)?;
        let copied = match snapshot {
            Some(snapshot) => copy_range(&*snapshot.file, &*file, 0, snapshot.end),
            None => Ok(()),
        };
        let finished = copied
            .and_then(|()| file.sync())
            .map_err(|error| self.store_context.error("write", &temporary, error))
            .and_then(|()| self.store_context.move_to(&temporary, &archive));
        if finished.is_err() {
            let _ = self.store_context.remove(&temporary);
        }
        finished?;
        self.store_context.sync_dir_of(&archive)?;
        Ok(archive)
    }

    /// The first archive name that is free; the tape's lock keeps it free.
    fn free_archive(&self, stamp: &str) -> Result<PathBuf> {
        for number in 0..MAX_ARCHIVES_PER_SECOND {
            let archive = self.store_context.layout.archive(&self.tape, stamp, number);
            let stat = missing_is_none(self.store_context.fs.stat(&archive));
            if stat
                .map_err(|error| self.store_context.error("look at", &archive, error))?
                .is_none()
            {
                return Ok(archive);
            }
        }
        Err(self.error("archive", std::io::ErrorKind::AlreadyExists.into()))
    }

    /// Removes the tape and what was derived from it. The lock file goes last, and only because a journal's name is
    /// never used again.
    pub(crate) fn discard(&mut self) -> Result<()> {
        let path = self.store_context.layout.tape(&self.tape);
        let present = missing_is_none(self.store_context.fs.stat(&path))
            .map_err(|error| self.error("look at", error))?;
        if present.is_none() {
            return Ok(());
        }
        let held = self.lock()?;
        self.forget();
        index::remove(&self.store_context, &self.tape)?;
        self.store_context.remove(&path)?;
        if self.tape.is_fork() {
            self.store_context
                .remove(&self.store_context.layout.lock(&self.tape))?;
            self.store_context
                .remove(&self.store_context.layout.lease(&self.tape))?;
        }
        drop(held);
        self.close();
        Ok(())
    }
}

fn is_unsupported(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    matches!(
        error.kind(),
        ErrorKind::Unsupported | ErrorKind::PermissionDenied | ErrorKind::CrossesDevices
    )
}
