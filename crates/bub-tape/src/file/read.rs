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
    Start(Arc<Shared>, TapeName, Span),
    Running(Reader),
    Finished,
}

/// The entries of a stretch, as of the moment the stream is first polled.
pub(crate) fn entries<'a>(shared: Arc<Shared>, tape: TapeName, span: Span) -> EntryStream<'a> {
    let chunks = stream::try_unfold(State::Start(shared, tape, span), |state| async move {
        if matches!(state, State::Finished) {
            return Ok(None);
        }
        blocking(move || step(state)).await.map(Some)
    });
    Box::pin(chunks.map_ok(|chunk| stream::iter(chunk).map(Ok)).try_flatten())
}

fn step(state: State) -> Result<(Vec<Entry>, State)> {
    match state {
        State::Start(shared, tape, span) => match Reader::open(shared, tape, span)? {
            Some(reader) => reader.chunk(),
            None => Ok((Vec::new(), State::Finished)),
        },
        State::Running(reader) => reader.chunk(),
        State::Finished => Ok((Vec::new(), State::Finished)),
    }
}

impl Reader {
    fn open(shared: Arc<Shared>, tape: TapeName, span: Span) -> Result<Option<Self>> {
        let Some(snapshot) = Snapshot::take(&shared, &tape)? else { return Ok(None) };
        let Range { start, end } = extent(&shared, &tape, &snapshot, span)?;
        let direction = match span.order {
            Order::OldestFirst => Direction::Forward(Forward::new(start, end)),
            Order::NewestFirst => Direction::Backward(Backward::new(start, end)),
        };
        Ok(Some(Self { shared, tape, snapshot, direction }))
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
        Ok((entries, if more { State::Running(self) } else { State::Finished }))
    }
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
