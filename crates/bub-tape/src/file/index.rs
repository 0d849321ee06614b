//! The derived index of one tape: its summary and the places of its anchors.
//!
//! Two files, both of which may vanish at any time. `<tape>.idx` is small and replaced whole; it says up to which byte
//! of the tape it speaks and what the bytes at both ends of that part look like, so a replaced tape is
//! noticed. `<tape>.marks` is a log of anchors, valid up to the length named in the `.idx` file.

use std::{hash::BuildHasher, io};

use serde::{Deserialize, Serialize};

use super::{context::StoreContext, lines::ForwardLines, scan, snapshot::Snapshot};
use crate::{
    AnchorMark, Result, TapeName, TapeSummary,
    fs::{FsFile, OpenMode},
};

const INDEX_VERSION: u32 = 1;
const HEAD_BYTES: u64 = 256;
const TAIL_BYTES: u64 = 64;

/// The index as it stands in memory.
#[derive(Debug, Clone, Default)]
pub(crate) struct Index {
    pub(crate) summary: TapeSummary,
    /// The tape is summed up to here.
    pub(crate) covered: u64,
    /// How far the files on disk reach that this index continues.
    pub(crate) saved: u64,
    /// Marks that are not on disk yet.
    pending: Vec<AnchorMark>,
    stored: MarksFile,
    /// Unknown after an append of our own, which cannot have replaced the tape.
    print: Option<FileFingerprint>,
}

/// The marks file that this index continues.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct MarksFile {
    build: u64,
    length: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct FileFingerprint {
    head: u32,
    tail: u32,
}

#[derive(Serialize, Deserialize)]
struct IndexFile {
    version: u32,
    covered: u64,
    print: FileFingerprint,
    marks: MarksFile,
    summary: TapeSummary,
}

impl Index {
    /// The index on disk, when it speaks of this tape.
    pub(crate) fn load(
        store_context: &StoreContext,
        tape: &TapeName,
        file: &dyn FsFile,
        end: u64,
    ) -> Option<Self> {
        let opened = store_context
            .fs
            .open(&store_context.layout.index(tape), OpenMode::Read)
            .ok()?;
        let size = usize::try_from(opened.stat().ok()?.size).ok()?;
        let disk: IndexFile = serde_json::from_slice(&opened.read_range(0, size).ok()?).ok()?;
        let index = Self {
            summary: disk.summary,
            covered: disk.covered,
            saved: disk.covered,
            pending: Vec::new(),
            stored: disk.marks,
            print: Some(disk.print),
        };
        (disk.version == INDEX_VERSION && index.matches(file, end)).then_some(index)
    }

    /// Whether it speaks of the beginning of this file.
    pub(crate) fn matches(&self, file: &dyn FsFile, end: u64) -> bool {
        self.covered <= end
            && self.print.is_none_or(|print| {
                fingerprint(file, self.covered).is_ok_and(|found| found == print)
            })
    }

    /// Sums up what follows the covered part.
    pub(crate) fn catch_up(&mut self, snapshot: &Snapshot) -> io::Result<()> {
        if self.covered >= snapshot.end {
            return Ok(());
        }
        let mut lines = ForwardLines::large(self.covered, snapshot.end);
        let (summary, pending) = (&mut self.summary, &mut self.pending);
        while lines.advance(&*snapshot.file, |position, line| {
            pending.extend(scan::observe(summary, line, position));
        })? {}
        self.covered = snapshot.end;
        self.print = Some(fingerprint(&*snapshot.file, self.covered)?);
        Ok(())
    }

