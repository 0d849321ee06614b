//! The hash chain of a tape: proof that no entry was altered, removed or reordered.
//!
//! A chained line ends with the key `chain`. Its value is the SHA-256 hash of the value of the previous chained line, of
//! all lines in between that have no such key, and of the line itself without the key. So a line that another program
//! appended is covered by the next chained line. The chain of a tape starts with its first chained line.
//!
//! The lock record has the last value, so that a missing end is detected, too. New entries continue from that value,
//! even if the end of the tape was removed.

use std::{io::BufRead, path::Path};

use sha2::{Digest as _, Sha256};

use super::{
    FileStore,
    context::IoResultExt as _,
    lock_record::LockRecord,
    snapshot::Snapshot,
    tape_file::{TapeFile, WritableTape},
};
use crate::{EntryId, Result, TapeError, TapeName, codec};

/// Key of a line with its hash in the chain.
pub(crate) const CHAIN_KEY: &str = "chain";
/// The text before the hash at the end of a chained line.
const PREFIX: &[u8] = b", \"chain\": \"";
/// The text after the hash.
const SUFFIX: &[u8] = b"\"}\n";
/// Length of a hash in hexadecimal digits.
const HASH_DIGITS: usize = 64;

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
enum LineStatus {
    Chained,
    /// The hash does not match the line and what precedes it.
    Broken,
    Unchained,
}

impl ChainState {
    pub(crate) fn new(head: Option<ChainHash>) -> Self {
        let next = Sha256::new_with_prefix(head.unwrap_or_default());
        Self { head, next }
    }

    /// Adds a line that is on the tape.
    fn add_line(&mut self, line: &[u8]) -> LineStatus {
        let Some((content, hash)) = split_chained_line(line) else {
            if self.head.is_some() {
                self.next.update(line);
            }
            return LineStatus::Unchained;
        };
        let next = std::mem::replace(&mut self.next, Sha256::new_with_prefix(hash));
        self.head = Some(hash);
        if ChainHash::from(next.chain_update(content).finalize()) == hash {
            LineStatus::Chained
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

/// Returns a chained line without the key `chain`, and the hash.
fn split_chained_line(line: &[u8]) -> Option<(&[u8], ChainHash)> {
    let line = line.strip_suffix(SUFFIX)?;
    let (content, digits) = line.split_at_checked(line.len().checked_sub(HASH_DIGITS)?)?;
    Some((content.strip_suffix(PREFIX)?, parse_hash(digits)?))
}

fn parse_hash(digits: &[u8]) -> Option<ChainHash> {
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
    /// since the last value in the lock record.
    pub(crate) fn chain_state(&mut self, writable: &WritableTape) -> Result<Option<ChainState>> {
        if !self.store.is_chained() || self.tape.is_fork() {
            return Ok(None);
        }
        let LockRecord { head, end, .. } = writable.record;
        let cached = self.chain.take();
        if let Some(state) = cached.filter(|state| head.is_some() && state.head(end) == head) {
            return Ok(Some(state));
        }
        let mut state = ChainState::new(head.map(|head| head.hash));
        let start = head.map_or(0, |head| head.end);
        let snapshot = self.snapshot_of(&writable.open, end);
        snapshot.for_each_line(start.min(end), |_, line| {
            state.add_line(line);
            Ok(())
        })?;
        Ok(Some(state))
    }

    fn verify_chain(&mut self) -> Result<ChainReport> {
        let not_found = || TapeError::NotFound(format!("unknown tape `{}`", self.tape));
        let lock_path = self.store.paths.lock_file(&self.tape);
        let lock_file = self.store.open_existing(&lock_path)?;
        let record = lock_file.as_deref().map_or(Ok(None), LockRecord::read);
        let record = record.describe("read", &self.path)?;
        let snapshot = Snapshot::capture(&self.store, &self.tape)?.ok_or_else(not_found)?;
        let mut verifier = ChainVerifier::default();
        let expected = record.and_then(|record| record.head);
        snapshot.for_each_line(0, |offset, line| {
            verifier.add_line(offset + line.len() as u64, line, expected);
            Ok(())
        })?;
        Ok(verifier.finish(expected))
    }
}

impl FileStore {
    /// Reads a complete tape and checks its hash chain. Changes nothing.
    pub async fn verify_chain(&self, tape: &TapeName) -> Result<ChainReport> {
        self.with_tape_file(tape, TapeFile::verify_chain).await
    }
}

/// The result of checking the hash chain of a tape.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChainReport {
    /// Number of chained entries.
    pub chained: u64,
    /// Number of entries before the first chained one. The chain proves nothing about them.
    pub before: u64,
    /// Number of entries after the first chained one that have no hash, for example because the Python version appended
    /// them. The next chained entry covers them.
    pub unchained: u64,
    /// The hash of the last chained entry. If you keep it elsewhere, it proves all entries up to that one.
    pub head: Option<String>,
    /// Number of entries whose hash does not match.
    pub broken: u64,
    /// The first entry at which the chain is broken.
    pub problem: Option<ChainProblem>,
}

/// The first entry at which a hash chain is broken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChainProblem {
    /// The entry, or what precedes it, was altered.
    #[error("{} (line {line}) or a line since the previous chained entry was altered, removed or reordered", entry_text(*.id))]
    Altered {
        /// The id of the entry, if the line is an entry.
        id: Option<EntryId>,
        /// The number of the line.
        line: u64,
    },
    /// The end of the tape was removed or altered.
    #[error("the end of the tape was removed or altered after line {line}")]
    Truncated {
        /// The number of the last line.
        line: u64,
    },
}

fn entry_text(id: Option<EntryId>) -> String {
    id.map_or_else(|| "an invalid line".to_owned(), |id| format!("entry {id}"))
}

impl ChainReport {
    /// Checks the chain of a file, such as an export.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read.
    pub fn of_file(path: &Path) -> Result<Self> {
        let file = std::fs::File::open(path).describe("read", path)?;
        let reader = std::io::BufReader::with_capacity(1 << 18, file);
        Self::of_lines(reader).describe("read", path)
    }

