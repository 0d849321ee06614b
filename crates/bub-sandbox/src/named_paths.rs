//! What the configuration of git names: hooks, further configuration and programs.
//!
//! Git resolves relative paths in the working tree in which it runs, and one configuration can apply to many. So a
//! relative path is protected in every known working tree. What git certainly uses must be protected completely. If that
//! is not possible, commands are refused.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ffi::OsString,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Component, Path, PathBuf},
};

use crate::{
    Confinement,
    command_words::{WordKind, command_words},
    git_config::{HOOKS_KEY, MAX_CONFIG_BYTES, WORKTREE_KEY, is_plain_entry, is_run_entry, parse},
    repositories::{
        GIT_NAMES, GitPlace, ROOT, Search, common_directory, entries, git_directory, is_git_name,
        is_sample, linked_directory, read_text,
    },
};

/// Part of the error if something that git's configuration names cannot be protected.
pub const UNPROTECTED_TEXT: &str = "cannot protect what git runs";
/// How deep included files are read, as git does.
pub(crate) const MAX_INCLUDE_DEPTH: usize = 10;
/// How many links a path may contain, as on Linux.
const MAX_LINK_COUNT: usize = 40;
/// Files of the system, of which git reads one.
const SYSTEM_CONFIGS: &[&str] = &[
    "/etc/gitconfig",
    "/usr/etc/gitconfig",
    "/usr/local/etc/gitconfig",
    "/opt/homebrew/etc/gitconfig",
];
/// Files of the user, below the home directory.
const USER_CONFIG_NAMES: &[&str] = &[".gitconfig", ".config/git/config"];
/// Configuration in a git directory.
const CONFIG_NAMES: &[&str] = &["config", "config.worktree"];
/// Keys whose value is a directory from which git takes hooks.
const DIRECTORY_KEYS: &[&str] = &[HOOKS_KEY, "templatedir"];
/// Sections in which a value can be the path of another repository.
const REPOSITORY_SECTIONS: &[&str] = &["branch", "remote", "submodule"];

/// Keys there whose values are addresses.
const ADDRESS_KEYS: &[&str] = &["pushurl", "url"];
/// Keys there whose values are names in a repository.
const REFERENCE_KEYS: &[&str] = &["fetch", "merge"];

/// What git uses in the workspace because its configuration names it.
#[derive(Debug, Default)]
pub(crate) struct NamedPaths {
    /// Paths in the workspace. They may not exist yet. The flag is whether a directory there is harmless.
    pub(crate) paths: BTreeMap<PathBuf, bool>,
    /// Why git runs files of a new working tree, by git directory. The empty path stands for all.
    pub(crate) tree_programs: BTreeMap<PathBuf, String>,
}

impl NamedPaths {
    /// Returns what the repositories in and around the workspace name, except those in `new`, and the user and the system.
    ///
    /// # Errors
    ///
    /// Fails if a command could change what one of the paths leads to.
    pub(crate) fn find(
        search: &Search,
        new: &BTreeSet<PathBuf>,
        confinement: &Confinement,
    ) -> io::Result<Self> {
        let mut names = Names::of_user(confinement);
        for tree in confinement.workspace.ancestors().skip(1) {
            if let Some(git) = git_directory(tree) {
                names.add_tree(Some(tree));
                names.add_repository(&git);
            }
        }
        for (path, place) in search
            .places
            .iter()
            .filter(|(path, _)| !new.contains(*path))
        {
            match place {
                GitPlace::Link => {
                    names.add_tree(path.parent());
                    if !path.is_symlink() {
                        names.add_file(path, NameKind::Config);
                    }
                    if let Some(git) = linked_directory(path) {
                        names.add_repository(&git);
                    }
                }
                GitPlace::Directory => names.add_git_directory(path),
            }
        }
        names.resolve()
    }

    /// Returns why git runs files of a working tree that uses a git directory.
    pub(crate) fn tree_program(&self, git: &Path) -> Option<&String> {
        let mut scopes = [PathBuf::new(), git.to_owned(), common_directory(git)].into_iter();
        scopes.find_map(|scope| self.tree_programs.get(&scope))
    }
}

