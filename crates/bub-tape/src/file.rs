//! A store that keeps tapes in files, with the format and file names of the Python version.
//!
//! ```text
//! <tape>.jsonl                   the tape, one entry per line
//! <tape>.jsonl.<stamp>.bak       archives
//! .bub/locks/<tape>.lock         the write lock and the lock record
//! .bub/leases/<tape>.lease       the session lease
//! .bub/drafts/<tape>.txt         the part of an answer that was received, while a model call runs
//! .bub/index/<tape>.{idx,marks}  the index; may be deleted
//! .bub/search/                   the search index; may be deleted
//! .bub/forks/                    fork journals
//! .bub/torn/                     bytes that repairs removed from tapes
//! .bub/tmp/                      files that are being written
//! .bub/blobs/                    media of entries
//! ```
//!
//! An append takes the write lock and writes an intent to the lock record: offset, length and checksum of the batch.
//! Then it writes the batch and marks the record as idle. If a process takes the lock and finds the record of an
//! unfinished batch, it completes or undoes the batch. Readers take no lock. They compare the lock record before and
//! after they read the file size, and stop before a batch that is being written.
//!
//! With [`Durability::Os`], an acknowledged batch survives the end of the process. With [`Durability::Always`], it also
//! survives power loss, at the cost of one fsync per batch. Batches that arrive during an fsync share the next one.

mod blobs;
mod chain;
mod chain_report;
mod commit;
mod context;
mod drafts;
mod index;
mod lease;
mod lines;
mod lock_record;
mod open_tapes;
mod paths;
mod read;
mod recovery;
mod repair;
mod replace;
mod scan;
mod search_index;
mod snapshot;
mod tape_file;
mod unused;
mod verify;

pub(crate) use self::search_index::TapeLines;
pub use self::{
    chain::ExportSeal,
    chain_report::{ChainProblem, ChainReport, MissingTape, ProvenEntry, UnprovenEntry},
    repair::RepairReport,
    unused::{UnusedFile, UnusedFileKind},
    verify::{Damage, VerifyReport},
};

use std::{
    collections::HashSet,
    io,
    path::PathBuf,
    sync::{Arc, LazyLock, Weak, atomic::Ordering},
};

use async_trait::async_trait;
use futures_util::StreamExt as _;
use tokio::sync::{Semaphore, SemaphorePermit, oneshot};

use self::{
    blobs::FileBlobs,
    commit::{Batch, PendingBatch},
    context::StoreContext,
    open_tapes::OpenTapes,
    search_index::SearchIndex,
    tape_file::TapeFile,
};
use crate::{
    AnchorMark, AnchorQuery, AppendReceipt, BlobStore, Entry, EntryId, EntryRange, EntryStream,
    Lease, LeaseWait, LineFilter, ResetOutcome, ResetRequest, Result, SearchParts, TapeError,
    TapeListFilter, TapeName, TapeStore, TapeSummary,
    fs::{Fs, RealFs},
};

/// The failures that an acknowledged append survives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Durability {
    /// An append survives the end of the process, for example by a crash.
    #[default]
    Os,
    /// An append also survives power loss, because every batch is synced to disk.
    Always,
}

/// Maximum distance, in ids, from a requested entry to the latest anchor. Up to this distance, the store reads
/// backwards from the latest anchor. For older entries, it is faster to find a nearer anchor in the list of all
/// anchors.
const MAX_SCAN_BACK: i64 = 1_000;

/// A store that keeps tapes as files in a directory. Clones share their open files.
///
/// ```
/// use bub_tape::{Durability, Entry, EntryRange, FileStore, Tape, TapeName};
/// # let directory = tempfile::tempdir()?;
/// # let directory = directory.path();
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let store = FileStore::new(directory, Durability::Os);
/// let tape = Tape::new(std::sync::Arc::new(store), TapeName::new("demo__tape")?);
/// tape.append(Entry::message("user", "hello")).await?;
/// assert_eq!(tape.entries(EntryRange::ALL).await?.len(), 1);
/// # Ok::<(), bub_tape::TapeError>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct FileStore {
    store: Arc<StoreContext>,
    open_tapes: Arc<OpenTapes>,
}

impl FileStore {
    /// Creates a store for a directory. The first append creates the directory if it does not exist.
    pub fn new(root: impl Into<PathBuf>, durability: Durability) -> Self {
        Self::with_fs(root, durability, Arc::new(RealFs))
    }

    /// Creates a store that uses another file system, for tests.
    pub fn with_fs(root: impl Into<PathBuf>, durability: Durability, fs: Arc<dyn Fs>) -> Self {
        let open_tapes = Arc::new_cyclic(|open_tapes| {
            let open_tapes = Weak::clone(open_tapes);
            let store = StoreContext::new(fs, open_tapes, root.into(), durability);
            OpenTapes::new(Arc::new(store))
        });
        Self {
            store: Arc::clone(&open_tapes.store),
            open_tapes,
        }
    }

