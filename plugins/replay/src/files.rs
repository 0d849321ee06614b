//! Errors of file operations, with the path of the file.

use std::{io, path::Path};

use bub::{Error, Result};

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

/// Creates a temporary directory whose name starts with `prefix`.
pub(crate) fn temporary_directory(prefix: &str) -> Result<tempfile::TempDir> {
    let created = tempfile::Builder::new().prefix(prefix).tempdir();
    created.at("create a directory in", &std::env::temp_dir())
}
