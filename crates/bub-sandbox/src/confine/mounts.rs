//! The file system that a confined command sees.
//!
//! Directories that do not belong to the system are covered by empty ones. Paths that stay visible below them are
//! attached again. Every change is one [`Change`] of one path. Changes of parents come before those of their children, so
//! that a rule for a path applies to all paths below it that have no rule. This includes mounts: at the end, every mount
//! becomes read-only unless the rule for it says otherwise.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs::{self, File},
    io,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::{
            ffi::OsStringExt,
            fs::{DirBuilderExt, OpenOptionsExt},
        },
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, Mode, OFlags, ResolveFlags, openat2},
    io::Errno,
    mount::{
        MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount, mount_bind,
        mount_change, mount_remount, move_mount, open_tree,
    },
};

use super::{SYSTEM_DATA, SYSTEM_DIRECTORIES};
use crate::{Confinement, path_access::TEMP_DIRECTORIES};

/// Directories that the command can write to, and that are empty when it starts.
pub(super) const PRIVATE_DIRECTORIES: &[&str] = &["/tmp", "/var/tmp", "/dev/shm", "/run"];
/// Files below hidden directories without which names of hosts cannot be resolved.
const RESOLVER_PATHS: &[&str] = &["/run/systemd/resolve", "/run/NetworkManager/resolv.conf"];
/// Options of an empty directory. Tools write caches to it, so its size is limited.
const EMPTY_DIRECTORY_OPTIONS: &std::ffi::CStr = c"mode=0755,size=256m";
/// Flags of new file systems, and of `/proc`.
const NEW_MOUNT_FLAGS: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);

/// What a path becomes.
enum Content {
    /// What is there is covered by an empty directory or file. If there is nothing, nothing changes.
    Hidden,
    /// An empty directory.
    Empty,
    /// What was at a path before all changes.
    Tree(OwnedFd),
}

/// A change to what is at a path.
struct Change {
    path: PathBuf,
    content: Content,
    is_writable: bool,
}

/// Builds the file system of the command, except for `/proc`.
pub(super) fn set_up(confinement: &Confinement) -> io::Result<()> {
    mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )?;
    let mut changes = plan(confinement)?;
    // At the same path, hide before attaching: the sort is stable and the plan has them in this order.
    changes.sort_by_key(|change| change.path.components().count());
    let mut rules = Vec::new();
    for change in changes {
        let path = change.path;
        let applied = apply(confinement, &path, change.content);
        applied.map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        })?;
        rules.push((path, change.is_writable));
    }
    set_up_terminals()?;
    make_read_only(&rules)
}

/// Replaces `/proc` by one that shows only the processes of the command. Limits their number where the kernel can do so
/// for a process namespace.
pub(super) fn set_up_processes(max_processes: Option<u64>) -> io::Result<()> {
    let flags = NEW_MOUNT_FLAGS | MountFlags::NOEXEC;
    mount("proc", "/proc", "proc", flags, c"")?;
    if let Some(limit) = max_processes {
        // Ignore errors: kernels before 6.14 have one limit for the whole machine, which cannot be changed here.
        let limit = limit.max(crate::confinement::MIN_PROCESS_LIMIT);
        let _ = fs::write(crate::confinement::PROCESS_LIMIT_FILE, limit.to_string());
    }
    let flags = flags | MountFlags::BIND | MountFlags::RDONLY;
    Ok(mount_remount("/proc", flags, "")?)
}

/// Gives the command its own pseudo-terminals. Those of the user would let it read what is typed there.
fn set_up_terminals() -> io::Result<()> {
    if !Path::new("/dev/pts").is_dir() {
        return Ok(());
    }
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    let options = c"newinstance,ptmxmode=0666,mode=0620";
    mount("devpts", "/dev/pts", "devpts", flags, options)?;
    Ok(mount_bind("/dev/pts/ptmx", "/dev/ptmx")?)
}