    /// Adds a hash chain to new entries, also in all clones of the store; see [`FileStore::verify_chain`].
    #[must_use]
    pub fn with_chain(self) -> Self {
        self.store.set_chained();
        self
    }

    /// Limits how many bytes of tapes a search indexes; 256 MB by default. The rest is left for the next search.
    #[must_use]
    pub fn with_index_limit(self, bytes: u64) -> Self {
        self.store.index_limit.store(bytes, Ordering::Relaxed);
        self
    }

    /// Deletes the index of a tape and rebuilds it.
    pub async fn reindex(&self, tape: &TapeName) -> Result<TapeSummary> {
        self.with_tape_file(tape, TapeFile::rebuild_index).await
    }

    /// Returns the path of a tape's file, which may not exist.
    pub fn path(&self, tape: &TapeName) -> PathBuf {
        self.store.paths.tape_file(tape)
    }

    /// Runs an operation on the files of a tape.
    async fn with_tape_file<T: Send + 'static>(
        &self,
        tape: &TapeName,
        work: impl FnOnce(&mut TapeFile) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let open_tape = self.open_tapes.get_or_create(tape);
        run_blocking(move || work(&mut open_tape.lock_tape_file())).await
    }

    /// Calls `read` with the summary in memory, if it covers the complete tape. Never waits.
    fn try_with_summary<T>(
        &self,
        tape: &TapeName,
        read: impl FnOnce(&TapeSummary) -> T,
    ) -> Option<T> {
        let open_tape = self.open_tapes.get_or_create(tape);
        open_tape.try_with_snapshot(|tape_file, _| read(&tape_file.index.summary))
    }

    fn list_tapes(store: &StoreContext, list_filter: &TapeListFilter) -> Result<Vec<TapeName>> {
        let directory = match list_filter {
            TapeListFilter::Forks(_) | TapeListFilter::AllForks => store.paths.forks_dir(),
            _ => store.paths.root().to_path_buf(),
        };
        let names = store.read_dir(&directory)?;
        let stems = names.iter().filter_map(|name| name.strip_suffix(".jsonl"));
        let mut tapes: Vec<_> = stems.filter_map(|stem| TapeName::new(stem).ok()).collect();
        tapes.retain(|tape| list_filter.includes(tape));
        if let TapeListFilter::SessionsSince(since) = list_filter {
            tapes.retain(|tape| {
                let stat = store.stat(&store.paths.tape_file(tape)).ok().flatten();
                stat.and_then(|stat| stat.modified)
                    .is_none_or(|modified| modified >= *since)
            });
        }
        tapes.sort();
        Ok(tapes)
    }

    /// Returns an anchor shortly after an id, as a starting point for reading backwards to the entry with that id.
    async fn anchor_after(&self, tape: &TapeName, id: EntryId) -> Result<Option<AnchorMark>> {
        let latest = self.anchors(tape, AnchorQuery::Latest(1)).await?.pop();
        let last = latest.filter(|last| last.id > id);
        match last {
            // Requested entries are usually recent. Read the list of all anchors only for older ones.
            Some(last) if last.id.get() - id.get() > MAX_SCAN_BACK => {
                let marks = self.anchors(tape, AnchorQuery::All).await?;
                Ok(marks.into_iter().find(|mark| mark.id > id))
            }
            last => Ok(last),
        }
    }
}

#[async_trait]
impl TapeStore for FileStore {
    async fn list(&self, list_filter: TapeListFilter) -> Result<Vec<TapeName>> {
        // List on this thread: there are few fork journals, and every turn lists them.
        if matches!(list_filter, TapeListFilter::Forks(_)) {
            return Self::list_tapes(&self.store, &list_filter);
        }
        let store = Arc::clone(&self.store);
        run_blocking(move || Self::list_tapes(&store, &list_filter)).await
    }

    async fn append(&self, tape: &TapeName, batch: Vec<Entry>) -> Result<AppendReceipt> {
        if batch.is_empty() {
            return Ok(AppendReceipt { ids: Vec::new() });
        }
        let open_tape = self.open_tapes.get_or_create(tape);
        let (sender, receipt) = oneshot::channel();
        open_tape.enqueue(PendingBatch {
            batch: Batch::new(batch),
            sender,
        });
        // Try to write on this thread. If the tape is not locked, writing to the page cache is faster than waking
        // another thread.
        if self.store.durability == Durability::Always || !open_tape.try_commit_queued() {
            run_blocking(move || {
                open_tape.commit_queued();
                Ok(())
            })
            .await?;
        }
        receipt.await.unwrap_or_else(|_| Err(shutdown_error()))
    }

    fn read<'a>(&'a self, tape: &'a TapeName, range: EntryRange) -> EntryStream<'a> {
        read::stream_entries(self.open_tapes.get_or_create(tape), range, None)
    }