    /// Checks the chain of the lines of a tape or an export.
    ///
    /// # Errors
    ///
    /// Fails if the reader fails.
    pub fn of_lines(mut reader: impl BufRead) -> std::io::Result<Self> {
        let (mut verifier, mut line) = (ChainVerifier::default(), Vec::new());
        while reader.read_until(b'\n', &mut line)? > 0 {
            verifier.add_line(0, &line, None);
            line.clear();
        }
        Ok(verifier.finish(None))
    }
}

#[derive(Debug)]
struct ChainVerifier {
    state: ChainState,
    lines: u64,
    /// Whether the line that the lock record names was found.
    has_expected: bool,
    report: ChainReport,
}

impl Default for ChainVerifier {
    fn default() -> Self {
        Self {
            state: ChainState::new(None),
            lines: 0,
            has_expected: false,
            report: ChainReport::default(),
        }
    }
}

impl ChainVerifier {
    /// Adds the line that ends at the offset `end`.
    fn add_line(&mut self, end: u64, line: &[u8], expected: Option<ChainHead>) {
        self.lines += 1;
        let status = self.state.add_line(line);
        self.has_expected |= expected.is_some() && self.state.head(end) == expected;
        let report = &mut self.report;
        match status {
            LineStatus::Chained => report.chained += 1,
            LineStatus::Unchained if line.trim_ascii().is_empty() => {}
            LineStatus::Unchained if report.chained == 0 => report.before += 1,
            LineStatus::Unchained => report.unchained += 1,
            LineStatus::Broken => {
                (report.chained, report.broken) = (report.chained + 1, report.broken + 1);
                let id = codec::decode(line).map(|entry| entry.id);
                let line = self.lines;
                report
                    .problem
                    .get_or_insert(ChainProblem::Altered { id, line });
            }
        }
    }

    fn finish(mut self, expected: Option<ChainHead>) -> ChainReport {
        if expected.is_some() && !self.has_expected {
            let line = self.lines;
            let truncated = ChainProblem::Truncated { line };
            self.report.problem.get_or_insert(truncated);
        }
        let text = |hash| hex_digits(hash).map(char::from).collect();
        self.report.head = self.state.head.map(text);
        self.report
    }
}
