//! Paths in the workspace whose content decides what programs outside the sandbox do: git runs hooks and commands of its
//! configuration, bub and other agents read instructions and variables.
//!
//! Existing paths become read-only while a command runs. Paths that do not exist, and links, cannot be protected in this
//! way. [`WorkspaceRecord`] records them before the command. After it, what the command put there gets another name.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs::{self, File},
    hash::{BuildHasher, RandomState},
    io::{self, Write},
    os::unix::{fs::symlink, net::UnixDatagram},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use crate::{
    Confinement,
    baseline::{Baseline, Baselines, StoredPath},
    directory_index::DirectoryIndex,
    git_config::{named_paths, named_paths_around, uses_new_files},
    hold_temp_directory,
    path_access::is_below,
    repositories::{
        GIT_NAMES, GitPlace, Search, Stamp, entries, git_directory_outside, is_git_directory,
        is_git_name,
    },
};

/// Protected names in the workspace.
pub(crate) const WORKSPACE_NAMES: &[&str] = &[
    ".env",
    ".agent",
    ".agents",
    ".bub",
    ".claude",
    ".codex",
    ".cursor",
    ".mcp.json",
    "AGENTS.md",
    "CLAUDE.md",
    "GEMINI.md",
    "mcp.json",
];
/// Directories in which tools store what they generate. Git directories there are checked after a command, not made
/// read-only: tools remove and create them again.
const GENERATED_NAMES: &[&str] = &[".venv", "node_modules", "target", "venv"];
/// How many git directories and sockets are protected by mounts. Others are checked after a command.
const MAX_MOUNT_COUNT: usize = 64;
/// How many paths that the configuration of git names are mounts. Others are compared after a command.
const MAX_NAMED_COUNT: usize = 256;
/// How long the workspace is searched before a command.
const SEARCH_LIMIT: Duration = Duration::from_secs(2);
/// How long the workspace is searched after a command. A command needs longer to create what takes as long to search.
const FINAL_SEARCH_LIMIT: Duration = Duration::from_secs(30);

/// What commands must not change in the workspace, before a command.
pub(crate) struct WorkspaceRecord {
    confinement: Confinement,
    index: DirectoryIndex,
    baselines: Baselines,
    /// Keeps the temporary directory of the command.
    _temp: Option<File>,
}

impl WorkspaceRecord {
    /// Completes the protected paths of a confinement with those that depend on the content of the workspace, hides
    /// sockets of other programs, and makes the repository that contains the workspace readable.
    ///
    /// # Errors
    ///
    /// Fails if the record cannot be shared with other running commands.
    pub(crate) fn new(confinement: &mut Confinement) -> io::Result<Self> {
        let outside = git_directory_outside(&confinement.workspace, confinement.home.as_deref());
        confinement.readable.extend(outside);
        // What a link leads to is hidden, too.
        let hidden = confinement.hidden.iter();
        let hidden: Vec<_> = hidden.flat_map(|path| path.canonicalize()).collect();
        confinement.hidden.extend(hidden);
        let sockets = RefCell::new(Vec::new());
        let index = confinement.records.as_deref();
        let index = index.map(|records| DirectoryIndex::load(records, &confinement.workspace));
        let index = RefCell::new(index.unwrap_or_default());
        let scan = || {
            let search = search_workspace(confinement, SEARCH_LIMIT, &mut index.borrow_mut());
            let baseline = scan(confinement, &search);
            sockets.replace(search.sockets);
            baseline
        };
        let baselines = match &confinement.records {
            Some(directory) if confinement.can_write => {
                let shared = Baselines::share(directory, &confinement.workspace, scan);
                shared.map_err(|error| {
                    let directory = directory.display();
                    io::Error::new(error.kind(), format!("records in `{directory}`: {error}"))
                })?
            }
            _ => Baselines::alone(scan),
        };
        let sockets = sockets.into_inner().into_iter();
        let sockets = sockets.filter(|path| has_listener(path));
        confinement.hidden.extend(sockets.take(MAX_MOUNT_COUNT));
        let protected = baselines.all.iter().flat_map(|baseline| &baseline.mounted);
        let protected: BTreeSet<_> = protected.map(|path| path.to_path_buf()).collect();
        confinement.protected = protected.into_iter().collect();
        Ok(Self {
            index: index.into_inner(),
            baselines,
            _temp: hold_temp_directory(&confinement.temp).ok(),
            confinement: confinement.clone(),
        })
    }

