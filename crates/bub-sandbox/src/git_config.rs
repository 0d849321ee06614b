//! What the configuration of git names in the workspace: hooks, further configuration and programs.
//!
//! Git resolves relative paths in the working tree in which it runs, and one configuration can apply to many. So a
//! relative path is protected in every known working tree.

use std::{
    collections::{BTreeSet, VecDeque},
    ffi::OsString,
    fs,
    iter::Peekable,
    path::{Component, Path, PathBuf},
    str::Chars,
};

use crate::repositories::{
    GitPlace, PLAIN_CONFIG_KEYS, Search, WORKTREE_KEY, entries, is_git_name, linked_directory,
    names_helper, read_text,
};

/// How deep included files are read, as git does.
const MAX_INCLUDE_DEPTH: usize = 10;
/// How many links a path may contain, as on Linux.
const MAX_LINK_COUNT: usize = 40;
/// Files of the system and of the user, below the root and the home directory.
const SYSTEM_CONFIG: &str = "/etc/gitconfig";
const USER_CONFIG_NAMES: &[&str] = &[".gitconfig", ".config/git/config"];
/// Configuration in a git directory.
const CONFIG_NAMES: &[&str] = &["config", "config.worktree"];
/// Keys whose value is a directory from which git takes hooks.
const DIRECTORY_KEYS: &[&str] = &["hookspath", "templatedir"];
/// Characters that separate words in a command line, and some before or after a path.
const SEPARATORS: &str = "'\"\\;&|()=!`$<>,";

/// Returns the paths in the workspace that git takes hooks or configuration from, or may run. They may not exist yet.
pub(crate) fn named_paths(
    search: &Search,
    workspace: &Path,
    home: Option<&Path>,
) -> BTreeSet<PathBuf> {
    let mut names = Names::new(workspace, home);
    for (path, place) in &search.places {
        match place {
            GitPlace::Link => names.add_tree(path.parent()),
            GitPlace::Directory => names.add_git_directory(path),
        }
    }
    names.resolve(workspace)
}

/// Returns those of [`named_paths`] that the repositories around `path` name.
pub(crate) fn named_paths_around(
    path: &Path,
    workspace: &Path,
    home: Option<&Path>,
) -> BTreeSet<PathBuf> {
    Names::new(path, home).resolve(workspace)
}

/// What a path is for git.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum NameKind {
    /// A word in a value.
    Word,
    /// A directory from which git takes hooks.
    Directory,
    /// The hooks of a git directory, which are protected with it. What links there lead to is not.
    Hooks,
}

/// What configurations name, before the paths are resolved.
struct Names<'a> {
    home: Option<&'a Path>,
    /// Configurations that were read.
    configs: BTreeSet<PathBuf>,
    /// Working trees, and git directories, in which git runs, too.
    trees: BTreeSet<PathBuf>,
    paths: BTreeSet<(PathBuf, NameKind)>,
}

impl<'a> Names<'a> {
    /// Reads the configuration of the system, of the user, and of all repositories that contain `path`.
    fn new(path: &Path, home: Option<&'a Path>) -> Self {
        let mut names = Self {
            home,
            configs: BTreeSet::new(),
            trees: BTreeSet::new(),
            paths: BTreeSet::new(),
        };
        let user = home.into_iter();
        let user = user.flat_map(|home| USER_CONFIG_NAMES.iter().map(|name| home.join(name)));
        for config in user.chain([PathBuf::from(SYSTEM_CONFIG)]) {
            names.read(&config, 0);
        }
        for tree in path.ancestors() {
            let git = tree.join(".git");
            let linked = git.is_file().then(|| linked_directory(&git)).flatten();
            if let Some(git) = linked.or_else(|| git.is_dir().then_some(git)) {
                names.add_tree(Some(tree));
                let common = git.join(read_text(&git.join("commondir")).trim());
                names.add_git_directory(&git);
                names.add_git_directory(&common.canonicalize().unwrap_or(common));
            }
        }
        names
    }

