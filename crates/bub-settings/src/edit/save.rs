//! Writing a config file: all of it or nothing, and no more readable than before.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::{ConfigFile, EditError};
use crate::files;

/// Nobody else.
const PRIVATE_MODE: u32 = 0o600;

impl ConfigFile {
    /// Writes the text in place of the file that was read, through links, with the owner and the mode it had. With
    /// `is_secret` nobody but the owner may read it; a new file is always like that.
    pub fn save(&mut self, is_secret: bool) -> Result<(), EditError> {
        let unwritable = |source| EditError::Unwritable {
            file: self.path.clone(),
            source,
        };
        if self.text.len() as u64 > files::MAX_FILE_BYTES {
            return Err(EditError::TooLarge {
                file: self.path.clone(),
            });
        }
        let target = real(&self.path).map_err(unwritable)?;
        let directory = target.parent().unwrap_or(Path::new("/"));
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(unwritable)?;
        let lock = File::open(directory).map_err(unwritable)?;
        lock.lock().map_err(unwritable)?;
        if files::read(&target)? != self.before {
            return Err(EditError::Changed {
                file: self.path.clone(),
            });
        }
        remove_leftovers(&target, directory);
        write(&target, &self.text, is_secret)
            .and_then(|()| lock.sync_all())
            .map_err(unwritable)?;
        self.before = Some(self.text.clone());
        Ok(())
    }
}

/// The file that a link leads to, also when that one does not exist yet.
fn real(path: &Path) -> io::Result<PathBuf> {
    let mut path = std::path::absolute(path)?;
    for _ in 0..16 {
        match fs::read_link(&path) {
            Ok(link) => path = path.parent().unwrap_or(Path::new("/")).join(link),
            Err(_) => return Ok(path),
        }
    }
    Err(io::Error::other("too many links"))
}

/// Removes what a process that was killed left half written. Nobody else writes while the directory is locked.
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

fn write(target: &Path, text: &str, is_secret: bool) -> io::Result<()> {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let temporary = target.with_file_name(format!(".{name}.{}", std::process::id()));
    let written = write_beside(&temporary, target, text, is_secret);
    if written.is_err() {
        // It may not exist; nothing else can be done about it.
        let _ = fs::remove_file(&temporary);
    }
    written
}

fn write_beside(temporary: &Path, target: &Path, text: &str, is_secret: bool) -> io::Result<()> {
    // What a crash left behind may be somebody else's link by now.
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
        let mode = old.permissions().mode() & 0o777;
        file.set_permissions(Permissions::from_mode(if is_secret {
            mode & !0o077
        } else {
            mode
        }))?;
    }
    file.sync_all()?;
    fs::rename(temporary, target)
}
