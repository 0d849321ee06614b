//! Writing batches: intent, bytes, done.

use super::{
    batch::{Batch, Lines, Pending},
    core::{Core, Ground, Held},
    record::{Phase, Record},
};
use crate::{Appended, Durability, EntryId, Result};

// A batch whose bytes match its intent would be proof enough that it is done, and the note behind it costs a tenth of an
// append. But then every tape at rest would have an intent open, and one that the original deletes and makes anew under
// the same inode would look like a torn batch.

impl Core {
    /// Commits everything that waits as one write, and answers everybody.
    pub(crate) fn commit(&mut self, held: &Held, waiting: Vec<Pending>) {
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
                    drop(reply.send(Ok(Appended { ids })));
                }
            }
            Err(error) => {
                for reply in replies {
                    drop(reply.send(Err(error.clone())));
                }
            }
        }
    }

    fn write(&mut self, held: &Held, batches: &mut [Batch]) -> Result<Vec<Vec<EntryId>>> {
        let mut ground = self.settle(held)?;
        let mut lines = Lines::after(EntryId::new(ground.record.max_id));
        let mut reports = Batch::new(std::mem::take(&mut ground.reports));
        reports.write(&mut lines);
        let ids = batches
            .iter_mut()
            .map(|batch| batch.write(&mut lines))
            .collect();
        let offset = ground.record.end;
        let record = self.write_lines(held, &ground, &lines)?;
        let entries = reports
            .entries()
            .iter()
            .chain(batches.iter().flat_map(Batch::entries));
        let positions = lines.starts.iter().map(|start| offset + *start as u64);
        self.note_batch(&ground.open, (offset, record.end), entries.zip(positions));
        Ok(ids)
    }

    fn write_lines(&mut self, held: &Held, ground: &Ground, lines: &Lines) -> Result<Record> {
        let intent = Record {
            phase: Phase::Batch,
            length: lines.bytes.len() as u64,
            crc: crc32fast::hash(&lines.bytes),
            next_max_id: lines.max_id.get(),
            ..ground.record
        };
        let intent = self.note(held, intent)?;
        let written = ground.open.file.write_all_at(&lines.bytes, intent.end);
        if let Err(error) = written {
            self.take_back(held, ground, intent);
            return Err(self.error("append to", error));
        }
        let mut done = intent.done();
        if self.shared.durability == Durability::Always {
            if let Err(error) = ground.open.file.sync() {
                self.suspect = true;
                self.take_back(held, ground, intent);
                return Err(self.not_durable(error));
            }
            done.synced = done.end;
        }
        self.note(held, done)
            .inspect_err(|_| self.take_back(held, ground, intent))
    }

    /// Undoes a batch that nobody will be told about. If even that fails, the intent stays and the next holder does it.
    fn take_back(&self, held: &Held, ground: &Ground, intent: Record) {
        if ground.open.file.set_len(intent.end).is_err() {
            return;
        }
        // With `always`, also that the intent is given up has to reach the disk before anything else is acknowledged.
        let phase = if self.shared.durability == Durability::Always {
            Phase::Suspect
        } else {
            Phase::Idle
        };
        let before = Record {
            sequence: intent.sequence,
            phase,
            ..ground.record
        };
        if let Err(error) = self.note(held, before) {
            tracing::debug!(tape = %self.tape, %error, "tape.intent_left");
        }
    }
}
