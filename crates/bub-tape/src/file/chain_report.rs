//! Checks the hash chain of a tape or an export.

use std::{
    io::BufRead,
    path::{Path, PathBuf},
    sync::Arc,
};

use memchr::memmem::Finder;
use serde_json::{Value, json};

use super::{
    FileStore,
    chain::{
        ChainHash, ChainHead, ChainState, END_UNKNOWN_EVENT, EXPORT_EVENT, LineStatus,
        SOURCE_BROKEN_EVENT, SOURCE_UNPROVEN_EVENT, hash_text, is_damaged_line, parse_hash,
        recorded_head,
    },
    context::{IoResultExt as _, StoreContext},
    lock_record::LockRecord,
    repair::{GAPS_FIELD, REPAIRED_EVENT},
    run_blocking,
    snapshot::Snapshot,
    tape_file::TapeFile,
};
use crate::{Entry, EntryId, Result, TapeError, TapeName, codec};

/// Fields of the record of a copy, and of the end mark of an export: what is wrong with the other tape.
const BROKEN_FIELD: &str = "problem";
const UNPROVEN_FIELD: &str = "unproven";

/// The text before the names of the events about the chain in a line.
const EVENT_PREFIX: &str = "\"tape.";

impl TapeFile {
    fn verify_chain(&mut self, known_head: Option<&str>) -> Result<ChainReport> {
        let not_found = || TapeError::NotFound(format!("unknown tape `{}`", self.tape));
        let record = read_record(&self.store, &self.tape)?;
        let snapshot = Snapshot::capture(&self.store, &self.tape)?.ok_or_else(not_found)?;
        let expected = record.map_or(Ok(None), |record| recorded_head(record, &snapshot))?;
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

    /// Returns the tapes that had entries and whose files are missing. The lock record of a tape shows this, so it must
    /// still exist.
    pub async fn missing_tapes(&self) -> Result<Vec<MissingTape>> {
        let store = Arc::clone(&self.store);
        run_blocking(move || {
            let mut missing = Vec::new();
            for file in store.read_dir(&store.paths.locks_dir())? {
                let name = file.strip_suffix(".lock").map(TapeName::new);
                let Some(Ok(name)) = name else {
                    continue;
                };
                let path = store.paths.tape_file(&name);
                if store.stat(&path)?.is_none()
                    && let Some(record) = read_record(&store, &name)?
                    && (record.end > 0 || record.head.is_some())
                {
                    let had_chain = record.head.is_some();
                    missing.push(MissingTape { name, had_chain });
                }
            }
            missing.sort();
            Ok(missing)
        })
        .await
    }
}

/// A tape whose file is missing.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct MissingTape {
    /// The name of the tape.
    pub name: TapeName,
    /// Whether it had chained entries.
    pub had_chain: bool,
}

