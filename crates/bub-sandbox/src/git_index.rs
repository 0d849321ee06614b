//! The index of a git directory: which files git writes to a working tree.
//!
//! Git does not check the names in an index when it reads it. So `git restore .` writes to each of them, also to
//! `../../.bashrc`, `.git/hooks/pre-commit` and absolute paths.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::Read,
    path::Path,
};

use crate::{
    git_config::parse,
    repositories::{common_directory, is_git_name, read_text},
};

/// How an index starts.
const SIGNATURE: &[u8; 4] = b"DIRC";
/// The versions of an index that git reads. The last one shortens names.
const VERSIONS: [u32; 3] = [2, 3, SHORT_NAMES_VERSION];
const SHORT_NAMES_VERSION: u32 = 4;
/// Bytes of an entry before the hash.
const STAT_BYTES: usize = 40;
/// The flag of an entry that has two more bytes of flags.
const EXTENDED_FLAG: u16 = 0x4000;
/// The part of the flags that is the length of the name, and the value for a longer one.
const LENGTH_MASK: u16 = 0x0fff;
/// What the size of an entry is a multiple of.
const ALIGNMENT: usize = 8;
/// How large an index may be. A million files need a tenth of it.
const MAX_INDEX_BYTES: u64 = 1024 * 1024 * 1024;
/// Extensions that tell where entries are, for a git that reads them with several threads.
const END_EXTENSION: &[u8; 4] = b"EOIE";
const OFFSET_EXTENSION: &[u8; 4] = b"IEOT";

/// Returns what is wrong with an index: a name where git must not write, or a form that another reader could take for
/// something else. What is not an index is not used by git.
pub(crate) fn index_finding(git: &Path, index: &Path) -> Option<String> {
    let mut data = Vec::new();
    let file = File::open(index).ok()?.take(MAX_INDEX_BYTES);
    let is_read = { file }.read_to_end(&mut data).is_ok();
    let is_large = fs::metadata(index).is_ok_and(|found| found.len() > data.len() as u64);
    if !data.starts_with(SIGNATURE) && !is_large {
        return None;
    }
    let problem = match IndexReader::new(&data, hash_bytes(git)).check() {
        IndexCheck::Safe if is_read && !is_large => return None,
        IndexCheck::UnsafeName(name) => {
            let name = name.escape_ascii();
            format!("it contains the name `{name}`, and git would write there")
        }
        _ => "it has a form that git does not write".to_owned(),
    };
    Some(format!("{problem}; `git reset` creates it again"))
}

/// Returns the size of a hash in a repository. Commands cannot change its configuration.
fn hash_bytes(git: &Path) -> usize {
    let entries = parse(&read_text(&common_directory(git).join("config")));
    let is_long = |(section, key, value): &(String, String, String)| {
        section == "extensions" && key == "objectformat" && value == "sha256"
    };
    if entries.iter().any(is_long) { 32 } else { 20 }
}

/// What is in an index.
enum IndexCheck {
    Safe,
    /// The name of an entry leads out of the working tree.
    UnsafeName(Vec<u8>),
    /// It is not an index, or different readers could find different entries.
    UnknownForm,
}

/// Reads an index from its start.
struct IndexReader<'a> {
    data: &'a [u8],
    position: usize,
    hash_bytes: usize,
}

impl<'a> IndexReader<'a> {
    fn new(data: &'a [u8], hash_bytes: usize) -> Self {
        Self {
            data,
            position: SIGNATURE.len(),
            hash_bytes,
        }
    }

    fn check(&mut self) -> IndexCheck {
        let version = self.number().filter(|version| VERSIONS.contains(version));
        let (Some(version), Some(count)) = (version, self.number()) else {
            return IndexCheck::UnknownForm;
        };
        let (mut name, mut starts) = (Vec::new(), BTreeSet::new());
        for _ in 0..count {
            let start = self.position;
            let Some(kept) = self.read_name(version, &mut name) else {
                return IndexCheck::UnknownForm;
            };
            if !is_name_in_tree(&name) {
                return IndexCheck::UnsafeName(name);
            }
            // Another thread may start only where nothing is taken from the name before.
            if kept == 0 {
                starts.insert(start);
            }
        }
        if self.has_same_entries_for_threads(&starts) {
            IndexCheck::Safe
        } else {
            IndexCheck::UnknownForm
        }
    }

