//! Resolves the paths that the fs tools receive.

use std::{
    ffi::OsString,
    io::ErrorKind,
    path::{Component, Path, PathBuf},
};

use bub_kernel::{Error, Result};

use super::file_error;

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

/// Resolves the symbolic links of an absolute path. The file need not exist. With `confine`, fails if the result is
/// outside the workspace.
///
/// Callers must open the returned path, not `path`. Otherwise a link could change between the check and the use.
pub fn resolve_path(path: &Path, workspace: Option<&Path>, confine: bool) -> Result<PathBuf> {
    let resolved = resolve_symlinks(path)?;
    if !confine {
        return Ok(resolved);
    }
    let workspace = workspace.ok_or_else(|| {
        Error::invalid_input(
            "cannot access files: only files in the workspace are allowed, but no workspace is set; start bub with `-w DIR`",
        )
    })?;
    if resolved.starts_with(resolve_symlinks(workspace)?) {
        return Ok(resolved);
    }
    // The error contains no path, because it is also shown to users who must not know the path.
    Err(Error::invalid_input(
        "the path is outside the workspace; only files in the workspace are allowed",
    ))
}

/// Returns the path with all symbolic links resolved, also if the last component does not exist. `canonicalize` would
/// fail for such a path, but a write through a broken link would still create a file at the target of the link.
fn resolve_symlinks(path: &Path) -> Result<PathBuf> {
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
