//! Replaces a file atomically.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use bub_kernel::Result;

use super::{check_regular_file, file_error};

/// Replaces the content of a file and keeps its mode. Readers see the old or the new content. The path must not contain
/// symbolic links.
pub(super) fn replace_file(file: &Path, content: &[u8]) -> Result<()> {
    let write_error = |error| file_error("write", file, &error);
    let metadata = match fs::symlink_metadata(file) {
        Ok(_) => Some(check_regular_file(file)?),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(write_error(error)),
    };
    let Some(directory) = file.parent() else {
        return Err(write_error(ErrorKind::IsADirectory.into()));
    };
    let Some(metadata) = metadata else {
        fs::create_dir_all(directory).map_err(write_error)?;
        return replace_atomically(directory, file, content, None).map_err(write_error);
    };
    // Open the file first: a rename would also replace a file that must not be written.
    let mut open = OpenOptions::new()
        .write(true)
        .open(file)
        .map_err(write_error)?;
    // A rename would not update other hard links of the file.
    let outcome = if metadata.nlink() > 1 {
        Err(ErrorKind::PermissionDenied.into())
    } else {
        replace_atomically(directory, file, content, Some(metadata.permissions()))
    };
    match outcome {
        // If the directory is not writable or the file is a mount point, write in place.
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::PermissionDenied | ErrorKind::ResourceBusy
            ) =>
        {
            open.set_len(0)
                .and_then(|()| open.write_all(content))
                .and_then(|()| open.sync_all())
                .map_err(write_error)
        }
        outcome => outcome.map_err(write_error),
    }
}

/// Writes the content to a temporary file and renames it to `file`.
fn replace_atomically(
    directory: &Path,
    file: &Path,
    content: &[u8],
    permissions: Option<fs::Permissions>,
) -> io::Result<()> {
    // Until the mode of the old file is set, other users must not read content that may be private.
    let mode = if permissions.is_some() { 0o600 } else { 0o666 };
    let (temporary, mut new) = create_temporary(directory, mode)?;
    let written = (|| {
        new.write_all(content)?;
        if let Some(permissions) = permissions {
            new.set_permissions(permissions)?;
        }
        new.sync_all()?;
        fs::rename(&temporary, file)
    })();
    if written.is_err() {
        // Ignore this error: the first one is reported.
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Creates a temporary file with an unused name and returns its path.
fn create_temporary(directory: &Path, mode: u32) -> io::Result<(PathBuf, File)> {
    static NEXT_TEMP_NUMBER: AtomicU64 = AtomicU64::new(0);
    loop {
        let number = NEXT_TEMP_NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = directory.join(format!(".bub-{}-{number}.tmp", std::process::id()));
        match OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&path)
        {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            outcome => return outcome.map(|file| (path, file)),
        }
    }
}
