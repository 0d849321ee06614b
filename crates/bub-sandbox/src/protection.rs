//! Paths in the workspace whose content decides what programs outside the sandbox do: git runs hooks and commands of its
//! configuration, bub and other agents read instructions and variables.
//!
//! Existing paths become read-only while a command runs. Paths that do not exist, and links, cannot be protected in this
//! way. [`WorkspaceRecord`] records them before the command. After it, what the command put there gets another name.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    hash::{BuildHasher, RandomState},
    io::{self, Write},
    os::{
        fd::AsRawFd,
        unix::{fs::symlink, net::UnixDatagram},
    },
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use crate::{
    Confinement,
    baseline::{Baseline, Baselines, StoredPath},
    directory_index::DirectoryIndex,
    git_state::state_findings,
    hold_temp_directory,
    links::paths_inside,
    named_paths::NamedPaths,
    new_repositories::{NewPlaces, Review},
    path_access::is_below,
    references::unsafe_references,
    repositories::{
        GIT_NAMES, GitPlace, ROOT, Search, Stamp, entries, git_directory_outside, is_git_directory,
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
/// What bub adds to the name of a file that it renames, before a number.
pub(crate) const DISABLED_MARK: &str = ".sandbox-";
/// How much of a finding a note contains.
const MAX_FINDING_CHARS: usize = 160;
/// How long the workspace is searched before a command.
pub(crate) const SEARCH_LIMIT: Duration = Duration::from_secs(2);
/// How long the workspace is searched after a command. A command needs longer to create what takes as long to search.
const FINAL_SEARCH_LIMIT: Duration = Duration::from_secs(30);

/// What commands must not change in the workspace, before a command.
pub(crate) struct WorkspaceRecord {
    confinement: Confinement,
    index: DirectoryIndex,
    baselines: Baselines,
    /// What the configuration of git names. Parts of it may be in the home directory, which is hidden later.
    named: NamedPaths,
    new_places: NewPlaces,
    /// The root directory, which the namespace of the command does not replace.
    root: File,
    /// Keeps the temporary directory of the command.
    _temp: Option<File>,
}

impl WorkspaceRecord {
    /// Completes the protected paths of a confinement with those that depend on the content of the workspace, hides
    /// sockets of other programs, and makes the repository that contains the workspace readable.
    ///
    /// # Errors
    ///
    /// Fails if a path that git's configuration names cannot be protected, or if the record cannot be shared with other
    /// running commands.
    pub(crate) fn new(confinement: &mut Confinement) -> io::Result<Self> {
        let outside = git_directory_outside(&confinement.workspace, confinement.home.as_deref());
        confinement.readable.extend(outside);
        // What a link leads to is hidden, too.
        let hidden = confinement.hidden.iter();
        let hidden: Vec<_> = hidden.flat_map(|path| path.canonicalize()).collect();
        confinement.hidden.extend(hidden);
        let last = RefCell::new(None);
        let scan = || {
            let inspection = Inspection::new(confinement)?;
            let baseline = scan(confinement, &inspection);
            last.replace(Some(inspection));
            Ok(baseline)
        };
        let baselines = match &confinement.records {
            Some(directory) if confinement.can_write => {
                let shared = Baselines::share(directory, &confinement.workspace, scan);
                shared.map_err(|error| {
                    let directory = directory.display();
                    match error.kind() {
                        // The workspace is the reason.
                        io::ErrorKind::PermissionDenied if error.raw_os_error().is_none() => error,
                        kind => io::Error::new(kind, format!("records in `{directory}`: {error}")),
                    }
                })?
            }
            _ => Baselines::alone(scan)?,
        };
        let inspection = last.into_inner().unwrap_or_default();
        let sockets = inspection.search.sockets.into_iter();
        let sockets = sockets.filter(|path| has_listener(path));
        confinement.hidden.extend(sockets.take(MAX_MOUNT_COUNT));
        let protected = baselines.all.iter().flat_map(|baseline| &baseline.mounted);
        let protected: BTreeSet<_> = protected.map(|path| path.to_path_buf()).collect();
        confinement.protected = protected.into_iter().collect();
        Ok(Self {
            index: inspection.index,
            baselines,
            named: inspection.named,
            new_places: inspection.new_places,
            root: File::open(ROOT)?,
            _temp: hold_temp_directory(&confinement.temp).ok(),
            confinement: confinement.clone(),
        })
    }

    /// Returns whether the process is one of the commands that share their records, not a plugin.
    pub(crate) fn is_of_command(&self) -> bool {
        self.confinement.records.is_some()
    }

    /// Renames what the command put at protected paths, restores links, and disables new repositories that run programs.
    /// Writes a line to `output` for each.
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
            moved.extend(absent.filter_map(|(path, is_harmless)| {
                move_unexpected(&confinement.workspace, path, *is_harmless)
            }));
            for (path, target) in &baseline.links {
                if fs::read_link(&**path).is_ok_and(|now| now == **target) {
                    continue;
                }
                moved.extend(move_aside(path));
                // Ignore errors: the command may have removed the directory.
                let _ = symlink(&**target, &**path);
            }
            if let Some(before) = &baseline.home_names {
                let new = dotfiles.iter().flatten();
                let new = new.filter(|path| !before.contains(path.as_path()));
                moved.extend(new.filter_map(|path| move_aside(path)));
            }
        }
        let shown = |path: &Path| shown(confinement, path);
        for (path, name) in moved {
            let _ = writeln!(
                output,
                "bub: the sandbox renamed `{}` to `{name}`: commands cannot create it",
                shown(&path)
            );
        }
        // The directories that commands do not see are hidden from this process, too.
        let root = format!("/proc/self/fd/{}", self.root.as_raw_fd());
        let root = if cfg!(target_os = "linux") {
            &root
        } else {
            ROOT
        };
        let search = search_workspace(
            confinement,
            root.as_ref(),
            FINAL_SEARCH_LIMIT,
            &mut self.index,
        );
        let review = Review {
            search: &search,
            named: &self.named,
            confinement,
        };
        let new = search.places.iter().filter(|(path, place)| {
            let mut before = baselines.iter();
            !before.all(|baseline| baseline.has_unchanged(path, **place))
        });
        let new: Vec<_> = new.collect();
        let findings = new
            .iter()
            .map(|(path, place)| review.findings(path, **place));
        let mut disabled = BTreeSet::new();
        for ((path, place), findings) in new.iter().zip(findings.collect::<Vec<_>>()) {
            let Some(finding) = findings.first() else {
                continue;
            };
            disabled.insert(*path);
            let parts = place.parts(path);
            let moved: Vec<_> = parts.iter().filter_map(|part| move_aside(part)).collect();
            let Some(((main, name), others)) = moved.split_first() else {
                continue;
            };
            let others = others.iter().map(|(other, _)| {
                let name = other.strip_prefix(path).unwrap_or(other);
                format!(", also `{}`", name.display())
            });
            let others: String = others.collect();
            let finding: String = finding.chars().take(MAX_FINDING_CHARS).collect();
            let directory = path
                .parent()
                .filter(|_| path.file_name().is_some_and(is_git_name));
            let directory = shown(directory.unwrap_or(path));
            let directory = if directory.is_empty() {
                "."
            } else {
                &directory
            };
            let _ = writeln!(
                output,
                "bub: the sandbox renamed `{}` to `{name}`{others}, so that git does not use the repository: {finding}; to use it, check it and run `bub sandbox --enable {directory}`",
                shown(main)
            );
        }
        self.remove_links(&search, output);
        let has_all_references = self.rename_state(&search, &disabled, output);
        self.new_places.save(new.iter().map(|(path, _)| *path));
        if !search.is_complete || !has_all_references {
            let _ = writeln!(
                output,
                "bub: the workspace has too many directories to search all for new repositories: check them before you run git there"
            );
        }
    }

    /// Removes links that a command must not leave behind. Those in parts that were just renamed stay, for the user to
    /// check.
    fn remove_links(&self, search: &Search, output: &mut impl Write) {
        for (path, target) in &search.unsafe_links {
            let mut before = self.baselines.all.iter();
            if before.all(|baseline| baseline.has_link(path, target))
                || fs::remove_file(&**path).is_err()
            {
                continue;
            }
            let is_pipe = target.as_os_str().is_empty();
            let (path, target) = (shown(&self.confinement, path), target.display());
            let _ = if is_pipe {
                writeln!(
                    output,
                    "bub: the sandbox removed `{path}`, a pipe or device: git would wait for it"
                )
            } else {
                writeln!(
                    output,
                    "bub: the sandbox removed `{path}`, which led to `{target}`: git could use or change what is there"
                )
            };
        }
    }

    /// Renames files of git directories that git must not use. Those in `disabled` are for the user to check. Returns whether
    /// all were checked.
    fn rename_state(
        &self,
        search: &Search,
        disabled: &BTreeSet<&PathBuf>,
        output: &mut impl Write,
    ) -> bool {
        let baselines = &self.baselines.all;
        let state = state_findings(search, &self.confinement, disabled).into_iter();
        let state = state.filter(|finding| {
            let mut before = baselines.iter();
            !before.all(|baseline| baseline.has_finding(finding))
        });
        let state = state.map(|(path, finding)| (path.to_path_buf(), finding));
        let time = baselines.iter().map(|baseline| baseline.time).min();
        let time = time.unwrap_or(SystemTime::UNIX_EPOCH);
        let (references, has_all) = unsafe_references(search, time, FINAL_SEARCH_LIMIT);
        for (path, finding) in references.into_iter().chain(state) {
            // Git ignores names that start with a period. Another finding may have renamed it.
            let Some((path, name)) = move_to(&path, ".") else {
                continue;
            };
            let finding: String = finding.chars().take(MAX_FINDING_CHARS).collect();
            let advice = path.file_name().filter(|name| *name == "HEAD");
            let advice = advice.map_or("", |_| {
                "; to use the repository, write the reference of a branch to it, such as `ref: refs/heads/main`"
            });
            let _ = writeln!(
                output,
                "bub: the sandbox renamed `{}` to `{name}`: {finding}{advice}",
                shown(&self.confinement, &path)
            );
        }
        has_all
    }
}

