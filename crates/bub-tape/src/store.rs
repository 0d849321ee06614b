//! The interface of a tape store.
//!
//! Queries, views, forks and fork recovery use only the operations in [`TapeStore`]. A database can implement them with
//! transactions and one table with the columns (tape, position, id, kind, name, line).

mod arguments;

use std::{
    fmt,
    ops::Bound,
    pin::Pin,
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures_core::Stream;
pub use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::{
    BlobStore, Entry, EntryId, LineFilter, Order, Result, TapeError, TapeName, TapeSummary,
};

/// A stream of entries that holds only a bounded part of the tape in memory.
pub type EntryStream<'a> = Pin<Box<dyn Stream<Item = Result<Entry>> + Send + 'a>>;

/// The position of an entry on its tape, as the store that issued it defines it.
///
/// Positions ascend in tape order. They are valid until the tape is reset.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Position(u64);

impl Position {
    /// Creates a position from a number that only the store interprets.
    pub const fn new(position: u64) -> Self {
        Self(position)
    }

    /// Returns the number the store created the position from.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// A range of entries and the order to read them in.
///
/// ```
/// use bub_tape::{EntryRange, Position};
///
/// let range = EntryRange::after(Position::new(10)).newest_first();
/// assert!(!range.contains(Position::new(10)));
/// assert!(range.contains(Position::new(11)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryRange {
    /// The start of the range.
    pub start: Bound<Position>,
    /// The end of the range.
    pub end: Bound<Position>,
    /// The order in which entries are read.
    pub order: Order,
}

impl EntryRange {
    /// The complete tape, oldest entry first.
    pub const ALL: Self = Self {
        start: Bound::Unbounded,
        end: Bound::Unbounded,
        order: Order::OldestFirst,
    };

    /// Returns the range after a position; the entry at the position is excluded.
    pub const fn after(position: Position) -> Self {
        Self {
            start: Bound::Excluded(position),
            ..Self::ALL
        }
    }

    /// Returns the range from a position; the entry at the position is included.
    pub const fn starting_at(position: Position) -> Self {
        Self {
            start: Bound::Included(position),
            ..Self::ALL
        }
    }

    /// Ends the range before a position; the entry at the position is excluded.
    #[must_use]
    pub const fn before(self, position: Position) -> Self {
        Self {
            end: Bound::Excluded(position),
            ..self
        }
    }

    /// Reads the range from its newest entry to its oldest.
    #[must_use]
    pub const fn newest_first(self) -> Self {
        Self {
            order: Order::NewestFirst,
            ..self
        }
    }

    /// Returns whether the range contains a position.
    pub fn contains(&self, position: Position) -> bool {
        use std::ops::RangeBounds as _;
        (self.start, self.end).contains(&position)
    }
}

/// The id, name and position of an anchor entry. Its state is only in the entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnchorMark {
    /// The id of the anchor entry.
    pub id: EntryId,
    /// The name of the anchor.
    pub name: String,
    /// The position of the anchor entry.
    pub position: Position,
}

/// Selects anchors. Results are always in tape order.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum AnchorQuery {
    /// All anchors.
    All,
    /// The given number of anchors at the end of the tape, or fewer if the tape has fewer.
    Latest(usize),
    /// The latest anchor with this name.
    LatestNamed(String),
    /// The first anchor with this name after a position.
    FirstNamedAfter(String, Position),
}

/// Selects tapes to list. Results are sorted by name.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TapeListFilter {
    /// Session tapes: names with exactly one `__`.
    Sessions,
    /// Session tapes changed since this time. A store that does not know the time of changes lists all session tapes.
    SessionsSince(SystemTime),
    /// The sidecars of a tape.
    Sidecars(TapeName),
    /// The sidecars of all tapes.
    AllSidecars,
    /// The fork journals of a tape and of its sidecars.
    Forks(TapeName),
    /// The fork journals of all tapes.
    AllForks,
}

/// The result of an append.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppendReceipt {
    /// The ids assigned to the batch, in its order.
    pub ids: Vec<EntryId>,
}

impl AppendReceipt {
    /// Returns the id of the last entry of the batch.
    pub fn last_id(&self) -> Option<EntryId> {
        self.ids.last().copied()
    }
}

/// Creates the first entries of a tape after a reset. The argument is the name of the archive, if one was written.
pub type InitialEntriesFn = Box<dyn FnOnce(Option<&str>) -> Vec<Entry> + Send>;

/// Parameters of a reset.
pub struct ResetRequest {
    /// The timestamp for the name of the archive, or `None` to discard the old entries.
    pub archive: Option<String>,
    /// Creates the new content of the tape.
    pub initial_entries: InitialEntriesFn,
}

impl ResetRequest {
    /// Creates a request that leaves the tape empty.
    pub fn empty(archive: Option<String>) -> Self {
        Self {
            archive,
            initial_entries: Box::new(|_| Vec::new()),
        }
    }
}

impl fmt::Debug for ResetRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResetRequest")
            .field("archive", &self.archive)
            .finish_non_exhaustive()
    }
}

