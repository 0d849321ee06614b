//! `cargo xtask api`: writes the public API of the crate `bub` to a file, or compares it with the file.
//!
//! The file lists the items of `bub` itself, `bub::testing` included, and the definitions of the items that its root,
//! `prelude` and `testing` re-export from other crates of the workspace. An item that `bub` re-exports has the name that
//! plugin authors use: `bub::Turn`, not `bub_kernel::Turn`. The modules `bub::kernel`, `bub::tape` and the like are aliases
//! of complete crates, which are not part of the stable API. Only their names are listed.
//!
//! The source is rustdoc's JSON output, which the stable compiler provides only with `RUSTC_BOOTSTRAP`. This variable would
//! invalidate build scripts of dependencies. Therefore only rustdoc gets it: cargo starts this program as rustdoc.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use serde_json::Value;

use crate::{TaskResult, repository_root};

const PATH: &str = "crates/bub/public-api.txt";
/// Set if cargo started this program as rustdoc.
const RUSTDOC_VARIABLE: &str = "BUB_XTASK_RUSTDOC";

pub(crate) fn run(is_check: bool) -> TaskResult<()> {
    let api = public_api()?;
    let path = repository_root().join(PATH);
    if !is_check {
        fs::write(&path, &api)?;
        println!("{PATH}: {} lines", api.lines().count());
        return Ok(());
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    if committed == api {
        println!("{PATH} matches the public API");
        return Ok(());
    }
    let diff = line_diff(&committed, &api);
    Err(format!("{diff}\nthe public API of `bub` differs from {PATH}; if this is intended, run `cargo xtask api` and commit the file").into())
}

/// Runs rustdoc if cargo started this program in its place.
#[expect(clippy::disallowed_methods, reason = "a tool has no settings")]
pub(crate) fn run_as_rustdoc() -> Option<ExitCode> {
    env::var_os(RUSTDOC_VARIABLE)?;
    let rustdoc = Path::new(env!("CARGO")).with_file_name("rustdoc");
    let status = Command::new(rustdoc)
        .args(env::args_os().skip(1))
        .env("RUSTC_BOOTSTRAP", "1")
        .status();
    let is_success = status.is_ok_and(|status| status.success());
    Some(if is_success {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn public_api() -> TaskResult<String> {
    let directory = rustdoc_json(&["bub"], &["bub/testing"])?;
    let reexports = reexports(&directory.join("bub.json"))?;
    let sources: BTreeSet<&str> = reexports.keys().filter_map(|path| crate_of(path)).collect();
    let packages: Vec<String> = sources.iter().map(|name| name.replace('_', "-")).collect();
    let packages: Vec<&str> = packages.iter().map(String::as_str).collect();
    rustdoc_json(&packages, &["bub-tape/testing"])?;

    let mut lines: BTreeSet<String> = items(&directory.join("bub.json"))?.into_iter().collect();
    for source in sources {
        let is_reexported = |line: &String| {
            item_path(line).is_some_and(|path| reexported_prefix(path, &reexports).is_some())
        };
        let items = items(&directory.join(format!("{source}.json")))?;
        lines.extend(items.into_iter().filter(is_reexported));
    }
    let lines: BTreeSet<String> = lines
        .iter()
        .map(|line| rename_paths(line, &reexports))
        .collect();
    let mut sorted: Vec<String> = lines.into_iter().collect();
    // By path, so that an item stands next to its methods.
    sorted.sort_by_cached_key(|line| (item_path(line).unwrap_or(line).to_owned(), line.clone()));
    Ok(sorted.join("\n") + "\n")
}

/// Writes `NAME.json` for each package. Returns the directory with the files.
fn rustdoc_json(packages: &[&str], features: &[&str]) -> TaskResult<PathBuf> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["doc", "--quiet", "--locked", "--no-deps", "--lib"]);
    for package in packages {
        command.args(["--package", package]);
    }
    let target = target_directory()?;
    let status = command
        .args(["--features", &features.join(",")])
        .current_dir(repository_root())
        .env("RUSTDOC", env::current_exe()?)
        .env(
            "RUSTDOCFLAGS",
            "-Z unstable-options --output-format json --cap-lints allow",
        )
        .env(RUSTDOC_VARIABLE, "1")
        .status()?;
    if !status.success() {
        return Err("rustdoc failed; see the output above".into());
    }
    Ok(target.join("doc"))
}

fn target_directory() -> TaskResult<PathBuf> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps"])
        .current_dir(repository_root())
        .output()?;
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let directory = metadata["target_directory"].as_str();
    Ok(directory
        .ok_or("cargo metadata names no target directory")?
        .into())
}

/// Returns the items that `bub` re-exports from other crates of the workspace: their path there, and in `bub`.
fn reexports(json: &Path) -> TaskResult<BTreeMap<String, String>> {
    let document: Value = serde_json::from_slice(&fs::read(json)?)?;
    let index = &document["index"];
    let mut found = BTreeMap::new();
    let mut modules = vec![(document["root"].clone(), "bub".to_owned())];
    while let Some((id, path)) = modules.pop() {
        let items = index[id.to_string()]["inner"]["module"]["items"].as_array();
        for id in items.into_iter().flatten() {
            let item = &index[id.to_string()];
            let inner = &item["inner"];
            if inner["module"].is_object() {
                let name = item["name"].as_str().unwrap_or_default();
                modules.push((id.clone(), format!("{path}::{name}")));
            }
            let source = inner["use"]["source"].as_str().unwrap_or_default();
            // A source without a path is a complete crate.
            if source.starts_with("bub_") && source.contains("::") {
                let name = inner["use"]["name"].as_str().unwrap_or_default();
                let is_glob = inner["use"]["is_glob"] == true;
                let public = if is_glob {
                    path.clone()
                } else {
                    format!("{path}::{name}")
                };
                // The shortest path wins: `bub::Turn`, not `bub::prelude::Turn`.
                let known = found.entry(source.to_owned()).or_insert(public.clone());
                if public.len() < known.len() {
                    *known = public;
                }
            }
        }
    }
    Ok(found)
}

fn items(json: &Path) -> TaskResult<Vec<String>> {
    let api = public_api::Builder::from_rustdoc_json(json)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()?;
    Ok(api.items().map(ToString::to_string).collect())
}

/// Returns the path that a line is about: of the item, or of the type of an `impl`.
fn item_path(line: &str) -> Option<&str> {
    let subject = match line.split_once("impl") {
        Some(("", rest)) => rest.rsplit_once(" for ").map_or(rest, |(_, target)| target),
        _ => line,
    };
    let start = subject.find("bub")?;
    let rest = &subject[start..];
    let is_path = |character: char| character.is_alphanumeric() || matches!(character, '_' | ':');
    let end = rest.find(|character| !is_path(character));
    Some(rest[..end.unwrap_or(rest.len())].trim_end_matches(':'))
}

/// Returns the re-export that is the path or contains it.
fn reexported_prefix<'a>(
    path: &str,
    reexports: &'a BTreeMap<String, String>,
) -> Option<(&'a str, &'a str)> {
    let mut prefix = path;
    loop {
        if let Some((source, public)) = reexports.get_key_value(prefix) {
            return Some((source, public));
        }
        prefix = prefix.rsplit_once("::")?.0;
    }
}

