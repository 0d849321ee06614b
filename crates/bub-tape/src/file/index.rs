//! The index of one tape: its summary and the positions of its anchors.
//!
//! The index consists of two files that may be deleted at any time. Both cover a prefix of the tape. `<tape>.idx` is
//! small and replaced as a whole. It contains the summary and the length of this prefix, and checksums of the first and
//! last bytes of the prefix to detect a replaced tape. `<tape>.marks` is the list of anchors in the prefix. New anchors
//! are appended to it; its valid length is stored in `<tape>.idx`.

use std::{hash::BuildHasher, io};

use serde::{Deserialize, Serialize};

use super::{
    context::{IoResultExt as _, length_to_usize},
    scan,
    snapshot::Snapshot,
    tape_file::{OpenFile, TapeFile},
};
use crate::{
    AnchorMark, AnchorQuery, Entry, Position, Result, TapeSummary,
    fs::{FsFile, OpenMode},
};

const INDEX_VERSION: u32 = 2;
/// Number of bytes a tape grows before the index is saved again. Scanning this number of bytes takes a fraction of a
/// millisecond. Saving more often would cost more, because file systems flush a file that replaces another one.
const CHECKPOINT_BYTES: u64 = 256 * 1024;
/// Minimum number of new bytes for saving the index when a tape is closed. Scanning fewer bytes is faster than saving.
const MIN_INDEX_BYTES: u64 = 16 * 1024;
/// Number of bytes at the start of the tape whose checksum is [`FileFingerprint::head`].
const HEAD_BYTES: u64 = 256;
/// Number of bytes whose checksum is [`FileFingerprint::tail`]. They are the last bytes of the tape prefix that the
/// index covers.
const TAIL_BYTES: u64 = 64;

/// The index of a prefix of the tape. The serialized fields are the content of `<tape>.idx`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Index {
    version: u32,
    /// Length in bytes of the tape prefix that the index covers.
    pub(crate) covered: u64,
    /// Fingerprint of the covered prefix, to detect a replaced file. `None` after an append by this process: such an
    /// append does not replace the file, so no check is needed.
    #[serde(rename = "print")]
    fingerprint: Option<FileFingerprint>,
    #[serde(rename = "marks")]
    marks_file: MarksFile,
    pub(crate) summary: TapeSummary,
    /// Anchors that are not in the marks file yet.
    #[serde(skip)]
    pending: Vec<AnchorMark>,
    /// Length in bytes of the tape prefix that the index files on disk cover; 0 if there are no index files.
    #[serde(skip)]
    saved: u64,
    /// The inode of the tape file.
    #[serde(skip)]
    pub(crate) inode: u64,
    /// Size of the tape in bytes at which the index is saved next.
    #[serde(skip)]
    checkpoint_at: u64,
}

/// Identity and valid length of the marks file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct MarksFile {
    /// Random number in the first line of the file, which identifies the file.
    build: u64,
    /// Valid length in bytes.
    length: u64,
}

/// Checksums of the first and last bytes of the tape prefix that an index covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileFingerprint {
    head: u32,
    tail: u32,
}

impl Index {
    /// Creates an index of an empty prefix of a file.
    fn new(inode: u64) -> Self {
        Self {
            inode,
            ..Self::default()
        }
    }

    fn is_checkpoint_due(&self, end: u64) -> bool {
        end >= self.saved + CHECKPOINT_BYTES && end >= self.checkpoint_at
    }

    /// Returns whether the index belongs to the file of the snapshot and covers at most its readable part.
    fn is_valid_for(&self, snapshot: &Snapshot) -> bool {
        self.covered <= snapshot.end
            && self.fingerprint.is_none_or(|expected| {
                compute_fingerprint(&*snapshot.file, self.covered)
                    .is_ok_and(|actual| actual == expected)
            })
    }

    /// Extends the index to the end of the snapshot.
    pub(crate) fn extend_to(&mut self, snapshot: &Snapshot) -> Result<()> {
        if self.covered >= snapshot.end {
            return Ok(());
        }
        snapshot.for_each_line(self.covered, |position, line| {
            self.pending
                .extend(scan::observe_line(&mut self.summary, line, position));
            Ok(())
        })?;
        self.covered = snapshot.end;
        let fingerprint = compute_fingerprint(&*snapshot.file, self.covered);
        self.fingerprint = Some(fingerprint.describe("read", &snapshot.path)?);
        Ok(())
    }

    /// Adds a batch that was just written to the tape, unless it does not start where the covered prefix ends.
    fn append_batch<'a>(
        &mut self,
        (offset, end): (u64, u64),
        batch: impl Iterator<Item = (&'a Entry, u64)>,
    ) {
        if self.covered != offset {
            return;
        }
        for (entry, position) in batch {
            self.pending
                .extend(self.summary.observe(entry, Position::new(position)));
        }
        self.covered = end;
        self.fingerprint = None;
    }
}

