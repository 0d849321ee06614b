//! Recovers a tape before it is written to.
//!
//! The caller must hold the tape's lock. Recovery marks an unfinished batch as committed if all its bytes are there,
//! and removes it otherwise. It also removes a torn tail left by a program that does not lock. Removed bytes are saved
//! to a separate file, and an event on the tape reports the removal.

use std::path::PathBuf;

use serde_json::json;

use super::{
    file_ops::not_found_to_none,
    lines,
    lock_record::{LockPhase, LockRecord},
    snapshot::Snapshot,
    tape_file::{OpenFile, TapeFile, TapeLock, WritableTape},
};
use crate::{
    Durability, Entry, Result, TapeError, codec,
    fs::{FsFile, OpenMode},
    time,
};

const COPY_BYTES: usize = 256 * 1024;
/// Size of a memory page in bytes. The operating system writes files to disk page by page, so
/// [`rewrite_unsynced`](TapeFile::rewrite_unsynced) starts at a page boundary.
const PAGE_BYTES: u64 = 4096;

impl TapeFile {
    /// Recovers the tape if necessary and prepares it for an append.
    pub(crate) fn make_writable(&mut self, lock: &TapeLock) -> Result<WritableTape> {
        let record = LockRecord::read(&*lock.0)
            .map_err(|error| self.io_error("read the lock record of", error))?;
        let (open, size) = self.open_current_file()?;
        let matching = record.filter(|record| record.inode == open.inode);
        let sequence = record.map_or(0, |record| record.sequence);
        if let Some(record) = matching.and_then(|record| self.idle_record(record, size)) {
            return Ok(WritableTape {
                open,
                record,
                reports: Vec::new(),
            });
        }
        let mut reports = Vec::new();
        let mut recovered = match matching {
            Some(record) => self.recover_from_record(&open, record, size, &mut reports)?,
            None => self.adopt_unlocked_writes(&open, size, &mut reports)?,
        };
        recovered.sequence = sequence;
        recovered.synced = matching.map_or(0, |record| record.synced.min(recovered.end));
        if self.has_failed_sync || matching.is_some_and(|record| record.phase == LockPhase::Suspect)
        {
            self.rewrite_unsynced(&open, recovered.synced, recovered.end)?;
            recovered.synced = recovered.end;
            self.has_failed_sync = false;
        }
        let was_unfinished = matching.is_some_and(|record| record.phase != LockPhase::Idle);
        if self.store_context.durability == Durability::Os || !was_unfinished {
            return Ok(WritableTape {
                open,
                record: self.write_lock_record(lock, recovered)?,
                reports,
            });
        }
        // The old intent must not come back after power loss: recovery would take batches acknowledged from now on for
        // the rest of its batch. Sync the tape first, because the record claims that its bytes are on disk.
        if let Err(error) = open.file.sync() {
            self.has_failed_sync = true;
            return Err(self.sync_error(error));
        }
        let record = self.write_lock_record(lock, recovered)?;
        let synced = lock.0.sync();
        synced.map_err(|error| self.io_error("sync the lock record of", error))?;
        Ok(WritableTape {
            open,
            record,
            reports,
        })
    }

    /// Returns the current tape file and its size. Opens the file again if it was replaced.
    pub(crate) fn open_current_file(&mut self) -> Result<(OpenFile, u64)> {
        let path = self.store_context.paths.tape_file(&self.tape);
        let stat = not_found_to_none(self.store_context.fs.stat(&path))
            .map_err(|error| self.io_error("inspect", error))?;
        if let (Some(open), Some(stat)) = (&self.open, stat)
            && open.inode == stat.inode
        {
            return Ok((open.clone(), stat.size));
        }
        let file = self
            .store_context
            .open_for_writing(&path, OpenMode::Write)?;
        if stat.is_none() && self.store_context.durability == Durability::Always {
            self.store_context.sync_parent_dir(&path)?;
        }
        let stat = file
            .stat()
            .map_err(|error| self.io_error("inspect", error))?;
        let open = OpenFile {
            file: file.into(),
            inode: stat.inode,
        };
        self.open = Some(open.clone());
        Ok((open, stat.size))
    }

