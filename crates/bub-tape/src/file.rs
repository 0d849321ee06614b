//! A store that keeps tapes in files, with the format and file names of the Python version.
//!
//! ```text
//! <tape>.jsonl                   the tape, one entry per line
//! <tape>.jsonl.<stamp>.bak       archives
//! .bub/locks/<tape>.lock         the write lock and the lock record
//! .bub/leases/<tape>.lease       the session lease
//! .bub/index/<tape>.{idx,marks}  the index; may be deleted
//! .bub/forks/                    fork journals
//! .bub/torn/                     bytes that repairs removed from tapes
//! .bub/tmp/                      files that are being written
//! .bub/blobs/                    media of entries
//! ```
//!
//! An append takes the write lock and writes an intent to the lock record: offset, length and checksum of the batch.
//! Then it writes the batch and marks the record as idle. If a process finds an unfinished record when it takes the
//! lock, it completes the batch or undoes it. Readers take no lock. They compare the lock record before and after they
//! read the file size, and stop before a batch that is being written.
//!
//! With [`Durability::Os`], an acknowledged batch survives the end of the process. With [`Durability::Always`], it also
//! survives power loss, at the cost of one fsync per batch. Batches that arrive during an fsync share the next one.

mod batch;
mod blobs;
mod commit;
mod context;
mod fd_limit;
mod file_ops;
mod filtered_read;
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
mod snapshot;
mod tape_file;
mod unused;
mod verify;

pub use self::{
    repair::RepairReport,
    unused::{UnusedFile, UnusedFileKind},
    verify::{Damage, VerifyReport},
};

use std::{
    collections::HashSet,
    io,
    path::PathBuf,
    sync::{Arc, LazyLock, Weak},
};

use futures_util::StreamExt as _;
use tokio::sync::{Semaphore, SemaphorePermit, oneshot};

use self::{
    batch::{Batch, PendingBatch},
    blobs::FileBlobs,
    context::StoreContext,
    fd_limit::FdLimitFs,
    file_ops::not_found_to_none,
    open_tapes::OpenTapes,
    paths::StorePaths,
};
use crate::{
    AnchorMark, AnchorQuery, AppendReceipt, BlobStore, BoxFuture, Entry, EntryId, EntryRange,
    EntryStream, Lease, LeaseWait, LineFilter, ResetOutcome, ResetRequest, Result, TapeError,
    TapeListFilter, TapeName, TapeStore, TapeSummary,
    fs::{Fs, RealFs},
};

/// The failures that an acknowledged append survives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Durability {
    /// The end of the process, for example by a crash.
    #[default]
    Os,
    /// Power loss. Every batch is synced to disk.
    Always,
}

