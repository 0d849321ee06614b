//! Where everything lies under the tape directory.
//!
//! Tapes and archives stand where the original puts them; everything of ours is under `.bub/`.

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

    /// Tapes in the directory of the original, journals of forks out of its sight.
    pub(crate) fn tape(&self, tape: &TapeName) -> PathBuf {
        let file = format!("{tape}.jsonl");
        if tape.is_fork() {
            self.forks().join(file)
        } else {
            self.root.join(file)
        }
    }

    pub(crate) fn forks(&self) -> PathBuf {
        self.own("forks")
    }

    pub(crate) fn locks(&self) -> PathBuf {
        self.own("locks")
    }

    pub(crate) fn lock(&self, tape: &TapeName) -> PathBuf {
        self.locks().join(format!("{tape}.lock"))
    }

    pub(crate) fn leases(&self) -> PathBuf {
        self.own("leases")
    }

    pub(crate) fn lease(&self, tape: &TapeName) -> PathBuf {
        self.leases().join(format!("{tape}.lease"))
    }

    pub(crate) fn indexes(&self) -> PathBuf {
        self.own("index")
    }

    pub(crate) fn index(&self, tape: &TapeName) -> PathBuf {
        self.indexes().join(format!("{tape}.idx"))
    }

    pub(crate) fn marks(&self, tape: &TapeName) -> PathBuf {
        self.indexes().join(format!("{tape}.marks"))
    }

    pub(crate) fn torn(&self) -> PathBuf {
        self.own("torn")
    }

    pub(crate) fn temporary(&self) -> PathBuf {
        self.own("tmp")
    }

    pub(crate) fn blobs(&self) -> PathBuf {
        self.own("blobs")
    }

    /// `<tape>.jsonl.<stamp>.bak`, with a number behind the stamp when that name is taken.
    pub(crate) fn archive(&self, tape: &TapeName, stamp: &str, number: u32) -> PathBuf {
        let number = if number == 0 {
            String::new()
        } else {
            format!("-{number}")
        };
        self.root.join(format!("{tape}.jsonl.{stamp}{number}.bak"))
    }

    pub(crate) fn own(&self, name: &str) -> PathBuf {
        self.root.join(".bub").join(name)
    }
}
