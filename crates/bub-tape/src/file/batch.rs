//! Batches that are about to be written to a tape.

use tokio::sync::oneshot;

use crate::{AppendReceipt, Entry, EntryId, Result, codec};

/// Entries and their encoded lines. The lines lack the ids, which are assigned under the tape's lock.
#[derive(Debug)]
pub(crate) struct Batch {
    entries: Vec<Entry>,
    bodies: Vec<u8>,
    /// The end of each entry's body in `bodies`.
    ends: Vec<usize>,
}

impl Batch {
    pub(crate) fn new(entries: Vec<Entry>) -> Self {
        let mut bodies = Vec::with_capacity(entries.len() * 400);
        let mut ends = Vec::with_capacity(entries.len());
        for entry in &entries {
            codec::encode_body(&mut bodies, entry);
            ends.push(bodies.len());
        }
        Self {
            entries,
            bodies,
            ends,
        }
    }

    /// Assigns ids to the entries and appends their lines to `lines`.
    pub(crate) fn append_to(&mut self, lines: &mut CommitBuffer) -> Vec<EntryId> {
        let mut start = 0;
        let mut ids = Vec::with_capacity(self.entries.len());
        for (entry, end) in self.entries.iter_mut().zip(&self.ends) {
            lines.max_id = lines.max_id.next();
            entry.id = lines.max_id;
            ids.push(entry.id);
            lines.starts.push(lines.bytes.len());
            codec::push_line(
                &mut lines.bytes,
                entry.id,
                self.bodies.get(start..*end).unwrap_or_default(),
            );
            start = *end;
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
    /// The start of each line in `bytes`.
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