/// What a path is for git.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NameKind {
    /// A word in a value.
    Word(WordKind),
    /// A repository, which is protected where it is.
    Repository,
    /// A file with configuration.
    Config,
    /// A directory from which git takes hooks.
    Hooks,
    /// The root of a working tree.
    Tree,
}

impl NameKind {
    /// Returns whether git certainly uses the path.
    fn is_required(self) -> bool {
        !matches!(
            self,
            Self::Repository | Self::Word(WordKind::Word | WordKind::Argument)
        )
    }
}

/// Where a path is named: a configuration, and the key and value in it. Without a key, the file itself is meant.
#[derive(Clone, Debug)]
struct NameOrigin {
    config: PathBuf,
    key: String,
    value: String,
}

impl NameOrigin {
    fn of_file(path: &Path) -> Self {
        Self {
            config: path.to_owned(),
            key: String::new(),
            value: String::new(),
        }
    }
}

/// A path in a configuration.
struct Name {
    /// Relative to `base`, or to each working tree, unless it is absolute.
    path: PathBuf,
    base: Option<PathBuf>,
    kind: NameKind,
    origin: NameOrigin,
}

/// What configurations name, before the paths are resolved.
struct Names<'a> {
    confinement: &'a Confinement,
    /// Configurations that were read.
    configs: BTreeSet<PathBuf>,
    /// The git directory whose configuration is being read. Empty for that of the user and the system.
    scope: PathBuf,
    /// Working trees, and git directories, in which git runs, too.
    trees: BTreeSet<PathBuf>,
    waiting: Vec<Name>,
    found: NamedPaths,
}

impl<'a> Names<'a> {
    /// Reads the configuration of the system and of the user.
    fn of_user(confinement: &'a Confinement) -> Self {
        let mut names = Self {
            confinement,
            configs: BTreeSet::new(),
            scope: PathBuf::new(),
            trees: BTreeSet::new(),
            waiting: Vec::new(),
            found: NamedPaths::default(),
        };
        let home = confinement.home.iter();
        let user = home.flat_map(|home| USER_CONFIG_NAMES.iter().map(|name| home.join(name)));
        let configs = SYSTEM_CONFIGS.iter().map(PathBuf::from).chain(user);
        for config in configs.chain(confinement.git_configs.iter().cloned()) {
            names.add_file(&config, NameKind::Config);
            names.read(&config, 0);
        }
        names
    }

    /// Reads the configuration of a git directory, and of the repository if it is that of a working tree.
    fn add_repository(&mut self, git: &Path) {
        self.add_git_directory(git);
        self.add_git_directory(&common_directory(git));
    }

    fn add_tree(&mut self, tree: Option<&Path>) {
        self.trees.extend(tree.map(Path::to_owned));
    }

    fn add_git_directory(&mut self, git: &Path) {
        if git.file_name().is_some_and(is_git_name) {
            self.add_tree(git.parent());
        }
        self.add_tree(Some(git));
        git.clone_into(&mut self.scope);
        for name in GIT_NAMES {
            let kind = if *name == "hooks" {
                NameKind::Hooks
            } else {
                NameKind::Config
            };
            self.add_file(&git.join(name), kind);
        }
        for name in CONFIG_NAMES {
            self.read(&git.join(name), 0);
        }
    }

    fn add_file(&mut self, path: &Path, kind: NameKind) {
        self.add(&NameOrigin::of_file(path), path.to_owned(), kind);
    }

    fn add(&mut self, origin: &NameOrigin, path: PathBuf, kind: NameKind) {
        // Git resolves these in the directory of the configuration.
        let has_base = matches!(kind, NameKind::Config | NameKind::Tree);
        let base = origin.config.parent().filter(|_| has_base);
        let base = base.map(|base| PathWalk::new(ROOT.as_ref(), base, self.confinement).real);
        if path.is_relative() && kind.is_required() && base.is_none() {
            let (key, config) = (&origin.key, origin.config.display());
            let text = format!("`{key}` in `{config}` is relative to the working tree");
            let programs = &mut self.found.tree_programs;
            programs.entry(self.scope.clone()).or_insert(text);
        }
        self.waiting.push(Name {
            path,
            base,
            kind,
            origin: origin.clone(),
        });
    }