impl TapeFile {
    /// Returns the current summary.
    pub(crate) fn summary(&mut self) -> Result<TapeSummary> {
        self.refresh_index()?;
        Ok(self.index.summary.clone())
    }

    /// Returns the selected anchors.
    pub(crate) fn anchors(&mut self, query: &AnchorQuery) -> Result<Vec<AnchorMark>> {
        let snapshot = self.refresh_index()?;
        let (Some(snapshot), Some(last)) = (snapshot, &self.index.summary.last_anchor) else {
            return Ok(Vec::new());
        };
        // The summary suffices for the common queries.
        let is_last = match query {
            AnchorQuery::Latest(count) => *count == 1,
            AnchorQuery::LatestNamed(name) => last.name == *name,
            AnchorQuery::All | AnchorQuery::FirstNamedAfter(..) => false,
        };
        if is_last {
            return Ok(vec![last.clone()]);
        }
        if let Some(marks) = self.all_marks(&self.index) {
            return Ok(query.select_marks(&marks));
        }
        // The marks on disk belong to another index. Build the index again from the complete tape.
        self.index = Index::new(snapshot.inode);
        self.index.extend_to(&snapshot)?;
        Ok(query.select_marks(&self.index.pending))
    }

    /// Updates the index in memory and returns the snapshot it covers.
    fn refresh_index(&mut self) -> Result<Option<Snapshot>> {
        let Some(snapshot) = self.snapshot()? else {
            self.index = Index::default();
            return Ok(None);
        };
        self.update_index(&snapshot)?;
        if self.index.is_checkpoint_due(self.index.covered) {
            self.save_index_if_unlocked();
        }
        Ok(Some(snapshot))
    }

    /// Updates the index in memory to cover this snapshot.
    pub(crate) fn update_index(&mut self, snapshot: &Snapshot) -> Result<()> {
        let is_usable = self.index.inode == snapshot.inode && self.index.is_valid_for(snapshot);
        let behind = snapshot.end.saturating_sub(self.index.covered);
        if !is_usable || behind > CHECKPOINT_BYTES {
            let stored = self.load_index(snapshot);
            if !is_usable {
                self.index = stored.unwrap_or_else(|| Index::new(snapshot.inode));
            } else if let Some(stored) = stored
                && stored.covered > self.index.covered
            {
                self.index = stored;
            }
        }
        self.index.extend_to(snapshot)
    }

    /// Adds a committed batch to the index, and saves the index each time the tape has grown by [`CHECKPOINT_BYTES`].
    pub(crate) fn index_batch<'a>(
        &mut self,
        open: &OpenFile,
        (offset, end): (u64, u64),
        batch: impl Iterator<Item = (&'a Entry, u64)>,
    ) {
        if offset == 0 {
            self.index = Index::new(open.inode);
        }
        if self.index.inode == open.inode {
            self.index.append_batch((offset, end), batch);
        }
        if self.index.is_checkpoint_due(end) {
            self.save_index(&self.snapshot_of(open, end));
        }
    }

    /// Saves the index of a tape that is being closed.
    pub(crate) fn save_index_on_close(&mut self) {
        if self.index.covered >= self.index.saved + MIN_INDEX_BYTES {
            self.save_index_if_unlocked();
        }
    }

    fn save_index_if_unlocked(&mut self) {
        let Ok(Some(lock)) = self.try_lock() else {
            return;
        };
        // The tape may have grown before the lock was taken, but now it contains no incomplete batch.
        if let Ok(Some(snapshot)) = Snapshot::capture(&self.store, &self.tape) {
            self.save_index(&snapshot);
        }
        drop(lock);
    }

    /// Saves the index. The caller must hold the tape's lock. Errors are only logged, because the next reader can
    /// rebuild the index.
    fn save_index(&mut self, snapshot: &Snapshot) {
        let saved = self
            .update_index(snapshot)
            .and_then(|()| self.write_index(snapshot));
        self.index.checkpoint_at = snapshot.end + CHECKPOINT_BYTES;
        if let Err(error) = saved {
            tracing::debug!(tape = %self.tape, %error, "index.save_failed");
        }
    }

    /// Rebuilds the index from the complete tape and saves it.
    pub(crate) fn rebuild_index(&mut self) -> Result<TapeSummary> {
        let lock = self.lock()?;
        self.remove_index_files()?;
        self.forget_replaced_file();
        let Some(snapshot) = Snapshot::capture(&self.store, &self.tape)? else {
            return Ok(TapeSummary::default());
        };
        self.update_index(&snapshot)?;
        self.write_index(&snapshot)?;
        drop(lock);
        Ok(self.index.summary.clone())
    }

    /// Removes both files of the index.
    pub(crate) fn remove_index_files(&self) -> Result<()> {
        self.store
            .remove_file(&self.store.paths.index_file(&self.tape))?;
        self.store
            .remove_file(&self.store.paths.marks_file(&self.tape))
    }

