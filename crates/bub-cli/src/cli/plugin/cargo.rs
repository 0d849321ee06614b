//! Programs that cargo builds: whether the program of a plugin is built and up to date.

use std::{
    path::{Path, PathBuf},
    time::SystemTime,
};

use bub_plugin::{Manifest, quote_for_shell};

/// Returns why the program of a plugin cannot be used, if the plugin is a Rust project: the program is not built, or
/// older than its sources.
pub(super) fn build_problem(manifest: &Manifest, directory: &Path) -> Option<String> {
    let command = manifest.command.first()?;
    let project = directory.join("Cargo.toml");
    // A name without a directory is a program in `PATH`.
    if !command.contains('/') || !project.is_file() {
        return None;
    }
    let program = directory.join(command);
    let problem = match modified(&program) {
        None => "not found: the plugin is not built".to_owned(),
        Some(built) => {
            let source = newer_source(&program, built)?;
            let source = source.strip_prefix(directory).unwrap_or(&source);
            format!("is older than `{}`", source.display())
        }
    };
    Some(format!(
        "program `{command}` {problem}; run: cargo build --release --manifest-path {}",
        quote_for_shell(&project)
    ))
}

fn modified(file: &Path) -> Option<SystemTime> {
    file.metadata().ok()?.modified().ok()
}

/// Returns a source of the program that changed after the program was built. Cargo lists the sources in a file beside
/// the program, in the format of make.
fn newer_source(program: &Path, built: SystemTime) -> Option<PathBuf> {
    let rule = std::fs::read_to_string(program.with_extension("d")).ok()?;
    let (_, sources) = rule.trim_end().split_once(": ")?;
    // Spaces in paths are escaped.
    let sources = sources.replace("\\ ", "\0");
    let mut sources = sources
        .split(' ')
        .map(|source| PathBuf::from(source.replace('\0', " ")));
    sources.find(|source| modified(source).is_some_and(|changed| changed > built))
}
