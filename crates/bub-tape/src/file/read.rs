//! Streams of entries.

use std::{
    ops::{Bound, Range},
    sync::Arc,
};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::{
    blocking,
    context::StoreContext,
    lines::{BackwardLines, ForwardLines},
    open_tapes::OpenTape,
    snapshot::Snapshot,
};
use crate::{Entry, EntryRange, EntryStream, Order, Result, TapeName, codec};

enum Direction {
    Forward(ForwardLines),
    Backward(BackwardLines),
}

/// A read in progress. Between two steps nothing runs and one chunk of lines is in memory.
struct EntryReader {
    store_context: Arc<StoreContext>,
    tape: TapeName,
    snapshot: Snapshot,
    direction: Direction,
}

enum EntryReaderState {
    Start(Arc<StoreContext>, Arc<OpenTape>, TapeName, EntryRange),
    Running(EntryReader),
    Finished,
}

/// The entries of a stretch, as of the moment the stream is first polled.
pub(crate) fn entries<'a>(
    store_context: Arc<StoreContext>,
    slot: Arc<OpenTape>,
    tape: TapeName,
    span: EntryRange,
) -> EntryStream<'a> {
    let chunks = stream::try_unfold(
        EntryReaderState::Start(store_context, slot, tape, span),
        |state| async move {
            match state {
                EntryReaderState::Finished => Ok(None),
                EntryReaderState::Start(store_context, slot, tape, span) => {
                    match slot.try_with_snapshot(|_, snapshot| snapshot) {
                        // What is in the page cache is there sooner than another thread.
                        Some(snapshot) if is_short(&snapshot, span) => {
                            EntryReader::from_snapshot(store_context, tape, snapshot, span)?
                                .chunk()
                                .map(Some)
                        }
                        _ => blocking(move || {
                            step(EntryReaderState::Start(store_context, slot, tape, span))
                        })
                        .await
                        .map(Some),
                    }
                }
                state @ EntryReaderState::Running(_) => {
                    blocking(move || step(state)).await.map(Some)
                }
            }
        },
    );
    Box::pin(
        chunks
            .map_ok(|chunk| stream::iter(chunk).map(Ok))
            .try_flatten(),
    )
}

fn step(state: EntryReaderState) -> Result<(Vec<Entry>, EntryReaderState)> {
    match state {
        EntryReaderState::Start(store_context, slot, tape, span) => {
            match EntryReader::open(store_context, &slot, tape, span)? {
                Some(reader) => reader.chunk(),
                None => Ok((Vec::new(), EntryReaderState::Finished)),
            }
        }
        EntryReaderState::Running(reader) => reader.chunk(),
        EntryReaderState::Finished => Ok((Vec::new(), EntryReaderState::Finished)),
    }
}

impl EntryReader {
    fn open(
        store_context: Arc<StoreContext>,
        slot: &OpenTape,
        tape: TapeName,
        span: EntryRange,
    ) -> Result<Option<Self>> {
        let Some(snapshot) = slot.snapshot(&store_context, &tape)? else {
            return Ok(None);
        };
        Self::from_snapshot(store_context, tape, snapshot, span).map(Some)
    }

    fn from_snapshot(
        store_context: Arc<StoreContext>,
        tape: TapeName,
        snapshot: Snapshot,
        span: EntryRange,
    ) -> Result<Self> {
        let Range { start, end } = extent(&store_context, &tape, &snapshot, span)?;
        let direction = match span.order {
            Order::OldestFirst => Direction::Forward(ForwardLines::new(start, end)),
            Order::NewestFirst => Direction::Backward(BackwardLines::new(start, end)),
        };
        Ok(Self {
            store_context,
            tape,
            snapshot,
            direction,
        })
    }

    fn chunk(mut self) -> Result<(Vec<Entry>, EntryReaderState)> {
        let mut entries = Vec::new();
        let each = |_, line: &[u8]| entries.extend(codec::decode(line));
        let file = &*self.snapshot.file;
        let more = match &mut self.direction {
            Direction::Forward(lines) => lines.advance(file, each),
            Direction::Backward(lines) => lines.advance(file, each),
        };
        let path = self.store_context.layout.tape(&self.tape);
        let more = more.map_err(|error| self.store_context.error("read", &path, error))?;
        Ok((
            entries,
            if more {
                EntryReaderState::Running(self)
            } else {
                EntryReaderState::Finished
            },
        ))
    }
}

/// What is read at once, where the caller stands.
const INLINE_READ_BYTES: u64 = 64 * 1024;

/// Whether a stretch is short, as far as can be told without reading.
pub(super) fn is_short(snapshot: &Snapshot, span: EntryRange) -> bool {
    let start = match span.start {
        Bound::Unbounded => 0,
        Bound::Included(position) | Bound::Excluded(position) => position.get(),
    };
    let end = match span.end {
        Bound::Unbounded => snapshot.end,
        Bound::Included(position) | Bound::Excluded(position) => position.get(),
    };
    end.saturating_sub(start) <= INLINE_READ_BYTES
}

/// The bytes of a stretch.
pub(super) fn extent(
    store_context: &StoreContext,
    tape: &TapeName,
    snapshot: &Snapshot,
    span: EntryRange,
) -> Result<Range<u64>> {
    let line_end = |position: u64| line_end(store_context, tape, snapshot, position);
    let start = match span.start {
        Bound::Unbounded => 0,
        Bound::Included(position) => position.get(),
        Bound::Excluded(position) => line_end(position.get())?,
    };
    let end = match span.end {
        Bound::Unbounded => snapshot.end,
        Bound::Included(position) => line_end(position.get())?,
        Bound::Excluded(position) => position.get().min(snapshot.end),
    };
    Ok(start.min(end)..end)
}

/// Where the line at a position ends.
fn line_end(
    store_context: &StoreContext,
    tape: &TapeName,
    snapshot: &Snapshot,
    position: u64,
) -> Result<u64> {
    let mut lines = ForwardLines::new(position.min(snapshot.end), snapshot.end);
    let mut found = None;
    loop {
        let more = lines.advance(&*snapshot.file, |start, line| {
            found.get_or_insert(start + line.len() as u64);
        });
        let more = more.map_err(|error| {
            store_context.error("read", &store_context.layout.tape(tape), error)
        })?;
        if !more || found.is_some() {
            return Ok(found.unwrap_or(snapshot.end));
        }
    }
}
