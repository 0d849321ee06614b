//! Lists directory trees. Directories are opened relative to their parents and links are not followed, so that nothing
//! outside the tree is listed, even if directories are renamed meanwhile.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Read as _},
    ops::ControlFlow,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    time::Instant,
};

use bub_kernel::{Error, ErrorKind, Result};
use ignore::{
    Match,
    gitignore::{Gitignore, GitignoreBuilder},
};
use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags, fstat, openat, statat},
    io::Errno,
};

use super::{
    AllowedFile, FileRules, FileUse, file_error,
    keys::has_private_key,
    open::{FILE, Identity, identity},
};

/// Files with patterns of files that are not listed. A pattern in a later file has precedence.
const IGNORE_FILES: [&str; 2] = [".gitignore", ".ignore"];
/// The directory of a repository, which is not listed.
const GIT_DIRECTORY: &str = ".git";
/// Maximum bytes read from an ignore file.
const MAX_IGNORE_BYTES: u64 = 1 << 20;
/// Maximum entries of one directory.
const MAX_DIRECTORY_ENTRIES: usize = 100_000;
/// Maximum depth of a tree. Each level uses an open file.
const MAX_DEPTH: usize = 64;

/// A file or directory that a tool may list with everything below it.
pub(crate) struct AllowedTree {
    pub(super) file: AllowedFile,
    pub(super) rules: FileRules,
    /// Directories that are not listed, whatever their path is.
    pub(super) private: Vec<Identity>,
}

/// An entry of a tree.
pub(crate) struct TreeEntry<'a> {
    directory: &'a OwnedFd,
    name: &'a OsStr,
    /// The path relative to the root of the tree.
    pub(crate) path: &'a Path,
    pub(crate) kind: FileType,
    /// Whether the entry is not opened if it contains a private key.
    hides_keys: bool,
}

/// When to stop listing.
pub(crate) struct WalkLimits<'a> {
    pub(crate) max_depth: usize,
    pub(crate) deadline: Instant,
    pub(crate) is_cancelled: &'a dyn Fn() -> bool,
}

/// How a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WalkOutcome {
    Complete,
    /// The visitor stopped the walk.
    Stopped,
    /// The deadline passed.
    TimedOut,
}

type Visitor<'a> = dyn FnMut(&TreeEntry<'_>) -> ControlFlow<()> + 'a;

impl AllowedTree {
    /// Calls `visit` for every entry below the root, in the order of the names. If the root is a file, calls it for that
    /// file, with an empty path. Skips what ignore files name, and what the sender may not see.
    pub(crate) fn walk(
        &self,
        limits: &WalkLimits<'_>,
        visit: &mut Visitor<'_>,
    ) -> Result<WalkOutcome> {
        let (parent, name) = self.file.parts();
        let error = |error: Errno| file_error("list", self.file.path(), &error.into());
        let found = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).map_err(error)?;
        let kind = FileType::from_raw_mode(found.st_mode);
        if kind != FileType::Directory {
            let entry = TreeEntry {
                directory: parent,
                name,
                path: Path::new(""),
                kind,
                hides_keys: self.rules.hides_keys(),
            };
            let _ = visit(&entry);
            return Ok(WalkOutcome::Complete);
        }
        let directory = open_listed(parent, name).map_err(error)?;
        let mut walk = Walk {
            tree: self,
            limits,
            ignores: self.parent_ignores(),
            visit,
        };
        let flow = walk.list(&directory, Path::new(""), 1).map_err(error)?;
        if (limits.is_cancelled)() {
            return Err(Error::new(ErrorKind::Cancelled, "listing was cancelled"));
        }
        Ok(match flow {
            ControlFlow::Continue(()) => WalkOutcome::Complete,
            ControlFlow::Break(outcome) => outcome,
        })
    }

    /// Returns the absolute path of the root, without symbolic links.
    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    /// Returns the patterns of the ignore files in the workspace that are above the tree.
    fn parent_ignores(&self) -> Vec<Gitignore> {
        let Some(workspace) = &self.rules.workspace else {
            return Vec::new();
        };
        let Ok(below) = self.path().strip_prefix(workspace) else {
            return Vec::new();
        };
        let mut directory = workspace.clone();
        let mut ignores = Vec::new();
        for part in below {
            if let Ok(opened) = open_listed(rustix::fs::CWD, directory.as_os_str()) {
                ignores.push(read_ignores(&opened, &directory));
            }
            directory.push(part);
        }
        ignores
    }

    fn is_listed(&self, path: &Path) -> bool {
        self.rules.refusal(path, FileUse::Read).is_none()
    }
}

