//! Checks the hash chain of a tape or an export.

use std::{
    io::BufRead,
    path::{Path, PathBuf},
    sync::Arc,
};

use memchr::memmem::Finder;
use serde_json::Value;

use super::{
    FileStore,
    chain::{ChainHash, ChainHead, ChainState, EXPORT_EVENT, LineStatus, hash_text, parse_hash},
    context::{IoResultExt as _, StoreContext},
    lock_record::LockRecord,
    repair::{GAPS_FIELD, REPAIRED_EVENT},
    run_blocking,
    snapshot::Snapshot,
    tape_file::TapeFile,
};
use crate::{Entry, EntryId, Result, TapeError, TapeName, codec};

/// The text before the names of [`EXPORT_EVENT`] and [`REPAIRED_EVENT`] in a line.
const EVENT_PREFIX: &str = "\"tape.";

impl TapeFile {
    fn verify_chain(&mut self, known_head: Option<&str>) -> Result<ChainReport> {
        let not_found = || TapeError::NotFound(format!("unknown tape `{}`", self.tape));
        let expected = recorded_head(&self.store, &self.tape)?;
        let snapshot = Snapshot::capture(&self.store, &self.tape)?.ok_or_else(not_found)?;
        let mut verifier = ChainVerifier::new(known_head);
        snapshot.for_each_line(0, |offset, line| {
            verifier.add_line(offset + line.len() as u64, line, expected);
            Ok(())
        })?;
        Ok(verifier.finish(expected))
    }
}

impl FileStore {
    /// Reads a complete tape and checks its hash chain. Changes nothing. `known_head` is the head of an earlier report, which
    /// [`ChainReport::proven`] refers to.
    pub async fn verify_chain(
        &self,
        tape: &TapeName,
        known_head: Option<&str>,
    ) -> Result<ChainReport> {
        let known_head = known_head.map(str::to_owned);
        self.with_tape_file(tape, move |file| file.verify_chain(known_head.as_deref()))
            .await
    }

    /// Returns the tapes that had chained entries and whose files are missing. The lock record of a tape shows this, so
    /// it must still exist.
    pub async fn missing_chained_tapes(&self) -> Result<Vec<TapeName>> {
        let store = Arc::clone(&self.store);
        run_blocking(move || {
            let mut missing = Vec::new();
            for file in store.read_dir(&store.paths.locks_dir())? {
                let name = file.strip_suffix(".lock").map(TapeName::new);
                let Some(Ok(tape)) = name else {
                    continue;
                };
                let path = store.paths.tape_file(&tape);
                if store.stat(&path)?.is_none() && recorded_head(&store, &tape)?.is_some() {
                    missing.push(tape);
                }
            }
            missing.sort();
            Ok(missing)
        })
        .await
    }
}

/// Returns the last value of the chain that the lock record of a tape has.
fn recorded_head(store: &StoreContext, tape: &TapeName) -> Result<Option<ChainHead>> {
    let path = store.paths.lock_file(tape);
    let file = store.open_existing(&path)?;
    let record = file.as_deref().map_or(Ok(None), LockRecord::read);
    let record = record.describe("read", &path)?;
    Ok(record.and_then(|record| record.head))
}

/// The result of checking the hash chain of a tape.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChainReport {
    /// Number of chained entries.
    pub chained: u64,
    /// Number of entries before the first chained one, which covers them.
    pub before: u64,
    /// Whether an older version started the chain. Its first entry does not cover the entries before it.
    pub is_start_uncovered: bool,
    /// Number of entries after the first chained one that have no hash, for example because the Python version appended
    /// them. The next chained entry covers them.
    pub unchained: u64,
    /// Number of lines that are not entries. The chain does not cover them.
    pub invalid: u64,
    /// The hash of the last chained entry. If you keep it elsewhere, it proves all entries up to that one.
    pub head: Option<String>,
    /// Whether the end of the tape is proven: the lock record of the tape, or the end mark of an export, has the hash of
    /// the last chained entry. Otherwise entries may be missing at the end.
    pub is_complete: bool,
    /// The entry with the known head. It proves all entries up to that one. `None` if the tape has no such entry.
    pub proven: Option<ProvenEntry>,
    /// Number of entries whose hash does not match.
    pub broken: u64,
    /// The first entry at which the chain is broken.
    pub problem: Option<ChainProblem>,
}

