//! Stores blobs as files named after their hash, in `.bub/blobs/<first two digits>/`.

use std::{path::PathBuf, sync::Arc};

use async_trait::async_trait;

use super::{Durability, context::StoreContext, run_blocking, unused::BLOB_GRACE};
use crate::{BlobId, BlobStore, Result, TapeError, fs::FileStat};

/// The blob store of a [`FileStore`](super::FileStore).
#[derive(Debug, Clone)]
pub(crate) struct FileBlobs(pub(crate) Arc<StoreContext>);

impl FileBlobs {
    pub(crate) fn blob_path(&self, id: &BlobId) -> PathBuf {
        let hex = id.as_hex();
        let group = hex.get(..2).unwrap_or_default();
        self.0.paths.blobs_dir().join(group).join(hex)
    }

    fn write_blob(&self, bytes: &[u8]) -> Result<BlobId> {
        let id = BlobId::from_bytes(bytes);
        let path = self.blob_path(&id);
        // Write the blob again if its file has another size, because power loss can truncate a file. Also write it
        // again if the file is old: `bub tape prune` in another process could remove an old file before an entry refers
        // to it. That command skips new files.
        let is_stored = self
            .0
            .stat(&path)?
            .is_some_and(|stat| stat.size == bytes.len() as u64 && !is_close_to_pruning(stat));
        if !is_stored {
            let sync = self.0.durability == Durability::Always;
            self.0.replace_file(&path, bytes, sync)?;
            if sync {
                self.0.sync_parent_dir(&path)?;
            }
        }
        Ok(id)
    }

    pub(crate) fn read_blob(&self, id: &BlobId) -> Result<Vec<u8>> {
        let path = self.blob_path(id);
        match self.0.read_file(&path)? {
            Some(bytes) if BlobId::from_bytes(&bytes) == *id => Ok(bytes),
            Some(_) => Err(TapeError::Damaged {
                path: path.display().to_string(),
                detail: "its content does not match its name".to_owned(),
            }),
            None => Err(TapeError::NotFound(format!(
                "blob `{id}` not found: its file is missing; restore it from a backup"
            ))),
        }
    }

    pub(crate) fn list_blobs(&self) -> Result<Vec<BlobId>> {
        let root = self.0.paths.blobs_dir();
        let mut ids = Vec::new();
        for group in self.0.read_dir(&root)? {
            let names = self.0.read_dir(&root.join(group))?;
            ids.extend(names.iter().filter_map(|name| BlobId::parse(name).ok()));
        }
        ids.sort();
        Ok(ids)
    }
}

fn is_close_to_pruning(stat: FileStat) -> bool {
    let age = stat.modified.and_then(|modified| modified.elapsed().ok());
    age.is_some_and(|age| age * 2 > BLOB_GRACE)
}

#[async_trait]
impl BlobStore for FileBlobs {
    async fn put(&self, bytes: Vec<u8>) -> Result<BlobId> {
        let blobs = self.clone();
        run_blocking(move || blobs.write_blob(&bytes)).await
    }

    async fn get(&self, id: &BlobId) -> Result<Vec<u8>> {
        let (blobs, id) = (self.clone(), id.clone());
        run_blocking(move || blobs.read_blob(&id)).await
    }

    async fn list(&self) -> Result<Vec<BlobId>> {
        let blobs = self.clone();
        run_blocking(move || blobs.list_blobs()).await
    }

    async fn remove(&self, id: &BlobId) -> Result<()> {
        let (blobs, path) = (self.clone(), self.blob_path(id));
        run_blocking(move || blobs.0.remove_file(&path)).await
    }
}