/// Returns a path in the workspace as users know it.
fn shown(confinement: &Confinement, path: &Path) -> String {
    let inside = path.strip_prefix(&confinement.workspace);
    inside.unwrap_or(path).display().to_string()
}

/// What a workspace contains, with respect to git.
#[derive(Default)]
pub(crate) struct Inspection {
    pub(crate) search: Search,
    index: DirectoryIndex,
    new_places: NewPlaces,
    /// Those of `new_places` that are still there, and that the user did not change.
    new: BTreeSet<PathBuf>,
    pub(crate) named: NamedPaths,
}

impl Inspection {
    /// Searches the workspace, and reads the configuration of git.
    ///
    /// # Errors
    ///
    /// Fails if a path that the configuration names cannot be protected.
    pub(crate) fn new(confinement: &Confinement) -> io::Result<Self> {
        let Confinement {
            workspace, records, ..
        } = confinement;
        let records = records.as_deref().filter(|_| confinement.can_write);
        let index = records.map(|records| DirectoryIndex::load(records, workspace));
        let mut index = index.unwrap_or_default();
        let search = search_workspace(confinement, ROOT.as_ref(), SEARCH_LIMIT, &mut index);
        if !confinement.can_write {
            return Ok(Self {
                search,
                ..Self::default()
            });
        }
        let new_places = records.map(|records| NewPlaces::load(records, workspace));
        let new_places = new_places.unwrap_or_default();
        let mut new = new_places.current(&search);
        let mut named = NamedPaths::find(&search, &new, confinement)?;
        let review = Review {
            search: &search,
            named: &named,
            confinement,
        };
        // After a command, a new place has no findings or is disabled. So these are from the user.
        let of_user = |path: &&PathBuf| {
            let place = search.places.get(*path);
            place.is_some_and(|place| review.has_findings(path, *place))
        };
        let of_user: BTreeSet<_> = new.iter().filter(of_user).cloned().collect();
        if !of_user.is_empty() {
            new.retain(|path| !of_user.contains(path));
            named = NamedPaths::find(&search, &new, confinement)?;
        }
        Ok(Self {
            search,
            index,
            new_places,
            new,
            named,
        })
    }
}