/// Maximum distance in ids between an entry and the last anchor for reading back from that anchor. Beyond it, reading
/// the list of all anchors is faster.
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
    store_context: Arc<StoreContext>,
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
            let fs = Arc::new(FdLimitFs {
                fs,
                open_tapes: Weak::clone(open_tapes),
            });
            OpenTapes::new(Arc::new(StoreContext {
                fs,
                paths: StorePaths::new(root.into()),
                durability,
            }))
        });
        Self {
            store_context: Arc::clone(&open_tapes.store_context),
            open_tapes,
        }
    }

    /// Deletes the index of a tape and rebuilds it.
    pub async fn reindex(&self, tape: &TapeName) -> Result<TapeSummary> {
        let open_tape = self.open_tapes.get_or_create(tape);
        run_blocking(move || open_tape.lock_tape_file().rebuild_index()).await
    }

    /// Returns the path of a tape's file, which may not exist.
    pub fn path(&self, tape: &TapeName) -> PathBuf {
        self.store_context.paths.tape_file(tape)
    }

    fn list_tapes(
        store_context: &StoreContext,
        list_filter: &TapeListFilter,
    ) -> Result<Vec<TapeName>> {
        let directory = match list_filter {
            TapeListFilter::Forks(_) | TapeListFilter::AllForks => store_context.paths.forks_dir(),
            TapeListFilter::Sessions
            | TapeListFilter::SessionsSince(_)
            | TapeListFilter::Sidecars(_)
            | TapeListFilter::AllSidecars => store_context.paths.root().to_path_buf(),
        };
        let names = not_found_to_none(store_context.fs.read_dir(&directory));
        let names = names
            .map_err(|error| store_context.io_error("list", &directory, error))?
            .unwrap_or_default();
        let stems = names.iter().filter_map(|name| name.strip_suffix(".jsonl"));
        let mut tapes: Vec<_> = stems.filter_map(|stem| TapeName::new(stem).ok()).collect();
        tapes.retain(|tape| list_filter.includes(tape));
        if let TapeListFilter::SessionsSince(since) = list_filter {
            let modified = |tape: &TapeName| {
                store_context
                    .fs
                    .stat(&store_context.paths.tape_file(tape))
                    .ok()?
                    .modified
            };
            tapes.retain(|tape| modified(tape).is_none_or(|modified| modified >= *since));
        }
        tapes.sort();
        Ok(tapes)
    }

    async fn append_batch(&self, tape: &TapeName, entries: Vec<Entry>) -> Result<AppendReceipt> {
        if entries.is_empty() {
            return Ok(AppendReceipt { ids: Vec::new() });
        }
        let open_tape = self.open_tapes.get_or_create(tape);
        let (sender, receipt) = oneshot::channel();
        open_tape.enqueue(PendingBatch {
            batch: Batch::new(entries),
            sender,
        });
        // Writing to the page cache of an unlocked tape is faster than waking another thread.
        if self.store_context.durability == Durability::Always || !open_tape.try_commit_queued() {
            run_blocking(move || {
                open_tape.commit_queued();
                Ok(())
            })
            .await?;
        }
        receipt.await.unwrap_or_else(|_| Err(shutdown_error()))
    }

    /// Returns an anchor shortly after an id, as a starting point for reading backwards to the entry with that id.
    async fn anchor_after(&self, tape: &TapeName, id: EntryId) -> Result<Option<AnchorMark>> {
        let last = self
            .anchors(tape, AnchorQuery::Latest(1))
            .await?
            .pop()
            .filter(|last| last.id > id);
        match last {
            // Requested entries are usually recent. Read the list of all anchors only for older ones.
            Some(last) if last.id.get() - id.get() > MAX_SCAN_BACK => {
                let marks = self.anchors(tape, AnchorQuery::All).await?;
                Ok(marks.into_iter().find(|mark| mark.id > id))
            }
            last => Ok(last),
        }
    }

    async fn fetch_entries(&self, tape: &TapeName, ids: &[EntryId]) -> Result<Vec<Entry>> {
        let mut missing: HashSet<EntryId> = ids.iter().copied().collect();
        let (Some(lowest), Some(highest)) = (ids.iter().min(), ids.iter().max()) else {
            return Ok(Vec::new());
        };
        let start = self.anchor_after(tape, *highest).await?;
        let range = start
            .map_or(EntryRange::ALL, |mark| {
                EntryRange::ALL.before(mark.position)
            })
            .newest_first();
        let mut stream = self.read(tape, range);
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
}