/// Replaces the paths of re-exported items by their paths in `bub`.
fn rename_paths(line: &str, reexports: &BTreeMap<String, String>) -> String {
    let mut renamed = String::new();
    let mut rest = line;
    while let Some(start) = rest.find("bub_") {
        renamed.push_str(&rest[..start]);
        rest = &rest[start..];
        let path = item_path(rest).unwrap_or("bub_");
        renamed.push_str(&public_path(path, reexports));
        rest = &rest[path.len()..];
    }
    renamed + rest
}

/// Returns the path in `bub` of an item, or the path itself if `bub` does not re-export it.
fn public_path(path: &str, reexports: &BTreeMap<String, String>) -> String {
    // Signatures name the module that defines a type, which may be private: `bub_kernel::turn::Turn`.
    let mut parts = path.split("::");
    let krate = parts.next().unwrap_or_default();
    let is_type = |part: &&str| part.starts_with(char::is_uppercase);
    let members: Vec<&str> = parts.skip_while(|part| !is_type(part)).collect();
    let short = format!("{krate}::{}", members.join("::"));
    let found = [short.as_str(), path].into_iter().find_map(|path| {
        let (source, public) = reexported_prefix(path, reexports)?;
        Some(format!("{public}{}", &path[source.len()..]))
    });
    found.unwrap_or_else(|| path.to_owned())
}

fn crate_of(path: &str) -> Option<&str> {
    path.split("::").next()
}

/// Returns the lines that only one of the texts has.
fn line_diff(old: &str, new: &str) -> String {
    let (old_lines, new_lines): (BTreeSet<&str>, BTreeSet<&str>) =
        (old.lines().collect(), new.lines().collect());
    let removed = old_lines
        .difference(&new_lines)
        .map(|line| format!("-{line}"));
    let added = new_lines
        .difference(&old_lines)
        .map(|line| format!("+{line}"));
    removed.chain(added).collect::<Vec<_>>().join("\n")
}
