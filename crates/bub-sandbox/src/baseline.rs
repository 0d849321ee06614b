//! What was in the workspace before a command, and how commands that run at the same time share it.
//!
//! What a command creates must not pass for old because another command started later. So all running commands of a
//! workspace compare with the state before the first of them. A file that commands cannot reach holds it. Each command
//! holds a shared lock on this file until it has compared, so the file is valid while it is locked.

use std::{
    borrow::Borrow,
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs::{self, DirBuilder, File, TryLockError},
    io::{self, BufReader, BufWriter, Seek, Write},
    ops::Deref,
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    time::SystemTime,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::{
    git_state::StateFindings,
    repositories::{GIT_NAMES, GitPlace, Stamp, is_older},
};

/// How often a file is read again that a killed process left incomplete.
const MAX_ATTEMPTS: usize = 16;

/// A path that is stored without loss, also if it is not valid Unicode: each byte is one character.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StoredPath(PathBuf);

impl From<PathBuf> for StoredPath {
    fn from(path: PathBuf) -> Self {
        Self(path)
    }
}

impl Deref for StoredPath {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Borrow<Path> for StoredPath {
    fn borrow(&self) -> &Path {
        &self.0
    }
}

impl Serialize for StoredPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let bytes = self.0.as_os_str().as_bytes();
        match std::str::from_utf8(bytes) {
            Ok(text) if text.is_ascii() => serializer.serialize_str(text),
            _ => serializer.collect_str(&bytes.iter().copied().map(char::from).collect::<String>()),
        }
    }
}

impl<'de> Deserialize<'de> for StoredPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.is_ascii() {
            return Ok(Self(text.into()));
        }
        let bytes: Result<_, _> = text.chars().map(u8::try_from).collect();
        let path = OsString::from_vec(bytes.map_err(D::Error::custom)?);
        Ok(Self(path.into()))
    }
}

/// The protected paths and the git directories of a workspace at one time.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Baseline {
    pub(crate) workspace: StoredPath,
    /// Protected paths that are read-only while a command runs.
    pub(crate) mounted: BTreeSet<StoredPath>,
    /// Protected paths with nothing there, or with a directory that is harmless. The flag is whether it would be.
    pub(crate) absent: BTreeMap<StoredPath, bool>,
    /// Protected paths that are links, and where they lead.
    pub(crate) links: BTreeMap<StoredPath, StoredPath>,
    /// Links that commands must not create, and where they lead.
    pub(crate) unsafe_links: BTreeMap<StoredPath, StoredPath>,
    /// What commands must not leave behind in git directories.
    #[serde(default)]
    pub(crate) git_state: StateFindings,
    /// Places of git whose parts are among the protected paths.
    pub(crate) places: BTreeSet<StoredPath>,
    /// Other places of git.
    pub(crate) stamps: BTreeMap<StoredPath, Stamp>,
    /// Whether `places` and `stamps` are all places. Otherwise, others may have existed.
    pub(crate) is_complete: bool,
    /// Names that start with a period in the home directory, if it is in the workspace.
    pub(crate) home_names: Option<BTreeSet<StoredPath>>,
    pub(crate) time: SystemTime,
}

impl Baseline {
    /// Returns whether a place of git has not changed since.
    pub(crate) fn has_unchanged(&self, path: &Path, place: GitPlace) -> bool {
        let now = || Stamp::new(path, place);
        match self.stamps.get(path) {
            Some(before) => *before == now(),
            None if self.places.contains(path) => true,
            None => !self.is_complete && now().is_older_than(path, self.time),
        }
    }

    /// Returns whether a link that commands must not create led there before.
    pub(crate) fn has_link(&self, path: &Path, target: &Path) -> bool {
        match self.unsafe_links.get(path) {
            Some(before) => **before == *target,
            None => !self.is_complete && is_older(path, self.time),
        }
    }

    /// Returns whether a git directory had the same finding before.
    pub(crate) fn has_finding(&self, finding: &(StoredPath, String)) -> bool {
        self.git_state.contains(finding) || !self.is_complete && is_older(&finding.0, self.time)
    }

