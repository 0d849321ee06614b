//! Batches that are about to be written to a tape.

use tokio::sync::oneshot;

use crate::{AppendReceipt, Entry, EntryId, Result, codec};

/// Entries and their encoded lines. The lines lack the ids, which are assigned under the tape's lock.
#[derive(Debug)]
pub(crate) struct Batch {
    entries: Vec<Entry>,
    bodies: Vec<Vec<u8>>,
}

impl Batch {
    pub(crate) fn new(entries: Vec<Entry>) -> Self {
        let bodies = entries.iter().map(codec::encode_body).collect();
        Self { entries, bodies }
    }

    /// Assigns ids to the entries and appends their lines to `lines`.
    pub(crate) fn append_to(&mut self, lines: &mut CommitBuffer) -> Vec<EntryId> {
        let mut ids = Vec::with_capacity(self.entries.len());
        for (entry, body) in self.entries.iter_mut().zip(&self.bodies) {
            lines.max_id = lines.max_id.next();
            entry.id = lines.max_id;
            ids.push(entry.id);
            lines.starts.push(lines.bytes.len());
            codec::push_line(&mut lines.bytes, entry.id, body);
        }
        ids
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }
}

/// The bytes of one commit, which can contain several batches.
#[derive(Debug)]
pub(crate) struct CommitBuffer {
    pub(crate) bytes: Vec<u8>,
    /// The offsets in `bytes` at which the lines start.
    pub(crate) starts: Vec<usize>,
    pub(crate) max_id: EntryId,
}

impl CommitBuffer {
    /// Creates an empty buffer. Its first entry gets the id after `max_id`.
    pub(crate) fn new(max_id: EntryId) -> Self {
        Self {
            bytes: Vec::with_capacity(8 * 1024),
            starts: Vec::new(),
            max_id,
        }
    }
}

/// A queued batch and the sender for its result.
#[derive(Debug)]
pub(crate) struct PendingBatch {
    pub(crate) batch: Batch,
    pub(crate) sender: oneshot::Sender<Result<AppendReceipt>>,
}
