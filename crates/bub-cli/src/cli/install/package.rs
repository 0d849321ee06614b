//! The Python packages that bub writes into the environment of Python plugins: `bub`, which plugins of the Python version
//! import, and `bub_sdk`, which speaks the plugin protocol.

use std::{io, path::Path};

use crate::cli::plugin::SDK_FILES;

/// Version of the package. The local part distinguishes it from the Python version.
pub(super) const VERSION: &str = "0.5.1+compat";

/// Packages that `bub` needs.
pub(super) const REQUIREMENTS: &[&str] = &[
    "loguru>=0.7.2",
    "pluggy>=1.6.0",
    "pydantic>=2",
    "pydantic-settings>=2.10",
    "pyyaml>=6.0.0",
    "typer>=0.9",
];

/// A file of the package `bub`.
macro_rules! compat {
    ($name:literal) => {
        (
            concat!("bub/", $name),
            include_str!(concat!("../../../compat/", $name)),
        )
    };
}

/// Files of the package `bub`.
const COMPAT_FILES: &[(&str, &str)] = &[
    compat!("__init__.py"),
    compat!("__main__.py"),
    compat!("_serve/__init__.py"),
    compat!("_serve/channels.py"),
    compat!("_serve/commands.py"),
    compat!("_serve/convert.py"),
    compat!("_serve/environments.py"),
    compat!("_serve/hooks.py"),
    compat!("_serve/host_store.py"),
    compat!("_serve/inspection.py"),
    compat!("_serve/main.py"),
    compat!("_serve/plugins.py"),
    compat!("_serve/providers.py"),
    compat!("_serve/server.py"),
    compat!("builtin/__init__.py"),
    compat!("builtin/agent.py"),
    compat!("builtin/auth.py"),
    compat!("builtin/context.py"),
    compat!("builtin/environment.py"),
    compat!("builtin/settings.py"),
    compat!("builtin/tools.py"),
    compat!("channels/__init__.py"),
    compat!("channels/admission.py"),
    compat!("channels/base.py"),
    compat!("channels/contracts.py"),
    compat!("channels/message.py"),
    compat!("configure.py"),
    compat!("envelope.py"),
    compat!("environment.py"),
    compat!("errors.py"),
    compat!("framework.py"),
    compat!("hooks/__init__.py"),
    compat!("hooks/interception.py"),
    compat!("hooks/specs.py"),
    compat!("hookspecs.py"),
    compat!("inquirer.py"),
    compat!("model_selection.py"),
    compat!("sidecars.py"),
    compat!("skills.py"),
    compat!("store.py"),
    compat!("streaming.py"),
    compat!("tape.py"),
    compat!("tools.py"),
    compat!("tracing.py"),
    compat!("turn.py"),
    compat!("types.py"),
    compat!("utils.py"),
];

/// Writes the packages into the directory for packages of an environment, in place of those of another version of bub.
pub(super) fn write(site_packages: &Path) -> io::Result<()> {
    for directory in ["bub", "bub_sdk"] {
        match std::fs::remove_dir_all(site_packages.join(directory)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    let info = format!("bub-{VERSION}.dist-info");
    let requirements = REQUIREMENTS
        .iter()
        .map(|requirement| format!("Requires-Dist: {requirement}\n"));
    let metadata = format!(
        "Metadata-Version: 2.1\nName: bub\nVersion: {VERSION}\nSummary: Runs plugins of the Python version of bub\nRequires-Python: >=3.12\n{}",
        requirements.collect::<String>()
    );
    let files = SDK_FILES.iter().chain(COMPAT_FILES);
    let names = files.clone().map(|(name, _)| format!("{name},,\n"));
    let record = names.collect::<String>() + &format!("{info}/METADATA,,\n{info}/RECORD,,\n");
    let (metadata_file, record_file) = (format!("{info}/METADATA"), format!("{info}/RECORD"));
    let installer = format!("{info}/INSTALLER");
    let own = [
        (metadata_file.as_str(), metadata.as_str()),
        (record_file.as_str(), record.as_str()),
        (installer.as_str(), "bub\n"),
    ];
    for (name, text) in files.copied().chain(own) {
        let file = site_packages.join(name);
        if let Some(directory) = file.parent() {
            std::fs::create_dir_all(directory)?;
        }
        std::fs::write(file, text)?;
    }
    Ok(())
}
