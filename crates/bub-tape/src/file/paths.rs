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
    pub(crate) fn tape_file(&self, tape: &TapeName) -> PathBuf {
        let file = format!("{tape}.jsonl");
        if tape.is_fork() {
            self.forks_dir().join(file)
        } else {
            self.root.join(file)
        }
    }

    pub(crate) fn forks_dir(&self) -> PathBuf {
        self.private_dir("forks")
    }

    pub(crate) fn locks_dir(&self) -> PathBuf {
        self.private_dir("locks")
    }

    pub(crate) fn lock_file(&self, tape: &TapeName) -> PathBuf {
        self.locks_dir().join(format!("{tape}.lock"))
    }

    pub(crate) fn lease_file(&self, tape: &TapeName) -> PathBuf {
        self.private_dir("leases").join(format!("{tape}.lease"))
    }

    pub(crate) fn draft_file(&self, tape: &TapeName) -> PathBuf {
        self.private_dir("drafts").join(format!("{tape}.txt"))
    }

    pub(crate) fn index_file(&self, tape: &TapeName) -> PathBuf {
        self.private_dir("index").join(format!("{tape}.idx"))
    }

    pub(crate) fn marks_file(&self, tape: &TapeName) -> PathBuf {
        self.private_dir("index").join(format!("{tape}.marks"))
    }

    /// Returns the path of a file of the search index.
    pub(crate) fn search_file(&self, name: &str) -> PathBuf {
        self.private_dir("search").join(name)
    }

    pub(crate) fn torn_dir(&self) -> PathBuf {
        self.private_dir("torn")
    }

    pub(crate) fn blobs_dir(&self) -> PathBuf {
        self.private_dir("blobs")
    }

    /// Returns the path of an archive: `<tape>.jsonl.<stamp>.bak`, or `<tape>.jsonl.<stamp>-<number>.bak` if `number`
    /// is not 0.
    pub(crate) fn archive_file(&self, tape: &TapeName, stamp: &str, number: u32) -> PathBuf {
        let number = if number == 0 {
            String::new()
        } else {
            format!("-{number}")
        };
        self.root.join(format!("{tape}.jsonl.{stamp}{number}.bak"))
    }

    /// Returns the path of the temporary file for replacing `path`, unique to this process.
    ///
    /// Two threads of the process never write different content to it: files of a tape are replaced only under the
    /// tape's lock, and blobs only with equal content.
    pub(crate) fn temp_file(&self, path: &Path) -> PathBuf {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        self.private_dir("tmp")
            .join(format!("{name}.{}", std::process::id()))
    }

    /// Returns a directory under `.bub/`, which the Python version does not use.
    fn private_dir(&self, name: &str) -> PathBuf {
        self.root.join(".bub").join(name)
    }
}
