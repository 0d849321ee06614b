//! Repositories that commands created. Git may use one only while it runs nothing, which its own files show.
//!
//! Such a repository is not read-only: commands can change, move and remove it. It is reviewed after every command. If
//! the review finds something, git no longer recognizes the repository, until the user enables it. What the user changes
//! or enables between commands belongs to the user, and becomes read-only.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, BufReader, BufWriter, Seek, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use crate::{
    Confinement,
    baseline::{StoredPath, open_record},
    git_config::{HOOKS_KEY, WORKTREE_KEY, is_plain_entry, parse},
    named_paths::{MAX_INCLUDE_DEPTH, NamedPaths, PathWalk, expand_home, local_repository},
    repositories::{
        GIT_DIRECTORY_NAMES, GIT_NAMES, GitPlace, Search, directory_entries, entries,
        is_git_directory, is_git_name, is_sample, linked_directory, read_text,
    },
};

/// The places of git that commands created in a workspace, with their inodes. A file that commands cannot reach holds
/// them. Without it, they are read-only as all others.
#[derive(Debug, Default)]
pub(crate) struct NewPlaces {
    file: Option<File>,
    known: BTreeMap<PathBuf, u64>,
}

impl NewPlaces {
    /// Reads the places of a workspace. Ignores a damaged file.
    pub(crate) fn load(records: &Path, workspace: &Path) -> Self {
        let read = |file: &File| {
            file.lock_shared()?;
            let known = serde_json::from_reader::<_, Vec<(StoredPath, u64)>>(BufReader::new(file));
            file.unlock()?;
            io::Result::Ok(known.unwrap_or_default())
        };
        let file = open_record(records, workspace, "new").ok();
        let known = file.as_ref().and_then(|file| read(file).ok());
        let known = known.into_iter().flatten();
        Self {
            known: known
                .map(|(path, inode)| (path.to_path_buf(), inode))
                .collect(),
            file,
        }
    }

    /// Returns the places that are still there.
    pub(crate) fn current(&self, search: &Search) -> BTreeSet<PathBuf> {
        let known = self.known.iter();
        let known = known.filter(|(path, inode)| {
            search.places.contains_key(*path) && inode_of(path) == Some(**inode)
        });
        known.map(|(path, _)| path.clone()).collect()
    }

    /// Stores the places for the next command. Ignores errors: the places are then read-only.
    pub(crate) fn save<'a>(mut self, places: impl Iterator<Item = &'a PathBuf>) {
        let places =
            places.filter_map(|path| Some((StoredPath::from(path.clone()), inode_of(path)?)));
        let places: Vec<_> = places.collect();
        let mut write = || {
            let Some(file) = self.file.as_mut() else {
                return Ok(());
            };
            file.lock()?;
            file.rewind()?;
            file.set_len(0)?;
            let mut writer = BufWriter::new(&*file);
            serde_json::to_writer(&mut writer, &places)?;
            writer.flush()?;
            file.unlock()
        };
        let _ = write();
    }
}

fn inode_of(path: &Path) -> Option<u64> {
    fs::symlink_metadata(path).ok().map(|found| found.ino())
}

/// Reviews places of git.
pub(crate) struct Review<'a> {
    pub(crate) search: &'a Search,
    pub(crate) named: &'a NamedPaths,
    pub(crate) confinement: &'a Confinement,
}

