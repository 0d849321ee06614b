//! File operations of a store. They create missing directories, and their errors name the file.

use std::{io, path::Path};

use super::context::StoreContext;
use crate::{
    Result,
    fs::{FsFile, OpenMode},
};

impl StoreContext {
    /// Opens a file for writing. Creates its directory if that is missing.
    pub(crate) fn open_for_writing(&self, path: &Path, mode: OpenMode) -> Result<Box<dyn FsFile>> {
        let opened = match self.fs.open(path, mode) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let parent = path.parent().unwrap_or(path);
                self.fs
                    .create_dir_all(parent)
                    .and_then(|()| self.fs.open(path, mode))
            }
            other => other,
        };
        opened.map_err(|error| self.io_error("open", path, error))
    }

    /// Returns whether `path` still names the file with this inode. A lock on a removed file does not exclude other
    /// processes, which lock the new file.
    pub(crate) fn is_inode_at(&self, inode: u64, path: &Path) -> Result<bool> {
        let stat = not_found_to_none(self.fs.stat(path))
            .map_err(|error| self.io_error("inspect", path, error))?;
        Ok(stat.is_some_and(|stat| stat.inode == inode))
    }

    /// Replaces a file atomically: writes a temporary file and renames it.
    pub(crate) fn replace_file(&self, path: &Path, bytes: &[u8], sync: bool) -> Result<()> {
        let temp_path = self.paths.temp_file(path);
        let file = self.open_for_writing(&temp_path, OpenMode::Truncate)?;
        file.write_all_at(bytes, 0)
            .map_err(|error| self.io_error("write", &temp_path, error))?;
        if sync {
            file.sync()
                .map_err(|error| self.io_error("sync", &temp_path, error))?;
        }
        self.rename_file(&temp_path, path)
    }

    /// Renames a file. Creates the target's directory if that is missing.
    pub(crate) fn rename_file(&self, from: &Path, to: &Path) -> Result<()> {
        let parent = to.parent().unwrap_or(to);
        let moved = match self.fs.rename(from, to) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self
                .fs
                .create_dir_all(parent)
                .and_then(|()| self.fs.rename(from, to)),
            other => other,
        };
        moved.map_err(|error| self.io_error("rename a file to", to, error))
    }

    /// Syncs the directory of a file, so that a new name of the file survives power loss.
    pub(crate) fn sync_parent_dir(&self, path: &Path) -> Result<()> {
        let parent = path.parent().unwrap_or(path);
        self.fs
            .sync_dir(parent)
            .map_err(|error| self.io_error("sync", parent, error))
    }

    /// Removes a file. Does nothing if it does not exist.
    pub(crate) fn remove_file(&self, path: &Path) -> Result<()> {
        not_found_to_none(self.fs.remove(path))
            .map(drop)
            .map_err(|error| self.io_error("remove", path, error))
    }
}

/// Converts the error [`io::ErrorKind::NotFound`] to `Ok(None)`.
pub(crate) fn not_found_to_none<T>(outcome: io::Result<T>) -> io::Result<Option<T>> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
