//! Checks the list of mutation tests: each mutation applies, each has a test, and the page names both.

use std::fmt::Write as _;

use crate::sandbox::root;

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the directory of a package: `crates/NAME`, or `plugins/NAME` without the prefix `bub-`.
fn package_directory(package: &str) -> String {
    let plugin = format!("plugins/{}", package.trim_start_matches("bub-"));
    if root().join(&plugin).exists() {
        plugin
    } else {
        format!("crates/{package}")
    }
}

#[test]
fn the_page_about_reliability_has_the_mistakes_that_are_tried() {
    let list = read("scripts/mutations.txt");
    let list: String =
        list.lines()
            .filter(|line| !line.starts_with('#'))
            .fold(String::new(), |mut text, line| {
                let _ = writeln!(text, "{line}");
                text
            });
    let mut table = String::from("| Mutation | Test that fails |\n|---|---|\n");
    let mut count = 0;
    for block in list.split("\n\n").filter(|block| !block.trim().is_empty()) {
        let lines: Vec<&str> = block.trim().lines().map(str::trim).collect();
        let [name, path, old, new, target, test] = lines[..] else {
            panic!("not six lines: {block}")
        };
        let (old, new) = (
            old.strip_prefix("- ").unwrap(),
            new.strip_prefix("+ ").unwrap(),
        );
        assert_eq!(
            read(path).matches(old).count(),
            1,
            "{name}: `{old}` must be in {path} once"
        );
        assert_ne!(old, new, "{name}");
        let [package, "--test", program] = target.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{target}")
        };
        let function = test.rsplit("::").next().unwrap();
        let module = test
            .rsplit_once("::")
            .map_or_else(String::new, |(module, _)| format!("/{module}"));
        let directory = package_directory(package);
        let mut file = format!("{directory}/tests/{program}{module}.rs");
        if !root().join(&file).exists() {
            file = format!("{directory}/tests/{program}/main.rs");
        }
        assert!(
            read(&file).contains(&format!("fn {function}(")),
            "{name}: no {function} in {file}"
        );
        let _ = writeln!(table, "| {name} | `{package}`: `{function}` |");
        count += 1;
    }
    assert!(count >= 12, "{count}");
    let page = read("docs/reliability.md");
    assert!(
        page.contains(&table),
        "docs/reliability.md must have:\n\n{table}"
    );
}
