//! Replaces a file, atomically if possible.

use std::{
    fs::{self, OpenOptions},
    io::{self, ErrorKind, Write},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

use bub_kernel::Result;

use super::{check_regular_file, file_error};

/// Replaces the content of a file and keeps its mode. Readers see the old or the new content, unless the file must be
/// written in place. The path must not contain symbolic links.
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
        // Write in place if the file has other hard links or is a mount point, or if the directory is not writable.
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
    let mut temporary = tempfile::Builder::new()
        .prefix(".bub-")
        .suffix(".tmp")
        .permissions(fs::Permissions::from_mode(mode))
        .tempfile_in(directory)?;
    temporary.write_all(content)?;
    if let Some(permissions) = permissions {
        temporary.as_file().set_permissions(permissions)?;
    }
    temporary.as_file().sync_all()?;
    temporary.persist(file)?;
    Ok(())
}
