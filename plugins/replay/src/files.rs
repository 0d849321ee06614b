//! Files: reading without blocking, and errors with the path of the file.

use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
};

use bub::{Error, Result};
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
