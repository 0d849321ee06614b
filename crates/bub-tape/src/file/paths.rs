//! The paths of the files in the tape directory.
//!
//! Tapes and archives have the same paths as in the Python version. All other files are under `.bub/`.

use std::path::{Path, PathBuf};

use crate::TapeName;

/// The paths of a store.
#[derive(Debug, Clone)]
pub(crate) struct StorePaths {
    root: PathBuf,
}

impl StorePaths {
    pub(crate) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the path of a tape. Fork journals are under `.bub/`, so that the Python version does not list them.
    pub(crate) fn tape(&self, tape: &TapeName) -> PathBuf {
        let file = format!("{tape}.jsonl");
        if tape.is_fork() {
            self.forks().join(file)
        } else {
            self.root.join(file)
        }
    }

    pub(crate) fn forks(&self) -> PathBuf {
        self.private_dir("forks")
    }

    pub(crate) fn locks(&self) -> PathBuf {
        self.private_dir("locks")
    }

    pub(crate) fn lock(&self, tape: &TapeName) -> PathBuf {
        self.locks().join(format!("{tape}.lock"))
    }

    pub(crate) fn leases(&self) -> PathBuf {
        self.private_dir("leases")
    }

    pub(crate) fn lease(&self, tape: &TapeName) -> PathBuf {
        self.leases().join(format!("{tape}.lease"))
    }

    pub(crate) fn indexes(&self) -> PathBuf {
        self.private_dir("index")
    }

    pub(crate) fn index(&self, tape: &TapeName) -> PathBuf {
        self.indexes().join(format!("{tape}.idx"))
    }

    pub(crate) fn marks(&self, tape: &TapeName) -> PathBuf {
        self.indexes().join(format!("{tape}.marks"))
    }

    pub(crate) fn torn(&self) -> PathBuf {
        self.private_dir("torn")
    }

    pub(crate) fn temporary(&self) -> PathBuf {
        self.private_dir("tmp")
    }

    pub(crate) fn blobs(&self) -> PathBuf {
        self.private_dir("blobs")
    }

    /// Returns the path of an archive: `<tape>.jsonl.<stamp>.bak`, or `<tape>.jsonl.<stamp>-<number>.bak` if `number`
    /// is not 0.
    pub(crate) fn archive(&self, tape: &TapeName, stamp: &str, number: u32) -> PathBuf {
        let number = if number == 0 {
            String::new()
        } else {
            format!("-{number}")
        };
        self.root.join(format!("{tape}.jsonl.{stamp}{number}.bak"))
    }

    /// Returns a directory under `.bub/`, which the Python version does not use.
    pub(crate) fn private_dir(&self, name: &str) -> PathBuf {
        self.root.join(".bub").join(name)
    }
}
