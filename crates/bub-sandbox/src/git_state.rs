//! What git stores in its directories while it works: the steps of a rebase, where a working tree is, recorded resolutions.
//!
//! Git trusts these files. Some contain commands, options or paths outside the working tree, and the next
//! `git rebase --continue` or `git commit` of the user uses them. So a command may leave only names that git
//! creates, and only content that runs nothing and leads nowhere else.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs::{self, File},
    io::Read,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use crate::{
    Confinement,
    baseline::StoredPath,
    git_config::{MAX_CONFIG_BYTES, parse},
    git_index::is_safe_part,
    named_paths::PathWalk,
    path_access::TEMP_DIRECTORIES,
    protection::DISABLED_MARK,
    repositories::{GitPlace, ROOT, Search, entries, is_git_name, linked_directory, read_text},
};

/// Names that git creates in a git directory. Names that start with a period are those of editors and of bub.
const NAMES: &[&str] = &[
    "ADD_EDIT.patch",
    "AUTO_MERGE",
    "BISECT_ANCESTORS_OK",
    "BISECT_EXPECTED_REV",
    "BISECT_FIRST_PARENT",
    "BISECT_HEAD",
    "BISECT_LOG",
    "BISECT_NAMES",
    "BISECT_RUN",
    "BISECT_START",
    "BISECT_TERMS",
    "CHERRY_PICK_HEAD",
    "COMMIT_EDITMSG",
    "EDIT_DESCRIPTION",
    "FETCH_HEAD",
    "HEAD",
    "MERGE_AUTOSTASH",
    "MERGE_HEAD",
    "MERGE_MODE",
    "MERGE_MSG",
    "MERGE_RR",
    "NOTES_EDITMSG",
    "NOTES_MERGE_PARTIAL",
    "NOTES_MERGE_REF",
    "NOTES_MERGE_WORKTREE",
    "ORIG_HEAD",
    "REBASE_HEAD",
    "REVERT_HEAD",
    "SQUASH_MSG",
    "TAG_EDITMSG",
    "addp-hunk-edit.diff",
    "branches",
    "commondir",
    "config",
    "config.worktree",
    "description",
    "gc.log",
    "gc.pid",
    "gitdir",
    "hooks",
    "index",
    "info",
    "lfs",
    "locked",
    "logs",
    "lost-found",
    "modules",
    "objects",
    "packed-refs",
    "packed-refs.new",
    "rebase-apply",
    "rebase-merge",
    "refs",
    "reftable",
    "remotes",
    "rr-cache",
    "sequencer",
    "shallow",
    "worktrees",
];
/// How temporary names of git start.
const NAME_STARTS: &[&str] = &[
    "index.stash.",
    "next-index-",
    "sharedindex.",
    "shallow_",
    "tmp_",
];
/// Names that git creates in directories of a git directory.
const DIRECTORY_NAMES: &[(&str, &[&str])] = &[
    (
        "info",
        &["attributes", "exclude", "refs", "sparse-checkout"],
    ),
    (
        "objects/info",
        &["alternates", "commit-graph", "commit-graphs", "packs"],
    ),
];
/// How the name of a file ends that git renames when it is complete.
const LOCK_END: &str = ".lock";

/// What a file contains.
#[derive(Clone, Copy)]
enum Content {
    /// Names of revisions, which git passes to itself as arguments.
    Revisions,
    /// Words in quotation marks, which older versions of git evaluate in a shell.
    Words,
    /// Options of `git apply`.
    ApplyOptions,
    /// The steps of a rebase, cherry-pick or revert.
    Steps,
    /// The name of a merge strategy, by which git finds a program.
    Strategy,
    /// Options of a cherry-pick or revert, in the form of a configuration.
    Options,
    /// Names of files in the same directory.
    Names,
    /// Files of the working tree with conflicts that git resolves or records.
    Conflicts,
    /// Directories with further objects.
    Alternates,
}

