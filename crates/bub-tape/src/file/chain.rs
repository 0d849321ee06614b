//! The hash chain of a tape: proof that no entry was altered, removed or reordered.
//!
//! A chained line ends with the key `chain`. Its value is the SHA-256 hash of the value of the previous chained line, of
//! all entries in between that have no such key, and of the line itself without the key. So an entry that another program
//! appended is covered by the next chained line, and the entries before the chain by its first line.
//! A line that is not an entry is not covered, so that a repair can remove it. Every other removal breaks the chain.
//!
//! The lock record has the last value, so that a missing end is detected, too. New entries continue from that value,
//! even if the end of the tape was removed. If the lock record does not have it either, the next entry is an event that
//! says so: [`END_UNKNOWN_EVENT`].

use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::{
    chain_report::{ChainProblem, ChainVerifier},
    context::IoResultExt as _,
    lock_record::{LockPhase, LockRecord},
    recovery,
    snapshot::Snapshot,
    tape_file::{TapeFile, WritableTape},
};
use crate::{Entry, EntryId, Result, codec};

/// Key of a line with its hash in the chain.
pub(crate) const CHAIN_KEY: &str = "chain";
/// What the hash of the first chained line starts with, in place of a previous value.
const START: &[u8] = b"start of a hash chain\n";
/// The text before the hash at the end of a chained line.
const PREFIX: &[u8] = b", \"chain\": \"";
/// The text after the hash.
const SUFFIX: &[u8] = b"\"}\n";
/// Length of a hash in hexadecimal digits.
const HASH_DIGITS: usize = 64;

/// Name of the event at the end of the export of a chained tape.
pub(crate) const EXPORT_EVENT: &str = "tape.export";

/// Name of the event that records that the end of the tape before it is not proven.
pub(crate) const END_UNKNOWN_EVENT: &str = "tape.end_unknown";

/// Name of the event that records that the entries before it are from a tape whose chain was broken.
pub(crate) const SOURCE_BROKEN_EVENT: &str = "tape.source_broken";

/// Name of the event that records that the entries before it are from a tape that was not proven to be complete.
pub(crate) const SOURCE_UNPROVEN_EVENT: &str = "tape.source_unproven";

/// A value of the chain.
pub(crate) type ChainHash = [u8; 32];

/// The last value of a chain, and the end of its line in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChainHead {
    pub(crate) hash: ChainHash,
    pub(crate) end: u64,
}

/// The chain up to a line.
#[derive(Debug, Clone)]
pub(crate) struct ChainState {
    head: Option<ChainHash>,
    /// The hash of the next chained line, without the line.
    next: Sha256,
}

/// The place of a line in the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LineStatus {
    Chained,
    /// The first chained line of an older version. Its hash does not cover the entries before it.
    ChainedAlone,
    /// The hash matches the line only without the unchained lines before it: they were inserted later.
    ChainedAfterInsertion,
    /// The hash does not match the line and what precedes it.
    Broken,
    Unchained,
    /// Not an entry, and not covered by the chain.
    Invalid,
}

impl ChainState {
    pub(crate) fn new(head: Option<ChainHash>) -> Self {
        let start = head.as_ref().map_or(START, |head| head.as_slice());
        let next = Sha256::new_with_prefix(start);
        Self { head, next }
    }

    /// Adds a line that is on the tape.
    pub(crate) fn add_line(&mut self, line: &[u8]) -> LineStatus {
        let Some((content, hash)) = split_chained_line(line) else {
            if codec::decode(line).is_none() {
                return LineStatus::Invalid;
            }
            self.next.update(line);
            return LineStatus::Unchained;
        };
        let next = std::mem::replace(&mut self.next, Sha256::new_with_prefix(hash));
        let before = self.head.replace(hash);
        let is_hash_of = |hasher: Sha256| {
            let found = ChainHash::from(hasher.chain_update(content).finalize());
            found == hash
        };
        if is_hash_of(next) {
            LineStatus::Chained
        } else if before.is_none() && is_hash_of(Sha256::new_with_prefix(ChainHash::default())) {
            LineStatus::ChainedAlone
        } else if is_hash_of(Self::new(before).next) {
            LineStatus::ChainedAfterInsertion
        } else {
            LineStatus::Broken
        }
    }

