//! The environment of a test: fixture data, and simulated processes.

use std::{path::PathBuf, time::Duration};

/// Returns a directory of the fixture data below `BUB_FIXTURES`. Panics if the variable is not set or the data is missing.
///
/// A test that needs the data has the attribute `#[cfg_attr(not(fixtures), ignore)]`. The build script of its crate sets
/// the cfg `fixtures` if `BUB_FIXTURES` is set, so that the test is reported as ignored otherwise.
#[expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "a test has no settings, and cannot continue without its data"
)]
pub fn fixtures(directory: &str) -> PathBuf {
    let root = std::env::var_os("BUB_FIXTURES").expect("BUB_FIXTURES is set");
    let path = PathBuf::from(root).join(directory);
    assert!(path.is_dir(), "no fixture data in {}", path.display());
    path
}

/// Runs a future on a new runtime, which simulates one process. When it ends, all its tasks are gone. Its clock advances
/// automatically while the process is idle.
#[expect(
    clippy::expect_used,
    reason = "a test cannot continue without a runtime"
)]
pub fn run_process<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime can be created");
    let outcome = runtime.block_on(work);
    runtime.shutdown_timeout(Duration::from_secs(5));
    outcome
}