impl TapeStore for FileStore {
    fn list(&self, list_filter: TapeListFilter) -> BoxFuture<'_, Result<Vec<TapeName>>> {
        // List inline: there are few fork journals, and every turn lists them.
        if matches!(list_filter, TapeListFilter::Forks(_)) {
            return Box::pin(std::future::ready(Self::list_tapes(
                &self.store_context,
                &list_filter,
            )));
        }
        let store_context = Arc::clone(&self.store_context);
        Box::pin(run_blocking(move || {
            Self::list_tapes(&store_context, &list_filter)
        }))
    }

    fn append<'a>(
        &'a self,
        tape: &'a TapeName,
        batch: Vec<Entry>,
    ) -> BoxFuture<'a, Result<AppendReceipt>> {
        Box::pin(self.append_batch(tape, batch))
    }

    fn read<'a>(&'a self, tape: &'a TapeName, range: EntryRange) -> EntryStream<'a> {
        read::stream_entries(
            Arc::clone(&self.store_context),
            self.open_tapes.get_or_create(tape),
            tape.clone(),
            range,
        )
    }

    fn read_filtered<'a>(
        &'a self,
        tape: &'a TapeName,
        range: EntryRange,
        line_filter: Arc<dyn LineFilter>,
    ) -> EntryStream<'a> {
        filtered_read::stream_filtered_entries(
            Arc::clone(&self.store_context),
            self.open_tapes.get_or_create(tape),
            tape.clone(),
            (range, line_filter),
        )
    }

    fn fetch<'a>(
        &'a self,
        tape: &'a TapeName,
        ids: &'a [EntryId],
    ) -> BoxFuture<'a, Result<Vec<Entry>>> {
        Box::pin(self.fetch_entries(tape, ids))
    }

    fn anchors<'a>(
        &'a self,
        tape: &'a TapeName,
        query: AnchorQuery,
    ) -> BoxFuture<'a, Result<Vec<AnchorMark>>> {
        let open_tape = self.open_tapes.get_or_create(tape);
        if let (AnchorQuery::Latest(1), Some(last)) = (
            &query,
            open_tape.try_with_snapshot(|tape_file, _| tape_file.index.summary.last_anchor.clone()),
        ) {
            return Box::pin(std::future::ready(Ok(last.into_iter().collect())));
        }
        Box::pin(run_blocking(move || {
            open_tape.lock_tape_file().anchors(&query)
        }))
    }

    fn summary<'a>(&'a self, tape: &'a TapeName) -> BoxFuture<'a, Result<TapeSummary>> {
        let open_tape = self.open_tapes.get_or_create(tape);
        if let Some(summary) =
            open_tape.try_with_snapshot(|tape_file, _| tape_file.index.summary.clone())
        {
            return Box::pin(std::future::ready(Ok(summary)));
        }
        Box::pin(run_blocking(move || open_tape.lock_tape_file().summary()))
    }

    fn archive<'a>(&'a self, tape: &'a TapeName, stamp: &'a str) -> BoxFuture<'a, Result<String>> {
        let (open_tape, stamp) = (self.open_tapes.get_or_create(tape), stamp.to_owned());
        Box::pin(run_blocking(move || {
            open_tape.lock_tape_file().archive(&stamp)
        }))
    }

    fn reset<'a>(
        &'a self,
        tape: &'a TapeName,
        request: ResetRequest,
    ) -> BoxFuture<'a, Result<ResetOutcome>> {
        let open_tape = self.open_tapes.get_or_create(tape);
        Box::pin(run_blocking(move || {
            open_tape.lock_tape_file().reset(request)
        }))
    }

    fn discard<'a>(&'a self, tape: &'a TapeName) -> BoxFuture<'a, Result<()>> {
        let open_tape = self.open_tapes.get_or_create(tape);
        Box::pin(run_blocking(move || open_tape.lock_tape_file().discard()))
    }

    fn lease<'a>(&'a self, tape: &'a TapeName, wait: LeaseWait) -> BoxFuture<'a, Result<Lease>> {
        Box::pin(wait.retry_while_busy(move || {
            lease::try_acquire_lease(&self.store_context, tape, || {
                self.open_tapes.keep_open(tape)
            })
        }))
    }

    fn lease_holder<'a>(&'a self, tape: &'a TapeName) -> BoxFuture<'a, Result<Option<String>>> {
        Box::pin(std::future::ready(Ok(lease::lease_holder(
            &self.store_context,
            tape,
        ))))
    }

    fn blobs(&self) -> Arc<dyn BlobStore> {
        Arc::new(FileBlobs(Arc::clone(&self.store_context)))
    }
}

/// Limits concurrent file operations. More threads use memory without improving throughput.
static IO_PERMITS: LazyLock<Semaphore> = LazyLock::new(|| {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Semaphore::new((4 * cores).clamp(8, 64))
});

/// Runs file operations on a blocking thread, or on the current thread outside of a runtime.
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
