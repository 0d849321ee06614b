//! What a reader may see of a tape at one moment, without taking any lock.

use std::{io, sync::Arc};

use super::{
    context::{StoreContext, missing_is_none},
    lines,
    lock_record::{LockPhase, LockRecord},
    recovery,
};
use crate::{
    Result, TapeName, codec,
    fs::{FsFile, OpenMode},
};

/// A writer that never rests can keep a reader from seeing the same record twice; then the older end is taken.
const MAX_SNAPSHOT_ATTEMPTS: usize = 8;

/// The readable part of a tape.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    pub(crate) file: Arc<dyn FsFile>,
    pub(crate) inode: u64,
    /// The end of the readable part: no part of a batch, no torn line.
    pub(crate) end: u64,
}

impl Snapshot {
    /// Looks at the tape now; `None` when there is none.
    pub(crate) fn capture(store_context: &StoreContext, tape: &TapeName) -> Result<Option<Self>> {
        let path = store_context.layout.tape(tape);
        let lock_path = store_context.layout.lock(tape);
        let failed = |error| store_context.error("read", &path, error);
        let mut lock = None;
        let mut record = || {
            // The first writer of all may make the file between two looks.
            if lock.is_none() {
                lock = missing_is_none(store_context.fs.open(&lock_path, OpenMode::Read))?;
            }
            lock.as_deref().map_or(Ok(None), LockRecord::read)
        };
        let mut before = record().map_err(failed)?;
        for attempt in 0..MAX_SNAPSHOT_ATTEMPTS {
            let Some(file) =
                missing_is_none(store_context.fs.open(&path, OpenMode::Read)).map_err(failed)?
            else {
                return Ok(None);
            };
            let stat = file.stat().map_err(failed)?;
            let after = record().map_err(failed)?;
            let settled = before == after;
            if settled || attempt + 1 == MAX_SNAPSHOT_ATTEMPTS {
                let end = committed_end(
                    &*file,
                    stat.size,
                    after.filter(|record| record.inode == stat.inode),
                    settled,
                );
                return Ok(Some(Self {
                    end: end.map_err(failed)?,
                    inode: stat.inode,
                    file: file.into(),
                }));
            }
            before = after;
        }
        Ok(None)
    }
}

fn committed_end(
    file: &dyn FsFile,
    size: u64,
    record: Option<LockRecord>,
    settled: bool,
) -> io::Result<u64> {
    match record {
        // The size is older than the record and may lie inside a batch; what the record calls committed is there by now.
        Some(record) if !settled => Ok(file.stat()?.size.min(record.end)),
        Some(record) if record.phase == LockPhase::Batch => visible_end(file, size, record),
        Some(record) if record.end == size => Ok(size),
        // Written by somebody who takes no locks.
        _ => end_of_whole_lines(file, size),
    }
}

/// A batch that is whole will be completed by the next holder, so it is shown already: after a power cut it may have been
/// acknowledged although the note of that is lost.
fn visible_end(file: &dyn FsFile, size: u64, record: LockRecord) -> io::Result<u64> {
    let whole = record.end + record.length;
    if size >= whole && recovery::crc_of_range(file, record.end, record.length)? == record.crc {
        return end_of_whole_lines(file, size);
    }
    Ok(size.min(record.end))
}

/// The end of the last line that is whole. A line without newline counts when it is an entry: no proper beginning of a
/// line is one, so it is not being written.
pub(crate) fn end_of_whole_lines(file: &dyn FsFile, size: u64) -> io::Result<u64> {
    let Some(last) = size.checked_sub(1) else {
        return Ok(0);
    };
    if file.read_range(last, 1)? == b"\n" {
        return Ok(size);
    }
    let start = lines::start_of_last_line(file, size)?;
    let tail = file.read_range(start, usize::try_from(size - start).unwrap_or(usize::MAX))?;
    Ok(if codec::decode(&tail).is_some() {
        size
    } else {
        start
    })
}