    /// Renames what the command put at protected paths, and restores links. Writes a line to `output` for each.
    ///
    /// Ignores errors of `output`. Call it when all processes of the command have ended.
    pub(crate) fn restore(mut self, output: &mut impl Write) {
        let confinement = &self.confinement;
        if !confinement.can_write {
            return;
        }
        let baselines = &self.baselines.all;
        let mut moved = Vec::new();
        let dotfiles = confinement.home_in_workspace().map(home_names);
        for baseline in baselines {
            let absent = baseline.absent.iter();
            moved.extend(absent.filter_map(|path| move_aside(path)));
            for (path, target) in &baseline.links {
                if fs::read_link(&**path).is_ok_and(|now| now == **target) {
                    continue;
                }
                moved.extend(move_aside(path));
                // Ignore errors: the command may have removed the directory.
                let _ = symlink(&**target, &**path);
            }
            let files = baseline.files.iter();
            let changed = files.filter(|(path, before)| **before != Stamp::of_file(path));
            moved.extend(changed.filter_map(|(path, _)| move_aside(path)));
            if let Some(before) = &baseline.home_names {
                let new = dotfiles.iter().flatten();
                let new = new.filter(|path| !before.contains(path.as_path()));
                moved.extend(new.filter_map(|path| move_aside(path)));
            }
        }
        let search = search_workspace(confinement, FINAL_SEARCH_LIMIT, &mut self.index);
        let new = search.places.iter().filter(|(path, place)| {
            let mut before = baselines.iter();
            !before.all(|baseline| baseline.has_unchanged(path, **place))
        });
        let new: BTreeMap<_, _> = new.collect();
        for (path, place) in &new {
            let suspicious = search.suspicious_paths(path, **place);
            moved.extend(suspicious.iter().filter_map(|path| move_aside(path)));
        }
        let is_known = |tree: &Path| {
            let is_old = |place: &Path| {
                search.places.contains_key(place) && !new.contains_key(&place.to_path_buf())
            };
            is_old(tree) || is_old(&tree.join(".git"))
        };
        for (path, place) in &new {
            if uses_new_files(path, **place, confinement, is_known) {
                moved.extend(move_aside(&place.main_file(path)));
            }
        }
        for (path, name) in moved {
            let path = path.strip_prefix(&confinement.workspace).unwrap_or(&path);
            let _ = writeln!(
                output,
                "bub: the sandbox renamed `{}` to `{name}`: commands cannot create it",
                path.display()
            );
        }
        if !search.is_complete {
            let _ = writeln!(
                output,
                "bub: the workspace has too many directories to search all for new repositories: check them before you run git there"
            );
        }
    }
}

/// Searches the workspace, and stores the index for the next command.
fn search_workspace(
    confinement: &Confinement,
    limit: Duration,
    index: &mut DirectoryIndex,
) -> Search {
    let Confinement {
        workspace, hidden, ..
    } = confinement;
    let search = Search::new(workspace, hidden, limit, index);
    if let Some(records) = confinement.records.as_ref().filter(|_| search.is_changed) {
        index.save(records, workspace);
    }
    search
}

/// Returns the state of the workspace: what is at protected paths, and the places of git.
fn scan(confinement: &Confinement, search: &Search) -> Baseline {
    let time = SystemTime::now();
    let workspace = &confinement.workspace;
    let mut protected: BTreeSet<PathBuf> = confinement.protected.iter().cloned().collect();
    let (mut places, mut stamps) = (BTreeSet::new(), BTreeMap::new());
    for path in &search.order {
        let Some(place) = search.places.get(path) else {
            continue;
        };
        let stored = StoredPath::from(path.clone());
        if places.len() >= MAX_MOUNT_COUNT || is_generated(workspace, path) {
            stamps.insert(stored, Stamp::new(path, *place));
            continue;
        }
        places.insert(stored);
        match place {
            GitPlace::Link => drop(protected.insert(path.clone())),
            GitPlace::Directory => {
                protected.extend(GIT_NAMES.iter().map(|name| path.join(name)));
                // Without it, bub or the user has disabled the repository.
                let main = Some(place.main_file(path));
                protected.extend(main.filter(|main| fs::symlink_metadata(main).is_err()));
            }
        }
    }
    let home_names = confinement.home_in_workspace().map(home_names);
    protected.extend(home_names.iter().flatten().cloned());
    let mut named = named_paths(search, confinement);
    named.retain(|path| !protected.contains(path));
    let mut baseline = Baseline {
        workspace: workspace.clone().into(),
        mounted: BTreeSet::new(),
        absent: BTreeSet::new(),
        links: BTreeMap::new(),
        files: BTreeMap::new(),
        places,
        stamps,
        is_complete: search.is_complete,
        home_names: home_names.map(|names| names.into_iter().map(StoredPath::from).collect()),
        time,
    };
    let is_inside = |path: &PathBuf| path != workspace && path.starts_with(workspace);
    // A command can create many paths that the configuration of the user names. They must not displace the others.
    let max_count = protected.len() + MAX_NAMED_COUNT;
    for path in protected.into_iter().chain(named).filter(is_inside) {
        match fs::symlink_metadata(&path) {
            Err(_) => drop(baseline.absent.insert(path.into())),
            Ok(found) if found.is_symlink() => {
                let real = path.canonicalize().ok().filter(is_inside);
                baseline.mounted.extend(real.map(StoredPath::from));
                let target = fs::read_link(&path).unwrap_or_default();
                baseline.links.insert(path.into(), target.into());
            }
            Ok(_) if baseline.mounted.len() < max_count => {
                baseline.mounted.insert(path.into());
            }
            Ok(_) => {
                let stamp = Stamp::of_file(&path);
                baseline.files.insert(path.into(), stamp);
            }
        }
    }
    baseline
}

