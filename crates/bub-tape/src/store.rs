//! The contract of a store.
//!
//! Everything above a store — queries, views, forks, recovery — is written once on these few
//! operations. They ask nothing that a table with the columns (tape, position, id, kind, name, line) and a
//! transaction could not answer, so a database store needs no change here.

mod helpers;

use std::{
    fmt,
    ops::Bound,
    pin::Pin,
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures_core::Stream;
use serde::{Deserialize, Serialize};

use crate::{
    BlobStore, Entry, EntryId, LineFilter, Order, Result, TapeError, TapeName, TapeSummary,
};

/// A future that can be sent between threads, boxed because stores are trait objects.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Entries as they are read; it holds only a bounded part of the tape in memory.
pub type EntryStream<'a> = Pin<Box<dyn Stream<Item = Result<Entry>> + Send + 'a>>;

/// Where an entry stands on its tape. Only its order means something outside the store that issued it, and only until
/// that tape is reset.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Position(u64);

impl Position {
    /// Wraps a store's own number.
    pub const fn new(position: u64) -> Self {
        Self(position)
    }

    /// The store's own number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// A stretch of a tape, in the order it shall be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryRange {
    /// Where it begins.
    pub start: Bound<Position>,
    /// Where it ends.
    pub end: Bound<Position>,
    /// From which side it is read.
    pub order: Order,
}

impl EntryRange {
    /// The whole tape, oldest first.
    pub const ALL: Self = Self {
        start: Bound::Unbounded,
        end: Bound::Unbounded,
        order: Order::OldestFirst,
    };

    /// What follows a position, without the entry that stands there.
    pub const fn after(position: Position) -> Self {
        Self {
            start: Bound::Excluded(position),
            ..Self::ALL
        }
    }

    /// A position and what follows it.
    pub const fn from(position: Position) -> Self {
        Self {
            start: Bound::Included(position),
            ..Self::ALL
        }
    }

    /// The same stretch up to a position, without the entry that stands there.
    #[must_use]
    pub const fn before(self, position: Position) -> Self {
        Self {
            end: Bound::Excluded(position),
            ..self
        }
    }

    /// The same stretch, latest first.
    #[must_use]
    pub const fn newest_first(self) -> Self {
        Self {
            order: Order::NewestFirst,
            ..self
        }
    }

    /// Whether a position lies in it.
    pub fn contains(&self, position: Position) -> bool {
        use std::ops::RangeBounds as _;
        (self.start, self.end).contains(&position)
    }
}

/// An anchor without its state: enough to find the entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnchorMark {
    /// The id of the anchor entry.
    pub id: EntryId,
    /// Its name.
    pub name: String,
    /// Where it stands.
    pub position: Position,
}

/// Which anchors are wanted. The answer is always in tape order.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum AnchorQuery {
    /// All of them.
    All,
    /// The latest ones, at most so many.
    Latest(usize),
    /// The latest one of that name.
    LatestNamed(String),
    /// The first one of that name behind a position.
    FirstNamedAfter(String, Position),
}

/// Which tapes to list. The answer is sorted by name.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TapeListFilter {
    /// Session tapes: names with exactly one `__`.
    Sessions,
    /// Those of them that may have changed since then: a store that cannot tell lists all.
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

/// What an append did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppendReceipt {
    /// The ids given to the batch, in its order.
    pub ids: Vec<EntryId>,
}

impl AppendReceipt {
    /// The id of the batch's last entry.
    pub fn last(&self) -> Option<EntryId> {
        self.ids.last().copied()
    }
}

/// Makes the entries a tape starts with after a reset, given where the old content was archived.
pub type InitialEntriesFn = Box<dyn FnOnce(Option<&str>) -> Vec<Entry> + Send>;

/// How a tape shall be reset.
pub struct ResetRequest {
    /// The stamp of the archive to keep, or nothing to keep none.
    pub archive: Option<String>,
    /// The new content.
    pub opening: InitialEntriesFn,
}

