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

/// Files of a Python project. `NAME` is replaced in all files except those of the SDK.
const PYTHON: &[(&str, &str)] = &[
    (
        "bub-plugin.yml",
        "name: NAME\ndescription: Says hello\ncommand: [python3, plugin.py]\n",
    ),
    ("plugin.py", include_str!("new/plugin.py.txt")),
    sdk!("__init__.py"),
    sdk!("__main__.py"),
    sdk!("host.py"),
    sdk!("decorators.py"),
    sdk!("peer.py"),
    sdk!("py.typed"),
    sdk!("schema.py"),
    sdk!("serve.py"),
    sdk!("values.py"),
];
/// Files of a Rust project, with `NAME` as a placeholder.
const RUST: &[(&str, &str)] = &[
    (
        "bub-plugin.yml",
        "name: NAME\ndescription: Says hello\ncommand: [cargo, run, --quiet, --release]\n",
    ),
    (
        "Cargo.toml",
        "[package]\nname = \"NAME\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[dependencies]\nserde_json = \"1\"\n\n[workspace]\n",
    ),
    (".gitignore", "target\n"),
    ("src/main.rs", include_str!("new/main.rs.txt")),
];
/// Files of a shell project, with `NAME` as a placeholder.
const SHELL: &[(&str, &str)] = &[
    (
        "bub-plugin.yml",
        "name: NAME\ndescription: Says hello\ncommand: [./plugin.sh]\n",
    ),
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
        .check_registration(&manifest.settings_section())
        .map_err(|error| Error::invalid_input(error.to_string()))?;
    let directory = args.dir.unwrap_or_else(|| PathBuf::from(name));
    let mut entries = directory.read_dir().into_iter().flatten();
    if entries.next().is_some() {
        return Err(Error::invalid_input(format!(
            "cannot create the plugin: directory `{}` is not empty; choose another directory with `--dir`",
            directory.display()
        )));
    }
    let files = match args.lang.as_str() {
        "rust" => RUST,
        "shell" => SHELL,
        _ => PYTHON,
    };
    for (file, text) in files {
        let text = if file.starts_with("bub_sdk/") {
            (*text).to_owned()
        } else {
            text.replace("NAME", name)
        };
        write_file(&directory.join(file), &text)?;
    }
    let shown = bub_plugin::quote_for_shell(&directory);
    output::print(&format!(
        "created {shown}; to try it, run: bub plugin add {shown} --unpinned\n"
    ))
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
