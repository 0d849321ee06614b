//! Finds and removes files that no tape needs: archives and unreferenced blobs.

use std::{
    collections::HashSet,
    path::PathBuf,
    time::{Duration, SystemTime},
};

use jiff::{Timestamp, civil, tz::TimeZone};

use super::{
    blobs::FileBlobs, context::StoreContext, file_ops::not_found_to_none, lines::ForwardLines,
    verify::referenced_blob_ids,
};
use crate::{BlobId, FileStore, Result, TapeName, codec, fs::OpenMode};

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
    /// Returns archives and blobs that are older than `older_than`. Blobs that a tape or a newer archive refers to are
    /// not included.
    pub async fn unused_files(&self, older_than: Duration) -> Result<Vec<UnusedFile>> {
        let store_context = self.store_context.clone();
        super::run_blocking(move || {
            let cutoff = SystemTime::now()
                .checked_sub(older_than)
                .unwrap_or(SystemTime::UNIX_EPOCH);
            let (archives, recent) = partition_archives(&store_context, cutoff)?;
            let mut unused_files = archives;
            unused_files.extend(find_unused_blobs(&store_context, cutoff, &recent)?);
            Ok(unused_files)
        })
        .await
    }

    /// Removes an unused file, unless it was used again since it was listed. Returns whether the file was removed.
    pub async fn remove_unused_file(&self, unused_file: &UnusedFile) -> Result<bool> {
        let (store_context, unused_file) = (self.store_context.clone(), unused_file.clone());
        super::run_blocking(move || {
            let stat = not_found_to_none(store_context.fs.stat(&unused_file.path))
                .map_err(|error| store_context.io_error("inspect", &unused_file.path, error))?;
            // Storing an old blob again updates its modification time.
            let is_used = unused_file.kind == UnusedFileKind::Blob
                && stat
                    .and_then(|stat| stat.modified)
                    .is_none_or(|modified| modified > unused_file.since);
            if !is_used {
                store_context.remove_file(&unused_file.path)?;
            }
            Ok(!is_used)
        })
        .await
    }
}

/// Returns the archives up to the cutoff, and the paths of the newer ones.
fn partition_archives(
    store_context: &StoreContext,
    cutoff: SystemTime,
) -> Result<(Vec<UnusedFile>, Vec<PathBuf>)> {
    let root = store_context.paths.root();
    let names = not_found_to_none(store_context.fs.read_dir(root))
        .map_err(|error| store_context.io_error("list", root, error))?;
    let (mut unused_files, mut recent_paths) = (Vec::new(), Vec::new());
    for (name, stamp) in names
        .iter()
        .flatten()
        .filter_map(|name| Some((name, parse_archive_time(name)?)))
    {
        let path = root.join(name);
        let failed = |error| store_context.io_error("inspect", &path, error);
        let Some(stat) = not_found_to_none(store_context.fs.stat(&path)).map_err(failed)? else {
            continue;
        };
        // The modification time is that of the last entry. The time of the archiving is in the file name.
        if stamp <= cutoff {
            unused_files.push(UnusedFile {
                kind: UnusedFileKind::Archive,
                path,
                bytes: stat.size,
                since: stamp,
            });
        } else {
            recent_paths.push(path);
        }
    }
    unused_files.sort_by_key(|unused_file| unused_file.since);
    Ok((unused_files, recent_paths))
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
    store_context: &std::sync::Arc<StoreContext>,
    cutoff: SystemTime,
    archives: &[PathBuf],
) -> Result<Vec<UnusedFile>> {
    let store = FileBlobs(store_context.clone());
    let cutoff = cutoff.min(
        SystemTime::now()
            .checked_sub(BLOB_GRACE)
            .unwrap_or(SystemTime::UNIX_EPOCH),
    );
    let mut candidates = Vec::new();
    for id in store.list_blobs()? {
        let path = store.blob_path(&id);
        let failed = |error| store_context.io_error("inspect", &path, error);
        let Some(stat) = not_found_to_none(store_context.fs.stat(&path)).map_err(failed)? else {
            continue;
        };
        if let Some(since) = stat.modified.filter(|modified| *modified <= cutoff) {
            candidates.push((
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
    // Read all tapes only if there are candidates.
    if !candidates.is_empty() {
        let mut referenced = HashSet::new();
        for path in list_tape_files(store_context)?.iter().chain(archives) {
            collect_referenced_blobs(store_context, path, &mut referenced)?;
        }
        candidates.retain(|(id, _)| !referenced.contains(id));
    }
    Ok(candidates
        .into_iter()
        .map(|(_, unused_file)| unused_file)
        .collect())
}

/// Returns the files of all tapes, sidecars and fork journals.
fn list_tape_files(store_context: &StoreContext) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for directory in [
        store_context.paths.root().to_path_buf(),
        store_context.paths.forks_dir(),
    ] {
        let names = not_found_to_none(store_context.fs.read_dir(&directory))
            .map_err(|error| store_context.io_error("list", &directory, error))?;
        let tapes = names
            .into_iter()
            .flatten()
            .filter(|name| name.strip_suffix(".jsonl").is_some());
        paths.extend(tapes.map(|name| directory.join(name)));
    }
    Ok(paths)
}

fn collect_referenced_blobs(
    store_context: &StoreContext,
    path: &std::path::Path,
    referenced: &mut HashSet<BlobId>,
) -> Result<()> {
    let failed = |error| store_context.io_error("read", path, error);
    let Some(file) =
        not_found_to_none(store_context.fs.open(path, OpenMode::Read)).map_err(failed)?
    else {
        return Ok(());
    };
    let mut lines = ForwardLines::with_large_reads(0, file.stat().map_err(failed)?.size);
    while lines
        .read_chunk(&*file, |_, line| {
            // Few lines refer to a blob. All of them contain this prefix.
            if memchr::memmem::find(line, b"sha256:").is_none() {
                return;
            }
            match codec::decode(line) {
                Some(entry) => {
                    referenced.extend(
                        referenced_blob_ids(&entry).filter_map(|id| BlobId::parse(id).ok()),
                    );
                }
                // Keep every blob that an invalid line mentions.
                None => referenced.extend(blob_ids_in_line(line)),
            }
        })
        .map_err(failed)?
    {}
    Ok(())
}

fn blob_ids_in_line(line: &[u8]) -> impl Iterator<Item = BlobId> {
    let text = String::from_utf8_lossy(line).into_owned();
    let ids: Vec<_> = text
        .split("sha256:")
        .skip(1)
        .filter_map(|rest| BlobId::parse(rest.get(..64)?).ok())
        .collect();
    ids.into_iter()
}
