//! Recovers a tape from interrupted writes before the next write.
//!
//! The caller must hold the tape's lock. Recovery commits an unfinished batch if all its bytes are on the tape, and
//! removes its bytes otherwise. It also removes an incomplete last line that was written by a program that does not
//! lock the tape. Removed bytes are saved to a separate file, and an event on the tape reports the removal.
//!
//! `verify` and `repair` are separate: they read the complete tape on request, while recovery runs before every write and
//! reads only what the lock record announces.

use std::{io, ops::Range, path::PathBuf};

use serde_json::json;

use super::{
    chain,
    context::{IoResultExt as _, length_to_usize},
    lines,
    lock_record::{LockPhase, LockRecord},
    repair::REPAIRED_EVENT,
    tape_file::{OpenFile, TapeFile, TapeLock, WritableTape},
};
use crate::{Durability, Entry, Result, TapeError, fs::FsFile, time};

const COPY_BYTES: usize = 256 * 1024;
/// Size of a memory page in bytes. The operating system writes files to disk page by page, so
/// [`rewrite_unsynced`](TapeFile::rewrite_unsynced) starts at a page boundary.
const PAGE_BYTES: u64 = 4096;

impl TapeFile {
    /// Recovers the tape if necessary and prepares it for an append.
    pub(crate) fn make_writable(&mut self, lock: &TapeLock) -> Result<WritableTape> {
        let record = LockRecord::read(&*lock.0).describe("read the lock record of", &self.path)?;
        let (open, size) = self.open_current_file()?;
        let matching = record.filter(|record| record.inode == open.inode);
        if let Some(record) = matching.filter(|record| self.is_idle(*record, size)) {
            return Ok(WritableTape {
                open,
                record,
                reports: Vec::new(),
            });
        }
        let mut reports = Vec::new();
        let mut recovered = self.recover(&open, matching, size, &mut reports)?;
        recovered.sequence = record.map_or(0, |record| record.sequence);
        recovered.synced = matching.map_or(0, |record| record.synced.min(recovered.end));
        // The chain continues from its recorded head even if the file was replaced: a removed end must not go unnoticed.
        recovered.head = match record {
            Some(record) => chain::recorded_head(record, &self.snapshot_of(&open, recovered.end))?,
            None => None,
        };
        let phase = matching.map_or(LockPhase::Idle, |record| record.phase);
        if self.has_failed_sync || phase == LockPhase::Suspect {
            self.rewrite_unsynced(&open, recovered.synced, recovered.end)?;
            recovered.synced = recovered.end;
            self.has_failed_sync = false;
        }
        // Sync the record of a finished or undone operation. Otherwise power loss could restore the record of the
        // unfinished batch, and recovery would take later batches for bytes of that batch. Sync the tape first, because
        // the new record says that the tape's bytes are on disk.
        let must_sync = self.store.durability == Durability::Always && phase != LockPhase::Idle;
        if must_sync && let Err(error) = open.file.sync() {
            self.has_failed_sync = true;
            return Err(self.sync_error(error));
        }
        let record = self.write_lock_record(lock, recovered)?;
        if must_sync {
            let synced = lock.0.sync();
            synced.describe("sync the lock record of", &self.path)?;
        }
        Ok(WritableTape {
            open,
            record,
            reports,
        })
    }

    /// Recovers the tape as the phase in its lock record requires. Without a record, or if a program that does not lock
    /// the tape changed it, creates a record from the content of the tape.
    fn recover(
        &mut self,
        open: &OpenFile,
        record: Option<LockRecord>,
        size: u64,
        reports: &mut Vec<Entry>,
    ) -> Result<LockRecord> {
        if let Some(record) = record {
            let batch_end = record.end + record.length;
            let idle = |end, max_id| Ok(LockRecord::idle(open.inode, end, max_id));
            match record.phase {
                LockPhase::Replace => self.remove_unfinished_archive(open.inode)?,
                LockPhase::Batch => {
                    let is_complete = is_batch_complete(&*open.file, size, record);
                    if is_complete.describe("read", &self.path)? {
                        if size == batch_end {
                            return idle(batch_end, record.next_max_id);
                        }
                    } else if (record.end..=batch_end).contains(&size) {
                        if size > record.end {
                            let removed = record.end..size;
                            reports.push(self.truncate_tail(open, removed, "unfinished batch")?);
                        }
                        return idle(record.end, record.max_id);
                    }
                }
                LockPhase::Idle | LockPhase::Suspect => {
                    if record.end == size {
                        return idle(size, record.max_id);
                    }
                }
            }
        }
        let end = self.terminate_last_line(open, size, reports)?;
        self.update_index(&self.snapshot_of(open, end))?;
        let max_id = self.index.summary.max_id.get();
        Ok(LockRecord::idle(open.inode, end, max_id))
    }

