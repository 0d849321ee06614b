//! What a confinement allows at a path, for bub's own file tools: they must reach what a confined command reaches.

use std::path::{Path, PathBuf};

#[cfg(target_os = "linux")]
pub(crate) use crate::confine::{SYSTEM_DATA, SYSTEM_DIRECTORIES};
#[cfg(not(target_os = "linux"))]
pub(crate) use crate::seatbelt::{SYSTEM_DATA, SYSTEM_DIRECTORIES};
use crate::{Confinement, protection};

/// Directories that a command on Linux sees as its private temporary directory.
pub(crate) const TEMP_DIRECTORIES: &[&str] = &["/tmp", "/var/tmp"];

/// What a confined command can do with the file at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathAccess {
    /// The command does not see the file.
    None,
    /// The command can read the file.
    Read,
    /// The command can read and change the file.
    Write,
}

impl Confinement {
    /// Returns what the command can do at an absolute path without symbolic links, except for
    /// [protected](Self::is_protected) ones.
    pub fn access(&self, path: &Path) -> PathAccess {
        self.rule(path).unwrap_or(PathAccess::None)
    }

    /// Returns whether a path without symbolic links in the workspace must not be changed: it decides what programs
    /// outside the sandbox do. Searches the workspace.
    pub fn is_protected(&self, path: &Path) -> bool {
        protection::is_protected(self, path)
    }

    /// Returns the rule for a path, if there is one. As with mounts, the rule for the longest path decides, and at the
    /// same path the last one.
    fn rule(&self, path: &Path) -> Option<PathAccess> {
        let workspace = if self.can_write {
            PathAccess::Write
        } else {
            PathAccess::Read
        };
        let hidden = self.hidden.iter().map(PathBuf::as_path);
        let closed = self.covered_home().into_iter().chain(hidden);
        let closed = closed.map(|root| (root, PathAccess::None));
        let system = SYSTEM_DIRECTORIES.iter().chain(SYSTEM_DATA).map(Path::new);
        let readable = system.chain(self.readable.iter().map(PathBuf::as_path));
        let writable = [&self.temp].into_iter().chain(&self.writable);
        let opened = [(self.workspace.as_path(), workspace)]
            .into_iter()
            .chain(readable.map(|root| (root, PathAccess::Read)))
            .chain(writable.map(|root| (root.as_path(), PathAccess::Write)))
            .filter(|(root, _)| path.starts_with(root));
        // Where the file system ignores case, another spelling must not get around a rule that closes.
        let closed = closed.filter(|(root, _)| is_below(path, root));
        let matching = closed.chain(opened);
        let longest = matching.max_by_key(|(root, _)| root.components().count());
        longest.map(|(_, access)| access)
    }

    /// Returns where a file is that the command sees at `path`: its temporary directory is `/tmp` for the command.
    pub fn outside_path(&self, path: &Path) -> PathBuf {
        let in_temp = |root: &&str| path.strip_prefix(root).ok();
        match TEMP_DIRECTORIES.iter().find_map(in_temp) {
            Some(rest) if cfg!(target_os = "linux") && self.rule(path).is_none() => {
                self.temp.join(rest)
            }
            _ => path.to_owned(),
        }
    }

    /// Returns where the command sees the file at `path`; the opposite of [`Self::outside_path`].
    pub fn inside_path(&self, path: &Path) -> PathBuf {
        let in_temp = path.strip_prefix(&self.temp).ok();
        match (in_temp, TEMP_DIRECTORIES.first()) {
            (Some(rest), Some(root)) if cfg!(target_os = "linux") => Path::new(root).join(rest),
            _ => path.to_owned(),
        }
    }
}

/// Returns whether a path is `root` or below it. Ignores the case of ASCII letters.
pub fn is_below(path: &Path, root: &Path) -> bool {
    let mut parts = path.components();
    root.components().all(|expected| {
        let expected = expected.as_os_str();
        let part = parts.next();
        part.is_some_and(|part| part.as_os_str().eq_ignore_ascii_case(expected))
    })
}
