//! Streams of the entries in a range of a tape file.

use std::{
    ops::{Bound, Range},
    sync::Arc,
};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::{
    context::StoreContext,
    lines::{BackwardLines, ForwardLines},
    open_tapes::OpenTape,
    run_blocking,
    snapshot::Snapshot,
};
use crate::{Entry, EntryRange, EntryStream, Order, Result, TapeName, codec};

enum Direction {
    Forward(ForwardLines),
    Backward(BackwardLines),
}

/// A read in progress. Between two chunks no thread is in use, and at most one chunk of lines is in memory.
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

/// Returns the entries of a range, as of the first poll of the stream.
pub(crate) fn stream_entries<'a>(
    store_context: Arc<StoreContext>,
    open_tape: Arc<OpenTape>,
    tape: TapeName,
    range: EntryRange,
) -> EntryStream<'a> {
    let chunks = stream::try_unfold(
        EntryReaderState::Start(store_context, open_tape, tape, range),
        |state| async move {
            match state {
                EntryReaderState::Finished => Ok(None),
                EntryReaderState::Start(store_context, open_tape, tape, range) => {
                    match open_tape.try_with_snapshot(|_, snapshot| snapshot) {
                        // Reading little from the page cache is faster than waking a thread.
                        Some(snapshot) if is_short_range(&snapshot, range) => {
                            EntryReader::from_snapshot(store_context, tape, snapshot, range)?
                                .read_chunk()
                                .map(Some)
                        }
                        _ => run_blocking(move || {
                            read_next(EntryReaderState::Start(
                                store_context,
                                open_tape,
                                tape,
                                range,
                            ))
                        })
                        .await
                        .map(Some),
                    }
                }
                state @ EntryReaderState::Running(_) => {
                    run_blocking(move || read_next(state)).await.map(Some)
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

fn read_next(state: EntryReaderState) -> Result<(Vec<Entry>, EntryReaderState)> {
    match state {
        EntryReaderState::Start(store_context, open_tape, tape, range) => {
            match EntryReader::open(store_context, &open_tape, tape, range)? {
                Some(reader) => reader.read_chunk(),
                None => Ok((Vec::new(), EntryReaderState::Finished)),
            }
        }
        EntryReaderState::Running(reader) => reader.read_chunk(),
        EntryReaderState::Finished => Ok((Vec::new(), EntryReaderState::Finished)),
    }
}

impl EntryReader {
    fn open(
        store_context: Arc<StoreContext>,
        open_tape: &OpenTape,
        tape: TapeName,
        range: EntryRange,
    ) -> Result<Option<Self>> {
        let Some(snapshot) = open_tape.snapshot(&store_context, &tape)? else {
            return Ok(None);
        };
        Self::from_snapshot(store_context, tape, snapshot, range).map(Some)
    }

    fn from_snapshot(
        store_context: Arc<StoreContext>,
        tape: TapeName,
        snapshot: Snapshot,
        range: EntryRange,
    ) -> Result<Self> {
        let Range { start, end } = byte_range(&store_context, &tape, &snapshot, range)?;
        let direction = match range.order {
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

    fn read_chunk(mut self) -> Result<(Vec<Entry>, EntryReaderState)> {
        let mut entries = Vec::new();
        let on_line = |_, line: &[u8]| entries.extend(codec::decode(line));
        let file = &*self.snapshot.file;
        let has_more = match &mut self.direction {
            Direction::Forward(lines) => lines.read_chunk(file, on_line),
            Direction::Backward(lines) => lines.read_chunk(file, on_line),
        };
        let path = self.store_context.paths.tape_file(&self.tape);
        let has_more =
            has_more.map_err(|error| self.store_context.io_error("read", &path, error))?;
        Ok((
            entries,
            if has_more {
                EntryReaderState::Running(self)
            } else {
                EntryReaderState::Finished
            },
        ))
    }
}

/// Maximum length of a range that is read on the caller's thread.
const INLINE_READ_BYTES: u64 = 64 * 1024;

/// Returns whether a range is at most [`INLINE_READ_BYTES`] long. Uses only the positions in the range and reads
/// nothing.
pub(super) fn is_short_range(snapshot: &Snapshot, range: EntryRange) -> bool {
    let start = match range.start {
        Bound::Unbounded => 0,
        Bound::Included(position) | Bound::Excluded(position) => position.get(),
    };
    let end = match range.end {
        Bound::Unbounded => snapshot.end,
        Bound::Included(position) | Bound::Excluded(position) => position.get(),
    };
    end.saturating_sub(start) <= INLINE_READ_BYTES
}

/// Returns the byte range of an entry range.
pub(super) fn byte_range(
    store_context: &StoreContext,
    tape: &TapeName,
    snapshot: &Snapshot,
    range: EntryRange,
) -> Result<Range<u64>> {
    let line_end = |position: u64| line_end(store_context, tape, snapshot, position);
    let start = match range.start {
        Bound::Unbounded => 0,
        Bound::Included(position) => position.get(),
        Bound::Excluded(position) => line_end(position.get())?,
    };
    let end = match range.end {
        Bound::Unbounded => snapshot.end,
        Bound::Included(position) => line_end(position.get())?,
        Bound::Excluded(position) => position.get().min(snapshot.end),
    };
    Ok(start.min(end)..end)
}

/// Returns the end of the line at a position.
fn line_end(
    store_context: &StoreContext,
    tape: &TapeName,
    snapshot: &Snapshot,
    position: u64,
) -> Result<u64> {
    let mut lines = ForwardLines::new(position.min(snapshot.end), snapshot.end);
    let mut end = None;
    loop {
        let has_more = lines.read_chunk(&*snapshot.file, |start, line| {
            end.get_or_insert(start + line.len() as u64);
        });
        let has_more = has_more.map_err(|error| {
            store_context.io_error("read", &store_context.paths.tape_file(tape), error)
        })?;
        if !has_more || end.is_some() {
            return Ok(end.unwrap_or(snapshot.end));
        }
    }
}
