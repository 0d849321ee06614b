//! Opens and replaces files so that no link can lead to another file, even if directories are renamed meanwhile.

use std::{
    ffi::{OsStr, OsString},
    fs::{File, Metadata, Permissions},
    io::{self, ErrorKind, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::{Component, Path, PathBuf},
};

use bub_kernel::{Error, Result};
#[cfg(target_os = "linux")]
use rustix::fs::{ResolveFlags, openat2};
use rustix::{
    fs::{
        AtFlags, CWD, FileType, Mode, OFlags, Stat, fstat, mkdirat, openat, renameat, stat, statat,
        unlinkat,
    },
    io::Errno,
};

use super::{FileError, FileRefusal, FileUse, keys::has_private_key};

/// Flags of a directory that is opened to reach what is in it.
#[cfg(target_os = "linux")]
const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
#[cfg(not(target_os = "linux"))]
const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);
/// Flags of every file. Without `NONBLOCK`, opening a pipe could block forever.
pub(super) const FILE: OFlags = OFlags::NOFOLLOW
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// Device and inode of a directory.
pub(super) type Identity = (u64, u64);

/// A file that a tool may use: its name in an open directory. The file may not exist.
#[derive(Debug)]
pub struct AllowedFile {
    directory: OwnedFd,
    name: OsString,
    path: PathBuf,
    shown: PathBuf,
    /// Whether the file is not opened if it contains a private key.
    hides_keys: bool,
}

impl AllowedFile {
    /// Opens the directory of a file below `root`. `path` is absolute and has no symbolic links; if it has one now, this
    /// fails. Creates missing directories for [`FileUse::Create`]. Refuses the directories `private` and what is below them.
    /// Errors name the path `shown`.
    pub(super) fn new(
        root: &Path,
        path: PathBuf,
        shown: PathBuf,
        usage: FileUse,
        private: &[Identity],
    ) -> Result<Self, FileError> {
        let create = usage == FileUse::Create;
        let action = if create { "write" } else { "read" };
        let io_error = |error: io::Error| FileError::Failed(file_error(action, &shown, &error));
        let is_directory = || io_error(ErrorKind::IsADirectory.into());
        let name = path.file_name().ok_or_else(is_directory)?.to_owned();
        let below = path.strip_prefix(root).ok().and_then(Path::parent);
        let below = below.ok_or_else(is_directory)?;
        let root = openat(CWD, root, DIRECTORY, Mode::empty());
        let root = root.map_err(|error| io_error(error.into()))?;
        let directory = match open_directory(&root, below, create, private) {
            Ok(directory) => directory,
            Err(OpenError::Private) => return Err(FileError::Refused(FileRefusal::Home)),
            Err(OpenError::Failed(error)) => return Err(io_error(error.into())),
        };
        Ok(Self {
            directory,
            name,
            path,
            shown,
            hides_keys: false,
        })
    }

    /// Sets whether the file is not opened if it contains a private key.
    pub(super) fn without_keys(self, hides_keys: bool) -> Self {
        Self { hides_keys, ..self }
    }

    /// Opens a file to read it, at an absolute path without symbolic links.
    ///
    /// # Errors
    ///
    /// Fails if the path has a symbolic link, or if it is not a regular file.
    pub fn open_resolved(path: &Path) -> Result<File> {
        let shown = path.to_owned();
        Self::new(Path::new("/"), path.to_owned(), shown, FileUse::Read, &[])?.open()
    }

    /// Returns the open directory of the file, and the name of the file in it.
    pub(super) fn parts(&self) -> (&OwnedFd, &OsStr) {
        (&self.directory, &self.name)
    }

    /// Returns the absolute path of the file, without symbolic links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path that users and the model see: a file in the private temporary directory is in `/tmp`, as it is
    /// for commands.
    pub fn shown_path(&self) -> &Path {
        &self.shown
    }

    /// Opens the file to read it.
    ///
    /// # Errors
    ///
    /// Fails if it is not a regular file: reading a pipe or a device could block forever. Also fails if it contains a
    /// private key and the sender is not an owner.
    pub fn open(&self) -> Result<File> {
        self.check_kind()?;
        let read_error = |error| self.error("read", &error);
        let (mut file, metadata) = self.open_with(OFlags::RDONLY).map_err(read_error)?;
        if !metadata.is_file() {
            return Err(read_error(Errno::LOOP.into()));
        }
        if self.hides_keys && has_private_key(&mut file).map_err(read_error)? {
            return Err(FileError::Refused(FileRefusal::Hidden).into());
        }
        Ok(file)
    }

