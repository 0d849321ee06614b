//! `bub install`, `bub uninstall` and `bub update`: plugins from Python packages, in an environment that bub manages. The
//! first two also add and remove plugins of other kinds, like `bub plugin add` and `bub plugin remove`.

mod environment;
mod package;

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::ExitCode,
};

use bub::{AppCommand, CommandContext};
use bub_kernel::{Error, Result};
use bub_plugin::{
    Descriptor, InstalledPlugin, InstalledPlugins, MANIFEST_FILE, Manifest, Permissions,
    PythonPackage,
};

use self::environment::{EntryPoint, PythonEnvironment, SourceArgs};
use super::{listing::Listing, output, plugin, prompt};

/// Install plugins
#[derive(clap::Args)]
struct InstallArgs {
    /// Python package (NAME, NAME==VERSION, git+URL, or a path), or a directory with a bub-plugin.yml
    #[arg(value_name = "PACKAGE|DIR", required = true)]
    packages: Vec<String>,
    /// Do not prompt
    #[arg(long)]
    yes: bool,
    /// Allow changed files; for development. Not for Python packages
    #[arg(long)]
    unpinned: bool,
    #[command(flatten)]
    sources: SourceArgs,
    #[command(flatten)]
    rights: RightsArgs,
}

/// What the plugins of Python packages can reach, besides the workspace and their own data.
#[derive(Clone, Default, clap::Args)]
struct RightsArgs {
    /// Path that the plugins can read
    #[arg(long, value_name = "PATH")]
    read: Vec<String>,
    /// Path that the plugins can write to
    #[arg(long, value_name = "PATH")]
    write: Vec<String>,
    /// Do not let the plugins use the network
    #[arg(long)]
    no_network: bool,
}

#[derive(clap::Args)]
struct UninstallArgs {
    /// Name of the plugin or its package
    #[arg(required = true)]
    names: Vec<String>,
}

/// Update plugins from Python packages
#[derive(clap::Args)]
struct UpdateArgs {
    /// Name of the plugin or its package [default: all]
    names: Vec<String>,
    /// Do not prompt
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    sources: SourceArgs,
}

/// Returns the commands that manage plugins.
pub(super) fn commands() -> [AppCommand; 4] {
    [
        AppCommand::with_args("plugin", "Add, list, and remove plugins", plugin::run)
            .allow_invalid_settings(),
        AppCommand::with_args("install", "Install plugins", install),
        AppCommand::with_args("uninstall", "Remove plugins", uninstall),
        AppCommand::with_args("update", "Update plugins from Python packages", update),
    ]
}

