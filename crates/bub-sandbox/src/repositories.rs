//! Where git finds repositories in a workspace.
//!
//! Git uses a directory as its own if it contains `HEAD`, and `objects` and `refs` or `commondir`. Its name does not
//! matter. A file or link `.git` names such a directory.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ffi::OsStr,
    fs,
    io::Read,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

use crate::{
    Confinement,
    baseline::StoredPath,
    directory_index::{DirectoryIndex, IndexedSearch, Listing, PendingDirectory},
    git_config::MAX_CONFIG_BYTES,
    links::unsafe_links,
};

/// Protected names in a git directory. The directory itself stays writable.
pub(crate) const GIT_NAMES: &[&str] = &[
    "branches",
    "commondir",
    "config",
    "config.worktree",
    "hooks",
    "info/attributes",
    "remotes",
];
/// Those of them that are directories: hooks, and addresses as git stored them before it had a configuration.
pub(crate) const GIT_DIRECTORY_NAMES: &[&str] = &["branches", "hooks", "remotes"];
/// The root directory, as long as this process is in the mount namespace of the user.
pub(crate) const ROOT: &str = "/";
/// By how much the times of files can differ from the clock.
pub(crate) const CLOCK_TOLERANCE: Duration = Duration::from_secs(2);
/// What git finds at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GitPlace {
    /// A git directory: the data of a repository, of a submodule or of a working tree.
    Directory,
    /// A file or link `.git`, which names a git directory.
    Link,
}

impl GitPlace {
    /// Returns the parts of the place at `path` that are renamed to disable it. Without the first one, git does not use it.
    /// Without the others, git runs nothing because of it, even if `git init` or a working tree makes git use it again.
    pub(crate) fn parts(self, path: &Path) -> Vec<PathBuf> {
        match self {
            Self::Directory => {
                // A directory at the path of a file is not from git: `path` can be any directory with files of the user.
                let is_of_git = |name: &&&str| {
                    GIT_DIRECTORY_NAMES.contains(name)
                        || !fs::symlink_metadata(path.join(name)).is_ok_and(|found| found.is_dir())
                };
                let names = ["HEAD"].iter().chain(GIT_NAMES).filter(is_of_git);
                names.map(|name| path.join(name)).collect()
            }
            Self::Link => vec![path.to_owned()],
        }
    }
}

/// What a search of the workspace found.
#[derive(Debug, Default)]
pub(crate) struct Search {
    pub(crate) places: BTreeMap<PathBuf, GitPlace>,
    /// The places in the order of their depth.
    pub(crate) order: Vec<PathBuf>,
    /// Sockets in the file system.
    pub(crate) sockets: Vec<PathBuf>,
    /// Links that a command must not leave behind, and where they lead.
    pub(crate) unsafe_links: BTreeMap<StoredPath, StoredPath>,
    /// Where the directories of the system are for this process, which may be in another mount namespace.
    pub(crate) root: PathBuf,
    /// Whether the search reached all directories before the time limit.
    pub(crate) is_complete: bool,
    /// Whether directories changed since the previous search.
    pub(crate) is_changed: bool,
}

