//! What a plugin was when it was added, in one number: so that it does not become another unseen.

use std::{
    fmt::Write as _,
    fs::File,
    io::{self, Read},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use bub_kernel::{Error, Result};
use sha2::{Digest as _, Sha256};

use crate::{external::Setup, reading::quoted};

/// Directories that are made, and made anew, by tools.
const SKIPPED: &[&str] =
    &[".git", "__pycache__", ".venv", "venv", "node_modules", "target", ".mypy_cache", ".ruff_cache"];
/// No plugin has more files, nor more bytes in them.
const MOST_FILES: usize = 5_000;
const MOST_BYTES: u64 = 256 * 1024 * 1024;

/// What a pin begins with: how it was made. Another way gives another number for the same files.
const WAY: &str = "1:";

/// The digest of a file, or of all files in a directory.
pub fn digest(path: &Path) -> Result<String> {
    let mut files = Vec::new();
    if path.is_dir() {
        collect(path, &mut files)?;
        files.sort();
    } else {
        files.push(path.to_owned());
    }
    let mut sum = Sha256::new();
    let mut left = MOST_BYTES;
    for file in &files {
        let name = file.strip_prefix(path).unwrap_or(file).as_os_str().as_encoded_bytes();
        sum.update(u64::try_from(name.len()).unwrap_or_default().to_le_bytes());
        sum.update(name);
        sum.update([u8::from(is_executable(file))]);
        let length = add_file(&mut sum, file, left)
            .map_err(|error| Error::config(format!("`{}` cannot be read: {error}", file.display())))?;
        left -= length;
        sum.update(length.to_le_bytes());
    }
    let mut shown = WAY.to_owned();
    for byte in sum.finalize() {
        // Writing to a string does not fail.
        let _ = write!(shown, "{byte:02x}");
    }
    Ok(shown)
}

fn is_executable(file: &Path) -> bool {
    file.symlink_metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// Refuses a plugin that is not what was added.
pub(crate) fn verify(setup: &Setup) -> Result<()> {
    changed(&setup.pinned, setup.digest.as_deref())?.map_or(Ok(()), |why| Err(Error::config(why)))
}

/// What is to be done about files that may not be those that were pinned.
pub fn changed(pinned: &Path, expected: Option<&str>) -> Result<Option<String>> {
    let Some(expected) = expected else { return Ok(None) };
    if !expected.starts_with(WAY) {
        return Ok(Some(format!(
            "it was pinned by an older version of bub; look at it, and add it again: bub plugin add {}",
            quoted(pinned)
        )));
    }
    Ok((digest(pinned)? != expected).then(|| {
        format!(
            "its files changed since it was added; look at them, and add it again: bub plugin add {}",
            quoted(pinned)
        )
    }))
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let unreadable =
        |error: io::Error| Error::config(format!("`{}` cannot be read: {error}", directory.display()));
    for entry in std::fs::read_dir(directory).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let kind = entry.file_type().map_err(unreadable)?;
        let is_skipped = SKIPPED.iter().any(|skipped| entry.file_name() == *skipped);
        if kind.is_dir() && !is_skipped {
            collect(&entry.path(), files)?;
        } else if kind.is_file() || kind.is_symlink() {
            files.push(entry.path());
        }
        if files.len() > MOST_FILES {
            return Err(Error::config(format!(
                "it has more than {MOST_FILES} files; add only what it needs"
            )));
        }
    }
    Ok(())
}

fn add_file(sum: &mut Sha256, file: &Path, left: u64) -> io::Result<u64> {
    // What a link points to may be anywhere; that it points there is what counts.
    if file.is_symlink() {
        let target = std::fs::read_link(file)?;
        sum.update(target.as_os_str().as_encoded_bytes());
        return Ok(0);
    }
    let mut reader = File::open(file)?.take(left.saturating_add(1));
    let mut block = vec![0; 64 * 1024];
    let mut length = 0_u64;
    loop {
        let read = reader.read(&mut block)?;
        if read == 0 {
            return Ok(length);
        }
        length += u64::try_from(read).unwrap_or_default();
        if length > left {
            return Err(io::Error::other(format!("more than {MOST_BYTES} bytes in all")));
        }
        sum.update(block.get(..read).unwrap_or_default());
    }
}
