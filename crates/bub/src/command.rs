//! Commands of the program. Unlike the commands of plugins, they use clap directly.

use std::{convert::identity, fmt, future::ready, process::ExitCode, sync::Arc};

use bub_agent::shell::Launcher;
use bub_kernel::{BoxFuture, CliCommand, CliContext, Error, Framework, Result};
use bub_model::LoginFactory;
use bub_settings::{AnySetting, Settings};
use clap::{ArgMatches, Args, Command};

use crate::{app::SettingsProblems, args, prompt::PluginPrompt};

/// Context of a command of the program.
#[non_exhaustive]
pub struct CommandContext {
    /// The framework with its plugins. Its tape store is not open yet; see
    /// [`Framework::run_scoped`].
    pub framework: Framework,
    /// Arguments of the command.
    pub matches: ArgMatches,
    /// Settings of the program.
    pub settings: Arc<Settings>,
    /// Logins of plugins, for [`Models::new`](bub_model::Models::new).
    pub logins: Arc<[LoginFactory]>,
    /// Errors in the configuration. Empty unless the command allows invalid settings.
    pub problems: Arc<SettingsProblems>,
    /// Starts supervised processes. `None` if the program cannot start itself as the supervisor.
    pub launcher: Option<Arc<Launcher>>,
    /// Asks the user the questions of plugins.
    #[doc(hidden)]
    pub plugin_prompt: Arc<PluginPrompt>,
    /// Names of the channels of bundled plugins, which external plugins cannot replace.
    #[doc(hidden)]
    pub bundled_channels: Arc<[&'static str]>,
    pub(crate) commands: Arc<[AppCommand]>,
}

impl CommandContext {
    /// Returns the clap command of the program with the commands of all plugins.
    pub fn command_line(&self) -> Command {
        args::complete_command_line(&self.collect_commands())
    }

    /// Returns whether the program or a linked-in plugin has a command with this name or alias.
    pub fn has_command(&self, name: &str) -> bool {
        let commands = self.collect_commands();
        let mut fixed = commands.iter().filter(|command| !command.is_fallback());
        fixed.any(|command| command.has_name(name))
    }

    /// Returns all commands, including the fallback commands ([`AppCommand::is_fallback`]) that were
    /// removed to parse the arguments.
    fn collect_commands(&self) -> Vec<AppCommand> {
        let mut program_commands = self.commands.to_vec();
        program_commands.retain(|command| command.source == CommandSource::Program);
        AppCommand::merge_commands(self.framework.cli_commands(), program_commands)
    }
}

impl fmt::Debug for CommandContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommandContext")
            .field("matches", &self.matches)
            .finish_non_exhaustive()
    }
}

/// The function that runs a command.
type Handler = Arc<dyn Fn(CommandContext) -> BoxFuture<'static, Result<ExitCode>> + Send + Sync>;

/// A command of the program: a clap command and the function that runs it.
#[derive(Clone)]
pub struct AppCommand {
    /// The command without the arguments that [`add_args`](Self::add_args) adds.
    pub(crate) command: Command,
    pub(crate) add_args: fn(Command) -> Command,
    pub(crate) run: Handler,
    pub(crate) allows_invalid_settings: bool,
    pub(crate) is_multi_threaded: bool,
    pub(crate) trust_handling: TrustHandling,
    pub(crate) needs_home: bool,
    pub(crate) setting_flags: Option<fn(&ArgMatches) -> Vec<SettingFlag>>,
    source: CommandSource,
}

/// A setting that an option of a command sets for one run.
pub struct SettingFlag {
    pub(crate) key: &'static dyn AnySetting,
    pub(crate) flag: &'static str,
    pub(crate) value: String,
}

impl SettingFlag {
    /// Creates a flag: `flag` is the option as the user types it, such as `--max-steps`.
    pub fn new(key: &'static dyn AnySetting, flag: &'static str, value: impl Into<String>) -> Self {
        Self {
            key,
            flag,
            value: value.into(),
        }
    }
}

/// Source of a command. It determines which of two commands with the same name is used.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CommandSource {
    Program,
    Plugin,
    /// A plugin, which only offers the command: bub skips the command if another one has its name;
    /// see [`CliApp::add_if_absent`](bub_kernel::CliApp::add_if_absent).
    Fallback,
}

/// What a command does in a workspace that is not trusted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum TrustHandling {
    /// Warn that the files of the workspace are ignored.
    Warn,
    /// Ask the user at the terminal; warn without one.
    Ask,
    /// Do nothing, because the command shows or changes the trust.
    Manage,
}

impl AppCommand {
    /// Creates a command that runs an async function.
    pub fn new<F, R>(command: Command, run: F) -> Self
    where
        F: Fn(CommandContext) -> R + Send + Sync + 'static,
        R: Future<Output = Result<ExitCode>> + Send + 'static,
    {
        let handler = Arc::new(move |context| Box::pin(run(context)) as _);
        Self::from_handler(command, identity, handler)
    }

