//! Finds and removes files that no tape needs: archives and unreferenced blobs.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use jiff::{Timestamp, civil, tz::TimeZone};
use memchr::memmem;

use super::{
    blobs::FileBlobs,
    context::{IoResultExt as _, StoreContext},
    snapshot::Snapshot,
};
use crate::{BlobId, FileStore, Result, TapeName};

/// Minimum age of an unreferenced blob for removal. A turn stores a blob before the entry that refers to it.
pub(crate) const BLOB_GRACE: Duration = Duration::from_hours(1);

/// A file that no tape needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnusedFile {
    /// The kind of file.
    pub kind: UnusedFileKind,
    /// The path of the file.
    pub path: PathBuf,
    /// The size of the file in bytes.
    pub bytes: u64,
    /// The time of the archiving, or of the last write of a blob.
    pub since: SystemTime,
}

/// The kind of an [`UnusedFile`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum UnusedFileKind {
    /// A copy of a tape's earlier content, for example from before a reset.
    Archive,
    /// A blob that no entry refers to.
    Blob,
}

impl FileStore {
    /// Returns archives and blobs that are older than `older_than`. Blobs must also be older than one hour. Excludes a
    /// blob if a tape or a newer archive mentions it.
    pub async fn unused_files(&self, older_than: Duration) -> Result<Vec<UnusedFile>> {
        let store = Arc::clone(&self.store);
        super::run_blocking(move || list_unused_files(&store, earlier(older_than))).await
    }

    /// Removes an unused file, unless it is a blob that was stored again since it was listed. Returns whether the file
    /// was removed.
    pub async fn remove_unused_file(&self, unused_file: &UnusedFile) -> Result<bool> {
        let (store, unused_file) = (Arc::clone(&self.store), unused_file.clone());
        super::run_blocking(move || {
            let stat = store.stat(&unused_file.path)?;
            // Storing an old blob again updates its modification time.
            let modified = stat.and_then(|stat| stat.modified);
            let is_used = unused_file.kind == UnusedFileKind::Blob
                && modified.is_none_or(|modified| modified > unused_file.since);
            if !is_used {
                store.remove_file(&unused_file.path)?;
            }
            Ok(!is_used)
        })
        .await
    }
}

/// Returns the time that was `duration` ago.
fn earlier(duration: Duration) -> SystemTime {
    let time = SystemTime::now().checked_sub(duration);
    time.unwrap_or(SystemTime::UNIX_EPOCH)
}

fn list_unused_files(store: &Arc<StoreContext>, cutoff: SystemTime) -> Result<Vec<UnusedFile>> {
    let mut unused_files = Vec::new();
    // Tapes, sidecars, fork journals and recent archives, whose entries may refer to blobs.
    let mut used_paths = Vec::new();
    for directory in [store.paths.root().to_path_buf(), store.paths.forks_dir()] {
        for name in store.read_dir(&directory)? {
            let path = directory.join(&name);
            // The modification time is that of the last entry. The time of the archiving is in the file name.
            match parse_archive_time(&name) {
                Some(since) if since <= cutoff => {
                    let stat = store.stat(&path)?;
                    unused_files.extend(stat.map(|stat| UnusedFile {
                        kind: UnusedFileKind::Archive,
                        path,
                        bytes: stat.size,
                        since,
                    }));
                }
                None if name.strip_suffix(".jsonl").is_none() => {}
                _ => used_paths.push(path),
            }
        }
    }
    unused_files.sort_by_key(|unused_file| unused_file.since);
    unused_files.extend(find_unused_blobs(store, cutoff, used_paths)?);
    Ok(unused_files)
}

/// Returns the time in an archive's name, `<tape>.jsonl.<stamp>[-<number>].bak`, or `None` for other files.
fn parse_archive_time(name: &str) -> Option<SystemTime> {
    let (tape, rest) = name.strip_suffix(".bak")?.rsplit_once(".jsonl.")?;
    TapeName::new(tape).ok()?;
    let stamp = rest.split_once('-').map_or(rest, |(stamp, _)| stamp);
    let date = civil::DateTime::strptime("%Y%m%dT%H%M%SZ", stamp).ok()?;
    let timestamp: Timestamp = TimeZone::UTC.to_timestamp(date).ok()?;
    Some(timestamp.into())
}

fn find_unused_blobs(
    store: &Arc<StoreContext>,
    cutoff: SystemTime,
    used_paths: Vec<PathBuf>,
) -> Result<Vec<UnusedFile>> {
    let blobs = FileBlobs(Arc::clone(store));
    let cutoff = cutoff.min(earlier(BLOB_GRACE));
    let mut candidates = BTreeMap::new();
    for id in blobs.list_blobs()? {
        let path = blobs.blob_path(&id);
        let Some(stat) = store.stat(&path)? else {
            continue;
        };
        if let Some(since) = stat.modified.filter(|modified| *modified <= cutoff) {
            let unused_file = UnusedFile {
                kind: UnusedFileKind::Blob,
                path,
                bytes: stat.size,
                since,
            };
            candidates.insert(id, unused_file);
        }
    }
    // Reading all tapes is slow: do it only if a blob is old enough.
    if !candidates.is_empty() {
        for path in used_paths {
            for_each_mentioned_blob(store, path, |id| drop(candidates.remove(&id)))?;
        }
    }
    Ok(candidates.into_values().collect())
}

fn for_each_mentioned_blob(
    store: &StoreContext,
    path: PathBuf,
    mut on_blob: impl FnMut(BlobId),
) -> Result<()> {
    let Some(file) = store.open_existing(&path)? else {
        return Ok(());
    };
    let stat = file.stat().describe("read", &path)?;
    let snapshot = Snapshot {
        path,
        file: file.into(),
        inode: stat.inode,
        end: stat.size,
    };
    snapshot.for_each_line(0, |_, line| {
        // Keep every blob that a line mentions, also if the line is invalid. Few lines mention one.
        if memmem::find(line, b"sha256:").is_some() {
            String::from_utf8_lossy(line)
                .split("sha256:")
                .filter_map(|rest| BlobId::parse(rest.get(..64)?).ok())
                .for_each(&mut on_blob);
        }
        Ok(())
    })
}
