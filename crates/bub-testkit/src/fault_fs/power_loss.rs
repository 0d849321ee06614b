//! State of files after a power loss: synced data stays; the disk may keep any part of the rest.

use std::{
    collections::HashMap,
    ffi::OsString,
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use bub_tape::fs::FsFile;

/// Size of a sector, which is written completely or not at all.
const SECTOR_BYTES: usize = 512;
/// Old content of a block: a partial line and lines.
const STALE_BYTES: &[u8] = b"le\xff\0 stale\n{\"id\": 1, \"sta";

/// Effect of a power loss on data that was not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PowerLossEffect {
    /// Content and names are lost.
    Nothing,
    /// Half of the data appended to a file stays.
    Half,
    /// Names, lengths and the content of a single sector stay; other content becomes zeros.
    Zeros,
    /// Names, lengths and the content of a single sector stay; other content becomes old data of
    /// the blocks.
    Garbage,
}

impl PowerLossEffect {
    /// All effects.
    pub const ALL: [Self; 4] = [Self::Nothing, Self::Half, Self::Zeros, Self::Garbage];
}

/// Content of a file at its last fsync. Shared, because a file can lose its name and keep its
/// content.
type Content = Arc<Mutex<Vec<u8>>>;

/// Durable files.
#[derive(Debug, Default)]
pub(super) struct DurableFiles {
    files: HashMap<u64, Content>,
    names: HashMap<PathBuf, HashMap<OsString, Content>>,
}

impl DurableFiles {
    /// Records all files below a directory as durable.
    pub(super) fn from_directory(directory: &Path) -> io::Result<Self> {
        let mut durable = Self::default();
        durable.take(directory)?;
        Ok(durable)
    }

    fn take(&mut self, directory: &Path) -> io::Result<()> {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                self.take(&entry.path())?;
            } else if kind.is_file() {
                let content = Arc::new(Mutex::new(fs::read(entry.path())?));
                self.files.insert(entry.metadata()?.ino(), content);
            }
        }
        self.names_synced(directory)
    }

    /// Records a new file, which may reuse the inode of a deleted one.
    pub(super) fn made(&mut self, inode: u64) {
        self.files.insert(inode, Content::default());
    }

    pub(super) fn content_synced(&mut self, file: &dyn FsFile) -> io::Result<()> {
        let stat = file.stat()?;
        let bytes = file.read_range(0, usize::try_from(stat.size).unwrap_or(usize::MAX))?;
        let content = self.files.entry(stat.inode).or_default();
        *content.lock().unwrap_or_else(PoisonError::into_inner) = bytes;
        Ok(())
    }

    pub(super) fn names_synced(&mut self, directory: &Path) -> io::Result<()> {
        let mut names = HashMap::new();
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                let content = self.files.entry(entry.metadata()?.ino()).or_default();
                names.insert(entry.file_name(), Arc::clone(content));
            }
        }
        self.names.insert(directory.to_owned(), names);
        Ok(())
    }

    pub(super) fn restore(&self, directory: &Path, how: PowerLossEffect) -> io::Result<()> {
        match how {
            PowerLossEffect::Nothing => self.keep_synced(directory, false),
            PowerLossEffect::Half => self.keep_synced(directory, true),
            PowerLossEffect::Zeros => self.keep_lengths(directory, b"\0"),
            PowerLossEffect::Garbage => self.keep_lengths(directory, STALE_BYTES),
        }
    }

    /// Keeps names and lengths, and replaces content that was not synced unless it is in a single
    /// sector.
    fn keep_lengths(&self, directory: &Path, filling: &[u8]) -> io::Result<()> {
        for entry in fs::read_dir(directory)? {
            let (path, found) = { entry.and_then(|entry| Ok((entry.path(), entry.metadata()?)))? };
            if found.is_dir() {
                self.keep_lengths(&path, filling)?;
            }
            let Some(synced) = self.files.get(&found.ino()).filter(|_| found.is_file()) else {
                continue;
            };
            let synced = synced.lock().unwrap_or_else(PoisonError::into_inner).len();
            let mut bytes = fs::read(&path)?;
            let last = bytes.len().saturating_sub(1);
            let Some(added) = bytes
                .get_mut(synced..)
                .filter(|_| synced / SECTOR_BYTES != last / SECTOR_BYTES)
            else {
                continue;
            };
            for (byte, other) in added.iter_mut().zip(filling.iter().cycle()) {
                *byte = *other;
            }
            fs::write(&path, bytes)?;
        }
        Ok(())
    }

    fn keep_synced(&self, directory: &Path, torn: bool) -> io::Result<()> {
        let mut left = self.names.get(directory).cloned().unwrap_or_default();
        for entry in fs::read_dir(directory)? {
            let (path, name) = { entry.map(|entry| (entry.path(), entry.file_name()))? };
            let found = fs::symlink_metadata(&path)?;
            if found.is_dir() {
                self.keep_synced(&path, torn)?;
                continue;
            }
            let Some(content) = left.get(&name) else {
                fs::remove_file(&path)?;
                continue;
            };
            let is_same = self
                .files
                .get(&found.ino())
                .is_some_and(|of_file| Arc::ptr_eq(of_file, content));
            if found.is_file() && is_same && torn {
                let grown = fs::read(&path)?;
                let kept = content.lock().unwrap_or_else(PoisonError::into_inner);
                let more = grown.strip_prefix(kept.as_slice()).unwrap_or_default();
                let half = more.get(..more.len() / 2).unwrap_or_default();
                fs::write(&path, [kept.as_slice(), half].concat())?;
                drop(kept);
                left.remove(&name);
            }
        }
        for (name, content) in left {
            fs::write(
                directory.join(name),
                &*content.lock().unwrap_or_else(PoisonError::into_inner),
            )?;
        }
        Ok(())
    }
}