/// The result of a reset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResetOutcome {
    /// The name of the archive with the old entries, if one was written.
    pub archived: Option<String>,
    /// The ids of the new entries.
    pub ids: Vec<EntryId>,
}

/// How long to wait for a lease that another task or process holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseWait {
    /// Do not wait; fail with [`TapeError::Busy`].
    No,
    /// Wait up to this duration, then fail with [`TapeError::Busy`].
    For(Duration),
    /// Wait until the lease is free.
    Forever,
}

/// The exclusive right to run turns of a session. It is released on drop, or by the operating system when the process
/// ends.
pub struct Lease {
    tape: TapeName,
    _guard: Box<dyn Send + Sync>,
}

impl Lease {
    /// Creates a lease. Stores call this; `guard` must release the lease when it is dropped.
    pub fn new(tape: TapeName, guard: impl Send + Sync + 'static) -> Self {
        Self {
            tape,
            _guard: Box::new(guard),
        }
    }

    /// Returns the leased tape.
    pub fn tape(&self) -> &TapeName {
        &self.tape
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("tape", &self.tape)
            .finish_non_exhaustive()
    }
}

/// A store of tapes.
///
/// Implementations must give these guarantees. The conformance suite checks them:
/// - A batch is appended completely or not at all. Once `append` has returned `Ok`, the batch is never lost.
/// - Ids ascend with any number of writers in any number of processes. They start after the highest existing id, at 1
///   on an empty tape. The ids of incoming entries are ignored.
/// - A tape that was never written reads as empty. Reading creates nothing.
/// - A read sees the tape as it was at some moment after the call, never a part of a batch.
/// - Readers skip unreadable entries. They never report a damaged tape as empty. I/O errors are returned as errors.
pub trait TapeStore: Send + Sync + fmt::Debug {
    /// Returns the names of the selected tapes.
    fn list(&self, list_filter: TapeListFilter) -> BoxFuture<'_, Result<Vec<TapeName>>>;

    /// Appends a batch atomically and assigns its ids. An empty batch does nothing.
    fn append<'a>(
        &'a self,
        tape: &'a TapeName,
        batch: Vec<Entry>,
    ) -> BoxFuture<'a, Result<AppendReceipt>>;

    /// Reads a range of a tape.
    fn read<'a>(&'a self, tape: &'a TapeName, range: EntryRange) -> EntryStream<'a>;

    /// Reads a range of a tape, except that entries the filter rejects may be missing.
    ///
    /// The default implementation ignores the filter. Stores that hold lines override it: searching a long tape is fast
    /// only if most lines are not decoded.
    fn read_filtered<'a>(
        &'a self,
        tape: &'a TapeName,
        range: EntryRange,
        line_filter: Arc<dyn LineFilter>,
    ) -> EntryStream<'a> {
        drop(line_filter);
        self.read(tape, range)
    }

    /// Returns the entries with these ids in tape order. Unknown ids are skipped. If an id occurs twice, the later
    /// entry is returned.
    fn fetch<'a>(
        &'a self,
        tape: &'a TapeName,
        ids: &'a [EntryId],
    ) -> BoxFuture<'a, Result<Vec<Entry>>>;

    /// Finds anchors without reading the tape.
    fn anchors<'a>(
        &'a self,
        tape: &'a TapeName,
        query: AnchorQuery,
    ) -> BoxFuture<'a, Result<Vec<AnchorMark>>>;

    /// Returns the summary from the tape's index.
    fn summary<'a>(&'a self, tape: &'a TapeName) -> BoxFuture<'a, Result<TapeSummary>>;

    /// Copies the current content of the tape to an archive. Returns its unique name, which contains `stamp`.
    fn archive<'a>(&'a self, tape: &'a TapeName, stamp: &'a str) -> BoxFuture<'a, Result<String>>;

    /// Replaces the content of a tape and archives the old content if requested, atomically.
    fn reset<'a>(
        &'a self,
        tape: &'a TapeName,
        request: ResetRequest,
    ) -> BoxFuture<'a, Result<ResetOutcome>>;

    /// Removes a tape and all data derived from it, for example a fork journal after its merge. Does nothing if the
    /// tape does not exist.
    fn discard<'a>(&'a self, tape: &'a TapeName) -> BoxFuture<'a, Result<()>>;

    /// Acquires the session lease of a tape.
    fn lease<'a>(&'a self, tape: &'a TapeName, wait: LeaseWait) -> BoxFuture<'a, Result<Lease>>;

    /// Returns the holder of a tape's session lease, or `None` if it is free.
    fn lease_holder<'a>(&'a self, tape: &'a TapeName) -> BoxFuture<'a, Result<Option<String>>> {
        Box::pin(async move {
            match self.lease(tape, LeaseWait::No).await {
                Ok(_) => Ok(None),
                Err(TapeError::Busy { holder, .. }) => Ok(Some(holder)),
                Err(error) => Err(error),
            }
        })
    }

    /// Returns the store for blobs that entries refer to.
    fn blobs(&self) -> Arc<dyn BlobStore>;
}
