//! The invariants of ARCHITECTURE.md, each a test of the same name.

use std::path::{Path, PathBuf};

use crate::sandbox::{Sandbox, root};

/// What each crate may depend on among ours, outside its tests.
const ALLOWED: &[(&str, &[&str])] = &[
    ("bub-tape", &[]),
    ("bub-settings", &[]),
    ("bub-macros", &[]),
    ("bub-process", &[]),
    ("bub-kernel", &["bub-tape", "bub-macros"]),
    ("bub-model", &["bub-settings"]),
    (
        "bub-agent",
        &[
            "bub-kernel",
            "bub-model",
            "bub-process",
            "bub-tape",
            "bub-settings",
        ],
    ),
    ("bub-channels", &["bub-kernel", "bub-tape", "bub-settings"]),
    ("bub-terminal", &["bub-kernel", "bub-settings"]),
    (
        "bub-plugin",
        &["bub-kernel", "bub-process", "bub-tape", "bub-settings"],
    ),
    (
        "bub",
        &[
            "bub-agent",
            "bub-channels",
            "bub-kernel",
            "bub-macros",
            "bub-model",
            "bub-plugin",
            "bub-tape",
            "bub-terminal",
            "bub-settings",
        ],
    ),
    (
        "bub-testkit",
        &["bub-tape", "bub-kernel", "bub-model", "bub-settings"],
    ),
];

/// Where a vendor is adapted, its name is at home. Until each has a module, its settings are declared here.
const VENDOR_MODULES: &[&str] = &[
    "bub-agent/src/skills/bundled",
    "bub-channels/src/lib.rs",
    "bub-channels/src/plugin.rs",
    "bub-channels/src/telegram",
    "bub-settings/src/core.rs",
    "bub-settings/src/types.rs",
    "bub-settings/src/redact",
    "bub-testkit/src/lib.rs",
    "bub-testkit/src/telegram",
    "bub-model/src/catalogue",
    "bub-model/src/codex",
    "bub-model/src/wire",
];
const VENDORS: &[&str] = &[
    "openai",
    "anthropic",
    "gemini",
    "openrouter",
    "telegram",
    "discord",
    "slack",
    "ollama",
    "deepseek",
];

#[test]
fn arrows_point_downwards() {
    for (name, allowed) in ALLOWED {
        let manifest =
            std::fs::read_to_string(root().join("crates").join(name).join("Cargo.toml")).unwrap();
        let production = manifest.split("[dev-dependencies]").next().unwrap();
        let (_, dependencies) = production.split_once("[dependencies]").unwrap();
        for line in dependencies.lines().filter(|line| line.starts_with("bub")) {
            let dependency = line.split(['.', ' ', '=']).next().unwrap();
            assert!(
                allowed.contains(&dependency),
                "{name} must not depend on {dependency}"
            );
        }
    }
    let crates = std::fs::read_dir(root().join("crates")).unwrap().count();
    assert_eq!(
        crates,
        ALLOWED.len(),
        "a new crate needs its row in ALLOWED and in ARCHITECTURE.md"
    );
}

#[test]
fn the_kernel_touches_no_network_and_no_processes() {
    let forbidden = [
        "std::net",
        "std::process::Command",
        "tokio::net",
        "tokio::process",
        "std::fs",
    ];
    for (path, text) in production_files("bub-kernel") {
        for word in forbidden {
            assert!(!text.contains(word), "{} uses {word}", path.display());
        }
    }
}

#[test]
fn vendor_names_stay_in_their_modules() {
    for (path, text) in all_production_files() {
        let shown = path.to_string_lossy();
        if VENDOR_MODULES.iter().any(|module| shown.contains(module)) {
            continue;
        }
        // Names in examples of documentation are no dependency.
        let code: String = text
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"))
            .collect();
        let code = code.to_lowercase();
        for vendor in VENDORS {
            assert!(!code.contains(vendor), "{shown} names {vendor}");
        }
    }
}

#[test]
fn every_module_says_what_it_is_for() {
    for (path, text) in all_production_files() {
        assert!(
            text.starts_with("//!"),
            "{} does not open with `//!`",
            path.display()
        );
    }
}

#[test]
fn files_stay_small() {
    for (path, text) in all_production_files() {
        let lines = text.lines().count();
        assert!(lines <= 700, "{} has {lines} lines", path.display());
    }
}

#[test]
fn the_workspace_stays_readable() {
    let is_code = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with("//");
    for (name, _) in ALLOWED {
        let lines = |(_, text): (PathBuf, String)| text.lines().filter(is_code).count();
        let total: usize = production_files(name).into_iter().map(lines).sum();
        assert!(
            total <= 10_100,
            "{name} has {total} lines of production code"
        );
    }
}

#[test]
fn the_hook_reference_matches_the_table() {
    let table = Sandbox::new().bub(["hooks", "--all"]).ok();
    let page = std::fs::read_to_string(root().join("docs/hooks.md")).unwrap();
    assert!(
        page.contains(&table),
        "docs/hooks.md is out of date; it should hold:\n{table}"
    );
}

#[test]
fn the_plugin_schema_matches_the_table() {
    let schema = Sandbox::new().bub(["hooks", "--schema"]).ok();
    let file = std::fs::read_to_string(root().join("docs/plugin-protocol.schema.json")).unwrap();
    assert!(
        file == schema,
        "docs/plugin-protocol.schema.json is out of date; `bub hooks --schema` prints it"
    );
}

fn all_production_files() -> Vec<(PathBuf, String)> {
    ALLOWED
        .iter()
        .flat_map(|(name, _)| production_files(name))
        .collect()
}

fn production_files(name: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    collect(&root().join("crates").join(name).join("src"), &mut found);
    assert!(!found.is_empty(), "no files in {name}");
    found
}

fn collect(directory: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs")
            && !path.ends_with("tests.rs")
        {
            let text = std::fs::read_to_string(&path).unwrap();
            // What follows the production code of a file is its tests.
            let production = text.split("#[cfg(test)]").next().unwrap().to_owned();
            found.push((path, production));
        }
    }
}
