//! The part of a tape that a reader may see at one moment, determined without a lock.

use std::{
    io::{self, BufRead as _},
    path::PathBuf,
    sync::Arc,
};

use super::{
    context::{IoResultExt as _, StoreContext},
    lines,
    lock_record::{LockPhase, LockRecord},
    recovery,
};
use crate::{Result, TapeName, fs::FsFile};

/// Maximum number of attempts to read the file size while the lock record does not change. If a busy writer changes the
/// record during every attempt, the reader uses the end of the committed part from the last record.
const MAX_SNAPSHOT_ATTEMPTS: usize = 8;

/// The readable part of a tape.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<dyn FsFile>,
    pub(crate) inode: u64,
    /// End of the readable part in bytes. It excludes incomplete batches and torn lines.
    pub(crate) end: u64,
}

impl Snapshot {
    /// Determines the readable part of the tape at this moment. Returns `None` if the tape does not exist.
    pub(crate) fn capture(store: &StoreContext, tape: &TapeName) -> Result<Option<Self>> {
        let path = store.paths.tape_file(tape);
        let lock_path = store.paths.lock_file(tape);
        let mut lock = None;
        let mut read_record = || {
            // The first writer may create the lock file between two reads.
            if lock.is_none() {
                lock = store.open_existing(&lock_path)?;
            }
            let record = lock.as_deref().map_or(Ok(None), LockRecord::read);
            record.describe("read", &path)
        };
        let mut before = read_record()?;
        for attempt in 1.. {
            let Some(file) = store.open_existing(&path)? else {
                break;
            };
            let stat = file.stat().describe("read", &path)?;
            let after = read_record()?;
            let is_stable = before == after;
            if is_stable || attempt == MAX_SNAPSHOT_ATTEMPTS {
                let record = after.filter(|record| record.inode == stat.inode);
                let end = readable_end(&*file, stat.size, record, is_stable);
                return Ok(Some(Self {
                    end: end.describe("read", &path)?,
                    inode: stat.inode,
                    file: file.into(),
                    path,
                }));
            }
            before = after;
        }
        Ok(None)
    }

    /// Calls `on_line` with the offset and bytes of each line from the offset `start` on. The last line may lack its
    /// newline.
    pub(crate) fn for_each_line(
        &self,
        start: u64,
        mut on_line: impl FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut reader = lines::scan(&*self.file, start..self.end);
        let (mut offset, mut line) = (start, Vec::new());
        while reader
            .read_until(b'\n', &mut line)
            .describe("read", &self.path)?
            > 0
        {
            on_line(offset, &line)?;
            offset += line.len() as u64;
            line.clear();
        }
        Ok(())
    }
}

fn readable_end(
    file: &dyn FsFile,
    size: u64,
    record: Option<LockRecord>,
    is_stable: bool,
) -> io::Result<u64> {
    match record {
        // The record changed while `size` was read, so `size` may include a part of a batch. The committed part ends at
        // `record.end`.
        Some(record) if !is_stable => Ok(file.stat()?.size.min(record.end)),
        // If all bytes of the announced batch are on the tape, the batch is readable, because the next lock holder will
        // commit it. It may even have been acknowledged: power loss can undo the write that marked the record as idle.
        Some(record)
            if record.phase == LockPhase::Batch
                && !recovery::is_batch_complete(file, size, record)? =>
        {
            Ok(size.min(record.end))
        }
        Some(record) if record.phase != LockPhase::Batch && record.end == size => Ok(size),
        // The tape has no lock record, or a program that does not lock the tape has written to it.
        _ => lines::end_of_complete_lines(file, size),
    }
}