/// Returns all changes. Opens what is to be attached before anything is hidden.
fn plan(confinement: &Confinement) -> io::Result<Vec<Change>> {
    let mut changes = Vec::new();
    let is_private = |path: &Path| {
        PRIVATE_DIRECTORIES
            .iter()
            .any(|name| path == Path::new(name))
    };
    for path in directories_outside_system()? {
        let is_writable = is_private(&path);
        let content = Content::Hidden;
        changes.push(Change {
            path,
            content,
            is_writable,
        });
    }
    if let Some(path) = confinement.covered_home() {
        let path = path.to_owned();
        changes.push(Change {
            path,
            content: Content::Empty,
            is_writable: false,
        });
    }
    for path in &confinement.hidden {
        changes.push(Change {
            path: path.clone(),
            content: Content::Hidden,
            is_writable: false,
        });
    }
    let mut attach = |source: &Path, target: &Path, is_writable: bool| -> io::Result<()> {
        if let Some(tree) = clone_tree(confinement, source)? {
            let (path, content) = (target.to_owned(), Content::Tree(tree));
            changes.push(Change {
                path,
                content,
                is_writable,
            });
        }
        Ok(())
    };
    let workspace = &confinement.workspace;
    attach(workspace, workspace, confinement.can_write)?;
    for target in TEMP_DIRECTORIES.iter().map(Path::new) {
        attach(&confinement.temp, target, true)?;
    }
    for (source, target) in confinement.private_caches() {
        // Ignore errors: a command may have put something else there. It has no cache then.
        let _ = fs::DirBuilder::new().mode(0o700).create(&source);
        attach(&source, &target, true)?;
    }
    let data = SYSTEM_DATA.iter().map(Path::new);
    for path in data.chain(confinement.readable.iter().map(PathBuf::as_path)) {
        attach(path, path, false)?;
    }
    if confinement.network {
        for path in RESOLVER_PATHS.iter().map(Path::new) {
            attach(path, path, false)?;
        }
    }
    for path in &confinement.writable {
        attach(path, path, true)?;
    }
    if confinement.can_write {
        for path in fixed_directories(confinement) {
            attach(path, path, true)?;
        }
        let protected = confinement.protected.iter();
        for path in protected.filter(|path| is_visible(confinement, path)) {
            attach(path, path, false)?;
        }
    }
    Ok(changes)
}

/// Returns directories that hold no programs, libraries or devices, and that are covered by empty ones.
fn directories_outside_system() -> io::Result<Vec<PathBuf>> {
    let mut directories = vec![PathBuf::from("/dev/shm")];
    for entry in fs::read_dir("/")?.flatten() {
        let path = entry.path();
        let is_system = path == Path::new("/dev")
            || SYSTEM_DIRECTORIES
                .iter()
                .any(|name| path == Path::new(name));
        // A link such as /bin leads to a directory that has its own rule.
        if !is_system && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            directories.push(path);
        }
    }
    Ok(directories)
}

/// Returns the directories in the workspace above protected and hidden paths. As mount points, they cannot be renamed.
/// Otherwise the command could move them away and create others.
fn fixed_directories(confinement: &Confinement) -> BTreeSet<&Path> {
    let protected = confinement.protected.iter();
    let all = protected.chain(&confinement.hidden);
    let existing = all.filter(|path| path.parent().is_some_and(Path::exists));
    let parents = existing.flat_map(|path| path.ancestors().skip(1));
    let inside = |path: &&Path| {
        *path != confinement.workspace
            && path.starts_with(&confinement.workspace)
            && is_visible(confinement, path)
    };
    parents.filter(inside).collect()
}

/// Returns whether a path exists, has no links in it, and is not hidden.
fn is_visible(confinement: &Confinement, path: &Path) -> bool {
    // A link such as `.git -> /home/user` must not open what it leads to.
    path.canonicalize().is_ok_and(|real| real == path)
        && !confinement
            .hidden
            .iter()
            .any(|hidden| path.starts_with(hidden))
}

/// Opens what is at a path. In the workspace and the temporary directory, no part of the path may be a link: another
/// command can replace a directory by one at any time.
fn open_path(confinement: &Confinement, path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let own = [&confinement.workspace, &confinement.temp];
    let resolve = if own.iter().any(|root| path.starts_with(root)) {
        ResolveFlags::NO_SYMLINKS
    } else {
        ResolveFlags::empty()
    };
    openat2(CWD, path, flags, Mode::empty(), resolve)
}

