//! The index of one tape: its summary and the positions of its anchors.
//!
//! The index consists of two files that may be deleted at any time. `<tape>.idx` is small and replaced as a whole. It
//! contains the length of the tape prefix that it covers and checksums of both ends of that prefix, to detect a
//! replaced tape. `<tape>.marks` is a list of anchors that is valid up to the length stored in `<tape>.idx`.

use std::{hash::BuildHasher, io};

use serde::{Deserialize, Serialize};

use super::{context::StoreContext, lines::ForwardLines, scan, snapshot::Snapshot};
use crate::{
    AnchorMark, Result, TapeName, TapeSummary,
    fs::{FsFile, OpenMode},
};

const INDEX_VERSION: u32 = 1;
/// Number of bytes at the start of the tape that the fingerprint covers.
const HEAD_BYTES: u64 = 256;
/// Number of bytes at the end of the covered prefix that the fingerprint covers.
const TAIL_BYTES: u64 = 64;

/// The index in memory.
#[derive(Debug, Clone, Default)]
pub(crate) struct Index {
    pub(crate) summary: TapeSummary,
    /// Length in bytes of the tape prefix that the index covers.
    pub(crate) covered: u64,
    /// Length in bytes of the tape prefix that the files on disk cover; 0 if there are none.
    pub(crate) saved: u64,
    /// Anchors that are not in the marks file yet.
    pending: Vec<AnchorMark>,
    marks_file: MarksFile,
    /// Fingerprint of the covered prefix. `None` after an append by this process, because such an append does not
    /// replace the file.
    fingerprint: Option<FileFingerprint>,
}

/// Identity and valid length of the marks file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct MarksFile {
    /// Random number in the first line of the file.
    build: u64,
    /// Valid length in bytes.
    length: u64,
}

/// Checksums of both ends of the covered prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct FileFingerprint {
    head: u32,
    tail: u32,
}

/// The content of `<tape>.idx`.
#[derive(Serialize, Deserialize)]
struct IndexFile {
    version: u32,
    covered: u64,
    #[serde(rename = "print")]
    fingerprint: FileFingerprint,
    marks: MarksFile,
    summary: TapeSummary,
}

impl Index {
    /// Loads the index from disk. Returns `None` if it is missing, invalid or belongs to another tape file.
    pub(crate) fn load(
        store_context: &StoreContext,
        tape: &TapeName,
        file: &dyn FsFile,
        end: u64,
    ) -> Option<Self> {
        let index_file = store_context
            .fs
            .open(&store_context.paths.index_file(tape), OpenMode::Read)
            .ok()?;
        let size = usize::try_from(index_file.stat().ok()?.size).ok()?;
        let stored_index: IndexFile =
            serde_json::from_slice(&index_file.read_range(0, size).ok()?).ok()?;
        let index = Self {
            summary: stored_index.summary,
            covered: stored_index.covered,
            saved: stored_index.covered,
            pending: Vec::new(),
            marks_file: stored_index.marks,
            fingerprint: Some(stored_index.fingerprint),
        };
        (stored_index.version == INDEX_VERSION && index.is_valid_for(file, end)).then_some(index)
    }

    /// Returns whether the index belongs to this file and covers a prefix of its first `end` bytes.
    pub(crate) fn is_valid_for(&self, file: &dyn FsFile, end: u64) -> bool {
        self.covered <= end
            && self.fingerprint.is_none_or(|expected| {
                compute_fingerprint(file, self.covered).is_ok_and(|actual| actual == expected)
            })
    }

    /// Extends the index to the end of the snapshot.
    pub(crate) fn extend_to(&mut self, snapshot: &Snapshot) -> io::Result<()> {
        if self.covered >= snapshot.end {
            return Ok(());
        }
        let mut lines = ForwardLines::with_large_reads(self.covered, snapshot.end);
        let (summary, pending) = (&mut self.summary, &mut self.pending);
        while lines.read_chunk(&*snapshot.file, |position, line| {
            pending.extend(scan::observe_line(summary, line, position));
        })? {}
        self.covered = snapshot.end;
        self.fingerprint = Some(compute_fingerprint(&*snapshot.file, self.covered)?);
        Ok(())
    }

    /// Adds a batch that was just written. Returns `false` and does nothing if it does not follow the covered prefix.
    pub(crate) fn append_batch<'a>(
        &mut self,
        offset: u64,
        batch: impl Iterator<Item = (&'a crate::Entry, u64)>,
        end: u64,
    ) -> bool {
        if self.covered != offset {
            return false;
        }
        for (entry, position) in batch {
            self.pending
                .extend(self.summary.observe(entry, crate::Position::new(position)));
        }
        self.covered = end;
        self.fingerprint = None;
        true
    }

