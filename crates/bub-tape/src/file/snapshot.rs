//! The part of a tape that a reader may see at one moment, determined without a lock.

use std::{io, sync::Arc};

use super::{
    context::StoreContext,
    file_ops::not_found_to_none,
    lines,
    lock_record::{LockPhase, LockRecord},
    recovery,
};
use crate::{
    Result, TapeName, codec,
    fs::{FsFile, OpenMode},
};

/// Maximum number of attempts to find the lock record unchanged after reading the file size. A busy writer can change
/// it every time. Then the reader uses the committed end in the last record.
const MAX_SNAPSHOT_ATTEMPTS: usize = 8;

/// The readable part of a tape.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    pub(crate) file: Arc<dyn FsFile>,
    pub(crate) inode: u64,
    /// End of the readable part in bytes. It excludes incomplete batches and torn lines.
    pub(crate) end: u64,
}

impl Snapshot {
    /// Captures the current state of the tape. Returns `None` if the tape does not exist.
    pub(crate) fn capture(store_context: &StoreContext, tape: &TapeName) -> Result<Option<Self>> {
        let path = store_context.paths.tape_file(tape);
        let lock_path = store_context.paths.lock_file(tape);
        let read_error = |error| store_context.io_error("read", &path, error);
        let mut lock = None;
        let mut record = || {
            // The first writer may create the lock file between two reads.
            if lock.is_none() {
                lock = not_found_to_none(store_context.fs.open(&lock_path, OpenMode::Read))?;
            }
            lock.as_deref().map_or(Ok(None), LockRecord::read)
        };
        let mut before = record().map_err(read_error)?;
        for attempt in 0..MAX_SNAPSHOT_ATTEMPTS {
            let Some(file) = not_found_to_none(store_context.fs.open(&path, OpenMode::Read))
                .map_err(read_error)?
            else {
                return Ok(None);
            };
            let stat = file.stat().map_err(read_error)?;
            let after = record().map_err(read_error)?;
            let is_stable = before == after;
            if is_stable || attempt + 1 == MAX_SNAPSHOT_ATTEMPTS {
                let end = readable_end(
                    &*file,
                    stat.size,
                    after.filter(|record| record.inode == stat.inode),
                    is_stable,
                );
                return Ok(Some(Self {
                    end: end.map_err(read_error)?,
                    inode: stat.inode,
                    file: file.into(),
                }));
            }
            before = after;
        }
        Ok(None)
    }
}

fn readable_end(
    file: &dyn FsFile,
    size: u64,
    record: Option<LockRecord>,
    is_stable: bool,
) -> io::Result<u64> {
    match record {
        // The size is older than the record and may be inside a batch. The part that the record calls committed is in
        // the file by now.
        Some(record) if !is_stable => Ok(file.stat()?.size.min(record.end)),
        Some(record) if record.phase == LockPhase::Batch => end_during_batch(file, size, record),
        Some(record) if record.end == size => Ok(size),
        // Written by a program that does not lock.
        _ => end_of_complete_lines(file, size),
    }
}

/// Returns the end of the readable part while a batch is in progress.
///
/// A complete batch is readable, because the next lock holder will commit it. After power loss, such a batch may even
/// have been acknowledged although the idle record is lost.
fn end_during_batch(file: &dyn FsFile, size: u64, record: LockRecord) -> io::Result<u64> {
    let batch_end = record.end + record.length;
    if size >= batch_end && recovery::range_checksum(file, record.end, record.length)? == record.crc
    {
        return end_of_complete_lines(file, size);
    }
    Ok(size.min(record.end))
}

/// Returns the end of the last complete line. A last line without a newline is complete if it is an entry: a partly
/// written line never is one.
pub(crate) fn end_of_complete_lines(file: &dyn FsFile, size: u64) -> io::Result<u64> {
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
