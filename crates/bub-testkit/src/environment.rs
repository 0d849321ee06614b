//! The environment of a test: fixture data, and simulated processes.

use std::{path::PathBuf, process::Command, time::Duration};

/// Returns whether `BUB_FIXTURES` is set, for tests that use the data in addition to their own.
#[expect(clippy::disallowed_methods, reason = "tests have no settings")]
pub fn has_fixtures() -> bool {
    std::env::var_os("BUB_FIXTURES").is_some()
}

/// Returns a directory of the fixture data below `BUB_FIXTURES`. Panics if the variable is not set or the data is missing.
///
/// A test that needs the data has the attribute [`needs_fixtures`](crate::needs_fixtures).
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

/// Runs a test in a process that runs no other test, because it measures the process. `name` is the path of the test that
/// calls this function, as the test harness prints it.
#[expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "tests have no settings, and cannot continue without the process"
)]
pub fn run_alone(name: &str, test: impl FnOnce()) {
    const MARK: &str = "BUB_TESTKIT_ALONE";
    if std::env::var_os(MARK).is_some() {
        return test();
    }
    let program = std::env::current_exe().expect("the test program has a path");
    let output = Command::new(program)
        .args(["--exact", name, "--nocapture"])
        .env(MARK, "1")
        .output()
        .expect("the test program can be started");
    let printed = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}");
    assert!(
        printed.contains("1 passed"),
        "no test is named {name}: {printed}"
    );
}
