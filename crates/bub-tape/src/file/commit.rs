//! Writes batches to a tape in three steps: announce the batch in the lock record (intent), write its bytes, and mark
//! the lock record as idle.

use super::{
    batch::{Batch, CommitBuffer, PendingBatch},
    context::IoResultExt as _,
    lock_record::{LockPhase, LockRecord},
    tape_file::{TapeFile, TapeLock, WritableTape},
};
use crate::{AppendReceipt, Durability, EntryId, Result, TapeError};

// Marking the lock record as idle after a batch takes a tenth of the time of an append. It seems unnecessary: if the
// bytes on the tape match the intent, the batch is complete. But without it, every tape that is not in use would have
// an open intent. If the Python version deleted such a tape and created it again with the same inode, the new tape
// would look like an interrupted batch.

impl TapeFile {
    /// Commits all pending batches in one write and sends each caller its result.
    pub(crate) fn commit(&mut self, lock: &TapeLock, pending: Vec<PendingBatch>) {
        if pending.is_empty() {
            return;
        }
        let (mut batches, senders): (Vec<_>, Vec<_>) = pending
            .into_iter()
            .map(|pending| (pending.batch, pending.sender))
            .unzip();
        let outcome = self.write_batches(lock, &mut batches);
        // Ignore send errors: a caller may have dropped its receiver. Its batch is still committed.
        match outcome {
            Ok(ids) => {
                for (sender, ids) in senders.into_iter().zip(ids) {
                    drop(sender.send(Ok(AppendReceipt { ids })));
                }
            }
            Err(error) => {
                for sender in senders {
                    drop(sender.send(Err(error.clone())));
                }
            }
        }
    }

    fn write_batches(
        &mut self,
        lock: &TapeLock,
        batches: &mut [Batch],
    ) -> Result<Vec<Vec<EntryId>>> {
        let mut writable = self.make_writable(lock)?;
        let mut lines = CommitBuffer::new(EntryId::new(writable.record.max_id));
        let mut reports = Batch::new(std::mem::take(&mut writable.reports));
        reports.append_to(&mut lines);
        let ids = batches
            .iter_mut()
            .map(|batch| batch.append_to(&mut lines))
            .collect();
        let offset = writable.record.end;
        let record = self.write_lines(lock, &writable, &lines)?;
        let entries = reports
            .entries()
            .iter()
            .chain(batches.iter().flat_map(Batch::entries));
        let positions = lines.starts.iter().map(|start| offset + *start as u64);
        self.index_batch(&writable.open, (offset, record.end), entries.zip(positions));
        Ok(ids)
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