/// Reads the lock record of a tape.
fn read_record(store: &StoreContext, tape: &TapeName) -> Result<Option<LockRecord>> {
    let path = store.paths.lock_file(tape);
    let file = store.open_existing(&path)?;
    let record = file.as_deref().map_or(Ok(None), LockRecord::read);
    record.describe("read", &path)
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
    /// The first entry before which entries may be missing: when it was written, the lock record of the tape was missing.
    /// `None` if the known head proves the entries before it.
    pub unproven: Option<UnprovenEntry>,
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

/// An entry before which entries may be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnprovenEntry {
    /// The id of the entry.
    pub id: EntryId,
    /// The number of the line.
    pub line: u64,
    /// Whether the entries before it were copied from a tape that was not proven to be complete. A head of this tape does
    /// not prove them.
    pub is_copied: bool,
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
    /// The line was chained, and was altered so that its hash is not readable.
    #[error("{} (line {line}) was altered: its hash is damaged", entry_text(*.id))]
    Damaged {
        /// The id of the entry, if the line is an entry.
        id: Option<EntryId>,
        /// The number of the line.
        line: u64,
    },
    /// The entry has no hash and was inserted later: the next chained entry does not cover it.
    #[error("{} (line {line}) is unchained and was inserted later: the next chained entry does not cover it", entry_text(*.id))]
    Inserted {
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
    /// The entries before this one were copied from a tape whose chain was broken.
    #[error("{} (line {line}) and the entries before it were copied from a tape whose chain was broken: {problem}", entry_text(*.id))]
    Source {
        /// The id of the event that records this.
        id: Option<EntryId>,
        /// The number of the line.
        line: u64,
        /// The problem of the other tape.
        problem: String,
    },
    /// No entry was altered, but entries may be missing. A [`ChainReport`] says this with `unproven` and `is_complete`.
    #[error("no entry was altered, but entries may be missing {}", missing_text(*.line))]
    Unproven {
        /// The number of the line before which entries may be missing, or `None` if this is the end of the tape.
        line: Option<u64>,
    },
    /// The end of the tape was removed or altered.
    #[error("the end of the tape was removed or altered after line {line}")]
    Truncated {
        /// The number of the last line.
        line: u64,
        /// The id of the first entry that the rest of the chain does not cover, if there is one.
        uncovered: Option<EntryId>,
    },
    /// The tape was chained, and no entry has a hash.
    #[error("the tape was chained, and the hashes of all entries were removed")]
    Stripped,
}

fn entry_text(id: Option<EntryId>) -> String {
    id.map_or_else(|| "an invalid line".to_owned(), |id| format!("entry {id}"))
}

fn missing_text(line: Option<u64>) -> String {
    line.map_or_else(
        || "at the end".to_owned(),
        |line| format!("before line {line}"),
    )
}

impl ChainProblem {
    /// Returns whether entries may be missing, and none was altered.
    pub fn is_unproven(&self) -> bool {
        matches!(self, Self::Unproven { .. })
    }

    /// Returns the field of the record of a copy or an export that has the problem.
    pub(crate) fn source_field(&self) -> &'static str {
        if self.is_unproven() {
            UNPROVEN_FIELD
        } else {
            BROKEN_FIELD
        }
    }

    /// Returns the event that records the problems of the tapes that the entries before it are copied from.
    pub(crate) fn source_event(problems: &[(String, Self)]) -> Option<Entry> {
        // Of both kinds, an altered entry is the more important one.
        let is_broken = |(_, problem): &&(String, Self)| !problem.is_unproven();
        let (_, first) = problems.iter().find(is_broken).or(problems.first())?;
        let name = if first.is_unproven() {
            SOURCE_UNPROVEN_EVENT
        } else {
            SOURCE_BROKEN_EVENT
        };
        let texts = problems
            .iter()
            .map(|(label, problem)| format!("{label}{problem}"));
        let texts: Vec<String> = texts.collect();
        let data = json!({first.source_field(): texts.join("; ")});
        Some(Entry::event(name, Some(data)).exclude_from_context())
    }

    /// Returns whether the problem may be in a copy of the entries up to `last`.
    pub(crate) fn is_copied(&self, last: EntryId, is_complete: bool) -> bool {
        match self {
            Self::Truncated { uncovered, .. } => {
                is_complete || uncovered.is_some_and(|first| first <= last)
            }
            Self::Altered { id, .. } | Self::Damaged { id, .. } | Self::Inserted { id, .. } => {
                is_complete || id.is_none_or(|id| id <= last)
            }
            Self::Repaired { .. }
            | Self::Source { .. }
            | Self::Unproven { .. }
            | Self::Stripped => true,
        }
    }
}

