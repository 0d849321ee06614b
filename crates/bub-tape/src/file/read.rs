//! Streams of entries.

use std::{
    ops::{Bound, Range},
    sync::Arc,
};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::{
    blocking,
    lines::{Backward, Forward},
    shared::Shared,
    slots::Slot,
    snapshot::Snapshot,
};
use crate::{Entry, EntryStream, Order, Result, Span, TapeName, codec};

enum Direction {
    Forward(Forward),
    Backward(Backward),
}

/// A read in progress. Between two steps nothing runs and one chunk of lines is in memory.
struct Reader {
    shared: Arc<Shared>,
    tape: TapeName,
    snapshot: Snapshot,
    direction: Direction,
}

enum State {
    Start(Arc<Shared>, Arc<Slot>, TapeName, Span),
    Running(Reader),
    Finished,
}

/// The entries of a stretch, as of the moment the stream is first polled.
pub(crate) fn entries<'a>(
    shared: Arc<Shared>,
    slot: Arc<Slot>,
    tape: TapeName,
    span: Span,
) -> EntryStream<'a> {
    let chunks = stream::try_unfold(State::Start(shared, slot, tape, span), |state| async move {
        match state {
            State::Finished => Ok(None),
            State::Start(shared, slot, tape, span) => match slot.if_known(|_, snapshot| snapshot) {
                // What is in the page cache is there sooner than another thread.
                Some(snapshot) if is_short(&snapshot, span) => {
                    Reader::at(shared, tape, snapshot, span)?.chunk().map(Some)
                }
                _ => blocking(move || step(State::Start(shared, slot, tape, span)))
                    .await
                    .map(Some),
            },
            state @ State::Running(_) => blocking(move || step(state)).await.map(Some),
        }
    });
    Box::pin(
        chunks
            .map_ok(|chunk| stream::iter(chunk).map(Ok))
            .try_flatten(),
    )
}

fn step(state: State) -> Result<(Vec<Entry>, State)> {
    match state {
        State::Start(shared, slot, tape, span) => match Reader::open(shared, &slot, tape, span)? {
            Some(reader) => reader.chunk(),
            None => Ok((Vec::new(), State::Finished)),
        },
        State::Running(reader) => reader.chunk(),
        State::Finished => Ok((Vec::new(), State::Finished)),
    }
}

impl Reader {
    fn open(shared: Arc<Shared>, slot: &Slot, tape: TapeName, span: Span) -> Result<Option<Self>> {
        let Some(snapshot) = slot.snapshot(&shared, &tape)? else {
            return Ok(None);
        };
        Self::at(shared, tape, snapshot, span).map(Some)
    }

    fn at(shared: Arc<Shared>, tape: TapeName, snapshot: Snapshot, span: Span) -> Result<Self> {
        let Range { start, end } = extent(&shared, &tape, &snapshot, span)?;
        let direction = match span.order {
            Order::OldestFirst => Direction::Forward(Forward::new(start, end)),
            Order::NewestFirst => Direction::Backward(Backward::new(start, end)),
        };
        Ok(Self {
            shared,
            tape,
            snapshot,
            direction,
        })
    }

    fn chunk(mut self) -> Result<(Vec<Entry>, State)> {
        let mut entries = Vec::new();
        let each = |_, line: &[u8]| entries.extend(codec::decode(line));
        let file = &*self.snapshot.file;
        let more = match &mut self.direction {
            Direction::Forward(lines) => lines.advance(file, each),
            Direction::Backward(lines) => lines.advance(file, each),
        };
        let path = self.shared.layout.tape(&self.tape);
        let more = more.map_err(|error| self.shared.error("read", &path, error))?;
        Ok((
            entries,
            if more {
                State::Running(self)
            } else {
                State::Finished
            },
        ))
    }
}

/// What is read at once, where the caller stands.
const SHORT: u64 = 64 * 1024;

/// Whether a stretch is short, as far as can be told without reading.
pub(super) fn is_short(snapshot: &Snapshot, span: Span) -> bool {
    let start = match span.start {
        Bound::Unbounded => 0,
        Bound::Included(position) | Bound::Excluded(position) => position.get(),
    };
    let end = match span.end {
        Bound::Unbounded => snapshot.end,
        Bound::Included(position) | Bound::Excluded(position) => position.get(),
    };
    end.saturating_sub(start) <= SHORT
}

/// The bytes of a stretch.
pub(super) fn extent(
    shared: &Shared,
    tape: &TapeName,
    snapshot: &Snapshot,
    span: Span,
) -> Result<Range<u64>> {
    let line_end = |position: u64| line_end(shared, tape, snapshot, position);
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
fn line_end(shared: &Shared, tape: &TapeName, snapshot: &Snapshot, position: u64) -> Result<u64> {
    let mut lines = Forward::new(position.min(snapshot.end), snapshot.end);
    let mut found = None;
    loop {
        let more = lines.advance(&*snapshot.file, |start, line| {
            found.get_or_insert(start + line.len() as u64);
        });
        let more = more.map_err(|error| shared.error("read", &shared.layout.tape(tape), error))?;
        if !more || found.is_some() {
            return Ok(found.unwrap_or(snapshot.end));
        }
    }
}
