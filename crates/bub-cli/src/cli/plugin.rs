//! `bub plugin`: adds, lists, shows and removes external plugins.

mod new;

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use bub::{AppCommand, CommandContext, plugins};
use bub_kernel::{Error, Framework, PluginState, Result};
use bub_plugin::{
    Descriptor, InstalledPlugin, InstalledPlugins, Manifest, PluginPin, PluginProcess, SettingDecl,
    compute_pin, pin_mismatch,
};
use clap::{Arg, ArgAction, ArgMatches, Command, builder::ValueParser};
use serde_json::{Value, json};

use super::{output, prompt};
use crate::bundled;

pub(super) fn command() -> AppCommand {
    let command = Command::new("plugin")
        .about("Add, list, and remove plugins")
        .long_about(
            "Add, list, and remove plugins. A plugin runs with your permissions; add only plugins that you trust. A plugin is \
             pinned: if its files change, bub does not start it until you add it again.",
        )
        .subcommand_required(true)
        .disable_help_subcommand(true)
        .subcommands([
            add_command("add").visible_alias("install"),
            remove_command("remove").visible_alias("uninstall"),
            Command::new("list").about("List installed plugins and their status").arg(flag_arg("json", "Print JSON")),
            Command::new("show").about("Show a plugin's details, hooks, and permissions").arg(name_arg()).arg(flag_arg("json", "Print JSON")),
            Command::new("enable").about("Enable a plugin").arg(name_arg()),
            Command::new("disable").about("Disable a plugin").arg(name_arg()),
            new::command(),
        ]);
    AppCommand::new(command, run).allow_invalid_settings()
}

/// Returns the hidden commands `bub install` and `bub uninstall`, the names of the Python version.
pub(super) fn alias_commands() -> [AppCommand; 2] {
    let install = add_command("install")
        .about("Add a plugin (same as `bub plugin add`)")
        .hide(true);
    let uninstall = remove_command("uninstall")
        .about("Remove a plugin (same as `bub plugin remove`)")
        .hide(true);
    [
        AppCommand::new(install, |context: CommandContext| async move {
            add_plugin(&context, &context.matches).await
        }),
        AppCommand::new(uninstall, |context: CommandContext| async move {
            remove_plugin(&context, &context.matches)
        }),
    ]
}

fn flag_arg(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .action(ArgAction::SetTrue)
        .help(help)
}

fn name_arg() -> Arg {
    Arg::new("name")
        .value_name("NAME")
        .required(true)
        .help("Name of the plugin")
}

fn add_command(name: &'static str) -> Command {
    Command::new(name)
        .about("Add a plugin from a directory or executable")
        .arg(
            Arg::new("path")
                .value_name("DIR|EXECUTABLE")
                .required(true)
                .value_parser(ValueParser::path_buf())
                .help("Directory with a bub-plugin.yml, or an executable"),
        )
        .arg(flag_arg("yes", "Do not prompt"))
        .arg(flag_arg("unpinned", "Allow changed files; for development"))
}

fn remove_command(name: &'static str) -> Command {
    Command::new(name)
        .about("Remove a plugin; its files are kept")
        .arg(name_arg())
}

async fn run(context: CommandContext) -> Result<ExitCode> {
    let Some((name, matches)) = context.matches.subcommand() else {
        return Err(Error::invalid_input(
            "missing subcommand; see `bub plugin --help`",
        ));
    };
    match name {
        "add" => add_plugin(&context, matches).await,
        "remove" => remove_plugin(&context, matches),
        "show" => show_plugin(&context, matches),
        "enable" => set_enabled(&context, matches, true),
        "disable" => set_enabled(&context, matches, false),
        "new" => new::run(&context, matches),
        _ => list_plugins(&context, matches),
    }
}

fn required_arg<'a>(matches: &'a ArgMatches, name: &str) -> &'a str {
    matches.get_one::<String>(name).map_or("", String::as_str)
}

