//! Files of a git directory that name paths to which git writes: symbolic references, and the index.
//!
//! Git writes to a symbolic reference by writing to the path that it names, also through `..`. So such a file would let
//! `git commit` or `git stash` change any file of the user.

use std::{
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime},
};

use crate::{
    git_index::index_finding,
    repositories::{GitPlace, Search, is_older},
};

/// How a symbolic reference starts.
const MARK: &[u8; 4] = b"ref:";
/// The directory with references in a git directory, and how the name of a reference starts.
const DIRECTORY: &str = "refs";
/// How much of a symbolic reference is read. No name is as long.
const MAX_BYTES: u64 = 64 * 1024;
/// The index, and how the name of a file starts that has a part of it.
const INDEX: &str = "index";
const INDEX_PART: &[u8] = b"sharedindex.";

/// A directory in which references are.
struct ReferenceDirectory {
    path: PathBuf,
    /// Whether it is the git directory itself. Of the directories there, only one has references.
    is_root: bool,
    /// Whether all files in it may be new, however old they are: a directory above changed, so this one may have been moved.
    is_new: bool,
}

/// Returns the symbolic references and indexes that git must not use, and the reason, except for those that are older
/// than `time`. Also returns whether all were read before `limit`.
pub(crate) fn unsafe_references(
    search: &Search,
    time: SystemTime,
    limit: Duration,
) -> (Vec<(PathBuf, String)>, bool) {
    let started = Instant::now();
    let places = search.places.iter();
    let places = places.filter(|(_, place)| **place == GitPlace::Directory);
    let root = |(path, _): (&PathBuf, &GitPlace)| ReferenceDirectory {
        path: path.clone(),
        is_root: true,
        is_new: false,
    };
    let mut waiting: Vec<_> = places.map(root).collect();
    let mut found = Vec::new();
    while let Some(directory) = waiting.pop() {
        if started.elapsed() > limit {
            return (found, false);
        }
        let is_new = directory.is_new || !is_older(&directory.path, time);
        for entry in fs::read_dir(&directory.path)
            .into_iter()
            .flatten()
            .flatten()
        {
            let (name, path) = (entry.file_name(), entry.path());
            let Ok(kind) = entry.file_type() else {
                continue;
            };
            if kind.is_dir() && (!directory.is_root || name.eq_ignore_ascii_case(DIRECTORY)) {
                waiting.push(ReferenceDirectory {
                    path,
                    is_root: false,
                    is_new,
                });
                continue;
            }
            // The name of a reference does not start with a period.
            let is_reference = kind.is_file() && !name.as_encoded_bytes().starts_with(b".");
            if is_reference && (is_new || !is_older(&path, time)) {
                let is_index = name == INDEX || name.as_encoded_bytes().starts_with(INDEX_PART);
                let finding = if directory.is_root && is_index {
                    index_finding(&directory.path, &path)
                } else {
                    unsafe_target(&path)
                };
                found.extend(finding.map(|finding| (path, finding)));
            }
        }
    }
    (found, true)
}

/// Returns why git must not use the file of a reference: it names something else than a reference.
fn unsafe_target(path: &Path) -> Option<String> {
    let mut file = File::open(path).ok()?;
    let mut start = [0; MARK.len()];
    file.read_exact(&mut start).ok()?;
    if start != *MARK {
        return None;
    }
    let mut text = Vec::new();
    let count = file.take(MAX_BYTES).read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(text.trim_ascii());
    let is_safe = (count as u64) < MAX_BYTES && is_reference_name(&text);
    let target = text.escape_debug();
    (!is_safe).then(|| format!("it names `{target}`, and git would write there"))
}

/// Returns whether git finds what a reference names among the references of its repository.
fn is_reference_name(name: &str) -> bool {
    let mut parts = name.split('/');
    parts.next() == Some(DIRECTORY)
        && parts.clone().next().is_some()
        && parts.all(|part| !["", ".", ".."].contains(&part))
        && !name.contains(char::is_control)
}
