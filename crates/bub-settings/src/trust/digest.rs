//! Digests of files and directories. Limits keep a large directory from delaying the start.

use std::{
    collections::HashSet,
    ffi::OsString,
    fs::{self, File},
    io::{self, Read},
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use super::{MAX_INSTRUCTIONS_BYTES, TrustItem, TrustItemKind};

/// Maximum number of files and directories in everything that trust is about.
const MAX_TRUST_FILES: usize = 2000;
/// Maximum size of all these files together.
const MAX_TRUST_BYTES: u64 = 8 * 1024 * 1024;
/// Maximum depth of directories.
const MAX_DEPTH: usize = 32;

/// Returns the SHA-256 of a content, in hexadecimal digits.
pub(super) fn digest_bytes(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

/// Reads the items of a workspace. The limits apply to all of them together.
#[derive(Default)]
pub(super) struct DigestReader {
    byte_count: u64,
    /// Device and inode of each directory, because symbolic links can form a cycle.
    directories: HashSet<(u64, u64)>,
    files: Vec<PathBuf>,
}

impl DigestReader {
    /// Reads a file or a directory. Returns `None` if it is empty.
    pub(super) fn read_item(&mut self, kind: TrustItemKind, path: PathBuf) -> Option<TrustItem> {
        let first = self.files.len();
        self.directories.clear();
        let mut names = Vec::new();
        let digest = match kind {
            TrustItemKind::Instructions => {
                self.files.push(path.clone());
                read_head(&path, MAX_INSTRUCTIONS_BYTES).map(|bytes| digest_bytes(&bytes))
            }
            TrustItemKind::Settings | TrustItemKind::McpServers => {
                self.read_file(&path).map(|bytes| digest_bytes(&bytes))
            }
            TrustItemKind::Skills | TrustItemKind::Plugins => {
                let entries = entry_names(&path).unwrap_or_default();
                if entries.is_empty() {
                    return None;
                }
                let to_text = |name: OsString| name.to_string_lossy().into_owned();
                names = entries.into_iter().map(to_text).collect();
                let mut hasher = Sha256::new();
                let added = self.add_path(&mut hasher, &path, MAX_DEPTH);
                added.map(|()| format!("{:x}", hasher.finalize()))
            }
        };
        Some(TrustItem {
            kind,
            path,
            digest: digest.map_err(|error| error.to_string()),
            names,
            files: self.files.get(first..).unwrap_or_default().to_vec(),
            is_trusted: false,
        })
    }

    /// Adds a file or directory to a digest. Symbolic links are followed, because bub follows them, too.
    fn add_path(&mut self, hasher: &mut Sha256, path: &Path, depth: usize) -> io::Result<()> {
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_file() => match self.read_file(path) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    add_part(hasher, "unreadable", b"");
                }
                content => add_part(hasher, "file", &content?),
            },
            Ok(metadata) if metadata.is_dir() => {
                if !self.directories.insert((metadata.dev(), metadata.ino())) {
                    add_part(hasher, "known", b"");
                    return Ok(());
                }
                let depth = depth.checked_sub(1).ok_or_else(too_large_error)?;
                self.count(path, 0)?;
                for name in entry_names(path)? {
                    add_part(hasher, "entry", name.as_bytes());
                    self.add_path(hasher, &path.join(&name), depth)?;
                }
                add_part(hasher, "end", b"");
            }
            // Nothing is read from a device, a pipe or a broken link.
            _ => add_part(hasher, "other", b""),
        }
        Ok(())
    }

    fn read_file(&mut self, path: &Path) -> io::Result<Vec<u8>> {
        let bytes_left = MAX_TRUST_BYTES.saturating_sub(self.byte_count);
        let content = read_head(path, bytes_left + 1)?;
        self.count(path, content.len() as u64)?;
        Ok(content)
    }

    /// Counts a file or directory; fails if the limits are exceeded.
    fn count(&mut self, path: &Path, bytes: u64) -> io::Result<()> {
        self.byte_count += bytes;
        if self.files.len() >= MAX_TRUST_FILES || self.byte_count > MAX_TRUST_BYTES {
            return Err(too_large_error());
        }
        self.files.push(path.to_owned());
        Ok(())
    }
}

/// Returns the names in a directory, sorted.
fn entry_names(directory: &Path) -> io::Result<Vec<OsString>> {
    let entries = fs::read_dir(directory)?.take(MAX_TRUST_FILES + 1);
    let names: io::Result<Vec<_>> = entries.map(|entry| Ok(entry?.file_name())).collect();
    let mut names = names?;
    names.sort_unstable();
    Ok(names)
}

/// Adds a part with its tag and length, so that different trees never have the same input.
fn add_part(hasher: &mut Sha256, tag: &str, content: &[u8]) {
    hasher.update(tag);
    hasher.update((content.len() as u64).to_le_bytes());
    hasher.update(content);
}

fn read_head(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    // Opening a pipe would block.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(max_bytes).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn too_large_error() -> io::Error {
    io::Error::other("cannot be trusted: more than 2,000 files or 8 MiB")
}
