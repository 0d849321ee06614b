//! Stores blobs as files named after their hash, in `.bub/blobs/<first two digits>/`.

use std::{path::PathBuf, sync::Arc};

use super::{
    Durability, context::StoreContext, file_ops::not_found_to_none, run_blocking,
    unused::BLOB_GRACE,
};
use crate::{
    BlobId, BlobStore, BoxFuture, Result, TapeError,
    fs::{FileStat, OpenMode},
};

/// The blob store of a [`FileStore`](super::FileStore).
#[derive(Debug, Clone)]
pub(crate) struct FileBlobs(pub(crate) Arc<StoreContext>);

impl FileBlobs {
    pub(crate) fn blob_path(&self, id: &BlobId) -> PathBuf {
        let hex = id.as_hex();
        self.0
            .paths
            .blobs_dir()
            .join(hex.get(..2).unwrap_or_default())
            .join(hex)
    }

    fn write_blob(&self, bytes: &[u8]) -> Result<BlobId> {
        let id = BlobId::from_bytes(bytes);
        let path = self.blob_path(&id);
        // Write the blob again if it has another size: power loss can truncate it. Also write it again if it is old.
        // No entry refers to it yet, so a concurrent prune could remove it; pruning skips new files.
        let stat = not_found_to_none(self.0.fs.stat(&path))
            .map_err(|error| self.0.io_error("inspect", &path, error))?;
        if stat.is_none_or(|stat| stat.size != bytes.len() as u64 || is_close_to_pruning(stat)) {
            self.0
                .replace_file(&path, bytes, self.0.durability == Durability::Always)?;
            if self.0.durability == Durability::Always {
                self.0.sync_parent_dir(&path)?;
            }
        }
        Ok(id)
    }

    pub(crate) fn read_blob(&self, id: &BlobId) -> Result<Vec<u8>> {
        let path = self.blob_path(id);
        let read_error = |error| self.0.io_error("read", &path, error);
        let Some(file) =
            not_found_to_none(self.0.fs.open(&path, OpenMode::Read)).map_err(read_error)?
        else {
            return Err(TapeError::NotFound(format!(
                "blob `{id}` not found: its file is missing; restore it from a backup"
            )));
        };
        let size = usize::try_from(file.stat().map_err(read_error)?.size).unwrap_or(usize::MAX);
        let bytes = file.read_range(0, size).map_err(read_error)?;
        if BlobId::from_bytes(&bytes) == *id {
            return Ok(bytes);
        }
        let detail = "its content does not match its name".to_owned();
        Err(TapeError::Damaged {
            path: path.display().to_string(),
            detail,
        })
    }

    pub(crate) fn list_blobs(&self) -> Result<Vec<BlobId>> {
        let root = self.0.paths.blobs_dir();
        let names = |path: &std::path::Path| {
            let names = not_found_to_none(self.0.fs.read_dir(path))
                .map_err(|error| self.0.io_error("list", path, error))?;
            Ok::<_, TapeError>(names.unwrap_or_default())
        };
        let mut ids = Vec::new();
        for group in names(&root)? {
            ids.extend(
                names(&root.join(group))?
                    .iter()
                    .filter_map(|name| BlobId::parse(name).ok()),
            );
        }
        ids.sort();
        Ok(ids)
    }
}

fn is_close_to_pruning(stat: FileStat) -> bool {
    let age = stat.modified.and_then(|modified| modified.elapsed().ok());
    age.is_some_and(|age| age * 2 > BLOB_GRACE)
}

impl BlobStore for FileBlobs {
    fn put(&self, bytes: Vec<u8>) -> BoxFuture<'_, Result<BlobId>> {
        let blobs = self.clone();
        Box::pin(run_blocking(move || blobs.write_blob(&bytes)))
    }

    fn get<'a>(&'a self, id: &'a BlobId) -> BoxFuture<'a, Result<Vec<u8>>> {
        let (blobs, id) = (self.clone(), id.clone());
        Box::pin(run_blocking(move || blobs.read_blob(&id)))
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<BlobId>>> {
        let blobs = self.clone();
        Box::pin(run_blocking(move || blobs.list_blobs()))
    }

    fn remove<'a>(&'a self, id: &'a BlobId) -> BoxFuture<'a, Result<()>> {
        let (blobs, path) = (self.clone(), self.blob_path(id));
        Box::pin(run_blocking(move || blobs.0.remove_file(&path)))
    }
}
