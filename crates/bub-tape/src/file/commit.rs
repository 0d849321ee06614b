//! Writes batches to a tape in three steps: announce the batch in the lock record (intent), write its bytes, and mark
//! the lock record as idle.

use tokio::sync::oneshot;

use super::{
    chain::{CHAIN_KEY, ChainState},
    context::IoResultExt as _,
    lock_record::{LockPhase, LockRecord},
    tape_file::{TapeFile, TapeLock, WritableTape},
};
use crate::{AppendReceipt, Durability, Entry, EntryId, Result, TapeError, codec};

/// Entries and their encoded lines. The lines lack the ids, which are assigned under the tape's lock.
#[derive(Debug)]
pub(crate) struct Batch {
    entries: Vec<Entry>,
    bodies: Vec<Vec<u8>>,
}

impl Batch {
    pub(crate) fn new(mut entries: Vec<Entry>) -> Self {
        for entry in &mut entries {
            // A copied entry does not belong to the chain of its source.
            entry.extra.shift_remove(CHAIN_KEY);
        }
        let bodies = entries.iter().map(codec::encode_body).collect();
        Self { entries, bodies }
    }

    /// Assigns ids to the entries and appends their lines to `lines`.
    pub(crate) fn append_to(&mut self, lines: &mut CommitBuffer) {
        for (entry, body) in self.entries.iter_mut().zip(&self.bodies) {
            lines.max_id = lines.max_id.next();
            entry.id = lines.max_id;
            let start = lines.bytes.len();
            lines.starts.push(start);
            codec::push_line(&mut lines.bytes, entry.id, body);
            if let Some(chain) = &mut lines.chain {
                chain.seal_line(&mut lines.bytes, start);
            }
        }
    }

    /// Returns the ids that [`append_to`](Self::append_to) assigned.
    pub(crate) fn ids(&self) -> Vec<EntryId> {
        self.entries.iter().map(|entry| entry.id).collect()
    }
}

/// The bytes of one commit, which can contain several batches.
#[derive(Debug)]
pub(crate) struct CommitBuffer {
    pub(crate) bytes: Vec<u8>,
    /// The offsets in `bytes` at which the lines start.
    pub(crate) starts: Vec<usize>,
    pub(crate) max_id: EntryId,
    /// The hash chain up to the last line, if entries are chained.
    pub(crate) chain: Option<ChainState>,
}

impl CommitBuffer {
    /// Creates an empty buffer. Its first entry gets the id after `max_id`.
    pub(crate) fn new(max_id: EntryId) -> Self {
        Self {
            bytes: Vec::with_capacity(8 * 1024),
            starts: Vec::new(),
            max_id,
            chain: None,
        }
    }
}

/// A queued batch and the sender for its result.
#[derive(Debug)]
pub(crate) struct PendingBatch {
    pub(crate) batch: Batch,
    pub(crate) sender: oneshot::Sender<Result<AppendReceipt>>,
}

// Marking the lock record as idle after a batch takes a tenth of the time of an append. It seems unnecessary: if the
// bytes on the tape match the intent, the batch is complete. But without it, every tape that is not in use would have
// an open intent. If the Python version deleted such a tape and created it again with the same inode, the new tape
// would look like an interrupted batch.

impl TapeFile {
    /// Commits all pending batches in one write and sends each caller its result. If the lock could not be taken, this is
    /// the result.
    pub(crate) fn commit(&mut self, lock: Result<TapeLock>, mut pending: Vec<PendingBatch>) {
        if pending.is_empty() {
            return;
        }
        let outcome = lock.and_then(|lock| self.write_batches(&lock, &mut pending));
        for PendingBatch { batch, sender } in pending {
            let receipt = outcome.clone().map(|()| AppendReceipt { ids: batch.ids() });
            // Ignore send errors: a caller may have dropped its receiver. Its batch is still committed.
            drop(sender.send(receipt));
        }
    }

    fn write_batches(&mut self, lock: &TapeLock, pending: &mut [PendingBatch]) -> Result<()> {
        let mut writable = self.make_writable(lock)?;
        let mut lines = CommitBuffer::new(EntryId::new(writable.record.max_id));
        lines.chain = self.chain_state(&mut writable)?;
        let mut reports = Batch::new(std::mem::take(&mut writable.reports));
        reports.append_to(&mut lines);
        for pending in &mut *pending {
            pending.batch.append_to(&mut lines);
        }
        let offset = writable.record.end;
        let record = self.write_lines(lock, &writable, &lines)?;
        let batches = pending.iter().map(|pending| &pending.batch);
        let entries = [&reports]
            .into_iter()
            .chain(batches)
            .flat_map(|batch| &batch.entries);
        let positions = lines.starts.iter().map(|start| offset + *start as u64);
        self.index_batch(&writable.open, (offset, record.end), entries.zip(positions));
        self.chain = lines.chain;
        Ok(())
    }

    fn write_lines(
        &mut self,
        lock: &TapeLock,
        writable: &WritableTape,
        lines: &CommitBuffer,
    ) -> Result<LockRecord> {
        let intent = LockRecord {
            phase: LockPhase::Batch,
            length: lines.bytes.len() as u64,
            crc: crc32fast::hash(&lines.bytes),
            next_max_id: lines.max_id.get(),
            ..writable.record
        };
        let intent = self.write_lock_record(lock, intent)?;
        let undo = |error| self.undo_batch(lock, writable, intent, error);
        let file = &*writable.open.file;
        file.write_all_at(&lines.bytes, intent.end)
            .describe("append to", &self.path)
            .map_err(undo)?;
        let mut committed = intent.to_committed();
        let head = lines.chain.as_ref();
        let head = head.and_then(|chain| chain.head(committed.end));
        committed.head = head.or(intent.head);
        if self.store.durability == Durability::Always {
            if let Err(error) = file.sync() {
                let error = undo(self.sync_error(error));
                self.has_failed_sync = true;
                return Err(error);
            }
            committed.synced = committed.end;
        }
        self.write_lock_record(lock, committed).map_err(undo)
    }

    /// Removes an unacknowledged batch. Returns the error to report, which is `error` if the bytes of the batch are
    /// gone. Otherwise the intent stays, and the next lock holder commits the batch if it is complete.
    fn undo_batch(
        &self,
        lock: &TapeLock,
        writable: &WritableTape,
        intent: LockRecord,
        error: TapeError,
    ) -> TapeError {
        if let Err(source) = writable.open.file.set_len(intent.end) {
            return TapeError::UndoFailed {
                path: self.path.display().to_string(),
                source: source.into(),
            };
        }
        // With `Durability::Always`, the record written here must be on disk before the next batch is acknowledged. The
        // phase `Suspect` makes the next writer sync it.
        let phase = if self.store.durability == Durability::Always {
            LockPhase::Suspect
        } else {
            LockPhase::Idle
        };
        let before = LockRecord {
            sequence: intent.sequence,
            phase,
            ..writable.record
        };
        if let Err(error) = self.write_lock_record(lock, before) {
            tracing::debug!(tape = %self.tape, %error, "tape.intent_update_failed");
        }
        error
    }
}
