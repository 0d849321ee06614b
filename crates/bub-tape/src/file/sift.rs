//! Streams of the entries that a sieve keeps.
//!
//! The stretch is cut into blocks; each block answers for the lines that begin in it, so blocks need nothing of one
//! another and two are sifted at a time.

use std::{io, ops::Range, sync::Arc};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::{blocking, read, shared::Shared, slots::Slot, snapshot::Snapshot};
use crate::{
    Entry, EntryStream, Order, Result, Sieve, Span, TapeError, TapeName, codec, fs::FsFile,
};

/// Whoever wants the latest few entries shall not pay for a large block.
const FIRST_BLOCK: u64 = 64 * 1024;
const LARGEST_BLOCK: u64 = 512 * 1024;
/// What is read on at a time when a line goes beyond its block.
const OVERHANG: usize = 16 * 1024;
/// Blocks sifted at a time: more than two would hold more memory than they save time.
const AT_A_TIME: usize = 2;

/// A stretch of one file, as it was when the stream was first polled.
struct Stretch {
    shared: Arc<Shared>,
    tape: TapeName,
    snapshot: Snapshot,
    extent: Range<u64>,
    order: Order,
    sieve: Arc<dyn Sieve>,
    /// Sifted where the caller stands: what is in the page cache is there sooner than another thread.
    is_short: bool,
}

/// The entries of a stretch whose lines the sieve keeps.
pub(super) fn entries<'a>(
    shared: Arc<Shared>,
    slot: Arc<Slot>,
    tape: TapeName,
    (span, sieve): (Span, Arc<dyn Sieve>),
) -> EntryStream<'a> {
    let opened = async move {
        match slot.if_known(|_, snapshot| snapshot) {
            Some(snapshot) if read::is_short(&snapshot, span) => {
                Stretch::at(shared, tape, snapshot, (span, sieve)).map(|short| {
                    Some(Stretch {
                        is_short: true,
                        ..short
                    })
                })
            }
            _ => blocking(move || Stretch::open(shared, tape, span, sieve)).await,
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
            .buffered(AT_A_TIME)
            .map_ok(|entries| stream::iter(entries).map(Ok))
            .try_flatten(),
    )
}

impl Stretch {
    fn open(
        shared: Arc<Shared>,
        tape: TapeName,
        span: Span,
        sieve: Arc<dyn Sieve>,
    ) -> Result<Option<Self>> {
        let Some(snapshot) = Snapshot::take(&shared, &tape)? else {
            return Ok(None);
        };
        Self::at(shared, tape, snapshot, (span, sieve)).map(Some)
    }

    fn at(
        shared: Arc<Shared>,
        tape: TapeName,
        snapshot: Snapshot,
        (span, sieve): (Span, Arc<dyn Sieve>),
    ) -> Result<Self> {
        let extent = read::extent(&shared, &tape, &snapshot, span)?;
        Ok(Self {
            shared,
            tape,
            snapshot,
            extent,
            order: span.order,
            sieve,
            is_short: false,
        })
    }

    fn sift(&self, block: &Range<u64>) -> Result<Vec<Entry>> {
        let failed = |error| {
            self.shared
                .error("read", &self.shared.layout.tape(&self.tape), error)
        };
        let (bytes, begin) = lines_of(&*self.snapshot.file, &self.extent, block).map_err(failed)?;
        let lines = bytes.get(begin..).unwrap_or_default();
        let mut kept = Vec::new();
        self.sieve.sift(lines, &mut kept);
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
    let (mut left, mut size) = (extent, FIRST_BLOCK);
    std::iter::from_fn(move || {
        let length = size.min(left.end - left.start);
        size = (size * 4).min(LARGEST_BLOCK);
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
        let more = file.read_range(at, length(at, extent.end).min(OVERHANG))?;
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
