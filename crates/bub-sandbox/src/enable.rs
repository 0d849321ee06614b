//! How the user makes git use a repository again that bub disabled after a command.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::SystemTime,
};

use crate::{
    Confinement,
    baseline::Baselines,
    directory_index::DirectoryIndex,
    named_paths::NamedPaths,
    new_repositories::{NewPlaces, Review},
    protection::{DISABLED_MARK, SEARCH_LIMIT},
    repositories::{GIT_NAMES, GitPlace, ROOT, Search, directory_entries, entries, git_directory},
};

/// Makes git use the repository in a directory of the workspace again, which bub disabled. Returns what git may run because
/// of it.
///
/// # Errors
///
/// Fails if no repository there is disabled, or if a command runs: it would be disabled again.
pub fn enable_repository(confinement: &Confinement, directory: &Path) -> io::Result<Vec<String>> {
    let directory = directory.canonicalize()?;
    let workspace = &confinement.workspace;
    if !directory.starts_with(workspace) {
        return Err(io::Error::other("it is not in the workspace"));
    }
    let records = confinement.records.as_deref();
    if records.is_some_and(|records| Baselines::is_in_use(records, workspace)) {
        let reason = "a command is running in the workspace; try again when it has ended";
        return Err(io::Error::other(reason));
    }
    let link = directory.join(".git");
    let mut is_enabled = enable_file(&link)?;
    let git = git_directory(&directory).unwrap_or_else(|| directory.clone());
    for part in GitPlace::Directory.parts(&git) {
        is_enabled |= enable_file(&part)?;
    }
    if !is_enabled {
        return Err(io::Error::other(
            "it contains no repository that bub disabled",
        ));
    }
    let parts = GIT_NAMES.iter().map(|name| git.join(name));
    for file in parts.chain(directory_entries(&git)).chain([link.clone()]) {
        separate(&file)?;
    }
    let search = Search::new(
        confinement,
        ROOT.as_ref(),
        SEARCH_LIMIT,
        &mut DirectoryIndex::default(),
    );
    let new = records.map(|records| NewPlaces::load(records, workspace).current(&search));
    let named = NamedPaths::find(&search, &new.unwrap_or_default(), confinement);
    let (named, error) = match named {
        Ok(named) => (named, None),
        Err(error) => (NamedPaths::default(), Some(error.to_string())),
    };
    let review = Review {
        search: &search,
        named: &named,
        confinement,
    };
    let mut findings = review.findings(&git, GitPlace::Directory);
    if link.is_file() {
        findings.extend(review.findings(&link, GitPlace::Link));
    }
    findings.extend(error);
    Ok(findings)
}

/// Gives a file its name back. Returns whether bub had renamed it.
fn enable_file(path: &Path) -> io::Result<bool> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let start = format!("{name}{DISABLED_MARK}");
    let is_renamed = |entry: &PathBuf| {
        let name = entry.file_name().unwrap_or_default();
        name.as_encoded_bytes().starts_with(start.as_bytes())
    };
    let changed = |entry: &PathBuf| {
        let changed = fs::symlink_metadata(entry).and_then(|found| found.modified());
        changed.unwrap_or(SystemTime::UNIX_EPOCH)
    };
    let renamed = entries(path.parent().unwrap_or(path)).filter(is_renamed);
    match renamed.max_by_key(changed) {
        Some(renamed) if fs::symlink_metadata(path).is_err() => {
            fs::rename(renamed, path)?;
            Ok(true)
        }
        _ => Ok(false),
    }
}

/// Replaces a file with other hard links by a copy, so that nothing else leads to it.
fn separate(file: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(file);
    if found.is_ok_and(|found| found.is_file() && found.nlink() > 1) {
        let copy = file.with_extension("copy");
        fs::copy(file, &copy)?;
        fs::rename(copy, file)?;
    }
    Ok(())
}
