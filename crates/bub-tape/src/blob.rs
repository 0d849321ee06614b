//! Content-addressed bytes: media that entries refer to by hash.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::{BoxFuture, Result, TapeError, tape_name::hex};

/// The SHA-256 of a blob, written `sha256:<hex>` in `meta.media`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobId(String);

impl BlobId {
    /// The address of these bytes.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self(hex(&Sha256::digest(bytes)))
    }

    /// Reads `sha256:<64 hex>`.
    pub fn parse(text: &str) -> Result<Self> {
        let hex = text.strip_prefix("sha256:").unwrap_or(text);
        let valid = hex.len() == 64
            && hex
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if valid {
            Ok(Self(hex.to_owned()))
        } else {
            Err(TapeError::InvalidInput(format!(
                "Invalid blob id {text:?}."
            )))
        }
    }

    /// The bare hexadecimal digest.
    pub fn as_hex(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BlobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.0)
    }
}

/// Where blobs live. Storing the same bytes twice stores them once.
pub trait BlobStore: Send + Sync + fmt::Debug {
    /// Stores bytes and returns their address. Durable when the store is.
    fn put(&self, bytes: Vec<u8>) -> BoxFuture<'_, Result<BlobId>>;

    /// The bytes, verified against the address; `NotFound` when they are not there.
    fn get<'a>(&'a self, id: &'a BlobId) -> BoxFuture<'a, Result<Vec<u8>>>;

    /// Every stored address, for finding unreferenced ones.
    fn list(&self) -> BoxFuture<'_, Result<Vec<BlobId>>>;

    /// Forgets a blob; it is not an error when it is not there.
    fn remove<'a>(&'a self, id: &'a BlobId) -> BoxFuture<'a, Result<()>>;
}
