//! Reads a complete tape and reports damage.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::Arc,
};

use serde_json::Value;

use super::{
    FileStore, blobs::FileBlobs, context::StoreContext, file_ops::not_found_to_none, index::Index,
    lines::ForwardLines, snapshot::Snapshot, tape_file::TapeFile,
};
use crate::{BlobId, Entry, EntryId, EntryKind, Result, TapeError, TapeName, codec};

/// Event that records that a user accepted ids out of order and unpaired tool results. Only rewriting history could
/// repair them.
pub(crate) const ACCEPTED_EVENT: &str = "tape.accepted";

/// One defect of a tape and its location.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Damage {
    /// The tape ends with bytes that are not a complete entry.
    TornTail {
        /// Offset of the first of these bytes.
        offset: u64,
        /// Number of these bytes.
        bytes: u64,
    },
    /// A line is not an entry. Readers skip it.
    BadLine {
        /// Line number, starting at 1.
        line: u64,
        /// Offset of the line in bytes.
        offset: u64,
    },
    /// An id is not higher than the previous one.
    IdOrder {
        /// Line number, starting at 1.
        line: u64,
        /// The id.
        id: EntryId,
        /// The previous id.
        previous: EntryId,
    },
    /// Tool results without tool calls.
    Unpaired {
        /// The entry with the results.
        id: EntryId,
    },
    /// An entry refers to a missing or damaged blob.
    BadBlob {
        /// The entry.
        id: EntryId,
        /// The blob id, as written in the entry.
        blob: String,
        /// Whether the blob is missing; otherwise it is damaged.
        missing: bool,
    },
    /// The index is invalid or does not match the tape.
    StaleIndex,
}

impl Damage {
    /// Returns whether the defect can be accepted: all readers handle it, and only rewriting history could repair it.
    pub fn is_acceptable(&self) -> bool {
        matches!(self, Self::IdOrder { .. } | Self::Unpaired { .. })
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TornTail { offset, bytes } => {
                write!(
                    f,
                    "torn tail: the last {bytes} bytes, from byte {offset}, are not a complete entry"
                )
            }
            Self::BadLine { line, offset } => {
                write!(f, "line {line} (byte {offset}) is not an entry")
            }
            Self::IdOrder { line, id, previous } if id == previous => {
                write!(f, "line {line}: duplicate id {id}")
            }
            Self::IdOrder { line, id, previous } => {
                write!(f, "line {line}: id {id} follows id {previous}")
            }
            Self::Unpaired { id } => {
                write!(f, "entry {id}: tool results without calls")
            }
            Self::BadBlob {
                id,
                blob,
                missing: true,
            } => write!(f, "entry {id}: blob {blob} is missing"),
            Self::BadBlob {
                id,
                blob,
                missing: false,
            } => write!(f, "entry {id}: blob {blob} is damaged"),
            Self::StaleIndex => f.write_str("the index does not match the tape"),
        }
    }
}

/// The result of checking a tape.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Number of entries.
    pub entries: u64,
    /// The defects, in tape order.
    pub damage: Vec<Damage>,
    /// Tool calls whose turn was interrupted before it recorded their results. This is not damage; views show such
    /// calls as interrupted.
    pub interrupted: Vec<EntryId>,
}

impl FileStore {
    /// Reads a complete tape and reports damage. Changes nothing.
    pub async fn verify(&self, tape: &TapeName) -> Result<VerifyReport> {
        let (open_tape, store_context, tape) = (
            self.open_tapes.get_or_create(tape),
            Arc::clone(&self.store_context),
            tape.clone(),
        );
        super::run_blocking(move || {
            verify_tape_file(&store_context, &tape, &mut open_tape.lock_tape_file())
        })
        .await
    }
}

fn verify_tape_file(
    store_context: &Arc<StoreContext>,
    tape: &TapeName,
    tape_file: &mut TapeFile,
) -> Result<VerifyReport> {
    let Some(snapshot) = Snapshot::capture(store_context, tape)? else {
        return Ok(VerifyReport::default());
    };
    // The last calls of a running turn may not have results yet.
    let is_running = super::lease::lease_holder(store_context, tape).is_some();
    let mut verify_report = check_lines(store_context, tape, &snapshot)?.finish(is_running);
    verify_report.damage.extend(find_torn_tail(tape_file)?);
    if is_index_stale(store_context, tape, &snapshot)? {
        verify_report.damage.push(Damage::StaleIndex);
    }
    Ok(verify_report)
}

