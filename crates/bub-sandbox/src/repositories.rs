//! Where git finds repositories in a workspace, and whether a repository runs programs.
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
    baseline::StoredPath,
    directory_index::{DirectoryIndex, IndexedSearch, Listing, PendingDirectory},
};

/// Protected names in a git directory. The directory itself stays writable.
pub(crate) const GIT_NAMES: &[&str] = &[
    "commondir",
    "config",
    "config.worktree",
    "hooks",
    "info/attributes",
];
/// Directories of `.git` in which no one works. A new file `.git` that leads there is refused.
const DATA_NAMES: &[&str] = &["logs", "objects", "refs"];
/// Maximum bytes of a configuration of git.
const MAX_CONFIG_BYTES: u64 = 1024 * 1024;
/// How many parts of a directory are compared.
const MAX_STAMP_PARTS: usize = 10_000;
/// By how much the times of files can differ from the clock.
pub(crate) const CLOCK_TOLERANCE: Duration = Duration::from_secs(2);
/// Sections of a repository's configuration, and those of their keys that run no program.
const PLAIN_CONFIG_KEYS: &[(&str, &str)] = &[
    (
        "branch",
        "description gh-merge-base merge pushremote rebase remote vscode-merge-base",
    ),
    ("color", "ui"),
    ("commit", "cleanup gpgsign status verbose"),
    (
        "core",
        "abbrev autocrlf bare bigfilethreshold commitgraph compression eol filemode ignorecase logallrefupdates longpaths multipackindex precomposeunicode preloadindex protecthfs protectntfs quotepath repositoryformatversion safecrlf sharedrepository sparsecheckout sparsecheckoutcone symlinks untrackedcache whitespace worktree",
    ),
    (
        "diff",
        "algorithm colormoved mnemonicprefix noprefix renamelimit renames",
    ),
    (
        "extensions",
        "compatobjectformat objectformat partialclone preciousobjects refstorage relativeworktrees worktreeconfig",
    ),
    (
        "fetch",
        "parallel prune prunetags recursesubmodules writecommitgraph",
    ),
    (
        "gc",
        "auto autodetach autopacklimit pruneexpire reflogexpire",
    ),
    ("http", "postbuffer version"),
    ("index", "skiphash sparse threads version"),
    ("init", "defaultbranch"),
    ("lfs", "access locksverify repositoryformatversion"),
    ("merge", "conflictstyle ff log renamelimit renames stat"),
    ("pull", "ff rebase"),
    ("push", "autosetupremote default followtags"),
    ("rebase", "autosquash autostash updaterefs"),
    (
        "receive",
        "denycurrentbranch denydeletes denynonfastforwards",
    ),
    (
        "remote",
        "fetch gh-resolved mirror partialclonefilter promisor prune prunetags pushdefault pushurl tagopt url",
    ),
    ("rerere", "autoupdate enabled"),
    ("status", "showuntrackedfiles submodulesummary"),
    (
        "submodule",
        "active branch fetchrecursesubmodules ignore recurse shallow update url",
    ),
    ("tag", "gpgsign sort"),
    ("user", "email name signingkey useconfigonly"),
];
/// The key that names the working tree of a git directory elsewhere.
pub(crate) const WORKTREE_KEY: &str = "worktree";

/// What git finds at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GitPlace {
    /// A git directory: the data of a repository, of a submodule or of a working tree.
    Directory,
    /// A file or link `.git`, which names a git directory.
    Link,
}