    fn read(&mut self, config: &Path, depth: usize) {
        if depth > MAX_INCLUDE_DEPTH || !self.configs.insert(config.to_owned()) {
            return;
        }
        let directory = config.parent().unwrap_or(config);
        for (section, name, value) in parse(&read_text(config)) {
            let origin = NameOrigin {
                config: config.to_owned(),
                key: format!("{section}.{name}"),
                value: value.clone(),
            };
            let is_path = |keys: &[&str]| keys.contains(&name.as_str()) && !value.is_empty();
            if section == "core" && name == WORKTREE_KEY {
                let tree = PathWalk::new(directory, Path::new(&value), self.confinement);
                self.add_tree(Some(&tree.real));
                self.add(&origin, (&value).into(), NameKind::Tree);
            } else if section.starts_with("include") && is_path(&["path"]) {
                let path = expand_home(&value, self.confinement);
                self.read(&directory.join(&path), depth + 1);
                self.add(&origin, path, NameKind::Config);
            } else if is_path(DIRECTORY_KEYS) {
                let path = expand_home(&value, self.confinement);
                // Husky has the hooks beside the directory that git knows.
                let husky = path.parent().filter(|_| path.ends_with(".husky/_"));
                if let Some(husky) = husky {
                    self.add(&origin, husky.to_owned(), NameKind::Hooks);
                }
                self.add(&origin, path, NameKind::Hooks);
            } else {
                self.add_words(&origin, &section, &name);
            }
        }
    }

    fn add_words(&mut self, origin: &NameOrigin, section: &str, key: &str) {
        let value = &origin.value;
        let is_run = is_run_entry(section, key, value);
        // Other values without a slash are the names of remotes.
        let is_address = !is_run
            && REPOSITORY_SECTIONS.contains(&section)
            && (value.contains('/') || ADDRESS_KEYS.contains(&key));
        let address = local_repository(key, value).filter(|_| is_address);
        if let Some(path) = address {
            self.add(origin, path.into(), NameKind::Repository);
        }
        if is_plain_entry(section, key, value) {
            return;
        }
        for (word, kind) in command_words(value, self.confinement.home.as_deref()) {
            let kind = if is_run {
                kind
            } else {
                kind.min(WordKind::Argument)
            };
            let path = expand_home(&word, self.confinement);
            self.add(origin, path, NameKind::Word(kind));
        }
    }

    /// Finds the named paths in the workspace.
    fn resolve(mut self) -> io::Result<NamedPaths> {
        for name in std::mem::take(&mut self.waiting) {
            let bases = match &name.base {
                _ if name.path.is_absolute() => BTreeSet::from([PathBuf::from("/")]),
                Some(base) => BTreeSet::from([base.clone()]),
                None => self.trees.clone(),
            };
            for base in bases {
                let walk = PathWalk::new(&base, &name.path, self.confinement);
                self.resolve_name(&name, walk)?;
            }
        }
        let workspace = &self.confinement.workspace;
        let is_inside = |path: &PathBuf| path != workspace && path.starts_with(workspace);
        self.found.paths.retain(|path, _| is_inside(path));
        Ok(self.found)
    }