    fn add_tree(&mut self, tree: Option<&Path>) {
        self.trees.extend(tree.map(Path::to_owned));
    }

    fn add_git_directory(&mut self, git: &Path) {
        if git.file_name().is_some_and(is_git_name) {
            self.add_tree(git.parent());
        }
        self.add_tree(Some(git));
        for worktree in entries(&git.join("worktrees")) {
            let link = PathBuf::from(read_text(&worktree.join("gitdir")).trim());
            self.add_tree(worktree.join(link).parent());
        }
        for name in CONFIG_NAMES {
            self.read(&git.join(name), 0);
        }
        self.paths.insert((git.join("hooks"), NameKind::Hooks));
    }

    fn read(&mut self, config: &Path, depth: usize) {
        if depth > MAX_INCLUDE_DEPTH || !self.configs.insert(config.to_owned()) {
            return;
        }
        let directory = config.parent().unwrap_or(config);
        for (section, key, value) in parse(&read_text(config)) {
            let is_plain = PLAIN_CONFIG_KEYS
                .iter()
                .any(|(name, keys)| *name == section && keys.contains(&key.as_str()));
            if section == "core" && key == WORKTREE_KEY {
                self.trees.insert(directory.join(value));
            } else if section.starts_with("include") && key == "path" {
                let path = directory.join(self.expand(&value));
                self.read(&path, depth + 1);
                self.paths.insert((path, NameKind::Word));
            } else if DIRECTORY_KEYS.contains(&key.as_str()) {
                self.paths
                    .insert((self.expand(&value), NameKind::Directory));
            } else if !is_plain || names_helper(&value) {
                let quoted = value.split(['\'', '"']).map(str::trim);
                let is_separator = |c: char| c.is_whitespace() || SEPARATORS.contains(c);
                let words = value.split(is_separator).chain(quoted);
                let words = words.filter_map(|word| word.rsplit("::").next());
                let words = words.filter(|word| !word.is_empty());
                let words: Vec<_> = words
                    .map(|word| (self.expand(word), NameKind::Word))
                    .collect();
                self.paths.extend(words);
            }
        }
    }

    fn expand(&self, value: &str) -> PathBuf {
        let below_home = value.strip_prefix("~/").zip(self.home);
        below_home.map_or_else(|| value.into(), |(below, home)| home.join(below))
    }

    /// Returns the named paths in the workspace, and the links that lead to them.
    fn resolve(self, workspace: &Path) -> BTreeSet<PathBuf> {
        let mut found = BTreeSet::new();
        for (name, kind) in &self.paths {
            let is_absolute = name.is_absolute();
            let bases = self.trees.iter().filter(|_| !is_absolute);
            let bases = bases.map(PathBuf::as_path);
            for base in bases.chain(is_absolute.then_some(Path::new("/"))) {
                let (links, real) = follow_links(&base.join(name));
                // A word without a slash is a program in `PATH`, or an argument, unless there is such a file. A command
                // may work in a directory that is an argument.
                let is_path = name.components().count() > 1 && !real.is_dir();
                if *kind == NameKind::Word && !is_path && !real.is_file() {
                    continue;
                }
                if *kind != NameKind::Word {
                    let hooks = entries(&real).filter(|hook| hook.is_symlink());
                    found.extend(hooks.map(|hook| follow_links(&hook).1));
                }
                if *kind != NameKind::Hooks {
                    found.extend(links);
                    // Husky has the hooks beside the directory that git knows.
                    let husky = real.parent().filter(|_| real.ends_with(".husky/_"));
                    found.extend(husky.map(Path::to_owned));
                    found.insert(real);
                }
            }
        }
        found.retain(|path| path != workspace && path.starts_with(workspace));
        found
    }
}