    /// Replaces the content of the file and keeps its mode. Readers see the old or the new content, unless the file must
    /// be written in place.
    ///
    /// # Errors
    ///
    /// Fails if it exists and is not a regular file, or if it cannot be written.
    pub fn replace(&self, content: &[u8]) -> Result<()> {
        let write_error = |error| self.error("write", &error);
        if !self.check_kind_or_missing()? {
            return self.replace_atomically(content, None).map_err(write_error);
        }
        // Open the file first: a rename would also replace a file that must not be written.
        let (mut file, metadata) = self.open_with(OFlags::WRONLY).map_err(write_error)?;
        // A rename would not update other hard links of the file.
        let outcome = if metadata.nlink() > 1 {
            Err(ErrorKind::PermissionDenied.into())
        } else {
            self.replace_atomically(content, Some(metadata.permissions()))
        };
        match outcome {
            // Write in place if the file has other hard links or is a mount point, or if the directory is not writable.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::PermissionDenied | ErrorKind::ResourceBusy
                ) =>
            {
                file.set_len(0)
                    .and_then(|()| file.write_all(content))
                    .and_then(|()| file.sync_all())
                    .map_err(write_error)
            }
            outcome => outcome.map_err(write_error),
        }
    }

    /// Writes the content to a temporary file in the same directory and renames it.
    fn replace_atomically(
        &self,
        content: &[u8],
        permissions: Option<Permissions>,
    ) -> io::Result<()> {
        // Until the mode of the old file is set, other users must not read content that may be private.
        let mode = if permissions.is_some() { 0o600 } else { 0o666 };
        let name = format!(".bub-{:016x}.tmp", crate::random_bits());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | FILE;
        let mode = Mode::from_raw_mode(mode);
        let mut temporary = File::from(openat(&self.directory, &name, flags, mode)?);
        let written = temporary
            .write_all(content)
            .and_then(|()| permissions.map_or(Ok(()), |mode| temporary.set_permissions(mode)))
            .and_then(|()| temporary.sync_all())
            .and_then(|()| {
                // This replaces a link, and does not follow it.
                Ok(renameat(
                    &self.directory,
                    &name,
                    &self.directory,
                    &self.name,
                )?)
            });
        if written.is_err() {
            // Ignore errors: the first one is reported.
            let _ = unlinkat(&self.directory, &name, AtFlags::empty());
        }
        written
    }

    fn open_with(&self, flags: OFlags) -> io::Result<(File, Metadata)> {
        let file = openat(&self.directory, &self.name, flags | FILE, Mode::empty())?;
        let file = File::from(file);
        let metadata = file.metadata()?;
        Ok((file, metadata))
    }

    fn check_kind(&self) -> Result<()> {
        if self.check_kind_or_missing()? {
            return Ok(());
        }
        Err(self.error("read", &Errno::NOENT.into()))
    }

    /// Returns whether the file exists. Fails if it is not a regular file.
    fn check_kind_or_missing(&self) -> Result<bool> {
        let found = statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW);
        let found = match found {
            Ok(found) => FileType::from_raw_mode(found.st_mode),
            Err(Errno::NOENT) => return Ok(false),
            Err(error) => return Err(self.error("read", &error.into())),
        };
        let kind = match found {
            FileType::RegularFile => return Ok(true),
            FileType::Directory => "a directory",
            FileType::Symlink => return Err(self.error("read", &Errno::LOOP.into())),
            _ => "a pipe, a socket or a device",
        };
        let path = self.shown.display();
        let text = format!("{path} is {kind}, not a file");
        Err(Error::invalid_input(text))
    }

    fn error(&self, action: &str, error: &io::Error) -> Error {
        file_error(action, &self.shown, error)
    }
}

/// Why a directory was not opened.
enum OpenError {
    Private,
    Failed(Errno),
}

impl From<Errno> for OpenError {
    fn from(error: Errno) -> Self {
        Self::Failed(error)
    }
}