/// Returns whether a path is in a directory with generated files.
fn is_generated(workspace: &Path, path: &Path) -> bool {
    let inside = path.strip_prefix(workspace).unwrap_or(path);
    inside
        .iter()
        .any(|part| GENERATED_NAMES.iter().any(|name| part == *name))
}

/// Returns the paths in a home directory that start with a period. The search for repositories finds `.git`.
fn home_names(home: &Path) -> BTreeSet<PathBuf> {
    let is_dotfile = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default();
        name.as_encoded_bytes().starts_with(b".") && !is_git_name(name)
    };
    entries(home).filter(is_dotfile).collect()
}

/// Returns whether a program listens at a socket. The program does not notice: a datagram cannot be connected to a
/// stream.
fn has_listener(path: &Path) -> bool {
    let connected = UnixDatagram::unbound().and_then(|socket| socket.connect(path));
    !connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Returns whether bub's own tools must not write to a path without links: a command would not keep its changes there.
///
/// Repositories are recognized by the name of their directory, wherever they are and even before they exist.
pub(crate) fn is_protected(confinement: &Confinement, path: &Path) -> bool {
    let workspace = &confinement.workspace;
    let Ok(inside) = path.strip_prefix(workspace) else {
        return false;
    };
    let mut rest = inside.iter();
    if rest.any(is_git_name) {
        let rest: PathBuf = rest.collect();
        let data = ["modules", "worktrees"].iter();
        let mut names = GIT_NAMES.iter().chain(data).map(Path::new);
        return rest.as_os_str().is_empty() || names.any(|name| is_below(&rest, name));
    }
    let is_in_repository = |directory: &Path| {
        let below = path.strip_prefix(directory).unwrap_or(path);
        let first = below.iter().next().unwrap_or_default();
        let mut names = GIT_NAMES.iter().map(Path::new);
        // A write must not make a repository of a directory.
        is_git_directory(directory, first)
            && (names.any(|name| is_below(below, name))
                || !is_git_directory(directory, OsStr::new("")))
    };
    let mut above = path.ancestors().skip(1);
    if above.any(|directory| directory.starts_with(workspace) && is_in_repository(directory)) {
        return true;
    }
    let below_home = confinement.home_in_workspace();
    let below_home = below_home.and_then(|home| path.strip_prefix(home).ok());
    let is_dotfile = |path: &Path| path.as_os_str().as_encoded_bytes().starts_with(b".");
    let config = named_paths_around(path, confinement).into_iter();
    let links = confinement.protected.iter();
    let links = links.flat_map(|path| path.canonicalize());
    let mut all = config.chain(links);
    let mut named = confinement.protected.iter();
    below_home.is_some_and(is_dotfile)
        || named.any(|root| is_below(path, root))
        || all.any(|root| root != *workspace && path.starts_with(root))
}

/// Gives what is at a path another name in the same directory. Returns the path and the new name.
fn move_aside(path: &Path) -> Option<(PathBuf, String)> {
    let random = RandomState::new().hash_one(path) >> 32;
    let name = path.file_name()?.to_string_lossy();
    let name = format!("{name}.sandbox-{random:08x}");
    fs::rename(path, path.with_file_name(&name)).ok()?;
    Some((path.to_owned(), name))
}
