//! Tests the invariants of ARCHITECTURE.md. Each test has the name of its invariant.

use std::path::{Path, PathBuf};

use crate::sandbox::{Sandbox, root};

/// Crates of the workspace that each crate may depend on, outside its tests.
const ALLOWED: &[(&str, &[&str])] = &[
    ("bub-tape", &[]),
    ("bub-settings", &["bub-macros"]),
    ("bub-macros", &[]),
    ("bub-sandbox", &[]),
    ("bub-kernel", &["bub-tape", "bub-macros", "bub-settings"]),
    ("bub-model", &["bub-settings"]),
    (
        "bub-agent",
        &[
            "bub-kernel",
            "bub-model",
            "bub-sandbox",
            "bub-tape",
            "bub-settings",
        ],
    ),
    ("bub-gateway", &["bub-kernel", "bub-tape", "bub-settings"]),
    ("bub-terminal", &["bub-kernel", "bub-settings"]),
    (
        "bub-plugin",
        &["bub-kernel", "bub-sandbox", "bub-tape", "bub-settings"],
    ),
    (
        "bub",
        &[
            "bub-agent",
            "bub-gateway",
            "bub-kernel",
            "bub-macros",
            "bub-model",
            "bub-plugin",
            "bub-sandbox",
            "bub-tape",
            "bub-terminal",
            "bub-settings",
        ],
    ),
    (
        "bub-cli",
        &[
            "bub",
            "bub-agent",
            "bub-codex",
            "bub-replay",
            "bub-fetch",
            "bub-gateway",
            "bub-http",
            "bub-kernel",
            "bub-macros",
            "bub-model",
            "bub-plugin",
            "bub-tape",
            "bub-telegram",
            "bub-terminal",
            "bub-sandbox",
            "bub-settings",
        ],
    ),
    ("bub-testkit", &["bub-tape", "bub-testkit-macros"]),
];