/// Opens the directory at `path` below `root`. With `create`, creates it and its parents if they are missing.
fn open_directory(
    root: &OwnedFd,
    path: &Path,
    create: bool,
    private: &[Identity],
) -> Result<OwnedFd, OpenError> {
    match (open_beneath(root, path), path.parent(), path.file_name()) {
        (Err(Errno::NOENT), Some(parent), Some(name)) if create => {
            let parent = open_directory(root, parent, create, private)?;
            match mkdirat(&parent, name, Mode::from_raw_mode(0o777)) {
                Ok(()) | Err(Errno::EXIST) => Ok(open_child(&parent, name)?),
                Err(error) => Err(error.into()),
            }
        }
        (opened, ..) => {
            let directory = opened?;
            if is_within(&directory, private)? {
                return Err(OpenError::Private);
            }
            Ok(directory)
        }
    }
}

/// Opens a directory at `path` below `root`. No part of `path` may be a link.
fn open_beneath(root: &OwnedFd, path: &Path) -> Result<OwnedFd, Errno> {
    #[cfg(target_os = "linux")]
    {
        let links = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let flags = ResolveFlags::BENEATH | links;
        let name = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        match openat2(root, name, DIRECTORY, Mode::empty(), flags) {
            // The kernel is too old, or a filter for system calls does not know this one.
            Err(Errno::NOSYS | Errno::PERM) => {}
            opened => return opened,
        }
    }
    walk_beneath(root, path)
}

/// Does the same as [`open_beneath`], one directory at a time.
fn walk_beneath(root: &OwnedFd, path: &Path) -> Result<OwnedFd, Errno> {
    let mut directory = open_child(root, OsStr::new("."))?;
    for part in path.components() {
        let Component::Normal(name) = part else {
            return Err(Errno::XDEV);
        };
        directory = open_child(&directory, name)?;
    }
    Ok(directory)
}

fn open_child(directory: impl AsFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    openat(directory, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())
}

/// Returns whether an open directory is one of `directories` or below one, whatever its path is.
fn is_within(directory: &OwnedFd, directories: &[Identity]) -> Result<bool, Errno> {
    if directories.is_empty() {
        return Ok(false);
    }
    let mut current = open_child(directory, OsStr::new("."))?;
    loop {
        let found = identity(&fstat(&current)?);
        if directories.contains(&found) {
            return Ok(true);
        }
        current = openat(&current, "..", DIRECTORY, Mode::empty())?;
        if identity(&fstat(&current)?) == found {
            return Ok(false);
        }
    }
}

/// Returns the device and inode at a path, or `None` if there is nothing.
pub(super) fn path_identity(path: &Path) -> Option<Identity> {
    Some(identity(&stat(path).ok()?))
}

#[allow(
    clippy::unnecessary_cast,
    clippy::cast_sign_loss,
    trivial_numeric_casts,
    reason = "the types differ between systems"
)]
pub(super) fn identity(found: &Stat) -> Identity {
    (found.st_dev as u64, found.st_ino as u64)
}

/// Returns the error for a file operation that failed: `cannot read PATH: reason`.
pub(crate) fn file_error(action: &str, file: &Path, error: &io::Error) -> Error {
    let file = file.display();
    if Errno::from_io_error(error) == Some(Errno::LOOP) {
        let reason = "the path changed while it was opened; try again";
        return Error::new(
            bub_kernel::ErrorKind::Tool,
            format!("cannot {action} {file}: {reason}"),
        );
    }
    let text = format!("cannot {action} {file}: {error}");
    match error.kind() {
        ErrorKind::NotFound => Error::not_found(text),
        _ => Error::new(bub_kernel::ErrorKind::Tool, text),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    // Systems without `openat2` must refuse the same paths.
    #[test]
    fn both_ways_to_open_a_directory_refuse_links_and_parents() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("a/b")).unwrap();
        std::fs::write(root.path().join("file"), "x").unwrap();
        for (link, target) in [("inside", "a"), ("outside", "/etc"), ("a/up", "..")] {
            std::os::unix::fs::symlink(target, root.path().join(link)).unwrap();
        }
        let opened = openat(CWD, root.path(), DIRECTORY, Mode::empty()).unwrap();
        for path in ["", "a", "a/b"] {
            open_beneath(&opened, Path::new(path)).unwrap();
            walk_beneath(&opened, Path::new(path)).unwrap();
        }
        for path in [
            "inside", "outside", "a/up", "inside/b", "a/up/a", "..", "/etc", "file",
        ] {
            open_beneath(&opened, Path::new(path)).unwrap_err();
            walk_beneath(&opened, Path::new(path)).unwrap_err();
        }
    }
}
