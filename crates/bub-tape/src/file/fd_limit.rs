//! A file system that closes idle tapes and retries when the process reaches its file descriptor limit.

use std::{
    io,
    path::Path,
    sync::{Arc, Weak},
};

use super::open_tapes::OpenTapes;
use crate::fs::{FileStat, Fs, FsFile, OpenMode};

/// The error code for "too many open files" on all systems bub supports.
const EMFILE: i32 = 24;

/// A file system that wraps `fs`. When opening a file reaches the limit, it closes idle tapes and tries again.
#[derive(Debug)]
pub(super) struct FdLimitFs {
    pub(super) fs: Arc<dyn Fs>,
    pub(super) open_tapes: Weak<OpenTapes>,
}

impl FdLimitFs {
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

impl Fs for FdLimitFs {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.fs.create_dir_all(path)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn FsFile>> {
        self.retry_at_fd_limit(|| self.fs.open(path, mode))
    }

    fn stat(&self, path: &Path) -> io::Result<FileStat> {
        self.fs.stat(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.fs.rename(from, to)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.fs.link(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.fs.remove(path)
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<String>> {
        self.retry_at_fd_limit(|| self.fs.read_dir(path))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.retry_at_fd_limit(|| self.fs.sync_dir(path))
    }
}