impl Review<'_> {
    /// Returns whether git uses the place, and may run something because of it.
    pub(crate) fn has_findings(&self, path: &Path, place: GitPlace) -> bool {
        let is_enabled = place == GitPlace::Link || is_git_directory(path, "".as_ref());
        is_enabled && !self.findings(path, place).is_empty()
    }

    /// Returns what git may run because of a place, and what could make the place something else later.
    pub(crate) fn findings(&self, path: &Path, place: GitPlace) -> Vec<String> {
        let mut findings = Vec::new();
        let git = match place {
            GitPlace::Directory => path.to_owned(),
            GitPlace::Link => {
                findings.extend(unsafe_file(path));
                let target = linked_directory(path);
                let target = target.filter(|target| self.search.has_directory(target));
                let Some(target) = target else {
                    findings.push("it leads to a directory that was not checked".to_owned());
                    return findings;
                };
                target
            }
        };
        // The git directory of a working tree is elsewhere. Its file `.git` is reviewed.
        let is_tree = place == GitPlace::Link || !git.join("commondir").exists();
        let program = self.named.tree_program(&git).filter(|_| is_tree);
        findings.extend(program.cloned());
        if place == GitPlace::Directory {
            findings.extend(self.directory_findings(path));
        }
        findings
    }

    fn directory_findings(&self, git: &Path) -> Vec<String> {
        let mut findings = Vec::new();
        let files = GIT_NAMES.iter();
        let files = files.filter(|name| !GIT_DIRECTORY_NAMES.contains(name));
        findings.extend(files.filter_map(|name| unsafe_file(&git.join(name))));
        let common = git.join("commondir");
        if fs::symlink_metadata(&common).is_ok() && !self.is_worktree(git, &common) {
            findings.push("`commondir` leads to another repository".to_owned());
        }
        for name in ["config", "config.worktree"] {
            findings.extend(self.config_findings(git, &git.join(name), 0));
        }
        for name in GIT_DIRECTORY_NAMES {
            let found = fs::symlink_metadata(git.join(name));
            if found.is_ok_and(|found| !found.is_dir()) {
                findings.push(format!("`{name}` is not a directory"));
            }
        }
        for entry in directory_entries(git).filter(|entry| !is_sample(entry)) {
            let name = entry.strip_prefix(git).unwrap_or(&entry).to_string_lossy();
            findings.push(format!("it has `{}`", name.escape_debug()));
        }
        findings
    }

    /// Returns what git may run because of a configuration, and of those that it includes.
    fn config_findings(&self, git: &Path, config: &Path, depth: usize) -> Vec<String> {
        let is_included = depth > 0;
        let found = if is_included {
            fs::metadata(config)
        } else {
            fs::symlink_metadata(config)
        };
        // Anything else is a separate finding.
        let found = found.ok().filter(fs::Metadata::is_file);
        let Some(found) = found.filter(|_| depth <= MAX_INCLUDE_DEPTH) else {
            return Vec::new();
        };
        let name = config.strip_prefix(git).unwrap_or(config).display();
        let text = read_text(config);
        if text.len() as u64 != found.len() || text.contains(char::REPLACEMENT_CHARACTER) {
            return vec![format!("`{name}` is not a text that bub can read")];
        }
        let is_suspicious = |(section, key, value): &(String, String, String)| {
            !is_plain_entry(section, key, value)
                || key == WORKTREE_KEY && !self.is_tree_of(git, value)
                || self.leads_to_unchecked(git, key, value)
        };
        let mut findings = Vec::new();
        for (section, key, value) in parse(&text).into_iter().filter(is_suspicious) {
            let shown = value.escape_debug();
            let origin = is_included.then(|| format!(" in `{name}`"));
            let origin = origin.unwrap_or_default();
            findings.push(format!("`{section}.{key}` is `{shown}`{origin}"));
            if section.starts_with("include") && key == "path" {
                let included = expand_home(&value, self.confinement);
                let included = config.parent().unwrap_or(git).join(included);
                findings.extend(self.config_findings(git, &included, depth + 1));
            }
            if key == HOOKS_KEY {
                let tree = git
                    .parent()
                    .filter(|_| git.file_name().is_some_and(is_git_name));
                let hooks = tree.unwrap_or(git).join(&value);
                let names = entries(&hooks).filter_map(|hook| Some(hook.file_name()?.to_owned()));
                findings.extend(names.map(|name| {
                    format!("it has `{shown}/{}`", name.to_string_lossy().escape_debug())
                }));
            }
        }
        if findings.is_empty() && !is_included && !has_plain_form(&text) {
            findings.push(format!("`{name}` has a form that git does not write"));
        }
        findings
    }

    /// Returns whether a git directory is that of a working tree, which has the configuration of a known repository.
    fn is_worktree(&self, git: &Path, common: &Path) -> bool {
        let target = git.join(read_text(common).trim()).canonicalize();
        target.is_ok_and(|target| {
            self.search.has_directory(&target) && git.parent() == Some(&target.join("worktrees"))
        })
    }

    /// Returns whether `tree` is a directory that names `git` as its repository.
    fn is_tree_of(&self, git: &Path, tree: &str) -> bool {
        let link = git.join(tree).canonicalize().map(|tree| tree.join(".git"));
        link.is_ok_and(|link| {
            self.search.places.get(&link) == Some(&GitPlace::Link)
                && linked_directory(&link).is_some_and(|target| target == git)
        })
    }

    /// Returns whether a value is the address of a repository which commands can write to, and which no search reaches.
    fn leads_to_unchecked(&self, git: &Path, key: &str, value: &str) -> bool {
        let Some(path) = local_repository(key, value) else {
            return false;
        };
        let workspace = &self.confinement.workspace;
        let is_encoded = value.starts_with("file:") && value.contains('%');
        let leads_there = |base: &Path| {
            let path = Path::new(path);
            let root = &self.search.root;
            let walk = PathWalk::in_root(root, base, path, self.confinement, |_| false);
            let mut writable = self.confinement.writable.iter();
            walk.is_unchecked(self.confinement)
                || !walk.is_always_below(workspace)
                    && writable.any(|root| walk.is_always_below(root))
        };
        // Git resolves a relative path in the working tree, which can be any that the commands added.
        let above = git.ancestors();
        let above = above.take_while(|directory| directory.starts_with(workspace));
        let links = self.search.places.iter();
        let links = links.filter(|(_, place)| **place == GitPlace::Link);
        let trees = links.filter_map(|(link, _)| link.parent());
        is_encoded || above.chain(trees).any(leads_there)
    }
}

/// Returns what is wrong with a file of git that exists: another name would let a later command change it.
fn unsafe_file(path: &Path) -> Option<String> {
    let found = fs::symlink_metadata(path).ok()?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let is_safe = found.is_file() && found.nlink() == 1;
    (!is_safe).then(|| format!("`{name}` is a link, or has other hard links"))
}

/// Returns whether a configuration has the form in which git writes it: nothing is quoted except the second part of a
/// header, nothing is a comment, and no line continues.
fn has_plain_form(text: &str) -> bool {
    text.lines().map(str::trim).all(|line| {
        let Some(header) = line
            .strip_prefix('[')
            .and_then(|line| line.strip_suffix(']'))
        else {
            return !line.contains(['"', '\\', '#', ';']);
        };
        let (name, quoted) = header.split_once(" \"").unwrap_or((header, "\""));
        let parts = [name, quoted.strip_suffix('"').unwrap_or(quoted)];
        let is_plain = |part: &&str| !part.contains(['"', '\\', ']', '[', '#', ';']);
        parts.iter().all(is_plain)
    })
}
