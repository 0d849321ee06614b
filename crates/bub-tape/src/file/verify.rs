//! Reading a whole tape to find what is wrong with it.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::Arc,
};

use serde_json::Value;

use super::{
    FileStore,
    blobs::FileBlobs,
    context::{StoreContext, missing_is_none},
    index::Index,
    lines::ForwardLines,
    snapshot::Snapshot,
    tape_file::TapeFile,
};
use crate::{BlobId, Entry, EntryId, EntryKind, Result, TapeError, TapeName, codec};

/// The event by which a person accepts ids and calls that cannot be put in order without rewriting history.
pub(crate) const ACCEPTED_EVENT: &str = "tape.accepted";

/// What is wrong with a tape, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Damage {
    /// The tape ends with bytes that are no whole entry.
    TornTail {
        /// Where they begin.
        offset: u64,
        /// How many they are.
        bytes: u64,
    },
    /// A line is no entry; readers skip it.
    BadLine {
        /// Its number, from 1.
        line: u64,
        /// Where it begins.
        offset: u64,
    },
    /// An id is not higher than the one before it.
    IdOrder {
        /// The number of its line, from 1.
        line: u64,
        /// The id.
        id: EntryId,
        /// The id before it.
        previous: EntryId,
    },
    /// Tool results have no calls.
    Unpaired {
        /// The entry of the results.
        id: EntryId,
    },
    /// An entry refers to a blob that is not there, or is not what it was.
    BadBlob {
        /// The entry.
        id: EntryId,
        /// The blob.
        blob: String,
        /// Whether there is nothing at all.
        missing: bool,
    },
    /// The index speaks of another tape, or is wrong about this one.
    StaleIndex,
}

impl Damage {
    /// Whether it can be accepted: every reader copes with it, and only rewriting history would remove it.
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
                    "torn tail: the last {bytes} bytes, from byte {offset} on, are no whole entry"
                )
            }
            Self::BadLine { line, offset } => write!(f, "line {line} (byte {offset}) is no entry"),
            Self::IdOrder { line, id, previous } if id == previous => {
                write!(f, "line {line}: id {id} is there twice")
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

/// What reading a whole tape came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// How many entries it has.
    pub entries: u64,
    /// What is wrong, in tape order.
    pub damage: Vec<Damage>,
    /// Tool calls whose turn was cut off before their results were there. Views show them as interrupted: that is what
    /// happened, and no damage.
    pub interrupted: Vec<EntryId>,
}

impl FileStore {
    /// Reads a whole tape and says what is wrong with it. Nothing is changed.
    pub async fn verify(&self, tape: &TapeName) -> Result<VerifyReport> {
        let (slot, store_context, tape) = (
            self.open_tapes.get(tape),
            Arc::clone(&self.store_context),
            tape.clone(),
        );
        super::blocking(move || verify(&store_context, &tape, &mut slot.core())).await
    }
}

fn verify(
    store_context: &Arc<StoreContext>,
    tape: &TapeName,
    core: &mut TapeFile,
) -> Result<VerifyReport> {
    let Some(snapshot) = Snapshot::capture(store_context, tape)? else {
        return Ok(VerifyReport::default());
    };
    // The last calls of a turn that is under way may well be open.
    let running = super::lease::held_by(store_context, tape).is_some();
    let mut verify_report = read_all(store_context, tape, &snapshot)?.finish(running);
    verify_report.damage.extend(torn_tail(core)?);
    if is_index_stale(store_context, tape, &snapshot)? {
        verify_report.damage.push(Damage::StaleIndex);
    }
    Ok(verify_report)
}

/// What stands behind the last whole entry. Only the lock tells it from what somebody is just writing.
fn torn_tail(core: &mut TapeFile) -> Result<Option<Damage>> {
    let look = |core: &TapeFile| {
        let Some(snapshot) = Snapshot::capture(&core.store_context, &core.tape)? else {
            return Ok(None);
        };
        let size = snapshot
            .file
            .stat()
            .map_err(|error| core.error("read", error))?
            .size;
        let bytes = size.saturating_sub(snapshot.end);
        Ok((bytes > 0).then_some(Damage::TornTail {
            offset: snapshot.end,
            bytes,
        }))
    };
    let first = look(core)?;
    if first.is_none() {
        return Ok(None);
    }
    match core.lock() {
        Ok(held) => {
            let second = look(core);
            drop(held);
            second
        }
        // Where nothing can be locked, nobody of ours is writing.
        Err(_) => Ok(first),
    }
}