async fn add_plugin(context: &CommandContext, matches: &ArgMatches) -> Result<ExitCode> {
    let settings = &context.settings;
    let path = matches
        .get_one::<PathBuf>("path")
        .cloned()
        .unwrap_or_default();
    let (manifest, directory, pinned) = Manifest::load_for_path(&path)?;
    let is_confirmed = matches.get_flag("yes");
    if !is_confirmed && !prompt::has_terminal() {
        return Err(Error::invalid_input(
            "cannot prompt: stdin is not a terminal; review the plugin and pass `--yes`",
        ));
    }
    let pin = if matches.get_flag("unpinned") {
        None
    } else {
        let pin = compute_pin(&pinned, &directory, &manifest.command);
        Some(pin.map_err(|error| add_error(&manifest, error.message()))?)
    };
    let skipped_dirs = pin.as_ref().map(skipped_dirs_note).unwrap_or_default();
    let digest = pin.map(|pin| pin.digest);
    let mut record = InstalledPlugin {
        manifest,
        directory,
        pinned,
        digest,
        enabled: true,
        descriptor: Descriptor::default(),
    };
    if !skipped_dirs.is_empty() {
        prompt::print_stderr(&skipped_dirs);
    }
    if !is_confirmed {
        prompt::print_stderr(&describe_process(&record));
        if !prompt::confirm("Start it to see what it implements?", false).await? {
            return Err(prompt::interrupted_error());
        }
    }
    // Before the start, because the plugin receives its settings at the start.
    plugins::check_setting_names(&record.manifest)
        .map_err(|error| add_error(&record.manifest, error.message()))?;
    settings
        .check_registration(&record.manifest.settings_section())
        .map_err(|error| add_error(&record.manifest, &error.to_string()))?;
    record.descriptor = query_descriptor(&record, context)?;
    let builtin = builtin_framework(context);
    plugins::check_declarations(&record, &context.bundled_channels)
        .map_err(|error| add_error(&record.manifest, error.message()))?;
    if let Some(command) = conflicting_command(&record.descriptor, context) {
        return Err(add_error(
            &record.manifest,
            &format!("command `{command}` already exists in bub; rename it in the plugin"),
        ));
    }
    if !is_confirmed {
        prompt::print_stderr(&describe_capabilities(&record.descriptor, &builtin));
        if !prompt::confirm("Add this plugin?", true).await? {
            return Err(prompt::interrupted_error());
        }
    }
    let name = record.manifest.name.clone();
    let tools = replaced_tools(&record.descriptor, &builtin);
    let before = InstalledPlugins::update(settings.home(), |installed| {
        let replaced = installed
            .find(&name)
            .ok()
            .filter(|before| before.pinned != record.pinned);
        let before = replaced.map(|before| display_path(&before.pinned));
        installed.insert(record);
        Ok(before)
    })?;
    let mut replaced = before
        .map(|path| format!(", replacing the plugin at {path}"))
        .unwrap_or_default();
    if is_confirmed && !tools.is_empty() {
        let _ = write!(replaced, ", replacing the built-in {}", tools.join(", "));
    }
    output::print(&format!(
        "added {name}{replaced}; run `bub plugin show {name}` for details\n"
    ))
}

fn query_descriptor(record: &InstalledPlugin, context: &CommandContext) -> Result<Descriptor> {
    let plugin_config = plugins::plugin_config(record, &context.settings)?;
    let host = plugins::host_context(
        Arc::clone(&context.settings),
        context.framework.workspace(),
        context.launcher.clone(),
    );
    PluginProcess::request_descriptor(plugin_config, host).map_err(|error| {
        let cause = format!("{}; run with -v to see its output", error.message());
        add_error(&record.manifest, &cause).with_kind(error.kind())
    })
}

fn add_error(manifest: &Manifest, cause: &str) -> Error {
    Error::config(format!("plugin `{}` was not added: {cause}", manifest.name))
}

/// Returns a note that lists the directories that the pin does not cover, or an empty string.
fn skipped_dirs_note(pin: &PluginPin) -> String {
    const MAX_SHOWN_PATHS: usize = 5;
    let mut names: Vec<_> = pin
        .skipped_dirs
        .iter()
        .take(MAX_SHOWN_PATHS)
        .map(|path| display_path(path))
        .collect();
    if names.is_empty() {
        return String::new();
    }
    if pin.skipped_dirs.len() > MAX_SHOWN_PATHS {
        names.push("…".to_owned());
    }
    format!(
        "not pinned, because tools regenerate them: {}\n",
        names.join(", ")
    )
}