    /// Reads the next entry, and replaces `name`, that of the entry before. Returns how much of it was kept.
    fn read_name(&mut self, version: u32, name: &mut Vec<u8>) -> Option<usize> {
        let start = self.position;
        self.take(STAT_BYTES + self.hash_bytes)?;
        let flags = u16::from_be_bytes(self.take(2)?.try_into().ok()?);
        if flags & EXTENDED_FLAG != 0 {
            self.take(2)?;
        }
        let kept = if version == SHORT_NAMES_VERSION {
            name.len().checked_sub(self.variable_number()?)?
        } else {
            0
        };
        name.truncate(kept);
        let rest = self.data.get(self.position..)?;
        let length = rest.iter().position(|byte| *byte == 0)?;
        name.extend_from_slice(rest.get(..length)?);
        let known = usize::from(flags & LENGTH_MASK);
        if known != name.len().min(usize::from(LENGTH_MASK)) {
            return None;
        }
        self.position += length + 1;
        if version != SHORT_NAMES_VERSION {
            let size = (self.position - start).next_multiple_of(ALIGNMENT);
            self.position = start + size;
        }
        Some(kept)
    }

    /// Returns whether a reader with several threads finds the same entries, each at one of `starts`.
    fn has_same_entries_for_threads(&mut self, starts: &BTreeSet<usize>) -> bool {
        let end = self.position;
        let Some(content) = self.data.len().checked_sub(self.hash_bytes) else {
            return false;
        };
        let last = content.checked_sub(2 * size_of::<u32>() + size_of::<u32>() + self.hash_bytes);
        let last = last.and_then(|last| self.data.get(last..content));
        let Some(last) = last.and_then(|last| last.strip_prefix(END_EXTENSION)) else {
            return true;
        };
        let stored_end = last.get(4..8).and_then(|bytes| bytes.try_into().ok());
        let is_same_end = stored_end.is_some_and(|bytes| u32::from_be_bytes(bytes) as usize == end);
        is_same_end && self.has_safe_offsets(content, starts).unwrap_or_default()
    }

    fn has_safe_offsets(&mut self, end: usize, starts: &BTreeSet<usize>) -> Option<bool> {
        while self.position < end {
            let name = self.take(OFFSET_EXTENSION.len())?;
            let size = self.number()? as usize;
            let content = self.take(size)?;
            if name == OFFSET_EXTENSION {
                let numbers = content.chunks_exact(size_of::<u32>());
                let numbers = numbers
                    .flat_map(<[u8; 4]>::try_from)
                    .map(u32::from_be_bytes);
                // A version, and pairs of a position and a count.
                let mut positions = numbers.skip(1).step_by(2);
                return Some(positions.all(|position| starts.contains(&(position as usize))));
            }
        }
        Some(true)
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let end = self.position.checked_add(count)?;
        let taken = self.data.get(self.position..end)?;
        self.position = end;
        Some(taken)
    }

    fn number(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    /// Reads a number of variable size, as git stores the length of what a name does not share.
    fn variable_number(&mut self) -> Option<usize> {
        let mut value = 0_usize;
        loop {
            let [byte] = self.take(1)? else {
                return None;
            };
            value = value
                .checked_mul(128)?
                .checked_add(usize::from(byte & 127))?;
            if byte & 128 == 0 {
                return Some(value);
            }
            value = value.checked_add(1)?;
        }
    }
}

/// Returns whether a name leads to a file of the working tree. An index that is a part of another one has entries without
/// names, and a sparse index has names of directories.
fn is_name_in_tree(name: &[u8]) -> bool {
    let name = name.strip_suffix(b"/").unwrap_or(name);
    let mut parts = name.split(|byte| *byte == b'/');
    name.is_empty() || parts.all(is_safe_part)
}

/// Returns whether a part of a name is that of a file or directory which git may write.
pub(crate) fn is_safe_part(part: &[u8]) -> bool {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
    !matches!(part, b"" | b"." | b"..") && !is_git_name(OsStr::from_bytes(part))
}