impl Search {
    /// Searches the workspace and all directories below it, the upper ones first. Does not follow links, and does not search
    /// hidden directories. Reads only directories that changed since `index`, and updates it. `root` is the root directory
    /// of the user.
    pub(crate) fn new(
        confinement: &Confinement,
        root: &Path,
        limit: Duration,
        index: &mut DirectoryIndex,
    ) -> Self {
        let started = Instant::now();
        let workspace = &confinement.workspace;
        let hidden = confinement.hidden.iter();
        let hidden: BTreeSet<_> = hidden.filter(|path| path.starts_with(workspace)).collect();
        let mut search = Self {
            root: root.to_owned(),
            ..Self::default()
        };
        let mut directories = Vec::new();
        let mut indexed = IndexedSearch::new(workspace, index, SystemTime::now());
        let mut waiting = VecDeque::from([PendingDirectory::root(workspace)]);
        while let Some(directory) = waiting.pop_front() {
            if started.elapsed() > limit {
                waiting.push_front(directory);
                break;
            }
            if hidden.contains(&directory.path) {
                indexed.skip(&directory);
            } else {
                waiting.extend(indexed.visit(&directory));
            }
            directories.push(directory.path);
        }
        for (directory, listing) in directories.iter().zip(indexed.index.listings()) {
            search.add_listing(directory, listing);
        }
        let is_complete = waiting.is_empty();
        // Without a change in the workspace, no link is new, and none leads elsewhere.
        indexed.index.unsafe_links = if indexed.is_changed || !is_complete {
            unsafe_links(&directories, &indexed.index, root, confinement)
        } else {
            index.unsafe_links.clone()
        };
        search.unsafe_links = indexed.index.unsafe_links.clone();
        search.is_complete = is_complete;
        if is_complete {
            search.is_changed = indexed.is_changed;
            *index = indexed.index;
        }
        search
    }

    fn add_listing(&mut self, directory: &Path, listing: Option<&Listing>) {
        let Some(listing) = listing else {
            return;
        };
        let sockets = listing.sockets.iter();
        self.sockets
            .extend(sockets.map(|name| directory.join(&**name)));
        for name in &listing.git_files {
            self.add(directory.join(&**name), GitPlace::Link);
        }
        if listing.is_git {
            self.add(directory.to_owned(), GitPlace::Directory);
        }
    }

    fn add(&mut self, path: PathBuf, place: GitPlace) {
        self.order.push(path.clone());
        self.places.insert(path, place);
    }

    pub(crate) fn has_directory(&self, path: &Path) -> bool {
        self.places.get(path) == Some(&GitPlace::Directory)
    }
}

/// Entries of a directory by which git recognizes it as its own.
const PART_NAMES: [&str; 4] = ["HEAD", "commondir", "objects", "refs"];

/// Which of [`PART_NAMES`] a directory has.
#[derive(Default)]
pub(crate) struct GitParts([bool; PART_NAMES.len()]);

impl GitParts {
    pub(crate) fn add(&mut self, name: &OsStr) {
        for (is_found, part) in self.0.iter_mut().zip(PART_NAMES) {
            *is_found |= name.eq_ignore_ascii_case(part);
        }
    }

    pub(crate) fn are_complete(&self) -> bool {
        let [head, common, objects, refs] = self.0;
        head && (common || objects && refs)
    }
}

/// Returns whether git uses a directory as its own, if it also contains `added`.
pub(crate) fn is_git_directory(directory: &Path, added: &OsStr) -> bool {
    let mut parts = GitParts::default();
    parts.add(added);
    let exists = |name: &&str| fs::symlink_metadata(directory.join(name)).is_ok();
    for name in PART_NAMES.into_iter().filter(exists) {
        parts.add(name.as_ref());
    }
    parts.are_complete()
}

/// Returns whether a name is `.git`, also where the file system ignores case.
pub(crate) fn is_git_name(name: &OsStr) -> bool {
    name.eq_ignore_ascii_case(".git")
}

/// Identity and time of the last change of the parts of a place. A command cannot set this time.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stamp(Vec<(StoredPath, u64, i64, i64)>);

impl Stamp {
    pub(crate) fn new(path: &Path, place: GitPlace) -> Self {
        let parts = match place {
            GitPlace::Link => vec![path.to_owned()],
            GitPlace::Directory => {
                let named = GIT_NAMES.iter().map(|name| path.join(name));
                named.chain(directory_entries(path)).collect()
            }
        };
        let stamp = |path: PathBuf| {
            let found = fs::symlink_metadata(&path).ok()?;
            let (number, seconds, rest) = (found.ino(), found.ctime(), found.ctime_nsec());
            Some((StoredPath::from(path), number, seconds, rest))
        };
        let mut stamps: Vec<_> = parts.into_iter().filter_map(stamp).collect();
        stamps.sort();
        Self(stamps)
    }

