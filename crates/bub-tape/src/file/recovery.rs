//! Putting a tape in order before anything is written to it.
//!
//! Only a holder of the lock does this. An unfinished batch that is whole is completed, one that is not is taken back;
//! a torn tail left by a writer without locks is cut off. What is cut off is kept aside and reported on the
//! tape.

use std::path::PathBuf;

use serde_json::json;

use super::{
    context::missing_is_none,
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
/// What the system writes at once: rewriting less than this could leave the rest of it unwritten.
const PAGE_BYTES: u64 = 4096;

impl TapeFile {
    /// Makes the tape ready to be appended to.
    pub(crate) fn make_writable(&mut self, held: &TapeLock) -> Result<WritableTape> {
        let record = LockRecord::read(&*held.0)
            .map_err(|error| self.error("read the lock record of", error))?;
        let (open, size) = self.open_tape()?;
        let ours = record.filter(|record| record.inode == open.inode);
        let sequence = record.map_or(0, |record| record.sequence);
        if let Some(record) = ours.and_then(|record| self.idle_record(record, size)) {
            return Ok(WritableTape {
                open,
                record,
                reports: Vec::new(),
            });
        }
        let mut reports = Vec::new();
        let mut settled = match ours {
            Some(record) => self.resume(&open, record, size, &mut reports)?,
            None => self.adopt_unlocked_writes(&open, size, &mut reports)?,
        };
        settled.sequence = sequence;
        settled.synced = ours.map_or(0, |record| record.synced.min(settled.end));
        if self.suspect || ours.is_some_and(|record| record.phase == LockPhase::Suspect) {
            self.rewrite(&open, settled.synced, settled.end)?;
            settled.synced = settled.end;
            self.suspect = false;
        }
        let was_open = ours.is_some_and(|record| record.phase != LockPhase::Idle);
        if self.store_context.durability == Durability::Os || !was_open {
            return Ok(WritableTape {
                open,
                record: self.write_record(held, settled)?,
                reports,
            });
        }
        // A loss of power must not bring the intent back: what is acknowledged from now on would pass for its remains. The
        // tape goes first, because the record vouches for it.
        if let Err(error) = open.file.sync() {
            self.suspect = true;
            return Err(self.not_durable(error));
        }
        let record = self.write_record(held, settled)?;
        let synced = held.0.sync();
        synced.map_err(|error| self.error("sync the lock record of", error))?;
        Ok(WritableTape {
            open,
            record,
            reports,
        })
    }

    /// The tape file of the moment: it may have been replaced since it was opened.
    pub(crate) fn open_tape(&mut self) -> Result<(OpenFile, u64)> {
        let path = self.store_context.layout.tape(&self.tape);
        let stat = missing_is_none(self.store_context.fs.stat(&path))
            .map_err(|error| self.error("look at", error))?;
        if let (Some(open), Some(stat)) = (&self.open, stat)
            && open.inode == stat.inode
        {
            return Ok((open.clone(), stat.size));
        }
        let file = self.store_context.open_write(&path, OpenMode::Write)?;
        if stat.is_none() && self.store_context.durability == Durability::Always {
            self.store_context.sync_dir_of(&path)?;
        }
        let stat = file.stat().map_err(|error| self.error("look at", error))?;
        let open = OpenFile {
            file: file.into(),
            inode: stat.inode,
        };
        self.open = Some(open.clone());
        Ok((open, stat.size))
    }

    fn resume(
        &mut self,
        open: &OpenFile,
        record: LockRecord,
        size: u64,
        reports: &mut Vec<Entry>,
    ) -> Result<LockRecord> {
        match record.phase {
            LockPhase::Batch => self.finish_batch(open, record, size, reports),
            LockPhase::Replace => {
                self.drop_unfinished_archive(open.inode)?;
                self.adopt_unlocked_writes(open, size, reports)
            }
            LockPhase::Idle | LockPhase::Suspect if record.end == size => {
                Ok(LockRecord::idle(open.inode, record.end, record.max_id))
            }
            LockPhase::Idle | LockPhase::Suspect => self.adopt_unlocked_writes(open, size, reports),
        }
    }

    fn finish_batch(
        &mut self,
        open: &OpenFile,
        record: LockRecord,
        size: u64,
        reports: &mut Vec<Entry>,
    ) -> Result<LockRecord> {
        let whole = record.end + record.length;
        if size >= whole && self.crc_of(open, record.end, record.length)? == record.crc {
            if size > whole {
                return self.adopt_unlocked_writes(open, size, reports);
            }
            return Ok(LockRecord::idle(open.inode, whole, record.next_max_id));
        }
        // Longer than the batch would have been, or shorter than before it: others wrote here as well.
        if size > whole || size < record.end {
            return self.adopt_unlocked_writes(open, size, reports);
        }
        if size > record.end {
            reports.push(self.cut(open, record.end, size, "unfinished batch")?);
        }
        Ok(LockRecord::idle(open.inode, record.end, record.max_id))
    }

    /// Takes over a tape about which nothing is known, or to which somebody wrote without locks.
    fn adopt_unlocked_writes(
        &mut self,
        open: &OpenFile,
        size: u64,
        reports: &mut Vec<Entry>,
    ) -> Result<LockRecord> {
        let end = self.close_tail(open, size, reports)?;
        let snapshot = Snapshot {
            file: std::sync::Arc::clone(&open.file),
            inode: open.inode,
            end,
        };
        self.index_to(&snapshot)?;
        Ok(LockRecord::idle(
            open.inode,
            end,
            self.index.summary.max_id.get(),
        ))
    }

    /// Ends the last line: an entry gets the newline it lacks, anything else is cut off.
    fn close_tail(&self, open: &OpenFile, size: u64, reports: &mut Vec<Entry>) -> Result<u64> {
        let failed = |error| self.error("read", error);
        let Some(last) = size.checked_sub(1) else {
            return Ok(0);
        };
        if open.file.read_range(last, 1).map_err(failed)? == b"\n" {
            return Ok(size);
        }
        let start = lines::start_of_last_line(&*open.file, size).map_err(failed)?;
        let tail = open
            .file
            .read_range(start, usize::try_from(size - start).unwrap_or(usize::MAX))
            .map_err(failed)?;
        if codec::decode(&tail).is_some() {
            open.file
                .write_all_at(b"\n", size)
                .map_err(|error| self.error("write", error))?;
            return Ok(size + 1);
        }
        reports.push(self.cut(open, start, size, "torn line")?);
        Ok(start)
    }

    /// Keeps a stretch aside, cuts it off and says so.
    fn cut(&self, open: &OpenFile, start: u64, end: u64, what: &str) -> Result<Entry> {
        let kept = self.save_removed_bytes(&*open.file, start, end)?;
        open.file
            .set_len(start)
            .map_err(|error| self.error("cut", error))?;
        let kept = kept.display().to_string();
        let bytes = end - start;
        tracing::warn!(tape = %self.tape, reason = what, offset = start, bytes, %kept, "tape.repaired");
        let data = json!({"what": what, "offset": start, "bytes": end - start, "kept": kept});
        Ok(Entry::event("tape.repaired", Some(data)).outside_context())
    }

    fn save_removed_bytes(&self, file: &dyn FsFile, start: u64, end: u64) -> Result<PathBuf> {
        let name = format!("{}.{start}.{}.torn", self.tape, time::run_id());
        let path = self.store_context.layout.torn().join(name);
        let copy = self.store_context.open_write(&path, OpenMode::Truncate)?;
        copy_range(file, &*copy, start, end)
            .and_then(|()| copy.sync())
            .map_err(|error| {
                // Half a copy helps nobody, and what it was made from is still there.
                let _ = self.store_context.remove(&path);
                self.store_context.error("write", &path, error)
            })?;
        Ok(path)
    }

    fn crc_of(&self, open: &OpenFile, start: u64, length: u64) -> Result<u32> {
        crc_of_range(&*open.file, start, length).map_err(|error| self.error("read", error))
    }

    /// After a failed fsync the system may believe that pages are clean which never reached the disk. Writing them
    /// again makes it try again.
    fn rewrite(&self, open: &OpenFile, synced: u64, end: u64) -> Result<()> {
        let start = synced / PAGE_BYTES * PAGE_BYTES;
        let before = self.crc_of(open, start, end - start)?;
        let written =
            copy_range(&*open.file, &*open.file, start, end).and_then(|()| open.file.sync());
        written.map_err(|error| self.not_durable(error))?;
        if self.crc_of(open, start, end - start)? == before {
            return Ok(());
        }
        let path = self
            .store_context
            .layout
            .tape(&self.tape)
            .display()
            .to_string();
        Err(TapeError::Damaged {
            path,
            detail: "rewritten entries read back differently".to_owned(),
        })
    }

    pub(crate) fn not_durable(&self, source: std::io::Error) -> TapeError {
        let path = self
            .store_context
            .layout
            .tape(&self.tape)
            .display()
            .to_string();
        TapeError::NotDurable {
            path,
            source: source.into(),
        }
    }

    /// A reset that did not get as far as replacing the tape leaves the tape's second name.
    fn drop_unfinished_archive(&self, inode: u64) -> Result<()> {
        let root = self.store_context.layout.root();
        let names = self
            .store_context
            .fs
            .read_dir(root)
            .map_err(|error| self.store_context.error("list", root, error))?;
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
                self.store_context.remove(&path)?;
            }
        }
        Ok(())
    }
}

