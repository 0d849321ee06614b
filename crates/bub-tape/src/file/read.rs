//! Streams of the entries in a range of a tape file.
//!
//! The byte range of a read is split into blocks. A line belongs to the block in which it starts, even if it ends in a
//! later block. Therefore blocks are independent of each other, and two are filtered in parallel.

use std::{
    io,
    ops::{Bound, Range},
    sync::Arc,
};

use futures_util::{StreamExt as _, TryStreamExt as _, future::Either, stream};

use super::{
    context::{IoResultExt as _, length_to_usize},
    lines,
    open_tapes::OpenTape,
    run_blocking,
    snapshot::Snapshot,
};
use crate::{
    Entry, EntryRange, EntryStream, LineFilter, Order, Position, Result, TapeError, codec,
    query::lines::line_ranges,
};

/// Maximum length in bytes of a range that is read on the caller's thread. Reading little from the page cache is faster
/// than waking a thread.
const INLINE_READ_BYTES: u64 = 64 * 1024;
/// Size of the first block. It is small because many callers need only a few entries.
const INITIAL_BLOCK_BYTES: u64 = 16 * 1024;
/// Size of the first block if the newest entry is read first. Each turn looks at the last entry.
const LAST_BLOCK_BYTES: u64 = 4 * 1024;
/// Maximum size of a block. Blocks grow by a factor of four up to this size.
const MAX_BLOCK_BYTES: u64 = 512 * 1024;
/// Number of bytes to read at a time when a line extends beyond its block.
const READ_AHEAD_BYTES: usize = 16 * 1024;
/// Number of blocks that are filtered in parallel. More blocks use more memory for little gain in speed.
const MAX_PARALLEL_BLOCKS: usize = 2;

/// A read of one tape file. It sees the file as it was when the stream was first polled.
struct EntryReader {
    snapshot: Snapshot,
    extent: Range<u64>,
    order: Order,
    line_filter: Option<Arc<dyn LineFilter>>,
    /// Whether all blocks are read on the caller's thread.
    is_short: bool,
}

/// Returns the entries of a range whose lines pass the filter, or all entries without a filter. Between two blocks no
/// thread is in use.
pub(super) fn stream_entries<'a>(
    open_tape: Arc<OpenTape>,
    range: EntryRange,
    line_filter: Option<Arc<dyn LineFilter>>,
) -> EntryStream<'a> {
    let parallel_blocks = if line_filter.is_some() {
        MAX_PARALLEL_BLOCKS
    } else {
        1
    };
    let opened = async move {
        match open_tape.try_with_snapshot(|_, snapshot| snapshot) {
            Some(snapshot) if is_short_range(&snapshot, range) => {
                EntryReader::new(snapshot, range, line_filter, true).map(Some)
            }
            _ => {
                run_blocking(move || {
                    let snapshot = open_tape.snapshot()?;
                    snapshot
                        .map(|snapshot| EntryReader::new(snapshot, range, line_filter, false))
                        .transpose()
                })
                .await
            }
        }
    };
    let blocks = stream::once(opened).map_ok(|reader| {
        stream::iter(reader.map(Arc::new).into_iter().flat_map(|reader| {
            let blocks = split_into_blocks(reader.extent.clone(), reader.order);
            blocks.map(move |block| Ok::<_, TapeError>((Arc::clone(&reader), block)))
        }))
    });
    let entries = blocks.try_flatten().map(|block| async {
        let (reader, block) = block?;
        if reader.is_short {
            return Ok(Either::Left(stream::iter(reader.read_block(&block)?)));
        }
        let entries = run_blocking(move || {
            let entries = reader.read_block(&block)?;
            Ok(entries.collect::<Vec<_>>())
        });
        Ok(Either::Right(stream::iter(entries.await?)))
    });
    Box::pin(
        entries
            .buffered(parallel_blocks)
            .map_ok(|entries| entries.map(Ok))
            .try_flatten(),
    )
}

impl EntryReader {
    fn new(
        snapshot: Snapshot,
        range: EntryRange,
        line_filter: Option<Arc<dyn LineFilter>>,
        is_short: bool,
    ) -> Result<Self> {
        Ok(Self {
            extent: byte_range(&snapshot, range).describe("read", &snapshot.path)?,
            snapshot,
            order: range.order,
            line_filter,
            is_short,
        })
    }