/// Files whose content matters.
const CONTENTS: &[(&str, Content)] = &[
    ("BISECT_NAMES", Content::Words),
    ("BISECT_START", Content::Revisions),
    ("BISECT_TERMS", Content::Revisions),
    ("MERGE_AUTOSTASH", Content::Revisions),
    ("MERGE_RR", Content::Conflicts),
    ("objects/info/alternates", Content::Alternates),
    ("rebase-apply/apply-opt", Content::ApplyOptions),
    ("rebase-apply/author-script", Content::Words),
    ("rebase-apply/autostash", Content::Revisions),
    ("rebase-apply/head-name", Content::Revisions),
    ("rebase-merge/author-script", Content::Words),
    ("rebase-merge/autostash", Content::Revisions),
    ("rebase-merge/git-rebase-todo", Content::Steps),
    ("rebase-merge/git-rebase-todo.backup", Content::Steps),
    ("rebase-merge/head-name", Content::Revisions),
    ("rebase-merge/strategy", Content::Strategy),
    ("reftable/tables.list", Content::Names),
    ("sequencer/opts", Content::Options),
    ("sequencer/todo", Content::Steps),
];
/// Steps that run no command, and their short forms.
const STEPS: &[&str] = &[
    "b",
    "break",
    "d",
    "drop",
    "e",
    "edit",
    "f",
    "fixup",
    "l",
    "label",
    "m",
    "merge",
    "noop",
    "p",
    "pick",
    "r",
    "reset",
    "revert",
    "reword",
    "s",
    "squash",
    "t",
    "u",
    "update-ref",
];
/// Merge strategies that are part of git.
const STRATEGIES: &[&str] = &["octopus", "ort", "ours", "recursive", "resolve", "subtree"];
/// Options of `git apply` that name no file outside the working tree.
const APPLY_OPTIONS: &[&str] = &[
    "--3way",
    "--ignore-space-change",
    "--ignore-whitespace",
    "--reject",
];
/// How such options with a value start.
const APPLY_OPTION_STARTS: &[&str] = &["--exclude=", "--include=", "--whitespace=", "-C", "-p"];
/// How deep directories with further objects can name others, as git reads them.
const MAX_ALTERNATES_DEPTH: usize = 6;

/// What a command must not leave behind in a git directory, and why.
pub(crate) type StateFindings = BTreeSet<(StoredPath, String)>;

/// Returns what commands must not leave behind in git directories. Git does not use those in `disabled`, so that only their
/// content matters.
pub(crate) fn state_findings(
    search: &Search,
    confinement: &Confinement,
    disabled: &BTreeSet<&PathBuf>,
) -> StateFindings {
    let places = search.places.iter();
    let directories = places.filter(|(_, place)| **place == GitPlace::Directory);
    let mut found = StateFindings::new();
    for (git, _) in directories {
        let state = GitState {
            git,
            search,
            confinement,
        };
        let inside = git.strip_prefix(&confinement.workspace).unwrap_or(git);
        // Another directory can have files that are not from git, such as working trees in a bare repository.
        if inside.iter().any(is_git_name) && !disabled.contains(git) {
            found.extend(state.unknown_names());
        }
        for (name, content) in CONTENTS {
            let path = git.join(name);
            let findings = state.content_findings(&path, *content);
            found.extend(findings.map(|finding| (path.clone().into(), finding)));
        }
        found.extend(state.outside_trees());
    }
    found
}

/// A git directory.
struct GitState<'a> {
    git: &'a Path,
    search: &'a Search,
    confinement: &'a Confinement,
}

