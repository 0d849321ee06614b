//! Temporary directories of sessions. A directory that a command uses is locked, so that bub does not remove it, however
//! old the clock says it is.

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::Path,
};

/// How often a directory is created that another process removes.
const MAX_ATTEMPTS: usize = 16;

/// Creates a private directory and its parents, unless it exists. It is not removed before the returned file is closed.
///
/// # Errors
///
/// Fails if the directory cannot be created or locked.
pub fn hold_temp_directory(path: &Path) -> io::Result<File> {
    for _ in 0..MAX_ATTEMPTS {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        let Ok(directory) = File::open(path) else {
            continue;
        };
        directory.lock_shared()?;
        // Another process may have removed it before it was locked.
        let number = directory.metadata()?.ino();
        if path.metadata().is_ok_and(|found| found.ino() == number) {
            return Ok(directory);
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

/// Removes a directory with all it contains, unless it is held.
///
/// # Errors
///
/// Fails if the directory is in use, or cannot be removed.
pub fn remove_temp_directory(path: &Path) -> io::Result<()> {
    let directory = File::open(path)?;
    directory.try_lock()?;
    fs::remove_dir_all(path)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_directory_in_use_is_not_removed() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a/b");
        let (first, second) = (hold_temp_directory(&path), hold_temp_directory(&path));
        fs::write(path.join("file"), "").unwrap();
        drop(first);
        assert!(remove_temp_directory(&path).is_err());
        assert!(path.join("file").exists());
        drop(second);
        remove_temp_directory(&path).unwrap();
        assert!(!path.exists());
    }
}