    /// Loads the index from disk. Returns `None` if it is missing, invalid or belongs to another tape file.
    pub(crate) fn load_index(&self, snapshot: &Snapshot) -> Option<Index> {
        let path = self.store.paths.index_file(&self.tape);
        let bytes = self.store.read_file(&path).ok()??;
        let stored: Index = serde_json::from_slice(&bytes).ok()?;
        let is_valid = stored.version == INDEX_VERSION
            && stored.fingerprint.is_some()
            && stored.is_valid_for(snapshot);
        is_valid.then_some(Index {
            saved: stored.covered,
            inode: snapshot.inode,
            ..stored
        })
    }

    /// Returns all anchors, or `None` if the marks file on disk is missing or does not belong to this index.
    pub(crate) fn all_marks(&self, index: &Index) -> Option<Vec<AnchorMark>> {
        let mut marks = if index.saved == 0 {
            Vec::new()
        } else {
            self.read_marks_file(index.marks_file)?
        };
        marks.extend(index.pending.iter().cloned());
        (marks.len() as u64 == index.summary.anchors).then_some(marks)
    }

    fn read_marks_file(&self, marks_file: MarksFile) -> Option<Vec<AnchorMark>> {
        let path = self.store.paths.marks_file(&self.tape);
        let bytes = self.store.read_file(&path).ok()??;
        let mut lines = bytes
            .get(..length_to_usize(marks_file.length))?
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty());
        let build: u64 = serde_json::from_slice(lines.next()?).ok()?;
        (build == marks_file.build).then_some(())?;
        lines
            .map(|line| serde_json::from_slice(line).ok())
            .collect()
    }

    /// Writes `<tape>.idx` and `<tape>.marks`. The caller must hold the tape's lock.
    ///
    /// If another process has saved its index meanwhile, loads and extends that index instead. This index does not
    /// match the marks file that the other process wrote.
    fn write_index(&mut self, snapshot: &Snapshot) -> Result<()> {
        match self.load_index(snapshot) {
            Some(stored)
                if stored.marks_file.build != self.index.marks_file.build
                    || stored.saved != self.index.saved =>
            {
                self.index = stored;
            }
            None if self.index.saved > 0 => self.index = Index::new(snapshot.inode),
            Some(_) | None => {}
        }
        self.index.extend_to(snapshot)?;
        if self.index.saved == self.index.covered {
            return Ok(());
        }
        let fingerprint = match self.index.fingerprint {
            Some(fingerprint) => Ok(fingerprint),
            None => compute_fingerprint(&*snapshot.file, self.index.covered),
        };
        let stored = Index {
            version: INDEX_VERSION,
            fingerprint: Some(fingerprint.describe("index", &self.path)?),
            marks_file: self.write_marks()?,
            pending: Vec::new(),
            saved: self.index.covered,
            ..self.index.clone()
        };
        let path = self.store.paths.index_file(&self.tape);
        let bytes = serde_json::to_vec(&stored).map_err(io::Error::from);
        self.store
            .replace_file(&path, &bytes.describe("write", &path)?, false)?;
        self.index = stored;
        Ok(())
    }

    /// Writes the pending anchors to the marks file. Returns the new identity and length of the file.
    fn write_marks(&self) -> Result<MarksFile> {
        let path = self.store.paths.marks_file(&self.tape);
        let mut marks_file = self.index.marks_file;
        let mut bytes = Vec::new();
        let is_new = self.index.saved == 0;
        if is_new {
            marks_file = MarksFile {
                build: random_build_number(),
                length: 0,
            };
            bytes.extend(format!("{}\n", marks_file.build).bytes());
        }
        for mark in &self.index.pending {
            // Serializing a mark cannot fail: it has three plain fields.
            bytes.extend(serde_json::to_vec(mark).unwrap_or_default());
            bytes.push(b'\n');
        }
        if is_new {
            self.store.replace_file(&path, &bytes, false)?;
        } else if !bytes.is_empty() {
            let file = self.store.open_for_writing(&path, OpenMode::Write)?;
            file.write_all_at(&bytes, marks_file.length)
                .describe("write", &path)?;
        }
        marks_file.length += bytes.len() as u64;
        Ok(marks_file)
    }
}

pub(crate) fn compute_fingerprint(file: &dyn FsFile, covered: u64) -> io::Result<FileFingerprint> {
    let checksum = |offset: u64, length: u64| {
        let bytes = file.read_range(offset, length_to_usize(length))?;
        Ok::<_, io::Error>(crc32fast::hash(&bytes))
    };
    let tail = covered.min(TAIL_BYTES);
    Ok(FileFingerprint {
        head: checksum(0, covered.min(HEAD_BYTES))?,
        tail: checksum(covered - tail, tail)?,
    })
}

/// Returns a random number that distinguishes marks files of the same tape.
fn random_build_number() -> u64 {
    std::hash::RandomState::new().hash_one(std::process::id())
}
