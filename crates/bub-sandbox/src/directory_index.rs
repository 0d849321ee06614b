//! The directories of a workspace, as the last search found them.
//!
//! To read a directory takes several times as long as to ask for its last change. So a directory whose identity and time of
//! last change are the same is not read again: it has the same entries. A command cannot set this time. It is not used
//! for a directory that changed shortly before it was read, nor for one on a file system that may not keep it.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs::{self, File, Metadata},
    io::{BufReader, BufWriter, Write},
    os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

use crate::{
    baseline::{StoredPath, record_name},
    repositories::{CLOCK_TOLERANCE, GitParts, is_git_name},
};

/// Version of the file. A file with another one is ignored.
const FORMAT: u32 = 2;
/// File systems that change the time of a directory with its entries: bcachefs, btrfs, ext4, F2FS, overlayfs, tmpfs, XFS
/// and ZFS.
const FILE_SYSTEMS: &[u64] = &[
    0xca45_1a4e,
    0x9123_683e,
    0xef53,
    0xf2f5_2010,
    0x794c_7630,
    0x0102_1994,
    0x5846_5342,
    0x2fc1_2fc1,
];

/// Inode and time of the last change of a directory.
type DirectoryStamp = (u64, i64, i64);

/// What a search needs to know about the entries of a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Listing {
    /// Whether git recognizes the directory as its own.
    pub(crate) is_git: bool,
    /// Files and links with the name of a git directory.
    pub(crate) git_files: Vec<StoredPath>,
    /// Links, and where they lead. Also pipes and devices, which lead nowhere.
    pub(crate) links: Vec<(StoredPath, StoredPath)>,
    /// Sockets in the file system.
    pub(crate) sockets: Vec<StoredPath>,
}

/// One directory: its name, its stamp if it can be relied on, how many directories it contains, and its listing unless it
/// is empty. The file has an array per directory, so that it stays small.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct DirectoryRecord(StoredPath, Option<DirectoryStamp>, usize, Option<Listing>);

/// All directories of a workspace in the order of a search, the upper ones first.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct DirectoryIndex {
    format: u32,
    records: Vec<DirectoryRecord>,
    /// Links that a command must not leave behind, and where they lead. They depend on all directories.
    pub(crate) unsafe_links: BTreeMap<StoredPath, StoredPath>,
}

/// A directory that a search has reached.
pub(crate) struct PendingDirectory {
    pub(crate) path: PathBuf,
    /// The position in the previous index.
    previous: Option<usize>,
}

impl PendingDirectory {
    /// Returns the directory in which a search starts.
    pub(crate) fn root(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            previous: Some(0),
        }
    }
}

/// A search that uses the index of the previous one.
pub(crate) struct IndexedSearch<'a> {
    previous: &'a DirectoryIndex,
    /// The position of the first child of each directory in the previous index.
    first_children: Vec<usize>,
    pub(crate) index: DirectoryIndex,
    /// Whether `index` differs from the previous one.
    pub(crate) is_changed: bool,
    /// The device of the workspace, if the times of its directories can be relied on.
    device: Option<u64>,
    time: Duration,
}

impl DirectoryIndex {
    /// Reads the index of a workspace. It is empty if the file is missing or damaged.
    pub(crate) fn load(directory: &Path, workspace: &Path) -> Self {
        let file = index_path(directory, workspace).and_then(|path| File::open(path).ok());
        let index = file.and_then(|file| serde_json::from_reader(BufReader::new(file)).ok());
        let index = index.filter(|index: &Self| index.format == FORMAT);
        index.unwrap_or_default()
    }

    /// Writes the index of a workspace. Ignores errors: without it, a search takes longer.
    pub(crate) fn save(&self, directory: &Path, workspace: &Path) {
        let Some(path) = index_path(directory, workspace) else {
            return;
        };
        // Another command may read or write it at the same time.
        let temporary = path.with_extension(std::process::id().to_string());
        let write = || {
            let mut options = File::options();
            options.write(true).create(true).truncate(true).mode(0o600);
            let mut writer = BufWriter::new(options.open(&temporary)?);
            serde_json::to_writer(&mut writer, self)?;
            writer.flush()?;
            fs::rename(&temporary, &path)
        };
        if write().is_err() {
            let _ = fs::remove_file(&temporary);
        }
    }

    /// Returns the listing of each directory, unless it is empty.
    pub(crate) fn listings(&self) -> impl Iterator<Item = Option<&Listing>> {
        self.records.iter().map(|record| record.3.as_ref())
    }
}

