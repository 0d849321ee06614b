//! Tapes as files, in the format and the places of the original.
//!
//! ```text
//! <tape>.jsonl                 one entry a line
//! <tape>.jsonl.<stamp>.bak     archives
//! .bub/locks/<tape>.lock       the write lock and the record of what is being written
//! .bub/leases/<tape>.lease     the session lease
//! .bub/index/<tape>.{idx,marks}  derived, may be deleted
//! .bub/forks/ torn/ tmp/ blobs/
//! ```
//!
//! An append takes the write lock, notes what it is about to write (offset, length, checksum), writes it and
//! notes that it is done. Whoever takes the lock next and finds the note unfinished completes the batch or takes it
//! back. Readers take no lock: they compare the note before and after looking at the file, and stop where a batch
//! is being written.
//!
//! With [`Durability::Os`] an acknowledged batch survives the death of the process, with
//! [`Durability::Always`] also a power cut, at one fsync a batch; batches that arrive while an fsync runs share the
//! next one.

mod batch;
mod blobs;
mod commit;
mod context;
mod fd_limit;
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
    context::{StoreContext, missing_is_none},
    fd_limit::FdLimitFs,
    open_tapes::OpenTapes,
    paths::StorePaths,
};
use crate::{
    AnchorMark, AnchorQuery, AppendReceipt, BlobStore, BoxFuture, Entry, EntryId, EntryRange,
    EntryStream, Lease, LeaseWait, LineFilter, ResetOutcome, ResetRequest, Result, TapeError,
    TapeListFilter, TapeName, TapeStore, TapeSummary,
    fs::{Fs, RealFs},
};

/// What an acknowledged append survives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Durability {
    /// The death of the process.
    #[default]
    Os,
    /// The loss of power.
    Always,
}

/// So many entries are read sooner than the list of all anchors.
const MAX_SCAN_BACK: i64 = 1_000;

/// A directory of tapes. Clones share their open files.
#[derive(Debug, Clone)]
pub struct FileStore {
    store_context: Arc<StoreContext>,
    open_tapes: Arc<OpenTapes>,
}

impl FileStore {
    /// The tapes under a directory, which is made by the first append.
    pub fn new(root: impl Into<PathBuf>, durability: Durability) -> Self {
        Self::with_fs(root, durability, Arc::new(RealFs))
    }

    /// The same on another file system.
    pub fn with_fs(root: impl Into<PathBuf>, durability: Durability, fs: Arc<dyn Fs>) -> Self {
        let open_tapes = Arc::new_cyclic(|open_tapes| {
            let fs = Arc::new(FdLimitFs {
                fs,
                open_tapes: Weak::clone(open_tapes),
            });
            OpenTapes::new(Arc::new(StoreContext {
                fs,
                layout: StorePaths::new(root.into()),
                durability,
            }))
        });
        Self {
            store_context: Arc::clone(&open_tapes.store_context),
            open_tapes,
        }
    }

    /// Deletes the index of a tape and makes it again.
    pub async fn reindex(&self, tape: &TapeName) -> Result<TapeSummary> {
        let slot = self.open_tapes.get(tape);
        blocking(move || slot.core().rebuild()).await
    }

    /// The file of a tape, whether it exists or not.
    pub fn path(&self, tape: &TapeName) -> PathBuf {
        self.store_context.layout.tape(tape)
    }

