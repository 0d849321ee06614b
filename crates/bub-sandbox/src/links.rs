//! Links that a command must not leave behind in the workspace.
//!
//! Through a link in a git directory, git writes elsewhere. Through a link to a directory that no search reaches, such as
//! the private temporary directory, a user would enter a repository that was never reviewed.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    fs,
    path::{Path, PathBuf},
};

use crate::{
    Confinement, baseline::StoredPath, directory_index::DirectoryIndex, named_paths::PathWalk,
    repositories::ROOT,
};

/// Returns the links that a command must not leave behind, and where they lead. Also pipes in git directories, which lead
/// nowhere. `directories` are those of `index`, the upper ones first.
pub(crate) fn unsafe_links(
    directories: &[PathBuf],
    index: &DirectoryIndex,
    root: &Path,
    confinement: &Confinement,
) -> BTreeMap<StoredPath, StoredPath> {
    let mut found = BTreeMap::new();
    let mut links = index.listings().flatten();
    if links.all(|listing| listing.links.is_empty()) {
        return found;
    }
    let mut hidden = confinement.hidden.iter();
    let has_hidden = hidden.any(|path| path.starts_with(&confinement.workspace));
    // Whether each directory is in a git directory.
    let mut known: HashMap<&Path, bool> = HashMap::with_capacity(directories.len());
    for (directory, listing) in directories.iter().zip(index.listings()) {
        let above = directory.parent().and_then(|above| known.get(above));
        let is_in_git = above.copied().unwrap_or_default();
        known.insert(
            directory,
            is_in_git || listing.is_some_and(|listing| listing.is_git),
        );
    }
    for (directory, listing) in directories.iter().zip(index.listings()) {
        let is_in_git = known.get(directory.as_path()).copied().unwrap_or_default();
        for (name, target) in listing.iter().flat_map(|listing| &listing.links) {
            let is_known = |path: &Path| known.contains_key(path);
            let walk = PathWalk::in_root(root, directory, target, confinement, is_known);
            // A search reaches all of the workspace, so most links need no comparison with all private directories.
            let is_searched = !has_hidden && walk.is_always_below(&confinement.workspace);
            if is_in_git || !is_searched && walk.is_unchecked(confinement) {
                found.insert(directory.join(&**name).into(), target.clone());
            }
        }
    }
    found
}

/// How many directories are searched for links that lead into the workspace.
const MAX_SEARCHED_COUNT: usize = 256;
/// How deep the directories of the workspace are searched in which agents find instructions.
const WORKSPACE_DEPTH: usize = 4;

impl Confinement {
    /// Protects the paths in the workspace to which `directory` and the links in it lead: programs outside the sandbox use
    /// what is there. `depth` is how many levels of directories are searched. `is_used` tells which entries of `directory`
    /// matter, by their names.
    pub fn protect_links_of(
        &mut self,
        directory: &Path,
        depth: usize,
        is_used: impl Fn(&str) -> bool,
    ) {
        let links = links_below(directory, depth, is_used);
        let links = links.into_iter().chain([directory.to_owned()]);
        let links = links.filter(|link| !link.starts_with(&self.workspace));
        let links = links.filter(|link| !paths_inside(self, link).is_empty());
        let links: Vec<_> = links.collect();
        self.protected.extend(links);
    }

    /// Does so for the protected directories of the workspace.
    pub(crate) fn protect_links_of_workspace(&mut self) {
        let protected = self.protected.iter();
        let links = protected.flat_map(|directory| {
            let directory = directory.canonicalize().ok();
            let inside = directory.filter(|path| path.starts_with(&self.workspace));
            inside
                .map(|directory| links_below(&directory, WORKSPACE_DEPTH, |_| true))
                .unwrap_or_default()
        });
        let links = links.filter(|link| {
            let paths = paths_inside(self, link);
            let mut protected = self.protected.iter();
            // Most links lead to the same directory.
            !protected.any(|root| paths.keys().all(|path| path.starts_with(root)))
        });
        let links: Vec<_> = links.collect();
        self.protected.extend(links);
    }
}

/// Returns the links in a directory and in those below it, the upper ones first. Does not search repositories.
fn links_below(directory: &Path, depth: usize, is_used: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut waiting = VecDeque::from([(directory.to_owned(), depth)]);
    for _ in 0..MAX_SEARCHED_COUNT {
        let Some((current, depth)) = waiting.pop_front() else {
            break;
        };
        let is_first = current == directory;
        if !is_first && current.join(".git").exists() {
            continue;
        }
        for entry in fs::read_dir(&current).into_iter().flatten().flatten() {
            let Ok(kind) = entry.file_type() else {
                continue;
            };
            if is_first && !is_used(&entry.file_name().to_string_lossy()) {
                continue;
            }
            if kind.is_symlink() {
                found.push(entry.path());
            } else if kind.is_dir() && depth > 1 {
                waiting.push_back((entry.path(), depth - 1));
            }
        }
    }
    found
}

/// Returns the paths in the workspace that decide where a path leads: links, its end, and directories that the path leaves
/// by `..`. The flag is whether only a link there would change it.
pub(crate) fn paths_inside(confinement: &Confinement, path: &Path) -> BTreeMap<PathBuf, bool> {
    let workspace = &confinement.workspace;
    let walk = PathWalk::new(ROOT.as_ref(), path, confinement);
    let left = walk.left.into_iter().map(|path| (path, true));
    let links = walk.links.into_iter().chain([walk.real]);
    let all = left.chain(links.map(|path| (path, false)));
    all.filter(|(path, _)| path != workspace && path.starts_with(workspace))
        .collect()
}
