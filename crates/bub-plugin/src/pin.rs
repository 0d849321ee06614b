//! Pins the files of a plugin with a digest, so that bub detects changed files. A digest of the manifest would not be
//! enough: the manifest names the program, but the code of the program is in the other files.

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Read},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use bub_kernel::{Error, Result};
use sha2::{Digest as _, Sha256};

use crate::{parse::quote_for_shell, process::PluginConfig};

/// Names of directories into which tools install code or build it. Their files are not part of the digest, but that such a
/// directory exists is: one that appears later can contain code that the plugin imports.
const INSTALL_DIRS: &[&str] = &[".venv", "venv", "node_modules", "target"];
/// Names of directories that tools create at any time, which a plugin does not import. They are not part of the digest.
const CACHE_DIRS: &[&str] = &[".git", "__pycache__", ".mypy_cache", ".ruff_cache"];
/// Maximum number of pinned files of a plugin.
const MAX_FILES: usize = 5_000;
/// Maximum total size of the pinned files in bytes.
const MAX_TOTAL_BYTES: u64 = 256 * 1024 * 1024;

/// Prefix of a digest, the version of the algorithm. Digests of different versions cannot be compared.
const DIGEST_VERSION: &str = "3:";
/// Prefix of a digest of the first release, which does not cover install directories that appear later.
const FIRST_VERSION: &str = "2:";

/// Digest of a plugin's files.
#[derive(Clone, Debug)]
pub struct PluginPin {
    /// The digest, with the version of the algorithm as prefix.
    pub digest: String,
    /// Directories that are not part of the digest, relative to the plugin.
    pub skipped_dirs: Vec<PathBuf>,
}

/// Computes the digest of the file `pinned`, or of all files in the directory `pinned`. The digest includes the files
/// that `command` names, even outside `pinned`. Relative paths in `command` start at `directory`.
///
/// # Errors
///
/// Fails if a file cannot be read or if a link points to files that are not pinned. Also fails if the plugin has too
/// many files or bytes.
pub fn compute_pin(
    pinned: &Path,
    directory: &Path,
    command: &[impl AsRef<OsStr>],
) -> Result<PluginPin> {
    compute_digest(pinned, directory, command, DIGEST_VERSION)
}

/// Computes a digest as [`compute_pin`] does, in the format of a version.
fn compute_digest(
    pinned: &Path,
    directory: &Path,
    command: &[impl AsRef<OsStr>],
    version: &str,
) -> Result<PluginPin> {
    let (mut files, mut skipped_dirs) = (Vec::new(), Vec::new());
    if pinned.is_dir() {
        collect_files(pinned, pinned, &mut files, &mut skipped_dirs)?;
        files.sort();
        skipped_dirs.sort();
    } else {
        files.push(pinned.to_owned());
    }
    for (index, part) in command.iter().enumerate() {
        let file = directory.join(part.as_ref());
        let is_system = index == 0 && command.len() > 1 && is_system_binary(&file, pinned);
        if file.is_file() && !is_system && !files.contains(&file) {
            files.push(file);
        }
    }
    let mut hasher = Sha256::new();
    if version != FIRST_VERSION {
        for directory in &skipped_dirs {
            if directory
                .file_name()
                .is_some_and(|name| is_in(INSTALL_DIRS, name))
            {
                hash_name(&mut hasher, directory);
            }
        }
        // No file has an empty name.
        hash_name(&mut hasher, Path::new(""));
    }
    let mut remaining = MAX_TOTAL_BYTES;
    for file in &files {
        hash_name(&mut hasher, file.strip_prefix(pinned).unwrap_or(file));
        hasher.update([u8::from(is_executable(file))]);
        let length = hash_file(&mut hasher, file, remaining).map_err(read_error(file))?;
        remaining -= length;
        hasher.update(length.to_le_bytes());
    }
    Ok(PluginPin {
        digest: format!("{version}{:x}", hasher.finalize()),
        skipped_dirs,
    })
}

fn hash_name(hasher: &mut Sha256, name: &Path) {
    let name = name.as_os_str().as_encoded_bytes();
    hasher.update(u64::try_from(name.len()).unwrap_or_default().to_le_bytes());
    hasher.update(name);
}

/// Returns whether a file is a compiled program outside the plugin, such as an interpreter. The digest omits such a
/// program, because system updates change it.
fn is_system_binary(file: &Path, pinned: &Path) -> bool {
    let (Ok(program), Ok(pinned)) = (file.canonicalize(), pinned.canonicalize()) else {
        return false;
    };
    let mut magic = [0; 2];
    let is_read = File::open(&program)
        .and_then(|mut file| file.read_exact(&mut magic))
        .is_ok();
    is_read && magic != *b"#!" && !program.starts_with(pinned)
}