fn index_path(directory: &Path, workspace: &Path) -> Option<PathBuf> {
    let name = record_name(workspace).ok()?;
    Some(directory.join(name).with_extension("index"))
}

impl<'a> IndexedSearch<'a> {
    /// Starts a search at the time `now`.
    pub(crate) fn new(workspace: &Path, previous: &'a DirectoryIndex, now: SystemTime) -> Self {
        let mut next = 1;
        let first = |record: &DirectoryRecord| {
            let first = next;
            next += record.2;
            first
        };
        let time = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            first_children: previous.records.iter().map(first).collect(),
            previous,
            index: DirectoryIndex {
                format: FORMAT,
                records: Vec::with_capacity(previous.records.len()),
                unsafe_links: BTreeMap::new(),
            },
            is_changed: false,
            device: reliable_device(workspace),
            time: time.saturating_sub(CLOCK_TOLERANCE),
        }
    }

    /// Skips a directory.
    pub(crate) fn skip(&mut self, pending: &PendingDirectory) {
        self.add(pending, None, 0, None);
    }

    /// Adds a directory to the index. Returns the directories that it contains.
    pub(crate) fn visit(&mut self, pending: &PendingDirectory) -> Vec<PendingDirectory> {
        let found = fs::symlink_metadata(&pending.path).ok();
        let stamp = found.and_then(|found| self.stamp(&found));
        let previous = pending.previous;
        let record = previous.and_then(|index| self.previous.records.get(index));
        let known = self.children(previous);
        let (listing, children) = match record {
            Some(record) if stamp.is_some() && record.1 == stamp => {
                let child = |(index, record): (usize, &DirectoryRecord)| PendingDirectory {
                    path: pending.path.join(&*record.0),
                    previous: Some(index),
                };
                (record.3.clone(), known.map(child).collect())
            }
            _ => {
                let known: BTreeMap<&Path, usize> =
                    known.map(|(index, record)| (&*record.0, index)).collect();
                self.is_changed = true;
                read(&pending.path, &known)
            }
        };
        // Another change in the same instant would not be noticed.
        let is_old = |stamp: &DirectoryStamp| {
            u64::try_from(stamp.1).is_ok_and(|seconds| seconds < self.time.as_secs())
        };
        self.add(pending, stamp.filter(is_old), children.len(), listing);
        children
    }

    /// Returns the directories in a directory of the previous index.
    fn children(
        &self,
        index: Option<usize>,
    ) -> impl Iterator<Item = (usize, &'a DirectoryRecord)> + use<'a> {
        let records = &self.previous.records;
        let count = index
            .and_then(|index| records.get(index))
            .map_or(0, |record| record.2);
        let first = index.and_then(|index| self.first_children.get(index));
        let first = first.copied().unwrap_or_default();
        records.iter().enumerate().skip(first).take(count)
    }

    fn add(
        &mut self,
        pending: &PendingDirectory,
        stamp: Option<DirectoryStamp>,
        children: usize,
        listing: Option<Listing>,
    ) {
        let name = pending.path.file_name().unwrap_or_default();
        let name = StoredPath::from(PathBuf::from(name));
        self.index
            .records
            .push(DirectoryRecord(name, stamp, children, listing));
    }

    fn stamp(&self, found: &Metadata) -> Option<DirectoryStamp> {
        let stamp = (found.ino(), found.ctime(), found.ctime_nsec());
        (Some(found.dev()) == self.device).then_some(stamp)
    }
}

/// Returns the device of a directory, if its file system changes the time of a directory with its entries.
#[cfg(target_os = "linux")]
fn reliable_device(directory: &Path) -> Option<u64> {
    let kind = rustix::fs::statfs(directory).ok()?.f_type;
    let is_reliable = u64::try_from(kind).is_ok_and(|kind| FILE_SYSTEMS.contains(&kind));
    let found = fs::metadata(directory).ok()?;
    is_reliable.then_some(found.dev())
}

#[cfg(not(target_os = "linux"))]
fn reliable_device(_directory: &Path) -> Option<u64> {
    None
}

