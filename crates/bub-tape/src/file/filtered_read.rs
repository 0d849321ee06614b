//! Streams of the entries that a sieve keeps.
//!
//! The stretch is cut into blocks; each block answers for the lines that begin in it, so blocks need nothing of one
//! another and two are sifted at a time.

use std::{io, ops::Range, sync::Arc};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::{blocking, context::StoreContext, open_tapes::OpenTape, read, snapshot::Snapshot};
use crate::{
    Entry, EntryRange, EntryStream, LineFilter, Order, Result, TapeError, TapeName, codec,
    fs::FsFile,
};

/// Whoever wants the latest few entries shall not pay for a large block.
const INITIAL_BLOCK_BYTES: u64 = 64 * 1024;
const MAX_BLOCK_BYTES: u64 = 512 * 1024;
/// What is read on at a time when a line goes beyond its block.
const READ_AHEAD_BYTES: usize = 16 * 1024;
/// Blocks sifted at a time: more than two would hold more memory than they save time.
const MAX_PARALLEL_BLOCKS: usize = 2;

/// A stretch of one file, as it was when the stream was first polled.
struct FilteredRead {
    store_context: Arc<StoreContext>,
    tape: TapeName,
    snapshot: Snapshot,
    extent: Range<u64>,
    order: Order,
    line_filter: Arc<dyn LineFilter>,
    /// Sifted where the caller stands: what is in the page cache is there sooner than another thread.
    is_short: bool,
}

/// The entries of a stretch whose lines the sieve keeps.
pub(super) fn entries<'a>(
    store_context: Arc<StoreContext>,
    slot: Arc<OpenTape>,
    tape: TapeName,
    (span, line_filter): (EntryRange, Arc<dyn LineFilter>),
) -> EntryStream<'a> {
    let opened = async move {
        match slot.try_with_snapshot(|_, snapshot| snapshot) {
            Some(snapshot) if read::is_short(&snapshot, span) => {
                FilteredRead::from_snapshot(store_context, tape, snapshot, (span, line_filter)).map(
                    |short| {
                        Some(FilteredRead {
                            is_short: true,
                            ..short
                        })
                    },
                )
            }
            _ => blocking(move || FilteredRead::open(store_context, tape, span, line_filter)).await,
        }
    };
    let blocks = stream::once(opened).map_ok(|stretch| {
        stream::iter(stretch.map(Arc::new).into_iter().flat_map(|stretch| {
            let blocks = blocks(stretch.extent.clone(), stretch.order);
            blocks.map(move |block| Ok::<_, TapeError>((Arc::clone(&stretch), block)))
        }))
    });
    let sifted = blocks.try_flatten().map(|block| async {
        let (stretch, block) = block?;
        if stretch.is_short {
            return stretch.sift(&block);
        }
        blocking(move || stretch.sift(&block)).await
    });
    Box::pin(
        sifted
            .buffered(MAX_PARALLEL_BLOCKS)
            .map_ok(|entries| stream::iter(entries).map(Ok))
            .try_flatten(),
    )
}

impl FilteredRead {
    fn open(
        store_context: Arc<StoreContext>,
        tape: TapeName,
        span: EntryRange,
        line_filter: Arc<dyn LineFilter>,
    ) -> Result<Option<Self>> {
        let Some(snapshot) = Snapshot::capture(&store_context, &tape)? else {
            return Ok(None);
        };
        Self::from_snapshot(store_context, tape, snapshot, (span, line_filter)).map(Some)
    }

    fn from_snapshot(
        store_context: Arc<StoreContext>,
        tape: TapeName,
        snapshot: Snapshot,
        (span, line_filter): (EntryRange, Arc<dyn LineFilter>),
    ) -> Result<Self> {
        let extent = read::extent(&store_context, &tape, &snapshot, span)?;
        Ok(Self {
            store_context,
            tape,
            snapshot,
            extent,
            order: span.order,
            line_filter,
            is_short: false,
        })
    }

    fn sift(&self, block: &Range<u64>) -> Result<Vec<Entry>> {
        let failed = |error| {
            self.store_context
                .error("read", &self.store_context.layout.tape(&self.tape), error)
        };
        let (bytes, begin) = lines_of(&*self.snapshot.file, &self.extent, block).map_err(failed)?;
        let lines = bytes.get(begin..).unwrap_or_default();
        let mut kept = Vec::new();
        self.line_filter.filter(lines, &mut kept);
        let entries = kept
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

/// The stretch in blocks of growing size, in the order they are wanted.
fn blocks(extent: Range<u64>, order: Order) -> impl Iterator<Item = Range<u64>> {
    let (mut left, mut size) = (extent, INITIAL_BLOCK_BYTES);
    std::iter::from_fn(move || {
        let length = size.min(left.end - left.start);
        size = (size * 4).min(MAX_BLOCK_BYTES);
        let block = match order {
            Order::OldestFirst => left.start..left.start + length,
            Order::NewestFirst => left.end - length..left.end,
        };
        match order {
            Order::OldestFirst => left.start = block.end,
            Order::NewestFirst => left.end = block.start,
        }
        (length > 0).then_some(block)
    })
}

/// The bytes of the lines that begin in a block, behind as many others as the number says.
fn lines_of(
    file: &dyn FsFile,
    extent: &Range<u64>,
    block: &Range<u64>,
) -> io::Result<(Vec<u8>, usize)> {
    // The byte before tells whether a line begins with the block.
    let from = block.start.saturating_sub(1).max(extent.start);
    let mut bytes = file.read_range(from, length(from, block.end))?;
    let begin = if from < block.start {
        memchr::memchr(b'\n', &bytes).map_or(bytes.len(), |newline| newline + 1)
    } else {
        0
    };
    let mut at = block.end;
    // Not for a line that began before: the block it began in reads it.
    while begin < bytes.len() && at < extent.end && bytes.last() != Some(&b'\n') {
        let more = file.read_range(at, length(at, extent.end).min(READ_AHEAD_BYTES))?;
        let used = memchr::memchr(b'\n', &more).map_or(more.len(), |newline| newline + 1);
        if used == 0 {
            break;
        }
        bytes.extend(more.into_iter().take(used));
        at += used as u64;
    }
    Ok((bytes, begin))
}

fn length(start: u64, end: u64) -> usize {
    usize::try_from(end.saturating_sub(start)).unwrap_or(usize::MAX)
}