fn is_executable(file: &Path) -> bool {
    file.metadata()
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// Fails if the files of a plugin changed since it was added.
pub(crate) fn verify_pin(plugin_config: &PluginConfig) -> Result<()> {
    let mismatch = pin_mismatch(
        &plugin_config.pinned,
        &plugin_config.directory,
        &plugin_config.command,
        plugin_config.digest.as_deref(),
    )?;
    mismatch.map_or(Ok(()), |reason| Err(Error::config(reason)))
}

/// Compares the files of a plugin with the expected digest. Returns the error text if they differ, and `None` if they
/// match or the plugin is not pinned.
pub fn pin_mismatch(
    pinned: &Path,
    directory: &Path,
    command: &[impl AsRef<OsStr>],
    expected: Option<&str>,
) -> Result<Option<String>> {
    let Some(expected) = expected else {
        return Ok(None);
    };
    let version = [DIGEST_VERSION, FIRST_VERSION]
        .into_iter()
        .find(|version| expected.starts_with(version));
    let reason = if version.is_none() {
        "the plugin was pinned by an older version of bub; review it"
    } else if compute_digest(pinned, directory, command, version.unwrap_or_default())?.digest
        != expected
    {
        "the plugin's files changed since it was added; review them"
    } else {
        return Ok(None);
    };
    let path = quote_for_shell(pinned);
    Ok(Some(format!("{reason} and run: bub plugin add {path}")))
}

/// Adds the files below `directory` to `files`, and the skipped directories to `skipped_dirs`.
fn collect_files(
    root: &Path,
    directory: &Path,
    files: &mut Vec<PathBuf>,
    skipped_dirs: &mut Vec<PathBuf>,
) -> Result<()> {
    for entry in std::fs::read_dir(directory).map_err(read_error(directory))? {
        let entry = entry.map_err(read_error(directory))?;
        let kind = entry.file_type().map_err(read_error(directory))?;
        let path = entry.path();
        let is_directory = path.is_dir();
        if is_directory && is_skipped_dir(&entry.file_name()) {
            skipped_dirs.push(path.strip_prefix(root).unwrap_or(&path).to_owned());
        } else if kind.is_dir() {
            collect_files(root, &path, files, skipped_dirs)?;
        } else if kind.is_file() || kind.is_symlink() {
            if is_directory {
                check_link(root, &path)?;
            }
            files.push(path);
        }
        if files.len() > MAX_FILES {
            return Err(Error::config(format!(
                "the plugin has more than {MAX_FILES} files; remove files that it does not need"
            )));
        }
    }
    Ok(())
}

/// Returns a function that builds the error for a path that cannot be read.
fn read_error(path: &Path) -> impl Fn(io::Error) -> Error {
    move |error| Error::config(format!("cannot read `{}`: {error}", path.display()))
}

fn is_skipped_dir(name: &OsStr) -> bool {
    is_in(INSTALL_DIRS, name) || is_in(CACHE_DIRS, name)
}

fn is_in(names: &[&str], name: &OsStr) -> bool {
    names.iter().any(|other| name == *other)
}

/// Fails if a link points to a directory whose files are not pinned.
fn check_link(root: &Path, link: &Path) -> Result<()> {
    let target = link.canonicalize().map_err(read_error(link))?;
    let root = root.canonicalize().map_err(read_error(link))?;
    let inside = target.strip_prefix(root).ok();
    if inside.is_some_and(|inside| !inside.iter().any(is_skipped_dir)) {
        return Ok(());
    }
    Err(Error::config(format!(
        "`{}` is a link to {}, whose files are not pinned; move them into the plugin or pass `--unpinned`",
        link.display(),
        target.display()
    )))
}

/// Adds the content of a file to the digest and returns its length. Fails if it has more than `remaining` bytes.
fn hash_file(hasher: &mut Sha256, file: &Path, remaining: u64) -> io::Result<u64> {
    // For a link to a file, the digest includes the content of the file. For any other link, it includes only the
    // target path.
    if file.is_symlink() && !file.is_file() {
        let target = std::fs::read_link(file)?;
        hasher.update(target.as_os_str().as_encoded_bytes());
        return Ok(0);
    }
    let mut reader = File::open(file)?.take(remaining.saturating_add(1));
    let length = io::copy(&mut reader, hasher)?;
    if length > remaining {
        return Err(io::Error::other(format!(
            "the files of the plugin exceed {MAX_TOTAL_BYTES} bytes; remove files that it does not need"
        )));
    }
    Ok(length)
}
