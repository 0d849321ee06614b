//! What a store keeps and no tape needs: archives, and blobs that nobody refers to any more.

use std::{
    collections::HashSet,
    path::PathBuf,
    time::{Duration, SystemTime},
};

use jiff::{Timestamp, civil, tz::TimeZone};

use super::{
    blobs::FileBlobs,
    lines::Forward,
    shared::{Shared, missing_is_none},
    verify::referred_blobs,
};
use crate::{BlobId, FileStore, Result, TapeName, codec, fs::OpenMode};

/// A turn stores a blob before the entry that refers to it: one this young is always kept.
pub(crate) const BLOB_GRACE: Duration = Duration::from_hours(1);

/// A file that no tape needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leftover {
    /// What it is.
    pub kind: LeftoverKind,
    /// Where it is.
    pub path: PathBuf,
    /// How much room it takes.
    pub bytes: u64,
    /// Since when it has been there.
    pub since: SystemTime,
}

/// What a [`Leftover`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeftoverKind {
    /// The content of a tape before a reset.
    Archive,
    /// Media of entries that are gone.
    Blob,
}

impl FileStore {
    /// Archives that are older than an age, and blobs of that age that neither a tape nor a younger archive refers to.
    pub async fn leftovers(&self, older_than: Duration) -> Result<Vec<Leftover>> {
        let shared = self.shared.clone();
        super::blocking(move || {
            let limit = SystemTime::now()
                .checked_sub(older_than)
                .unwrap_or(SystemTime::UNIX_EPOCH);
            let (archives, young) = archives(&shared, limit)?;
            let mut found = archives;
            found.extend(blobs(&shared, limit, &young)?);
            Ok(found)
        })
        .await
    }

    /// Removes one, unless it has come into use again; says whether it did.
    pub async fn remove_leftover(&self, leftover: &Leftover) -> Result<bool> {
        let (shared, leftover) = (self.shared.clone(), leftover.clone());
        super::blocking(move || {
            let stat = missing_is_none(shared.fs.stat(&leftover.path))
                .map_err(|error| shared.error("look at", &leftover.path, error))?;
            // Storing the bytes of an old blob again makes it young.
            let used = leftover.kind == LeftoverKind::Blob
                && stat
                    .and_then(|stat| stat.modified)
                    .is_none_or(|modified| modified > leftover.since);
            if !used {
                shared.remove(&leftover.path)?;
            }
            Ok(!used)
        })
        .await
    }
}

/// The archives before a moment, and the paths of the later ones.
fn archives(shared: &Shared, limit: SystemTime) -> Result<(Vec<Leftover>, Vec<PathBuf>)> {
    let root = shared.layout.root();
    let names = missing_is_none(shared.fs.read_dir(root))
        .map_err(|error| shared.error("list", root, error))?;
    let (mut old, mut young) = (Vec::new(), Vec::new());
    for (name, stamp) in names
        .iter()
        .flatten()
        .filter_map(|name| Some((name, archive_stamp(name)?)))
    {
        let path = root.join(name);
        let failed = |error| shared.error("look at", &path, error);
        let Some(stat) = missing_is_none(shared.fs.stat(&path)).map_err(failed)? else {
            continue;
        };
        // The time of the file is that of its last entry; it was archived when its name says.
        if stamp <= limit {
            old.push(Leftover {
                kind: LeftoverKind::Archive,
                path,
                bytes: stat.size,
                since: stamp,
            });
        } else {
            young.push(path);
        }
    }
    old.sort_by_key(|leftover| leftover.since);
    Ok((old, young))
}

/// When an archive was made, by its name `<tape>.jsonl.<stamp>[-<number>].bak`; `None` for other files.
fn archive_stamp(name: &str) -> Option<SystemTime> {
    let (tape, rest) = name.strip_suffix(".bak")?.rsplit_once(".jsonl.")?;
    TapeName::new(tape).ok()?;
    let stamp = rest.split_once('-').map_or(rest, |(stamp, _)| stamp);
    let date = civil::DateTime::strptime("%Y%m%dT%H%M%SZ", stamp).ok()?;
    let moment: Timestamp = TimeZone::UTC.to_timestamp(date).ok()?;
    Some(moment.into())
}

fn blobs(
    shared: &std::sync::Arc<Shared>,
    limit: SystemTime,
    archives: &[PathBuf],
) -> Result<Vec<Leftover>> {
    let store = FileBlobs(shared.clone());
    let limit = limit.min(
        SystemTime::now()
            .checked_sub(BLOB_GRACE)
            .unwrap_or(SystemTime::UNIX_EPOCH),
    );
    let mut old = Vec::new();
    for id in store.list_now()? {
        let path = store.path(&id);
        let failed = |error| shared.error("look at", &path, error);
        let Some(stat) = missing_is_none(shared.fs.stat(&path)).map_err(failed)? else {
            continue;
        };
        if let Some(since) = stat.modified.filter(|modified| *modified <= limit) {
            old.push((
                id,
                Leftover {
                    kind: LeftoverKind::Blob,
                    path,
                    bytes: stat.size,
                    since,
                },
            ));
        }
    }
    // Reading every tape is only worth it when there is something to find.
    if !old.is_empty() {
        let mut used = HashSet::new();
        for path in tape_files(shared)?.iter().chain(archives) {
            collect_blobs(shared, path, &mut used)?;
        }
        old.retain(|(id, _)| !used.contains(id));
    }
    Ok(old.into_iter().map(|(_, leftover)| leftover).collect())
}

/// All tapes, their sidecars, and the journals of forks.
fn tape_files(shared: &Shared) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for directory in [shared.layout.root().to_path_buf(), shared.layout.forks()] {
        let names = missing_is_none(shared.fs.read_dir(&directory))
            .map_err(|error| shared.error("list", &directory, error))?;
        let tapes = names
            .into_iter()
            .flatten()
            .filter(|name| name.strip_suffix(".jsonl").is_some());
        paths.extend(tapes.map(|name| directory.join(name)));
    }
    Ok(paths)
}

fn collect_blobs(
    shared: &Shared,
    path: &std::path::Path,
    used: &mut HashSet<BlobId>,
) -> Result<()> {
    let failed = |error| shared.error("read", path, error);
    let Some(file) = missing_is_none(shared.fs.open(path, OpenMode::Read)).map_err(failed)? else {
        return Ok(());
    };
    let mut lines = Forward::large(0, file.stat().map_err(failed)?.size);
    while lines
        .advance(&*file, |_, line| {
            // Few lines refer to a blob, and all that do contain this.
            if memchr::memmem::find(line, b"sha256:").is_none() {
                return;
            }
            match codec::decode(line) {
                Some(entry) => {
                    used.extend(referred_blobs(&entry).filter_map(|id| BlobId::parse(id).ok()));
                }
                // Who cannot be understood is believed to need everything it names.
                None => used.extend(named_blobs(line)),
            }
        })
        .map_err(failed)?
    {}
    Ok(())
}

fn named_blobs(line: &[u8]) -> impl Iterator<Item = BlobId> {
    let text = String::from_utf8_lossy(line).into_owned();
    let ids: Vec<_> = text
        .split("sha256:")
        .skip(1)
        .filter_map(|rest| BlobId::parse(rest.get(..64)?).ok())
        .collect();
    ids.into_iter()
}
