//! The interface of a tape store.
//!
//! Queries, views, forks and fork recovery use only the operations in [`TapeStore`]. A database can implement them with
//! transactions and one table with the columns (tape, position, id, kind, name, line).

use std::{
    fmt,
    ops::Bound,
    pin::Pin,
    slice,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use async_trait::async_trait;
use futures_core::Stream;
use serde::{Deserialize, Serialize};

use crate::{
    BlobStore, ChainProblem, Entry, EntryId, LineFilter, Order, Result, SearchParts, TapeError,
    TapeName, TapeSummary, tape_name::SIDECAR_INFIX,
};

/// A stream of entries that holds only a bounded part of the tape in memory.
pub type EntryStream<'a> = Pin<Box<dyn Stream<Item = Result<Entry>> + Send + 'a>>;

/// The position of an entry on its tape. Only the store that issued it can interpret it.
///
/// Positions ascend in tape order and are valid until the tape is reset.
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

    /// Returns the number that was passed to [`Position::new`]. Only the store interprets it.
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

    /// Sets the order of reading to newest entry first.
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
    /// The latest anchors, at most this number of them.
    Latest(usize),
    /// The latest anchor with this name.
    LatestNamed(String),
    /// The first anchor with this name after a position.
    FirstNamedAfter(String, Position),
}