    fn resolve_name(&mut self, name: &Name, walk: PathWalk) -> io::Result<()> {
        let Name { kind, .. } = name;
        let obstacle = walk.obstacle.or_else(|| self.obstacle(name, &walk.real));
        if let Some(obstacle) = obstacle.filter(|_| kind.is_required()) {
            return Err(unprotected_error(&name.origin, &walk.real, obstacle));
        }
        let is_directory = walk.real.is_dir();
        let is_harmless = match kind {
            NameKind::Tree => return Ok(()),
            NameKind::Word(WordKind::Word) if !walk.real.is_file() => return Ok(()),
            NameKind::Word(_) | NameKind::Config => is_directory,
            NameKind::Repository => true,
            NameKind::Hooks => false,
        };
        if *kind == NameKind::Hooks {
            for hook in entries(&walk.real) {
                let target = fs::read_link(&hook).ok();
                // A link in a read-only directory cannot be changed. What it leads to can be.
                let walk = match &target {
                    Some(target) => PathWalk::new(&walk.real, target, self.confinement),
                    None if is_sample(&hook) => continue,
                    None => PathWalk::at(hook),
                };
                let hook = Name {
                    path: walk.real.clone(),
                    base: None,
                    kind: NameKind::Word(WordKind::Program),
                    origin: name.origin.clone(),
                };
                if target.is_some() {
                    self.resolve_name(&hook, walk)?;
                } else if let Some(obstacle) = self.obstacle(&hook, &walk.real) {
                    return Err(unprotected_error(&hook.origin, &walk.real, obstacle));
                }
            }
        }
        let links = walk.links.into_iter().map(|link| (link, false));
        for (path, is_harmless) in links.chain([(walk.real, is_harmless)]) {
            let known = self.found.paths.entry(path).or_insert(is_harmless);
            *known &= is_harmless;
        }
        Ok(())
    }

    /// Returns why a path without links cannot be protected.
    fn obstacle(&self, name: &Name, real: &Path) -> Option<&'static str> {
        let workspace = &self.confinement.workspace;
        let text = name.path.to_string_lossy();
        let is_reachable = is_writable(self.confinement, real);
        let found = fs::symlink_metadata(real).ok().filter(|_| is_reachable);
        let mut other = self.confinement.other_writable();
        if text.contains(char::REPLACEMENT_CHARACTER) || is_reachable && real.to_str().is_none() {
            Some("is not valid UTF-8")
        } else if ["~", "%(", ":("]
            .iter()
            .any(|start| text.starts_with(start))
        {
            Some("has a form that only git resolves")
        } else if found
            .as_ref()
            .is_some_and(|found| found.is_file() && found.nlink() > 1)
        {
            Some("has other hard links")
        } else if name.kind == NameKind::Config
            && fs::metadata(real).is_ok_and(|found| found.len() > MAX_CONFIG_BYTES)
        {
            Some("is larger than 1 MiB")
        } else if !real.starts_with(workspace) && other.any(|root| real.starts_with(root)) {
            Some("is in another directory that commands can change")
        } else {
            None
        }
    }
}

/// Returns the path in a value of git's configuration, which may be below the home directory.
pub(crate) fn expand_home(value: &str, confinement: &Confinement) -> PathBuf {
    let below_home = value.strip_prefix("~/").zip(confinement.home.as_ref());
    below_home.map_or_else(|| value.into(), |(below, home)| home.join(below))
}

/// Returns the path in the address of a repository, if it is on this machine. The value of `key` may be one.
pub(crate) fn local_repository<'a>(key: &str, address: &'a str) -> Option<&'a str> {
    // Git ignores the host of a file.
    let below_host = |rest: &'a str| rest.find('/').and_then(|start| rest.get(start..));
    let path = address.strip_prefix("file://").and_then(below_host);
    let path = path.unwrap_or(address);
    let host = path.split('/').next().unwrap_or_default();
    (!host.contains(':') && !REFERENCE_KEYS.contains(&key)).then_some(path)
}

fn unprotected_error(origin: &NameOrigin, path: &Path, obstacle: &str) -> io::Error {
    let (config, path) = (origin.config.display(), path.display());
    let (source, advice) = if origin.key.is_empty() {
        let advice = "replace it with a regular file or directory";
        (format!("`{config}`"), advice)
    } else {
        let value = origin.value.escape_debug();
        let source = format!("`{} = {value}` in `{config}`", origin.key);
        (source, "use an absolute path outside the workspace")
    };
    io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!(
            "{UNPROTECTED_TEXT}: {source}: `{path}` {obstacle}; {advice}, or run the command outside the sandbox"
        ),
    )
}