/// A chained entry whose hash is known from elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProvenEntry {
    /// The id of the entry, if the line is an entry.
    pub id: Option<EntryId>,
    /// The number of the line.
    pub line: u64,
    /// Number of chained entries after it.
    pub following: u64,
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
    /// The entry, or what precedes it, was altered, and a repair removed lines there.
    #[error("entries are missing or altered at line {line}: a repair removed lines there, kept in {}", .kept.display())]
    Repaired {
        /// The number of the line.
        line: u64,
        /// The file with the removed lines.
        kept: PathBuf,
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
    /// Checks the chain of a file, such as an export. See [`FileStore::verify_chain`].
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read.
    pub fn of_file(path: &Path, known_head: Option<&str>) -> Result<Self> {
        let file = std::fs::File::open(path).describe("read", path)?;
        let reader = std::io::BufReader::with_capacity(1 << 18, file);
        Self::of_lines(reader, known_head).describe("read", path)
    }

    /// Checks the chain of the lines of a tape or an export. See [`FileStore::verify_chain`].
    ///
    /// # Errors
    ///
    /// Fails if the reader fails.
    pub fn of_lines(mut reader: impl BufRead, known_head: Option<&str>) -> std::io::Result<Self> {
        let (mut verifier, mut line) = (ChainVerifier::new(known_head), Vec::new());
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
    entries: u64,
    /// Whether the line that the lock record names was found.
    has_expected: bool,
    /// The hash before the end mark, if the last line is a valid end mark.
    export_head: Option<ChainHash>,
    /// The id of the end mark, if the last line is an end mark without a hash.
    unchained_mark: Option<EntryId>,
    known_head: Option<ChainHash>,
    /// Finds lines that may be events about the chain. Parsing each line would be slow.
    event_finder: Finder<'static>,
    /// The lines whose hash does not match.
    broken: Vec<BrokenLine>,
    report: ChainReport,
}

#[derive(Debug)]
struct BrokenLine {
    hash: Option<ChainHash>,
    id: Option<EntryId>,
    line: u64,
    /// The file with the lines that a repair removed before this one, as a chained event says.
    kept: Option<PathBuf>,
}

impl ChainVerifier {
    fn new(known_head: Option<&str>) -> Self {
        Self {
            state: ChainState::new(None),
            lines: 0,
            entries: 0,
            has_expected: false,
            export_head: None,
            unchained_mark: None,
            known_head: known_head.and_then(|head| parse_hash(head.as_bytes())),
            event_finder: Finder::new(EVENT_PREFIX),
            broken: Vec::new(),
            report: ChainReport::default(),
        }
    }

    /// Adds the line that ends at the offset `end`.
    fn add_line(&mut self, end: u64, line: &[u8], expected: Option<ChainHead>) {
        self.lines += 1;
        let before = self.state.last_hash();
        let status = self.state.add_line(line);
        self.has_expected |= expected.is_some() && self.state.head(end) == expected;
        if status == LineStatus::Invalid && line.trim_ascii().is_empty() {
            return;
        }
        (self.export_head, self.unchained_mark) = (None, None);
        if before != self.state.last_hash() && self.state.last_hash() == self.known_head {
            self.report.proven = Some(ProvenEntry {
                id: codec::decode(line).map(|entry| entry.id),
                line: self.lines,
                // Until the end is known.
                following: self.report.chained + 1,
            });
        }
        let report = &mut self.report;
        match status {
            LineStatus::Chained | LineStatus::ChainedAlone => {
                report.chained += 1;
                report.is_start_uncovered |= status == LineStatus::ChainedAlone;
                self.read_event(line, before);
            }
            LineStatus::Unchained if report.chained == 0 => report.before += 1,
            LineStatus::Unchained => report.unchained += 1,
            LineStatus::Invalid => report.invalid += 1,
            LineStatus::Broken => {
                report.chained += 1;
                self.broken.push(BrokenLine {
                    hash: self.state.last_hash(),
                    id: codec::decode(line).map(|entry| entry.id),
                    line: self.lines,
                    kept: None,
                });
            }
        }
        if status == LineStatus::Unchained && self.event_finder.find(line).is_some() {
            let mark = codec::decode(line).filter(|entry| entry.name() == Some(EXPORT_EVENT));
            self.unchained_mark = mark.map(|entry| entry.id);
        }
        self.entries += 1;
    }

    /// Reads a valid line if it is an event about the chain: the end mark of an export, or the record of a repair.
    /// `before` is the hash before the line.
    fn read_event(&mut self, line: &[u8], before: Option<ChainHash>) {
        if self.event_finder.find(line).is_none() {
            return;
        }
        let entry = codec::decode(line);
        let Some((name, data)) = entry.as_ref().and_then(event_data) else {
            return;
        };
        if name == EXPORT_EVENT {
            let entries = data.get("entries").and_then(Value::as_u64);
            let head = data.get("head").and_then(Value::as_str);
            let is_valid =
                entries == Some(self.entries) && head == before.map(hash_text).as_deref();
            self.export_head = before.filter(|_| is_valid);
        } else if name == REPAIRED_EVENT {
            let gaps = data.get(GAPS_FIELD).and_then(Value::as_array);
            let gaps = gaps.into_iter().flatten().filter_map(Value::as_str);
            let gaps: Vec<Option<ChainHash>> =
                gaps.map(|text| parse_hash(text.as_bytes())).collect();
            let kept = data.get("kept").and_then(Value::as_str).map(PathBuf::from);
            let is_explained = |broken: &&mut BrokenLine| gaps.contains(&broken.hash);
            for broken in self.broken.iter_mut().filter(is_explained) {
                broken.kept.clone_from(&kept);
            }
        }
    }

    fn finish(mut self, expected: Option<ChainHead>) -> ChainReport {
        let mut report = self.report;
        report.broken = self.broken.len() as u64;
        let first = self.broken.drain(..).next();
        report.problem = first.map(|BrokenLine { id, line, kept, .. }| match kept {
            Some(kept) => ChainProblem::Repaired { line, kept },
            None => ChainProblem::Altered { id, line },
        });
        if expected.is_some() && !self.has_expected {
            let line = self.lines;
            let truncated = ChainProblem::Truncated { line };
            report.problem.get_or_insert(truncated);
        }
        if let (None, Some(id)) = (expected, self.unchained_mark) {
            // The end mark of an export always has a hash.
            let (id, line) = (Some(id), self.lines);
            let altered = ChainProblem::Altered { id, line };
            report.problem.get_or_insert(altered);
        }
        if expected.is_none() && self.export_head.is_some() {
            // The end mark is not an entry of the tape.
            report.chained -= 1;
            report.is_complete = true;
            report.head = self.export_head.map(hash_text);
        } else {
            report.is_complete = self.has_expected;
            report.head = self.state.last_hash().map(hash_text);
        }
        if let Some(proven) = &mut report.proven {
            proven.following = report.chained.saturating_sub(proven.following);
        }
        report
    }
}

fn event_data(entry: &Entry) -> Option<(&str, &Value)> {
    Some((entry.name()?, entry.data()?))
}
