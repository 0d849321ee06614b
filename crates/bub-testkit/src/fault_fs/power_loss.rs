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
        durable.record_directory(directory)?;
        Ok(durable)
    }

    fn record_directory(&mut self, directory: &Path) -> io::Result<()> {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                self.record_directory(&entry.path())?;
            } else if kind.is_file() {
                let content = Arc::new(Mutex::new(fs::read(entry.path())?));
                self.files.insert(entry.metadata()?.ino(), content);
            }
        }
        self.record_names(directory)
    }

    /// Records a new file, which may reuse the inode of a deleted one.
    pub(super) fn record_new_file(&mut self, inode: u64) {
        self.files.insert(inode, Content::default());
    }

    pub(super) fn record_content(&mut self, file: &dyn FsFile) -> io::Result<()> {
        let stat = file.stat()?;
        let bytes = file.read_range(0, usize::try_from(stat.size).unwrap_or(usize::MAX))?;
        let content = self.files.entry(stat.inode).or_default();
        *content.lock().unwrap_or_else(PoisonError::into_inner) = bytes;
        Ok(())
    }

    pub(super) fn record_names(&mut self, directory: &Path) -> io::Result<()> {
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

    pub(super) fn apply_power_loss(
        &self,
        directory: &Path,
        effect: PowerLossEffect,
    ) -> io::Result<()> {
        match effect {
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
            let (path, metadata) =
                { entry.and_then(|entry| Ok((entry.path(), entry.metadata()?)))? };
            if metadata.is_dir() {
                self.keep_lengths(&path, filling)?;
            }
            let Some(synced) = self
                .files
                .get(&metadata.ino())
                .filter(|_| metadata.is_file())
            else {
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
        let mut durable_names = self.names.get(directory).cloned().unwrap_or_default();
        for entry in fs::read_dir(directory)? {
            let (path, name) = { entry.map(|entry| (entry.path(), entry.file_name()))? };
            let metadata = fs::symlink_metadata(&path)?;
            if metadata.is_dir() {
                self.keep_synced(&path, torn)?;
                continue;
            }
            let Some(content) = durable_names.get(&name) else {
                fs::remove_file(&path)?;
                continue;
            };
            let is_same = self
                .files
                .get(&metadata.ino())
                .is_some_and(|file_content| Arc::ptr_eq(file_content, content));
            if metadata.is_file() && is_same && torn {
                let grown = fs::read(&path)?;
                let synced = content.lock().unwrap_or_else(PoisonError::into_inner);
                let more = grown.strip_prefix(synced.as_slice()).unwrap_or_default();
                let half = more.get(..more.len() / 2).unwrap_or_default();
                fs::write(&path, [synced.as_slice(), half].concat())?;
                drop(synced);
                durable_names.remove(&name);
            }
        }
        for (name, content) in durable_names {
            fs::write(
                directory.join(name),
                &*content.lock().unwrap_or_else(PoisonError::into_inner),
            )?;
        }
        Ok(())
    }
}
