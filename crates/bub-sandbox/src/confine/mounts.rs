//! The file system that a confined command sees.
//!
//! Hidden directories are covered by empty ones. Paths that stay visible below them are attached again. Every change is
//! one [`Change`] of one path. Changes of parents come before those of their children, so that a rule for a path applies
//! to all paths below it that have no rule.

use std::{
    fs::{self, File},
    io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, StatVfsMountFlags, statvfs},
    io::Errno,
    mount::{
        MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount, mount_bind,
        mount_change, mount_remount, move_mount, open_tree,
    },
};

use crate::Confinement;

/// Directories with sockets and data of other programs, or with files of other users.
const HIDDEN_DIRECTORIES: &[&str] = &[
    "/tmp", "/var/tmp", "/run", "/var/run", "/root", "/home", "/dev/shm", "/mnt", "/media",
];
/// Directories that the command sees as its private temporary directory.
const TEMP_DIRECTORIES: &[&str] = &["/tmp", "/var/tmp"];
/// Files below hidden directories without which names of hosts cannot be resolved.
const RESOLVER_PATHS: &[&str] = &["/run/systemd/resolve", "/run/NetworkManager/resolv.conf"];
/// Options of an empty directory. Tools write caches to it, so its size is limited.
const EMPTY_DIRECTORY_OPTIONS: &std::ffi::CStr = c"mode=0755,size=256m";

/// A change to what is at a path.
enum Change {
    /// Covers a directory with an empty one, or a file with an empty file.
    Hide,
    /// Attaches what was there before all changes.
    Attach { tree: OwnedFd, is_read_only: bool },
}

/// Builds the file system of the command.
pub(super) fn set_up(confinement: &Confinement) -> io::Result<()> {
    mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )?;
    let mut changes = plan(confinement)?;
    // At the same path, hide before attaching: the sort is stable and the plan has them in this order.
    changes.sort_by_key(|(path, _)| path.components().count());
    for (path, change) in changes {
        let applied = apply(&path, change);
        applied.map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        })?;
    }
    set_up_terminals()?;
    make_read_only(Path::new("/"))
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
fn plan(confinement: &Confinement) -> io::Result<Vec<(PathBuf, Change)>> {
    let mut changes = Vec::new();
    let home = confinement.home.iter().map(PathBuf::as_path);
    let directories = HIDDEN_DIRECTORIES.iter().map(Path::new).chain(home);
    // A link such as /var/run leads to a directory of this list.
    let is_real = |path: &&Path| fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
    for path in directories.filter(is_real) {
        changes.push((path.to_owned(), Change::Hide));
    }
    for path in &confinement.hidden {
        changes.push((path.clone(), Change::Hide));
    }
    let mut attach = |source: &Path, target: &Path, is_read_only: bool| -> io::Result<()> {
        if let Some(tree) = clone_tree(source)? {
            changes.push((target.to_owned(), Change::Attach { tree, is_read_only }));
        }
        Ok(())
    };
    attach(
        &confinement.workspace,
        &confinement.workspace,
        !confinement.can_write,
    )?;
    for target in TEMP_DIRECTORIES.iter().map(Path::new) {
        attach(&confinement.temp, target, false)?;
    }
    for path in &confinement.readable {
        attach(path, path, true)?;
    }
    if confinement.network {
        for path in RESOLVER_PATHS.iter().map(Path::new) {
            attach(path, path, true)?;
        }
    }
    for path in &confinement.writable {
        attach(path, path, false)?;
    }
    if confinement.can_write {
        // A link such as `.git -> /home/user` must not open what it leads to.
        let is_direct = |path: &&PathBuf| path.canonicalize().is_ok_and(|real| real == **path);
        for path in confinement.protected.iter().filter(is_direct) {
            // A mount point cannot be renamed. Without this, the command could move the parent away and create another.
            if let Some(parent) = path
                .parent()
                .filter(|parent| **parent != confinement.workspace)
            {
                attach(parent, parent, false)?;
            }
            attach(path, path, true)?;
        }
    }
    Ok(changes)
}

/// Returns a copy of the mounts at `path`, or `None` if it does not exist or is a symbolic link.
fn clone_tree(path: &Path) -> io::Result<Option<OwnedFd>> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    match fs::symlink_metadata(path) {
        Ok(found) if !found.is_symlink() => {}
        _ => return Ok(None),
    }
    match open_tree(CWD, path, flags) {
        Ok(tree) => Ok(Some(tree)),
        Err(Errno::NOENT | Errno::ACCESS) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn apply(path: &Path, change: Change) -> io::Result<()> {
    match change {
        Change::Hide => hide(path),
        Change::Attach { tree, is_read_only } => {
            create_mount_point(path, &tree)?;
            move_mount(
                tree.as_fd(),
                "",
                CWD,
                path,
                MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
            )?;
            if is_read_only {
                make_read_only(path)?;
            }
            Ok(())
        }
    }
}

/// Covers what is at a path. Does nothing if there is nothing.
fn hide(path: &Path) -> io::Result<()> {
    let Ok(found) = fs::symlink_metadata(path) else {
        return Ok(());
    };
    if found.is_dir() {
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount("tmpfs", path, "tmpfs", flags, EMPTY_DIRECTORY_OPTIONS)?;
    } else if !found.is_symlink() {
        mount_bind("/dev/null", path)?;
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
        return fs::create_dir_all(path);
    }
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    File::create(path).map(drop)
}

/// Makes the mount at a path read-only.
fn make_read_only(path: &Path) -> io::Result<()> {
    let current = statvfs(path)?.f_flag;
    // A user namespace must keep the restrictions of a mount that it inherited.
    let kept = [
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ];
    let mut flags = MountFlags::BIND | MountFlags::RDONLY;
    for (_, flag) in kept.iter().filter(|(kept, _)| current.contains(*kept)) {
        flags |= *flag;
    }
    Ok(mount_remount(path, flags, "")?)
}
