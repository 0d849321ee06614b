//! The file system, paths and durability that all parts of a file store share.

use std::{io, path::Path, sync::Arc};

use super::{Durability, paths::StorePaths};
use crate::{TapeError, fs::Fs};

/// The file system, paths and durability of a store.
#[derive(Debug)]
pub(crate) struct StoreContext {
    pub(crate) fs: Arc<dyn Fs>,
    pub(crate) paths: StorePaths,
    pub(crate) durability: Durability,
}

impl StoreContext {
    /// Converts an I/O error of the store. `action` is an imperative verb, such as `read`.
    #[expect(
        clippy::unused_self,
        reason = "a method is shorter at the call sites and can use the store's state later"
    )]
    pub(crate) fn io_error(
        &self,
        action: &'static str,
        path: &Path,
        source: io::Error,
    ) -> TapeError {
        TapeError::from_io(action, path, source)
    }
}