    fn read_filtered<'a>(
        &'a self,
        tape: &'a TapeName,
        range: EntryRange,
        line_filter: Arc<dyn LineFilter>,
    ) -> EntryStream<'a> {
        let open_tape = self.open_tapes.get_or_create(tape);
        read::stream_entries(open_tape, range, Some(line_filter))
    }

    async fn fetch(&self, tape: &TapeName, ids: &[EntryId]) -> Result<Vec<Entry>> {
        let mut missing: HashSet<EntryId> = ids.iter().copied().collect();
        let (Some(lowest), Some(highest)) = (ids.iter().min(), ids.iter().max()) else {
            return Ok(Vec::new());
        };
        let range = match self.anchor_after(tape, *highest).await? {
            Some(mark) => EntryRange::ALL.before(mark.position),
            None => EntryRange::ALL,
        };
        let mut stream = self.read(tape, range.newest_first());
        let mut entries = Vec::new();
        while let Some(entry) = stream.next().await.transpose()? {
            if entry.id < *lowest || missing.is_empty() {
                break;
            }
            if missing.remove(&entry.id) {
                entries.push(entry);
            }
        }
        entries.reverse();
        Ok(entries)
    }

    async fn anchors(&self, tape: &TapeName, query: AnchorQuery) -> Result<Vec<AnchorMark>> {
        if query == AnchorQuery::Latest(1)
            && let Some(last) = self.try_with_summary(tape, |summary| summary.last_anchor.clone())
        {
            return Ok(last.into_iter().collect());
        }
        self.with_tape_file(tape, move |tape_file| tape_file.anchors(&query))
            .await
    }

    async fn summary(&self, tape: &TapeName) -> Result<TapeSummary> {
        match self.try_with_summary(tape, TapeSummary::clone) {
            Some(summary) => Ok(summary),
            None => self.with_tape_file(tape, TapeFile::summary).await,
        }
    }

    async fn search_parts(&self, scopes: &[(TapeName, EntryRange)]) -> Result<SearchParts> {
        let (store, scopes) = (Arc::clone(&self.store), scopes.to_vec());
        run_blocking(move || SearchIndex::search_parts(&store, &scopes)).await
    }

    async fn archive(&self, tape: &TapeName, stamp: &str) -> Result<String> {
        let stamp = stamp.to_owned();
        self.with_tape_file(tape, move |tape_file| tape_file.archive(&stamp))
            .await
    }

    async fn reset(&self, tape: &TapeName, request: ResetRequest) -> Result<ResetOutcome> {
        self.with_tape_file(tape, move |tape_file| tape_file.reset(request))
            .await
    }

    async fn discard(&self, tape: &TapeName) -> Result<()> {
        self.with_tape_file(tape, TapeFile::discard).await
    }

    async fn chain_problem(&self, tape: &TapeName) -> Result<Option<ChainProblem>> {
        Ok(self.verify_chain(tape, None).await?.into_problem())
    }

    async fn lease(&self, tape: &TapeName, wait: LeaseWait) -> Result<Lease> {
        wait.retry_while_busy(|| lease::try_acquire_lease(&self.open_tapes, tape))
            .await
    }

    async fn lease_holder(&self, tape: &TapeName) -> Result<Option<String>> {
        Ok(lease::lease_holder(&self.store, tape))
    }

    async fn append_draft(&self, tape: &TapeName, text: &str) -> Result<()> {
        let (store, tape, text) = (Arc::clone(&self.store), tape.clone(), text.to_owned());
        run_blocking(move || store.append_draft(&tape, &text)).await
    }

    async fn read_draft(&self, tape: &TapeName) -> Result<Option<String>> {
        self.store.read_draft(tape)
    }

    async fn discard_draft(&self, tape: &TapeName) -> Result<()> {
        self.store.discard_draft(tape)
    }

    fn blobs(&self) -> Arc<dyn BlobStore> {
        Arc::new(FileBlobs(Arc::clone(&self.store)))
    }
}

/// Limits concurrent file operations. More threads use memory without improving throughput.
static IO_PERMITS: LazyLock<Semaphore> = LazyLock::new(|| {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Semaphore::new((4 * cores).clamp(8, 64))
});

/// Runs file operations on a blocking thread, or on the current thread if there is no Tokio runtime.
///
/// Once started, `work` runs to its end, even if the future is dropped.
pub(crate) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else {
        return work();
    };
    let with_permit = |permit: Option<SemaphorePermit<'static>>| {
        move || {
            let result = work();
            drop(permit);
            result
        }
    };
    let joined = if let Ok(permit) = IO_PERMITS.try_acquire() {
        runtime.spawn_blocking(with_permit(Some(permit))).await
    } else {
        let queued = async move {
            let permit = IO_PERMITS.acquire().await.ok();
            tokio::task::spawn_blocking(with_permit(permit)).await
        };
        runtime.spawn(queued).await.unwrap_or_else(Err)
    };
    joined.unwrap_or_else(|_| Err(shutdown_error()))
}

fn shutdown_error() -> TapeError {
    let source = io::Error::new(
        io::ErrorKind::Interrupted,
        "bub is shutting down; try again after the restart",
    );
    TapeError::Io {
        action: "access",
        path: "tape store".to_owned(),
        source: source.into(),
    }
}
