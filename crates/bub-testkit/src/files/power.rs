//! What is left of files when the power goes: the strictest reading of what an fsync promises.

use std::{
    collections::HashMap,
    ffi::OsString,
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use bub_tape::fs::FsFile;

/// The content of a file as of its last fsync. Shared, because a file can lose its name and keep its content.
type Content = Arc<Mutex<Vec<u8>>>;

/// What was made durable.
#[derive(Debug, Default)]
pub(super) struct Durable {
    files: HashMap<u64, Content>,
    names: HashMap<PathBuf, HashMap<OsString, Content>>,
}

impl Durable {
    /// A file was made, maybe with the number of one that is gone.
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

    pub(super) fn restore(&self, directory: &Path, torn: bool) -> io::Result<()> {
        let mut left = self.names.get(directory).cloned().unwrap_or_default();
        for entry in fs::read_dir(directory)? {
            let (path, name) = { entry.map(|entry| (entry.path(), entry.file_name()))? };
            let found = fs::symlink_metadata(&path)?;
            if found.is_dir() {
                self.restore(&path, torn)?;
                continue;
            }
            let Some(content) = left.get(&name) else {
                fs::remove_file(&path)?;
                continue;
            };
            let is_same = self.files.get(&found.ino()).is_some_and(|of_file| Arc::ptr_eq(of_file, content));
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
            fs::write(directory.join(name), &*content.lock().unwrap_or_else(PoisonError::into_inner))?;
        }
        Ok(())
    }
}
