//! The journal: accepted messages whose turn is not finished, and replies that are not delivered.
//!
//! On disk, the journal is one append-only file. One task writes it and combines queued records into one write. A
//! record is acknowledged when it is written, or with durability `always` when it is synced. After a failed write, the
//! task writes a new file with the live records: those of unfinished messages, undelivered replies and idempotency
//! keys. It acknowledges no record until the new file was read back.
//!
//! A journal in memory has the same contract while the process runs.

mod file;
mod record;
mod state;

use std::{
    collections::VecDeque,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bub_kernel::{Error, ErrorKind, MessageId, ReplyId, Result};
use bub_tape::{Durability, fs::Fs};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot};

use self::file::JournalFile;
pub use self::file::JournalRecovery;
#[doc(hidden)]
pub use self::file::replay_for_fuzzing;
pub(crate) use self::{
    record::{AcceptedMessage, JournalRecord, ReplyRecord, encode_envelope, now_ms},
    state::{JournalState, UnfinishedMessage},
};

/// Delay before the next write after a failure.
const WRITE_RETRY_DELAY: Duration = Duration::from_secs(1);
/// Maximum number of bytes in one write, unless a single record is larger.
const MAX_WRITE_BYTES: usize = 1024 * 1024;

/// The journal of a gateway.
#[derive(Debug)]
pub(crate) struct Journal {
    shared: Arc<JournalInner>,
    id_prefix: u64,
    ids: AtomicU64,
    is_durable: bool,
    writer: Mutex<Option<tokio::task::JoinHandle<()>>>,
}

#[derive(Debug)]
struct JournalInner {
    queue: Mutex<RecordQueue>,
    wake: Notify,
    live: Mutex<JournalState>,
}

#[derive(Debug, Default)]
struct RecordQueue {
    entries: VecDeque<QueuedRecord>,
    is_closed: bool,
}

#[derive(Debug)]
struct QueuedRecord {
    record: JournalRecord,
    line: Vec<u8>,
    waiter: Option<oneshot::Sender<Result<()>>>,
    /// Whether the record is dropped if it cannot be written. Otherwise writing it is retried.
    may_fail: bool,
}

impl Journal {
    /// Opens the journal in a directory, recovers unfinished work, and starts the writer task.
    pub(crate) fn open(
        fs: Arc<dyn Fs>,
        directory: &Path,
        durability: Durability,
    ) -> Result<(Self, JournalRecovery)> {
        let (journal_file, live, recovered) = JournalFile::open(fs, directory, durability)?;
        Ok((Self::new(live, Some(journal_file)), recovered))
    }

    /// Creates an empty journal in memory.
    pub(crate) fn in_memory() -> Self {
        Self::new(JournalState::default(), None)
    }

    fn new(live: JournalState, journal_file: Option<JournalFile>) -> Self {
        let shared = Arc::new(JournalInner {
            queue: Mutex::default(),
            wake: Notify::new(),
            live: Mutex::new(live),
        });
        let is_durable = journal_file.is_some();
        let writer = journal_file.map(|file| tokio::spawn(run_writer(Arc::clone(&shared), file)));
        Self {
            shared,
            id_prefix: (now_ms() << 16) | u64::from(random_u16()),
            ids: AtomicU64::new(0),
            is_durable,
            writer: Mutex::new(writer),
        }
    }

    /// Returns whether the content survives the end of the process.
    pub(crate) fn is_durable(&self) -> bool {
        self.is_durable
    }

    /// Reads the unfinished messages and undelivered replies in a directory. Changes nothing, so the directory may be
    /// read-only.
    pub(crate) fn read_state(fs: &dyn Fs, directory: &Path) -> Result<JournalState> {
        file::read_directory(fs, directory).map(|(live, ..)| live)
    }

    /// Returns a new message id that is unique in this journal across restarts.
    pub(crate) fn next_message_id(&self) -> MessageId {
        self.next_id().into()
    }

    /// Returns a new reply id that is unique in this journal across restarts.
    pub(crate) fn next_reply_id(&self) -> ReplyId {
        self.next_id().into()
    }

    fn next_id(&self) -> String {
        let number = self.ids.fetch_add(1, Ordering::Relaxed);
        format!("{:x}-{number:x}", self.id_prefix)
    }

    /// Writes a record. An error means that the record must be treated as not written.
    pub(crate) async fn append(&self, record: JournalRecord) -> Result<()> {
        self.append_and_wait(record, true).await
    }

    /// Writes a record and retries until it is written. Fails only if the journal is closed.
    pub(crate) async fn append_with_retries(&self, record: JournalRecord) -> Result<()> {
        self.append_and_wait(record, false).await
    }

    /// Queues a record without waiting. Records are written in order.
    pub(crate) fn append_later(&self, record: JournalRecord) {
        // If the journal is closed, the record is lost, and the next start processes its message or reply again.
        let _ = if self.is_durable {
            self.enqueue(record, None, false)
        } else {
            self.apply_in_memory(record)
        };
    }