/// Returns the bytes after the last complete entry. Takes the lock to distinguish them from a batch that is being
/// written.
fn find_torn_tail(tape_file: &mut TapeFile) -> Result<Option<Damage>> {
    let find_tail = |tape_file: &TapeFile| {
        let Some(snapshot) = Snapshot::capture(&tape_file.store_context, &tape_file.tape)? else {
            return Ok(None);
        };
        let size = snapshot
            .file
            .stat()
            .map_err(|error| tape_file.io_error("read", error))?
            .size;
        let bytes = size.saturating_sub(snapshot.end);
        Ok((bytes > 0).then_some(Damage::TornTail {
            offset: snapshot.end,
            bytes,
        }))
    };
    let first = find_tail(tape_file)?;
    if first.is_none() {
        return Ok(None);
    }
    match tape_file.lock() {
        Ok(lock) => {
            let second = find_tail(tape_file);
            drop(lock);
            second
        }
        // If the tape cannot be locked, no process of bub is writing to it.
        Err(_) => Ok(first),
    }
}

fn check_lines(
    store_context: &Arc<StoreContext>,
    tape: &TapeName,
    snapshot: &Snapshot,
) -> Result<Checker> {
    let path = store_context.paths.tape_file(tape);
    let read_error = |error| store_context.io_error("read", &path, error);
    let mut checker = Checker::new(store_context, tape);
    let mut lines = ForwardLines::with_large_reads(0, snapshot.end);
    let mut outcome = Ok(());
    while lines
        .read_chunk(&*snapshot.file, |position, line| {
            if outcome.is_ok() {
                outcome = checker.check_line(position, line);
            }
        })
        .map_err(read_error)?
    {}
    outcome.map(|()| checker)
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
    fn new(store_context: &Arc<StoreContext>, tape: &TapeName) -> Self {
        Self {
            blobs: FileBlobs(Arc::clone(store_context)),
            checks_pairs: tape.as_sidecar().is_none(),
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
        if let Some(previous) = self
            .previous
            .replace(entry.id)
            .filter(|previous| entry.id <= *previous)
        {
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
        let run = entry
            .meta
            .get("run_id")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
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
            let id = match BlobId::parse(text) {
                Ok(blob) if self.good_blobs.contains(&blob) => continue,
                Ok(blob) => blob,
                Err(_) => {
                    self.add_damage(Damage::BadBlob {
                        id: entry.id,
                        blob: text.to_owned(),
                        missing: true,
                    });
                    continue;
                }
            };
            match self.blobs.read_blob(&id) {
                Ok(_) => drop(self.good_blobs.insert(id)),
                Err(TapeError::NotFound(_)) => {
                    self.add_damage(Damage::BadBlob {
                        id: entry.id,
                        blob: text.to_owned(),
                        missing: true,
                    });
                }
                Err(TapeError::Damaged { .. }) => {
                    self.add_damage(Damage::BadBlob {
                        id: entry.id,
                        blob: text.to_owned(),
                        missing: false,
                    });
                }
                Err(error) => return Err(error),
            }
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
pub(crate) fn referenced_blob_ids(entry: &Entry) -> impl Iterator<Item = &str> {
    let check_blobs = entry.meta.get("media").and_then(Value::as_array);
    check_blobs
        .into_iter()
        .flatten()
        .filter_map(|item| item.get("blob").and_then(Value::as_str))
}

/// Returns whether the index contradicts the tape. An index that covers only a prefix of the tape is not stale.
fn is_index_stale(
    store_context: &StoreContext,
    tape: &TapeName,
    snapshot: &Snapshot,
) -> Result<bool> {
    let path = store_context.paths.index_file(tape);
    let stat = not_found_to_none(store_context.fs.stat(&path))
        .map_err(|error| store_context.io_error("inspect", &path, error))?;
    if stat.is_none() {
        return Ok(false);
    }
    let Some(stored) = Index::load(store_context, tape, &*snapshot.file, snapshot.end) else {
        return Ok(true);
    };
    let mut rebuilt = Index::default();
    let part = Snapshot {
        end: stored.covered,
        ..snapshot.clone()
    };
    rebuilt.extend_to(&part).map_err(|error| {
        store_context.io_error("read", &store_context.paths.tape_file(tape), error)
    })?;
    let marks = stored.all_marks(store_context, tape);
    Ok(marks.is_none()
        || stored.summary != rebuilt.summary
        || marks != rebuilt.all_marks(store_context, tape))
}