    /// Recovers the tape from the phase in its lock record.
    fn recover_from_record(
        &mut self,
        open: &OpenFile,
        record: LockRecord,
        size: u64,
        reports: &mut Vec<Entry>,
    ) -> Result<LockRecord> {
        match record.phase {
            LockPhase::Batch => self.finish_or_undo_batch(open, record, size, reports),
            LockPhase::Replace => {
                self.remove_unfinished_archive(open.inode)?;
                self.adopt_unlocked_writes(open, size, reports)
            }
            LockPhase::Idle | LockPhase::Suspect if record.end == size => {
                Ok(LockRecord::idle(open.inode, record.end, record.max_id))
            }
            LockPhase::Idle | LockPhase::Suspect => self.adopt_unlocked_writes(open, size, reports),
        }
    }

    /// Commits an unfinished batch if all its bytes are there, and removes its bytes otherwise.
    fn finish_or_undo_batch(
        &mut self,
        open: &OpenFile,
        record: LockRecord,
        size: u64,
        reports: &mut Vec<Entry>,
    ) -> Result<LockRecord> {
        let batch_end = record.end + record.length;
        if size >= batch_end && self.checksum(open, record.end, record.length)? == record.crc {
            if size > batch_end {
                return self.adopt_unlocked_writes(open, size, reports);
            }
            return Ok(LockRecord::idle(open.inode, batch_end, record.next_max_id));
        }
        // The file is longer than with the batch, or shorter than before it: a program that does not lock changed it.
        if size > batch_end || size < record.end {
            return self.adopt_unlocked_writes(open, size, reports);
        }
        if size > record.end {
            reports.push(self.truncate_tail(open, record.end, size, "unfinished batch")?);
        }
        Ok(LockRecord::idle(open.inode, record.end, record.max_id))
    }

    /// Determines the state of a tape that has no lock record, or that another program changed without locking.
    fn adopt_unlocked_writes(
        &mut self,
        open: &OpenFile,
        size: u64,
        reports: &mut Vec<Entry>,
    ) -> Result<LockRecord> {
        let end = self.terminate_last_line(open, size, reports)?;
        let snapshot = Snapshot {
            file: std::sync::Arc::clone(&open.file),
            inode: open.inode,
            end,
        };
        self.update_index(&snapshot)?;
        Ok(LockRecord::idle(
            open.inode,
            end,
            self.index.summary.max_id.get(),
        ))
    }

    /// Terminates the last line: adds the newline if the line is a complete entry, and removes the line otherwise.
    /// Returns the new size.
    fn terminate_last_line(
        &self,
        open: &OpenFile,
        size: u64,
        reports: &mut Vec<Entry>,
    ) -> Result<u64> {
        let read_error = |error| self.io_error("read", error);
        let Some(last) = size.checked_sub(1) else {
            return Ok(0);
        };
        if open.file.read_range(last, 1).map_err(read_error)? == b"\n" {
            return Ok(size);
        }
        let start = lines::start_of_last_line(&*open.file, size).map_err(read_error)?;
        let tail = open
            .file
            .read_range(start, usize::try_from(size - start).unwrap_or(usize::MAX))
            .map_err(read_error)?;
        if codec::decode(&tail).is_some() {
            open.file
                .write_all_at(b"\n", size)
                .map_err(|error| self.io_error("write", error))?;
            return Ok(size + 1);
        }
        reports.push(self.truncate_tail(open, start, size, "torn line")?);
        Ok(start)
    }

    /// Saves the bytes from `start` to a separate file and truncates the tape there. Returns the event that reports it.
    fn truncate_tail(&self, open: &OpenFile, start: u64, end: u64, reason: &str) -> Result<Entry> {
        let kept_path = self.save_removed_bytes(&*open.file, start, end)?;
        open.file
            .set_len(start)
            .map_err(|error| self.io_error("truncate", error))?;
        let kept_path = kept_path.display().to_string();
        let bytes = end - start;
        tracing::warn!(tape = %self.tape, reason, offset = start, bytes, kept = %kept_path, "tape.repaired");
        let data =
            json!({"what": reason, "offset": start, "bytes": end - start, "kept": kept_path});
        Ok(Entry::event("tape.repaired", Some(data)).exclude_from_context())
    }

