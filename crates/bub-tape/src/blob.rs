//! Blobs: media that entries refer to by the hash of their content.

use std::fmt;

use async_trait::async_trait;
use sha2::{Digest, Sha256};

use crate::{Result, TapeError};

/// The id of a blob: its SHA-256, written as `sha256:<hex>` in `meta.media`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobId(String);

impl BlobId {
    /// Returns the id of these bytes.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self(format!("{:x}", Sha256::digest(bytes)))
    }

    /// Parses `sha256:<hex>` or `<hex>`, with 64 lowercase hexadecimal digits.
    pub fn parse(text: &str) -> Result<Self> {
        let hex = text.strip_prefix("sha256:").unwrap_or(text);
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if hex.len() == 64 && hex.bytes().all(is_digit) {
            Ok(Self(hex.to_owned()))
        } else {
            Err(TapeError::InvalidInput(format!(
                "invalid blob id {text:?}: expected `sha256:` and 64 hexadecimal digits"
            )))
        }
    }

    /// Returns the hexadecimal digits without the prefix.
    pub fn as_hex(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BlobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.0)
    }
}

/// A store of blobs. Implement it with [`async_trait`](crate::async_trait). Equal bytes are stored once.
#[async_trait]
pub trait BlobStore: Send + Sync + fmt::Debug {
    /// Stores bytes and returns their id. The blob is as durable as an appended entry.
    async fn put(&self, bytes: Vec<u8>) -> Result<BlobId>;

    /// Returns the bytes after verifying their hash. Fails with [`TapeError::NotFound`] if the blob does not exist.
    async fn get(&self, id: &BlobId) -> Result<Vec<u8>>;

    /// Returns the ids of all blobs.
    async fn list(&self) -> Result<Vec<BlobId>>;

    /// Removes a blob. Does nothing if it does not exist.
    async fn remove(&self, id: &BlobId) -> Result<()>;
}