/// Returns whether commands can change what a path leads to, because it is below a directory that they can write to.
fn is_writable(confinement: &Confinement, path: &Path) -> bool {
    let other = confinement.other_writable();
    let mut roots = other.chain([&confinement.workspace]);
    roots.any(|root| path != root && path.starts_with(root))
}

/// Where a path leads. It may not exist.
#[derive(Debug)]
pub(crate) struct PathWalk {
    pub(crate) links: Vec<PathBuf>,
    /// Directories that the path leaves by `..`.
    pub(crate) left: Vec<PathBuf>,
    pub(crate) real: PathBuf,
    /// Whether the path leads elsewhere for another process.
    depends_on_process: bool,
    /// Why a command could make the path lead elsewhere.
    obstacle: Option<&'static str>,
}

/// Directories whose content is different for each process.
const PROCESS_ROOTS: &[&str] = &["/dev/fd", "/proc"];

impl PathWalk {
    fn at(real: PathBuf) -> Self {
        Self {
            links: Vec::new(),
            left: Vec::new(),
            real,
            depends_on_process: false,
            obstacle: None,
        }
    }

    /// Resolves a path from `base`, a directory without links.
    pub(crate) fn new(base: &Path, path: &Path, confinement: &Confinement) -> Self {
        Self::in_root(ROOT.as_ref(), base, path, confinement, |_| false)
    }

    /// Resolves a path from `base`, a directory without links, for a process whose root directory is `root`. Does not check
    /// paths that are certainly directories.
    pub(crate) fn in_root(
        root: &Path,
        base: &Path,
        path: &Path,
        confinement: &Confinement,
        is_directory: impl Fn(&Path) -> bool,
    ) -> Self {
        let parts = |path: &Path| -> VecDeque<OsString> {
            path.components()
                .map(|part| part.as_os_str().to_owned())
                .collect()
        };
        let mut walk = Self::at(base.to_owned());
        let mut rest = parts(path);
        while let Some(part) = rest.pop_front() {
            match Path::new(&part).components().next() {
                Some(Component::ParentDir) => {
                    if is_writable(confinement, &walk.real) && !base.starts_with(&walk.real) {
                        walk.obstacle.get_or_insert("is reached through `..`");
                    }
                    walk.left.push(walk.real.clone());
                    walk.real.pop();
                    continue;
                }
                Some(Component::CurDir) | None => continue,
                Some(part) => walk.real.push(part),
            }
            if is_directory(&walk.real) {
                continue;
            }
            let mut process_roots = PROCESS_ROOTS.iter();
            walk.depends_on_process |= process_roots.any(|root| walk.real.starts_with(root));
            let below_root = walk.real.strip_prefix(ROOT).unwrap_or(&walk.real);
            let Ok(target) = fs::read_link(root.join(below_root)) else {
                continue;
            };
            if is_writable(confinement, &walk.real) || walk.links.len() >= MAX_LINK_COUNT {
                walk.obstacle
                    .get_or_insert("is reached through a symbolic link");
            }
            if walk.links.len() >= MAX_LINK_COUNT {
                break;
            }
            walk.links.push(walk.real.clone());
            walk.real.pop();
            let mut target = parts(&target);
            target.append(&mut rest);
            rest = target;
        }
        walk
    }

    /// Returns whether the path leads to `directory` or below it for every process.
    pub(crate) fn is_always_below(&self, directory: &Path) -> bool {
        !self.depends_on_process && self.real.starts_with(directory)
    }

    /// Returns whether the path leads to where no search finds a repository of a command.
    pub(crate) fn is_unchecked(&self, confinement: &Confinement) -> bool {
        let mut private = confinement.hidden.iter().chain(confinement.private_temp());
        self.depends_on_process
            || private
                .any(|root| self.real.starts_with(root) && !confinement.workspace.starts_with(root))
    }
}