    /// Terminates the last line: adds the newline if the line is a complete entry, and removes the line otherwise.
    /// Returns the new size.
    fn terminate_last_line(
        &self,
        open: &OpenFile,
        size: u64,
        reports: &mut Vec<Entry>,
    ) -> Result<u64> {
        let end = lines::end_of_complete_lines(&*open.file, size).describe("read", &self.path)?;
        if end < size {
            reports.push(self.truncate_tail(open, end..size, "torn line")?);
        } else if !lines::ends_with_newline(&*open.file, size).describe("read", &self.path)? {
            let written = open.file.write_all_at(b"\n", size);
            written.describe("write", &self.path)?;
            return Ok(size + 1);
        }
        Ok(end)
    }

    /// Copies the bytes at the end of the tape to a separate file, then removes them from the tape. Returns the event
    /// that reports this.
    fn truncate_tail(&self, open: &OpenFile, removed: Range<u64>, reason: &str) -> Result<Entry> {
        let (offset, bytes) = (removed.start, removed.end - removed.start);
        let kept_path = self.torn_file(&offset.to_string());
        self.store.write_file(&kept_path, true, |copy| {
            copy_range(&*open.file, copy, removed)
        })?;
        let truncated = open.file.set_len(offset);
        truncated.describe("truncate", &self.path)?;
        let kept_path = kept_path.display().to_string();
        tracing::warn!(tape = %self.tape, reason, offset, bytes, kept = %kept_path, "tape.repaired");
        let data = json!({"what": reason, "offset": offset, "bytes": bytes, "kept": kept_path});
        Ok(Entry::event(REPAIRED_EVENT, Some(data)).exclude_from_context())
    }

    /// Returns the path of a new file for bytes that are removed from the tape. `part` says which bytes they are.
    pub(crate) fn torn_file(&self, part: &str) -> PathBuf {
        let name = format!("{}.{part}.{}.torn", self.tape, time::new_run_id());
        self.store.paths.torn_dir().join(name)
    }

    /// Writes the bytes from `synced` to `end` again and syncs them.
    ///
    /// After a failed fsync, the operating system may consider pages clean that are not on disk. Writing them again
    /// makes them dirty.
    fn rewrite_unsynced(&self, open: &OpenFile, synced: u64, end: u64) -> Result<()> {
        let file = &*open.file;
        let range = synced / PAGE_BYTES * PAGE_BYTES..end;
        let checksum = || range_checksum(file, range.clone()).describe("read", &self.path);
        let before = checksum()?;
        for_each_block(file, range.clone(), |offset, block| {
            file.write_all_at(block, offset)
        })
        .and_then(|()| file.sync())
        .map_err(|error| self.sync_error(error))?;
        if checksum()? == before {
            return Ok(());
        }
        Err(TapeError::Damaged {
            path: self.path.display().to_string(),
            detail:
                "after a failed sync, entries were written again, and their content on disk differs"
                    .to_owned(),
        })
    }

    /// Removes the `.bak` name of the current tape file. A reset that was interrupted before it replaced the tape
    /// leaves this second name.
    fn remove_unfinished_archive(&self, inode: u64) -> Result<()> {
        let root = self.store.paths.root();
        let prefix = format!("{}.jsonl.", self.tape);
        for name in self.store.read_dir(root)? {
            let path = root.join(&name);
            let is_archive = name.starts_with(&prefix) && name.strip_suffix(".bak").is_some();
            if is_archive && self.store.is_inode_at(inode, &path).unwrap_or(false) {
                self.store.remove_file(&path)?;
            }
        }
        Ok(())
    }
}

/// Returns whether all bytes of the batch that the lock record announces are on the tape.
pub(crate) fn is_batch_complete(
    file: &dyn FsFile,
    size: u64,
    record: LockRecord,
) -> io::Result<bool> {
    let batch = record.end..record.end + record.length;
    Ok(size >= batch.end && range_checksum(file, batch)? == record.crc)
}

/// Copies a byte range to the start of another file.
pub(crate) fn copy_range(from: &dyn FsFile, to: &dyn FsFile, range: Range<u64>) -> io::Result<()> {
    let start = range.start;
    for_each_block(from, range, |offset, block| {
        to.write_all_at(block, offset - start)
    })
}

/// Returns the checksum of a byte range.
fn range_checksum(file: &dyn FsFile, range: Range<u64>) -> io::Result<u32> {
    let mut hasher = crc32fast::Hasher::new();
    for_each_block(file, range, |_, block| {
        hasher.update(block);
        Ok(())
    })?;
    Ok(hasher.finalize())
}

/// Calls `on_block` with the offset and bytes of each block of a byte range. Bytes after the end of the file are
/// ignored.
fn for_each_block(
    file: &dyn FsFile,
    range: Range<u64>,
    mut on_block: impl FnMut(u64, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut offset = range.start;
    while offset < range.end {
        let length = length_to_usize(range.end - offset).min(COPY_BYTES);
        let block = file.read_range(offset, length)?;
        if block.is_empty() {
            break;
        }
        on_block(offset, &block)?;
        offset += block.len() as u64;
    }
    Ok(())
}