impl GitState<'_> {
    /// Returns what git does not create.
    fn unknown_names(&self) -> impl Iterator<Item = (StoredPath, String)> {
        let known = DIRECTORY_NAMES.iter().map(|(name, known)| (*name, *known));
        let all = [("", NAMES)].into_iter().chain(known);
        let unknown = all.flat_map(|(directory, known)| {
            let entries = entries(&self.git.join(directory));
            entries.filter(move |path| !is_known(path, known))
        });
        let note = "git does not create a file or directory of this name";
        unknown.map(move |path| (path.into(), note.to_owned()))
    }

    /// Returns what is wrong with the content of a file.
    fn content_findings(&self, path: &Path, content: Content) -> impl Iterator<Item = String> {
        let text = match read_bytes(path) {
            Some(text) if text.len() as u64 >= MAX_CONFIG_BYTES => {
                let finding = "it is larger than what git writes".to_owned();
                return vec![finding].into_iter();
            }
            Some(text) => text,
            None => return Vec::new().into_iter(),
        };
        let found: Vec<&[u8]> = match content {
            Content::Revisions => lines(&text).filter(|line| !is_revision(line)).collect(),
            Content::Words => quoted_words(&text)
                .is_none()
                .then_some(text.as_slice())
                .into_iter()
                .collect(),
            Content::ApplyOptions => {
                let words = quoted_words(&text);
                let is_safe =
                    words.is_some_and(|words| words.iter().all(|word| is_apply_option(word)));
                (!is_safe).then_some(text.as_slice()).into_iter().collect()
            }
            Content::Steps => lines(&text).filter(|line| !is_step(line)).collect(),
            Content::Strategy => lines(&text).filter(|line| !is_strategy(line)).collect(),
            Content::Options => {
                let entries = parse(&String::from_utf8_lossy(&text));
                let is_safe = entries
                    .iter()
                    .all(|(_, key, value)| key != "strategy" || is_strategy(value.as_bytes()));
                (!is_safe).then_some(text.as_slice()).into_iter().collect()
            }
            Content::Names => lines(&text).filter(|line| line.contains(&b'/')).collect(),
            Content::Conflicts => {
                let records = text.split(|byte| *byte == 0);
                let paths = records.filter(|record| !record.is_empty());
                let path = |record: &&[u8]| {
                    let start = record.iter().position(|byte| *byte == b'\t');
                    let path = start.and_then(|start| record.get(start + 1..));
                    !path.is_some_and(|path| self.is_in_tree(path))
                };
                paths.filter(path).collect()
            }
            Content::Alternates => {
                let directory = path.parent().and_then(Path::parent).unwrap_or(path);
                let unsafe_line = |line: &&[u8]| !self.is_alternate(directory, line, 0);
                lines(&text).filter(unsafe_line).collect()
            }
        };
        let found = found.into_iter().map(|line| {
            let line = line.trim_ascii().escape_ascii();
            format!("it contains `{line}`, and git would run or use that")
        });
        found.collect::<Vec<_>>().into_iter()
    }

    /// Returns whether a path is in all working trees of the repository, and reached without links.
    fn is_in_tree(&self, path: &[u8]) -> bool {
        let mut parts = path.split(|byte| *byte == b'/');
        let has_link = |tree: PathBuf| {
            let mut path_now = tree;
            path.split(|byte| *byte == b'/').any(|part| {
                path_now.push(OsStr::from_bytes(part));
                path_now.is_symlink()
            })
        };
        parts.all(is_safe_part) && !self.trees().any(has_link)
    }

    fn trees(&self) -> impl Iterator<Item = PathBuf> {
        let own = self.git.parent();
        let own = own.filter(|_| self.git.file_name().is_some_and(is_git_name));
        let places = self.search.places.iter();
        let links = places.filter(|(path, place)| {
            **place == GitPlace::Link && linked_directory(path).is_some_and(|git| git == self.git)
        });
        let linked = links.filter_map(|(path, _)| path.parent());
        own.into_iter().chain(linked).map(Path::to_owned)
    }

    /// Returns whether a line of the file that names directories with further objects leads only to where commands can read.
    /// `objects` is the directory with that file.
    fn is_alternate(&self, objects: &Path, line: &[u8], depth: usize) -> bool {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() || line.starts_with(b"#") {
            return true;
        }
        let path = Path::new(OsStr::from_bytes(line));
        let root = &self.search.root;
        let walk = PathWalk::in_root(root, objects, path, self.confinement, |_| false);
        // Git reads a name in quotation marks in another way.
        if line.starts_with(b"\"")
            || depth >= MAX_ALTERNATES_DEPTH
            || walk.is_unchecked(self.confinement)
        {
            return false;
        }
        if !walk.is_always_below(&self.confinement.workspace) {
            let mut readable = self.confinement.readable.iter();
            return readable.any(|root| walk.is_always_below(root));
        }
        let text = read_bytes(&walk.real.join("info/alternates")).unwrap_or_default();
        lines(&text).all(|line| self.is_alternate(&walk.real, line, depth + 1))
    }

    /// Returns the files that name a working tree outside the workspace. A working tree in `/tmp` is that of a command if
    /// nothing is there outside.
    fn outside_trees(&self) -> impl Iterator<Item = (StoredPath, String)> {
        let trees = entries(&self.git.join("worktrees"));
        trees.filter_map(|git| {
            let file = git.join("gitdir");
            let text = read_text(&file);
            let target = Path::new(text.trim_end());
            let root = &self.search.root;
            let walk = PathWalk::in_root(root, &git, target, self.confinement, |_| false);
            let tree = walk.real.parent().unwrap_or(&walk.real);
            let below_root = tree.strip_prefix(ROOT).unwrap_or(tree);
            let is_private = || {
                let mut temp = TEMP_DIRECTORIES.iter();
                temp.any(|temp| walk.is_always_below(temp.as_ref()))
                    && !root.join(below_root).exists()
            };
            let is_safe = target.as_os_str().is_empty()
                || walk.is_always_below(&self.confinement.workspace)
                || is_private();
            let target = target.as_os_str().as_bytes().escape_ascii();
            let finding = format!("it names `{target}`, and git would write there");
            (!is_safe).then(|| (file.into(), finding))
        })
    }
}

