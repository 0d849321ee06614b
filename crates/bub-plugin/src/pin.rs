//! What a plugin was when it was added, in one number: so that it does not become another unseen.

use std::{
    ffi::OsStr,
    fmt::Write as _,
    fs::File,
    io::{self, Read},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use bub_kernel::{Error, Result};
use sha2::{Digest as _, Sha256};

use crate::{parse::quoted, process::PluginConfig};

/// Directories that are made, and made anew, by tools.
const SKIPPED_DIRS: &[&str] = &[
    ".git",
    "__pycache__",
    ".venv",
    "venv",
    "node_modules",
    "target",
    ".mypy_cache",
    ".ruff_cache",
];
/// No plugin has more files, nor more bytes in them.
const MAX_FILES: usize = 5_000;
const MAX_TOTAL_BYTES: u64 = 256 * 1024 * 1024;

/// What a pin begins with: how it was made. Another way gives another number for the same files.
const DIGEST_VERSION: &str = "2:";

/// What a plugin is.
#[derive(Clone, Debug)]
pub struct PluginPin {
    /// In one number.
    pub digest: String,
    /// The directories in it that the number says nothing about.
    pub left_out: Vec<PathBuf>,
}

/// The pin of a file, or of all files in a directory; with the files that its command names, wherever they are.
pub fn pin(pinned: &Path, directory: &Path, command: &[impl AsRef<OsStr>]) -> Result<PluginPin> {
    let (mut files, mut left_out) = (Vec::new(), Vec::new());
    if pinned.is_dir() {
        collect(pinned, pinned, &mut files, &mut left_out)?;
        files.sort();
        left_out.sort();
    } else {
        files.push(pinned.to_owned());
    }
    for (at, part) in command.iter().enumerate() {
        let file = directory.join(part.as_ref());
        let is_system = at == 0 && command.len() > 1 && is_system_binary(&file, pinned);
        if file.is_file() && !is_system && !files.contains(&file) {
            files.push(file);
        }
    }
    let mut sum = Sha256::new();
    let mut left = MAX_TOTAL_BYTES;
    for file in &files {
        let name = file
            .strip_prefix(pinned)
            .unwrap_or(file)
            .as_os_str()
            .as_encoded_bytes();
        sum.update(u64::try_from(name.len()).unwrap_or_default().to_le_bytes());
        sum.update(name);
        sum.update([u8::from(is_executable(file))]);
        let length = add_file(&mut sum, file, left).map_err(|error| {
            Error::config(format!("`{}` cannot be read: {error}", file.display()))
        })?;
        left -= length;
        sum.update(length.to_le_bytes());
    }
    let mut digest = DIGEST_VERSION.to_owned();
    for byte in sum.finalize() {
        // Writing to a string does not fail.
        let _ = write!(digest, "{byte:02x}");
    }
    Ok(PluginPin { digest, left_out })
}

/// Whether it is a compiled program outside of the plugin, such as an interpreter: those change with the system.
fn is_system_binary(file: &Path, pinned: &Path) -> bool {
    let (Ok(program), Ok(pinned)) = (file.canonicalize(), pinned.canonicalize()) else {
        return false;
    };
    let mut begin = [0; 2];
    let is_read = File::open(&program)
        .and_then(|mut file| file.read_exact(&mut begin))
        .is_ok();
    is_read && begin != *b"#!" && !program.starts_with(pinned)
}

fn is_executable(file: &Path) -> bool {
    file.metadata()
        .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// Refuses a plugin that is not what was added.
pub(crate) fn verify(plugin_config: &PluginConfig) -> Result<()> {
    let changed = pin_mismatch(
        &plugin_config.pinned,
        &plugin_config.directory,
        &plugin_config.command,
        plugin_config.digest.as_deref(),
    )?;
    changed.map_or(Ok(()), |reason| Err(Error::config(reason)))
}

/// What is to be done about files that may not be those that were pinned.
pub fn pin_mismatch(
    pinned: &Path,
    directory: &Path,
    command: &[impl AsRef<OsStr>],
    expected: Option<&str>,
) -> Result<Option<String>> {
    let Some(expected) = expected else {
        return Ok(None);
    };
    if !expected.starts_with(DIGEST_VERSION) {
        return Ok(Some(format!(
            "it was pinned by an older version of bub; look at it, and add it again: bub plugin add {}",
            quoted(pinned)
        )));
    }
    Ok((pin(pinned, directory, command)?.digest != expected).then(|| {
        format!(
            "its files changed since it was added, or one that its command names; look at them, and add it again: bub plugin add {}",
            quoted(pinned)
        )
    }))
}

fn collect(
    root: &Path,
    directory: &Path,
    files: &mut Vec<PathBuf>,
    left_out: &mut Vec<PathBuf>,
) -> Result<()> {
    let unreadable = |error: io::Error| {
        Error::config(format!("`{}` cannot be read: {error}", directory.display()))
    };
    for entry in std::fs::read_dir(directory).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let (kind, path) = (entry.file_type().map_err(unreadable)?, entry.path());
        let is_directory = path.is_dir();
        if is_directory && is_skipped(&entry.file_name()) {
            left_out.push(path.strip_prefix(root).unwrap_or(&path).to_owned());
        } else if kind.is_dir() {
            collect(root, &path, files, left_out)?;
        } else if kind.is_file() || kind.is_symlink() {
            if is_directory {
                check_link(root, &path)?;
            }
            files.push(path);
        }
        if files.len() > MAX_FILES {
            return Err(Error::config(format!(
                "it has more than {MAX_FILES} files; add only what it needs"
            )));
        }
    }
    Ok(())
}

fn is_skipped(name: &OsStr) -> bool {
    SKIPPED_DIRS.iter().any(|skipped| name == *skipped)
}

/// Refuses a link to a directory whose files are not looked at.
fn check_link(root: &Path, link: &Path) -> Result<()> {
    let unreadable =
        |error: io::Error| Error::config(format!("`{}` cannot be read: {error}", link.display()));
    let target = link.canonicalize().map_err(unreadable)?;
    let root = root.canonicalize().map_err(unreadable)?;
    let inside = target.strip_prefix(root).ok();
    if inside.is_some_and(|inside| !inside.iter().any(is_skipped)) {
        return Ok(());
    }
    Err(Error::config(format!(
        "`{}` is a link to {}, whose files are not pinned; put them into the plugin, or add it with --unpinned",
        link.display(),
        target.display()
    )))
}

fn add_file(sum: &mut Sha256, file: &Path, left: u64) -> io::Result<u64> {
    // A link to a file is what the file is; of any other, that it points there is what counts.
    if file.is_symlink() && !file.is_file() {
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
            return Err(io::Error::other(format!(
                "more than {MAX_TOTAL_BYTES} bytes in all"
            )));
        }
        sum.update(block.get(..read).unwrap_or_default());
    }
}
