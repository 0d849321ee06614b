//! `bub plugin new`: creates a plugin project that runs as generated.

use std::{
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use bub::CommandContext;
use bub_kernel::{Error, Result};
use bub_plugin::Manifest;

use crate::cli::output;

/// A file of the Python SDK. Each project contains a copy of the SDK, so that it needs no installation.
macro_rules! sdk {
    ($name:literal) => {
        (
            concat!("bub_sdk/", $name),
            include_str!(concat!("../../../sdk/", $name)),
        )
    };
}

/// Files of a Python project, besides the SDK. `PLUGIN` is replaced by the name of the plugin.
const PYTHON: &[(&str, &str)] = &[
    ("bub-plugin.yml", include_str!("new/python.yml.txt")),
    ("plugin.py", include_str!("new/plugin.py.txt")),
];
/// Files of the Python SDK.
pub(in crate::cli) const SDK_FILES: &[(&str, &str)] = &[
    sdk!("__init__.py"),
    sdk!("__main__.py"),
    sdk!("host.py"),
    sdk!("decorators.py"),
    sdk!("peer.py"),
    sdk!("provided.py"),
    sdk!("py.typed"),
    sdk!("schema.py"),
    sdk!("serve.py"),
    sdk!("values.py"),
];
/// Files of a Rust project. `PLUGIN`, `CRATE` (the name as a Rust identifier) and `DEPENDENCY` (where cargo finds the
/// library `bub`) are placeholders.
const RUST: &[(&str, &str)] = &[
    ("bub-plugin.yml", include_str!("new/rust.yml.txt")),
    ("Cargo.toml", include_str!("new/rust/Cargo.toml.txt")),
    ("README.md", include_str!("new/rust/README.md.txt")),
    (".gitignore", "/target\n"),
    ("src/lib.rs", include_str!("new/rust/lib.rs.txt")),
    ("src/main.rs", include_str!("new/rust/main.rs.txt")),
    ("tests/plugin.rs", include_str!("new/rust/test.rs.txt")),
];
/// Names that a Rust project cannot have, because it depends on crates with these names.
const RUST_DEPENDENCIES: &[&str] = &["bub", "serde_json", "tokio"];
/// Files of a shell project, with `PLUGIN` as a placeholder.
const SHELL: &[(&str, &str)] = &[
    ("bub-plugin.yml", include_str!("new/shell.yml.txt")),
    ("plugin.sh", include_str!("new/plugin.sh.txt")),
];

/// Create a plugin project
#[derive(clap::Args)]
pub(super) struct NewArgs {
    /// Name of the plugin
    name: String,
    /// Language of the plugin
    #[arg(long, value_name = "LANGUAGE", value_parser = ["python", "rust", "shell"], default_value = "python")]
    lang: String,
    /// Directory of the project [default: NAME]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// With `--lang rust`, use the library from this checkout of bub
    #[arg(long, value_name = "DIR")]
    bub_path: Option<PathBuf>,
}

pub(super) fn run(context: &CommandContext, args: NewArgs) -> Result<ExitCode> {
    let name = args.name.as_str();
    let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    if name == "builtin" {
        return Err(Error::invalid_input(
            "invalid plugin name `builtin`: it is reserved; choose another name",
        ));
    }
    if !name.starts_with(|c: char| c.is_ascii_lowercase()) || !name.chars().all(is_allowed) {
        return Err(Error::invalid_input(format!(
            "invalid plugin name `{name}`: expected lower-case letters, digits, `-` and `_`, starting with a letter"
        )));
    }
    // Do not create a project that `add` would reject.
    let manifest = Manifest {
        name: name.to_owned(),
        ..Manifest::default()
    };
    context
        .settings
        .check_registration(&manifest.settings_section(true))
        .map_err(|error| Error::invalid_input(error.to_string()))?;
    let directory = args.dir.unwrap_or_else(|| PathBuf::from(name));
    let mut entries = directory.read_dir().into_iter().flatten();
    if entries.next().is_some() {
        return Err(Error::invalid_input(format!(
            "cannot create the plugin: directory `{}` is not empty; choose another directory with `--dir`",
            directory.display()
        )));
    }
    let (files, sdk) = match args.lang.as_str() {
        "rust" => (RUST, &[][..]),
        "shell" => (SHELL, &[][..]),
        _ => (PYTHON, SDK_FILES),
    };
    let is_rust = args.lang == "rust";
    if is_rust && RUST_DEPENDENCIES.contains(&name) {
        return Err(Error::invalid_input(format!(
            "invalid plugin name `{name}`: the project depends on a crate of this name; choose another name"
        )));
    }
    let crate_name = name.replace('-', "_");
    let dependency = bub_dependency(args.bub_path.as_deref())?;
    for (file, text) in files {
        let text = text.replace("PLUGIN", name).replace("CRATE", &crate_name);
        let text = text.replace("DEPENDENCY", &dependency);
        write_file(&directory.join(file), &text)?;
    }
    for (file, text) in sdk {
        write_file(&directory.join(file), text)?;
    }
    let shown = bub_plugin::quote_for_shell(&directory);
    let build = if is_rust {
        let manifest = bub_plugin::quote_for_shell(&directory.join("Cargo.toml"));
        format!("cargo build --release --manifest-path {manifest} && ")
    } else {
        String::new()
    };
    output::print(&format!(
        "created {shown}; to try it, run: {build}bub plugin add {shown} --unpinned\n"
    ))
}

/// Returns where cargo finds the library `bub`: on crates.io in the version of this program, or in a checkout.
fn bub_dependency(checkout: Option<&Path>) -> Result<String> {
    let Some(checkout) = checkout else {
        return Ok(format!("version = \"{}\"", env!("CARGO_PKG_VERSION")));
    };
    let library = checkout.join("crates/bub");
    let library = library.canonicalize().map_err(|error| {
        Error::invalid_input(format!(
            "cannot read `{}`: {error}; pass a checkout of bub as `--bub-path`",
            library.display()
        ))
    })?;
    // A JSON string is also a string in TOML.
    let path = serde_json::Value::from(library.to_string_lossy());
    Ok(format!("path = {path}"))
}

fn write_file(path: &Path, text: &str) -> Result<()> {
    let write_error = |error: std::io::Error| {
        Error::invalid_input(format!(
            "cannot write `{}`: {error}; choose another directory with `--dir`",
            path.display()
        ))
    };
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(write_error)?;
    }
    let is_script = path.extension().is_some_and(|extension| extension == "sh");
    let mode = if is_script { 0o755 } else { 0o644 };
    let mut options = std::fs::File::options();
    let file = options.write(true).create_new(true).mode(mode).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(write_error)
}
