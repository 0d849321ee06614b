//! `bub plugin`: adds, lists, shows and removes external plugins.

mod cargo;
mod new;

pub(super) use new::SDK_FILES;

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use bub::{CommandContext, plugins};
use bub_kernel::{Error, Framework, PluginState, Result};
use bub_plugin::{
    Descriptor, InstalledPlugin, InstalledPlugins, Manifest, PluginPin, PluginProcess, SettingDecl,
    compute_pin, pin_mismatch,
};
use bub_terminal::Style;
use serde_json::{Value, json};

use super::{
    listing::{Listing, Table, cell},
    output, prompt,
};
use crate::bundled;

/// Timeout for the start of a plugin that is being added.
const FIRST_START_TIMEOUT: Duration = Duration::from_mins(2);

/// Add, list, and remove plugins
///
/// A plugin sees your conversations; add only plugins that you trust. A plugin is pinned: if its files change, bub
/// does not start it until you add it again.
#[derive(clap::Args)]
#[command(disable_help_subcommand = true)]
pub(super) struct PluginArgs {
    #[command(subcommand)]
    command: PluginCommand,
}

#[derive(clap::Subcommand)]
enum PluginCommand {
    /// Add a plugin from a directory or executable
    #[command(visible_alias = "install")]
    Add(AddArgs),
    /// Remove a plugin; its files are kept
    #[command(visible_alias = "uninstall")]
    Remove(RemoveArgs),
    /// List installed plugins and their status
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show a plugin's details, hooks, and permissions
    Show {
        /// Name of the plugin
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Enable a plugin
    Enable {
        /// Name of the plugin
        name: String,
    },
    /// Disable a plugin
    Disable {
        /// Name of the plugin
        name: String,
    },
    New(new::NewArgs),
}

#[derive(clap::Args)]
struct AddArgs {
    /// Directory with a bub-plugin.yml, or an executable
    #[arg(value_name = "DIR|EXECUTABLE")]
    path: PathBuf,
    /// Do not prompt
    #[arg(long)]
    yes: bool,
    /// Allow changed files; for development
    #[arg(long)]
    unpinned: bool,
}

#[derive(clap::Args)]
struct RemoveArgs {
    /// Name of the plugin
    name: String,
}

pub(super) async fn run(context: CommandContext, args: PluginArgs) -> Result<ExitCode> {
    match args.command {
        PluginCommand::Add(args) => add_plugin(&context, args.path, args.yes, args.unpinned).await,
        PluginCommand::Remove(args) => remove_plugin(&context, &args.name),
        PluginCommand::List { json } => list_plugins(&context, json),
        PluginCommand::Show { name, json } => show_plugin(&context, &name, json),
        PluginCommand::Enable { name } => set_enabled(&context, &name, true),
        PluginCommand::Disable { name } => set_enabled(&context, &name, false),
        PluginCommand::New(args) => new::run(&context, args),
    }
}

/// Adds the plugin at a path: a directory with a manifest, or an executable.
pub(super) async fn add_plugin(
    context: &CommandContext,
    path: PathBuf,
    yes: bool,
    unpinned: bool,
) -> Result<ExitCode> {
    let (manifest, directory, pinned) = Manifest::load_for_path(&path)?;
    if !yes && !prompt::has_terminal() {
        return Err(Error::invalid_input(
            "cannot prompt: stdin is not a terminal; review the plugin and pass `--yes`",
        ));
    }
    if let Some(problem) = cargo::build_problem(&manifest, &directory) {
        let name = &manifest.name;
        let text = format!("plugin `{name}` was not added: {problem}");
        return Err(Error::config(text));
    }
    let mut record = InstalledPlugin {
        manifest,
        directory,
        pinned,
        digest: None,
        enabled: true,
        descriptor: Descriptor::default(),
        package: None,
        fingerprint: None,
    };
    let name = record.manifest.name.clone();
    let add_error = |cause: &str| Error::config(format!("plugin `{name}` was not added: {cause}"));
    if !unpinned {
        let pin = compute_pin(&record.pinned, &record.directory, &record.manifest.command);
        let pin = pin.map_err(|error| add_error(error.message()))?;
        print_skipped_dirs(&pin);
        record.digest = Some(pin.digest);
    }
    if !yes {
        list_process(&record).print_stderr();
        if !prompt::confirm("Start it to see what it implements?", false).await? {
            return Err(prompt::interrupted_error());
        }
    }
    record.descriptor = describe(context, &record)?;
    finish_adding(context, record, yes).await
}

/// Builds the error for a plugin that cannot be added.
fn add_error(record: &InstalledPlugin, cause: &str) -> Error {
    let name = &record.manifest.name;
    Error::config(format!("plugin `{name}` was not added: {cause}"))
}

/// Starts a plugin and returns what it implements.
pub(super) fn describe(context: &CommandContext, record: &InstalledPlugin) -> Result<Descriptor> {
    let settings = &context.settings;
    let config_error = |cause: &str| add_error(record, cause);
    // Check the settings before the start, because the plugin receives them at the start.
    if record.package.is_none() {
        plugins::check_setting_names(&record.manifest)
            .map_err(|error| config_error(error.message()))?;
    }
    settings
        .check_registration(&record.settings_section())
        .map_err(|error| config_error(&error.to_string()))?;
    let host = plugins::host_context(
        Arc::clone(settings),
        context.framework.workspace(),
        context.launcher.clone(),
    );
    let mut plugin_config = plugins::plugin_config(record, settings)?;
    // The first start of a program can be slow, such as that of Python without compiled files.
    plugin_config.limits.start = plugin_config.limits.start.max(FIRST_START_TIMEOUT);
    PluginProcess::request_descriptor(plugin_config, host).map_err(|error| {
        let cause = format!("{}; run with -v to see its output", error.message());
        config_error(&cause).with_kind(error.kind())
    })
}

/// Checks a plugin that was described, asks the user and adds it to the list of plugins.
pub(super) async fn finish_adding(
    context: &CommandContext,
    record: InstalledPlugin,
    yes: bool,
) -> Result<ExitCode> {
    let builtin = builtin_framework(context);
    plugins::check_declarations(&record).map_err(|error| add_error(&record, error.message()))?;
    let own = |name: &str| is_own_command(context, &record, name);
    let mut commands = record.descriptor.commands.iter();
    if let Some(command) =
        commands.find(|command| context.has_command(&command.name) && !own(&command.name))
    {
        let command = &command.name;
        return Err(add_error(
            &record,
            &format!("command `{command}` already exists in bub; rename it in the plugin"),
        ));
    }
    if !yes {
        if record.package.is_some() {
            list_process(&record).print_stderr();
        }
        list_capabilities(&record.descriptor, &builtin, &context.bundled_channels).print_stderr();
        if !prompt::confirm("Add this plugin?", true).await? {
            return Err(prompt::interrupted_error());
        }
    }
    let tools = replaced_tools(&record.descriptor, &builtin);
    let name = record.manifest.name.clone();
    let before = InstalledPlugins::update(context.settings.home(), |installed| {
        let before = installed.find(&name).ok();
        let replaced = before.filter(|before| before.pinned != record.pinned);
        let path = replaced.map(|before| display_path(&before.pinned));
        installed.insert(record);
        Ok(path)
    })?;
    let mut replaced = before
        .map(|path| format!(", replacing the plugin at {path}"))
        .unwrap_or_default();
    if yes && !tools.is_empty() {
        let _ = write!(replaced, ", replacing the built-in {}", tools.join(", "));
    }
    output::print(&format!(
        "added {name}{replaced}; run `bub plugin show {name}` for details\n"
    ))
}

/// Returns whether a command of the program is the command of this plugin, which is being added again.
fn is_own_command(context: &CommandContext, record: &InstalledPlugin, name: &str) -> bool {
    let installed = InstalledPlugins::load(context.settings.home()).unwrap_or_default();
    let plugin = installed.find(&record.manifest.name).ok();
    plugin.is_some_and(|plugin| {
        plugin
            .descriptor
            .commands
            .iter()
            .any(|command| command.name == name)
    })
}

/// Prints the directories that are not part of the pin (the digest of the plugin's files), if any.
fn print_skipped_dirs(pin: &PluginPin) {
    const MAX_SHOWN_PATHS: usize = 5;
    let skipped = pin.skipped_dirs.iter().take(MAX_SHOWN_PATHS);
    let mut names: Vec<_> = skipped.map(|path| display_path(path)).collect();
    if pin.skipped_dirs.len() > MAX_SHOWN_PATHS {
        names.push("…".to_owned());
    }
    if !names.is_empty() {
        let names = names.join(", ");
        notice!("not pinned, because tools regenerate them: {names}");
    }
}

/// Builds a framework without external plugins, to compare the tools of a plugin with the built-in tools.
fn builtin_framework(context: &CommandContext) -> Framework {
    bundled::build_framework(&context.framework, Arc::clone(&context.settings))
}

pub(super) fn remove_plugin(context: &CommandContext, name: &str) -> Result<ExitCode> {
    InstalledPlugins::update(context.settings.home(), |installed| installed.remove(name))?;
    output::print(&format!("removed {name} (files kept)\n"))
}

fn set_enabled(context: &CommandContext, name: &str, enabled: bool) -> Result<ExitCode> {
    InstalledPlugins::update(context.settings.home(), |installed| {
        let record = installed.find_mut(name)?;
        if enabled && !has_files(record) {
            let path = record.pinned.display();
            return Err(Error::config(format!(
                "files of plugin `{name}` not found at `{path}`; restore them, or run `bub plugin remove {name}`"
            )));
        }
        record.enabled = enabled;
        Ok(())
    })?;
    let state = if enabled { "enabled" } else { "disabled" };
    output::print(&format!("{state} {name}\n"))
}

fn list_plugins(context: &CommandContext, as_json: bool) -> Result<ExitCode> {
    let installed = InstalledPlugins::load(context.settings.home())?;
    if as_json {
        let rows = installed.plugins.iter().map(|record| {
            json!({"name": record.manifest.name, "enabled": record.enabled, "path": record.pinned,
                   "pinned": record.digest.is_some(), "problem": start_problem(&context.framework, record)})
        });
        let damaged = installed.damaged.iter();
        let damaged = damaged.map(|row| json!({"name": row.name(), "problem": row.problem}));
        let rows: Value = rows.chain(damaged).collect();
        return output::print(&format!("{rows:#}\n"));
    }
    if installed.plugins.is_empty() && installed.damaged.is_empty() {
        return output::print(
            "no plugins; run `bub plugin add DIR` to add one, or `bub plugin new NAME` to create one\n",
        );
    }
    let damaged = installed.damaged.iter().map(|row| {
        let (name, problem) = (row.name(), &row.problem);
        let state = format!("error: {problem}; run `bub plugin remove {name}` and add it again");
        [name, "-", "-", &state].map(str::to_owned)
    });
    let rows = installed.plugins.iter();
    let rows = rows
        .map(|record| plugin_row(context, record))
        .chain(damaged);
    let mut table = Table::default();
    for [name, version, path, state] in rows {
        let style = match state.as_str() {
            "enabled" => Style::GREEN,
            "disabled" => Style::DIM,
            _ => Style::RED,
        };
        table.row([
            cell(name, Style::BOLD),
            cell(version, Style::NONE),
            cell(path, Style::DIM),
            cell(state, style),
        ]);
    }
    Listing::from(table).print(&context.settings)
}

fn plugin_row(context: &CommandContext, record: &InstalledPlugin) -> [String; 4] {
    let state = match start_problem(&context.framework, record) {
        Some(problem) => format!("error: {problem}"),
        None if record.enabled => "enabled".to_owned(),
        None => "disabled".to_owned(),
    };
    let version = record.descriptor.version.as_deref().unwrap_or("-");
    let path = display_path(&record.pinned);
    [&record.manifest.name, version, &path, &state].map(str::to_owned)
}

/// Returns the names of enabled external plugins that cannot be started.
pub(super) fn unstartable_plugins(context: &CommandContext) -> Vec<String> {
    let installed = InstalledPlugins::load(context.settings.home()).unwrap_or_default();
    let records = installed.plugins.into_iter();
    let failed = records
        .filter(|record| record.enabled && start_problem(&context.framework, record).is_some());
    failed.map(|record| record.manifest.name).collect()
}

/// Returns the reason why an installed plugin cannot be started, or `None` if no problem is known.
pub(super) fn start_problem(framework: &Framework, record: &InstalledPlugin) -> Option<String> {
    let name = &record.manifest.name;
    let mut plugins = framework.plugins().iter();
    match &plugins.find(|status| *status.name == **name)?.state {
        PluginState::Failed(reason) if record.enabled => Some(reason.clone()),
        _ if !has_files(record) => Some(format!(
            "files not found; restore them, or run `bub plugin remove {name}`"
        )),
        _ => pin_mismatch(
            &record.pinned,
            &record.directory,
            &record.manifest.command,
            record.digest.as_deref(),
        )
        .unwrap_or_else(|error| Some(error.message().to_owned())),
    }
}

fn has_files(record: &InstalledPlugin) -> bool {
    record.pinned.exists() && record.directory.is_dir()
}

fn show_plugin(context: &CommandContext, name: &str, as_json: bool) -> Result<ExitCode> {
    let installed = InstalledPlugins::load(context.settings.home())?;
    let record = installed.find(name)?;
    if as_json {
        let value =
            serde_json::to_value(record).map_err(|error| Error::unknown(error.to_string()))?;
        return output::print(&format!("{value:#}\n"));
    }
    let mut head = record.manifest.name.clone();
    if let Some(version) = &record.descriptor.version {
        head.extend([" ", version]);
    }
    let about = record.descriptor.description.as_deref();
    let about = about.unwrap_or(&record.manifest.description).trim();
    if !about.is_empty() {
        head.extend([": ", about]);
    }
    let [.., state] = plugin_row(context, record);
    let pin = record.digest.as_deref();
    let pin = pin.map_or("not pinned", |digest| digest.get(..18).unwrap_or(digest));
    let mut listing = Listing::default();
    listing.row(head);
    listing.append(list_process(record));
    let builtin = builtin_framework(context);
    listing.append(list_capabilities(
        &record.descriptor,
        &builtin,
        &context.bundled_channels,
    ));
    listing.row(format!("state: {state}"));
    listing.row(format!("pin: {pin}"));
    listing.print(&context.settings)
}

/// Lists the process of a plugin: command, directory, environment variables, and settings.
pub(super) fn list_process(record: &InstalledPlugin) -> Listing {
    let manifest = &record.manifest;
    let command = manifest.command.join(" ");
    let directory = display_path(&record.directory);
    let env = match manifest.env.as_slice() {
        [] => "none".to_owned(),
        env => env.join(", "),
    };
    let mut listing = Listing::default();
    listing.row(format!("command: {command}"));
    listing.row(format!("directory: {directory}"));
    listing.row(format!("environment variables from the manifest: {env}"));
    let setting = |setting: &SettingDecl| {
        let note = if setting.secret { " (secret)" } else { "" };
        format!("{}.{}{note}", manifest.name, setting.name)
    };
    list_names(
        &mut listing,
        "settings",
        manifest.settings.iter().map(setting),
    );
    let files = manifest.home_files.iter().cloned();
    list_names(&mut listing, "files in bub's home", files);
    let permissions = &manifest.permissions;
    let network = if permissions.network {
        "network"
    } else {
        "no network"
    };
    let reads = permissions.read.iter().map(|path| format!("reads {path}"));
    let writes = permissions
        .write
        .iter()
        .map(|path| format!("writes {path}"));
    let all = ["workspace", network].map(str::to_owned).into_iter();
    let all = all.chain(reads).chain(writes);
    list_names(&mut listing, "sandbox", all);
    listing
}

/// Adds a row with names, unless there are none.
fn list_names(listing: &mut Listing, label: &str, names: impl Iterator<Item = String>) {
    let names: Vec<_> = names.collect();
    if !names.is_empty() {
        listing.row(format!("{label}: {}", names.join(", ")));
    }
}

fn display_path(path: &Path) -> String {
    super::sanitize_line(&path.to_string_lossy())
}

/// Returns the tools of a plugin that replace built-in tools.
fn replaced_tools(descriptor: &Descriptor, builtin: &Framework) -> Vec<String> {
    let builtin: Vec<_> = builtin
        .tools()
        .iter()
        .map(|tool| tool.spec().model_name())
        .collect();
    let tools = descriptor.tools.iter();
    let replaced = tools.filter(|tool| builtin.contains(&tool.model_name()));
    replaced.map(|tool| tool.name.clone()).collect()
}

/// Lists the hooks, tools, channels and commands of a plugin.
fn list_capabilities(
    descriptor: &Descriptor,
    builtin: &Framework,
    bundled_channels: &[&str],
) -> Listing {
    let replaced = replaced_tools(descriptor, builtin);
    let tool_label = |name: &String| {
        let is_builtin = replaced.contains(name);
        let note = if is_builtin {
            " (replaces the built-in tool)"
        } else {
            ""
        };
        format!("{name}{note}")
    };
    let hooks = descriptor.hooks.iter().map(|hook| hook.name.clone());
    let tools = descriptor.tools.iter().map(|tool| tool_label(&tool.name));
    let channel_label = |name: &String| {
        let is_builtin = bundled_channels.contains(&name.as_str());
        let note = if is_builtin {
            " (replaces the built-in channel)"
        } else {
            ""
        };
        format!("{name}{note}")
    };
    let channels = descriptor
        .channels
        .iter()
        .map(|channel| channel_label(&channel.name));
    let commands = descriptor
        .commands
        .iter()
        .map(|command| command.name.clone());
    let mut listing = Listing::default();
    list_names(&mut listing, "hooks", hooks);
    list_names(&mut listing, "tools", tools);
    list_names(&mut listing, "channels", channels);
    list_names(&mut listing, "commands", commands);
    let skills = descriptor.skills.iter().filter_map(|path| path.file_name());
    let skills = skills.map(|name| name.to_string_lossy().into_owned());
    list_names(&mut listing, "skills", skills);
    listing.or_row("implements no hooks, tools, channels, or commands")
}
