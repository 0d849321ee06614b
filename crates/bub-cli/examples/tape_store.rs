//! A tape store: every tape is one text file with one entry per line.
//!
//! The store is small on purpose. It reads a tape completely for each operation and serves one process. The trait
//! `TapeStore` documents what a store must guarantee; the test at the end checks it.
//!
//! ```console
//! $ cargo run --example tape_store -- run hello
//! ```

use std::{
    collections::HashSet,
    fs, io,
    io::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
};

use bub::{
    Entry, Provided,
    futures::stream,
    prelude::*,
    tape::{
        AnchorMark, AnchorQuery, AppendReceipt, BlobStore, EntryId, EntryRange, EntryStream, Lease,
        LeaseWait, MemoryStore, Order, Position, ResetOutcome, ResetRequest, TapeError,
        TapeListFilter, TapeName, TapeSummary, codec,
    },
};

type TapeResult<T> = std::result::Result<T, TapeError>;

#[derive(Debug)]
struct TextStore {
    directory: PathBuf,
    /// Held while a tape is changed, so that batches stay complete and ids ascend.
    write_lock: Mutex<()>,
    leased: Arc<Mutex<HashSet<TapeName>>>,
    /// Keeps media in memory. A real store would write them to disk.
    blobs: MemoryStore,
}

impl TextStore {
    fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            write_lock: Mutex::default(),
            leased: Arc::default(),
            blobs: MemoryStore::new(),
        }
    }

    fn path(&self, tape: &TapeName) -> PathBuf {
        self.directory.join(format!("{tape}.tape"))
    }

    fn entries(&self, tape: &TapeName) -> TapeResult<Vec<Entry>> {
        let path = self.path(tape);
        match fs::read(&path) {
            // A tape that was never written reads as empty.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(io_error(&path, error)),
            Ok(text) => Ok(text
                .split_inclusive(|byte| *byte == b'\n')
                .filter_map(codec::decode)
                .collect()),
        }
    }

    /// Replaces the file of a tape, so that readers see all entries of a batch or none.
    fn write(&self, tape: &TapeName, entries: &[Entry]) -> TapeResult<()> {
        let (path, temporary) = (self.path(tape), self.directory.join(".new"));
        let text: String = entries.iter().map(codec::encode).collect();
        let write = || {
            fs::create_dir_all(&self.directory)?;
            let mut file = fs::File::create(&temporary)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&temporary, &path)
        };
        write().map_err(|error| io_error(&path, error))
    }

    fn summarize(&self, tape: &TapeName) -> TapeResult<(TapeSummary, Vec<AnchorMark>)> {
        let mut summary = TapeSummary::default();
        let entries = self.entries(tape)?;
        let positions = (0..).map(Position::new);
        let marks = entries
            .iter()
            .zip(positions)
            .filter_map(|(entry, position)| summary.observe(entry, position))
            .collect();
        Ok((summary, marks))
    }
}

fn io_error(path: &Path, source: io::Error) -> TapeError {
    TapeError::Io {
        action: "access",
        path: path.display().to_string(),
        source: Arc::new(source),
    }
}

/// Assigns ids to a batch: they start after the highest id of the tape.
fn number(batch: Vec<Entry>, mut last: EntryId) -> Vec<Entry> {
    let numbered = batch.into_iter().map(|mut entry| {
        last = last.next();
        entry.id = last;
        entry
    });
    numbered.collect()
}

#[async_trait]
impl TapeStore for TextStore {
    async fn list(&self, list_filter: TapeListFilter) -> TapeResult<Vec<TapeName>> {
        let files = match fs::read_dir(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            files => files.map_err(|error| io_error(&self.directory, error))?,
        };
        let names = files.filter_map(|file| {
            let name = file.ok()?.file_name().into_string().ok()?;
            TapeName::new(name.strip_suffix(".tape")?).ok()
        });
        let mut names: Vec<_> = names.filter(|name| list_filter.includes(name)).collect();
        names.sort();
        Ok(names)
    }

    async fn append(&self, tape: &TapeName, batch: Vec<Entry>) -> TapeResult<AppendReceipt> {
        let _guard = self
            .write_lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let batch = number(batch, self.summarize(tape)?.0.max_id);
        let ids: Vec<_> = batch.iter().map(|entry| entry.id).collect();
        if !batch.is_empty() {
            let mut entries = self.entries(tape)?;
            entries.extend(batch);
            self.write(tape, &entries)?;
        }
        Ok(AppendReceipt { ids })
    }

