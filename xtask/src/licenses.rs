//! `cargo xtask licenses`: checks the licenses and sources of all dependencies, and known vulnerabilities if possible.
//!
//! cargo-deny does the same, but CI would have to build it first, with several hundred crates.

use std::process::Command;

use serde_json::Value;

use crate::{TaskResult, command_output, repository_root};

/// Licenses that dependencies may have. All are permissive.
const ALLOWED: [&str; 11] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// The only source of dependencies.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The lock files of the repository.
const LOCK_FILES: [&str; 2] = ["Cargo.lock", "fuzz/Cargo.lock"];

pub(crate) fn run() -> TaskResult<()> {
    let mut problems = Vec::new();
    for file in LOCK_FILES {
        let text = std::fs::read_to_string(repository_root().join(file))?;
        problems.extend(source_problems(&text).map(|problem| format!("{file}: {problem}")));
    }
    let metadata = metadata()?;
    let packages = metadata["packages"].as_array().ok_or("no packages")?;
    problems.extend(packages.iter().filter_map(license_problem));
    if !problems.is_empty() {
        return Err(problems.join("\n").into());
    }
    println!(
        "{} packages: licenses and sources are allowed",
        packages.len()
    );
    check_advisories()
}

/// Returns the packages of the workspace and their dependencies on this platform. Those of other platforms may not be
/// downloaded.
fn metadata() -> TaskResult<Value> {
    let platform = command_output("rustc", &["--print", "host-tuple"]);
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--locked"])
        .args(["--filter-platform", &platform])
        .current_dir(repository_root())
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Returns the sources in a lock file that are not the registry.
fn source_problems(lock: &str) -> impl Iterator<Item = String> {
    let sources = lock
        .lines()
        .filter_map(|line| line.strip_prefix("source = "));
    let others = sources.filter(|source| source.trim_matches('"') != REGISTRY);
    others.map(|source| format!("source {source} is not crates.io; use a published version"))
}

fn license_problem(package: &Value) -> Option<String> {
    let license = package["license"].as_str().unwrap_or_default();
    let name = package["name"].as_str().unwrap_or_default();
    (!is_allowed(license)).then(|| {
        format!("{name}: license `{license}` is not allowed; use another crate, or add the license to xtask/src/licenses.rs")
    })
}

/// Returns whether the licenses that an SPDX expression requires are allowed.
fn is_allowed(expression: &str) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ");
    // Old packages separate alternatives with a slash.
    let spaced = spaced.replace('/', " OR ");
    let mut words = spaced.split_whitespace().peekable();
    let allowed = any_of(&mut words);
    allowed == Some(true) && words.next().is_none()
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

/// Parses alternatives. Returns `None` if the expression is malformed.
fn any_of(words: &mut Words<'_>) -> Option<bool> {
    let mut allowed = all_of(words)?;
    while words.next_if_eq(&"OR").is_some() {
        allowed |= all_of(words)?;
    }
    Some(allowed)
}

fn all_of(words: &mut Words<'_>) -> Option<bool> {
    let mut allowed = license(words)?;
    while words.next_if_eq(&"AND").is_some() {
        allowed &= license(words)?;
    }
    Some(allowed)
}

fn license(words: &mut Words<'_>) -> Option<bool> {
    let name = words.next()?;
    if name == "(" {
        let allowed = any_of(words)?;
        words.next_if_eq(&")")?;
        return Some(allowed);
    }
    match words.next_if_eq(&"WITH") {
        Some(_) => Some(ALLOWED.contains(&format!("{name} WITH {}", words.next()?).as_str())),
        None => Some(ALLOWED.contains(&name)),
    }
}

/// Runs cargo-audit if it is installed and reaches its database.
fn check_advisories() -> TaskResult<()> {
    let report = command_output("cargo", &["audit", "--json"]);
    let Ok(report) = serde_json::from_str::<Value>(&report) else {
        println!("advisories: skipped, because cargo-audit or its database is not available");
        return Ok(());
    };
    let vulnerabilities = &report["vulnerabilities"];
    match vulnerabilities["found"].as_bool() {
        Some(false) => {
            println!("advisories: none");
            Ok(())
        }
        _ => Err(format!("advisories: {:#}", vulnerabilities["list"]).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Issue 22, point 8: one allowed alternative is enough, and every required license must be allowed.
    #[test]
    fn licenses_are_allowed_by_the_meaning_of_their_expression() {
        for allowed in [
            "MIT",
            "MIT/Apache-2.0",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR GPL-2.0-only",
            "GPL-3.0-only OR MIT",
            "MIT OR Apache-2.0 AND ISC",
        ] {
            assert!(is_allowed(allowed), "{allowed}");
        }
        for refused in [
            "",
            "GPL-3.0-only",
            "MIT AND GPL-3.0-or-later",
            "GPL-2.0-only WITH Classpath-exception-2.0",
            "MIT AND (GPL-3.0-only OR AGPL-3.0-only)",
            "MIT OR",
            "(MIT",
            "MIT) OR GPL-3.0-only",
            "LicenseRef-MIT",
        ] {
            assert!(!is_allowed(refused), "{refused}");
        }
    }

    #[test]
    fn only_the_registry_is_a_source() {
        let lock = format!(
            "name = \"a\"\nsource = \"{REGISTRY}\"\nname = \"b\"\nsource = \"git+https://example.com/b#0\"\n"
        );
        let problems: Vec<_> = source_problems(&lock).collect();
        assert_eq!(
            problems,
            ["source \"git+https://example.com/b#0\" is not crates.io; use a published version"]
        );
    }
}
