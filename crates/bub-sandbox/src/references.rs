//! Files of a git directory that name another path: symbolic references, and where the working trees of a repository are.
//!
//! Git writes to a symbolic reference by writing to the path that it names, also through `..`. So such a file would let
//! `git commit` or `git stash` change any file of the user.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime},
};

use crate::{
    Confinement,
    baseline::StoredPath,
    named_paths::PathWalk,
    path_access::TEMP_DIRECTORIES,
    repositories::{GitPlace, ROOT, Search, is_older, read_text},
};

/// How a symbolic reference starts.
const MARK: &[u8; 4] = b"ref:";
/// The directory with references in a git directory, and how the name of a reference starts.
const DIRECTORY: &str = "refs";
/// How much of a symbolic reference is read. No name is as long.
const MAX_BYTES: u64 = 64 * 1024;
/// The directory with the git directories of working trees in that of their repository.
const WORKTREES: &str = "worktrees";

/// A directory in which references are.
struct ReferenceDirectory {
    path: PathBuf,
    /// Whether it is the git directory itself. Of the directories there, only one has references.
    is_root: bool,
    /// Whether all files in it may be new, however old they are: a directory above changed, so this one may have been moved.
    is_new: bool,
}

/// Returns the symbolic references that git must not follow, and what they name, except for those that are older than
/// `time`. Also returns whether all were read before `limit`.
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
                let target = unsafe_target(&path);
                found.extend(target.map(|target| (path, target)));
            }
        }
    }
    (found, true)
}

/// Returns what the file of a reference names, if that is not the name of a reference.
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
    (!is_safe).then(|| text.into_owned())
}

/// Returns whether git finds what a reference names among the references of its repository.
fn is_reference_name(name: &str) -> bool {
    let mut parts = name.split('/');
    parts.next() == Some(DIRECTORY)
        && parts.clone().next().is_some()
        && parts.all(|part| !["", ".", ".."].contains(&part))
        && !name.contains(char::is_control)
}

/// Returns the files that name a working tree outside the workspace, and what they name. A working tree in `/tmp` is that
/// of a command if nothing is there outside.
pub(crate) fn outside_trees(
    search: &Search,
    confinement: &Confinement,
) -> BTreeMap<StoredPath, StoredPath> {
    let directories = search.places.iter().filter(|(path, place)| {
        let above = path.parent().and_then(Path::file_name);
        **place == GitPlace::Directory && above.is_some_and(|name| name == WORKTREES)
    });
    let outside = directories.filter_map(|(git, _)| {
        let file = git.join("gitdir");
        let text = read_text(&file);
        let target = Path::new(text.trim_end());
        let root = &search.root;
        let walk = PathWalk::in_root(root, git, target, confinement, |_| false);
        let tree = walk.real.parent().unwrap_or(&walk.real);
        let below_root = tree.strip_prefix(ROOT).unwrap_or(tree);
        let is_private = || {
            let mut temp = TEMP_DIRECTORIES.iter();
            temp.any(|temp| walk.is_always_below(temp.as_ref())) && !root.join(below_root).exists()
        };
        let is_safe = target.as_os_str().is_empty()
            || walk.is_always_below(&confinement.workspace)
            || is_private();
        (!is_safe).then(|| (file.into(), target.to_owned().into()))
    });
    outside.collect()
}
