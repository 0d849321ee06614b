//! The file operations that the file store uses.
//!
//! They are traits, so that tests can simulate failing, short and torn writes, a full disk, and the sudden end of the
//! process. Production code uses [`RealFs`].

use std::{
    fmt,
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt},
    path::Path,
    time::SystemTime,
};

/// The mode for opening a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// Open an existing file for reading.
    Read,
    /// Open a file for reading and writing, or create it.
    Write,
    /// Open a file for reading and writing and truncate it, or create it.
    Truncate,
}

/// Metadata of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileStat {
    /// The inode, which identifies the file independently of its name.
    pub inode: u64,
    /// The size in bytes.
    pub size: u64,
    /// The time of the last write, if the system provides it.
    pub modified: Option<SystemTime>,
}

/// A file system.
pub trait Fs: Send + Sync + fmt::Debug {
    /// Creates a directory and its parents.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;
    /// Opens a file.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn FsFile>>;
    /// Returns the metadata of a file.
    fn stat(&self, path: &Path) -> io::Result<FileStat>;
    /// Renames a file and replaces the target if it exists.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Creates a hard link. Fails with [`io::ErrorKind::AlreadyExists`] if the target exists.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Returns the names in a directory. Skips names that are not UTF-8.
    fn read_dir(&self, path: &Path) -> io::Result<Vec<String>>;
    /// Syncs a directory, so that its new names survive power loss.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
}

/// An open file. All reads and writes take an offset, so the file has no cursor.
pub trait FsFile: Send + Sync + fmt::Debug {
    /// Reads into `buffer` and returns the number of bytes read, 0 at the end of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes some or all of `bytes` and returns the number of bytes written.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;
    /// Truncates or extends the file.
    fn set_len(&self, size: u64) -> io::Result<()>;
    /// Syncs the content to disk.
    fn sync(&self) -> io::Result<()>;
    /// Returns the metadata of the file.
    fn stat(&self) -> io::Result<FileStat>;
    /// Waits until the exclusive lock is free and takes it.
    fn lock(&self) -> io::Result<()>;
    /// Takes the exclusive lock if it is free. Returns whether it was taken.
    fn try_lock(&self) -> io::Result<bool>;
    /// Releases the lock.
    fn unlock(&self) -> io::Result<()>;
}

impl dyn FsFile + '_ {
    /// Reads until the buffer is full or the file ends. Returns the number of bytes read.
    pub fn read_full_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut filled = 0;
        while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.read_at(rest, offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    /// Returns `length` bytes at `offset`, or fewer if the file ends before.
    pub fn read_range(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut buffer = vec![0; length];
        let filled = self.read_full_at(&mut buffer, offset)?;
        buffer.truncate(filled);
        Ok(buffer)
    }

    /// Writes all bytes.
    pub fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut written = 0;
        while let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) {
            match self.write_at(rest, offset + written as u64) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// The file system of the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealFs;

/// Fails for files that are neither regular files nor directories. Reading a pipe would never end, and opening a
/// dangling symlink would create a file outside the store.
fn reject_special_file(path: &Path) -> io::Result<()> {
    let Ok(metadata) = fs::symlink_metadata(path) else {
        return Ok(());
    };
    let is_allowed = match fs::metadata(path) {
        Ok(target) => target.is_file() || target.is_dir(),
        Err(_) => !metadata.is_symlink(),
    };
    if is_allowed {
        Ok(())
    } else {
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a regular file; move it away",
        ))
    }
}

impl Fs for RealFs {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        // Tapes are private: new directories are accessible only to their owner. Existing ones keep their mode.
        DirBuilder::new().recursive(true).mode(0o700).create(path)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn FsFile>> {
        reject_special_file(path)?;
        let mut options = OpenOptions::new();
        options.mode(0o600);
        match mode {
            OpenMode::Read => options.read(true),
            OpenMode::Write => options.read(true).write(true).create(true).truncate(false),
            OpenMode::Truncate => options.read(true).write(true).create(true).truncate(true),
        };
        Ok(Box::new(options.open(path)?))
    }

    fn stat(&self, path: &Path) -> io::Result<FileStat> {
        fs::metadata(path).map(Into::into)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::hard_link(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<String>> {
        let names = fs::read_dir(path)?.map(|entry| Ok(entry?.file_name().into_string().ok()));
        names.filter_map(io::Result::transpose).collect()
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }
}

impl From<fs::Metadata> for FileStat {
    fn from(metadata: fs::Metadata) -> Self {
        Self {
            inode: metadata.ino(),
            size: metadata.len(),
            modified: metadata.modified().ok(),
        }
    }
}

impl FsFile for File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        FileExt::write_at(self, bytes, offset)
    }

    fn set_len(&self, size: u64) -> io::Result<()> {
        File::set_len(self, size)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn stat(&self) -> io::Result<FileStat> {
        self.metadata().map(Into::into)
    }

    fn lock(&self) -> io::Result<()> {
        File::lock(self)
    }

    fn try_lock(&self) -> io::Result<bool> {
        match File::try_lock(self) {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn unlock(&self) -> io::Result<()> {
        File::unlock(self)
    }
}