impl ChainReport {
    /// Returns why the chain does not prove that the tape is unaltered and complete. `None` also for a tape that never had
    /// a chain, and was not copied from one that had.
    pub fn into_problem(self) -> Option<ChainProblem> {
        let line = self.unproven.map(|entry| entry.line);
        let is_unproven = line.is_some() || (self.chained > 0 && !self.is_complete);
        let unproven = is_unproven.then_some(ChainProblem::Unproven { line });
        self.problem.or(unproven)
    }

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
pub(crate) struct ChainVerifier {
    pub(crate) state: ChainState,
    lines: u64,
    entries: u64,
    /// Whether the line that the lock record names was found.
    has_expected: bool,
    /// Whether the last line is a valid end mark of an export.
    has_end_mark: bool,
    /// The hash before the end mark. A tape without hashes has none.
    export_head: Option<ChainHash>,
    /// The id of the end mark, if the last line is an end mark without a hash.
    unchained_mark: Option<EntryId>,
    known_head: Option<ChainHash>,
    /// Finds lines that may be events about the chain. Parsing each line would be slow.
    event_finder: Finder<'static>,
    /// The lines whose hash does not match.
    broken: Vec<BrokenLine>,
    /// The problem if the first unchained entry since the last chained one was inserted.
    inserted: Option<ChainProblem>,
    /// The problem of the first line since the last chained one that was chained before it was altered.
    damaged: Option<ChainProblem>,
    source_problem: Option<ChainProblem>,
    /// The first record of a copy of a tape that was not proven.
    source_unproven: Option<UnprovenEntry>,
    /// The entries before which entries may be missing, each with its number in the chain.
    unproven: Vec<(u64, UnprovenEntry)>,
    report: ChainReport,
}

#[derive(Debug)]
struct BrokenLine {
    hash: Option<ChainHash>,
    problem: ChainProblem,
    line: u64,
    /// The file with the lines that a repair removed before this one, as a chained event says.
    kept: Option<PathBuf>,
}

impl ChainVerifier {
    pub(crate) fn new(known_head: Option<&str>) -> Self {
        Self {
            state: ChainState::new(None),
            lines: 0,
            entries: 0,
            has_expected: false,
            has_end_mark: false,
            export_head: None,
            unchained_mark: None,
            known_head: known_head.and_then(|head| parse_hash(head.as_bytes())),
            event_finder: Finder::new(EVENT_PREFIX),
            broken: Vec::new(),
            inserted: None,
            damaged: None,
            source_problem: None,
            source_unproven: None,
            unproven: Vec::new(),
            report: ChainReport::default(),
        }
    }

    /// Adds the line that ends at the offset `end`.
    pub(crate) fn add_line(&mut self, end: u64, line: &[u8], expected: Option<ChainHead>) {
        self.lines += 1;
        let before = self.state.last_hash();
        let status = self.state.add_line(line);
        self.has_expected |= expected.is_some() && self.state.head(end) == expected;
        (self.has_end_mark, self.unchained_mark) = (false, None);
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
            LineStatus::ChainedAfterInsertion | LineStatus::Broken => {
                report.chained += 1;
                self.add_broken_line(line, status);
            }
        }
        let (id, number) = (|| codec::decode(line).map(|entry| entry.id), self.lines);
        match status {
            LineStatus::Unchained | LineStatus::Invalid if is_damaged_line(line) => {
                let damaged = || ChainProblem::Damaged {
                    id: id(),
                    line: number,
                };
                self.damaged.get_or_insert_with(damaged);
            }
            LineStatus::Unchained => {
                let inserted = || ChainProblem::Inserted {
                    id: id(),
                    line: number,
                };
                self.inserted.get_or_insert_with(inserted);
            }
            LineStatus::Invalid => {}
            _ => (self.inserted, self.damaged) = (None, None),
        }
        if status == LineStatus::Unchained && self.event_finder.find(line).is_some() {
            let entry = codec::decode(line);
            self.read_source_event(entry.as_ref());
            let mark = entry.filter(|entry| entry.name() == Some(EXPORT_EVENT));
            self.unchained_mark = mark.map(|entry| entry.id);
        }
        self.entries += 1;
    }

    /// Adds a chained line whose hash does not match what precedes it.
    fn add_broken_line(&mut self, line: &[u8], status: LineStatus) {
        let is_inserted = status == LineStatus::ChainedAfterInsertion;
        let inserted = self.inserted.take().filter(|_| is_inserted);
        let altered = || ChainProblem::Altered {
            id: codec::decode(line).map(|entry| entry.id),
            line: self.lines,
        };
        let problem = inserted.or(self.damaged.take()).unwrap_or_else(altered);
        self.broken.push(BrokenLine {
            hash: self.state.last_hash(),
            problem,
            line: self.lines,
            kept: None,
        });
    }

