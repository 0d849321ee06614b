//! Streams of the entries that pass a line filter.
//!
//! A read is split into blocks. A block consists of the lines that start in it, so blocks are independent of each other
//! and two are filtered in parallel.

use std::{io, ops::Range, sync::Arc};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::{context::StoreContext, open_tapes::OpenTape, read, run_blocking, snapshot::Snapshot};
use crate::{
    Entry, EntryRange, EntryStream, LineFilter, Order, Result, TapeError, TapeName, codec,
    fs::FsFile,
};

/// Size of the first block. It is small because many callers need only a few entries.
const INITIAL_BLOCK_BYTES: u64 = 64 * 1024;
/// Maximum size of a block. Blocks grow by a factor of four up to this size.
const MAX_BLOCK_BYTES: u64 = 512 * 1024;
/// Number of bytes to read at a time when a line extends beyond its block.
const READ_AHEAD_BYTES: usize = 16 * 1024;
/// Number of blocks that are filtered in parallel. More blocks use more memory for little gain in speed.
const MAX_PARALLEL_BLOCKS: usize = 2;

/// A read of one file, as it was when the stream was first polled.
struct FilteredRead {
    store_context: Arc<StoreContext>,
    tape: TapeName,
    snapshot: Snapshot,
    extent: Range<u64>,
    order: Order,
    line_filter: Arc<dyn LineFilter>,
    /// Whether to read on the caller's thread. Reading little from the page cache is faster than waking a thread.
    is_short: bool,
}

/// Returns the entries of a range whose lines pass the filter.
pub(super) fn stream_filtered_entries<'a>(
    store_context: Arc<StoreContext>,
    open_tape: Arc<OpenTape>,
    tape: TapeName,
    (range, line_filter): (EntryRange, Arc<dyn LineFilter>),
) -> EntryStream<'a> {
    let opened = async move {
        match open_tape.try_with_snapshot(|_, snapshot| snapshot) {
            Some(snapshot) if read::is_short_range(&snapshot, range) => {
                FilteredRead::from_snapshot(store_context, tape, snapshot, (range, line_filter))
                    .map(|short| {
                        Some(FilteredRead {
                            is_short: true,
                            ..short
                        })
                    })
            }
            _ => {
                run_blocking(move || FilteredRead::open(store_context, tape, range, line_filter))
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
    let filtered = blocks.try_flatten().map(|block| async {
        let (reader, block) = block?;
        if reader.is_short {
            return reader.filter_block(&block);
        }
        run_blocking(move || reader.filter_block(&block)).await
    });
    Box::pin(
        filtered
            .buffered(MAX_PARALLEL_BLOCKS)
            .map_ok(|entries| stream::iter(entries).map(Ok))
            .try_flatten(),
    )
}

impl FilteredRead {
    fn open(
        store_context: Arc<StoreContext>,
        tape: TapeName,
        range: EntryRange,
        line_filter: Arc<dyn LineFilter>,
    ) -> Result<Option<Self>> {
        let Some(snapshot) = Snapshot::capture(&store_context, &tape)? else {
            return Ok(None);
        };
        Self::from_snapshot(store_context, tape, snapshot, (range, line_filter)).map(Some)
    }

    fn from_snapshot(
        store_context: Arc<StoreContext>,
        tape: TapeName,
        snapshot: Snapshot,
        (range, line_filter): (EntryRange, Arc<dyn LineFilter>),
    ) -> Result<Self> {
        let extent = read::byte_range(&store_context, &tape, &snapshot, range)?;
        Ok(Self {
            store_context,
            tape,
            snapshot,
            extent,
            order: range.order,
            line_filter,
            is_short: false,
        })
    }

    fn filter_block(&self, block: &Range<u64>) -> Result<Vec<Entry>> {
        let read_error = |error| {
            self.store_context.io_error(
                "read",
                &self.store_context.paths.tape_file(&self.tape),
                error,
            )
        };
        let (bytes, start) =
            read_block_lines(&*self.snapshot.file, &self.extent, block).map_err(read_error)?;
        let lines = bytes.get(start..).unwrap_or_default();
        let mut accepted = Vec::new();
        self.line_filter.filter(lines, &mut accepted);
        let entries = accepted
            .into_iter()
            .filter_map(|line| codec::decode(lines.get(line)?));
        Ok(match self.order {
            Order::OldestFirst => entries.collect(),
            Order::NewestFirst => {
                let mut entries: Vec<Entry> = entries.collect();
                entries.reverse();
                entries
            }
        })
    }
}

/// Splits a byte range into blocks of growing size, in reading order.
fn split_into_blocks(extent: Range<u64>, order: Order) -> impl Iterator<Item = Range<u64>> {
    let (mut remaining, mut size) = (extent, INITIAL_BLOCK_BYTES);
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

/// Reads the lines that start in a block. Returns the bytes read and the index of the first such line in them.
fn read_block_lines(
    file: &dyn FsFile,
    extent: &Range<u64>,
    block: &Range<u64>,
) -> io::Result<(Vec<u8>, usize)> {
    // The byte before the block shows whether a line starts exactly at the block.
    let from = block.start.saturating_sub(1).max(extent.start);
    let mut bytes = file.read_range(from, range_length(from, block.end))?;
    let start = if from < block.start {
        memchr::memchr(b'\n', &bytes).map_or(bytes.len(), |newline| newline + 1)
    } else {
        0
    };
    let mut offset = block.end;
    // Complete the last line, unless it started before this block: then an earlier block reads it.
    while start < bytes.len() && offset < extent.end && bytes.last() != Some(&b'\n') {
        let more = file.read_range(
            offset,
            range_length(offset, extent.end).min(READ_AHEAD_BYTES),
        )?;
        let line_rest = memchr::memchr(b'\n', &more).map_or(more.len(), |newline| newline + 1);
        if line_rest == 0 {
            break;
        }
        bytes.extend(more.into_iter().take(line_rest));
        offset += line_rest as u64;
    }
    Ok((bytes, start))
}

fn range_length(start: u64, end: u64) -> usize {
    usize::try_from(end.saturating_sub(start)).unwrap_or(usize::MAX)
}
