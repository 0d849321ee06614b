//! The sandbox of `bub-testkit`, and the programs of this package.

use std::{
    ffi::OsStr,
    ops::Deref,
    path::{Path, PathBuf},
};

pub(crate) use bub_testkit::sandbox::{Run, ending_signals, is_ignored, signal, wait_until};

/// A separate home and workspace for the programs of this package.
pub(crate) struct Sandbox(bub_testkit::sandbox::Sandbox);

impl Sandbox {
    pub(crate) fn new() -> Self {
        Self(bub_testkit::sandbox::Sandbox::new().unwrap())
    }

    pub(crate) fn bub<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Run {
        self.run(&bub(), args)
    }

    /// Trusts the workspace with its present files.
    pub(crate) fn trust(&self) {
        self.bub(["trust"]).ok();
    }

    pub(crate) fn example<S: AsRef<OsStr>>(
        &self,
        name: &str,
        args: impl IntoIterator<Item = S>,
    ) -> Run {
        self.run(&example(name), args)
    }
}

impl Deref for Sandbox {
    type Target = bub_testkit::sandbox::Sandbox;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

pub(crate) fn bub() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_bub"))
}

/// Returns the path of an example. cargo builds all examples before it runs integration tests.
pub(crate) fn example(name: &str) -> PathBuf {
    let path = bub().parent().unwrap().join("examples").join(name);
    assert!(
        path.exists(),
        "{} is not built; run the tests with `cargo test`",
        path.display()
    );
    path
}

/// Returns the root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}
