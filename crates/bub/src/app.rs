//! A program: parses arguments, loads settings and plugins, runs a command and returns the exit code.

use std::{
    any::Any,
    ffi::OsString,
    io::Write,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use bub_agent::shell::{self, Launcher};
use bub_kernel::{
    BoxError, Error, ErrorKind, Framework, FrameworkBuilder, Plugin, PluginContext, Result, Tool,
};
use bub_plugin::QuestionHandler;
use bub_settings::{
    Environment, Loader, Redactor, Section, Settings, SettingsError, WorkspaceTrust,
};
use clap::ArgMatches;

use crate::{
    app_settings,
    args::{self, ParsedArgs},
    builtin::BuiltinPlugin,
    command::{AppCommand, CommandContext},
    logging, output, plugins,
    prompt::{self, PluginPrompt},
};

/// Exit code if a command fails.
const EXIT_FAILURE: u8 = 1;
/// Exit code for invalid arguments or configuration.
const EXIT_USAGE: u8 = 2;

/// Errors in the configuration. Commands that run in spite of errors report them.
#[derive(Debug, Default)]
pub struct SettingsProblems(pub Vec<SettingsError>);

/// A program with the plugin `builtin` and the plugins and commands you add.
///
/// Plugins are registered after `builtin` in the order of the calls; later plugins run first.
/// `bub_cli::app()` returns an `App` with the commands and channels of the stock program.
#[must_use]
#[derive(Default)]
pub struct App {
    add_plugins: Vec<Box<dyn FnOnce(FrameworkBuilder) -> FrameworkBuilder>>,
    commands: Vec<AppCommand>,
    sections: Vec<Section>,
    bundled_plugins: Vec<&'static str>,
    bundled_channels: Vec<&'static str>,
    next_steps: Option<&'static str>,
    default_command: Vec<&'static str>,
    launcher: Option<Launcher>,
}

impl App {
    /// Creates a program without commands.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a command. A plugin's command with the same name replaces it.
    pub fn command(mut self, command: AppCommand) -> Self {
        self.commands.push(command);
        self
    }

    /// Adds a plugin that is part of the program, with the names of its channels.
    ///
    /// External plugins cannot replace these channels. Error messages do not name a bundled plugin.
    pub fn bundled_plugin<P: Plugin, E: Into<BoxError> + 'static>(
        mut self,
        name: &'static str,
        channels: &[&'static str],
        make: impl FnOnce(&PluginContext<'_>) -> Result<P, E> + Send + 'static,
    ) -> Self {
        self.bundled_plugins.push(name);
        self.bundled_channels.extend(channels);
        self.plugin_with(name, make)
    }

    /// Sets the text that the program prints if no command is given. Default: the help.
    pub fn next_steps(mut self, text: &'static str) -> Self {
        self.next_steps = Some(text);
        self
    }

    /// Sets the command that runs if no command is given, stdin is a terminal and the configuration
    /// is valid.
    pub fn default_command(mut self, args: &[&'static str]) -> Self {
        self.default_command = args.to_vec();
        self
    }

    /// Adds a plugin with a name.
    pub fn plugin(mut self, name: &'static str, plugin: impl Plugin) -> Self {
        self.add_plugins
            .push(Box::new(move |builder| builder.plugin(name, plugin)));
        self
    }

    /// Adds a plugin that is created from its context; see [`FrameworkBuilder::plugin_with`].
    pub fn plugin_with<P: Plugin, E: Into<BoxError> + 'static>(
        mut self,
        name: &'static str,
        make: impl FnOnce(&PluginContext<'_>) -> Result<P, E> + Send + 'static,
    ) -> Self {
        self.add_plugins
            .push(Box::new(move |builder| builder.plugin_with(name, make)));
        self
    }

    /// Adds a tool; see [`FrameworkBuilder::tool`].
    pub fn tool(mut self, tool: impl Tool) -> Self {
        self.add_plugins
            .push(Box::new(move |builder| builder.tool(tool)));
        self
    }

    /// Declares the settings of a plugin, so that bub reads, validates and documents them.
    pub fn settings(mut self, section: Section) -> Self {
        self.sections.push(section);
        self
    }

    /// Runs the program with the arguments of the process.
    pub fn main(mut self) -> ExitCode {
        // Not in `run`: only a program that parses the arguments of its process can start itself as
        // the supervisor.
        self.launcher = Launcher::current_program();
        self.run(std::env::args_os())
    }

    /// Runs the program with these arguments. The first argument is the name of the program.
    pub fn run(self, args: impl IntoIterator<Item = impl Into<OsString>>) -> ExitCode {
        let args: Vec<OsString> = args.into_iter().map(Into::into).collect();
        // First, because every shell command of the agent starts this way and should start fast.
        if let [_, subcommand, rest @ ..] = args.as_slice()
            && subcommand == shell::SUBCOMMAND
        {
            return shell::supervise(rest);
        }
        set_process_undumpable();
        let redactor = Redactor::new();
        self.try_run(&args, &redactor).unwrap_or_else(|failure| {
            // A failed write to stderr is ignored: there is nowhere to report it.
            let text = redactor.redact(&failure.text);
            let text = if failure.has_lines {
                output::sanitize(text.trim_end())
            } else {
                output::sanitize_line(&text)
            };
            let _ = writeln!(std::io::stderr(), "error: {text}");
            ExitCode::from(failure.code)
        })
    }

    fn try_run(mut self, args: &[OsString], redactor: &Redactor) -> Result<ExitCode, ExitError> {
        let workspace_arg = args::workspace(args);
        let workspace = workspace_arg.clone().unwrap_or_else(|| PathBuf::from("."));
        // Help must work with an invalid configuration, so report problems only when a command
        // runs.
        let (mut settings, problems) = self.load_settings(&workspace, redactor);
        logging::start_logging(&settings, args::verbosity(args));
        let plugins = plugins::load(&mut settings, &self.bundled_channels);
        for warning in settings.warnings() {
            tracing::warn!(reason = %warning, "settings.warning");
        }
        let settings = Arc::new(settings);
        let problems = Arc::new(SettingsProblems(problems));
        let launcher = self.launcher.take().map(Arc::new);
        let plugin_prompt = Arc::<PluginPrompt>::default();
        let program_commands = std::mem::take(&mut self.commands);
        let bundled_channels = std::mem::take(&mut self.bundled_channels);
        let bundled_plugins = std::mem::take(&mut self.bundled_plugins);
        let (next_steps, default_command) =
            (self.next_steps, std::mem::take(&mut self.default_command));
        let prompt = Arc::clone(&plugin_prompt);
        let question_handler = QuestionHandler(Arc::new(move |question| prompt.ask_user(question)));
        let builder = Framework::builder()
            .workspace(&workspace)
            .settings(Arc::clone(&settings));
        let services = plugins::HostServices {
            launcher: launcher.clone(),
            question_handler: Some(question_handler),
        };
        let framework = self.build_framework(builder, plugins, &services);
        let mut commands = AppCommand::merge_commands(framework.cli_commands(), program_commands);
        let (name, matches) = match parse_args(args, &mut commands, workspace_arg.as_deref())? {
            ParsedArgs::Command(name, matches) => (name, matches),
            ParsedArgs::Nothing
                if problems.0.is_empty()
                    && !default_command.is_empty()
                    && prompt::has_terminal() =>
            {
                parse_default_command(&default_command, &commands)?
            }
            ParsedArgs::Nothing => {
                let help = || args::command_line(&commands).render_help().to_string();
                let text = next_steps.map_or_else(help, str::to_owned);
                return Ok(output::print(&text)?);
            }
            ParsedArgs::Print(text) => return Ok(output::print(&text)?),
            ParsedArgs::Wrong(line) => return Err(ExitError::usage_error(line)),
        };
        args::check_workspace(&workspace).map_err(ExitError::usage_error)?;
        let Some(command) = commands
            .iter()
            .find(|command| command.name() == name)
            .cloned()
        else {
            return Err(ExitError::usage_error(format!(
                "unknown command `{name}`; run `bub --help` to list commands"
            )));
        };
        if !command.allows_invalid_settings {
            if let Some(problem) = problems.0.first() {
                return Err(ExitError::usage_error(problem.to_string()));
            }
            check_settings(&settings).map_err(ExitError::usage_error)?;
        }
        let context = CommandContext {
            framework,
            matches,
            settings,
            problems,
            launcher,
            plugin_prompt,
            bundled_channels: bundled_channels.into(),
            commands: commands.into(),
        };
        run_command(&command, context).map_err(|error| ExitError::new(&error, &bundled_plugins))
    }

    /// Loads the settings of the program and its plugins, with the errors in them.
    fn load_settings(
        &mut self,
        workspace: &Path,
        redactor: &Redactor,
    ) -> (Settings, Vec<SettingsError>) {
        Loader::new(Environment::from_process())
            .workspace(workspace, WorkspaceTrust::Untrusted)
            .redactor(redactor)
            .sections(core_sections())
            .sections(std::mem::take(&mut self.sections))
            .load_lenient()
    }

    /// Builds the framework from the plugin `builtin`, the added plugins and the external plugins.
    fn build_framework(
        self,
        builder: FrameworkBuilder,
        plugins: plugins::LoadedPlugins,
        services: &plugins::HostServices,
    ) -> Framework {
        let launcher = services.launcher.clone();
        let builder = builder.plugin_with(BuiltinPlugin::NAME, move |context| {
            Ok::<_, Error>(BuiltinPlugin::new(context, launcher.as_deref().cloned()))
        });
        let builder = self
            .add_plugins
            .into_iter()
            .fold(builder, |builder, add| add(builder));
        plugins.add_to_builder(builder, services).build()
    }
}

/// Returns the settings that every program has, in the order of `bub config list`.
///
/// A program that loads settings without an [`App`] passes these sections to [`Loader::sections`].
/// Plugins declare their settings with [`App::settings`].
pub fn core_sections() -> impl Iterator<Item = Section> {
    let model = bub_model::settings::sections();
    let agent = bub_agent::settings::sections();
    let gateway = bub_gateway::settings::sections();
    let kernel = bub_kernel::settings::sections();
    let app = app_settings::sections();
    let sections = model.into_iter().chain(agent).chain(gateway);
    sections.chain(kernel).chain(app)
}

/// Parses the arguments. Removes the commands that plugins offer if they are not needed or conflict.
fn parse_args(
    args: &[OsString],
    commands: &mut Vec<AppCommand>,
    workspace: Option<&Path>,
) -> Result<ParsedArgs, ExitError> {
    let parse = |commands: &[AppCommand]| {
        catch_unwind(AssertUnwindSafe(|| args::parse(args, commands, workspace)))
    };
    // Declarations of external plugins must not affect how the program's own commands are parsed.
    let word = args::command_name(args).unwrap_or_default();
    if commands
        .iter()
        .any(|command| !command.is_offered() && command.has_name(word))
    {
        commands.retain(|command| !command.is_offered());
    }
    let parsed = parse(commands).or_else(|panic| {
        let hint = "rename the command in the plugin, or disable the plugin with `bub plugin disable NAME`";
        let error = describe_conflict(commands, &*panic);
        tracing::error!(error, hint, "plugin.commands_skipped");
        commands.retain(|command| !command.is_offered());
        parse(commands)
    });
    // Only commands that are compiled in are left.
    parsed.map_err(|panic| {
        ExitError::usage_error(format!(
            "cannot use the commands of this program: {}; rename one where it is defined and rebuild the program",
            describe_conflict(commands, &*panic)
        ))
    })
}

/// Describes why the commands cannot be used together: a name of two commands, or otherwise the message of clap.
fn describe_conflict(commands: &[AppCommand], panic: &(dyn Any + Send)) -> String {
    for (index, command) in commands.iter().enumerate() {
        let mut names = std::iter::once(command.name()).chain(command.aliases());
        let mut earlier = commands.iter().take(index);
        if let Some(name) = names.find(|name| earlier.clone().any(|other| other.has_name(name)))
            && let Some(other) = earlier.find(|other| other.has_name(name))
        {
            return format!(
                "the name `{name}` belongs to the commands `{}` and `{}`",
                other.name(),
                command.name()
            );
        }
    }
    let message = panic.downcast_ref::<String>().map(String::as_str);
    let message = message.or_else(|| panic.downcast_ref::<&str>().copied());
    let line = message.and_then(|message| message.lines().next());
    line.unwrap_or("two commands or arguments have the same name")
        .to_owned()
}

fn parse_default_command(
    args: &[&str],
    commands: &[AppCommand],
) -> Result<(String, ArgMatches), ExitError> {
    let line: Vec<_> = std::iter::once(&"bub")
        .chain(args)
        .map(OsString::from)
        .collect();
    match args::parse(&line, commands, None) {
        ParsedArgs::Command(name, matches) => Ok((name, matches)),
        _ => Err(ExitError::usage_error(format!(
            "invalid default command `{}`: unknown command or arguments; correct the call of `App::default_command`",
            args.join(" ")
        ))),
    }
}

/// Prevents other processes of this user from reading the memory of this process.
///
/// Otherwise, on Linux, commands of the agent could read API keys from `/proc`. Errors are ignored,
/// because everything else works without this protection.
fn set_process_undumpable() {
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
}

/// Returns the first problem in the structured settings `providers` and `policy`.
///
/// Without this check, bub would report an invalid provider only before the first model call, and an invalid policy
/// would silently deny everything.
#[doc(hidden)]
pub fn check_settings(settings: &Settings) -> Result<(), String> {
    bub_model::Catalog::new(settings).map_err(|problem| problem.to_string())?;
    bub_agent::policy::Policy::new(settings)
        .invalid_reason()
        .map_or(Ok(()), |problem| Err(problem.to_owned()))
}

fn run_command(command: &AppCommand, context: CommandContext) -> Result<ExitCode> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(if command.is_multi_threaded {
            cores.clamp(2, 8)
        } else {
            1
        })
        .enable_all()
        .build()
        .map_err(|error| Error::unknown(format!("cannot start threads: {error}; raise the process limit (`ulimit -u`) or free memory")))?;
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on((command.run)(context))
    }));
    // Background tasks must not keep the program from exiting.
    runtime.shutdown_background();
    // An unanswered prompt must not leave the terminal without echo.
    bub_terminal::tty::restore();
    match outcome {
        Ok(outcome) => outcome,
        Err(_) => Err(Error::unknown(
            "the command failed with an internal error (panic); see the log for details",
        )),
    }
}

