//! The inbox and the outbox: accepted messages whose turn is not finished, and replies that are not delivered.
//!
//! On disk it is one file that only grows, written by one task for all who wait. A record is acknowledged when it is
//! written, and with durability `always` when it is synced; all that wait share one write. After a failure nothing is
//! acknowledged until everything live stands in a new file and was read back.
//!
//! A journal in memory keeps the same contract for as long as the process lives.

mod file;
mod record;
mod state;

use std::{
    collections::VecDeque,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bub_kernel::{Error, ErrorKind, MessageId, ReplyId, Result};
use bub_tape::{Durability, fs::Fs};
use tokio::sync::{Notify, oneshot};

use self::file::JournalFile;
pub use self::file::JournalRecovery;
#[doc(hidden)]
pub use self::file::replay_for_fuzzing;
pub(crate) use self::{
    record::{AcceptedMessage, JournalRecord, ReplyRecord, StoredSender, now, raw},
    state::{JournalState, UnfinishedMessage},
};

/// How long after a failure the next attempt is made.
const WRITE_RETRY_DELAY: Duration = Duration::from_secs(1);
/// So much is written at once.
const MAX_WRITE_BYTES: usize = 1024 * 1024;

/// The journal of a gateway.
#[derive(Debug)]
pub(crate) struct Journal {
    shared: Arc<JournalInner>,
    stamp: u64,
    ids: AtomicU64,
    is_durable: bool,
    writer: Mutex<Option<tokio::task::JoinHandle<()>>>,
}

#[derive(Debug)]
struct JournalInner {
    queue: Mutex<Queue>,
    wake: Notify,
    live: Mutex<JournalState>,
}

#[derive(Debug, Default)]
struct Queue {
    entries: VecDeque<QueuedRecord>,
    is_closed: bool,
}

#[derive(Debug)]
struct QueuedRecord {
    record: JournalRecord,
    line: Vec<u8>,
    waiting: Option<oneshot::Sender<Result<()>>>,
    /// Whether it is given up when it cannot be written; else it stays until it can.
    may_fail: bool,
}

impl Journal {
    /// Opens the journal in a directory, recovers what is live, and starts writing.
    pub(crate) fn open(
        fs: Arc<dyn Fs>,
        directory: &Path,
        durability: Durability,
    ) -> Result<(Self, JournalRecovery)> {
        let (segment, live, recovered) = JournalFile::open(fs, directory, durability)?;
        let shared = Arc::new(JournalInner {
            queue: Mutex::default(),
            wake: Notify::new(),
            live: Mutex::new(live),
        });
        let writer = tokio::spawn(write_all(Arc::clone(&shared), segment));
        Ok((Self::new(shared, Some(writer)), recovered))
    }

    /// Makes an empty journal that lives in memory and goes with the process.
    pub(crate) fn in_memory() -> Self {
        let shared = JournalInner {
            queue: Mutex::default(),
            wake: Notify::new(),
            live: Mutex::default(),
        };
        Self::new(Arc::new(shared), None)
    }

    fn new(shared: Arc<JournalInner>, writer: Option<tokio::task::JoinHandle<()>>) -> Self {
        Self {
            shared,
            stamp: (now() << 16) | u64::from(random()),
            ids: AtomicU64::new(0),
            is_durable: writer.is_some(),
            writer: Mutex::new(writer),
        }
    }

    /// Whether what it holds survives the death of the process.
    pub(crate) fn is_durable(&self) -> bool {
        self.is_durable
    }

    /// What is not finished in a directory; nothing there is changed, so this works where nothing can be written.
    pub(crate) fn peek(fs: &dyn Fs, directory: &Path) -> Result<JournalState> {
        file::read(fs, directory).map(|(live, ..)| live)
    }

    /// An id that no other message of this journal has, had or will have.
    pub(crate) fn next_message_id(&self) -> MessageId {
        self.next_id().into()
    }

    /// An id that no other reply of this journal has, had or will have.
    pub(crate) fn next_reply_id(&self) -> ReplyId {
        self.next_id().into()
    }

    fn next_id(&self) -> String {
        format!(
            "{:x}-{:x}",
            self.stamp,
            self.ids.fetch_add(1, Ordering::Relaxed)
        )
    }

    /// Writes a record; an error means that it is not written, as far as anybody can know.
    pub(crate) async fn append(&self, record: JournalRecord) -> Result<()> {
        self.push(record, true).await
    }

    /// Writes a record, however long that takes. An error only when the journal is closed.
    pub(crate) async fn commit(&self, record: JournalRecord) -> Result<()> {
        self.push(record, false).await
    }

    /// Has a record written soon. What was asked for later is not written before it.
    pub(crate) fn post(&self, record: JournalRecord) {
        // Closed: the next start finds out by itself.
        let _ = if self.is_durable {
            self.enqueue(record, None, false)
        } else {
            self.apply(record)
        };
    }

    /// What is not finished.
    pub(crate) fn live(&self) -> MutexGuard<'_, JournalState> {
        lock(&self.shared.live)
    }

    /// How many records wait to be written.
    pub(crate) fn backlog(&self) -> usize {
        lock(&self.shared.queue).entries.len()
    }

    /// Writes what waits and lets go of the lock.
    pub(crate) async fn close(&self) {
        self.close_queue();
        let writer = lock(&self.writer).take();
        if let Some(writer) = writer {
            // It ends by itself, unless the disk is full for good.
            let _ = tokio::time::timeout(Duration::from_secs(5), writer).await;
        }
    }

    fn close_queue(&self) {
        lock(&self.shared.queue).is_closed = true;
        self.shared.wake.notify_one();
    }

    async fn push(&self, record: JournalRecord, may_fail: bool) -> Result<()> {
        if !self.is_durable {
            return self.apply(record);
        }
        let (waiting, written) = oneshot::channel();
        self.enqueue(record, Some(waiting), may_fail)?;
        written.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Takes a record into the journal in memory.
    fn apply(&self, record: JournalRecord) -> Result<()> {
        if lock(&self.shared.queue).is_closed {
            return Err(closed());
        }
        lock(&self.shared.live).apply(record);
        Ok(())
    }

    fn enqueue(
        &self,
        record: JournalRecord,
        waiting: Option<oneshot::Sender<Result<()>>>,
        may_fail: bool,
    ) -> Result<()> {
        let line = record.line();
        let mut queue = lock(&self.shared.queue);
        if queue.is_closed {
            return Err(closed());
        }
        queue.entries.push_back(QueuedRecord {
            record,
            line,
            waiting,
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

/// Two gateways that start in the same millisecond give out different ids.
pub(crate) fn random() -> u16 {
    let mut bytes = [0; 2];
    // Without it, a millisecond has to do.
    let _ = getrandom::fill(&mut bytes);
    u16::from_le_bytes(bytes)
}

fn closed() -> Error {
    Error::new(ErrorKind::Cancelled, "the gateway is stopping")
}

async fn write_all(shared: Arc<JournalInner>, mut segment: JournalFile) {
    loop {
        let batch = take_batch(&shared);
        let Some(batch) = batch else { return };
        if batch.is_empty() {
            shared.wake.notified().await;
            continue;
        }
        let for_writing = Arc::clone(&shared);
        let work = move || {
            let left = write_batch(&mut segment, batch, &for_writing);
            (segment, left)
        };
        let Ok((used, left)) = tokio::task::spawn_blocking(work).await else {
            // The runtime ends, or the writer panicked: either way nothing is acknowledged any more.
            lock(&shared.queue).is_closed = true;
            return;
        };
        segment = used;
        if !left.is_empty() {
            requeue(&shared, left);
            tokio::time::sleep(WRITE_RETRY_DELAY).await;
        }
    }
}

fn requeue(shared: &JournalInner, left: Vec<QueuedRecord>) {
    let mut queue = lock(&shared.queue);
    for entry in left.into_iter().rev() {
        queue.entries.push_front(entry);
    }
}

/// What waits, up to a limit; `None` when nothing waits and nothing will.
fn take_batch(shared: &JournalInner) -> Option<Vec<QueuedRecord>> {
    let mut queue = lock(&shared.queue);
    if queue.entries.is_empty() && queue.is_closed {
        return None;
    }
    let mut bytes = 0;
    let fitting = queue.entries.iter().take_while(|entry| {
        bytes += entry.line.len();
        bytes < MAX_WRITE_BYTES
    });
    // One that is bigger than all of that goes alone.
    let count = fitting.count().max(1).min(queue.entries.len());
    Some(queue.entries.drain(..count).collect())
}

/// Writes a batch and tells those who wait; returns what is still to be written.
fn write_batch(
    segment: &mut JournalFile,
    batch: Vec<QueuedRecord>,
    shared: &JournalInner,
) -> Vec<QueuedRecord> {
    let lines = batch
        .iter()
        .map(|entry| entry.line.as_slice())
        .collect::<Vec<_>>()
        .concat();
    match segment.write(&lines, &shared.live) {
        Ok(()) => {
            let mut told = Vec::with_capacity(batch.len());
            let mut live = lock(&shared.live);
            for entry in batch {
                live.apply(entry.record);
                told.extend(entry.waiting);
            }
            drop(live);
            for waiting in told {
                // Whoever waited may be gone.
                let _ = waiting.send(Ok(()));
            }
            segment.rotate(&shared.live);
            Vec::new()
        }
        Err(error) => {
            tracing::error!(%error, delay_ms = WRITE_RETRY_DELAY.as_millis(), "journal.commit_failed");
            let (refused, kept): (Vec<_>, Vec<_>) =
                batch.into_iter().partition(|entry| entry.may_fail);
            for entry in refused {
                let refusal = Error::new(
                    ErrorKind::Temporary,
                    format!("the journal cannot be written: {error}"),
                );
                if let Some(waiting) = entry.waiting {
                    let _ = waiting.send(Err(refusal.with_retry_after(WRITE_RETRY_DELAY)));
                }
            }
            kept
        }
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
