//! Replacing a file, all or nothing.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use bub_kernel::Result;

use super::{failure, regular};

/// Puts the content into the file, whose path has no links left. A reader sees the old content or the new one; the mode
/// is kept.
pub(super) fn replace(file: &Path, content: &[u8]) -> Result<()> {
    let wrong = |error| failure("write", file, &error);
    let old = match fs::symlink_metadata(file) {
        Ok(_) => Some(regular(file)?),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(wrong(error)),
    };
    let Some(directory) = file.parent() else {
        return Err(wrong(ErrorKind::IsADirectory.into()));
    };
    let Some(old) = old else {
        fs::create_dir_all(directory).map_err(wrong)?;
        return replace_atomically(directory, file, content, None).map_err(wrong);
    };
    // Renaming would get around a file that must not be written.
    let mut open = OpenOptions::new().write(true).open(file).map_err(wrong)?;
    // Another name of the same file shall see the new content, too.
    let outcome = if old.nlink() > 1 {
        Err(ErrorKind::PermissionDenied.into())
    } else {
        replace_atomically(directory, file, content, Some(old.permissions()))
    };
    match outcome {
        // The directory may not be written, or something is mounted on the file: then in place, as there is no other way.
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::PermissionDenied | ErrorKind::ResourceBusy
            ) =>
        {
            open.set_len(0)
                .and_then(|()| open.write_all(content))
                .and_then(|()| open.sync_all())
                .map_err(wrong)
        }
        outcome => outcome.map_err(wrong),
    }
}

/// Writes a new file and gives it the name of the old one.
fn replace_atomically(
    directory: &Path,
    file: &Path,
    content: &[u8],
    permissions: Option<fs::Permissions>,
) -> io::Result<()> {
    // Until the mode of the old file is in force, nobody else may read what could be private.
    let mode = if permissions.is_some() { 0o600 } else { 0o666 };
    let (temporary, mut new) = create(directory, mode)?;
    let written = (|| {
        new.write_all(content)?;
        if let Some(permissions) = permissions {
            new.set_permissions(permissions)?;
        }
        new.sync_all()?;
        fs::rename(&temporary, file)
    })();
    if written.is_err() {
        // The first error is the one to tell.
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// A new file of a name nobody uses.
fn create(directory: &Path, mode: u32) -> io::Result<(PathBuf, File)> {
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