impl TreeEntry<'_> {
    /// Opens the entry if it is a regular file that the sender may read.
    pub(crate) fn open(&self) -> io::Result<File> {
        let flags = OFlags::RDONLY | FILE;
        let mut file = File::from(openat(self.directory, self.name, flags, Mode::empty())?);
        if !file.metadata()?.is_file() {
            return Err(Errno::LOOP.into());
        }
        if self.hides_keys && has_private_key(&mut file)? {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(file)
    }
}

/// A walk in progress.
struct Walk<'a, 'v> {
    tree: &'a AllowedTree,
    limits: &'a WalkLimits<'a>,
    /// The patterns that apply to the current directory. Inner ones have precedence.
    ignores: Vec<Gitignore>,
    visit: &'a mut Visitor<'v>,
}

impl Walk<'_, '_> {
    fn list(
        &mut self,
        directory: &OwnedFd,
        path: &Path,
        depth: usize,
    ) -> Result<ControlFlow<WalkOutcome>, Errno> {
        let absolute = self.tree.path().join(path);
        self.ignores.push(read_ignores(directory, &absolute));
        let mut flow = ControlFlow::Continue(());
        for name in sorted_names(directory)? {
            flow = self.visit_name(directory, path, &name, depth);
            if flow.is_break() {
                break;
            }
        }
        self.ignores.pop();
        Ok(flow)
    }

    fn visit_name(
        &mut self,
        directory: &OwnedFd,
        parent: &Path,
        name: &OsStr,
        depth: usize,
    ) -> ControlFlow<WalkOutcome> {
        if Instant::now() > self.limits.deadline || (self.limits.is_cancelled)() {
            return ControlFlow::Break(WalkOutcome::TimedOut);
        }
        // An entry that is gone or unreadable is skipped, as if it had never been there.
        let Ok(found) = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) else {
            return ControlFlow::Continue(());
        };
        let kind = FileType::from_raw_mode(found.st_mode);
        let is_directory = kind == FileType::Directory;
        let path = parent.join(name);
        let absolute = self.tree.path().join(&path);
        if name == GIT_DIRECTORY
            || self.is_ignored(&absolute, is_directory)
            || !self.tree.is_listed(&absolute)
            || (is_directory && self.tree.private.contains(&identity(&found)))
        {
            return ControlFlow::Continue(());
        }
        let entry = TreeEntry {
            directory,
            name,
            path: &path,
            kind,
            hides_keys: self.tree.rules.hides_keys(),
        };
        if (self.visit)(&entry).is_break() {
            return ControlFlow::Break(WalkOutcome::Stopped);
        }
        if !is_directory || depth >= self.limits.max_depth.min(MAX_DEPTH) {
            return ControlFlow::Continue(());
        }
        let child = open_listed(directory, name).and_then(|child| {
            // The directory may have been replaced since it was checked.
            let is_same = identity(&fstat(&child)?) == identity(&found);
            is_same.then_some(child).ok_or(Errno::LOOP)
        });
        let listed = child.and_then(|child| self.list(&child, &path, depth + 1));
        listed.unwrap_or(ControlFlow::Continue(()))
    }

    fn is_ignored(&self, path: &Path, is_directory: bool) -> bool {
        let mut matches = self.ignores.iter().rev();
        let found = matches.find_map(|ignore| match ignore.matched(path, is_directory) {
            Match::None => None,
            found => Some(found.is_ignore()),
        });
        found.unwrap_or(false)
    }
}

fn open_listed(directory: impl AsFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(directory, name, flags, Mode::empty())
}

fn sorted_names(directory: &OwnedFd) -> Result<Vec<OsString>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)?.take(MAX_DIRECTORY_ENTRIES) {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(OsStr::from_bytes(name).to_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Reads the ignore files in a directory. Files that cannot be read ignore nothing.
fn read_ignores(directory: &OwnedFd, path: &Path) -> Gitignore {
    let mut builder = GitignoreBuilder::new(path);
    for name in IGNORE_FILES {
        let opened = openat(directory, name, OFlags::RDONLY | FILE, Mode::empty());
        let Ok(file) = opened.map(File::from) else {
            continue;
        };
        let mut text = Vec::new();
        if file.take(MAX_IGNORE_BYTES).read_to_end(&mut text).is_ok() {
            for line in String::from_utf8_lossy(&text).lines() {
                // An invalid pattern ignores nothing.
                let _ = builder.add_line(None, line);
            }
        }
    }
    builder.build().unwrap_or_else(|_| Gitignore::empty())
}

/// Returns the path of an entry as tools show it: relative to the directory that the caller named.
pub(crate) fn shown_path(root: &str, path: &Path) -> PathBuf {
    let root = Path::new(root);
    let root = root.strip_prefix("./").unwrap_or(root);
    match (
        root == Path::new(".") || root.as_os_str().is_empty(),
        path.as_os_str().is_empty(),
    ) {
        (true, _) => path.to_owned(),
        (false, true) => root.to_owned(),
        (false, false) => root.join(path),
    }
}
