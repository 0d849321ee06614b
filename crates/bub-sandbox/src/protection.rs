//! Paths in the workspace whose content decides what programs outside the sandbox do: git runs hooks and commands of its
//! configuration, bub and other agents read instructions and variables.
//!
//! Existing paths become read-only while a command runs. Paths that do not exist, and links, cannot be protected in this
//! way. [`WorkspaceRecord`] records them before the command. After it, what the command put there gets another name.

use std::{
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
    Confinement, hold_temp_directory,
    path_access::is_below,
    repositories::{
        GIT_NAMES, GitPlace, Search, Stamp, configured_paths, entries, git_directory_outside,
        is_git_directory, is_git_name,
    },
};

/// Protected names in the workspace.
pub(crate) const WORKSPACE_NAMES: &[&str] = &[
    ".env",
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
/// How long the workspace is searched before a command.
const SEARCH_LIMIT: Duration = Duration::from_secs(2);
/// How long the workspace is searched after a command. A command needs longer to create what takes as long to search.
const FINAL_SEARCH_LIMIT: Duration = Duration::from_secs(30);

/// What was at a protected path before the command.
enum Before {
    Nothing,
    Link(PathBuf),
}

/// Protected paths that cannot be made read-only, and the git directories, before a command.
pub(crate) struct WorkspaceRecord {
    workspace: PathBuf,
    paths: Vec<(PathBuf, Before)>,
    /// Places of git whose parts are read-only or among `paths`.
    mounted: BTreeSet<PathBuf>,
    /// Other places of git.
    stamps: BTreeMap<PathBuf, Stamp>,
    /// Whether `mounted` and `stamps` are all places. Otherwise, others may have existed.
    is_complete: bool,
    /// Names that start with a period in the home directory, if it is the workspace.
    home_names: Option<BTreeSet<PathBuf>>,
    hidden: Vec<PathBuf>,
    started: SystemTime,
    /// Keeps the temporary directory of the command.
    _temp: Option<File>,
    can_write: bool,
}

impl WorkspaceRecord {
    /// Completes the protected paths of a confinement with those that depend on the content of the workspace, hides
    /// sockets of other programs, and makes the repository that contains the workspace readable.
    pub(crate) fn new(confinement: &mut Confinement) -> Self {
        let started = SystemTime::now();
        let workspace = confinement.workspace.clone();
        let home = confinement.home.clone();
        let home = home.as_deref();
        confinement
            .readable
            .extend(git_directory_outside(&workspace, home));
        // What a link leads to is hidden, too.
        let hidden = confinement.hidden.iter();
        let hidden: Vec<_> = hidden.flat_map(|path| path.canonicalize()).collect();
        confinement.hidden.extend(hidden);
        let search = Search::new(&workspace, &confinement.hidden, SEARCH_LIMIT);
        let sockets = search.sockets.iter().filter(|path| has_listener(path));
        confinement
            .hidden
            .extend(sockets.take(MAX_MOUNT_COUNT).cloned());
        let mut protected: BTreeSet<PathBuf> = confinement.protected.drain(..).collect();
        let (mut mounted, mut stamps) = (BTreeSet::new(), BTreeMap::new());
        for path in &search.order {
            let Some(place) = search.places.get(path) else {
                continue;
            };
            if mounted.len() >= MAX_MOUNT_COUNT || is_generated(&workspace, path) {
                stamps.insert(path.clone(), Stamp::new(path, *place));
                continue;
            }
            mounted.insert(path.clone());
            if *place == GitPlace::Link {
                protected.insert(path.clone());
                continue;
            }
            protected.extend(GIT_NAMES.iter().map(|name| path.join(name)));
            for config in ["config", "config.worktree"] {
                let root = path.parent().unwrap_or(path);
                protected.extend(configured_paths(&path.join(config), root, home));
            }
        }
        if let Some(home) = home {
            let config = home.join(".gitconfig");
            protected.extend(configured_paths(&config, &workspace, Some(home)));
        }
        let home_names = (home == Some(&workspace)).then(|| home_names(&workspace));
        protected.extend(home_names.iter().flatten().cloned());
        let mut paths = Vec::new();
        for path in &protected {
            match fs::symlink_metadata(path) {
                Err(_) => paths.push((path.clone(), Before::Nothing)),
                Ok(found) if found.is_symlink() => {
                    let target = fs::read_link(path).unwrap_or_default();
                    paths.push((path.clone(), Before::Link(target)));
                    confinement.protected.extend(path.canonicalize());
                }
                Ok(_) => confinement.protected.push(path.clone()),
            }
        }
        let is_inside = |path: &PathBuf| path != &workspace && path.starts_with(&workspace);
        confinement.protected.retain(is_inside);
        paths.retain(|(path, _)| is_inside(path));
        Self {
            can_write: confinement.can_write,
            hidden: confinement.hidden.clone(),
            is_complete: search.is_complete,
            workspace,
            paths,
            mounted,
            stamps,
            home_names,
            started,
            _temp: hold_temp_directory(&confinement.temp).ok(),
        }
    }

    /// Renames what the command put at protected paths, and restores links. Writes a line to `output` for each.
    ///
    /// Ignores errors of `output`. Call it when all processes of the command have ended.
    pub(crate) fn restore(self, output: &mut impl Write) {
        if !self.can_write {
            return;
        }
        let mut moved = Vec::new();
        for (path, before) in &self.paths {
            let now = fs::symlink_metadata(path);
            match (before, now) {
                (Before::Nothing, Ok(_)) => moved.extend(move_aside(path)),
                (Before::Link(target), now)
                    if fs::read_link(path).ok().as_ref() != Some(target) =>
                {
                    if now.is_ok() {
                        moved.extend(move_aside(path));
                    }
                    // Ignore errors: the command may have removed the directory.
                    let _ = symlink(target, path);
                }
                _ => {}
            }
        }
        if let Some(before) = &self.home_names {
            let now = home_names(&self.workspace);
            let new = now.difference(before);
            moved.extend(new.filter_map(|path| move_aside(path)));
        }
        let search = Search::new(&self.workspace, &self.hidden, FINAL_SEARCH_LIMIT);
        for (path, place) in &search.places {
            if !self.is_unchanged(path, *place) {
                let suspicious = search.suspicious_paths(path, *place);
                moved.extend(suspicious.iter().filter_map(|path| move_aside(path)));
            }
        }
        for (path, name) in moved {
            let path = path.strip_prefix(&self.workspace).unwrap_or(&path);
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

    /// Returns whether a place of git is as it was before the command.
    fn is_unchanged(&self, path: &Path, place: GitPlace) -> bool {
        let now = || Stamp::new(path, place);
        match self.stamps.get(path) {
            Some(before) => *before == now(),
            None if self.mounted.contains(path) => true,
            None => !self.is_complete && now().is_older_than(path, self.started),
        }
    }
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
    let Confinement {
        workspace, home, ..
    } = confinement;
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
    let is_workspace_home = home.as_ref() == Some(workspace);
    let config =
        configured_paths(&workspace.join(".git/config"), workspace, home.as_deref()).into_iter();
    let user_config = home.iter().map(|home| home.join(".gitconfig"));
    let user_config =
        user_config.flat_map(|config| configured_paths(&config, workspace, home.as_deref()));
    let links = confinement.protected.iter();
    let links = links.flat_map(|path| path.canonicalize());
    let mut all = config.chain(user_config).chain(links);
    let mut named = confinement.protected.iter();
    is_workspace_home && inside.as_os_str().as_encoded_bytes().starts_with(b".")
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