/// Searches the workspace, and stores the index for the next command.
fn search_workspace(
    confinement: &Confinement,
    root: &Path,
    limit: Duration,
    index: &mut DirectoryIndex,
) -> Search {
    let search = Search::new(confinement, root, limit, index);
    if let Some(records) = confinement.records.as_ref().filter(|_| search.is_changed) {
        index.save(records, &confinement.workspace);
    }
    search
}

/// Returns the state of the workspace: what is at protected paths, and the places of git.
fn scan(confinement: &Confinement, inspection: &Inspection) -> Baseline {
    let time = SystemTime::now();
    let Inspection { search, new, .. } = inspection;
    let workspace = &confinement.workspace;
    let mut protected: BTreeSet<PathBuf> = confinement.protected.iter().cloned().collect();
    let links = protected
        .iter()
        .flat_map(|path| paths_inside(confinement, path));
    let mut followed: BTreeMap<PathBuf, bool> = BTreeMap::new();
    for (path, is_harmless) in links {
        *followed.entry(path).or_insert(is_harmless) &= is_harmless;
    }
    let (mut places, mut stamps) = (BTreeSet::new(), BTreeMap::new());
    for path in search.order.iter().filter(|path| !new.contains(*path)) {
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
                let head = Some(path.join("HEAD"));
                protected.extend(head.filter(|head| fs::symlink_metadata(head).is_err()));
            }
        }
    }
    let home_names = confinement.home_in_workspace().map(home_names);
    protected.extend(home_names.iter().flatten().cloned());
    protected.extend(
        followed
            .iter()
            .filter(|(_, flag)| !**flag)
            .map(|(path, _)| path.clone()),
    );
    let named = followed
        .iter()
        .filter(|(_, flag)| **flag)
        .chain(&inspection.named.paths);
    // Where git directories are checked after the command, their parts are.
    let compared = stamps.keys().flat_map(|git| {
        let parts = GIT_NAMES.iter().map(|name| git.join(name));
        parts.chain([git.to_path_buf()])
    });
    let compared: BTreeSet<_> = compared.collect();
    let named = named.filter(|(path, _)| !protected.contains(*path) && !compared.contains(*path));
    let named: Vec<_> = named.map(|(path, flag)| (path.clone(), *flag)).collect();
    let mut baseline = Baseline {
        workspace: workspace.clone().into(),
        mounted: BTreeSet::new(),
        absent: BTreeMap::new(),
        links: BTreeMap::new(),
        unsafe_links: search.unsafe_links.clone(),
        git_state: state_findings(search, confinement, &BTreeSet::new()),
        places,
        stamps,
        is_complete: search.is_complete,
        home_names: home_names.map(|names| names.into_iter().map(StoredPath::from).collect()),
        time,
    };
    let is_inside = |path: &PathBuf| path != workspace && path.starts_with(workspace);
    let protected = protected.into_iter().map(|path| (path, false));
    for (path, is_harmless) in protected.chain(named).filter(|(path, _)| is_inside(path)) {
        match fs::symlink_metadata(&path) {
            Err(_) => drop(baseline.absent.insert(path.into(), is_harmless)),
            Ok(found) if found.is_symlink() => {
                let real = path.canonicalize().ok().filter(is_inside);
                baseline.mounted.extend(real.map(StoredPath::from));
                let target = fs::read_link(&path).unwrap_or_default();
                baseline.links.insert(path.into(), target.into());
            }
            Ok(found) if found.is_dir() && is_harmless => {
                baseline.absent.insert(path.into(), true);
            }
            Ok(_) => drop(baseline.mounted.insert(path.into())),
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

/// Returns whether bub's own tools must not write to a path without links: in a git directory, wherever it is and even
/// before it exists, and where a command would not keep its changes.
pub(crate) fn is_protected(confinement: &Confinement, path: &Path) -> bool {
    let workspace = &confinement.workspace;
    let Ok(inside) = path.strip_prefix(workspace) else {
        return false;
    };
    // A write must not make a repository of a directory, either.
    let is_in_repository = |directory: &Path| {
        let below = path.strip_prefix(directory).unwrap_or(path);
        is_git_directory(directory, below.iter().next().unwrap_or_default())
    };
    let mut above = path.ancestors().skip(1);
    if inside.iter().any(is_git_name)
        || above.any(|directory| directory.starts_with(workspace) && is_in_repository(directory))
    {
        return true;
    }
    let below_home = confinement.home_in_workspace();
    let below_home = below_home.and_then(|home| path.strip_prefix(home).ok());
    let is_dotfile = |path: &Path| path.as_os_str().as_encoded_bytes().starts_with(b".");
    let links = confinement.protected.iter();
    let mut links = links.flat_map(|path| paths_inside(confinement, path));
    let mut named = confinement.protected.iter();
    below_home.is_some_and(is_dotfile)
        || named.any(|root| is_below(path, root))
        || links.any(|(root, is_harmless)| !is_harmless && path.starts_with(root))
        || is_named(confinement, path)
}

/// Returns whether the configuration of git names a path, or whether that is not certain.
fn is_named(confinement: &Confinement, path: &Path) -> bool {
    let Ok(inspection) = Inspection::new(confinement) else {
        return true;
    };
    let mut named = inspection.named.paths.iter();
    named.any(|(root, is_harmless)| path == root || !is_harmless && path.starts_with(root))
}

/// Renames what is at a path, or a link on the way to it. A directory can be harmless.
fn move_unexpected(workspace: &Path, path: &Path, is_harmless: bool) -> Option<(PathBuf, String)> {
    let mut current = workspace.to_owned();
    for part in path.strip_prefix(workspace).ok()? {
        current.push(part);
        let found = fs::symlink_metadata(&current).ok()?;
        let is_end = current == path;
        if found.is_symlink() || is_end && !(is_harmless && found.is_dir()) {
            return move_aside(&current);
        }
        if !found.is_dir() {
            return None;
        }
    }
    None
}

/// Gives what is at a path another name in the same directory. Returns the path and the new name.
fn move_aside(path: &Path) -> Option<(PathBuf, String)> {
    move_to(path, "")
}

/// Does so with a name that starts with `start`.
fn move_to(path: &Path, start: &str) -> Option<(PathBuf, String)> {
    let random = RandomState::new().hash_one(path) >> 32;
    let name = path.file_name()?.to_string_lossy();
    let name = format!("{start}{name}{DISABLED_MARK}{random:08x}");
    fs::rename(path, path.with_file_name(&name)).ok()?;
    Some((path.to_owned(), name))
}
