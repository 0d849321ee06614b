//! Commands of the program. Unlike the commands of plugins, they use clap directly.

use std::{fmt, process::ExitCode, sync::Arc};

use bub_agent::shell::Launcher;
use bub_kernel::{BoxFuture, CliCommand, CliContext, Framework, Result};
use bub_settings::Settings;
use clap::{ArgMatches, Command};

use crate::{app::SettingsProblems, args, prompt::PluginPrompt};

/// Context of a command of the program.
#[non_exhaustive]
pub struct CommandContext {
    /// The framework, before it runs.
    pub framework: Framework,
    /// Arguments of the command.
    pub matches: ArgMatches,
    /// Settings of the program.
    pub settings: Arc<Settings>,
    /// Errors in the configuration. Empty unless the command allows invalid settings.
    pub problems: Arc<SettingsProblems>,
    /// Starts supervised processes. `None` if the program cannot start itself as the supervisor.
    pub launcher: Option<Arc<Launcher>>,
    /// Prompts the user on behalf of plugins.
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
        args::command_line(&self.collect_commands())
    }

    /// Returns whether the program or a linked-in plugin has a command with this name or alias.
    pub fn has_command(&self, name: &str) -> bool {
        let commands = self.collect_commands();
        let mut fixed = commands.iter().filter(|command| !command.is_offered());
        fixed.any(|command| command.has_name(name))
    }

    /// Returns all commands, also those that this run of the program removed to parse its arguments.
    fn collect_commands(&self) -> Vec<AppCommand> {
        let program_commands = self
            .commands
            .iter()
            .filter(|command| command.source == CommandSource::Program);
        AppCommand::merge_commands(
            self.framework.cli_commands(),
            program_commands.cloned().collect(),
        )
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
    pub(crate) command: Command,
    pub(crate) run: Handler,
    pub(crate) allows_invalid_settings: bool,
    pub(crate) is_multi_threaded: bool,
    source: CommandSource,
}

/// Source of a command. It determines which of two commands with the same name is used.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CommandSource {
    Program,
    Plugin,
    /// A plugin whose command is skipped if its name is taken; see
    /// [`CliApp::add_if_absent`](bub_kernel::CliApp::add_if_absent).
    Offered,
}

impl AppCommand {
    /// Creates a command that runs an async function.
    pub fn new<F, R>(command: Command, run: F) -> Self
    where
        F: Fn(CommandContext) -> R + Send + Sync + 'static,
        R: Future<Output = Result<ExitCode>> + Send + 'static,
    {
        Self {
            command,
            run: Arc::new(move |context| Box::pin(run(context))),
            allows_invalid_settings: false,
            is_multi_threaded: false,
            source: CommandSource::Program,
        }
    }

    /// Lets the command run even if the configuration has errors, to explain or repair them.
    #[must_use]
    pub fn allow_invalid_settings(mut self) -> Self {
        self.allows_invalid_settings = true;
        self
    }

    /// Runs the command with one worker thread per core (at least 2, at most 8) instead of one thread.
    #[must_use]
    pub fn multi_threaded(mut self) -> Self {
        self.is_multi_threaded = true;
        self
    }

    /// Returns the name of the command.
    pub fn name(&self) -> &str {
        self.command.get_name()
    }

    /// Returns whether the command is skipped if its name is taken.
    pub(crate) fn is_offered(&self) -> bool {
        self.source == CommandSource::Offered
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
            is_offered,
        } = plugin;
        let command = args::to_clap_command(&spec);
        let app_command = Self::new(command, move |context: CommandContext| {
            run(CliContext {
                args: args::to_command_args(&spec, &context.matches),
                framework: context.framework,
            })
        });
        let source = if is_offered {
            CommandSource::Offered
        } else {
            CommandSource::Plugin
        };
        Self {
            source,
            ..app_command
        }
    }

    /// Merges the commands of plugins with those of the program.
    ///
    /// A plugin's command replaces a command of the program with the same name. An offered command
    /// is skipped if its name is taken.
    pub(crate) fn merge_commands(
        plugins: Vec<CliCommand>,
        program_commands: Vec<Self>,
    ) -> Vec<Self> {
        let (offered, added): (Vec<_>, Vec<_>) =
            plugins.into_iter().partition(|command| command.is_offered);
        let mut commands: Vec<_> = added.into_iter().map(Self::from_plugin).collect();
        for command in program_commands {
            if commands
                .iter()
                .all(|existing| existing.name() != command.name())
            {
                commands.push(command);
            }
        }
        for command in offered {
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
