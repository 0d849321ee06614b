//! What the process of a plugin may reach: the permissions that its manifest declares, and its own files.

use std::{
    ffi::OsString,
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use bub_kernel::Result;
use bub_sandbox::{Confinement, SandboxProfile};

use super::{HostContext, PluginConfig};

/// Returns what the process may reach, or `None` if it is not confined. Only a launcher can confine it.
///
/// It can write to `own_directories`, and to a private temporary directory.
pub(super) fn plugin_confinement(
    plugin_config: &PluginConfig,
    host: &HostContext,
    own_directories: &[PathBuf],
) -> Result<Option<Confinement>> {
    let (Some(permissions), Some(_)) = (&plugin_config.permissions, &host.launcher) else {
        return Ok(None);
    };
    let settings = &host.settings;
    let temp = settings.home().join("sandbox/plugins");
    let temp = temp.join(&plugin_config.name);
    for directory in own_directories.iter().chain([&temp]) {
        create_directory(directory)?;
    }
    let variable = |name: &str| settings.environment().get(name).map(OsString::from);
    let profile = SandboxProfile::Workspace;
    let mut confinement = Confinement::from_environment(profile, &host.workspace, &temp, variable)?;
    let home = confinement.home.clone().unwrap_or_default();
    let declared = |path: &String| match path.strip_prefix("~/") {
        Some(below) => resolve(&home.join(below)),
        None => resolve(Path::new(path)),
    };
    confinement.hidden.push(resolve(settings.home()));
    confinement.protect_links_of(settings.home(), 1, |_| true);
    confinement
        .readable
        .extend(permissions.read.iter().map(declared));
    // The program and its files, if they are not in the workspace, where the plugin can write.
    let named = plugin_config.command.iter().map(Path::new);
    let named = named.filter(|path| path.is_absolute() && path.is_file());
    let own = named.chain([plugin_config.pinned.as_path()]).map(resolve);
    let is_outside =
        |path: &PathBuf| !path.starts_with(&confinement.workspace) && !home.starts_with(path);
    let own: Vec<_> = own.filter(is_outside).collect();
    confinement.readable.extend(own);
    confinement
        .writable
        .extend(permissions.write.iter().map(declared));
    confinement
        .writable
        .extend(own_directories.iter().map(|path| resolve(path)));
    confinement.network = permissions.network;
    Ok(Some(confinement))
}

fn create_directory(directory: &Path) -> io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o700).create(directory)
}

/// Makes files of bub's home appear in the directory for the plugin's data, and the other way round.
///
/// The plugin cannot reach the home. A hard link is the same file in both places, so that the Python version finds what
/// a plugin wrote here. A file that exists in both places is not changed.
pub(super) fn share_home_files(home: &Path, data: &Path, names: &[String]) -> io::Result<()> {
    create_directory(data)?;
    for name in names {
        let (in_home, in_data) = (home.join(name), data.join(name));
        let (from, to) = match (in_home.is_file(), in_data.is_file()) {
            (true, false) => (in_home, in_data),
            (false, true) => (in_data, in_home),
            _ => continue,
        };
        std::fs::hard_link(from, to)?;
    }
    Ok(())
}

fn resolve(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}