    /// Returns the entries of a block. Each is decoded when it is taken, because many callers need only the last ones.
    fn read_block(&self, block: &Range<u64>) -> Result<impl Iterator<Item = Entry> + Send + use<>> {
        let (bytes, start) = self
            .read_block_lines(block)
            .describe("read", &self.snapshot.path)?;
        let lines = bytes.get(start..).unwrap_or_default();
        let mut ranges = Vec::new();
        match &self.line_filter {
            None => ranges.extend(line_ranges(lines)),
            Some(line_filter) => line_filter.filter(lines, &mut ranges),
        }
        if self.order == Order::NewestFirst {
            ranges.reverse();
        }
        let decode = move |line| codec::decode(bytes.get(start..)?.get::<Range<usize>>(line)?);
        Ok(ranges.into_iter().filter_map(decode))
    }

    /// Reads the lines that start in a block. Returns the bytes read, and the byte offset in them at which the first of
    /// these lines starts.
    fn read_block_lines(&self, block: &Range<u64>) -> io::Result<(Vec<u8>, usize)> {
        let (file, extent) = (&*self.snapshot.file, &self.extent);
        // The byte before the block shows whether a line starts at the first byte of the block.
        let from = block.start.saturating_sub(1).max(extent.start);
        let mut bytes = file.read_range(from, length_to_usize(block.end - from))?;
        let start = if from < block.start {
            memchr::memchr(b'\n', &bytes).map_or(bytes.len(), |newline| newline + 1)
        } else {
            0
        };
        let mut offset = block.end;
        // Complete the last line, unless it started before this block: then an earlier block reads it.
        while start < bytes.len() && offset < extent.end && bytes.last() != Some(&b'\n') {
            let length = length_to_usize(extent.end - offset).min(READ_AHEAD_BYTES);
            let mut more = file.read_range(offset, length)?;
            more.truncate(memchr::memchr(b'\n', &more).map_or(more.len(), |newline| newline + 1));
            if more.is_empty() {
                break;
            }
            offset += more.len() as u64;
            bytes.append(&mut more);
        }
        Ok((bytes, start))
    }
}

/// Splits a byte range into blocks of growing size, in reading order.
fn split_into_blocks(extent: Range<u64>, order: Order) -> impl Iterator<Item = Range<u64>> {
    let mut remaining = extent;
    let mut size = match order {
        Order::OldestFirst => INITIAL_BLOCK_BYTES,
        Order::NewestFirst => LAST_BLOCK_BYTES,
    };
    std::iter::from_fn(move || {
        let length = size.min(remaining.end - remaining.start);
        size = (size * 4).min(MAX_BLOCK_BYTES);
        let block = match order {
            Order::OldestFirst => remaining.start..remaining.start + length,
            Order::NewestFirst => remaining.end - length..remaining.end,
        };
        match order {
            Order::OldestFirst => remaining.start = block.end,
            Order::NewestFirst => remaining.end = block.start,
        }
        (length > 0).then_some(block)
    })
}

/// Returns whether a range is at most [`INLINE_READ_BYTES`] long. Positions are byte offsets in the file, so this reads
/// nothing.
fn is_short_range(snapshot: &Snapshot, range: EntryRange) -> bool {
    let offset = |bound, unbounded| match bound {
        Bound::Unbounded => unbounded,
        Bound::Included(position) | Bound::Excluded(position) => Position::get(position),
    };
    let (start, end) = (offset(range.start, 0), offset(range.end, snapshot.end));
    end.saturating_sub(start) <= INLINE_READ_BYTES
}

/// Returns the byte range in the tape file that contains the entries of a range.
fn byte_range(snapshot: &Snapshot, range: EntryRange) -> io::Result<Range<u64>> {
    let line_end = |position: Position| {
        let start = position.get().min(snapshot.end);
        lines::end_of_first_line(&*snapshot.file, start..snapshot.end)
    };
    let start = match range.start {
        Bound::Unbounded => 0,
        Bound::Included(position) => position.get(),
        Bound::Excluded(position) => line_end(position)?,
    };
    let end = match range.end {
        Bound::Unbounded => snapshot.end,
        Bound::Included(position) => line_end(position)?,
        Bound::Excluded(position) => position.get().min(snapshot.end),
    };
    Ok(start.min(end)..end)
}