    /// Returns all anchors, or `None` if the marks file on disk belongs to another index.
    pub(crate) fn all_marks(
        &self,
        store_context: &StoreContext,
        tape: &TapeName,
    ) -> Option<Vec<AnchorMark>> {
        let mut marks = if self.saved == 0 {
            Vec::new()
        } else {
            self.read_marks_file(store_context, tape)?
        };
        marks.extend(self.pending.iter().cloned());
        (marks.len() as u64 == self.summary.anchors).then_some(marks)
    }

    fn read_marks_file(
        &self,
        store_context: &StoreContext,
        tape: &TapeName,
    ) -> Option<Vec<AnchorMark>> {
        let file = store_context
            .fs
            .open(&store_context.paths.marks_file(tape), OpenMode::Read)
            .ok()?;
        let length = usize::try_from(self.marks_file.length).ok()?;
        let bytes = file
            .read_range(0, length)
            .ok()
            .filter(|bytes| bytes.len() == length)?;
        let mut lines = bytes
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty());
        let build: u64 = serde_json::from_slice(lines.next()?).ok()?;
        (build == self.marks_file.build).then_some(())?;
        lines
            .map(|line| serde_json::from_slice(line).ok())
            .collect()
    }

    /// Writes both files. The caller must hold the tape's lock.
    ///
    /// Another process may have saved a newer index meanwhile. Its marks are not in this index, so the saved index is
    /// loaded and extended instead.
    pub(crate) fn save(
        &mut self,
        store_context: &StoreContext,
        tape: &TapeName,
        snapshot: &Snapshot,
    ) -> Result<()> {
        let index_error =
            |error| store_context.io_error("index", &store_context.paths.tape_file(tape), error);
        match Self::load(store_context, tape, &*snapshot.file, snapshot.end) {
            Some(stored_index)
                if stored_index.marks_file.build != self.marks_file.build
                    || stored_index.saved != self.saved =>
            {
                *self = stored_index;
            }
            None if self.saved > 0 => *self = Self::default(),
            Some(_) | None => {}
        }
        self.extend_to(snapshot).map_err(index_error)?;
        if self.saved == self.covered {
            return Ok(());
        }
        let fingerprint = match self.fingerprint {
            Some(fingerprint) => fingerprint,
            None => compute_fingerprint(&*snapshot.file, self.covered).map_err(index_error)?,
        };
        self.fingerprint = Some(fingerprint);
        let before = (self.marks_file, self.pending.clone());
        let saved = self.save_files(store_context, tape, fingerprint);
        if saved.is_err() {
            (self.marks_file, self.pending) = before;
        }
        saved
    }

    fn save_files(
        &mut self,
        store_context: &StoreContext,
        tape: &TapeName,
        fingerprint: FileFingerprint,
    ) -> Result<()> {
        self.save_marks(store_context, tape)?;
        let stored_index = IndexFile {
            version: INDEX_VERSION,
            covered: self.covered,
            fingerprint,
            marks: self.marks_file,
            summary: self.summary.clone(),
        };
        let path = store_context.paths.index_file(tape);
        let bytes = serde_json::to_vec(&stored_index)
            .map_err(|error| store_context.io_error("write", &path, error.into()))?;
        store_context.replace_file(&path, &bytes, false)?;
        self.saved = self.covered;
        Ok(())
    }

    fn save_marks(&mut self, store_context: &StoreContext, tape: &TapeName) -> Result<()> {
        let path = store_context.paths.marks_file(tape);
        let mut bytes = Vec::new();
        let is_new = self.saved == 0;
        if is_new {
            self.marks_file = MarksFile {
                build: random_build_number(),
                length: 0,
            };
            bytes.extend_from_slice(format!("{}\n", self.marks_file.build).as_bytes());
        }
        for mark in &self.pending {
            // Serializing a mark cannot fail: it has three plain fields.
            bytes.extend_from_slice(&serde_json::to_vec(mark).unwrap_or_default());
            bytes.push(b'\n');
        }
        if is_new {
            store_context.replace_file(&path, &bytes, false)?;
        } else if !bytes.is_empty() {
            let file = store_context.open_for_writing(&path, OpenMode::Write)?;
            file.write_all_at(&bytes, self.marks_file.length)
                .map_err(|error| store_context.io_error("write", &path, error))?;
        }
        self.marks_file.length += bytes.len() as u64;
        self.pending.clear();
        Ok(())
    }
}

/// Removes both files of the index.
pub(crate) fn remove_index_files(store_context: &StoreContext, tape: &TapeName) -> Result<()> {
    store_context.remove_file(&store_context.paths.index_file(tape))?;
    store_context.remove_file(&store_context.paths.marks_file(tape))
}

fn compute_fingerprint(file: &dyn FsFile, covered: u64) -> io::Result<FileFingerprint> {
    let mut buffer = [0; 256];
    let mut checksum = |offset: u64, length: u64| {
        let length = usize::try_from(length).unwrap_or(0);
        let part = buffer.get_mut(..length).unwrap_or_default();
        let filled = file.read_full_at(part, offset)?;
        Ok::<_, io::Error>(crc32fast::hash(part.get(..filled).unwrap_or_default()))
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
