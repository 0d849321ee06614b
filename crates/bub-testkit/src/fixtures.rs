//! Tests with data that is not in the repository.
//!
//! Rust's test harness cannot ignore a test when it runs. Therefore these tests are in a separate test binary,
//! `tests/fixtures.rs` with `harness = false`, whose `main` calls [`run_fixture_tests`].

use std::{env, path::Path, path::PathBuf, process::ExitCode};

use libtest_mimic::{Arguments, Trial};

/// A test and its name. The argument is the directory `BUB_FIXTURES`.
pub type FixtureTest = (&'static str, fn(&Path));

/// Runs tests that read the directory `BUB_FIXTURES`. If the variable is not set, the tests are reported as ignored. If
/// it is set, missing data must fail the test.
#[expect(clippy::disallowed_methods, reason = "tests have no settings")]
pub fn run_fixture_tests(tests: &[FixtureTest]) -> ExitCode {
    let root = env::var_os("BUB_FIXTURES").map(PathBuf::from);
    let trial = |(name, test): &FixtureTest| {
        let (root, test) = (root.clone(), *test);
        let is_ignored = root.is_none();
        let run = move || {
            test(&root.ok_or("set BUB_FIXTURES to the directory with the data")?);
            Ok(())
        };
        Trial::test(*name, run).with_ignored_flag(is_ignored)
    };
    libtest_mimic::run(&Arguments::from_args(), tests.iter().map(trial).collect()).exit_code()
}