impl AnchorQuery {
    /// Returns the marks that the query selects. `marks` must contain all anchors of a tape in tape order.
    pub fn select_marks(&self, marks: &[AnchorMark]) -> Vec<AnchorMark> {
        let selected = match self {
            Self::All => marks,
            Self::Latest(count) => {
                let start = marks.len().saturating_sub(*count);
                marks.get(start..).unwrap_or_default()
            }
            Self::LatestNamed(name) => {
                let last = marks.iter().rfind(|mark| mark.name == *name);
                last.map(slice::from_ref).unwrap_or_default()
            }
            Self::FirstNamedAfter(name, after) => {
                let is_selected = |mark: &&AnchorMark| mark.position > *after && mark.name == *name;
                let first = marks.iter().find(is_selected);
                first.map(slice::from_ref).unwrap_or_default()
            }
        };
        selected.to_vec()
    }
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

impl TapeListFilter {
    /// Returns whether the filter selects a tape with this name.
    pub fn includes(&self, name: &TapeName) -> bool {
        match self {
            Self::Sessions | Self::SessionsSince(_) => name.is_session(),
            Self::AllForks => name.is_fork(),
            Self::AllSidecars => name.as_sidecar().is_some(),
            Self::Sidecars(tape) => name
                .as_sidecar()
                .is_some_and(|(owner, _)| owner == tape.as_str()),
            Self::Forks(tape) => name.as_fork().is_some_and(|(owner, _)| {
                let suffix = owner.strip_prefix(tape.as_str());
                suffix.is_some_and(|suffix| suffix.is_empty() || suffix.starts_with(SIDECAR_INFIX))
            }),
        }
    }
}

/// The result of an append.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppendReceipt {
    /// The ids assigned to the entries of the batch, in the order of the entries.
    pub ids: Vec<EntryId>,
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
            ..Self::with_entries(Vec::new())
        }
    }

    /// Creates a request that discards the old entries and writes these instead.
    pub fn with_entries(entries: Vec<Entry>) -> Self {
        Self {
            archive: None,
            initial_entries: Box::new(|_| entries),
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

impl LeaseWait {
    const INITIAL_BACKOFF: Duration = Duration::from_millis(1);
    const MAX_BACKOFF: Duration = Duration::from_millis(25);

    /// Repeats `attempt` with backoff until it returns anything but [`TapeError::Busy`], or the wait is over.
    ///
    /// It polls instead of blocking in the operating system. Dropping the future cancels the wait, and no blocked
    /// thread keeps the runtime from shutting down.
    pub async fn retry_while_busy<T>(self, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        let started = Instant::now();
        let mut backoff = Self::INITIAL_BACKOFF;
        loop {
            let outcome = attempt();
            let is_expired = match self {
                Self::No => true,
                Self::For(timeout) => started.elapsed() >= timeout,
                Self::Forever => false,
            };
            if is_expired || !matches!(outcome, Err(TapeError::Busy { .. })) {
                return outcome;
            }
            tokio::time::sleep(backoff).await;
            backoff = (backoff * 2).min(Self::MAX_BACKOFF);
        }
    }
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

/// Maximum size of a draft in bytes. A store ignores what exceeds it.
pub const MAX_DRAFT_BYTES: usize = 256 * 1024;

/// A store of tapes. Implement it with [`async_trait`](crate::async_trait).
///
/// Implementations must give these guarantees. `testing::check_store` checks them:
/// - A batch is appended completely or not at all. Once `append` has returned `Ok`, the batch is never lost.
/// - Ids ascend with any number of writers in any number of processes. They start after the highest existing id, at 1
///   on an empty tape. The ids of incoming entries are ignored.
/// - A tape that was never written reads as empty. Reading creates nothing.
/// - A read sees the tape as it was at some moment after the call, never a part of a batch.
/// - Readers skip unreadable entries. They never report a damaged tape as empty. I/O errors are returned as errors.
#[async_trait]
pub trait TapeStore: Send + Sync + fmt::Debug {
    /// Returns the names of the selected tapes.
    async fn list(&self, list_filter: TapeListFilter) -> Result<Vec<TapeName>>;

    /// Appends a batch atomically and assigns its ids. An empty batch does nothing.
    async fn append(&self, tape: &TapeName, batch: Vec<Entry>) -> Result<AppendReceipt>;

    /// Reads a range of a tape.
    fn read<'a>(&'a self, tape: &'a TapeName, range: EntryRange) -> EntryStream<'a>;

    /// Reads a range of a tape. May omit entries whose lines the filter rejects.
    ///
    /// The default implementation ignores the filter. Stores that keep entries as lines of JSON override it: searching
    /// a long tape is fast only if most lines are not decoded.
    fn read_filtered<'a>(
        &'a self,
        tape: &'a TapeName,
        range: EntryRange,
        line_filter: Arc<dyn LineFilter>,
    ) -> EntryStream<'a> {
        drop(line_filter);
        self.read(tape, range)
    }

    /// Returns the entries with these ids in tape order. Unknown ids are skipped. If two entries on the
    /// tape have the same id, the later one is returned.
    async fn fetch(&self, tape: &TapeName, ids: &[EntryId]) -> Result<Vec<Entry>>;

    /// Returns the searchable parts of tapes, each restricted to a range.
    ///
    /// The default implementation reads the tapes completely.
    async fn search_parts(&self, scopes: &[(TapeName, EntryRange)]) -> Result<SearchParts> {
        SearchParts::read(self, scopes).await
    }

    /// Returns the anchors that the query selects, without reading the complete tape.
    async fn anchors(&self, tape: &TapeName, query: AnchorQuery) -> Result<Vec<AnchorMark>>;

    /// Returns the summary from the tape's index.
    async fn summary(&self, tape: &TapeName) -> Result<TapeSummary>;

    /// Copies the current content of the tape to an archive. Returns its unique name, which contains `stamp`.
    async fn archive(&self, tape: &TapeName, stamp: &str) -> Result<String>;

    /// Replaces the content of a tape and archives the old content if requested, atomically.
    async fn reset(&self, tape: &TapeName, request: ResetRequest) -> Result<ResetOutcome>;

    /// Removes a tape and all data derived from it, for example a fork journal after its merge. Does nothing if the
    /// tape does not exist.
    async fn discard(&self, tape: &TapeName) -> Result<()>;

    /// Acquires the session lease of a tape.
    async fn lease(&self, tape: &TapeName, wait: LeaseWait) -> Result<Lease>;

    /// Returns the holder of a tape's session lease, or `None` if it is free.
    async fn lease_holder(&self, tape: &TapeName) -> Result<Option<String>> {
        match self.lease(tape, LeaseWait::No).await {
            Ok(_) => Ok(None),
            Err(TapeError::Busy { holder, .. }) => Ok(Some(holder)),
            Err(error) => Err(error),
        }
    }

    /// Appends text to the draft of a tape: a part of an answer that is still being received, and that is not on the
    /// tape yet. A draft should survive the end of the process, up to [`MAX_DRAFT_BYTES`].
    ///
    /// The default implementation keeps no drafts. After a crash, an answer that was being received is then lost.
    async fn append_draft(&self, _tape: &TapeName, _text: &str) -> Result<()> {
        Ok(())
    }

    /// Returns the draft of a tape, or `None` if the tape has none.
    async fn read_draft(&self, _tape: &TapeName) -> Result<Option<String>> {
        Ok(None)
    }

    /// Removes the draft of a tape. Does nothing if the tape has none.
    async fn discard_draft(&self, _tape: &TapeName) -> Result<()> {
        Ok(())
    }

    /// Reads a complete tape and returns the first problem of its hash chain, also if entries may be missing. Stores without
    /// hash chains return `None`.
    async fn chain_problem(&self, _tape: &TapeName) -> Result<Option<ChainProblem>> {
        Ok(None)
    }

    /// Returns the store for blobs that entries refer to.
    fn blobs(&self) -> Arc<dyn BlobStore>;
}
