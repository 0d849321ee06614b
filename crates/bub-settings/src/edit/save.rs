//! Writes a config file atomically, so that only its owner can read it.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::{ConfigFile, EditError};
use crate::files;

/// Mode of a file that only its owner can access.
const PRIVATE_MODE: u32 = 0o600;

impl ConfigFile {
    /// Replaces the file that was read, following links and keeping its owner. Only the owner can
    /// read the new file.
    pub fn save(&mut self) -> Result<(), EditError> {
        let unwritable = |source| EditError::Unwritable {
            file: self.path.clone(),
            source,
        };
        let file = self.path.clone();
        if self.text.len() as u64 > files::MAX_FILE_BYTES {
            return Err(EditError::TooLarge { file });
        }
        let target = resolve_links(&self.path).map_err(unwritable)?;
        let directory = target.parent().unwrap_or(Path::new("/"));
        let lock = lock_directory(&target).map_err(unwritable)?;
        if files::read_text_file(&target)? != self.before {
            return Err(EditError::Changed { file });
        }
        remove_leftovers(&target, directory);
        write_atomically(&target, &self.text)
            .and_then(|()| lock.sync_all())
            .map_err(unwritable)?;
        self.before = Some(self.text.clone());
        Ok(())
    }

    /// Makes an existing file readable only for its owner, without writing it.
    pub fn make_private(&self) -> io::Result<()> {
        fs::set_permissions(&self.path, Permissions::from_mode(PRIVATE_MODE))
    }
}

/// Creates the directory of a file, with access only for its owner, and locks it.
pub(crate) fn lock_directory(file: &Path) -> io::Result<File> {
    let directory = file.parent().unwrap_or(Path::new("/"));
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)?;
    let lock = File::open(directory)?;
    lock.lock()?;
    Ok(lock)
}

/// Follows symbolic links and returns the path of the file itself, which may not exist yet.
fn resolve_links(path: &Path) -> io::Result<PathBuf> {
    let mut path = std::path::absolute(path)?;
    for _ in 0..16 {
        match fs::read_link(&path) {
            Ok(link) => path = path.parent().unwrap_or(Path::new("/")).join(link),
            Err(_) => return Ok(path),
        }
    }
    Err(io::Error::other("too many symbolic links"))
}

/// Removes temporary files that killed processes left behind. The caller holds the lock on the
/// directory, so no temporary file is in use.
fn remove_leftovers(target: &Path, directory: &Path) {
    let prefix = format!(
        ".{}.",
        target.file_name().unwrap_or_default().to_string_lossy()
    );
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(&prefix));
        if number.is_some_and(|number| {
            !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
        }) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Replaces a file. Only its owner can access the new one.
pub(crate) fn write_atomically(target: &Path, text: &str) -> io::Result<()> {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let temporary = target.with_file_name(format!(".{name}.{}", std::process::id()));
    write_and_rename(&temporary, target, text).inspect_err(|_| {
        // The file may not exist; ignore errors.
        let _ = fs::remove_file(&temporary);
    })
}

fn write_and_rename(temporary: &Path, target: &Path, text: &str) -> io::Result<()> {
    // Remove an old file with this name: it may be a link that another user created.
    match fs::remove_file(temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(PRIVATE_MODE)
        .open(temporary)?;
    file.write_all(text.as_bytes())?;
    if let Ok(old) = fs::metadata(target) {
        let new = file.metadata()?;
        if (old.uid(), old.gid()) != (new.uid(), new.gid()) {
            std::os::unix::fs::fchown(&file, Some(old.uid()), Some(old.gid()))?;
        }
    }
    file.sync_all()?;
    fs::rename(temporary, target)
}