    /// Adds the key `chain` to the new line that starts at an offset of `bytes`.
    pub(crate) fn seal_line(&mut self, bytes: &mut Vec<u8>, start: usize) {
        // Every line ends with `}` and a newline.
        bytes.truncate(bytes.len().saturating_sub(2));
        self.next.update(bytes.get(start..).unwrap_or_default());
        let hash = ChainHash::from(self.next.finalize_reset());
        self.next.update(hash);
        self.head = Some(hash);
        bytes.extend_from_slice(PREFIX);
        bytes.extend(hex_digits(hash));
        bytes.extend_from_slice(SUFFIX);
    }

    /// Returns the value of the last chained line.
    pub(crate) fn last_hash(&self) -> Option<ChainHash> {
        self.head
    }

    /// Returns the value of the last chained line, whose end is `end`.
    pub(crate) fn head(&self, end: u64) -> Option<ChainHead> {
        self.head.map(|hash| ChainHead { hash, end })
    }
}

fn hex_digits(hash: ChainHash) -> impl Iterator<Item = u8> {
    let digits = hash.into_iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| match digit {
        0..10 => b'0' + digit,
        _ => b'a' + digit - 10,
    })
}

/// Returns a hash in hexadecimal digits.
pub(crate) fn hash_text(hash: ChainHash) -> String {
    hex_digits(hash).map(char::from).collect()
}

/// Returns a chained line without the key `chain`, and the hash.
fn split_chained_line(line: &[u8]) -> Option<(&[u8], ChainHash)> {
    let line = line.strip_suffix(SUFFIX)?;
    let (content, digits) = line.split_at_checked(line.len().checked_sub(HASH_DIGITS)?)?;
    Some((content.strip_suffix(PREFIX)?, parse_hash(digits)?))
}

/// Returns whether a line that is not chained was chained before a part of it was altered.
pub(crate) fn is_damaged_line(line: &[u8]) -> bool {
    let has_digits = || {
        let line = line.strip_suffix(SUFFIX)?;
        parse_hash(
            line.split_at_checked(line.len().checked_sub(HASH_DIGITS)?)?
                .1,
        )
    };
    memchr::memmem::find(line, PREFIX).is_some() || has_digits().is_some()
}

/// Returns the hash of a chained line.
pub(crate) fn line_hash(line: &[u8]) -> Option<ChainHash> {
    split_chained_line(line).map(|(_, hash)| hash)
}

pub(crate) fn parse_hash(digits: &[u8]) -> Option<ChainHash> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut hash = ChainHash::default();
    let (pairs, rest) = digits.as_chunks::<2>();
    (pairs.len() == hash.len() && rest.is_empty()).then_some(())?;
    for (byte, [high, low]) in hash.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(hash)
}

impl TapeFile {
    /// Returns the chain up to the end of the tape, or `None` if entries are not chained. Reads only what was appended
    /// since the last value in the lock record. Without that value, reads the complete tape. If it has a chain whose end
    /// is not proven, adds an event about this to the reports, so that later entries do not hide it.
    pub(crate) fn chain_state(
        &mut self,
        writable: &mut WritableTape,
    ) -> Result<Option<ChainState>> {
        if !self.store.is_chained() || self.tape.is_fork() {
            return Ok(None);
        }
        let LockRecord { head, end, .. } = writable.record;
        let cached = self.chain.take();
        if let Some(state) = cached.filter(|state| head.is_some() && state.head(end) == head) {
            return Ok(Some(state));
        }
        let snapshot = self.snapshot_of(&writable.open, end);
        let Some(head) = head else {
            let mut verifier = ChainVerifier::new(None);
            snapshot.for_each_line(0, |_, line| {
                verifier.add_line(0, line, None);
                Ok(())
            })?;
            let state = verifier.state.clone();
            let report = verifier.finish(None);
            if let Some(head) = report.head.filter(|_| !report.is_complete) {
                tracing::warn!(tape = %self.tape, "tape.end_unknown");
                let data =
                    json!({"reason": "the lock record of the tape is missing", "head": head});
                let event = Entry::event(END_UNKNOWN_EVENT, Some(data)).exclude_from_context();
                writable.reports.push(event);
            }
            return Ok(Some(state));
        };
        let mut state = ChainState::new(Some(head.hash));
        snapshot.for_each_line(head.end.min(end), |_, line| {
            state.add_line(line);
            Ok(())
        })?;
        Ok(Some(state))
    }
}