impl GitPlace {
    /// Returns the file without which git does not use the place at `path`.
    pub(crate) fn main_file(self, path: &Path) -> PathBuf {
        match self {
            Self::Directory => path.join("HEAD"),
            Self::Link => path.to_owned(),
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
    /// Whether the search reached all directories before the time limit.
    pub(crate) is_complete: bool,
    /// Whether directories changed since the previous search.
    pub(crate) is_changed: bool,
}

impl Search {
    /// Searches `workspace` and all directories below it, the upper ones first. Does not follow links, and does not search
    /// `hidden` directories. Reads only directories that changed since `index`, and updates it.
    pub(crate) fn new(
        workspace: &Path,
        hidden: &[PathBuf],
        limit: Duration,
        index: &mut DirectoryIndex,
    ) -> Self {
        let started = Instant::now();
        let hidden = hidden.iter().filter(|path| path.starts_with(workspace));
        let hidden: BTreeSet<_> = hidden.collect();
        let mut search = Self::default();
        let mut indexed = IndexedSearch::new(workspace, index, SystemTime::now());
        let mut waiting = VecDeque::from([PendingDirectory::root(workspace)]);
        while let Some(directory) = waiting.pop_front() {
            if started.elapsed() > limit {
                return search;
            }
            if hidden.contains(&directory.path) {
                indexed.skip(&directory);
                continue;
            }
            let (listing, children) = indexed.visit(&directory);
            search.add_listing(&directory.path, listing);
            waiting.extend(children);
        }
        search.is_complete = true;
        search.is_changed = indexed.is_changed;
        *index = indexed.index;
        search
    }

    fn add_listing(&mut self, directory: &Path, listing: Listing) {
        let sockets = listing.sockets.iter();
        self.sockets
            .extend(sockets.map(|name| directory.join(&**name)));
        for name in listing.links {
            self.add(directory.join(&*name), GitPlace::Link);
        }
        if listing.is_git {
            self.add(directory.to_owned(), GitPlace::Directory);
        }
    }

    fn add(&mut self, path: PathBuf, place: GitPlace) {
        self.order.push(path.clone());
        self.places.insert(path, place);
    }

    fn has_directory(&self, path: &Path) -> bool {
        self.places.get(path) == Some(&GitPlace::Directory)
    }

    /// Returns the parts of a place which make git run programs that are not from the system, or which lead to data that
    /// was not searched.
    pub(crate) fn suspicious_paths(&self, path: &Path, place: GitPlace) -> Vec<PathBuf> {
        match place {
            GitPlace::Link => {
                let target = linked_directory(path).filter(|_| !path.is_symlink());
                let is_known = target.is_some_and(|target| self.has_directory(&target));
                (!is_known).then(|| path.to_owned()).into_iter().collect()
            }
            GitPlace::Directory => {
                let parts = self.suspicious_parts(path);
                // Other files of a directory that is not only for git keep their names.
                let is_for_git = path.iter().any(is_git_name);
                if parts.is_empty() || is_for_git {
                    parts
                } else {
                    vec![place.main_file(path)]
                }
            }
        }
    }

    fn suspicious_parts(&self, git: &Path) -> Vec<PathBuf> {
        let mut parts = Vec::new();
        let exists = |path: &Path| fs::symlink_metadata(path).is_ok();
        let common = git.join("commondir");
        if exists(&common) && !self.is_worktree(git, &common) {
            parts.push(common);
        }
        for name in ["config", "config.worktree"] {
            let config = git.join(name);
            let is_file = fs::symlink_metadata(&config).is_ok_and(|found| found.is_file());
            let is_plain = || is_plain_config(&config, |tree| self.is_tree_of(git, tree));
            if exists(&config) && !(is_file && is_plain()) {
                parts.push(config);
            }
        }
        let hooks = git.join("hooks");
        let is_sample = |path: PathBuf| path.extension().is_some_and(|kind| kind == "sample");
        if hooks.is_symlink() || !entries(&hooks).all(is_sample) {
            parts.push(hooks);
        }
        parts
    }

    /// Returns whether a git directory is that of a working tree, which has the configuration of a known repository.
    fn is_worktree(&self, git: &Path, common: &Path) -> bool {
        let target = git.join(read_text(common).trim()).canonicalize();
        target.is_ok_and(|target| {
            self.has_directory(&target) && git.parent() == Some(&target.join("worktrees"))
        })
    }

    /// Returns whether `tree` is a directory that names `git` as its repository.
    fn is_tree_of(&self, git: &Path, tree: &str) -> bool {
        let link = git.join(tree).canonicalize().map(|tree| tree.join(".git"));
        link.is_ok_and(|link| {
            self.places.get(&link) == Some(&GitPlace::Link)
                && linked_directory(&link).is_some_and(|target| target == git)
        })
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

/// Returns whether a directory of `.git` is one in which no one works.
pub(crate) fn is_data_directory(name: &OsStr) -> bool {
    DATA_NAMES.iter().any(|data| name == *data)
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
                named.chain(entries(&path.join("hooks"))).collect()
            }
        };
        Self::of_parts(parts)
    }

    /// Returns the stamp of a file, or of a directory with all it contains.
    pub(crate) fn of_file(path: &Path) -> Self {
        let mut parts = vec![path.to_owned()];
        let mut index = 0;
        while let Some(part) = parts.get(index).filter(|_| index < MAX_STAMP_PARTS) {
            if !part.is_symlink() {
                parts.extend(entries(&part.clone()));
            }
            index += 1;
        }
        Self::of_parts(parts)
    }

    fn of_parts(parts: impl IntoIterator<Item = PathBuf>) -> Self {
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
        let time = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        // The clock of a file system can be late.
        let time = time.saturating_sub(CLOCK_TOLERANCE).as_secs();
        let is_older = |seconds: i64| u64::try_from(seconds).is_ok_and(|seconds| seconds < time);
        let head = path.join("HEAD");
        let mut own = [path, &head].into_iter().flat_map(fs::symlink_metadata);
        own.all(|found| is_older(found.ctime())) && self.0.iter().all(|part| is_older(part.2))
    }
}

pub(crate) fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
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

/// Returns whether a configuration of git contains only keys that run no program, in the form in which git writes them.
/// `is_tree` returns whether a value may be the working tree.
fn is_plain_config(path: &Path, is_tree: impl Fn(&str) -> bool) -> bool {
    let is_small = path
        .metadata()
        .is_ok_and(|found| found.len() < MAX_CONFIG_BYTES);
    let Ok(text) = fs::read_to_string(path) else {
        return false;
    };
    let mut section = "";
    is_small
        && text.lines().map(str::trim).all(|line| {
            if let Some(header) = line.strip_prefix('[') {
                let header = header.strip_suffix(']').unwrap_or_default();
                let (name, rest) = header.split_once(' ').unwrap_or((header, "\"\""));
                section = name;
                let inner = rest
                    .strip_prefix('"')
                    .and_then(|rest| rest.strip_suffix('"'));
                let is_plain = |text: &str| !text.contains(['"', '\\', ']', '[', '#', ';']);
                return is_plain(name) && inner.is_some_and(is_plain);
            }
            let Some((key, value)) = line.split_once('=') else {
                return line.is_empty();
            };
            let (key, value) = (key.trim(), value.trim());
            is_plain_entry(section, key, value)
                && !value.contains(['"', '\\', '#', ';'])
                && (!key.eq_ignore_ascii_case(WORKTREE_KEY) || is_tree(value))
        })
}

/// Returns whether a value of git's configuration runs no program.
pub(crate) fn is_plain_entry(section: &str, key: &str, value: &str) -> bool {
    let sections = PLAIN_CONFIG_KEYS.iter();
    let mut keys = sections.filter(|(name, _)| name.eq_ignore_ascii_case(section));
    keys.any(|(_, keys)| keys.split(' ').any(|known| known.eq_ignore_ascii_case(key)))
        && !value.starts_with('!')
        && !names_helper(value)
}

/// Returns whether an address names a program that git starts to reach it, as in `ext::command`.
fn names_helper(address: &str) -> bool {
    let helper = address.split_once("::").map(|(helper, _)| helper);
    helper.is_some_and(|helper| !helper.contains(['/', ':', '[']))
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