/// Modules that may contain vendor names. The redactor knows the token formats of vendors.
const VENDOR_MODULES: &[&str] = &[
    "bub-agent/src/skills/bundled",
    "bub-cli/src/bundled.rs",
    "bub-settings/src/redact",
    "bub-testkit/src/lib.rs",
    "bub-testkit/src/telegram",
    "plugins/codex/src",
    "plugins/telegram/src",
    "bub-model/src/catalog",
    "bub-model/src/wire",
    // Names of files with instructions for agents, one of which is that of a vendor.
    "bub-sandbox/src/protection.rs",
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

/// Crates of the workspace that a crate under `plugins/` may depend on.
const PLUGIN_DEPENDENCIES: &[&str] = &["bub"];
const PLUGIN_DEV_DEPENDENCIES: &[&str] = &["bub", "bub-testkit"];

/// Returns the forbidden dependencies in the manifest of a plugin. Crates of the workspace are `bub` and `bub-…`; a
/// renamed dependency is detected by its `package` or `path`.
fn forbidden_dependencies(manifest: &str) -> Vec<String> {
    let mut forbidden = Vec::new();
    let mut table = "";
    for line in manifest.lines().map(str::trim) {
        if let Some(header) = line.strip_prefix('[') {
            table = header.trim_matches(['[', ']']);
            // `[dependencies.bub-tape]`
            if let Some((kind, name)) = table.split_once("dependencies.") {
                check_dependency(kind.starts_with("dev"), name, "", &mut forbidden);
            }
            continue;
        }
        let Some((name, value)) = line.split_once('=').filter(|_| !line.starts_with('#')) else {
            continue;
        };
        if table.ends_with("dependencies") {
            let name = name.trim().split('.').next().unwrap();
            let is_dev = table.ends_with("dev-dependencies");
            check_dependency(is_dev, name.trim_matches('"'), value, &mut forbidden);
        } else if table.contains("dependencies.") {
            check_dependency(table.starts_with("dev"), "", line, &mut forbidden);
        }
    }
    forbidden
}

fn check_dependency(is_dev: bool, name: &str, value: &str, forbidden: &mut Vec<String>) {
    let allowed = if is_dev {
        PLUGIN_DEV_DEPENDENCIES
    } else {
        PLUGIN_DEPENDENCIES
    };
    let is_ours = name == "bub" || name.starts_with("bub-");
    if is_ours && !allowed.contains(&name)
        || ["path", "package"].iter().any(|key| value.contains(key))
    {
        forbidden.push(format!("{name} {}", value.trim()).trim().to_owned());
    }
}

#[test]
fn plugins_depend_on_the_library_only() {
    let mut count = 0;
    for entry in std::fs::read_dir(root().join("plugins")).unwrap() {
        let path = entry.unwrap().path().join("Cargo.toml");
        let manifest = std::fs::read_to_string(&path).unwrap();
        let forbidden = forbidden_dependencies(&manifest);
        assert!(forbidden.is_empty(), "{}: {forbidden:?}", path.display());
        count += 1;
    }
    assert!(count >= 2, "only {count} plugins found");
}

#[test]
fn a_plugin_with_a_forbidden_dependency_is_found() {
    let bad = [
        (
            "[dependencies]\nbub-kernel.workspace = true\n",
            "bub-kernel",
        ),
        (
            "[dependencies]\nbub-testkit.workspace = true\n",
            "bub-testkit",
        ),
        ("[dependencies]\n\"bub-tape\" = \"1\"\n", "bub-tape"),
        ("[dependencies.bub-agent]\nworkspace = true\n", "bub-agent"),
        (
            "[dev-dependencies]\nbub-settings = { workspace = true }\n",
            "bub-settings",
        ),
        (
            "[dependencies]\ntape = { package = \"bub-tape\", version = \"1\" }\n",
            "bub-tape",
        ),
        (
            "[dependencies]\ntape = { path = \"../../crates/bub-tape\" }\n",
            "bub-tape",
        ),
        ("[dependencies.tape]\npackage = \"bub-tape\"\n", "bub-tape"),
        (
            "[target.'cfg(unix)'.dependencies]\nbub-sandbox.workspace = true\n",
            "bub-sandbox",
        ),
        (
            "[build-dependencies]\nbub-macros.workspace = true\n",
            "bub-macros",
        ),
    ];
    for (manifest, name) in bad {
        let found = forbidden_dependencies(manifest);
        assert!(
            found.len() == 1 && found[0].contains(name),
            "{manifest}: {found:?}"
        );
    }
    let good = "[package]\nname = \"bub-x\"\n[dependencies]\nbub.workspace = true\n# bub-tape = \"1\"\n\
                tokio = { version = \"1\" }\n[dev-dependencies]\nbub-testkit.workspace = true\n";
    assert_eq!(forbidden_dependencies(good), Vec::<String>::new());
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
    for (path, text) in production_files("crates/bub-kernel") {
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
        // Names in doc examples are not dependencies.
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
fn log_messages_are_event_names() {
    let is_name = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_lowercase())
            && part
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    let mut count = 0;
    for (path, text) in all_production_files() {
        for level in ["error", "warn", "info", "debug", "trace"] {
            for call in text.split(&format!("tracing::{level}!(")).skip(1) {
                // The message is the last argument, so it ends where the call ends.
                let parts: Vec<_> = call.split('"').collect();
                let last = parts
                    .windows(2)
                    .find(|pair| pair[1].trim_start().starts_with(')'));
                let message = last.map_or("", |pair| pair[0]);
                assert!(
                    message.contains('.') && message.split('.').all(is_name),
                    "{}: `{message}` is not an event name",
                    path.display()
                );
                count += 1;
            }
        }
    }
    assert!(count > 100, "only {count} log calls found");
}

#[test]
fn files_stay_small() {
    for (path, text) in all_production_files() {
        let lines = text.lines().count();
        assert!(lines <= 700, "{} has {lines} lines", path.display());
    }
}

/// The table in ARCHITECTURE.md gives each crate its maximum number of lines.
#[test]
fn crates_stay_within_their_size() {
    let page = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let is_code = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with("//");
    let (mut core, mut over) = (0, Vec::new());
    let mut compare = |name: &str, total: usize| {
        let limit = size_limit(&page, name);
        if total > limit {
            over.push(format!("{name} has {total} lines, its limit is {limit}"));
        }
    };
    for name in packages() {
        let lines = |(path, text): (PathBuf, String)| {
            // The modules `testing` are for the tests of plugins.
            let is_testing = path.components().any(|part| part.as_os_str() == "testing");
            let is_testing = is_testing || path.ends_with("src/testing.rs");
            let count = text.lines().filter(is_code).count();
            if is_testing { 0 } else { count }
        };
        let total: usize = production_files(&name).into_iter().map(lines).sum();
        compare(&name, total);
        if name.starts_with("crates/") && name != "crates/bub-testkit" {
            core += total;
        }
    }
    compare("the core", core);
    assert!(over.is_empty(), "{}", over.join("\n"));
}

/// Returns the number in the row of the size table that starts with `name`.
fn size_limit(page: &str, name: &str) -> usize {
    let row = page
        .lines()
        .find_map(|line| line.strip_prefix(&format!("| {name} | ")))
        .unwrap_or_else(|| panic!("ARCHITECTURE.md has no size of {name}"));
    let number: String = row.chars().filter(char::is_ascii_digit).collect();
    number.parse().unwrap()
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
    packages()
        .iter()
        .flat_map(|name| production_files(name))
        .collect()
}

/// Returns the directories of all packages, including the testkit.
fn packages() -> Vec<String> {
    let crates = ALLOWED.iter().map(|(name, _)| format!("crates/{name}"));
    let plugins = std::fs::read_dir(root().join("plugins")).unwrap();
    let plugins = plugins.map(|entry| {
        let name = entry.unwrap().file_name();
        format!("plugins/{}", name.to_string_lossy())
    });
    crates.chain(plugins).collect()
}

fn production_files(name: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    collect(&root().join(name).join("src"), &mut found);
    assert!(!found.is_empty(), "no files in {name}");
    found
}

/// Returns the text before the test module of a file, which follows the production code.
///
/// `#[cfg(test)]` before another item, such as a function that only tests use, does not end the production code.
fn production_part(text: &str) -> &str {
    const MARK: &str = "\n#[cfg(test)]\n";
    let is_test_module = |(start, _): &(usize, &str)| {
        let after = &text[start + MARK.len()..];
        let item = after
            .lines()
            .find(|line| line.starts_with(|first: char| first.is_ascii_lowercase()));
        item.is_some_and(|item| item.starts_with("mod ") && item.ends_with('{'))
    };
    let module = text.match_indices(MARK).find(is_test_module);
    module.map_or(text, |(start, _)| &text[..start])
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
            found.push((path, production_part(&text).to_owned()));
        }
    }
}
