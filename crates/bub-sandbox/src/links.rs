//! Links that a command must not leave behind in the workspace.
//!
//! Through a link in a git directory, git writes elsewhere. Through a link to a directory that no search reaches, such as
//! the private temporary directory, a user would enter a repository that was never reviewed.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::{Path, PathBuf},
};

use crate::{
    Confinement, baseline::StoredPath, directory_index::DirectoryIndex, named_paths::PathWalk,
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

impl Confinement {
    /// Protects the path in the workspace to which `directory` leads, and those to which links in it lead: programs outside
    /// the sandbox use what is there. `is_used` tells which links matter, by their names.
    pub fn protect_links_of(&mut self, directory: &Path, is_used: impl Fn(&str) -> bool) {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let links = entries.filter(|entry| {
            entry.file_type().is_ok_and(|kind| kind.is_symlink())
                && is_used(&entry.file_name().to_string_lossy())
        });
        let paths = links.map(|entry| entry.path());
        let paths = paths.chain([directory.to_owned()]);
        let paths = paths.filter_map(|path| path_inside(&self.workspace, &path));
        let paths: Vec<_> = paths.collect();
        self.protected.extend(paths);
    }
}

/// Returns the path in the workspace to which a path outside leads, also if there is nothing yet.
fn path_inside(workspace: &Path, path: &Path) -> Option<PathBuf> {
    let missing = || {
        let target = path.parent()?.join(fs::read_link(path).ok()?);
        Some(
            target
                .parent()?
                .canonicalize()
                .ok()?
                .join(target.file_name()?),
        )
    };
    let real = path.canonicalize().ok().or_else(missing)?;
    let is_inside = |path: &Path| path != workspace && path.starts_with(workspace);
    (is_inside(&real) && !is_inside(path)).then_some(real)
}
