//! The file system, paths and durability that all parts of a file store share.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use super::{Durability, open_tapes::OpenTapes, paths::StorePaths};
use crate::{
    Result, TapeError,
    fs::{FileStat, Fs, FsFile, OpenMode},
};

/// Number of bytes that a search indexes at most. It takes about two seconds.
const DEFAULT_INDEX_LIMIT: u64 = 256 * 1024 * 1024;
/// The error code for "too many open files" on all systems bub supports.
const EMFILE: i32 = 24;

/// The file operations of a store. Their errors name the file. Operations that write create missing directories. At the
/// file descriptor limit of the process, operations close idle tapes and try again.
#[derive(Debug)]
pub(crate) struct StoreContext {
    fs: Arc<dyn Fs>,
    open_tapes: Weak<OpenTapes>,
    pub(crate) paths: StorePaths,
    pub(crate) durability: Durability,
    is_chained: AtomicBool,
    /// Number of bytes that a search indexes at most.
    pub(crate) index_limit: AtomicU64,
}

impl StoreContext {
    pub(crate) fn new(
        fs: Arc<dyn Fs>,
        open_tapes: Weak<OpenTapes>,
        root: PathBuf,
        durability: Durability,
    ) -> Self {
        Self {
            fs,
            open_tapes,
            paths: StorePaths::new(root),
            durability,
            is_chained: AtomicBool::new(false),
            index_limit: AtomicU64::new(DEFAULT_INDEX_LIMIT),
        }
    }

    /// Returns whether new entries get a hash chain.
    pub(crate) fn is_chained(&self) -> bool {
        self.is_chained.load(Ordering::Relaxed)
    }

    pub(crate) fn set_chained(&self) {
        self.is_chained.store(true, Ordering::Relaxed);
    }

    /// Opens a file for reading. Returns `None` if it does not exist.
    pub(crate) fn open_existing(&self, path: &Path) -> Result<Option<Box<dyn FsFile>>> {
        self.retry_at_fd_limit(|| self.fs.open(path, OpenMode::Read))
            .optional()
            .describe("read", path)
    }

    /// Opens a file for writing.
    pub(crate) fn open_for_writing(&self, path: &Path, mode: OpenMode) -> Result<Box<dyn FsFile>> {
        self.retry_at_fd_limit(|| self.with_parent_dir(path, || self.fs.open(path, mode)))
            .describe("open", path)
    }

    /// Returns the content of a file, or `None` if the file does not exist.
    pub(crate) fn read_file(&self, path: &Path) -> Result<Option<Vec<u8>>> {
        let Some(file) = self.open_existing(path)? else {
            return Ok(None);
        };
        file.stat()
            .and_then(|stat| file.read_range(0, length_to_usize(stat.size)))
            .describe("read", path)
            .map(Some)
    }

    /// Returns the metadata of a file, or `None` if the file does not exist.
    pub(crate) fn stat(&self, path: &Path) -> Result<Option<FileStat>> {
        self.fs.stat(path).optional().describe("inspect", path)
    }

    /// Returns whether `path` still names the file with this inode. A lock on a removed file does not exclude other
    /// processes, which lock the new file.
    pub(crate) fn is_inode_at(&self, inode: u64, path: &Path) -> Result<bool> {
        Ok(self.stat(path)?.is_some_and(|stat| stat.inode == inode))
    }

    /// Returns the names in a directory. A missing directory has none.
    pub(crate) fn read_dir(&self, path: &Path) -> Result<Vec<String>> {
        self.retry_at_fd_limit(|| self.fs.read_dir(path))
            .optional()
            .describe("list", path)
            .map(Option::unwrap_or_default)
    }

    /// Creates a file with the content that `write` writes to it. Removes the file if this fails.
    pub(crate) fn write_file(
        &self,
        path: &Path,
        sync: bool,
        write: impl FnOnce(&dyn FsFile) -> io::Result<()>,
    ) -> Result<()> {
        let file = self.open_for_writing(path, OpenMode::Truncate)?;
        write(&*file)
            .and_then(|()| if sync { file.sync() } else { Ok(()) })
            .describe("write", path)
            .inspect_err(|_| {
                let _ = self.remove_file(path);
            })
    }

    /// Replaces a file atomically: writes a temporary file and renames it.
    pub(crate) fn replace_file(&self, path: &Path, bytes: &[u8], sync: bool) -> Result<()> {
        let temp_path = self.paths.temp_file(path);
        self.write_file(&temp_path, sync, |file| file.write_all_at(bytes, 0))?;
        self.rename_file(&temp_path, path)
    }

    /// Renames a file.
    pub(crate) fn rename_file(&self, from: &Path, to: &Path) -> Result<()> {
        self.with_parent_dir(to, || self.fs.rename(from, to))
            .describe("rename a file to", to)
    }

    /// Creates a hard link.
    pub(crate) fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.fs.link(from, to)
    }

    /// Syncs the directory of a file, so that a new name of the file survives power loss.
    pub(crate) fn sync_parent_dir(&self, path: &Path) -> Result<()> {
        let parent = path.parent().unwrap_or(path);
        self.retry_at_fd_limit(|| self.fs.sync_dir(parent))
            .describe("sync", parent)
    }

    /// Removes a file. Does nothing if it does not exist.
    pub(crate) fn remove_file(&self, path: &Path) -> Result<()> {
        let removed = self.fs.remove(path).optional();
        removed.describe("remove", path).map(drop)
    }

    /// Calls `write`. If the directory of `path` is missing, creates it and calls `write` again.
    fn with_parent_dir<T>(&self, path: &Path, write: impl Fn() -> io::Result<T>) -> io::Result<T> {
        match write() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.fs.create_dir_all(path.parent().unwrap_or(path))?;
                write()
            }
            written => written,
        }
    }

    fn retry_at_fd_limit<T>(&self, open: impl Fn() -> io::Result<T>) -> io::Result<T> {
        match open() {
            Err(error) if error.raw_os_error() == Some(EMFILE) => {
                if let Some(open_tapes) = self.open_tapes.upgrade() {
                    open_tapes.close_idle_tapes();
                }
                open()
            }
            opened => opened,
        }
    }
}

/// Conversions of the results of file operations.
pub(crate) trait IoResultExt<T> {
    /// Converts an error to one that names the file. `action` is an imperative verb, such as `read`.
    fn describe(self, action: &'static str, path: &Path) -> Result<T>;

    /// Converts the error [`io::ErrorKind::NotFound`] to `Ok(None)`.
    fn optional(self) -> io::Result<Option<T>>;
}

impl<T> IoResultExt<T> for io::Result<T> {
    fn describe(self, action: &'static str, path: &Path) -> Result<T> {
        self.map_err(|error| TapeError::from_io(action, path, error))
    }

    fn optional(self) -> io::Result<Option<T>> {
        match self {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            other => other.map(Some),
        }
    }
}

/// Converts the length of a part of a file to a length in memory.
pub(crate) fn length_to_usize(length: u64) -> usize {
    usize::try_from(length).unwrap_or(usize::MAX)
}
