//! Reads a complete tape and reports damage.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use serde_json::Value;

use super::{
    FileStore, blobs::FileBlobs, context::IoResultExt as _, index::Index, lease,
    snapshot::Snapshot, tape_file::TapeFile,
};
use crate::{BlobId, Entry, EntryId, EntryKind, Result, TapeError, TapeName, codec};

/// Event that records that a user accepted ids out of order and unpaired tool results. Only rewriting history could
/// repair them.
pub(crate) const ACCEPTED_EVENT: &str = "tape.accepted";

/// One defect of a tape and its location.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// The tape ends with bytes that are not a complete entry.
    #[error("torn tail: the last {bytes} bytes, from byte {offset}, are not a complete entry")]
    TornTail {
        /// Byte offset of the end of the last complete entry.
        offset: u64,
        /// Number of bytes from `offset` to the end of the file.
        bytes: u64,
    },
    /// A line is not an entry. Readers skip it.
    #[error("line {line} (byte {offset}) is not an entry")]
    BadLine {
        /// Line number, starting at 1.
        line: u64,
        /// Offset of the line in bytes.
        offset: u64,
    },
    /// An id is not higher than the previous one.
    #[error("line {line}: {}", describe_id_order(*id, *previous))]
    IdOrder {
        /// Line number, starting at 1.
        line: u64,
        /// The id that is not higher than `previous`.
        id: EntryId,
        /// The id of the previous entry.
        previous: EntryId,
    },
    /// Tool results without tool calls.
    #[error("entry {id}: tool results without calls")]
    Unpaired {
        /// The entry with the results.
        id: EntryId,
    },
    /// An entry refers to a missing or damaged blob.
    #[error("entry {id}: blob {blob} is {}", if *missing { "missing" } else { "damaged" })]
    BadBlob {
        /// The entry that refers to the blob.
        id: EntryId,
        /// The blob id, as written in the entry.
        blob: String,
        /// Whether the blob is missing; otherwise it is damaged.
        missing: bool,
    },
    /// The index is invalid or does not match the tape.
    #[error("the index does not match the tape")]
    StaleIndex,
}

impl Damage {
    /// Returns whether the defect can be accepted: all readers handle it, and only rewriting history could repair it.
    pub fn is_acceptable(&self) -> bool {
        matches!(self, Self::IdOrder { .. } | Self::Unpaired { .. })
    }
}

fn describe_id_order(id: EntryId, previous: EntryId) -> String {
    if id == previous {
        format!("duplicate id {id}")
    } else {
        format!("id {id} follows id {previous}")
    }
}

/// The result of checking a tape.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Number of entries.
    pub entries: u64,
    /// The defects, in tape order.
    pub damage: Vec<Damage>,
    /// Entries with tool calls whose turn was interrupted before it recorded the results. This is not damage; views
    /// show such calls as interrupted.
    pub interrupted: Vec<EntryId>,
}

impl FileStore {
    /// Reads a complete tape and reports damage. Changes nothing.
    pub async fn verify(&self, tape: &TapeName) -> Result<VerifyReport> {
        self.with_tape_file(tape, TapeFile::verify).await
    }
}

impl TapeFile {
    fn verify(&mut self) -> Result<VerifyReport> {
        let Some(snapshot) = Snapshot::capture(&self.store, &self.tape)? else {
            return Ok(VerifyReport::default());
        };
        // The last calls of a running turn may not have results yet.
        let is_running = lease::lease_holder(&self.store, &self.tape).is_some();
        let mut checker = Checker::new(self);
        snapshot.for_each_line(0, |offset, line| checker.check_line(offset, line))?;
        let mut verify_report = checker.finish(is_running);
        verify_report.damage.extend(self.find_torn_tail()?);
        if self.is_index_stale(&snapshot)? {
            verify_report.damage.push(Damage::StaleIndex);
        }
        Ok(verify_report)
    }

    /// Returns [`Damage::TornTail`] if there are bytes after the last complete entry. Takes the lock to distinguish
    /// these bytes from a batch that is being written.
    fn find_torn_tail(&mut self) -> Result<Option<Damage>> {
        let find_tail = |tape_file: &Self| {
            let Some(snapshot) = Snapshot::capture(&tape_file.store, &tape_file.tape)? else {
                return Ok(None);
            };
            let stat = snapshot.file.stat().describe("read", &snapshot.path)?;
            let (offset, bytes) = (snapshot.end, stat.size.saturating_sub(snapshot.end));
            Ok((bytes > 0).then_some(Damage::TornTail { offset, bytes }))
        };
        let first = find_tail(self)?;
        if first.is_none() {
            return Ok(None);
        }
        match self.lock() {
            Ok(_lock) => find_tail(self),
            // If locking fails, for example on a read-only disk, no process of bub can write to the tape.
            Err(_) => Ok(first),
        }
    }

