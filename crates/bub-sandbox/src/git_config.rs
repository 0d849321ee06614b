//! What the configuration of git names in the workspace: hooks, further configuration and programs.
//!
//! Git resolves relative paths in the working tree in which it runs, and one configuration can apply to many. So a
//! relative path is protected in every known working tree. In one that a command creates, it may only be a copy.

use std::{
    collections::{BTreeSet, VecDeque},
    ffi::OsString,
    fs,
    iter::Peekable,
    os::unix::fs::PermissionsExt,
    path::{Component, Path, PathBuf},
    str::Chars,
};

use crate::{
    Confinement,
    repositories::{
        GitPlace, Search, WORKTREE_KEY, entries, is_git_name, is_plain_entry, linked_directory,
        read_text,
    },
};

/// How deep included files are read, as git does.
const MAX_INCLUDE_DEPTH: usize = 10;
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
const DIRECTORY_KEYS: &[&str] = &["hookspath", "templatedir"];
/// Characters that separate words in a command line, and some before or after a path.
const SEPARATORS: &str = "'\"\\;&|()=!`$<>,{}";
/// Characters that end the part of a word which the shell replaces.
const EXPANSIONS: &[char] = &['$', '`', ')', '}'];
/// Programs that run the file which is their first argument, without digits at the end.
const INTERPRETERS: &[&str] = &[
    ".", "bash", "dash", "ksh", "lua", "node", "perl", "php", "python", "ruby", "sh", "source",
    "zsh",
];
/// Extensions of files that interpreters run.
const SCRIPT_EXTENSIONS: &[&str] = &[
    "bash", "js", "lua", "mjs", "php", "pl", "py", "rb", "sh", "ts", "zsh",
];
/// Maximum bytes of a file that is compared with the one of which it may be a copy.
const MAX_COPY_BYTES: u64 = 16 * 1024 * 1024;

/// Returns the paths in the workspace that git takes hooks or configuration from, or may run. They may not exist yet.
pub(crate) fn named_paths(search: &Search, confinement: &Confinement) -> BTreeSet<PathBuf> {
    let mut names = Names::around(&confinement.workspace, confinement);
    for (path, place) in &search.places {
        match place {
            GitPlace::Link => names.add_tree(path.parent()),
            GitPlace::Directory => names.add_git_directory(path),
        }
    }
    names.resolve()
}

/// Returns those of [`named_paths`] that the repositories around `path` name.
pub(crate) fn named_paths_around(path: &Path, confinement: &Confinement) -> BTreeSet<PathBuf> {
    Names::around(path, confinement).resolve()
}

/// Returns whether git takes hooks or configuration from a relative path in the working tree of a new place, or may run
/// it. Copies of what `is_known` working trees of the same repository contain do not count.
pub(crate) fn uses_new_files(
    path: &Path,
    place: GitPlace,
    confinement: &Confinement,
    is_known: impl Fn(&Path) -> bool,
) -> bool {
    let (git, tree) = match place {
        GitPlace::Link => (linked_directory(path), path.parent()),
        GitPlace::Directory => (
            Some(path.to_owned()),
            path.parent()
                .filter(|_| path.file_name().is_some_and(is_git_name)),
        ),
    };
    let Some(git) = git else {
        return false;
    };
    let mut names = Names::of_user(confinement);
    names.add_repository(&git);
    let new = tree
        .into_iter()
        .chain((place == GitPlace::Directory).then_some(path));
    // A command can write which working trees a repository has, but not what a known one belongs to.
    let common = common_directory(&git);
    let is_sibling = |tree: &&PathBuf| {
        let git = git_directory(tree);
        is_known(tree) && git.is_some_and(|git| common_directory(&git) == common)
    };
    let known: Vec<_> = names.trees.iter().filter(is_sibling).collect();
    let is_new = |path: &Path, name: &Path, kind: NameKind| {
        let mut known = known.iter().map(|tree| tree.join(name));
        let found = find_named(path, kind).filter(|_| fs::symlink_metadata(path).is_ok());
        found.is_some_and(|(_, real)| !known.any(|known| real == known || is_copy(path, &known)))
    };
    let new: Vec<_> = new.collect();
    let mut relative = names.paths.iter().filter(|(name, _)| name.is_relative());
    relative.any(|(name, kind)| {
        let mut paths = new.iter().map(|tree| tree.join(name));
        paths.any(|path| is_new(&path, name, *kind))
    })
}

/// Returns the git directory of a working tree.
fn git_directory(tree: &Path) -> Option<PathBuf> {
    let git = tree.join(".git");
    let linked = git.is_file().then(|| linked_directory(&git)).flatten();
    linked.or_else(|| git.is_dir().then_some(git))
}

/// Returns the git directory of the repository to which that of a working tree belongs.
fn common_directory(git: &Path) -> PathBuf {
    let common = git.join(read_text(&git.join("commondir")).trim());
    common.canonicalize().unwrap_or(common)
}