    /// Locks and returns the unfinished messages and undelivered replies.
    pub(crate) fn lock_state(&self) -> MutexGuard<'_, JournalState> {
        self.shared.live.lock()
    }

    /// Returns the number of records that are not written yet.
    pub(crate) fn queued_count(&self) -> usize {
        self.shared.queue.lock().entries.len()
    }

    /// Writes the queued records and releases the lock of the directory.
    pub(crate) async fn close(&self) {
        self.close_queue();
        let writer = self.writer.lock().take();
        if let Some(writer) = writer {
            // The writer ends when the queue is empty. It does not end if the disk stays full.
            let _ = tokio::time::timeout(Duration::from_secs(5), writer).await;
        }
    }

    fn close_queue(&self) {
        self.shared.queue.lock().is_closed = true;
        self.shared.wake.notify_one();
    }

    async fn append_and_wait(&self, record: JournalRecord, may_fail: bool) -> Result<()> {
        if !self.is_durable {
            return self.apply_in_memory(record);
        }
        let (waiter, written) = oneshot::channel();
        self.enqueue(record, Some(waiter), may_fail)?;
        written.await.unwrap_or_else(|_| Err(closed_error()))
    }

    /// Applies a record to the journal in memory.
    fn apply_in_memory(&self, record: JournalRecord) -> Result<()> {
        if self.shared.queue.lock().is_closed {
            return Err(closed_error());
        }
        self.shared.live.lock().apply(record);
        Ok(())
    }

    fn enqueue(
        &self,
        record: JournalRecord,
        waiter: Option<oneshot::Sender<Result<()>>>,
        may_fail: bool,
    ) -> Result<()> {
        let line = record.to_line();
        let mut queue = self.shared.queue.lock();
        if queue.is_closed {
            return Err(closed_error());
        }
        queue.entries.push_back(QueuedRecord {
            record,
            line,
            waiter,
            may_fail,
        });
        drop(queue);
        self.shared.wake.notify_one();
        Ok(())
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.close_queue();
    }
}

/// Returns a random number, or zero if the system provides none. It makes ids differ between gateways that start in the
/// same millisecond, and it varies retry delays.
pub(crate) fn random_u16() -> u16 {
    let mut bytes = [0; 2];
    // Without random numbers, the time alone makes ids unique.
    let _ = getrandom::fill(&mut bytes);
    u16::from_le_bytes(bytes)
}

fn closed_error() -> Error {
    Error::new(
        ErrorKind::Cancelled,
        "cannot write the journal: the gateway is stopping; try again after its restart",
    )
}

async fn run_writer(shared: Arc<JournalInner>, mut journal_file: JournalFile) {
    loop {
        let batch = take_batch(&shared);
        let Some(batch) = batch else { return };
        if batch.is_empty() {
            shared.wake.notified().await;
            continue;
        }
        let writer_inner = Arc::clone(&shared);
        let work = move || {
            let unwritten = write_batch(&mut journal_file, batch, &writer_inner);
            (journal_file, unwritten)
        };
        let Ok((returned_file, unwritten)) = tokio::task::spawn_blocking(work).await else {
            // The runtime is stopping or the writer panicked. Either way, nothing is acknowledged anymore.
            shared.queue.lock().is_closed = true;
            return;
        };
        journal_file = returned_file;
        if !unwritten.is_empty() {
            let mut entries = VecDeque::from(unwritten);
            {
                let mut queue = shared.queue.lock();
                entries.append(&mut queue.entries);
                queue.entries = entries;
            }
            tokio::time::sleep(WRITE_RETRY_DELAY).await;
        }
    }
}

/// Takes queued records up to [`MAX_WRITE_BYTES`]. Returns `None` if the queue is empty and closed.
fn take_batch(shared: &JournalInner) -> Option<Vec<QueuedRecord>> {
    let mut queue = shared.queue.lock();
    if queue.entries.is_empty() && queue.is_closed {
        return None;
    }
    let mut bytes = 0;
    let fitting = queue.entries.iter().take_while(|entry| {
        bytes += entry.line.len();
        bytes < MAX_WRITE_BYTES
    });
    // A record that exceeds the limit is written alone.
    let count = fitting.count().max(1).min(queue.entries.len());
    Some(queue.entries.drain(..count).collect())
}

/// Writes a batch and notifies its waiters. Returns the records that must be retried.
fn write_batch(
    journal_file: &mut JournalFile,
    batch: Vec<QueuedRecord>,
    shared: &JournalInner,
) -> Vec<QueuedRecord> {
    let lines: Vec<_> = batch.iter().map(|entry| entry.line.as_slice()).collect();
    let lines = lines.concat();
    match journal_file.append_lines(&lines, &shared.live) {
        Ok(()) => {
            let mut waiters = Vec::with_capacity(batch.len());
            let mut live = shared.live.lock();
            for entry in batch {
                live.apply(entry.record);
                waiters.extend(entry.waiter);
            }
            drop(live);
            for waiter in waiters {
                // An error means that the waiter is gone.
                let _ = waiter.send(Ok(()));
            }
            journal_file.rotate_if_large(&shared.live);
            Vec::new()
        }
        Err(error) => {
            tracing::error!(%error, delay_ms = WRITE_RETRY_DELAY.as_millis(), "journal.commit_failed");
            let (failed, retried): (Vec<_>, Vec<_>) =
                batch.into_iter().partition(|entry| entry.may_fail);
            for entry in failed {
                let error = Error::new(
                    ErrorKind::Temporary,
                    format!("cannot write the journal: {error}; check the disk space and retry"),
                );
                if let Some(waiter) = entry.waiter {
                    let _ = waiter.send(Err(error.with_retry_after(WRITE_RETRY_DELAY)));
                }
            }
            retried
        }
    }
}