async fn install(context: CommandContext, args: InstallArgs) -> Result<ExitCode> {
    let mut requirements = Vec::new();
    for package in args.packages {
        let path = Path::new(&package);
        if is_own_plugin(path) {
            let path = path.to_owned();
            plugin::add_plugin(&context, path, args.yes, args.unpinned).await?;
        } else {
            requirements.push(absolute_requirement(package)?);
        }
    }
    if requirements.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let environment = PythonEnvironment::new(&context.settings);
    if !args.yes {
        confirm_packages(&environment, &requirements).await?;
    }
    environment.prepare(&args.sources).await?;
    let before = environment.entry_points()?;
    notice!("installing {}", requirements.join(", "));
    let arguments = requirements.iter().map(OsString::from).collect();
    environment.install(arguments, &args.sources, false).await?;
    let after = environment.entry_points()?;
    let mut added = Vec::new();
    for requirement in &requirements {
        let is_named = |entry: &&EntryPoint| is_requested(entry, requirement);
        added.extend(
            after
                .iter()
                .filter(is_named)
                .map(|entry| (entry, requirement.clone())),
        );
    }
    // What a path or an address has installed is known only by the difference.
    let unnamed = requirements
        .iter()
        .find(|requirement| !added.iter().any(|(_, known)| known == *requirement));
    let is_new = |entry: &&EntryPoint| {
        !before.contains(entry) && !added.iter().any(|(known, _)| known == entry)
    };
    let new: Vec<_> = after.iter().filter(is_new).collect();
    let origin = unnamed.cloned();
    added.extend(new.into_iter().map(|entry| {
        (
            entry,
            origin.clone().unwrap_or_else(|| entry.distribution.clone()),
        )
    }));
    if added.is_empty() {
        return Err(Error::config(format!(
            "{}: no plugin found: the package has no entry point of the group `bub`; it stays installed until you run `{}`",
            requirements.join(", "),
            "bub uninstall NAME"
        )));
    }
    let permissions = Permissions {
        network: !args.rights.no_network,
        read: args.rights.read,
        write: args.rights.write,
    };
    for (entry, requirement) in added {
        let package = python_package(entry, requirement);
        let record = new_record(&environment, entry, package, permissions.clone());
        register(&context, record, args.yes).await?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns whether a path is a plugin with a manifest, or an executable.
fn is_own_plugin(path: &Path) -> bool {
    let is_archive = |suffix: &str| path.extension().is_some_and(|found| found == suffix);
    path.join(MANIFEST_FILE).is_file()
        || (path.is_file() && !["whl", "gz", "zip"].into_iter().any(is_archive))
}

/// Makes the path of a requirement absolute.
fn absolute_requirement(requirement: String) -> Result<String> {
    let path = Path::new(&requirement);
    if requirement.starts_with('-') {
        return Err(Error::invalid_input(format!(
            "invalid package `{requirement}`: expected a name, a path or an address"
        )));
    }
    let is_path = requirement.contains('/') && !requirement.contains("://") || path.exists();
    if !is_path {
        return Ok(requirement);
    }
    let absolute = path.canonicalize().map_err(|error| {
        Error::invalid_input(format!(
            "cannot read `{requirement}`: {error}; check the path"
        ))
    })?;
    Ok(absolute.to_string_lossy().into_owned())
}

/// Returns whether a requirement names the distribution of an entry point, or where it was installed from.
fn is_requested(entry: &EntryPoint, requirement: &str) -> bool {
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let name: String = requirement.chars().take_while(|c| is_name(*c)).collect();
    let address = requirement.strip_prefix("git+").unwrap_or(requirement);
    let url = entry.url.as_deref().unwrap_or_default();
    let is_source = !url.is_empty()
        && (address.starts_with(url) || url.strip_prefix("file://") == Some(address));
    is_source || (!name.is_empty() && normalize(&name) == normalize(&entry.distribution))
}

/// Returns the form of a package name in which names are compared.
fn normalize(name: &str) -> String {
    name.to_ascii_lowercase().replace(['_', '.'], "-")
}

async fn confirm_packages(environment: &PythonEnvironment, requirements: &[String]) -> Result<()> {
    if !prompt::has_terminal() {
        return Err(Error::invalid_input(
            "cannot prompt: stdin is not a terminal; review the packages and pass `--yes`",
        ));
    }
    let mut listing = Listing::default();
    listing.row(format!(
        "packages: {}, and what they depend on",
        requirements.join(", ")
    ));
    listing.row(format!("into: {}", environment.directory.display()));
    listing.row(format!(
        "with: {}, which may run code of the packages without a sandbox",
        environment.installer()
    ));
    listing.print_stderr();
    if prompt::confirm("Install them?", false).await? {
        Ok(())
    } else {
        Err(prompt::interrupted_error())
    }
}

fn python_package(entry: &EntryPoint, requirement: String) -> PythonPackage {
    PythonPackage {
        name: entry.distribution.clone(),
        requirement,
    }
}

/// Creates the record of a plugin that is not described yet.
fn new_record(
    environment: &PythonEnvironment,
    entry: &EntryPoint,
    package: PythonPackage,
    permissions: Permissions,
) -> InstalledPlugin {
    let python = environment.python().to_string_lossy().into_owned();
    let command = [python.as_str(), "-m", "bub", "serve", &entry.name];
    InstalledPlugin {
        manifest: Manifest {
            name: entry.name.clone(),
            command: command.map(str::to_owned).to_vec(),
            permissions,
            ..Manifest::default()
        },
        directory: environment.directory.clone(),
        // The files of the environment change with every package.
        pinned: environment.directory.clone(),
        digest: None,
        enabled: true,
        descriptor: Descriptor::default(),
        package: Some(package),
        fingerprint: None,
    }
}

/// Describes a plugin and adds it to the list of plugins, after the user has agreed to its rights.
async fn register(context: &CommandContext, mut record: InstalledPlugin, yes: bool) -> Result<()> {
    if !yes {
        plugin::list_process(&record).print_stderr();
        if !prompt::confirm("Start it to see what it implements and needs?", false).await? {
            return Err(prompt::interrupted_error());
        }
    }
    // The first start finds out what the plugin needs. What it implements may depend on its settings.
    let described = plugin::describe(context, &record)?;
    record.manifest.settings = described.needs.settings;
    record.manifest.env = described.needs.env;
    record.manifest.home_files = described.needs.home_files;
    record.descriptor = plugin::describe(context, &record)?;
    record.descriptor.needs = bub_plugin::PluginNeeds::default();
    plugin::finish_adding(context, record, yes).await.map(drop)
}

async fn uninstall(context: CommandContext, args: UninstallArgs) -> Result<ExitCode> {
    let home = context.settings.home();
    let environment = PythonEnvironment::new(&context.settings);
    for name in args.names {
        let installed = InstalledPlugins::load(home)?;
        let packages = matching_packages(&installed, &name);
        if packages.is_empty() {
            plugin::remove_plugin(&context, &name)?;
            continue;
        }
        for package in packages {
            environment.uninstall(&package.name).await?;
            let removed = InstalledPlugins::update(home, |installed| {
                let names = plugin_names(installed, &package);
                names.iter().try_for_each(|name| installed.remove(name))?;
                Ok(names)
            })?;
            let data: Vec<_> = removed
                .iter()
                .map(|name| home.join("plugins/data").join(name))
                .collect();
            let kept = data.iter().filter(|path| {
                path.read_dir()
                    .is_ok_and(|mut files| files.next().is_some())
            });
            let kept: Vec<_> = kept
                .map(|path: &PathBuf| path.display().to_string())
                .collect();
            let kept = if kept.is_empty() {
                String::new()
            } else {
                format!("; data kept in {}", kept.join(", "))
            };
            output::print(&format!(
                "removed {} ({}){kept}\n",
                removed.join(", "),
                package.name
            ))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the packages whose name is `name`, or that contain the plugin `name`.
fn matching_packages(installed: &InstalledPlugins, name: &str) -> Vec<PythonPackage> {
    let is_meant = |plugin: &&InstalledPlugin| {
        let package = plugin.package.as_ref();
        plugin.manifest.name == name
            || package.is_some_and(|package| normalize(&package.name) == normalize(name))
    };
    let plugins = installed.plugins.iter().filter(is_meant);
    let mut packages: Vec<_> = plugins
        .filter_map(|plugin| plugin.package.clone())
        .collect();
    packages.dedup();
    packages
}

/// Returns the names of the plugins of a package.
fn plugin_names(installed: &InstalledPlugins, package: &PythonPackage) -> Vec<String> {
    let plugins = installed.plugins.iter();
    let plugins = plugins.filter(|plugin| plugin.package.as_ref() == Some(package));
    plugins.map(|plugin| plugin.manifest.name.clone()).collect()
}

async fn update(context: CommandContext, args: UpdateArgs) -> Result<ExitCode> {
    let environment = PythonEnvironment::new(&context.settings);
    let installed = InstalledPlugins::load(context.settings.home())?;
    let mut packages = Vec::new();
    for name in &args.names {
        let found = matching_packages(&installed, name);
        if found.is_empty() {
            return Err(Error::not_found(format!(
                "`{name}` is not a Python plugin; run `bub plugin list` to see installed plugins"
            )));
        }
        packages.extend(found);
    }
    if args.names.is_empty() {
        packages.extend(
            installed
                .plugins
                .iter()
                .filter_map(|plugin| plugin.package.clone()),
        );
    }
    packages.dedup();
    if packages.is_empty() {
        return output::print(
            "no plugins from Python packages; run `bub install NAME` to install one\n",
        );
    }
    environment.prepare(&args.sources).await?;
    let requirements: Vec<_> = packages
        .iter()
        .map(|package| package.requirement.clone())
        .collect();
    notice!("updating {}", requirements.join(", "));
    let arguments = requirements.iter().map(OsString::from).collect();
    environment.install(arguments, &args.sources, true).await?;
    let after = environment.entry_points()?;
    for package in packages {
        for entry in after
            .iter()
            .filter(|entry| entry.distribution == package.name)
        {
            let before = installed.find(&entry.name).ok();
            let permissions = before.map(|before| before.manifest.permissions.clone());
            let permissions = permissions.unwrap_or_default();
            let record = new_record(&environment, entry, package.clone(), permissions);
            register(&context, record, args.yes).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
