//! What all parts of a file store hold in common.

use std::{io, path::Path, sync::Arc};

use super::{Durability, paths::StorePaths};
use crate::{
    Result, TapeError,
    fs::{Fs, FsFile, OpenMode},
};

/// The ground a store stands on.
#[derive(Debug)]
pub(crate) struct StoreContext {
    pub(crate) fs: Arc<dyn Fs>,
    pub(crate) layout: StorePaths,
    pub(crate) durability: Durability,
}

impl StoreContext {
    #[expect(
        clippy::unused_self,
        reason = "call sites read as one sentence, and the store may come to matter here"
    )]
    pub(crate) fn error(&self, action: &'static str, path: &Path, source: io::Error) -> TapeError {
        TapeError::from_io(action, path, source)
    }

    /// Opens a file for writing, making its directory when that is what is missing.
    pub(crate) fn open_write(&self, path: &Path, mode: OpenMode) -> Result<Box<dyn FsFile>> {
        let opened = match self.fs.open(path, mode) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let parent = path.parent().unwrap_or(path);
                self.fs
                    .create_dir_all(parent)
                    .and_then(|()| self.fs.open(path, mode))
            }
            other => other,
        };
        opened.map_err(|error| self.error("open", path, error))
    }

    /// Whether an open file still has its name. A lock on one that was removed keeps nobody out.
    pub(crate) fn has_name(&self, inode: u64, path: &Path) -> Result<bool> {
        let named = missing_is_none(self.fs.stat(path))
            .map_err(|error| self.error("look at", path, error))?;
        Ok(named.is_some_and(|named| named.inode == inode))
    }

    /// Writes a whole new file and gives it its name only when it is complete.
    pub(crate) fn replace(&self, path: &Path, bytes: &[u8], sync: bool) -> Result<()> {
        let temporary = self.scratch(path);
        let file = self.open_write(&temporary, OpenMode::Truncate)?;
        file.write_all_at(bytes, 0)
            .map_err(|error| self.error("write", &temporary, error))?;
        if sync {
            file.sync()
                .map_err(|error| self.error("sync", &temporary, error))?;
        }
        self.move_to(&temporary, path)
    }

    /// Renames, making the target's directory when that is what is missing.
    pub(crate) fn move_to(&self, from: &Path, to: &Path) -> Result<()> {
        let parent = to.parent().unwrap_or(to);
        let moved = match self.fs.rename(from, to) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self
                .fs
                .create_dir_all(parent)
                .and_then(|()| self.fs.rename(from, to)),
            other => other,
        };
        moved.map_err(|error| self.error("rename", to, error))
    }

    /// A name beside nobody else's: the same target is only replaced under its lock, or by equal content.
    pub(crate) fn scratch(&self, path: &Path) -> std::path::PathBuf {
        let name = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        self.layout
            .temporary()
            .join(format!("{name}.{}", std::process::id()))
    }

    pub(crate) fn sync_dir_of(&self, path: &Path) -> Result<()> {
        let parent = path.parent().unwrap_or(path);
        self.fs
            .sync_dir(parent)
            .map_err(|error| self.error("sync", parent, error))
    }

    /// Removes a file; none is as good.
    pub(crate) fn remove(&self, path: &Path) -> Result<()> {
        missing_is_none(self.fs.remove(path))
            .map(drop)
            .map_err(|error| self.error("remove", path, error))
    }
}

/// Turns "there is no such file" into a plain answer.
pub(crate) fn missing_is_none<T>(outcome: io::Result<T>) -> io::Result<Option<T>> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