/// Copies a stretch to the same place of another file's beginning, or of the same file onto itself.
pub(crate) fn copy_range(
    from: &dyn FsFile,
    to: &dyn FsFile,
    start: u64,
    end: u64,
) -> std::io::Result<()> {
    let same = std::ptr::addr_eq(from, to);
    let mut at = start;
    while at < end {
        let wanted = usize::try_from(end - at)
            .unwrap_or(usize::MAX)
            .min(COPY_BYTES);
        let block = from.read_range(at, wanted)?;
        if block.is_empty() {
            break;
        }
        to.write_all_at(&block, if same { at } else { at - start })?;
        at += block.len() as u64;
    }
    Ok(())
}

/// The checksum of a stretch, as far as the file reaches.
pub(crate) fn crc_of_range(file: &dyn FsFile, start: u64, length: u64) -> std::io::Result<u32> {
    let mut hasher = crc32fast::Hasher::new();
    let end = start + length;
    let mut at = start;
    while at < end {
        let wanted = usize::try_from(end - at)
            .unwrap_or(usize::MAX)
            .min(COPY_BYTES);
        let block = file.read_range(at, wanted)?;
        if block.is_empty() {
            break;
        }
        hasher.update(&block);
        at += block.len() as u64;
    }
    Ok(hasher.finalize())
}