/// Returns the links in an absolute path, and where it leads. It may not exist.
fn follow_links(path: &Path) -> (Vec<PathBuf>, PathBuf) {
    let parts = |path: &Path| -> VecDeque<OsString> {
        path.components()
            .map(|part| part.as_os_str().to_owned())
            .collect()
    };
    let (mut links, mut real, mut rest) = (Vec::new(), PathBuf::new(), parts(path));
    while let Some(part) = rest.pop_front() {
        match Path::new(&part).components().next() {
            Some(Component::ParentDir) => drop(real.pop()),
            Some(Component::CurDir) | None => {}
            Some(part) => real.push(part),
        }
        if links.len() < MAX_LINK_COUNT
            && let Ok(target) = fs::read_link(&real)
        {
            links.push(real.clone());
            real.pop();
            let mut target = parts(&target);
            target.append(&mut rest);
            rest = target;
        }
    }
    (links, real)
}

/// Parses a configuration of git: section without its subsection, key and value. Section and key are in lower case.
fn parse(text: &str) -> Vec<(String, String, String)> {
    let mut entries = Vec::new();
    let mut section = String::new();
    let mut rest = text.trim_start_matches('\u{feff}').chars().peekable();
    while let Some(first) = rest.next() {
        match first {
            '[' => section = parse_section(&mut rest),
            '#' | ';' => drop(rest.by_ref().find(|c| *c == '\n')),
            first if first.is_ascii_alphanumeric() => {
                let mut key = String::from(first.to_ascii_lowercase());
                let is_key = |c: &char| c.is_ascii_alphanumeric() || *c == '-';
                while let Some(next) = rest.next_if(is_key) {
                    key.push(next.to_ascii_lowercase());
                }
                while rest.next_if(|c| matches!(c, ' ' | '\t')).is_some() {}
                let has_value = rest.next_if_eq(&'=').is_some();
                let value = has_value.then(|| parse_value(&mut rest));
                entries.push((section.clone(), key, value.unwrap_or_default()));
            }
            _ => {}
        }
    }
    entries
}

/// Parses the rest of a section's header. The name ends at a period or a blank; the subsection may contain brackets.
fn parse_section(rest: &mut Peekable<Chars<'_>>) -> String {
    let mut name = String::new();
    let (mut is_name, mut is_quoted) = (true, false);
    while let Some(next) = rest.next() {
        match next {
            '\\' if is_quoted => drop(rest.next()),
            '"' => is_quoted = !is_quoted,
            ']' if !is_quoted => break,
            '\n' => break,
            _ => {}
        }
        is_name &= next.is_ascii_alphanumeric() || next == '-';
        if is_name {
            name.push(next.to_ascii_lowercase());
        }
    }
    name
}

/// Parses a value to the end of its line. Quotes protect comments, and a backslash continues the line.
fn parse_value(rest: &mut Peekable<Chars<'_>>) -> String {
    let mut value = String::new();
    let mut is_quoted = false;
    while let Some(next) = rest.next() {
        match next {
            '\n' => break,
            '"' => is_quoted = !is_quoted,
            '#' | ';' if !is_quoted => {
                rest.find(|c| *c == '\n');
                break;
            }
            '\\' => match rest.next() {
                Some('\r') => drop(rest.next_if_eq(&'\n')),
                Some('n') => value.push('\n'),
                Some('t') => value.push('\t'),
                Some('\n' | 'b') | None => {}
                Some(escaped) => value.push(escaped),
            },
            next => value.push(next),
        }
    }
    value.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_read_as_git_reads_it() {
        let text = "\u{feff}[Core] bare = false # x\n\thooksPath = \"a b\" ; c\n[filter \"x]\\\"y\"]\nclean = sh \\\n  ./s/x\n\
            [alias.z]\nq=!\"s/x\\\\ #\" \\\"y\\\"\nflag\n[include]path=~/x\r\n";
        let expected = [
            ("core", "bare", "false"),
            ("core", "hookspath", "a b"),
            ("filter", "clean", "sh   ./s/x"),
            ("alias", "q", "!s/x\\ # \"y\""),
            ("alias", "flag", ""),
            ("include", "path", "~/x"),
        ];
        let expected = expected.map(|(a, b, c)| (a.to_owned(), b.to_owned(), c.to_owned()));
        assert_eq!(parse(text), expected);
    }
}
