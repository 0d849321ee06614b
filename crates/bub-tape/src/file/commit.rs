//! Writing batches: intent, bytes, done.

use super::{
    batch::{Batch, CommitBuffer, PendingBatch},
    lock_record::{LockPhase, LockRecord},
    tape_file::{TapeFile, TapeLock, WritableTape},
};
use crate::{AppendReceipt, Durability, EntryId, Result};

// A batch whose bytes match its intent would be proof enough that it is done, and the note behind it costs a tenth of an
// append. But then every tape at rest would have an intent open, and one that the original deletes and makes anew under
// the same inode would look like a torn batch.

impl TapeFile {
    /// Commits everything that waits as one write, and answers everybody.
    pub(crate) fn commit(&mut self, held: &TapeLock, waiting: Vec<PendingBatch>) {
        if waiting.is_empty() {
            return;
        }
        let (mut batches, replies): (Vec<_>, Vec<_>) = waiting
            .into_iter()
            .map(|pending| (pending.batch, pending.reply))
            .unzip();
        let outcome = self.write(held, &mut batches);
        // Somebody who no longer waits has dropped the receiver; the batch stands all the same.
        match outcome {
            Ok(ids) => {
                for (reply, ids) in replies.into_iter().zip(ids) {
                    drop(reply.send(Ok(AppendReceipt { ids })));
                }
            }
            Err(error) => {
                for reply in replies {
                    drop(reply.send(Err(error.clone())));
                }
            }
        }
    }

    fn write(&mut self, held: &TapeLock, batches: &mut [Batch]) -> Result<Vec<Vec<EntryId>>> {
        let mut writable = self.make_writable(held)?;
        let mut lines = CommitBuffer::after(EntryId::new(writable.record.max_id));
        let mut reports = Batch::new(std::mem::take(&mut writable.reports));
        reports.write(&mut lines);
        let ids = batches
            .iter_mut()
            .map(|batch| batch.write(&mut lines))
            .collect();
        let offset = writable.record.end;
        let record = self.write_lines(held, &writable, &lines)?;
        let entries = reports
            .entries()
            .iter()
            .chain(batches.iter().flat_map(Batch::entries));
        let positions = lines.starts.iter().map(|start| offset + *start as u64);
        self.note_batch(&writable.open, (offset, record.end), entries.zip(positions));
        Ok(ids)
    }

    fn write_lines(
        &mut self,
        held: &TapeLock,
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
        let intent = self.write_record(held, intent)?;
        let written = writable.open.file.write_all_at(&lines.bytes, intent.end);
        if let Err(error) = written {
            self.undo_batch(held, writable, intent);
            return Err(self.error("append to", error));
        }
        let mut done = intent.done();
        if self.store_context.durability == Durability::Always {
            if let Err(error) = writable.open.file.sync() {
                self.suspect = true;
                self.undo_batch(held, writable, intent);
                return Err(self.not_durable(error));
            }
            done.synced = done.end;
        }
        self.write_record(held, done)
            .inspect_err(|_| self.undo_batch(held, writable, intent))
    }

    /// Undoes a batch that nobody will be told about. If even that fails, the intent stays and the next holder does it.
    fn undo_batch(&self, held: &TapeLock, writable: &WritableTape, intent: LockRecord) {
        if writable.open.file.set_len(intent.end).is_err() {
            return;
        }
        // With `always`, also that the intent is given up has to reach the disk before anything else is acknowledged.
        let phase = if self.store_context.durability == Durability::Always {
            LockPhase::Suspect
        } else {
            LockPhase::Idle
        };
        let before = LockRecord {
            sequence: intent.sequence,
            phase,
            ..writable.record
        };
        if let Err(error) = self.write_record(held, before) {
            tracing::debug!(tape = %self.tape, %error, "tape.intent_update_failed");
        }
    }
}
