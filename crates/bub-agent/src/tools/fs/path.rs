//! Which file a name means.

use std::{
    ffi::OsString,
    io::ErrorKind,
    path::{Component, Path, PathBuf},
};

use bub_kernel::{Error, Result};

use super::failure;

/// As many as the system follows.
const MAX_SYMLINKS: usize = 40;

/// The absolute path of a name: `~` is the home directory, and what is relative starts at the workspace.
pub(super) fn absolute(
    name: &str,
    workspace: Option<&Path>,
    home: Option<&Path>,
) -> Result<PathBuf> {
    let in_home = if name == "~" {
        Some("")
    } else {
        name.strip_prefix("~/")
    };
    let path = match in_home {
        Some(rest) => home
            .ok_or_else(|| {
                Error::invalid_input(format!("there is no home directory for '{name}'"))
            })?
            .join(rest.trim_start_matches('/')),
        None => PathBuf::from(name),
    };
    if path.is_absolute() {
        return Ok(path);
    }
    let refusal = || format!("relative path '{name}' is not allowed without a workspace");
    Ok(workspace
        .ok_or_else(|| Error::invalid_input(refusal()))?
        .join(path))
}

/// The real place of an absolute path, whether there is something yet or not: no link is left in it. Confined, it must
/// lie in the workspace.
///
/// The answer is what must be opened, not the path that was asked for: what was checked is then what is used.
pub fn resolve(path: &Path, workspace: Option<&Path>, confine: bool) -> Result<PathBuf> {
    let place = resolve_symlinks(path)?;
    if !confine {
        return Ok(place);
    }
    let workspace = workspace.ok_or_else(|| {
        Error::invalid_input("files are confined to the workspace, and there is none")
    })?;
    if place.starts_with(resolve_symlinks(workspace)?) {
        return Ok(place);
    }
    // Without any path: people who may not know them are told, too.
    Err(Error::invalid_input(
        "the path is outside the workspace, and only files in it may be touched",
    ))
}

/// Follows every link by hand, as the system would, because the system gives no answer where the last part is
/// missing: behind a link that leads nowhere, a file could be created.
fn resolve_symlinks(path: &Path) -> Result<PathBuf> {
    let mut place = PathBuf::new();
    let mut todo = parts(path);
    let mut links = 0;
    while let Some(part) = todo.pop() {
        match Path::new(&part).components().next() {
            Some(Component::RootDir) => place = PathBuf::from("/"),
            Some(Component::ParentDir) => {
                place.pop();
            }
            Some(Component::Normal(name)) => {
                place.push(name);
                match std::fs::symlink_metadata(&place) {
                    Ok(metadata) if metadata.is_symlink() => {
                        links += 1;
                        if links > MAX_SYMLINKS {
                            let problem =
                                format!("too many symbolic links on the way to {}", path.display());
                            return Err(Error::invalid_input(problem));
                        }
                        let target = std::fs::read_link(&place)
                            .map_err(|error| failure("follow", &place, &error))?;
                        place.pop();
                        todo.extend(parts(&target));
                    }
                    Err(error) if error.kind() != ErrorKind::NotFound => {
                        return Err(failure("reach", &place, &error));
                    }
                    _ => {}
                }
            }
            _ => {}
        }
    }
    Ok(place)
}

/// The parts of a path, the last one first.
fn parts(path: &Path) -> Vec<OsString> {
    path.components()
        .rev()
        .map(|part| part.as_os_str().to_owned())
        .collect()
}
