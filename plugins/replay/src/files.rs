//! Files: reading without blocking, and errors with the path of the file.

use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    path::Path,
};

use bub::{Error, Result, output::create_result_file};
use rustix::fs::{Mode, OFlags};

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

/// Fails if a file cannot be written. A run takes time and can cost money, so this is known before it.
pub(crate) fn check_writable(path: &Path) -> Result<()> {
    let mut options = File::options();
    let file = options.append(true).create(true).open(path);
    file.map(drop).at("write", path)
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

/// Creates a temporary directory whose name starts with `prefix`.
pub(crate) fn temporary_directory(prefix: &str) -> Result<tempfile::TempDir> {
    let created = tempfile::Builder::new().prefix(prefix).tempdir();
    created.at("create a directory in", &std::env::temp_dir())
}