/// Returns whether a file, or every file in a directory, has the same content as another one. Links do not count.
fn is_copy(path: &Path, original: &Path) -> bool {
    let (Ok(new), Ok(old)) = (fs::symlink_metadata(path), fs::symlink_metadata(original)) else {
        return false;
    };
    if new.is_dir() && old.is_dir() {
        return entries(path).all(|entry| {
            let name = entry.file_name().unwrap_or_default();
            is_copy(&entry, &original.join(name))
        });
    }
    let is_executable = |found: &fs::Metadata| found.permissions().mode() & 0o111 != 0;
    let has_same_text =
        || fs::read(path).is_ok_and(|text| fs::read(original).is_ok_and(|old| text == old));
    new.is_file()
        && old.is_file()
        && new.len() == old.len()
        && new.len() <= MAX_COPY_BYTES
        && (is_executable(&old) || !is_executable(&new))
        && has_same_text()
}

/// What a path is for git.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum NameKind {
    /// A word in a value. Without a slash, it is a program in `PATH`, or an argument, unless there is such a file.
    Word,
    /// A file that git reads, or that it or an interpreter may run.
    File,
    /// A directory from which git takes hooks.
    Directory,
    /// The hooks of a git directory, which are protected with it. What links there lead to is not.
    Hooks,
}

/// What configurations name, before the paths are resolved.
struct Names<'a> {
    confinement: &'a Confinement,
    /// Configurations that were read.
    configs: BTreeSet<PathBuf>,
    /// Working trees, and git directories, in which git runs, too.
    trees: BTreeSet<PathBuf>,
    paths: BTreeSet<(PathBuf, NameKind)>,
}

impl<'a> Names<'a> {
    /// Reads the configuration of the system and of the user.
    fn of_user(confinement: &'a Confinement) -> Self {
        let mut names = Self {
            confinement,
            configs: BTreeSet::new(),
            trees: BTreeSet::new(),
            paths: BTreeSet::new(),
        };
        let home = confinement.home.iter();
        let user = home.flat_map(|home| USER_CONFIG_NAMES.iter().map(|name| home.join(name)));
        let configs = SYSTEM_CONFIGS.iter().map(PathBuf::from).chain(user);
        for config in configs.chain(confinement.git_configs.iter().cloned()) {
            names.read(&config, 0);
        }
        names
    }

    /// Reads the configuration of the system, of the user, and of all repositories that contain `path`.
    fn around(path: &Path, confinement: &'a Confinement) -> Self {
        let mut names = Self::of_user(confinement);
        for tree in path.ancestors() {
            if let Some(git) = git_directory(tree) {
                names.add_tree(Some(tree));
                names.add_repository(&git);
            }
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
            if section == "core" && key == WORKTREE_KEY {
                self.trees.insert(directory.join(value));
            } else if section.starts_with("include") && key == "path" {
                let path = directory.join(self.expand(&value));
                self.read(&path, depth + 1);
                self.paths.insert((path, NameKind::File));
            } else if DIRECTORY_KEYS.contains(&key.as_str()) && !value.is_empty() {
                let path = self.expand(&value);
                // Husky has the hooks beside the directory that git knows.
                let husky = path.parent().filter(|_| path.ends_with(".husky/_"));
                let husky = husky.map(|path| (path.to_owned(), NameKind::Directory));
                self.paths.extend(husky);
                self.paths.insert((path, NameKind::Directory));
            } else if !is_plain_entry(&section, &key, &value) {
                let words = words(&value).into_iter();
                let words: Vec<_> = words
                    .map(|(word, kind)| (self.expand(&word), kind))
                    .collect();
                self.paths.extend(words);
            }
        }
    }

    fn expand(&self, value: &str) -> PathBuf {
        let below_home = value.strip_prefix("~/").zip(self.confinement.home.as_ref());
        below_home.map_or_else(|| value.into(), |(below, home)| home.join(below))
    }

    /// Returns the named paths in the workspace, and the links that lead to them.
    fn resolve(self) -> BTreeSet<PathBuf> {
        let workspace = &self.confinement.workspace;
        let mut found = BTreeSet::new();
        for (name, kind) in &self.paths {
            let is_absolute = name.is_absolute();
            let bases = self.trees.iter().filter(|_| !is_absolute);
            let bases = bases.map(PathBuf::as_path);
            for base in bases.chain(is_absolute.then_some(Path::new("/"))) {
                let Some((links, real)) = find_named(&base.join(name), *kind) else {
                    continue;
                };
                if matches!(kind, NameKind::Directory | NameKind::Hooks) {
                    let hooks = entries(&real).filter(|hook| hook.is_symlink());
                    found.extend(hooks.map(|hook| follow_links(&hook).1));
                }
                if *kind != NameKind::Hooks {
                    found.extend(links);
                    found.insert(real);
                }
            }
        }
        found.retain(|path| path != workspace && path.starts_with(workspace));
        found
    }
}