fn read_all(
    store_context: &Arc<StoreContext>,
    tape: &TapeName,
    snapshot: &Snapshot,
) -> Result<Checker> {
    let path = store_context.layout.tape(tape);
    let failed = |error| store_context.error("read", &path, error);
    let mut checker = Checker::new(store_context, tape);
    let mut lines = ForwardLines::large(0, snapshot.end);
    let mut outcome = Ok(());
    while lines
        .advance(&*snapshot.file, |position, line| {
            if outcome.is_ok() {
                outcome = checker.line(position, line);
            }
        })
        .map_err(failed)?
    {}
    outcome.map(|()| checker)
}

struct Checker {
    blobs: FileBlobs,
    /// Sidecars keep results for others; they have no calls.
    pairs: bool,
    number: u64,
    previous: Option<EntryId>,
    /// The open calls of each run.
    open: HashMap<String, EntryId>,
    good_blobs: HashSet<BlobId>,
    verify_report: VerifyReport,
}

impl Checker {
    fn new(store_context: &Arc<StoreContext>, tape: &TapeName) -> Self {
        Self {
            blobs: FileBlobs(Arc::clone(store_context)),
            pairs: tape.as_sidecar().is_none(),
            number: 0,
            previous: None,
            open: HashMap::new(),
            good_blobs: HashSet::new(),
            verify_report: VerifyReport::default(),
        }
    }

    fn line(&mut self, offset: u64, line: &[u8]) -> Result<()> {
        self.number += 1;
        let Some(entry) = codec::decode(line) else {
            // An empty line is nobody's loss.
            if !line.trim_ascii().is_empty() {
                self.add_damage(Damage::BadLine {
                    line: self.number,
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
                line: self.number,
                id: entry.id,
                previous,
            });
        }
        if self.pairs {
            self.pair(&entry);
        }
        if entry.kind == EntryKind::Event && entry.name() == Some(ACCEPTED_EVENT) {
            self.verify_report
                .damage
                .retain(|damage| !damage.is_acceptable());
        }
        self.media(&entry)
    }

    fn pair(&mut self, entry: &Entry) {
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
                    .extend(self.open.insert(run, entry.id));
            }
            EntryKind::ToolResult if self.open.remove(&run).is_none() => {
                self.add_damage(Damage::Unpaired { id: entry.id });
            }
            _ => {}
        }
    }

    fn media(&mut self, entry: &Entry) -> Result<()> {
        for text in referred_blobs(entry) {
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
            match self.blobs.get_now(&id) {
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

    fn finish(mut self, running: bool) -> VerifyReport {
        if !running {
            let mut open: Vec<_> = self.open.values().copied().collect();
            open.sort();
            self.verify_report.interrupted.extend(open);
        }
        self.verify_report
    }
}

/// The blobs an entry refers to, as they are written in it.
pub(crate) fn referred_blobs(entry: &Entry) -> impl Iterator<Item = &str> {
    let media = entry.meta.get("media").and_then(Value::as_array);
    media
        .into_iter()
        .flatten()
        .filter_map(|item| item.get("blob").and_then(Value::as_str))
}

/// An index that lags behind is as it should be; one that says something else than the tape is not.
fn is_index_stale(
    store_context: &StoreContext,
    tape: &TapeName,
    snapshot: &Snapshot,
) -> Result<bool> {
    let path = store_context.layout.index(tape);
    let present = missing_is_none(store_context.fs.stat(&path))
        .map_err(|error| store_context.error("look at", &path, error))?;
    if present.is_none() {
        return Ok(false);
    }
    let Some(stored) = Index::load(store_context, tape, &*snapshot.file, snapshot.end) else {
        return Ok(true);
    };
    let mut fresh = Index::default();
    let part = Snapshot {
        end: stored.covered,
        ..snapshot.clone()
    };
    fresh
        .catch_up(&part)
        .map_err(|error| store_context.error("read", &store_context.layout.tape(tape), error))?;
    let marks = stored.marks(store_context, tape);
    Ok(marks.is_none()
        || stored.summary != fresh.summary
        || marks != fresh.marks(store_context, tape))
}
