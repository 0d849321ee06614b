//! Paths in the workspace whose content decides what programs outside the sandbox do: git runs hooks and commands of its
//! configuration, bub and other agents read instructions and variables.
//!
//! Existing paths become read-only while a command runs. Paths that do not exist, and links, cannot be protected in this
//! way. [`WorkspaceRecord`] records them before the command. After it, what the command put there gets another name.

use std::{
    collections::BTreeSet,
    fs,
    hash::{BuildHasher, RandomState},
    io::{Read, Write},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use crate::{Confinement, path_access::is_below};

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
/// Protected names in the directory `.git` of a repository. The directory itself stays writable.
const GIT_NAMES: &[&str] = &[
    "commondir",
    "config",
    "config.worktree",
    "hooks",
    "info/attributes",
    "modules",
];
/// Names of a home directory that is the workspace, which programs read at their start. Others that start with a period
/// are protected if they exist.
const HOME_NAMES: &[&str] = &[
    ".bash_profile",
    ".bashrc",
    ".config",
    ".gitconfig",
    ".local",
    ".profile",
    ".ssh",
    ".zprofile",
    ".zshenv",
    ".zshrc",
];
/// Directories in which tools store what they generate. They are not searched for repositories.
const GENERATED_NAMES: &[&str] = &[".git", ".venv", "node_modules", "target", "venv"];
/// How many directories are searched for repositories.
const MAX_SEARCHED_COUNT: usize = 512;
/// How many names of a directory are searched.
const MAX_ENTRY_COUNT: usize = 4096;
/// How many levels below the workspace are searched for repositories.
const MAX_SEARCHED_DEPTH: usize = 4;
/// Maximum bytes of a configuration of git.
const MAX_CONFIG_BYTES: u64 = 64 * 1024;
/// Keys of a repository's configuration that run no program.
const PLAIN_CONFIG_KEYS: &[(&str, &[&str])] = &[
    (
        "core",
        &[
            "bare",
            "filemode",
            "ignorecase",
            "logallrefupdates",
            "precomposeunicode",
            "repositoryformatversion",
            "symlinks",
        ],
    ),
    ("branch", &["merge", "rebase", "remote"]),
    ("remote", &["fetch", "url"]),
    ("user", &["email", "name"]),
];

/// What was at a protected path before the command.
enum Before {
    Nothing,
    Link(PathBuf),
}

/// Protected paths that cannot be made read-only, and the repositories, before a command.
pub(crate) struct WorkspaceRecord {
    workspace: PathBuf,
    paths: Vec<(PathBuf, Before)>,
    repositories: BTreeSet<PathBuf>,
    can_write: bool,
}

impl WorkspaceRecord {
    /// Completes the protected paths of a confinement with those that depend on the content of the workspace, and makes
    /// the repository that contains the workspace readable.
    pub(crate) fn new(confinement: &mut Confinement) -> Self {
        let workspace = confinement.workspace.clone();
        let home = confinement.home.clone();
        confinement
            .readable
            .extend(git_directory_outside(&workspace, home.as_deref()));
        // What a link leads to is hidden, too.
        let hidden = confinement.hidden.iter();
        let hidden: Vec<_> = hidden.flat_map(|path| path.canonicalize()).collect();
        confinement.hidden.extend(hidden);
        let repositories = find_repositories(&workspace);
        let mut protected: BTreeSet<PathBuf> = confinement.protected.drain(..).collect();
        protected.insert(workspace.join(".git"));
        let roots = repositories.iter().chain([&workspace]);
        for root in roots {
            let names = GIT_NAMES.iter().map(|name| root.join(".git").join(name));
            protected.extend(names);
            protected.extend(configured_paths(&root.join(".git/config"), root));
        }
        if let Some(home) = &home {
            protected.extend(configured_paths(&home.join(".gitconfig"), &workspace));
        }
        if home.as_ref() == Some(&workspace) {
            protected.extend(HOME_NAMES.iter().map(|name| workspace.join(name)));
            let names = entries(&workspace).filter(|path| {
                let name = path.file_name().unwrap_or_default();
                name.as_encoded_bytes().starts_with(b".") && name != ".git"
            });
            protected.extend(names);
        }
        let mut paths = Vec::new();
        for path in &protected {
            match fs::symlink_metadata(path) {
                Err(_) => paths.push((path.clone(), Before::Nothing)),
                Ok(found) if found.is_symlink() => {
                    let target = fs::read_link(path).unwrap_or_default();
                    paths.push((path.clone(), Before::Link(target)));
                    confinement.protected.extend(path.canonicalize());
                }
                // Git writes to it. Its parts are protected.
                Ok(found) if found.is_dir() && path.ends_with(".git") => {}
                Ok(_) => confinement.protected.push(path.clone()),
            }
        }
        let is_inside = |path: &PathBuf| path != &workspace && path.starts_with(&workspace);
        confinement.protected.retain(is_inside);
        Self {
            can_write: confinement.can_write,
            workspace,
            paths,
            repositories,
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
        // A repository that the command created is new with all its parts.
        let is_new = |path: &Path| {
            let mut above = path.ancestors();
            let git = above.find(|path| path.ends_with(".git"));
            git.and_then(Path::parent)
                .is_some_and(|root| !self.repositories.contains(root))
        };
        for (path, before) in &self.paths {
            let now = fs::symlink_metadata(path);
            match (before, now) {
                (Before::Nothing, Ok(_)) if !is_new(path) => moved.extend(move_aside(path)),
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
        let now = find_repositories(&self.workspace);
        for root in now.difference(&self.repositories) {
            let suspicious = suspicious_paths(root, &self.workspace);
            moved.extend(suspicious.iter().filter_map(|path| move_aside(path)));
        }
        for (path, name) in moved {
            let path = path.strip_prefix(&self.workspace).unwrap_or(&path);
            let _ = writeln!(
                output,
                "bub: the sandbox renamed `{}` to `{name}`: commands cannot create it",
                path.display()
            );
        }
    }
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
    let is_git = |part: &Path| part.as_os_str().eq_ignore_ascii_case(".git");
    let mut rest = inside.iter().map(Path::new);
    if rest.any(is_git) {
        let rest: PathBuf = rest.collect();
        let mut names = GIT_NAMES.iter().map(Path::new);
        return rest.as_os_str().is_empty() || names.any(|name| is_below(&rest, name));
    }
    let is_workspace_home = home.as_ref() == Some(workspace);
    let config = configured_paths(&workspace.join(".git/config"), workspace).into_iter();
    let user_config = home.iter().map(|home| home.join(".gitconfig"));
    let user_config = user_config.flat_map(|config| configured_paths(&config, workspace));
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

/// Returns the directories at or below `workspace` that are repositories. The search has limits.
fn find_repositories(workspace: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut level = vec![workspace.to_owned()];
    let mut searched = 0;
    for _ in 0..=MAX_SEARCHED_DEPTH {
        let mut next = Vec::new();
        for directory in &level {
            searched += 1;
            if searched > MAX_SEARCHED_COUNT {
                return found;
            }
            let entries = fs::read_dir(directory).into_iter().flatten().flatten();
            for entry in entries.take(MAX_ENTRY_COUNT) {
                let name = entry.file_name();
                if name == ".git" {
                    found.insert(directory.clone());
                }
                let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
                if is_directory && !GENERATED_NAMES.iter().any(|generated| name == *generated) {
                    next.push(entry.path());
                }
            }
        }
        level = next;
    }
    found
}

fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

/// Returns the beginning of a small text file, or an empty text.
fn read_text(path: &Path) -> String {
    let mut text = String::new();
    // Opening a pipe would wait for a writer.
    if path.is_file() {
        let file = fs::File::open(path).map(|file| file.take(MAX_CONFIG_BYTES));
        let read = file.and_then(|mut file| file.read_to_string(&mut text));
        if read.is_err() {
            text.clear();
        }
    }
    text
}

/// Returns the paths that a configuration of git names as its hooks or as further configuration.
fn configured_paths(config: &Path, root: &Path) -> Vec<PathBuf> {
    let text = read_text(config);
    let directory = config.parent().unwrap_or(root);
    let path = |line: &str| {
        let (key, value) = line.split_once('=')?;
        let value = value.trim().trim_matches('"');
        // A section may be on the same line.
        let key = key.rsplit(']').next().unwrap_or(key).trim();
        let base = match key.to_ascii_lowercase().as_str() {
            "hookspath" => root,
            "path" => directory,
            _ => return None,
        };
        base.join(value).canonicalize().ok()
    };
    text.lines().filter_map(path).collect()
}

/// Returns the parts of a repository that a command created which would run programs of the command.
fn suspicious_paths(root: &Path, workspace: &Path) -> Vec<PathBuf> {
    let git = root.join(".git");
    let Ok(found) = fs::symlink_metadata(&git) else {
        return Vec::new();
    };
    if !found.is_dir() {
        // The working tree of a repository whose configuration is protected.
        let directory = linked_directory(&git);
        let parent = workspace.join(".git/worktrees");
        let is_worktree = !found.is_symlink() && directory.is_some_and(|d| d.starts_with(parent));
        return if is_worktree { Vec::new() } else { vec![git] };
    }
    let mut paths = vec![git.join("commondir"), git.join("config.worktree")];
    let config = git.join("config");
    let is_plain_file = fs::symlink_metadata(&config).is_ok_and(|found| found.is_file());
    if !is_plain_file || !is_plain_config(&config) {
        paths.push(config);
    }
    let hooks = git.join("hooks");
    let is_sample = |path: PathBuf| path.extension().is_some_and(|kind| kind == "sample");
    if hooks.is_symlink() || !entries(&hooks).all(is_sample) {
        paths.push(hooks);
    }
    paths.retain(|path| fs::symlink_metadata(path).is_ok());
    paths
}

/// Returns whether a configuration of git contains only keys that run no program, in the form in which git writes them.
fn is_plain_config(path: &Path) -> bool {
    let is_small = path
        .metadata()
        .is_ok_and(|found| found.len() < MAX_CONFIG_BYTES);
    let Ok(text) = fs::read_to_string(path) else {
        return false;
    };
    let mut keys: &[&str] = &[];
    is_small
        && text.lines().map(str::trim).all(|line| {
            if let Some(section) = line.strip_prefix('[') {
                let name = section.strip_suffix(']').unwrap_or_default();
                let (name, rest) = name.split_once(' ').unwrap_or((name, "\"\""));
                let known = PLAIN_CONFIG_KEYS.iter().find(|(known, _)| *known == name);
                keys = known.map_or(&[], |(_, keys)| keys);
                let inner = rest
                    .strip_prefix('"')
                    .and_then(|rest| rest.strip_suffix('"'));
                let is_plain = |text: &str| !text.contains(['"', '\\', ']', '[', '#', ';']);
                return known.is_some() && inner.is_some_and(is_plain);
            }
            let Some((key, value)) = line.split_once('=') else {
                return line.is_empty();
            };
            keys.contains(&key.trim()) && !value.contains(['"', '\\', '#', ';'])
        })
}

/// Returns the directory that a file `.git` names.
fn linked_directory(file: &Path) -> Option<PathBuf> {
    let text = read_text(file);
    let path = text.strip_prefix("gitdir:")?.trim();
    file.parent()?.join(path).canonicalize().ok()
}

/// Returns the directory with the data of the repository that contains the workspace, if it is outside. Git needs to read
/// it in a subdirectory of a repository, and in a working tree that `git worktree` added.
fn git_directory_outside(workspace: &Path, home: Option<&Path>) -> Option<PathBuf> {
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