    /// Returns whether the index contradicts the tape. An index that covers only a prefix of the tape is not stale.
    fn is_index_stale(&self, snapshot: &Snapshot) -> Result<bool> {
        let path = self.store.paths.index_file(&self.tape);
        if self.store.stat(&path)?.is_none() {
            return Ok(false);
        }
        let Some(stored) = self.load_index(snapshot) else {
            return Ok(true);
        };
        let mut rebuilt = Index::default();
        rebuilt.extend_to(&Snapshot {
            end: stored.covered,
            ..snapshot.clone()
        })?;
        let marks = self.all_marks(&stored);
        Ok(stored.summary != rebuilt.summary
            || marks.is_none()
            || marks != self.all_marks(&rebuilt))
    }
}

struct Checker {
    blobs: FileBlobs,
    /// Whether to check that results have calls. Sidecars contain results of calls on other tapes.
    checks_pairs: bool,
    line_number: u64,
    previous: Option<EntryId>,
    /// Entries with tool calls that have no results yet, by run id.
    open_calls: HashMap<String, EntryId>,
    good_blobs: HashSet<BlobId>,
    verify_report: VerifyReport,
}

impl Checker {
    fn new(tape_file: &TapeFile) -> Self {
        Self {
            blobs: FileBlobs(Arc::clone(&tape_file.store)),
            checks_pairs: tape_file.tape.as_sidecar().is_none(),
            line_number: 0,
            previous: None,
            open_calls: HashMap::new(),
            good_blobs: HashSet::new(),
            verify_report: VerifyReport::default(),
        }
    }

    fn check_line(&mut self, offset: u64, line: &[u8]) -> Result<()> {
        self.line_number += 1;
        let Some(entry) = codec::decode(line) else {
            // Empty lines are harmless.
            if !line.trim_ascii().is_empty() {
                self.add_damage(Damage::BadLine {
                    line: self.line_number,
                    offset,
                });
            }
            return Ok(());
        };
        self.verify_report.entries += 1;
        let previous = self.previous.replace(entry.id);
        if let Some(previous) = previous.filter(|previous| entry.id <= *previous) {
            self.add_damage(Damage::IdOrder {
                line: self.line_number,
                id: entry.id,
                previous,
            });
        }
        if self.checks_pairs {
            self.check_call_pairing(&entry);
        }
        if entry.kind == EntryKind::Event && entry.name() == Some(ACCEPTED_EVENT) {
            self.verify_report
                .damage
                .retain(|damage| !damage.is_acceptable());
        }
        self.check_blobs(&entry)
    }

    fn check_call_pairing(&mut self, entry: &Entry) {
        let run = entry.meta.get("run_id").and_then(Value::as_str);
        let run = run.unwrap_or_default().to_owned();
        match entry.kind {
            EntryKind::ToolCall => {
                self.verify_report
                    .interrupted
                    .extend(self.open_calls.insert(run, entry.id));
            }
            EntryKind::ToolResult if self.open_calls.remove(&run).is_none() => {
                self.add_damage(Damage::Unpaired { id: entry.id });
            }
            _ => {}
        }
    }

    fn check_blobs(&mut self, entry: &Entry) -> Result<()> {
        for text in referenced_blob_ids(entry) {
            let missing = match BlobId::parse(text) {
                Ok(blob) if self.good_blobs.contains(&blob) => continue,
                Ok(blob) => match self.blobs.read_blob(&blob) {
                    Ok(_) => {
                        self.good_blobs.insert(blob);
                        continue;
                    }
                    Err(TapeError::NotFound(_)) => true,
                    Err(TapeError::Damaged { .. }) => false,
                    Err(error) => return Err(error),
                },
                Err(_) => true,
            };
            self.add_damage(Damage::BadBlob {
                id: entry.id,
                blob: text.to_owned(),
                missing,
            });
        }
        Ok(())
    }

    fn add_damage(&mut self, damage: Damage) {
        self.verify_report.damage.push(damage);
    }

    fn finish(mut self, is_running: bool) -> VerifyReport {
        if !is_running {
            let mut open_calls: Vec<_> = self.open_calls.values().copied().collect();
            open_calls.sort();
            self.verify_report.interrupted.extend(open_calls);
        }
        self.verify_report
    }
}

/// Returns the blob ids in an entry, as they are written there. They may be invalid.
fn referenced_blob_ids(entry: &Entry) -> impl Iterator<Item = &str> {
    let media = entry.meta.get("media").and_then(Value::as_array);
    media
        .into_iter()
        .flatten()
        .filter_map(|item| item.get("blob").and_then(Value::as_str))
}