impl ResetRequest {
    /// Leaves an empty tape.
    pub fn empty(archive: Option<String>) -> Self {
        Self {
            archive,
            opening: Box::new(|_| Vec::new()),
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

/// What a reset did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResetOutcome {
    /// Where the old content is kept.
    pub archived: Option<String>,
    /// The ids of the new content.
    pub ids: Vec<EntryId>,
}

/// How long to wait for a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseWait {
    /// Not at all: `Busy` when it is held.
    No,
    /// At most so long, then `Busy`.
    For(Duration),
    /// Until it is free.
    Forever,
}

/// The right to run turns on a tape; given back when dropped, and by the system when the process dies.
pub struct Lease {
    tape: TapeName,
    _guard: Box<dyn Send + Sync>,
}

impl Lease {
    /// Called by stores; `guard` releases the lease when dropped.
    pub fn new(tape: TapeName, guard: impl Send + Sync + 'static) -> Self {
        Self {
            tape,
            _guard: Box::new(guard),
        }
    }

    /// The tape it is for.
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

/// Where tapes live.
///
/// Implementations must keep these promises, which the conformance suite checks:
/// - A batch is on the tape whole or not at all, and once `append` returned `Ok` it is never lost.
/// - Ids ascend from 1 (after entries that are there already, from the highest one) with any number of
///   writers in any number of processes; the ids of incoming entries are ignored.
/// - A tape that was never written reads as empty; reading creates nothing.
/// - A read sees the tape as it was at some moment after the call, without part of a batch.
/// - Damage that cannot be read is skipped by readers and never reported as an empty tape; errors of the system
///   are errors.
pub trait TapeStore: Send + Sync + fmt::Debug {
    /// The names of tapes.
    fn list(&self, list_filter: TapeListFilter) -> BoxFuture<'_, Result<Vec<TapeName>>>;

    /// Appends a batch atomically and assigns its ids. An empty batch does nothing.
    fn append<'a>(
        &'a self,
        tape: &'a TapeName,
        batch: Vec<Entry>,
    ) -> BoxFuture<'a, Result<AppendReceipt>>;

    /// Reads a stretch of a tape.
    fn read<'a>(&'a self, tape: &'a TapeName, span: EntryRange) -> EntryStream<'a>;

    /// Reads a stretch of a tape like [`read`](Self::read), except that what the sieve rules out may be missing. Stores
    /// that hold lines override it, because searching a long tape is a matter of not decoding it.
    fn read_filtered<'a>(
        &'a self,
        tape: &'a TapeName,
        span: EntryRange,
        line_filter: Arc<dyn LineFilter>,
    ) -> EntryStream<'a> {
        drop(line_filter);
        self.read(tape, span)
    }

    /// The entries with these ids, in tape order; what is not there is left out. Where an id occurs twice the latest
    /// entry is meant.
    fn fetch<'a>(
        &'a self,
        tape: &'a TapeName,
        ids: &'a [EntryId],
    ) -> BoxFuture<'a, Result<Vec<Entry>>>;

    /// Finds anchors without reading the tape.
    fn anchors<'a>(
        &'a self,
        tape: &'a TapeName,
        search: AnchorQuery,
    ) -> BoxFuture<'a, Result<Vec<AnchorMark>>>;

    /// What the derived index knows about the tape.
    fn summary<'a>(&'a self, tape: &'a TapeName) -> BoxFuture<'a, Result<TapeSummary>>;

    /// Keeps a copy of the tape as it is now, under a unique name made from the stamp, and says where.
    fn archive<'a>(&'a self, tape: &'a TapeName, stamp: &'a str) -> BoxFuture<'a, Result<String>>;

    /// Replaces the content of a tape, archiving the old one first when asked to; all of it or nothing.
    fn reset<'a>(
        &'a self,
        tape: &'a TapeName,
        reset: ResetRequest,
    ) -> BoxFuture<'a, Result<ResetOutcome>>;

    /// Removes a tape with everything derived from it. Meant for fork journals; it is no error when it is not there.
    fn discard<'a>(&'a self, tape: &'a TapeName) -> BoxFuture<'a, Result<()>>;

    /// Takes the session lease of a tape.
    fn lease<'a>(&'a self, tape: &'a TapeName, wait: LeaseWait) -> BoxFuture<'a, Result<Lease>>;

    /// Who has the session lease of a tape, if anybody.
    fn lease_holder<'a>(&'a self, tape: &'a TapeName) -> BoxFuture<'a, Result<Option<String>>> {
        Box::pin(async move {
            match self.lease(tape, LeaseWait::No).await {
                Ok(_) => Ok(None),
                Err(TapeError::Busy { holder, .. }) => Ok(Some(holder)),
                Err(error) => Err(error),
            }
        })
    }

    /// The blobs beside the tapes.
    fn blobs(&self) -> Arc<dyn BlobStore>;
}