/// An error that ends the program, with its exit code.
struct ExitError {
    text: String,
    /// Whether the text has several lines, because it quotes the output of a command.
    has_lines: bool,
    code: u8,
}

impl From<Error> for ExitError {
    fn from(error: Error) -> Self {
        Self::new(&error, &[])
    }
}

impl ExitError {
    fn new(error: &Error, bundled_plugins: &[&str]) -> Self {
        // Name hook and plugin only for plugins that are not part of the program.
        let is_bundled =
            |name: &str| name == BuiltinPlugin::NAME || bundled_plugins.contains(&name);
        let foreign = error.origin().filter(|origin| !is_bundled(&origin.plugin));
        let has_lines = foreign.is_none() && error.kind() == ErrorKind::Tool;
        let text = match foreign {
            Some(origin) => format!("{error} (hook {} of plugin {})", origin.hook, origin.plugin),
            None => error.message().to_owned(),
        };
        let code = match error.kind() {
            ErrorKind::Config | ErrorKind::InUse => EXIT_USAGE,
            ErrorKind::InvalidInput if error.origin().is_none() => EXIT_USAGE,
            _ => EXIT_FAILURE,
        };
        Self {
            text,
            has_lines,
            code,
        }
    }

    fn usage_error(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            has_lines: false,
            code: EXIT_USAGE,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Command;

    use super::*;

    #[test]
    fn conflicting_commands_are_named() {
        let command =
            |command: Command| AppCommand::new(command, |_| async { Ok(ExitCode::SUCCESS) });
        let mut commands = vec![
            command(Command::new("deploy").alias("push")),
            command(Command::new("push")),
        ];
        let error = parse_args(&["bub".into(), "push".into()], &mut commands, None).err();
        assert_eq!(
            error.map(|error| error.text).as_deref(),
            Some(
                "cannot use the commands of this program: the name `push` belongs to the commands `deploy` and `push`; \
                 rename one where it is defined and rebuild the program"
            )
        );
    }
}
