//! File operations and paths that all parts of a file store share.

use std::{io, path::Path, sync::Arc};

use super::{Durability, paths::StorePaths};
use crate::{
    Result, TapeError,
    fs::{Fs, FsFile, OpenMode},
};

/// The file system, paths and durability of a store.
#[derive(Debug)]
pub(crate) struct StoreContext {
    pub(crate) fs: Arc<dyn Fs>,
    pub(crate) paths: StorePaths,
    pub(crate) durability: Durability,
}

impl StoreContext {
    #[expect(
        clippy::unused_self,
        reason = "a method is shorter at the call sites and can use the store's state later"
    )]
    pub(crate) fn error(&self, action: &'static str, path: &Path, source: io::Error) -> TapeError {
        TapeError::from_io(action, path, source)
    }

    /// Opens a file for writing. Creates its directory if that is missing.
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

    /// Returns whether `path` still names the file with this inode. A lock on a removed file does not exclude other
    /// processes, which lock the new file.
    pub(crate) fn has_name(&self, inode: u64, path: &Path) -> Result<bool> {
        let stat = missing_is_none(self.fs.stat(path))
            .map_err(|error| self.error("inspect", path, error))?;
        Ok(stat.is_some_and(|stat| stat.inode == inode))
    }

    /// Replaces a file atomically: writes a temporary file and renames it.
    pub(crate) fn replace(&self, path: &Path, bytes: &[u8], sync: bool) -> Result<()> {
        let temp_path = self.temp_path(path);
        let file = self.open_write(&temp_path, OpenMode::Truncate)?;
        file.write_all_at(bytes, 0)
            .map_err(|error| self.error("write", &temp_path, error))?;
        if sync {
            file.sync()
                .map_err(|error| self.error("sync", &temp_path, error))?;
        }
        self.move_to(&temp_path, path)
    }

    /// Renames a file. Creates the target's directory if that is missing.
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

    /// Returns the path of the temporary file for replacing `path`, unique to this process.
    ///
    /// Within the process no two threads use it with different content: a file is replaced only under its lock, or, for
    /// blobs, by equal content.
    pub(crate) fn temp_path(&self, path: &Path) -> std::path::PathBuf {
        let name = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        self.paths
            .temporary()
            .join(format!("{name}.{}", std::process::id()))
    }

    pub(crate) fn sync_parent(&self, path: &Path) -> Result<()> {
        let parent = path.parent().unwrap_or(path);
        self.fs
            .sync_dir(parent)
            .map_err(|error| self.error("sync", parent, error))
    }

    /// Removes a file. Does nothing if it does not exist.
    pub(crate) fn remove(&self, path: &Path) -> Result<()> {
        missing_is_none(self.fs.remove(path))
            .map(drop)
            .map_err(|error| self.error("remove", path, error))
    }
}

/// Converts the error [`io::ErrorKind::NotFound`] to `Ok(None)`.
pub(crate) fn missing_is_none<T>(outcome: io::Result<T>) -> io::Result<Option<T>> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