    fn read<'a>(&'a self, tape: &'a TapeName, range: EntryRange) -> EntryStream<'a> {
        let read = || -> TapeResult<Vec<Entry>> {
            let positions = (0..).map(Position::new);
            let entries = self.entries(tape)?.into_iter().zip(positions);
            let in_range = entries.filter(|(_, position)| range.contains(*position));
            let mut entries: Vec<_> = in_range.map(|(entry, _)| entry).collect();
            if range.order == Order::NewestFirst {
                entries.reverse();
            }
            Ok(entries)
        };
        match read() {
            Ok(entries) => Box::pin(stream::iter(entries.into_iter().map(Ok))),
            Err(error) => Box::pin(stream::iter([Err(error)])),
        }
    }

    async fn fetch(&self, tape: &TapeName, ids: &[EntryId]) -> TapeResult<Vec<Entry>> {
        let entries = self.entries(tape)?.into_iter();
        Ok(entries.filter(|entry| ids.contains(&entry.id)).collect())
    }

    async fn anchors(&self, tape: &TapeName, query: AnchorQuery) -> TapeResult<Vec<AnchorMark>> {
        Ok(query.select_marks(&self.summarize(tape)?.1))
    }

    async fn summary(&self, tape: &TapeName) -> TapeResult<TapeSummary> {
        Ok(self.summarize(tape)?.0)
    }

    async fn archive(&self, tape: &TapeName, stamp: &str) -> TapeResult<String> {
        let entries = self.entries(tape)?;
        let text: String = entries.iter().map(codec::encode).collect();
        for number in 0.. {
            let name = format!("{tape}.{stamp}-{number}.archive");
            let path = self.directory.join(&name);
            let created = fs::create_dir_all(&self.directory)
                .and_then(|()| fs::File::create_new(&path))
                .and_then(|mut file| file.write_all(text.as_bytes()));
            match created {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(io_error(&path, error)),
                Ok(()) => return Ok(name),
            }
        }
        Err(TapeError::InvalidInput("too many archives".to_owned()))
    }

    async fn reset(&self, tape: &TapeName, request: ResetRequest) -> TapeResult<ResetOutcome> {
        let archived = match &request.archive {
            Some(stamp) => Some(self.archive(tape, stamp).await?),
            None => None,
        };
        let _guard = self
            .write_lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let first = (request.initial_entries)(archived.as_deref());
        let entries = number(first, EntryId::default());
        self.write(tape, &entries)?;
        let ids = entries.iter().map(|entry| entry.id).collect();
        Ok(ResetOutcome { archived, ids })
    }

    async fn discard(&self, tape: &TapeName) -> TapeResult<()> {
        let path = self.path(tape);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_error(&path, error)),
            _ => Ok(()),
        }
    }

    async fn lease(&self, tape: &TapeName, wait: LeaseWait) -> TapeResult<Lease> {
        let attempt = || {
            let mut leased = self.leased.lock().unwrap_or_else(PoisonError::into_inner);
            if !leased.insert(tape.clone()) {
                return Err(TapeError::Busy {
                    tape: tape.to_string(),
                    holder: "this process".to_owned(),
                });
            }
            let guard = LeaseGuard(Arc::clone(&self.leased), tape.clone());
            Ok(Lease::new(tape.clone(), guard))
        };
        wait.retry_while_busy(attempt).await
    }

    fn blobs(&self) -> Arc<dyn BlobStore> {
        self.blobs.blobs()
    }
}

/// Ends the lease of a tape when it is dropped.
struct LeaseGuard(Arc<Mutex<HashSet<TapeName>>>, TapeName);

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        let mut leased = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        leased.remove(&self.1);
    }
}

struct TextTapes {
    directory: PathBuf,
}

#[hooks]
impl TextTapes {
    fn provide_tape_store(&self) -> Provided<dyn TapeStore> {
        Provided::new(Arc::new(TextStore::new(&self.directory)))
    }
}

fn plugin(context: &PluginContext<'_>) -> TextTapes {
    TextTapes {
        directory: context.settings.home().join("text-tapes"),
    }
}

fn main() -> ExitCode {
    bub_cli::app().plugin("text-tapes", plugin).main()
}

#[cfg(test)]
mod tests {
    use bub::testing;

    use super::*;

    #[tokio::test]
    async fn the_store_keeps_the_guarantees_of_stores() {
        let root = tempfile::tempdir().unwrap();
        let next = std::sync::atomic::AtomicUsize::new(0);
        let make = || {
            let number = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            TextStore::new(root.path().join(number.to_string()))
        };
        testing::check_store(make).await;
    }

    #[tokio::test]
    async fn turns_are_recorded_in_the_store() {
        let turn = testing::turn("hi")
            .plugin("text-tapes", plugin)
            .model_says("Hello.")
            .run()
            .await
            .unwrap();
        let turn = turn.then("Again?").model_says("Yes.").run().await.unwrap();
        assert!(
            turn.requests()[0]
                .messages
                .iter()
                .any(|message| message["content"] == "Hello.")
        );
        assert!(turn.home().join("text-tapes").is_dir());
    }
}