/// Returns a copy of the mounts at `path`, or `None` if it does not exist or is a symbolic link.
fn clone_tree(confinement: &Confinement, path: &Path) -> io::Result<Option<OwnedFd>> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_EMPTY_PATH;
    let opened = match open_path(confinement, path) {
        Ok(opened) => File::from(opened),
        Err(Errno::NOENT | Errno::ACCESS | Errno::LOOP | Errno::NOTDIR) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    if opened.metadata()?.is_symlink() {
        return Ok(None);
    }
    Ok(Some(open_tree(&opened, "", flags)?))
}

fn apply(confinement: &Confinement, path: &Path, content: Content) -> io::Result<()> {
    match content {
        Content::Hidden => hide(confinement, path),
        Content::Empty => {
            create_directory(path)?;
            hide(confinement, path)
        }
        Content::Tree(tree) => {
            create_mount_point(path, &tree)?;
            let target = open_path(confinement, path)?;
            let flags =
                MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
            Ok(move_mount(tree.as_fd(), "", target.as_fd(), "", flags)?)
        }
    }
}

/// Covers what is at a path. Does nothing if there is nothing.
fn hide(confinement: &Confinement, path: &Path) -> io::Result<()> {
    let found = match open_path(confinement, path) {
        Ok(found) => File::from(found),
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
        // What the link leads to is covered, too.
        Err(Errno::LOOP) if path.is_symlink() => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let metadata = found.metadata()?;
    let target = format!("/proc/self/fd/{}", found.as_raw_fd());
    if metadata.is_dir() {
        let options = EMPTY_DIRECTORY_OPTIONS;
        mount("tmpfs", &target, "tmpfs", NEW_MOUNT_FLAGS, options)?;
    } else if !metadata.is_symlink() {
        mount_bind("/dev/null", &target)?;
    }
    Ok(())
}

/// Creates an empty file or directory to attach `tree` to, unless there is one.
fn create_mount_point(path: &Path, tree: &OwnedFd) -> io::Result<()> {
    if fs::symlink_metadata(path).is_ok() {
        return Ok(());
    }
    let is_directory = File::from(tree.try_clone()?).metadata()?.is_dir();
    if is_directory {
        return create_directory(path);
    }
    if let Some(parent) = path.parent() {
        create_directory(parent)?;
    }
    let mut options = File::options();
    options.write(true).create_new(true).mode(0o600);
    options.open(path).map(drop)
}

/// Creates a directory and its parents. They may be in the temporary directory of the session, which is private.
fn create_directory(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
}

/// Makes every mount read-only, except those whose rule says that they are writable. The rule for a mount is that of the
/// deepest path above it; of two rules for the same path, the later one.
fn make_read_only(rules: &[(PathBuf, bool)]) -> io::Result<()> {
    for line in fs::read("/proc/self/mountinfo")?.split(|byte| *byte == b'\n') {
        let mut fields = line.split(|byte| *byte == b' ');
        let (Some(path), Some(options)) = (fields.nth(4), fields.next()) else {
            continue;
        };
        let path = unescape(path);
        let above = rules.iter().filter(|(above, _)| path.starts_with(above));
        let rule = above.max_by_key(|(above, _)| above.components().count());
        if rule.is_some_and(|(_, is_writable)| *is_writable) {
            continue;
        }
        // A user namespace must keep the restrictions of a mount that it inherited.
        let flag = |option: &[u8]| match option {
            b"nosuid" => MountFlags::NOSUID,
            b"nodev" => MountFlags::NODEV,
            b"noexec" => MountFlags::NOEXEC,
            _ => MountFlags::empty(),
        };
        let kept = options.split(|byte| *byte == b',').map(flag);
        let flags = kept.fold(MountFlags::BIND | MountFlags::RDONLY, MountFlags::union);
        match mount_remount(&path, flags, "") {
            // The mount is below a covered directory, where it cannot be reached.
            Ok(()) | Err(Errno::NOENT | Errno::INVAL | Errno::ACCESS | Errno::NOTDIR) => {}
            Err(error) => {
                let error = io::Error::from(error);
                let text = format!("{}: {error}", path.display());
                return Err(io::Error::new(error.kind(), text));
            }
        }
    }
    Ok(())
}

/// Decodes a path of `mountinfo`, in which `\040` is a space.
fn unescape(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| *first == b'\\');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(escaped.unwrap_or(*first));
        rest = escaped.and_then(|_| after.get(3..)).unwrap_or(after);
    }
    PathBuf::from(OsString::from_vec(bytes))
}
