//! Files: reading without blocking, and errors with the path of the file.

use std::{
    fs::{File, Permissions},
    io::{self, Read as _, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    time::Duration,
};

use bub::{Error, Result, output::create_result_file};
use rustix::fs::{Mode, OFlags};
use tempfile::TempDir;

/// How often the removal of a temporary directory is tried, and the pause in between.
const REMOVE_ATTEMPTS: usize = 20;
const REMOVE_PAUSE: Duration = Duration::from_millis(10);

/// Adds the operation and the path to the error of a file operation.
pub(crate) trait FileResultExt<T> {
    /// Returns the value, or the error `cannot <operation> <path>: <reason>`.
    fn at(self, operation: &str, path: &Path) -> Result<T>;
}

impl<T> FileResultExt<T> for io::Result<T> {
    fn at(self, operation: &str, path: &Path) -> Result<T> {
        self.map_err(|error| {
            Error::invalid_input(format!("cannot {operation} {}: {error}", path.display()))
        })
    }
}

/// Opens a regular file for reading. Opening a pipe, which a tool of a case may create, would block forever.
pub(crate) fn open_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    Ok(file)
}

/// A file for a report, which replaces an earlier one. It is opened before a run, which takes time and can cost money. If
/// the run does not end, an earlier report is kept, and a new file is removed.
pub(crate) struct ReplacedFile<'a> {
    path: &'a Path,
    is_new: bool,
    is_written: bool,
}

impl<'a> ReplacedFile<'a> {
    pub(crate) fn open(path: &'a Path) -> Result<Self> {
        let is_new = !path.exists();
        let mut options = File::options();
        let file = options.append(true).create(true).open(path);
        file.at("write", path)?;
        Ok(Self {
            path,
            is_new,
            is_written: false,
        })
    }

    pub(crate) fn write(mut self, text: &str) -> Result<()> {
        self.is_written = true;
        std::fs::write(self.path, text).at("write", self.path)
    }
}

impl Drop for ReplacedFile<'_> {
    fn drop(&mut self) {
        if self.is_new && !self.is_written {
            let _ = std::fs::remove_file(self.path);
        }
    }
}

/// A new file for a report. It is created before a run, which takes time and can cost money, and removed if the run fails.
pub(crate) struct OutputFile<'a> {
    path: &'a Path,
    file: File,
    is_written: bool,
}

impl<'a> OutputFile<'a> {
    pub(crate) fn create(path: &'a Path) -> Result<Self> {
        let file = create_result_file(path);
        if let Err(error) = &file
            && error.kind() == io::ErrorKind::AlreadyExists
        {
            return Err(Error::invalid_input(error.to_string()));
        }
        Ok(Self {
            path,
            file: file.at("write", path)?,
            is_written: false,
        })
    }

    /// Writes the report. Returns the path of the file.
    pub(crate) fn write(mut self, text: &str) -> Result<&'a Path> {
        self.file
            .write_all(text.as_bytes())
            .at("write", self.path)?;
        self.is_written = true;
        Ok(self.path)
    }
}

impl Drop for OutputFile<'_> {
    fn drop(&mut self) {
        if !self.is_written {
            let _ = std::fs::remove_file(self.path);
        }
    }
}

/// Reads a regular file.
pub(crate) fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_file(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A temporary directory that only the user can read. It is removed at the end.
pub(crate) struct TemporaryDirectory(TempDir);

impl TemporaryDirectory {
    /// Creates a directory whose name starts with `prefix`.
    pub(crate) fn create(prefix: &str) -> Result<Self> {
        let mut builder = tempfile::Builder::new();
        let builder = builder
            .prefix(prefix)
            .permissions(Permissions::from_mode(0o700));
        let created = builder.tempdir();
        created
            .map(Self)
            .at("create a directory in", &std::env::temp_dir())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Removes the directory.
    pub(crate) fn remove(self) -> Result<()> {
        self.try_remove().map_err(|error| {
            let path = self.path().display();
            Error::unknown(format!("cannot remove {path}: {error}; remove it"))
        })
    }

    /// Removes the directory. A process that was just killed may still write to it.
    fn try_remove(&self) -> io::Result<()> {
        let mut removed = Ok(());
        for _ in 0..REMOVE_ATTEMPTS {
            removed = match std::fs::remove_dir_all(self.path()) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                other => other,
            };
            if removed.is_ok() {
                break;
            }
            std::thread::sleep(REMOVE_PAUSE);
        }
        removed
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        let _ = self.try_remove();
    }
}
