//! What a store keeps and no tape needs: archives, and blobs that nobody refers to any more.

use std::{
    collections::HashSet,
    path::PathBuf,
    time::{Duration, SystemTime},
};

use jiff::{Timestamp, civil, tz::TimeZone};

use super::{
    blobs::FileBlobs,
    context::{StoreContext, missing_is_none},
    lines::ForwardLines,
    verify::referred_blobs,
};
use crate::{BlobId, FileStore, Result, TapeName, codec, fs::OpenMode};

/// A turn stores a blob before the entry that refers to it: one this young is always kept.
pub(crate) const BLOB_GRACE: Duration = Duration::from_hours(1);

/// A file that no tape needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnusedFile {
    /// What it is.
    pub kind: UnusedFileKind,
    /// Where it is.
    pub path: PathBuf,
    /// How much room it takes.
    pub bytes: u64,
    /// Since when it has been there.
    pub since: SystemTime,
}

/// What a [`UnusedFile`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum UnusedFileKind {
    /// The content of a tape before a reset.
    Archive,
    /// Media of entries that are gone.
    Blob,
}

impl FileStore {
    /// Archives that are older than an age, and blobs of that age that neither a tape nor a younger archive refers to.
    pub async fn leftovers(&self, older_than: Duration) -> Result<Vec<UnusedFile>> {
        let store_context = self.store_context.clone();
        super::blocking(move || {
            let limit = SystemTime::now()
                .checked_sub(older_than)
                .unwrap_or(SystemTime::UNIX_EPOCH);
            let (archives, young) = archives(&store_context, limit)?;
            let mut found = archives;
            found.extend(blobs(&store_context, limit, &young)?);
            Ok(found)
        })
        .await
    }

    /// Removes one, unless it has come into use again; says whether it did.
    pub async fn remove_leftover(&self, leftover: &UnusedFile) -> Result<bool> {
        let (store_context, leftover) = (self.store_context.clone(), leftover.clone());
        super::blocking(move || {
            let stat = missing_is_none(store_context.fs.stat(&leftover.path))
                .map_err(|error| store_context.error("look at", &leftover.path, error))?;
            // Storing the bytes of an old blob again makes it young.
            let used = leftover.kind == UnusedFileKind::Blob
                && stat
                    .and_then(|stat| stat.modified)
                    .is_none_or(|modified| modified > leftover.since);
            if !used {
                store_context.remove(&leftover.path)?;
            }
            Ok(!used)
        })
        .await
    }
}

/// The archives before a moment, and the paths of the later ones.
fn archives(
    store_context: &StoreContext,
    limit: SystemTime,
) -> Result<(Vec<UnusedFile>, Vec<PathBuf>)> {
    let root = store_context.layout.root();
    let names = missing_is_none(store_context.fs.read_dir(root))
        .map_err(|error| store_context.error("list", root, error))?;
    let (mut old, mut young) = (Vec::new(), Vec::new());
    for (name, stamp) in names
        .iter()
        .flatten()
        .filter_map(|name| Some((name, archive_stamp(name)?)))
    {
        let path = root.join(name);
        let failed = |error| store_context.error("look at", &path, error);
        let Some(stat) = missing_is_none(store_context.fs.stat(&path)).map_err(failed)? else {
            continue;
        };
        // The time of the file is that of its last entry; it was archived when its name says.
        if stamp <= limit {
            old.push(UnusedFile {
                kind: UnusedFileKind::Archive,
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
    store_context: &std::sync::Arc<StoreContext>,
    limit: SystemTime,
    archives: &[PathBuf],
) -> Result<Vec<UnusedFile>> {
    let store = FileBlobs(store_context.clone());
    let limit = limit.min(
        SystemTime::now()
            .checked_sub(BLOB_GRACE)
            .unwrap_or(SystemTime::UNIX_EPOCH),
    );
    let mut old = Vec::new();
    for id in store.list_now()? {
        let path = store.path(&id);
        let failed = |error| store_context.error("look at", &path, error);
        let Some(stat) = missing_is_none(store_context.fs.stat(&path)).map_err(failed)? else {
            continue;
        };
        if let Some(since) = stat.modified.filter(|modified| *modified <= limit) {
            old.push((
                id,
                UnusedFile {
                    kind: UnusedFileKind::Blob,
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
        for path in tape_files(store_context)?.iter().chain(archives) {
            collect_blobs(store_context, path, &mut used)?;
        }
        old.retain(|(id, _)| !used.contains(id));
    }
    Ok(old.into_iter().map(|(_, leftover)| leftover).collect())
}

/// All tapes, their sidecars, and the journals of forks.
fn tape_files(store_context: &StoreContext) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for directory in [
        store_context.layout.root().to_path_buf(),
        store_context.layout.forks(),
    ] {
        let names = missing_is_none(store_context.fs.read_dir(&directory))
            .map_err(|error| store_context.error("list", &directory, error))?;
        let tapes = names
            .into_iter()
            .flatten()
            .filter(|name| name.strip_suffix(".jsonl").is_some());
        paths.extend(tapes.map(|name| directory.join(name)));
    }
    Ok(paths)
}

fn collect_blobs(
    store_context: &StoreContext,
    path: &std::path::Path,
    used: &mut HashSet<BlobId>,
) -> Result<()> {
    let failed = |error| store_context.error("read", path, error);
    let Some(file) =
        missing_is_none(store_context.fs.open(path, OpenMode::Read)).map_err(failed)?
    else {
        return Ok(());
    };
    let mut lines = ForwardLines::large(0, file.stat().map_err(failed)?.size);
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