/// Returns the links in an absolute path, and where it leads, if git may use what is or will be there. A command may work
/// in a directory that is an argument.
fn find_named(path: &Path, kind: NameKind) -> Option<(Vec<PathBuf>, PathBuf)> {
    let (links, real) = follow_links(path);
    let is_named = match kind {
        NameKind::Word => real.is_file(),
        NameKind::File => !real.is_dir(),
        NameKind::Directory | NameKind::Hooks => true,
    };
    is_named.then_some((links, real))
}

/// Returns the words of a value that may be paths: as a shell reads them, and of nested command lines.
fn words(value: &str) -> BTreeSet<(String, NameKind)> {
    let value = value.trim_start_matches('!');
    let mut words = BTreeSet::from([(value.to_owned(), path_kind(value))]);
    let mut waiting = vec![value.to_owned()];
    while let Some(value) = waiting.pop() {
        let is_separator = |c: char| c.is_whitespace() || SEPARATORS.contains(c);
        let mut is_argument = false;
        for word in value.split(is_separator).filter(|word| !word.is_empty()) {
            let kind = if is_argument {
                NameKind::File
            } else {
                path_kind(word)
            };
            is_argument = is_interpreter(word) || is_argument && word.starts_with('-');
            words.insert((word.to_owned(), kind));
            // As in `ext::./program` and `-F./file`.
            let address = word.rsplit_once("::").map(|(_, path)| path);
            let option = word.strip_prefix('-').and_then(|option| option.get(1..));
            let parts = [address, option].into_iter().flatten();
            words.extend(parts.map(|path| (path.to_owned(), path_kind(path))));
        }
        for word in shell_words(&value) {
            // What the shell puts before the rest is unknown: it may be any directory above.
            let mut rest = word.rsplit_once(EXPANSIONS).map(|(_, rest)| rest);
            while let Some(tail) = rest {
                let tail = tail.trim_start_matches('/');
                words.insert((tail.to_owned(), path_kind(tail)));
                rest = tail.split_once('/').map(|(_, rest)| rest);
            }
            words.insert((word.clone(), path_kind(&word)));
            // A quoted word can be a command line.
            if word.len() < value.len() && word.contains(char::is_whitespace) {
                waiting.push(word);
            }
        }
    }
    words.retain(|(word, _)| !word.is_empty());
    words
}

fn path_kind(word: &str) -> NameKind {
    let path = Path::new(word);
    let extension = path.extension().unwrap_or_default();
    let is_script = SCRIPT_EXTENSIONS.iter().any(|known| extension == *known);
    if is_script || path.components().count() > 1 {
        NameKind::File
    } else {
        NameKind::Word
    }
}

fn is_interpreter(word: &str) -> bool {
    let name = word.rsplit('/').next().unwrap_or_default();
    let name = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    INTERPRETERS.contains(&if name.is_empty() { word } else { name })
}

/// Splits a command line as a shell does, without what it would replace.
fn shell_words(value: &str) -> Vec<String> {
    let (mut words, mut quote) = (vec![String::new()], None);
    let mut rest = value.chars();
    while let Some(next) = rest.next() {
        let is_end = next.is_whitespace() || ";&|<>".contains(next);
        match next {
            '\\' if quote != Some('\'') => {
                words
                    .last_mut()
                    .into_iter()
                    .for_each(|word| word.extend(rest.next()));
            }
            _ if quote == Some(next) => quote = None,
            '\'' | '"' if quote.is_none() => quote = Some(next),
            _ if is_end && quote.is_none() => words.push(String::new()),
            _ => words
                .last_mut()
                .into_iter()
                .for_each(|word| word.push(next)),
        }
    }
    words
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

    #[test]
    fn words_of_a_value_are_those_of_a_shell_and_of_nested_command_lines() {
        for (value, word, kind) in [
            ("!s/x", "s/x", NameKind::File),
            ("!sh -c \"./s/x;true\"", "./s/x", NameKind::File),
            (
                "!\"$(git rev-parse --show-toplevel)\"/s/x",
                "s/x",
                NameKind::File,
            ),
            ("!${PWD}/s/x", "s/x", NameKind::File),
            ("!$HOME/work/s/x y", "s/x", NameKind::File),
            ("!`pwd`/s/x", "s/x", NameKind::File),
            ("./a\\ b/x --y", "./a b/x", NameKind::File),
            ("./'a b'/x", "./a b/x", NameKind::File),
            ("!sh -c '\"./a b\"/x'", "./a b/x", NameKind::File),
            ("/a b/x", "/a b/x", NameKind::File),
            ("ext::./s/x y", "./s/x", NameKind::File),
            ("ssh -F./s/x", "./s/x", NameKind::File),
            ("python3 -u clean", "clean", NameKind::File),
            ("/usr/bin/env sh clean", "clean", NameKind::File),
            (". clean", "clean", NameKind::File),
            ("uv run clean.py", "clean.py", NameKind::File),
            ("git-lfs clean", "clean", NameKind::Word),
        ] {
            let words = words(value);
            assert!(
                words.contains(&(word.to_owned(), kind)),
                "{value}: {words:?}"
            );
        }
    }
}
