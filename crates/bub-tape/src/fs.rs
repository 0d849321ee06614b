//! The few file operations the file store is made of.
//!
//! They are a trait so that tests can put failing, short and torn writes, a full disk and a sudden death underneath;
//! [`RealFs`] is what everybody else uses.

use std::{
    fmt,
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt},
    path::Path,
    time::SystemTime,
};

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// For reading; it must exist.
    Read,
    /// For reading and writing; it is made when it is not there.
    Write,
    /// For writing from the beginning; what was there is gone.
    Truncate,
}

/// What is known about a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileStat {
    /// Which file it is, whatever its name.
    pub inode: u64,
    /// How many bytes it has.
    pub size: u64,
    /// When it was last written, where the system knows.
    pub modified: Option<SystemTime>,
}

/// A file system.
pub trait Fs: Send + Sync + fmt::Debug {
    /// Makes a directory and its parents.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;
    /// Opens a file.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn FsFile>>;
    /// Looks at a file.
    fn stat(&self, path: &Path) -> io::Result<FileStat>;
    /// Renames a file, replacing what has the new name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Gives a file a second name; `AlreadyExists` when it is taken.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// The names in a directory, as far as they are text.
    fn read_dir(&self, path: &Path) -> io::Result<Vec<String>>;
    /// Makes new names in a directory durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
}

/// An open file. Reads and writes say where, so that nothing depends on a cursor.
pub trait FsFile: Send + Sync + fmt::Debug {
    /// Reads at most a buffer full; zero at the end.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes at most a buffer full; it may write less.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;
    /// Cuts or extends the file.
    fn set_len(&self, size: u64) -> io::Result<()>;
    /// Makes the content durable.
    fn sync(&self) -> io::Result<()>;
    /// Looks at the file.
    fn stat(&self) -> io::Result<FileStat>;
    /// Waits for the exclusive lock.
    fn lock(&self) -> io::Result<()>;
    /// Takes the exclusive lock if it is free.
    fn try_lock(&self) -> io::Result<bool>;
    /// Gives the lock back.
    fn unlock(&self) -> io::Result<()>;
}

impl dyn FsFile + '_ {
    /// Reads until the buffer is full or the file ends, and returns how much that was.
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

    /// A stretch of the file; shorter when the file ends before it.
    pub fn read_range(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut buffer = vec![0; length];
        let filled = self.read_full_at(&mut buffer, offset)?;
        buffer.truncate(filled);
        Ok(buffer)
    }

    /// Writes all of it.
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

/// The file system of the machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealFs;

/// A pipe has no end, and a link to nowhere would put a file outside the store.
fn reject_special_file(path: &Path) -> io::Result<()> {
    let Ok(found) = fs::symlink_metadata(path) else {
        return Ok(());
    };
    let is_fine = match fs::metadata(path) {
        Ok(target) => target.is_file() || target.is_dir(),
        Err(_) => !found.is_symlink(),
    };
    if is_fine {
        Ok(())
    } else {
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is not a regular file",
        ))
    }
}

impl Fs for RealFs {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        // Tapes are private: what is new belongs to the owner alone; what is there keeps its mode.
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