    fn list_now(
        store_context: &StoreContext,
        list_filter: &TapeListFilter,
    ) -> Result<Vec<TapeName>> {
        let directory = match list_filter {
            TapeListFilter::Forks(_) | TapeListFilter::AllForks => store_context.layout.forks(),
            TapeListFilter::Sessions
            | TapeListFilter::SessionsSince(_)
            | TapeListFilter::Sidecars(_)
            | TapeListFilter::AllSidecars => store_context.layout.root().to_path_buf(),
        };
        let names = missing_is_none(store_context.fs.read_dir(&directory));
        let names = names
            .map_err(|error| store_context.error("list", &directory, error))?
            .unwrap_or_default();
        let stems = names.iter().filter_map(|name| name.strip_suffix(".jsonl"));
        let mut tapes: Vec<_> = stems.filter_map(|stem| TapeName::new(stem).ok()).collect();
        tapes.retain(|tape| list_filter.includes(tape));
        if let TapeListFilter::SessionsSince(since) = list_filter {
            let modified = |tape: &TapeName| {
                store_context
                    .fs
                    .stat(&store_context.layout.tape(tape))
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
        let slot = self.open_tapes.get(tape);
        let (reply, answer) = oneshot::channel();
        slot.enqueue(PendingBatch {
            batch: Batch::new(entries),
            reply,
        });
        // Into the page cache of a free tape it is quicker than waking another thread.
        if self.store_context.durability == Durability::Always || !slot.try_drain() {
            blocking(move || {
                slot.drain();
                Ok(())
            })
            .await?;
        }
        answer.await.unwrap_or_else(|_| Err(interrupted()))
    }

    /// An anchor behind that id, not far behind it: reading backwards from there finds the entry soon.
    async fn anchor_beyond(&self, tape: &TapeName, id: EntryId) -> Result<Option<AnchorMark>> {
        let last = self
            .anchors(tape, AnchorQuery::Latest(1))
            .await?
            .pop()
            .filter(|last| last.id > id);
        match last {
            // What is asked for is usually recent; only for the rest is it worth going through all anchors.
            Some(last) if last.id.get() - id.get() > MAX_SCAN_BACK => {
                let marks = self.anchors(tape, AnchorQuery::All).await?;
                Ok(marks.into_iter().find(|mark| mark.id > id))
            }
            last => Ok(last),
        }
    }

    async fn fetch_now(&self, tape: &TapeName, ids: &[EntryId]) -> Result<Vec<Entry>> {
        let mut wanted: HashSet<EntryId> = ids.iter().copied().collect();
        let (Some(lowest), Some(highest)) = (ids.iter().min(), ids.iter().max()) else {
            return Ok(Vec::new());
        };
        let start = self.anchor_beyond(tape, *highest).await?;
        let span = start
            .map_or(EntryRange::ALL, |mark| {
                EntryRange::ALL.before(mark.position)
            })
            .newest_first();
        let mut stream = self.read(tape, span);
        let mut found = Vec::new();
        while let Some(entry) = stream.next().await.transpose()? {
            if entry.id < *lowest || wanted.is_empty() {
                break;
            }
            if wanted.remove(&entry.id) {
                found.push(entry);
            }
        }
        found.reverse();
        Ok(found)
    }
}

impl TapeStore for FileStore {
    fn list(&self, list_filter: TapeListFilter) -> BoxFuture<'_, Result<Vec<TapeName>>> {
        // Journals of forks are few, and every turn asks for them.
        if matches!(list_filter, TapeListFilter::Forks(_)) {
            return Box::pin(std::future::ready(Self::list_now(
                &self.store_context,
                &list_filter,
            )));
        }
        let store_context = Arc::clone(&self.store_context);
        Box::pin(blocking(move || {
            Self::list_now(&store_context, &list_filter)
        }))
    }

    fn append<'a>(
        &'a self,
        tape: &'a TapeName,
        batch: Vec<Entry>,
    ) -> BoxFuture<'a, Result<AppendReceipt>> {
        Box::pin(self.append_batch(tape, batch))
    }

    fn read<'a>(&'a self, tape: &'a TapeName, span: EntryRange) -> EntryStream<'a> {
        read::entries(
            Arc::clone(&self.store_context),
            self.open_tapes.get(tape),
            tape.clone(),
            span,
        )
    }

    fn read_filtered<'a>(
        &'a self,
        tape: &'a TapeName,
        span: EntryRange,
        line_filter: Arc<dyn LineFilter>,
    ) -> EntryStream<'a> {
        filtered_read::entries(
            Arc::clone(&self.store_context),
            self.open_tapes.get(tape),
            tape.clone(),
            (span, line_filter),
        )
    }

    fn fetch<'a>(
        &'a self,
        tape: &'a TapeName,
        ids: &'a [EntryId],
    ) -> BoxFuture<'a, Result<Vec<Entry>>> {
        Box::pin(self.fetch_now(tape, ids))
    }

    fn anchors<'a>(
        &'a self,
        tape: &'a TapeName,
        search: AnchorQuery,
    ) -> BoxFuture<'a, Result<Vec<AnchorMark>>> {
        let slot = self.open_tapes.get(tape);
        if let (AnchorQuery::Latest(1), Some(last)) = (
            &search,
            slot.try_with_snapshot(|core, _| core.index.summary.last_anchor.clone()),
        ) {
            return Box::pin(std::future::ready(Ok(last.into_iter().collect())));
        }
        Box::pin(blocking(move || slot.core().anchors(&search)))
    }

    fn summary<'a>(&'a self, tape: &'a TapeName) -> BoxFuture<'a, Result<TapeSummary>> {
        let slot = self.open_tapes.get(tape);
        if let Some(summary) = slot.try_with_snapshot(|core, _| core.index.summary.clone()) {
            return Box::pin(std::future::ready(Ok(summary)));
        }
        Box::pin(blocking(move || slot.core().summary()))
    }

    fn archive<'a>(&'a self, tape: &'a TapeName, stamp: &'a str) -> BoxFuture<'a, Result<String>> {
        let (slot, stamp) = (self.open_tapes.get(tape), stamp.to_owned());
        Box::pin(blocking(move || slot.core().archive(&stamp)))
    }

    fn reset<'a>(
        &'a self,
        tape: &'a TapeName,
        reset: ResetRequest,
    ) -> BoxFuture<'a, Result<ResetOutcome>> {
        let slot = self.open_tapes.get(tape);
        Box::pin(blocking(move || slot.core().reset(reset)))
    }

    fn discard<'a>(&'a self, tape: &'a TapeName) -> BoxFuture<'a, Result<()>> {
        let slot = self.open_tapes.get(tape);
        Box::pin(blocking(move || slot.core().discard()))
    }

    fn lease<'a>(&'a self, tape: &'a TapeName, wait: LeaseWait) -> BoxFuture<'a, Result<Lease>> {
        Box::pin(wait.poll(move || {
            lease::try_lease(&self.store_context, tape, || self.open_tapes.pin(tape))
        }))
    }

    fn lease_holder<'a>(&'a self, tape: &'a TapeName) -> BoxFuture<'a, Result<Option<String>>> {
        Box::pin(std::future::ready(Ok(lease::held_by(
            &self.store_context,
            tape,
        ))))
    }

    fn blobs(&self) -> Arc<dyn BlobStore> {
        Arc::new(FileBlobs(Arc::clone(&self.store_context)))
    }
}

/// So much file work is done at one time: more threads only cost memory, a disk has no use for them.
static IO_PERMITS: LazyLock<Semaphore> = LazyLock::new(|| {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Semaphore::new((4 * cores).clamp(8, 64))
});

/// Runs file work away from the async threads, or right here when there are none. Work that was begun is done, whether or
/// not anybody waits for it.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else {
        return work();
    };
    let with = |hand: Option<SemaphorePermit<'static>>| {
        move || {
            let done = work();
            drop(hand);
            done
        }
    };
    let done = if let Ok(hand) = IO_PERMITS.try_acquire() {
        runtime.spawn_blocking(with(Some(hand))).await
    } else {
        let queued =
            async move { tokio::task::spawn_blocking(with(IO_PERMITS.acquire().await.ok())).await };
        runtime.spawn(queued).await.unwrap_or_else(Err)
    };
    done.unwrap_or_else(|_| Err(interrupted()))
}

fn interrupted() -> TapeError {
    let source = io::Error::new(io::ErrorKind::Interrupted, "the runtime is shutting down");
    TapeError::Io {
        action: "finish work on",
        path: "the tape".to_owned(),
        source: source.into(),
    }
}