    /// Creates a command that runs an async function with its arguments, a type with `derive(clap::Args)`.
    ///
    /// The arguments do not delay the start of other commands.
    pub fn with_args<A, F, R>(name: &'static str, about: &'static str, run: F) -> Self
    where
        A: Args,
        F: Fn(CommandContext, A) -> R + Send + Sync + 'static,
        R: Future<Output = Result<ExitCode>> + Send + 'static,
    {
        let handler: Handler =
            Arc::new(move |context| match A::from_arg_matches(&context.matches) {
                Ok(args) => Box::pin(run(context, args)),
                Err(error) => Box::pin(ready(Err(Error::invalid_input(error.to_string())))),
            });
        let command = Command::new(name).about(about);
        // A missing subcommand is an error in one line, as any other missing argument. Clap would print the help.
        let add_args = |command| A::augment_args(command).arg_required_else_help(false);
        Self::from_handler(command, add_args, handler)
    }

    /// Sets the function that returns which settings the arguments set.
    #[must_use]
    pub fn sets_settings(mut self, read: fn(&ArgMatches) -> Vec<SettingFlag>) -> Self {
        self.setting_flags = Some(read);
        self
    }

    /// Hides the command from the help.
    #[must_use]
    pub fn hidden(mut self) -> Self {
        self.command = self.command.hide(true);
        self
    }

    fn from_handler(command: Command, add_args: fn(Command) -> Command, run: Handler) -> Self {
        Self {
            command,
            add_args,
            run,
            allows_invalid_settings: false,
            is_multi_threaded: false,
            trust_handling: TrustHandling::Warn,
            needs_home: false,
            setting_flags: None,
            source: CommandSource::Program,
        }
    }

    /// Lets the command run even if the configuration has errors, to explain or repair them.
    #[must_use]
    pub fn allow_invalid_settings(mut self) -> Self {
        self.allows_invalid_settings = true;
        self
    }

    /// Fails before the command runs if the home cannot be written, because the command stores something there.
    #[must_use]
    pub fn needs_home(mut self) -> Self {
        self.needs_home = true;
        self
    }

    /// Runs the command with one worker thread per core (at least 2, at most 8) instead of one thread.
    #[must_use]
    pub fn multi_threaded(mut self) -> Self {
        self.is_multi_threaded = true;
        self
    }

    /// Asks the user at the terminal whether to trust the workspace, before the command runs.
    #[must_use]
    pub fn asks_for_trust(mut self) -> Self {
        self.trust_handling = TrustHandling::Ask;
        self
    }

    /// Omits the warning about an untrusted workspace, for commands that show or change the trust.
    #[must_use]
    pub fn manages_trust(mut self) -> Self {
        self.trust_handling = TrustHandling::Manage;
        self
    }

    /// Returns the name of the command.
    pub fn name(&self) -> &str {
        self.command.get_name()
    }

    /// Returns whether the command is skipped if another command has its name.
    pub(crate) fn is_fallback(&self) -> bool {
        self.source == CommandSource::Fallback
    }

    pub(crate) fn aliases(&self) -> impl Iterator<Item = &str> {
        self.command.get_all_aliases()
    }

    /// Returns whether the name or an alias of the command is `word`.
    pub(crate) fn has_name(&self, word: &str) -> bool {
        self.name() == word || self.aliases().any(|alias| alias == word)
    }

    /// Converts a plugin's command to a command of the program.
    pub(crate) fn from_plugin(plugin: CliCommand) -> Self {
        let CliCommand {
            spec,
            run,
            is_fallback,
        } = plugin;
        let command = args::to_clap_command(&spec);
        let mut app_command = Self::new(command, move |context: CommandContext| {
            let args = args::to_command_args(&spec, &context.matches);
            run(CliContext::new(context.framework, args))
        });
        app_command.source = if is_fallback {
            CommandSource::Fallback
        } else {
            CommandSource::Plugin
        };
        app_command
    }

    /// Merges the commands of plugins with those of the program.
    ///
    /// A plugin's command replaces a command of the program with the same name. A fallback command
    /// ([`AppCommand::is_fallback`]) is skipped if another command has its name.
    pub(crate) fn merge_commands(
        plugins: Vec<CliCommand>,
        program_commands: Vec<Self>,
    ) -> Vec<Self> {
        let (fallbacks, added): (Vec<_>, Vec<_>) =
            plugins.into_iter().partition(|command| command.is_fallback);
        let mut commands: Vec<_> = added.into_iter().map(Self::from_plugin).collect();
        for command in program_commands {
            let mut names = commands.iter().map(Self::name);
            if names.all(|name| name != command.name()) {
                commands.push(command);
            }
        }
        for command in fallbacks {
            let name = &command.spec.name;
            if name == "help" || commands.iter().any(|existing| existing.has_name(name)) {
                tracing::warn!(command = %name, error = "another command has this name", hint = "rename the command in the plugin", "cli.command_skipped");
            } else {
                commands.push(Self::from_plugin(command));
            }
        }
        commands
    }
}

impl fmt::Debug for AppCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AppCommand({})", self.name())
    }
}
