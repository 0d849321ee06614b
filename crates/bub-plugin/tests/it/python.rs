//! Runs the tests of the Python SDK.

use std::process::Command;

use super::harness;

#[test]
fn the_tests_of_the_python_package_pass() {
    if !harness::has_python() {
        return;
    }
    let run = Command::new("python3")
        .args(["-B", "-m", "unittest", "discover", "-s", "tests"])
        .current_dir(harness::sdk())
        .output()
        .unwrap();
    assert!(
        run.status.success(),
        "{}",
        String::from_utf8_lossy(&run.stderr)
    );
}