/// Returns whether git, an editor or bub creates a name.
fn is_known(path: &Path, known: &[&str]) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let complete = name.strip_suffix(LOCK_END).unwrap_or(&name);
    known.contains(&complete)
        || name.starts_with('.')
        || name.contains(DISABLED_MARK)
        || NAME_STARTS.iter().any(|start| name.starts_with(start))
}

/// Returns the beginning of a regular file.
fn read_bytes(path: &Path) -> Option<Vec<u8>> {
    // Opening a pipe would wait for a writer.
    let is_file = fs::symlink_metadata(path).is_ok_and(|found| found.is_file());
    let file = is_file.then(|| File::open(path).ok()).flatten()?;
    let mut text = Vec::new();
    // Ignore errors: git cannot read the file, either.
    let _ = file.take(MAX_CONFIG_BYTES).read_to_end(&mut text);
    Some(text)
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == b'\n')
}

/// Returns whether a line is the name of a revision, and not an option or a path.
fn is_revision(line: &[u8]) -> bool {
    let mut parts = line.split(|byte| *byte == b'/');
    !line.starts_with(b"-")
        && !line.iter().any(u8::is_ascii_control)
        && (line.is_empty() || parts.all(|part| !matches!(part, b"" | b"." | b"..")))
}

fn is_strategy(line: &[u8]) -> bool {
    let mut known = STRATEGIES.iter();
    line.is_empty() || known.any(|name| name.as_bytes() == line.trim_ascii())
}

/// Returns whether a line is a comment, or a step that runs no command.
fn is_step(line: &[u8]) -> bool {
    let line = line.trim_ascii();
    let mut words = line.split(u8::is_ascii_whitespace);
    let word = words.next().unwrap_or_default();
    let is_comment = !line.first().is_some_and(u8::is_ascii_alphanumeric);
    is_comment || STEPS.iter().any(|step| step.as_bytes() == word)
}

fn is_apply_option(word: &[u8]) -> bool {
    let mut starts = APPLY_OPTION_STARTS.iter();
    APPLY_OPTIONS.iter().any(|option| option.as_bytes() == word)
        || starts.any(|start| word.starts_with(start.as_bytes()))
}

/// Returns the words of a text in which git has quoted all of them for a shell, each perhaps as the value of a variable.
fn quoted_words(text: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (mut words, mut rest) = (Vec::new(), text.trim_ascii());
    while !rest.is_empty() {
        let name = rest
            .iter()
            .take_while(|byte| byte.is_ascii_uppercase() || **byte == b'_');
        let name = name.count();
        if name > 0 {
            rest = rest.get(name..)?.strip_prefix(b"=")?;
        }
        let mut word = Vec::new();
        loop {
            rest = rest.strip_prefix(b"'")?;
            let end = rest.iter().position(|byte| *byte == b'\'')?;
            word.extend_from_slice(rest.get(..end)?);
            rest = rest.get(end + 1..)?;
            // Git quotes these two with a backslash.
            let [b'\\', byte @ (b'\'' | b'!'), after @ ..] = rest else {
                break;
            };
            word.push(*byte);
            rest = after;
            if !rest.starts_with(b"'") {
                break;
            }
        }
        if !rest.first().is_none_or(u8::is_ascii_whitespace) {
            return None;
        }
        words.push(word);
        rest = rest.trim_ascii_start();
    }
    Some(words)
}