/// Returns the last value of the chain that the lock record of a tape proves. Every reader of the record uses this: the
/// record of an operation that a process started and did not finish has the value from before it.
pub(crate) fn recorded_head(record: LockRecord, snapshot: &Snapshot) -> Result<Option<ChainHead>> {
    let is_same_file = record.inode == snapshot.inode;
    let batch_end = record.end + record.length;
    match record.phase {
        // The checksum in the record proves the lines of the batch.
        LockPhase::Batch if is_same_file && snapshot.end >= batch_end => {
            let is_complete = recovery::is_batch_complete(&*snapshot.file, snapshot.end, record);
            if !is_complete.describe("read", &snapshot.path)? {
                return Ok(record.head);
            }
            let batch = Snapshot {
                end: batch_end,
                ..snapshot.clone()
            };
            Ok(last_head(&batch, record.end)?.or(record.head))
        }
        // The new content was complete before it replaced the tape, and starts a new chain.
        LockPhase::Replace if !is_same_file => last_head(snapshot, 0),
        _ => Ok(record.head),
    }
}

/// Returns the last value of the chain in the lines of a tape from the offset `start` on.
fn last_head(snapshot: &Snapshot, start: u64) -> Result<Option<ChainHead>> {
    let mut head = None;
    snapshot.for_each_line(start, |offset, line| {
        let end = offset + line.len() as u64;
        head = line_hash(line).map(|hash| ChainHead { hash, end }).or(head);
        Ok(())
    })?;
    Ok(head)
}

/// Creates the end mark for the export of a chained tape: an event with the number of entries and the last hash. It is
/// chained, too. So `bub tape verify` finds that the end of an export is missing.
#[derive(Debug)]
pub struct ExportSeal {
    state: ChainState,
    entries: u64,
    max_id: i64,
    problem: Option<ChainProblem>,
}

impl Default for ExportSeal {
    fn default() -> Self {
        Self::new(None)
    }
}

impl ExportSeal {
    /// Creates the end mark for the export of a tape with this problem, which the end mark has, too.
    pub fn new(problem: Option<ChainProblem>) -> Self {
        Self {
            state: ChainState::new(None),
            entries: 0,
            max_id: 0,
            problem,
        }
    }

    /// Adds the next entry of the export.
    pub fn add_entry(&mut self, entry: &Entry) {
        self.state.add_line(codec::encode(entry).as_bytes());
        self.entries += 1;
        self.max_id = self.max_id.max(entry.id.get());
    }

    /// Returns the number of entries, without the end mark.
    pub fn entry_count(&self) -> u64 {
        self.entries
    }

    /// Returns the end mark, or `None` if no entry is chained and the tape has no problem.
    pub fn end_mark(&self) -> Option<Entry> {
        let head = self.state.last_hash().map(hash_text);
        if head.is_none() && self.problem.is_none() {
            return None;
        }
        let mut data = json!({"entries": self.entries, "head": head});
        if let (Some(problem), Some(fields)) = (&self.problem, data.as_object_mut()) {
            fields.insert(
                problem.source_field().to_owned(),
                problem.to_string().into(),
            );
        }
        let mut mark = Entry::event(EXPORT_EVENT, Some(data)).exclude_from_context();
        mark.id = EntryId::new(self.max_id + 1);
        let mut line = codec::encode(&mark).into_bytes();
        self.state.clone().seal_line(&mut line, 0);
        codec::decode(&line)
    }
}
