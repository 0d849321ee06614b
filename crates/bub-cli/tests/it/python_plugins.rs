//! Plugins of the Python version, which `bub install` installs from a directory of packages. Nothing is downloaded.

use std::path::PathBuf;

use bub_testkit::model::{ModelServer, Reply};

use crate::sandbox::{Run, Sandbox, bub, root};

/// Package with a plugin that implements every hook of the Python version.
const EVERY_HOOK: &str = "every-hook";

/// Returns the directory of packages, which `scripts/python-packages` fills.
#[expect(clippy::disallowed_methods, reason = "tests have no settings")]
fn packages() -> PathBuf {
    std::env::var_os("BUB_PYTHON_PACKAGES").unwrap().into()
}

fn install(sandbox: &Sandbox, package: &str) -> Run {
    let packages = packages();
    let packages = packages.to_str().unwrap();
    sandbox.bub([
        "install",
        package,
        "--yes",
        "--no-index",
        "--find-links",
        packages,
    ])
}

/// P-94 to P-105: each hook is called as in the Python version, which wrote the expected trace.
#[bub_testkit::needs_fixtures(BUB_PYTHON_PACKAGES)]
#[test]
fn an_unmodified_plugin_with_every_hook_has_the_trace_of_the_python_version() {
    let sandbox = Sandbox::new();
    let added = install(&sandbox, EVERY_HOOK).ok();
    assert!(added.contains("added every-hook"), "{added}");
    let model = ModelServer::start();
    model.script(Reply::new().call("c1", "every_count", "{}"));
    model.otherwise(Reply::text("echo: go on"));
    let mut command = sandbox.command(&bub());
    command
        .args(["run", "TOOL every_count {}"])
        .env("BUB_MODEL", "openai:small")
        .env("BUB_API_BASE", format!("{}/v1", model.url()))
        .env("BUB_API_KEY", "a-key-of-the-test");
    Run::from_output(command.output().unwrap()).ok();
    let trace = std::fs::read_to_string(sandbox.workspace().join("trace.jsonl")).unwrap();
    let expected = root().join("crates/bub-cli/tests/data/python-plugin/trace.jsonl");
    assert_eq!(trace, std::fs::read_to_string(expected).unwrap());
    let shouted = sandbox.bub(["every", "shout", "--loud", "a", "b"]).ok();
    assert_eq!(shouted, "A B\n");
    assert_eq!(sandbox.bub(["every", "fail"]).code, Some(3));
}

/// P-6: a package can be removed and is then unknown.
#[bub_testkit::needs_fixtures(BUB_PYTHON_PACKAGES)]
#[test]
fn a_removed_package_leaves_no_plugin() {
    let sandbox = Sandbox::new();
    install(&sandbox, EVERY_HOOK).ok();
    let removed = sandbox.bub(["uninstall", EVERY_HOOK]).ok();
    assert!(
        removed.starts_with("removed every-hook (every-hook)"),
        "{removed}"
    );
    assert!(
        sandbox
            .bub(["plugin", "list"])
            .ok()
            .starts_with("no plugins")
    );
}

#[bub_testkit::needs_fixtures(BUB_PYTHON_PACKAGES)]
#[test]
fn a_package_that_does_not_exist_is_an_error_and_adds_nothing() {
    let sandbox = Sandbox::new();
    let failed = install(&sandbox, "no-such-package");
    assert_eq!(failed.code, Some(2));
    assert!(failed.stderr.contains("failed: exit status"), "{failed:?}");
    assert!(
        sandbox
            .bub(["plugin", "list"])
            .ok()
            .starts_with("no plugins")
    );
}

#[test]
fn packages_are_not_installed_without_an_answer() {
    let sandbox = Sandbox::new();
    let refused = sandbox.bub(["install", "some-package"]);
    assert!(refused.stderr.contains("pass `--yes`"), "{refused:?}");
    assert!(!sandbox.home().join("plugins").exists());
}

/// The files that `bub install` writes are all files of the package.
#[test]
fn the_program_contains_every_file_of_the_python_package() {
    let source = root().join("crates/bub-cli/src/cli/install/package.rs");
    let source = std::fs::read_to_string(source).unwrap();
    let package = root().join("sdk/python-compat/bub");
    let mut directories = vec![package.clone()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("__pycache__") {
                directories.push(path);
            } else if path.extension().is_some_and(|suffix| suffix == "py") {
                let name = path.strip_prefix(&package).unwrap().to_str().unwrap();
                assert!(source.contains(&format!("compat!(\"{name}\")")), "{name}");
            }
        }
    }
}