/// Reads a directory. `known` has positions of the directories in it.
fn read(path: &Path, known: &BTreeMap<&Path, usize>) -> (Option<Listing>, Vec<PendingDirectory>) {
    let is_named_git = path.file_name().is_some_and(is_git_name);
    let (mut listing, mut parts, mut children) =
        (Listing::default(), GitParts::default(), Vec::new());
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        let name = entry.file_name();
        parts.add(&name);
        let Ok(kind) = entry.file_type() else {
            continue;
        };
        let stored = |name: &OsStr| StoredPath::from(PathBuf::from(name));
        if kind.is_socket() {
            listing.sockets.push(stored(&name));
        } else if kind.is_dir() {
            let previous = known.get(Path::new(&name)).copied();
            let path = entry.path();
            children.push(PendingDirectory { path, previous });
        } else {
            if !kind.is_file() {
                let target = fs::read_link(entry.path()).unwrap_or_default();
                listing.links.push((stored(&name), target.into()));
            }
            if is_git_name(&name) {
                listing.git_files.push(stored(&name));
            }
        }
    }
    listing.is_git = is_named_git || parts.are_complete();
    let listing = Some(listing).filter(|listing| *listing != Listing::default());
    (listing, children)
}

#[cfg(test)]
#[cfg(target_os = "linux")]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// Returns the directories of a workspace that git recognizes, the new index, and whether a directory was read.
    fn search(
        root: &Path,
        previous: &DirectoryIndex,
        now: SystemTime,
    ) -> (Vec<PathBuf>, DirectoryIndex, bool) {
        let mut search = IndexedSearch::new(root, previous, now);
        let mut found = Vec::new();
        let mut waiting = VecDeque::from([PendingDirectory::root(root)]);
        while let Some(directory) = waiting.pop_front() {
            waiting.extend(search.visit(&directory));
            let listing = search.index.listings().last().flatten();
            let is_git = listing.is_some_and(|listing| listing.is_git);
            found.extend(is_git.then_some(directory.path));
        }
        (found, search.index, search.is_changed)
    }

    /// A time at which all changes of a test are old.
    fn later() -> SystemTime {
        SystemTime::now() + Duration::from_hours(1)
    }

    #[test]
    fn a_directory_is_read_again_only_if_it_changed() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        for name in ["a/b/c", "a/d/e", "f"] {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        let (found, index, is_changed) = search(root, &DirectoryIndex::default(), later());
        assert!(found.is_empty() && is_changed);
        let (_, index, is_changed) = search(root, &index, later());
        assert!(!is_changed, "{index:?}");
        for (change, expected) in [
            ("a/b/c/.git", true),
            ("a/b/c/.git", false),
            ("a/new/x/.git", true),
            ("f/.git", true),
        ] {
            let path = root.join(change);
            if expected {
                fs::create_dir_all(&path).unwrap();
            } else {
                fs::remove_dir(&path).unwrap();
            }
            let (found, _, is_changed) = search(root, &index, later());
            assert!(is_changed);
            assert_eq!(found.contains(&path), expected, "{change}: {found:?}");
        }
        // A directory at the place of another one has its own entries, however old it is.
        fs::create_dir_all(root.join("g/e/.git")).unwrap();
        let (_, index, _) = search(root, &index, later());
        fs::rename(root.join("a/d"), root.join("old")).unwrap();
        fs::rename(root.join("g"), root.join("a/d")).unwrap();
        let (found, _, _) = search(root, &index, later());
        assert!(found.contains(&root.join("a/d/e/.git")), "{found:?}");
        assert!(!found.contains(&root.join("g/e/.git")), "{found:?}");
    }

    // Two changes in one instant have the same time.
    #[test]
    fn a_directory_that_changed_shortly_before_is_read_again() {
        let root = tempfile::tempdir().unwrap();
        let (_, index, _) = search(root.path(), &DirectoryIndex::default(), SystemTime::now());
        let (_, _, is_changed) = search(root.path(), &index, SystemTime::now());
        assert!(is_changed);
    }

    #[test]
    fn an_index_is_the_same_after_it_was_stored_and_empty_if_it_is_damaged() {
        let root = tempfile::tempdir().unwrap();
        let (work, records) = (root.path().join("work"), root.path().join("records"));
        fs::create_dir_all(work.join("a/.git")).unwrap();
        fs::create_dir(&records).unwrap();
        let (_, index, _) = search(&work, &DirectoryIndex::default(), later());
        index.save(&records, &work);
        let loaded = DirectoryIndex::load(&records, &work);
        let (found, _, is_changed) = search(&work, &loaded, later());
        assert!(!is_changed);
        assert_eq!(found, [work.join("a/.git")]);
        let path = index_path(&records, &work).unwrap();
        fs::write(path, "{").unwrap();
        assert!(DirectoryIndex::load(&records, &work).records.is_empty());
    }
}