    /// Forgets what was not there at the time of `first`: it is new, and must not become read-only. What it named as
    /// protected stays so.
    fn retain_known(&mut self, first: &Self) {
        let places = self.places.iter().chain(self.stamps.keys());
        let is_new =
            |path: &&StoredPath| !first.places.contains(*path) && !first.stamps.contains_key(*path);
        let parts = places.filter(is_new).flat_map(|place| {
            let names = GIT_NAMES.iter().map(|name| place.join(name));
            names.chain([place.to_path_buf()])
        });
        let home_names = self.home_names.iter().flatten();
        let known_names = first.home_names.as_ref();
        let home_names =
            home_names.filter(|path| known_names.is_some_and(|known| !known.contains(*path)));
        let new: BTreeSet<_> = parts
            .map(StoredPath::from)
            .chain(home_names.cloned())
            .collect();
        self.absent.retain(|path, _| !new.contains(path));
        self.links.retain(|path, _| !new.contains(path));
        self.mounted.retain(|path| {
            let is_compared = first.absent.contains_key(path) || first.links.contains_key(path);
            !is_compared && !new.contains(path)
        });
        self.mounted.extend(first.mounted.iter().cloned());
    }
}

/// Returns the name of the file with the baseline of a workspace.
pub(crate) fn record_name(workspace: &Path) -> io::Result<String> {
    let found = fs::metadata(workspace)?;
    // A file of root would stop the commands of another user.
    let user = rustix::process::getuid().as_raw();
    Ok(format!("{user}-{:x}-{:x}.json", found.dev(), found.ino()))
}

/// Opens a file about a workspace, and creates it if it is missing.
pub(crate) fn open_record(directory: &Path, workspace: &Path, kind: &str) -> io::Result<File> {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700).create(directory)?;
    let path = directory.join(record_name(workspace)?).with_extension(kind);
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    options.mode(0o600).open(path)
}

/// The baselines with which a command compares when it ends.
pub(crate) struct Baselines {
    /// That of the command itself, and before it that of the first running one.
    pub(crate) all: Vec<Baseline>,
    /// Keeps the baseline of the first command.
    _lock: Option<File>,
}

impl Baselines {
    /// Records the baseline of a command with `scan`, without other commands.
    ///
    /// # Errors
    ///
    /// Fails if `scan` does.
    pub(crate) fn alone(scan: impl FnOnce() -> io::Result<Baseline>) -> io::Result<Self> {
        Ok(Self {
            all: vec![scan()?],
            _lock: None,
        })
    }

    /// Returns whether a command runs in a workspace whose commands share their baselines through `directory`.
    pub(crate) fn is_in_use(directory: &Path, workspace: &Path) -> bool {
        let name = record_name(workspace).unwrap_or_default();
        let file = File::open(directory.join(name));
        file.is_ok_and(|file| file.try_lock().is_err())
    }

    /// Records the baseline of a command with `scan`. Shares it with all commands of the workspace that run before this
    /// value is dropped, through a file in `directory`.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be written or read, or if `scan` does.
    pub(crate) fn share(
        directory: &Path,
        workspace: &Path,
        scan: impl Fn() -> io::Result<Baseline>,
    ) -> io::Result<Self> {
        for _ in 0..MAX_ATTEMPTS {
            let mut file = open_record(directory, workspace, "json")?;
            // Scan only under a lock: before it, another command may still run.
            let is_first = match file.try_lock() {
                Ok(()) => true,
                Err(TryLockError::WouldBlock) => false,
                Err(TryLockError::Error(error)) => return Err(error),
            };
            if !is_first {
                file.lock_shared()?;
            }
            let mut own = scan()?;
            if is_first {
                file.set_len(0)?;
                let mut writer = BufWriter::new(&file);
                serde_json::to_writer(&mut writer, &own)?;
                writer.flush()?;
                file.lock_shared()?;
            }
            file.rewind()?;
            // Another command may have replaced it when this one released the exclusive lock.
            let Ok(first) = serde_json::from_reader::<_, Baseline>(BufReader::new(&file)) else {
                continue;
            };
            // The paths of another mount of the same directory cannot be compared.
            let first = Some(first).filter(|first| first.workspace == own.workspace);
            if let Some(first) = &first {
                own.retain_known(first);
            }
            return Ok(Self {
                all: first.into_iter().chain([own]).collect(),
                _lock: Some(file),
            });
        }
        Err(io::ErrorKind::InvalidData.into())
    }
}