    /// Reads a valid line if it is an event about the chain: the end mark of an export, the record of a repair, or the
    /// record of an unknown end. `before` is the hash before the line.
    fn read_event(&mut self, line: &[u8], before: Option<ChainHash>) {
        if self.event_finder.find(line).is_none() {
            return;
        }
        let entry = codec::decode(line);
        self.read_source_event(entry.as_ref());
        let Some((name, data)) = entry.as_ref().and_then(event_data) else {
            return;
        };
        if name == EXPORT_EVENT {
            let entries = data.get("entries").and_then(Value::as_u64);
            let head = data.get("head").and_then(Value::as_str);
            let is_valid =
                entries == Some(self.entries) && head == before.map(hash_text).as_deref();
            (self.has_end_mark, self.export_head) = (is_valid, before);
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
        } else if let (END_UNKNOWN_EVENT, Some(entry)) = (name, &entry) {
            let unproven = UnprovenEntry {
                id: entry.id,
                line: self.lines,
                is_copied: false,
            };
            self.unproven.push((self.report.chained, unproven));
        }
    }

    /// Reads the record of a copy or an export of a tape that was broken or not proven. A chain that started later covers
    /// it, too.
    fn read_source_event(&mut self, entry: Option<&Entry>) {
        let names = [SOURCE_BROKEN_EVENT, SOURCE_UNPROVEN_EVENT, EXPORT_EVENT];
        let is_source = |entry: &&Entry| entry.name().is_some_and(|name| names.contains(&name));
        let Some(entry) = entry.filter(is_source) else {
            return;
        };
        let (id, line) = (entry.id, self.lines);
        let field = |name: &str| entry.data().and_then(|data| data.get(name)?.as_str());
        if let Some(problem) = field(BROKEN_FIELD) {
            self.source_problem.get_or_insert(ChainProblem::Source {
                id: Some(id),
                line,
                problem: problem.to_owned(),
            });
        }
        if field(UNPROVEN_FIELD).is_some() {
            self.source_unproven.get_or_insert(UnprovenEntry {
                id,
                line,
                is_copied: true,
            });
        }
    }

    pub(crate) fn finish(mut self, expected: Option<ChainHead>) -> ChainReport {
        let mut report = self.report;
        report.broken = self.broken.len() as u64;
        let first = self.broken.drain(..).next();
        report.problem = first.map(|broken| match broken.kept {
            Some(kept) => ChainProblem::Repaired {
                line: broken.line,
                kept,
            },
            None => broken.problem,
        });
        report.problem = report.problem.or(self.source_problem);
        if expected.is_some() && !self.has_expected {
            let uncovered = match self.inserted {
                Some(ChainProblem::Inserted { id, .. }) => id,
                _ => None,
            };
            let line = self.lines;
            let removed = if report.chained == 0 && report.before > 0 {
                ChainProblem::Stripped
            } else {
                ChainProblem::Truncated { line, uncovered }
            };
            let removed = self.damaged.unwrap_or(removed);
            report.problem.get_or_insert(removed);
        }
        // Until here, `following` is the number of the proven entry in the chain.
        let proven = report.proven.map_or(0, |proven| proven.following);
        let mut unproven = self.unproven.into_iter();
        let unproven = unproven.find(|(number, _)| proven + 1 < *number);
        report.unproven = unproven.map(|(_, entry)| entry).or(self.source_unproven);
        if let (None, Some(id)) = (expected, self.unchained_mark) {
            // The end mark of an export always has a hash.
            let (id, line) = (Some(id), self.lines);
            let altered = ChainProblem::Altered { id, line };
            report.problem.get_or_insert(altered);
        }
        if expected.is_none() && self.has_end_mark {
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