/// Builds the program without external plugins, to compare a plugin with the built-in tools.
fn builtin_framework(context: &CommandContext) -> Framework {
    bundled::build_framework(&context.framework, Arc::clone(&context.settings))
}

/// Returns the first command of the plugin whose name already exists.
fn conflicting_command<'a>(
    descriptor: &'a Descriptor,
    context: &CommandContext,
) -> Option<&'a str> {
    let mut names = descriptor.commands.iter().map(|it| it.name.as_str());
    names.find(|name| context.has_command(name))
}

fn remove_plugin(context: &CommandContext, matches: &ArgMatches) -> Result<ExitCode> {
    let name = required_arg(matches, "name");
    InstalledPlugins::update(context.settings.home(), |installed| installed.remove(name))?;
    output::print(&format!("removed {name} (files kept)\n"))
}

fn set_enabled(context: &CommandContext, matches: &ArgMatches, enabled: bool) -> Result<ExitCode> {
    let name = required_arg(matches, "name");
    let settings = &context.settings;
    InstalledPlugins::update(settings.home(), |installed| {
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
    output::print(&format!(
        "{} {name}\n",
        if enabled { "enabled" } else { "disabled" }
    ))
}

fn list_plugins(context: &CommandContext, matches: &ArgMatches) -> Result<ExitCode> {
    let settings = &context.settings;
    let installed = InstalledPlugins::load(settings.home())?;
    if matches.get_flag("json") {
        let rows = installed.plugins.iter().map(|record| {
            json!({"name": record.manifest.name, "enabled": record.enabled, "path": record.pinned,
                   "pinned": record.digest.is_some(), "problem": start_problem(&context.framework, record)})
        });
        let damaged = installed.damaged.iter();
        let rows =
            rows.chain(damaged.map(|row| json!({"name": row.name(), "problem": row.problem})));
        return output::print(&format!("{:#}\n", Value::Array(rows.collect())));
    }
    if installed.plugins.is_empty() && installed.damaged.is_empty() {
        return output::print(
            "no plugins; run `bub plugin add DIR` to add one, or `bub plugin new NAME` to create one\n",
        );
    }
    let damaged = installed.damaged.iter().map(|row| {
        let state = format!(
            "error: {}; run `bub plugin remove {}` and add it again",
            row.problem,
            row.name()
        );
        [row.name(), "-", "-", &state].map(super::sanitize_line)
    });
    let rows: Vec<_> = installed
        .plugins
        .iter()
        .map(|record| plugin_row(context, record))
        .chain(damaged)
        .collect();
    output::print(&super::tape::text::format_columns(&rows))
}

fn plugin_row(context: &CommandContext, record: &InstalledPlugin) -> [String; 4] {
    let state = match start_problem(&context.framework, record) {
        Some(problem) => format!("error: {problem}"),
        None if record.enabled => "enabled".to_owned(),
        None => "disabled".to_owned(),
    };
    let version = record.descriptor.version.as_deref().unwrap_or("-");
    [
        &record.manifest.name,
        version,
        &display_path(&record.pinned),
        &state,
    ]
    .map(super::sanitize_line)
}

/// Returns the names of enabled plugins whose hooks are registered but which cannot be started.
pub(super) fn unstartable_plugins(context: &CommandContext) -> Vec<String> {
    let installed = InstalledPlugins::load(context.settings.home());
    let records = installed
        .unwrap_or_default()
        .plugins
        .into_iter()
        .filter(|record| record.enabled);
    records
        .filter(|record| start_problem(&context.framework, record).is_some())
        .map(|record| record.manifest.name)
        .collect()
}

/// Returns why an installed plugin cannot be started, if so.
pub(super) fn start_problem(framework: &Framework, record: &InstalledPlugin) -> Option<String> {
    let status = framework
        .plugins()
        .iter()
        .find(|status| *status.name == *record.manifest.name);
    match &status?.state {
        PluginState::Failed(reason) if record.enabled => Some(reason.clone()),
        _ if !has_files(record) => Some(format!(
            "files not found; restore them, or run `bub plugin remove {}`",
            record.manifest.name
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

fn show_plugin(context: &CommandContext, matches: &ArgMatches) -> Result<ExitCode> {
    let settings = &context.settings;
    let installed = InstalledPlugins::load(settings.home())?;
    let record = installed.find(required_arg(matches, "name"))?;
    if matches.get_flag("json") {
        let value =
            serde_json::to_value(record).map_err(|error| Error::unknown(error.to_string()))?;
        return output::print(&format!("{value:#}\n"));
    }
    let mut text = super::sanitize_line(&record.manifest.name);
    if let Some(version) = &record.descriptor.version {
        let _ = write!(text, " {}", super::sanitize_line(version));
    }
    let about = record
        .descriptor
        .description
        .as_deref()
        .unwrap_or(&record.manifest.description);
    let about = super::sanitize_line(about);
    let _ = writeln!(text, "{}{about}", if about.is_empty() { "" } else { ": " });
    text.push_str(&describe_process(record));
    text.push_str(&describe_capabilities(
        &record.descriptor,
        &builtin_framework(context),
    ));
    let [.., state] = plugin_row(context, record);
    let pin = record
        .digest
        .as_deref()
        .map_or("not pinned", |digest| digest.get(..18).unwrap_or(digest));
    let _ = writeln!(text, "state: {state}\npin: {pin}");
    output::print_untrusted(&text)
}

/// Describes the process of a plugin: command, directory, environment variables, and settings.
fn describe_process(record: &InstalledPlugin) -> String {
    let command = super::sanitize_line(&record.manifest.command.join(" "));
    let mut text = format!(
        "command: {command}\ndirectory: {}\n",
        display_path(&record.directory)
    );
    let env = if record.manifest.env.is_empty() {
        "none".to_owned()
    } else {
        record.manifest.env.join(", ")
    };
    let _ = writeln!(text, "environment variables from the manifest: {env}");
    let setting = |setting: &SettingDecl| {
        let note = if setting.secret { " (secret)" } else { "" };
        format!("{}.{}{note}", record.manifest.name, setting.name)
    };
    let settings: Vec<String> = record.manifest.settings.iter().map(setting).collect();
    if !settings.is_empty() {
        let _ = writeln!(text, "settings: {}", settings.join(", "));
    }
    text
}

fn display_path(path: &Path) -> String {
    super::sanitize_line(&path.to_string_lossy())
}

/// Returns the tools of a plugin that replace built-in tools.
fn replaced_tools(descriptor: &Descriptor, builtin: &Framework) -> Vec<String> {
    let names: Vec<_> = builtin
        .tools()
        .iter()
        .map(|tool| tool.spec().model_name())
        .collect();
    let replaced = descriptor
        .tools
        .iter()
        .filter(|tool| names.contains(&tool.model_name()));
    replaced.map(|tool| tool.name.clone()).collect()
}

/// Lists the hooks, tools, channels and commands of a plugin.
fn describe_capabilities(descriptor: &Descriptor, builtin: &Framework) -> String {
    let mut text = String::new();
    let replaced = replaced_tools(descriptor, builtin);
    let is_builtin = |name: &str| replaced.iter().any(|tool| tool == name);
    let tool = |name: &str| {
        format!(
            "{name}{}",
            if is_builtin(name) {
                " (replaces the built-in tool)"
            } else {
                ""
            }
        )
    };
    let tools: Vec<String> = descriptor.tools.iter().map(|it| tool(&it.name)).collect();
    let mut line = |label: &str, names: Vec<&str>| {
        if !names.is_empty() {
            let _ = writeln!(text, "{label}: {}", names.join(", "));
        }
    };
    line(
        "hooks",
        descriptor
            .hooks
            .iter()
            .map(|hook| hook.name.as_str())
            .collect(),
    );
    line("tools", tools.iter().map(String::as_str).collect());
    line(
        "channels",
        descriptor
            .channels
            .iter()
            .map(|channel| channel.name.as_str())
            .collect(),
    );
    line(
        "commands",
        descriptor
            .commands
            .iter()
            .map(|command| command.name.as_str())
            .collect(),
    );
    if text.is_empty() {
        text.push_str("implements no hooks, tools, channels, or commands\n");
    }
    text
}
