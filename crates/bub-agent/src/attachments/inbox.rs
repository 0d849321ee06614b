//! The inbox: the directory of the workspace in which files that users send are stored, so that tools can read them.

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use bub_tape::now_iso;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

/// The directory of the inbox in the workspace.
pub(crate) const INBOX_DIRECTORY: &str = "inbox";

/// The file of an inbox that keeps git away from it.
const IGNORE_FILE: &str = ".gitignore";

/// Maximum characters of the name of a file, without the digits before it.
const MAX_NAME_CHARS: usize = 80;

/// The files that this process added to inboxes.
#[derive(Debug)]
pub(crate) struct AddedFiles {
    paths: Mutex<Vec<PathBuf>>,
    /// Makes the names unique, if this process does not keep its files. So it never removes one that another uses.
    unique_part: Option<String>,
}

impl AddedFiles {
    pub(crate) fn new(is_temporary: bool) -> Self {
        let unique_part = is_temporary.then(|| format!("{}-{}", std::process::id(), now_iso()));
        Self {
            paths: Mutex::default(),
            unique_part,
        }
    }

    /// Removes the files, and the inboxes that this process created if nothing else is in them.
    pub(crate) fn remove_all(&self) {
        // Files first, because their directory was added before them.
        for path in std::mem::take(&mut *self.paths.lock()).iter().rev() {
            if !path.ends_with(INBOX_DIRECTORY) {
                let _ = fs::remove_file(path);
            } else if fs::read_dir(path).is_ok_and(|entries| entries.count() == 1) {
                let _ = fs::remove_file(path.join(IGNORE_FILE));
                let _ = fs::remove_dir(path);
            }
        }
    }
}

/// Stores a file in the inbox of a workspace. Returns its path relative to the workspace. A file with the same name and
/// content is stored once, also if a message is processed again after a crash. `added` gets what did not exist.
pub(crate) fn save_file(
    workspace: &Path,
    name: &str,
    bytes: &[u8],
    added: &AddedFiles,
) -> io::Result<PathBuf> {
    let directory = workspace.join(INBOX_DIRECTORY);
    if let Err(error) = fs::create_dir(&directory) {
        // A link could lead out of the workspace.
        let is_directory = fs::symlink_metadata(&directory).is_ok_and(|data| data.is_dir());
        if !is_directory {
            let is_taken = error.kind() == io::ErrorKind::AlreadyExists;
            let text = format!("`{INBOX_DIRECTORY}` is not a directory; rename it");
            return Err(if is_taken {
                io::Error::other(text)
            } else {
                error
            });
        }
    } else {
        // Files of users do not belong into the history of a repository.
        fs::write(directory.join(IGNORE_FILE), "*\n")?;
        added.paths.lock().push(directory.clone());
    }
    let digest = Sha256::new_with_prefix(bytes);
    let digest = digest.chain_update(added.unique_part.as_deref().unwrap_or_default());
    let digest = format!("{:x}", digest.finalize());
    let digits = digest.get(..12).unwrap_or_default();
    let file = Path::new(INBOX_DIRECTORY).join(format!("{digits}-{}", safe_name(name)));
    let mut temporary = tempfile::NamedTempFile::new_in(&directory)?;
    temporary.write_all(bytes)?;
    match temporary.persist_noclobber(workspace.join(&file)) {
        Err(error) if error.error.kind() != io::ErrorKind::AlreadyExists => Err(error.error)?,
        Err(_) => {}
        Ok(_) => added.paths.lock().push(workspace.join(&file)),
    }
    Ok(file)
}

/// Returns a file name without directories, control characters and characters that have a meaning in a shell.
fn safe_name(name: &str) -> String {
    let name = name.rsplit(['/', '\\']).next().unwrap_or_default();
    let is_safe = |char: char| char.is_alphanumeric() || matches!(char, '.' | '-' | '_');
    let name: String = name
        .chars()
        .map(|char| if is_safe(char) { char } else { '_' })
        .collect();
    let name = name.trim_matches(['.', '-', '_']);
    // The end of a name has its extension.
    let skipped = name.chars().count().saturating_sub(MAX_NAME_CHARS);
    let name: String = name.chars().skip(skipped).collect();
    if name.is_empty() {
        "file".to_owned()
    } else {
        name
    }
}