    /// Adds a batch that was just written behind the covered part; `false` when it stands elsewhere.
    pub(crate) fn extend<'a>(
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
        self.print = None;
        true
    }

    /// All anchors; `None` when the marks on disk are not the ones this index continues.
    pub(crate) fn marks(
        &self,
        store_context: &StoreContext,
        tape: &TapeName,
    ) -> Option<Vec<AnchorMark>> {
        let mut marks = if self.saved == 0 {
            Vec::new()
        } else {
            self.stored_marks(store_context, tape)?
        };
        marks.extend(self.pending.iter().cloned());
        (marks.len() as u64 == self.summary.anchors).then_some(marks)
    }

    fn stored_marks(
        &self,
        store_context: &StoreContext,
        tape: &TapeName,
    ) -> Option<Vec<AnchorMark>> {
        let file = store_context
            .fs
            .open(&store_context.layout.marks(tape), OpenMode::Read)
            .ok()?;
        let length = usize::try_from(self.stored.length).ok()?;
        let bytes = file
            .read_range(0, length)
            .ok()
            .filter(|bytes| bytes.len() == length)?;
        let mut lines = bytes
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty());
        let build: u64 = serde_json::from_slice(lines.next()?).ok()?;
        (build == self.stored.build).then_some(())?;
        lines
            .map(|line| serde_json::from_slice(line).ok())
            .collect()
    }

    /// Writes both files. Only for holders of the tape's lock.
    ///
    /// Somebody else may have saved in the meantime; continuing their files would need their marks, so theirs is taken
    /// over and brought up to date first.
    pub(crate) fn save(
        &mut self,
        store_context: &StoreContext,
        tape: &TapeName,
        snapshot: &Snapshot,
    ) -> Result<()> {
        let failed = |error| store_context.error("index", &store_context.layout.tape(tape), error);
        match Self::load(store_context, tape, &*snapshot.file, snapshot.end) {
            Some(disk) if disk.stored.build != self.stored.build || disk.saved != self.saved => {
                *self = disk;
            }
            None if self.saved > 0 => *self = Self::default(),
            Some(_) | None => {}
        }
        self.catch_up(snapshot).map_err(failed)?;
        if self.saved == self.covered {
            return Ok(());
        }
        let print = match self.print {
            Some(print) => print,
            None => fingerprint(&*snapshot.file, self.covered).map_err(failed)?,
        };
        self.print = Some(print);
        let before = (self.stored, self.pending.clone());
        let saved = self.save_files(store_context, tape, print);
        if saved.is_err() {
            (self.stored, self.pending) = before;
        }
        saved
    }

    fn save_files(
        &mut self,
        store_context: &StoreContext,
        tape: &TapeName,
        print: FileFingerprint,
    ) -> Result<()> {
        self.save_marks(store_context, tape)?;
        let disk = IndexFile {
            version: INDEX_VERSION,
            covered: self.covered,
            print,
            marks: self.stored,
            summary: self.summary.clone(),
        };
        let path = store_context.layout.index(tape);
        let bytes = serde_json::to_vec(&disk)
            .map_err(|error| store_context.error("write", &path, error.into()))?;
        store_context.replace(&path, &bytes, false)?;
        self.saved = self.covered;
        Ok(())
    }

    fn save_marks(&mut self, store_context: &StoreContext, tape: &TapeName) -> Result<()> {
        let path = store_context.layout.marks(tape);
        let mut bytes = Vec::new();
        let fresh = self.saved == 0;
        if fresh {
            self.stored = MarksFile {
                build: new_build(),
                length: 0,
            };
            bytes.extend_from_slice(format!("{}\n", self.stored.build).as_bytes());
        }
        for mark in &self.pending {
            // A mark is three plain fields; it always has a JSON form.
            bytes.extend_from_slice(&serde_json::to_vec(mark).unwrap_or_default());
            bytes.push(b'\n');
        }
        if fresh {
            store_context.replace(&path, &bytes, false)?;
        } else if !bytes.is_empty() {
            let file = store_context.open_write(&path, OpenMode::Write)?;
            file.write_all_at(&bytes, self.stored.length)
                .map_err(|error| store_context.error("write", &path, error))?;
        }
        self.stored.length += bytes.len() as u64;
        self.pending.clear();
        Ok(())
    }
}

/// Removes both files.
pub(crate) fn remove(store_context: &StoreContext, tape: &TapeName) -> Result<()> {
    store_context.remove(&store_context.layout.index(tape))?;
    store_context.remove(&store_context.layout.marks(tape))
}

fn fingerprint(file: &dyn FsFile, covered: u64) -> io::Result<FileFingerprint> {
    let mut buffer = [0; 256];
    let mut part = |offset: u64, length: u64| {
        let wanted = usize::try_from(length).unwrap_or(0);
        let part = buffer.get_mut(..wanted).unwrap_or_default();
        let filled = file.read_full_at(part, offset)?;
        Ok::<_, io::Error>(crc32fast::hash(part.get(..filled).unwrap_or_default()))
    };
    let tail = covered.min(TAIL_BYTES);
    Ok(FileFingerprint {
        head: part(0, covered.min(HEAD_BYTES))?,
        tail: part(covered - tail, tail)?,
    })
}

/// A number nobody else will choose for another marks file of the same tape.
fn new_build() -> u64 {
    std::hash::RandomState::new().hash_one(std::process::id())
}