    /// Returns whether the place at `path` and all its parts were last changed before `time`.
    pub(crate) fn is_older_than(&self, path: &Path, time: SystemTime) -> bool {
        let time = latest_seconds(time);
        let own = [path, &path.join("HEAD")];
        let mut own = own.into_iter().flat_map(fs::symlink_metadata);
        own.all(|found| found.ctime() < time) && self.0.iter().all(|part| part.2 < time)
    }
}

/// Returns whether what is at a path was last changed before `time`.
pub(crate) fn is_older(path: &Path, time: SystemTime) -> bool {
    let found = fs::symlink_metadata(path);
    found.is_ok_and(|found| found.ctime() < latest_seconds(time))
}

/// Returns the time before which a file changed that is certainly older than `time`. The clock of a file system can be
/// late.
fn latest_seconds(time: SystemTime) -> i64 {
    let time = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = time.saturating_sub(CLOCK_TOLERANCE).as_secs();
    i64::try_from(seconds).unwrap_or_default()
}

pub(crate) fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

/// Returns what the protected directories of a git directory contain.
pub(crate) fn directory_entries(git: &Path) -> impl Iterator<Item = PathBuf> {
    let names = GIT_DIRECTORY_NAMES.iter();
    names.flat_map(move |name| entries(&git.join(name)))
}

/// Returns the beginning of a small text file, or an empty text.
pub(crate) fn read_text(path: &Path) -> String {
    let mut text = Vec::new();
    // Opening a pipe would wait for a writer.
    if path.is_file() {
        let file = fs::File::open(path).map(|file| file.take(MAX_CONFIG_BYTES));
        // Ignore errors: git cannot read the file, either.
        let _ = file.and_then(|mut file| file.read_to_end(&mut text));
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// Returns whether a file in a directory with hooks is an example, which git does not run.
pub(crate) fn is_sample(hook: &Path) -> bool {
    hook.extension().is_some_and(|kind| kind == "sample")
}

/// Returns the git directory of a working tree.
pub(crate) fn git_directory(tree: &Path) -> Option<PathBuf> {
    let git = tree.join(".git");
    let linked = git.is_file().then(|| linked_directory(&git)).flatten();
    linked.or_else(|| git.is_dir().then_some(git))
}

/// Returns the git directory of the repository to which that of a working tree belongs.
pub(crate) fn common_directory(git: &Path) -> PathBuf {
    let common = git.join(read_text(&git.join("commondir")).trim());
    common.canonicalize().unwrap_or(common)
}

/// Returns the directory that a file `.git` names.
pub(crate) fn linked_directory(file: &Path) -> Option<PathBuf> {
    let text = read_text(file);
    let path = text.strip_prefix("gitdir:")?.trim();
    file.parent()?.join(path).canonicalize().ok()
}

/// Returns the directory with the data of the repository that contains the workspace, if it is outside. Git needs to read
/// it in a subdirectory of a repository, and in a working tree that `git worktree` added.
pub(crate) fn git_directory_outside(workspace: &Path, home: Option<&Path>) -> Option<PathBuf> {
    let is_private = |root: &Path| home.is_some_and(|home| home.starts_with(root));
    let mut roots = workspace.ancestors();
    let root = roots.find(|root| root.join(".git").exists())?;
    let git = root.join(".git");
    if root.parent().is_none() || is_private(root) || git.is_symlink() {
        return None;
    }
    if git.is_dir() {
        return (root != workspace && git.join("HEAD").is_file()).then_some(git);
    }
    // The repository must name the working tree, too. Otherwise a file in the workspace could open any directory.
    let directory = linked_directory(&git)?;
    let back = read_text(&directory.join("gitdir"));
    let common = directory.join(read_text(&directory.join("commondir")).trim());
    let common = common.canonicalize().ok()?;
    let is_linked = Path::new(back.trim()).canonicalize().ok()? == git.canonicalize().ok()?
        && directory.starts_with(common.join("worktrees"));
    (is_linked && !common.starts_with(workspace) && !is_private(&common)).then_some(common)
}