    fn save_removed_bytes(&self, file: &dyn FsFile, start: u64, end: u64) -> Result<PathBuf> {
        let name = format!("{}.{start}.{}.torn", self.tape, time::new_run_id());
        let path = self.store_context.paths.torn_dir().join(name);
        let copy = self
            .store_context
            .open_for_writing(&path, OpenMode::Truncate)?;
        copy_range(file, &*copy, start, end)
            .and_then(|()| copy.sync())
            .map_err(|error| {
                // Remove the incomplete copy; the bytes are still on the tape.
                let _ = self.store_context.remove_file(&path);
                self.store_context.io_error("write", &path, error)
            })?;
        Ok(path)
    }

    fn checksum(&self, open: &OpenFile, start: u64, length: u64) -> Result<u32> {
        range_checksum(&*open.file, start, length).map_err(|error| self.io_error("read", error))
    }

    /// Writes the bytes from `synced` to `end` again and syncs them.
    ///
    /// After a failed fsync, the operating system may consider pages clean that are not on disk. Writing them again
    /// makes them dirty.
    fn rewrite_unsynced(&self, open: &OpenFile, synced: u64, end: u64) -> Result<()> {
        let start = synced / PAGE_BYTES * PAGE_BYTES;
        let before = self.checksum(open, start, end - start)?;
        let written =
            copy_range(&*open.file, &*open.file, start, end).and_then(|()| open.file.sync());
        written.map_err(|error| self.sync_error(error))?;
        if self.checksum(open, start, end - start)? == before {
            return Ok(());
        }
        let path = self
            .store_context
            .paths
            .tape_file(&self.tape)
            .display()
            .to_string();
        Err(TapeError::Damaged {
            path,
            detail: "entries that were written again have other content".to_owned(),
        })
    }

    pub(crate) fn sync_error(&self, source: std::io::Error) -> TapeError {
        let path = self
            .store_context
            .paths
            .tape_file(&self.tape)
            .display()
            .to_string();
        TapeError::NotDurable {
            path,
            source: source.into(),
        }
    }

    /// Removes the `.bak` name of the current tape file. A reset that was interrupted before it replaced the tape
    /// leaves this second name.
    fn remove_unfinished_archive(&self, inode: u64) -> Result<()> {
        let root = self.store_context.paths.root();
        let names = self
            .store_context
            .fs
            .read_dir(root)
            .map_err(|error| self.store_context.io_error("list", root, error))?;
        let prefix = format!("{}.jsonl.", self.tape);
        let is_archive = |name: &str| {
            name.strip_prefix(&prefix)
                .is_some_and(|rest| rest.strip_suffix(".bak").is_some())
        };
        for name in names.iter().filter(|name| is_archive(name)) {
            let path = root.join(name);
            if self
                .store_context
                .fs
                .stat(&path)
                .is_ok_and(|stat| stat.inode == inode)
            {
                self.store_context.remove_file(&path)?;
            }
        }
        Ok(())
    }
}

/// Copies a byte range to the start of another file, or onto itself if both are the same file.
pub(crate) fn copy_range(
    from: &dyn FsFile,
    to: &dyn FsFile,
    start: u64,
    end: u64,
) -> std::io::Result<()> {
    let is_same_file = std::ptr::addr_eq(from, to);
    let mut offset = start;
    while offset < end {
        let length = usize::try_from(end - offset)
            .unwrap_or(usize::MAX)
            .min(COPY_BYTES);
        let block = from.read_range(offset, length)?;
        if block.is_empty() {
            break;
        }
        to.write_all_at(&block, if is_same_file { offset } else { offset - start })?;
        offset += block.len() as u64;
    }
    Ok(())
}

/// Returns the checksum of a byte range. Bytes after the end of the file are ignored.
pub(crate) fn range_checksum(file: &dyn FsFile, start: u64, length: u64) -> std::io::Result<u32> {
    let mut hasher = crc32fast::Hasher::new();
    let end = start + length;
    let mut offset = start;
    while offset < end {
        let length = usize::try_from(end - offset)
            .unwrap_or(usize::MAX)
            .min(COPY_BYTES);
        let block = file.read_range(offset, length)?;
        if block.is_empty() {
            break;
        }
        hasher.update(&block);
        offset += block.len() as u64;
    }
    Ok(hasher.finalize())
}
