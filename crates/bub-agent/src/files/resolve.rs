//! Resolves the paths that tools receive.

use std::{
    ffi::OsString,
    io::ErrorKind,
    path::{Component, Path, PathBuf},
};

use bub_kernel::{Error, Result};

use super::open::file_error;

/// Maximum number of symbolic links to follow; Linux has the same limit.
const MAX_SYMLINKS: usize = 40;

/// Returns the absolute path for `name`. `~` is the user's home directory; relative paths start at the workspace.
pub(super) fn absolute_path(
    name: &str,
    workspace: Option<&Path>,
    home: Option<&Path>,
) -> Result<PathBuf> {
    let in_home = if name == "~" {
        Some("")
    } else {
        name.strip_prefix("~/")
    };
    let resolve_error = |reason: &str| {
        let text = format!("cannot resolve '{name}': {reason}; pass an absolute path");
        Error::invalid_input(text)
    };
    let path = match in_home {
        Some(rest) => home
            .ok_or_else(|| resolve_error("the home directory is unknown"))?
            .join(rest.trim_start_matches('/')),
        None => PathBuf::from(name),
    };
    if path.is_absolute() {
        return Ok(path);
    }
    let workspace = workspace.ok_or_else(|| resolve_error("no workspace is set"))?;
    Ok(workspace.join(path))
}

/// Returns the path without `.` and `..`. Does not read the file system.
pub(super) fn normalize(path: &Path) -> PathBuf {
    let mut normalized = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => drop(normalized.pop()),
            part => normalized.push(part),
        }
    }
    normalized
}

/// Returns the path with all symbolic links resolved, also if the last component does not exist. `canonicalize` would
/// fail for such a path, but a write through a broken link would still create a file at the target of the link.
pub(super) fn resolve_symlinks(path: &Path) -> Result<PathBuf> {
    let mut resolved = PathBuf::new();
    let mut remaining = reversed_components(path);
    let mut links = 0;
    while let Some(part) = remaining.pop() {
        match Path::new(&part).components().next() {
            Some(Component::RootDir) => resolved = PathBuf::from("/"),
            Some(Component::ParentDir) => {
                resolved.pop();
            }
            Some(Component::Normal(name)) => {
                resolved.push(name);
                match std::fs::symlink_metadata(&resolved) {
                    Ok(metadata) if metadata.is_symlink() => {
                        links += 1;
                        if links > MAX_SYMLINKS {
                            let problem = format!("too many symbolic links in {}", path.display());
                            return Err(Error::invalid_input(problem));
                        }
                        let target = std::fs::read_link(&resolved)
                            .map_err(|error| file_error("follow", &resolved, &error))?;
                        resolved.pop();
                        remaining.extend(reversed_components(&target));
                    }
                    Err(error) if error.kind() != ErrorKind::NotFound => {
                        return Err(file_error("reach", &resolved, &error));
                    }
                    _ => {}
                }
            }
            _ => {}
        }
    }
    Ok(resolved)
}

/// Returns the components of a path in reverse order.
fn reversed_components(path: &Path) -> Vec<OsString> {
    path.components()
        .rev()
        .map(|part| part.as_os_str().to_owned())
        .collect()
}
